"""`Journal`: the file of a long task, which grows by blocks and can be continued."""

import json
import os
import pathlib
from typing import Any, Self

from keras_seqattn.annotations import Path
from keras_seqattn.files import mapping, reading, release_lock, replacing, take_lock


class Journal:
    """A file to which blocks are appended, and a second file that holds the progress.

    A block is on disk before the progress counts it. When the file is opened again, a
    block that an interruption cut short is removed.

    `lines` and `size` are the lines and the bytes that are done. A file that belongs to
    other work, is in use or was cut is refused.

    Args:
        path: Path of the file; its lock is `path` + ".lock".
        run: Dict that identifies the work, and that JSON can hold.
        progress: Path of the file that holds the progress; None: `path` + ".progress".
        argument: Name of the argument `path` in errors.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "upper.txt")
        ...     with Journal(path, {"beam": 4}) as journal:
        ...         journal.append(b"ONE", lines=1)
        ...     with Journal(path, {"beam": 4}) as journal:
        ...         print(journal.lines, path.read_bytes())
        1 b'ONE'
    """

    def __init__(
        self,
        path: Path,
        run: dict[str, Any],
        progress: Path | None = None,
        argument: str = "path",
    ) -> None:
        self.path, self.run = pathlib.Path(path), json.loads(json.dumps(run))
        self.progress = pathlib.Path(progress or self._beside(".progress"))
        self.lock, self.argument = self._beside(".lock"), argument
        self._remedy = f"delete it and {self.progress.name} to begin anew"
        self.lines = self.size = 0

    def __enter__(self) -> Self:
        """Locks the file for this process, and removes an unfinished block."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        holder = take_lock(self.lock)
        if holder:
            self._refuse("unused by other processes", f"in use by {holder}")
        try:
            self._open()
        except Exception:
            release_lock(self.lock)
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        """Releases the lock."""
        release_lock(self.lock)

    def _open(self):
        if not self.read_progress():
            if self.path.exists():
                self._refuse("new, or of the same work", "of other work")
            self._save()
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self.size:
            self._refuse(f"whole, of {self.size} bytes", f"of {size}; {self._remedy}")
        self.path.touch()
        os.truncate(self.path, self.size)

    def read_progress(self) -> bool:
        """Reads the progress; returns whether the work was begun."""
        if not self.progress.exists():
            return False
        remedy = "delete it and the journal"
        with reading(self.progress, "of a journal's progress", remedy):
            content = json.loads(self.progress.read_text("utf-8"))
            stored = mapping(content, ("run", "lines", "bytes"))
        others = [x for x in self.run if stored["run"].get(x) != self.run[x]]
        if others:
            found = f"with other {' and '.join(others)}; {self._remedy}"
            self._refuse("new, or of the same work", found)
        self.lines, self.size = stored["lines"], stored["bytes"]
        return True

    def append(self, block: bytes, lines: int) -> None:
        """Writes a block, which completes `lines` more lines of the work."""
        with open(self.path, "ab") as file:
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            self.size = file.tell()
        self.lines += lines
        self._save()

    def _save(self):
        progress = {"run": self.run, "lines": self.lines, "bytes": self.size}
        with replacing(self.progress) as unfinished:
            unfinished.write_text(json.dumps(progress), "utf-8")

    def _beside(self, ending):
        return self.path.with_name(self.path.name + ending)

    def _refuse(self, wanted, found):
        name, path = self.argument, str(self.path)
        raise ValueError(
            f"`{name}` must be {wanted}. Received: {name}={path!r}, {found}."
        )
