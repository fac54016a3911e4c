"""`Journal`: a file of long work, which grows block by block and is gone on with."""

import json
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

from keras_seqattn.annotations import Path
from keras_seqattn.files import mapping, reading, release_lock, replacing, take_lock


class Journal:
    """Rows of a JSON Lines file, and beside it how far the work has come.

    A block of rows is on the disk before the file beside it says so: rows that came
    after, of a block that a kill cut short, are removed when it is opened again.

    Args:
        path: Path of the file; beside it stand `path` + ".progress" and ".lock".
        run: Dict that says what work it is, which JSON can hold.

    Attributes:
        lines: Number of lines that the rows are of.

    Raises:
        ValueError: If the file is that of other work, another process uses it, or it
            was cut.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with Journal(f"{folder}/pairs.jsonl", {"search": None}) as journal:
        ...     journal.append([{"source": "one"}], lines=1)
        >>> with Journal(f"{folder}/pairs.jsonl", {"search": None}) as journal:
        ...     print(journal.lines, list(journal.rows()))
        1 [{'source': 'one'}]
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path, self.run = pathlib.Path(path), json.loads(json.dumps(run))
        self.lines = self._bytes = 0

    def __enter__(self) -> Self:
        """Takes the file for this process, and removes an unfinished block."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        holder = take_lock(self._beside(".lock"))
        if holder:
            self._refuse("not in use by another process", f"in use by {holder}")
        try:
            self._open()
        except Exception:
            release_lock(self._beside(".lock"))
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        """Leaves the file to other processes."""
        release_lock(self._beside(".lock"))

    def _open(self):
        progress = self._beside(".progress")
        if progress.exists():
            self._read(progress)
        elif self.path.exists():
            self._refuse("new, or of the same work", "of other work")
        else:
            self._save()
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._bytes:
            found = f"of {size}; delete it and {progress.name} to begin anew"
            self._refuse(f"whole, of {self._bytes} bytes", found)
        self.path.touch()
        os.truncate(self.path, self._bytes)

    def _read(self, progress):
        with reading(progress, "of a journal's progress", "delete it and the journal"):
            content = json.loads(progress.read_text("utf-8"))
            stored = mapping(content, ("run", "lines", "bytes"))
        others = [x for x in self.run if stored["run"].get(x) != self.run[x]]
        if others:
            found = f"with other {' and '.join(others)}"
            self._refuse("new, or of the same work", found)
        self.lines, self._bytes = stored["lines"], stored["bytes"]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields the rows, dicts, from the first."""
        with open(self.path, encoding="utf-8", newline="\n") as file:
            for line in file:
                yield json.loads(line)

    def append(self, rows: Iterable[dict[str, Any]], lines: int) -> None:
        """Writes a block.

        Args:
            rows: List of dicts.
            lines: Number of lines that they are of.
        """
        with open(self.path, "ab") as file:
            for row in rows:
                file.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
            self._bytes = file.tell()
        self.lines += lines
        self._save()

    def _save(self):
        progress = {"run": self.run, "lines": self.lines, "bytes": self._bytes}
        with replacing(self._beside(".progress")) as unfinished:
            unfinished.write_text(json.dumps(progress), "utf-8")

    def _beside(self, ending):
        return self.path.with_name(self.path.name + ending)

    def _refuse(self, wanted, found):
        raise ValueError(
            f"`path` must be {wanted}. Received: path={str(self.path)!r}, {found}."
        )
