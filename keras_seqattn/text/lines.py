"""`TextLines`: the lines of text files, read on demand."""

import codecs
import contextlib
import gzip
import pathlib
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from keras_seqattn import arguments
from keras_seqattn.annotations import Path


class TextLines:
    r"""The lines of text files, one file after another, read on demand.

    It takes no memory, however long the files are, and can be iterated over repeatedly.
    Only `\n` and `\r\n` end a line; every other character is part of the text, except a
    byte-order mark at the beginning of a file, which is left out.

    Args:
        paths: Path of a UTF-8 text file, or of one ending in `.gz`; or a list of such
            paths.
        column: Number from 0 of the column that holds the text, in files of
            tab-separated columns. None: the whole line. A line may have further
            columns, so a tab within a text goes unnoticed: it ends the column.

    Raises:
        ValueError: If an argument is not as above or a file does not exist; and during
            iteration, if a line is not UTF-8 or has no such column, or a file named
            `.gz` is damaged.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pairs.tsv")
        ...     _ = path.write_text("one\teins\ntwo\tzwei\n", "utf-8")
        ...     print(list(TextLines(path, column=1)))
        ['eins', 'zwei']
    """

    def __init__(self, paths: Path | Sequence[Path], column: int | None = None) -> None:
        wanted = "paths of files that exist"
        paths = paths if isinstance(paths, list | tuple) else [paths]
        if not paths:
            arguments.refuse("paths", paths, wanted)
        self.paths: list[pathlib.Path] = [
            pathlib.Path(arguments.path("paths", path)) for path in paths
        ]
        for path in self.paths:
            if not path.is_file():
                arguments.refuse("paths", str(path), wanted)
        self.column: int | None = arguments.integer("column", column, 0, optional=True)

    def __iter__(self) -> Iterator[str]:
        """Yields the lines."""
        for path in self.paths:
            for number, line in enumerate(lines_of(path), start=1):
                text = decoded(line, path, number)
                yield text if self.column is None else self._cell(text, path, number)

    def _cell(self, line, path, number):
        cells = line.split("\t", self.column + 1)
        if len(cells) <= self.column:
            raise ValueError(
                f"`paths` must hold the `column` {self.column}, from 0, with a tab "
                f"between columns. Received: {str(path)!r}, line {number}, with "
                f"{len(cells)}: {arguments.shown(line)}."
            )
        return cells[self.column]

    def identity(self) -> dict[str, Any]:
        """Returns what shows whether the files are still the same.

        Returns:
            Dict of each file's name, size and time of its last change, and of the
            column, which JSON can hold. Of copies, only `cp -p` keeps that time.
        """
        stats = [(path.name, path.stat()) for path in self.paths]
        return {
            "files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
            "column": self.column,
        }

    def __repr__(self) -> str:
        """Returns the constructor's call."""
        paths = [str(path) for path in self.paths]
        return f"TextLines({paths!r}, column={self.column!r})"


def lines_of(path: pathlib.Path) -> Iterator[bytes]:
    """Yields a file's lines as bytes, without line ends or a byte-order mark."""
    open_file = gzip.open if path.suffix == ".gz" else open
    with reading_gzip(path), open_file(path, "rb") as file:
        for number, line in enumerate(file):
            line = line if number else line.removeprefix(codecs.BOM_UTF8)
            if line:  # A file that holds only the mark has no line.
                yield line.removesuffix(b"\r\n").removesuffix(b"\n")


@contextlib.contextmanager
def reading_gzip(path: pathlib.Path) -> Iterator[None]:
    """Turns what a damaged gzip file raises into a `ValueError`."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"A file named .gz must hold gzip data. Received: {str(path)!r}: {error}."
        ) from error


def decoded(line: bytes, path: Path, number: int, what: str = "A corpus") -> str:
    """Returns a line as text; the rest is for the error if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{what} must be UTF-8. Received: {str(path)!r}, line {number}: {error}."
        ) from error
