"""Parallel text in the user's own files, and a report on their lines."""

import pathlib
from typing import Any, Self

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.text.lines import decoded, lines_of


class ParallelText(tuple[list[str], list[str]]):
    r"""The two lists that were read from files, and a report on their lines.

    It is the pair `(sources, targets)`; the functions that read files make it.

    Attributes:
        num_lines: Number of lines read.
        found: Dict from "malformed", "empty" and "duplicate" to lists of the numbers of
            such lines, counted from 1. A line is listed under the kind that it was left
            out for, else under the first kind that applies.
        skipped: Tuple of those kinds that were left out.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pairs.tsv")
        ...     _ = path.write_text("one\teins\none\teins\ntwo\t\n", "utf-8")
        ...     pairs = read_tsv(path, skip_duplicates=True)
        >>> sources, targets = pairs
        >>> sources, pairs.found["duplicate"]
        (['one', 'two'], [2])
        >>> print(pairs.report)
        2 pairs of 3 lines; left out: 1 duplicate (line 2); kept: 1 empty (line 3)
    """

    num_lines: int
    found: dict[str, list[int]]
    skipped: tuple[str, ...]

    def __new__(
        cls,
        sources: list[str],
        targets: list[str],
        num_lines: int,
        found: dict[str, list[int]],
        skipped: tuple[str, ...],
    ) -> Self:
        """Makes the pair."""
        pair = super().__new__(cls, (sources, targets))
        pair.num_lines, pair.found, pair.skipped = num_lines, found, skipped
        return pair

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Returns the constructor's arguments, for copies and pickles."""
        return (*self, self.num_lines, self.found, self.skipped)

    @property
    def report(self) -> str:
        """One line of text: how many pairs of how many lines, and what was found."""
        parts = [f"{len(self[0]):,} pairs of {self.num_lines:,} lines"]
        for what, skipped in (("left out", True), ("kept", False)):
            counts = [
                f"{len(numbers):,} {kind} ({_places(numbers)})"
                for kind, numbers in self.found.items()
                if numbers and (kind in self.skipped) == skipped
            ]
            parts += [f"{what}: {', '.join(counts)}"] if counts else []
        return "; ".join(parts)


def read_parallel(
    source_path: Path,
    target_path: Path,
    skip_empty: bool = False,
    skip_duplicates: bool = False,
    skip_malformed: bool = False,
) -> ParallelText:
    r"""Reads two files whose lines are translations of each other.

    Only `\n` and `\r\n` end a line; every other character is part of the text, except a
    byte-order mark at the beginning of a file, which is removed.

    Args:
        source_path: UTF-8 text file, or one ending in `.gz`.
        target_path: The same, with as many lines.
        skip_empty: Whether to leave out pairs with a side that is empty or whitespace.
        skip_duplicates: Whether to leave out repetitions of earlier pairs.
        skip_malformed: Whether to leave out pairs with a side that is not UTF-8,
            instead of raising an error.

    Returns:
        Two lists of strings, the sources and the targets, as a tuple with the
        attributes `report`, a text that counts such lines whether or not they are left
        out; `num_lines`; `found`, a dict from "malformed", "empty" and "duplicate" to
        lists of line numbers, from 1; and `skipped`, the kinds left out.

    Raises:
        ValueError: If the numbers of lines differ, a file holds none or is a damaged
            `.gz`, a line is not UTF-8 without `skip_malformed`, or no pair is left.
        FileNotFoundError: If there is no such file.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sources = pathlib.Path(folder, "train.en")
        ...     targets = pathlib.Path(folder, "train.de")
        ...     _ = sources.write_text("one\ntwo\n", "utf-8")
        ...     _ = targets.write_text("eins\nzwei\n", "utf-8")
        ...     print(read_parallel(sources, targets))
        (['one', 'two'], ['eins', 'zwei'])
    """
    arguments.path("source_path", source_path)
    arguments.path("target_path", target_path)
    sources, targets = _read_lines(source_path), _read_lines(target_path)
    if len(sources) != len(targets):
        raise ValueError(
            "`target_path` must hold as many lines as `source_path`. Received: "
            f"{str(source_path)!r} with {len(sources)} lines, "
            f"{str(target_path)!r} with {len(targets)}."
        )

    def row(number, lines):
        paths = source_path, target_path
        sides = zip(lines, paths, strict=True)
        return tuple(decoded(line, path, number) for line, path in sides)

    names = f"{str(source_path)!r} and {str(target_path)!r}"
    lines = zip(sources, targets, strict=True)
    return _collect(lines, row, names, skip_empty, skip_duplicates, skip_malformed)


