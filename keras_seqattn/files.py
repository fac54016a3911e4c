"""Files that are written whole or not at all, and locks that end with a process."""

import contextlib
import datetime
import errno
import os
import pathlib
import platform
import re
import secrets
import shutil
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from keras_seqattn.annotations import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
    import msvcrt

LOCK = "lock"  # name of the lock file in a folder that one run at a time may use
# The locks that this process holds: by path, the open file and the thread that took it.
# The system's locks belong to processes: it would grant one again to another thread,
# and closing that second file would release the first one's lock.
_HELD = {}
_TAKING = threading.Lock()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[pathlib.Path]:
    """Yields a path to write to, and moves the file into place once it is on the disk.

    Several threads and processes may replace one file at once: each writes its own
    unfinished file, in the same folder and with the same ending, and the last to finish
    wins. A folder that does not exist is made. A link is followed, and the file keeps
    its mode. After an error the unfinished file is removed; after a kill it is removed
    by the next process on this machine that replaces the same file by the same name.
    """
    name, path = pathlib.Path(path).name, pathlib.Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = f".unfinished-{platform.node()}-"
    _remove_leftovers(path.parent, mark, name)
    token = f"{os.getpid()}-{secrets.token_hex(4)}"
    # The name of the link, since a writer such as `np.savez` looks at its ending, which
    # the file behind the link may lack.
    unfinished = path.with_name(f"{mark}{token}-{name}")
    try:
        yield unfinished
        with open(unfinished, "r+b") as file:
            os.fsync(file.fileno())
        # If this is a second link to an existing file, it already has that file's mode.
        if path.exists() and unfinished.stat().st_nlink == 1:
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    if os.name == "posix":  # Elsewhere a folder cannot be opened.
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        except OSError as error:
            # Some file systems cannot do that with a folder.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(folder)


def keep_copy(path: Path, copy: Path) -> None:
    """Copies a file that is about to be replaced to `copy`, in the same folder."""
    with replacing(copy) as unfinished:
        try:
            # A hard link costs nothing, and keeps the old content when `path` is
            # replaced. It is made of the file: a hard link to a symbolic link would
            # lead to the new content.
            os.link(os.path.realpath(path), unfinished)
        except OSError:  # a file system without links
            shutil.copyfile(path, unfinished)


def _remove_leftovers(folder, mark, name):
    """Removes the unfinished files of this machine's processes that have ended."""
    if fcntl is None:  # On Windows nothing tells whether a process is alive.
        return
    pattern = re.compile(rf"{re.escape(mark)}(\d+)-[0-9a-f]{{8}}-{re.escape(name)}")
    for other in folder.glob(".unfinished-*"):
        match = pattern.fullmatch(other.name)
        if match and not _is_alive(int(match[1])):
            other.unlink(missing_ok=True)


def _is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # The process belongs to another user.
        pass
    return True


@contextlib.contextmanager
def reading(path: Path, written: str, remedy: str) -> Iterator[None]:
    """Turns any error that a damaged file raises while it is read into a `ValueError`.

    `written` describes the file, in words that follow "a file"; `remedy` says what to
    do. A `MemoryError` or an `ImportError` is raised unchanged.

    Example:
        >>> with reading("no.json", "of numbers", "write it again"):
        ...     open("no.json")
        Traceback (most recent call last):
        ValueError: `path` must be a file of numbers, whole and unchanged; write it
        again. Received: path='no.json', which does not exist.
    """
    try:
        yield
    except (MemoryError, ImportError):  # The file may be whole.
        raise
    # On damaged data readers of archives, JSON and weights raise errors of many kinds.
    except Exception as error:
        found = f"which cannot be read: {type(error).__name__}: {error}"
        if not pathlib.Path(path).exists():
            found = "which does not exist."
        raise ValueError(
            f"`path` must be a file {written}, whole and unchanged; {remedy}. "
            f"Received: path={str(path)!r}, {found}"
        ) from error


def mapping(content: Any, keys: Iterable[str]) -> Any:
    """Returns a file's content if it is a dict with `keys`; else raises an error."""
    if not isinstance(content, dict):
        raise TypeError(f"it holds a {type(content).__name__}, not a dict")
    missing = [key for key in keys if key not in content]
    if missing:
        raise KeyError(f"it lacks {', '.join(missing)}")
    return content


def lock_directory(directory: Path, user: str) -> None:
    """Makes a folder and locks it; raises an error if another `user` holds the lock."""
    try:
        pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ValueError(
            "`directory` must be a folder, or new. "
            f"Received: directory={str(directory)!r}, where a file is."
        ) from error
    holder = take_lock(pathlib.Path(directory) / LOCK)
    if holder is not None:
        raise ValueError(
            f"`directory` must not be in use by another {user}. Received: "
            f"directory={str(directory)!r}, in use by {holder}."
        )


def take_lock(path: Path) -> str | None:
    """Takes a lock and returns None, or returns who holds it.

    The holder is described by its process, host, thread and start time. The operating
    system keeps the lock, so a process that has ended, however it ended, blocks nobody.
    A thread may take a lock again that it already holds. The lock file itself is never
    deleted. On a file system without locks everyone gets the lock.
    """
    path, thread = pathlib.Path(path).resolve(), threading.current_thread()
    with _TAKING:
        if path in _HELD:
            file, holder = _HELD[path]
            if holder is not thread and holder.is_alive():
                return _text(file)
            _HELD.pop(path)[0].close()
        file = open(path, "a+", encoding="utf-8")
        if not _lock(file):
            with file:
                return _text(file) or "another process"
        file.truncate(0)
        now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        file.write(
            f"process {os.getpid()} on {platform.node()}, thread {thread.name}, "
            f"since {now}"
        )
        file.flush()
        _HELD[path] = file, thread
    return None


def release_lock(path: Path) -> None:
    """Releases a lock if this process holds it."""
    with _TAKING:
        file, _ = _HELD.pop(pathlib.Path(path).resolve(), (None, None))
        if file is not None:
            file.close()


def _text(file):
    file.seek(0)
    return file.read()


def _lock(file):
    """Locks a file for this process, not its forks; returns whether it succeeded."""
    try:
        if fcntl:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            file.seek(2**30)  # Past the text: locked bytes cannot be read by others.
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # The file system has no locks.
        pass
    return True
