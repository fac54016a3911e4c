"""Files that are there whole or not at all, whenever a kill or a power cut comes."""

import contextlib
import os
import pathlib


@contextlib.contextmanager
def replacing(path, shared=False):
    """Gives a path to write to, and puts the file in place once it is on the disk.

    Args:
        path: Path of the file that is to be replaced.
        shared: Whether several processes may replace it at once.

    Yields:
        A path beside it with the same ending. What stands there after an error is
        removed; what a kill leaves is overwritten the next time, unless `shared`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "state.txt")
        ...     with replacing(path) as unfinished:
        ...         _ = unfinished.write_text("whole")
        ...     print(path.read_text(), os.listdir(folder))
        whole ['state.txt']
    """
    path = pathlib.Path(path)
    mark = f"unfinished-{os.getpid()}-" if shared else "unfinished-"
    unfinished = path.with_name(mark + path.name)
    try:
        yield unfinished
        with open(unfinished, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    if os.name == "posix":  # Elsewhere a folder cannot be opened.
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


@contextlib.contextmanager
def reading(path, written, remedy):
    """Makes one error of all that can go wrong while a file is read.

    Args:
        path: Path of the file.
        written: Who wrote it, in words that follow "a file".
        remedy: What to do, in words.

    Raises:
        ValueError: Whatever was raised inside: with the file, what is wrong with it,
            and what to do.

    Example:
        >>> with reading("no.json", "of numbers", "write it again"):
        ...     open("no.json")
        Traceback (most recent call last):
        ValueError: `path` must be a file of numbers, whole and unchanged; write it
        again. Received: path='no.json', which does not exist.
    """
    try:
        yield
    # Readers of archives, JSON and weights raise whatever a damaged byte leads to.
    except Exception as error:
        found = f"which cannot be read: {type(error).__name__}: {error}"
        if not pathlib.Path(path).exists():
            found = "which does not exist."
        raise ValueError(
            f"`path` must be a file {written}, whole and unchanged; {remedy}. "
            f"Received: path={str(path)!r}, {found}"
        ) from error