def read_tsv(
    path: Path,
    columns: tuple[int, int] | None = None,
    skip_empty: bool = False,
    skip_duplicates: bool = False,
    skip_malformed: bool = False,
    header: bool = False,
) -> ParallelText:
    r"""Reads pairs from a file of tab-separated columns.

    Only `\n` and `\r\n` end a line; quotation marks are text. A byte-order mark at the
    beginning is removed.

    Args:
        path: UTF-8 text file, or one ending in `.gz`.
        columns: Numbers from 0 of the columns that hold the source and the target;
            lines may have more. None: there are two columns, source and target.
        skip_empty: Whether to leave out blank lines, and pairs with a side that is
            empty or whitespace.
        skip_duplicates: Whether to leave out repetitions of earlier pairs.
        skip_malformed: Whether to leave out lines that lack a column, have more than
            two where `columns` is None, or are not UTF-8, instead of raising an error.
        header: Whether the first line names the columns, and is not a pair.

    Returns:
        Two lists of strings, the sources and the targets, as a tuple with the
        attributes `report`, a text that counts such lines whether or not they are left
        out; `num_lines`; `found`, a dict from "malformed", "empty" and "duplicate" to
        lists of line numbers, from 1; and `skipped`, the kinds left out.

    Raises:
        ValueError: If a line does not have the columns or is not UTF-8 without
            `skip_malformed`, the file holds no line or is a damaged `.gz`, or no pair
            is left.
        FileNotFoundError: If there is no such file.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "pairs.tsv")
        ...     _ = path.write_text("one\teins\n\ntwo\tzwei\n", "utf-8")
        ...     pairs = read_tsv(path, skip_empty=True)
        >>> pairs
        (['one', 'two'], ['eins', 'zwei'])
        >>> pairs.report
        '2 pairs of 3 lines; left out: 1 empty (line 2)'
    """
    arguments.path("path", path)
    arguments.boolean("header", header)
    chosen = (0, 1) if columns is None else _check_columns(columns)
    if columns is None:
        needed = "must hold two columns with a tab between them; choose two of more by "
        needed += "`columns`"
    else:
        needed = f"must hold the `columns` {chosen}, from 0, with a tab between columns"
    needed += "; `skip_malformed` leaves out lines that do not, `skip_empty` blank ones"

    def row(number, line):
        line = decoded(line, path, number)
        if skip_empty and not line.strip():
            return "", ""
        row = line.split("\t")
        if len(row) <= max(chosen) or (columns is None and len(row) > 2):
            raise ValueError(
                f"`path` {needed}. Received: {str(path)!r}, line {number}, with "
                f"{len(row)}: {arguments.shown(row)}."
            )
        return tuple(row[column] for column in chosen)

    return _collect(
        _read_lines(path)[int(header) :],
        row,
        repr(str(path)),
        skip_empty,
        skip_duplicates,
        skip_malformed,
        first=1 + int(header),
    )


def _check_columns(columns):
    chosen = tuple(columns) if isinstance(columns, list | tuple) else ()
    if len(chosen) != 2:
        arguments.refuse("columns", columns, "two column numbers from 0", optional=True)
    return tuple(arguments.integer("columns", column, least=0) for column in chosen)


def _collect(lines, row, names, skip_empty, skip_duplicates, skip_malformed, first=1):
    """Makes a `ParallelText` of the pairs that `row` returns for (number, line)."""
    skips = {
        "malformed": arguments.boolean("skip_malformed", skip_malformed),
        "empty": arguments.boolean("skip_empty", skip_empty),
        "duplicate": arguments.boolean("skip_duplicates", skip_duplicates),
    }
    found, pairs, seen, number = {kind: [] for kind in skips}, [], set(), first - 1
    for number, line in enumerate(lines, start=first):
        try:
            pair = row(number, line)
        except ValueError:
            if not skip_malformed:
                raise
            found["malformed"].append(number)
            continue
        kinds = [] if all(side.strip() for side in pair) else ["empty"]
        kinds += ["duplicate"] if pair in seen else []
        seen.add(pair)
        # Counted under the kind that leaves it out, else under its first kind.
        reason = next((kind for kind in kinds if skips[kind]), None)
        if kinds:
            found[reason or kinds[0]].append(number)
        if reason is None:
            pairs.append(pair)
    skipped = tuple(kind for kind, skip in skips.items() if skip)
    sides = [list(side) for side in zip(*pairs, strict=True)] or [[], []]
    text = ParallelText(*sides, number, found, skipped)
    if not pairs:
        raise ValueError(f"A corpus must hold pairs. Received: {names}, {text.report}.")
    return text


def _places(numbers):
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    shown = ", ".join(str(number) for number in numbers[:3])
    return f"lines {shown}{', ...' if len(numbers) > 3 else ''}"


def _read_lines(path):
    """Reads a file's lines as bytes; raises an error if there are none."""
    lines = list(lines_of(pathlib.Path(path)))
    if not lines:
        raise ValueError(f"A corpus must hold lines. Received: empty {str(path)!r}.")
    return lines
