"""Faults of a file system: an error, a short write or a kill at any operation."""

import builtins
import contextlib
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator

ERROR, SHORT_WRITE, KILL = KINDS = "error", "short write", "kill"
# What changes files, beside writing to them.
NAMES = "fsync", "replace", "rename", "link", "unlink", "truncate", "chmod"


class Faults:
    """Counts the operations that change files, and lets one of them fail.

    Args:
        place: Number from 0 of the operation that fails; None: none does.
        kind: "error": nothing is done, and an `OSError` raised; "short write": half is
            written before; "kill": this process dies, after half of a write.

    Attributes:
        done: Names of the operations so far.
    """

    def __init__(self, place: int | None = None, kind: str = ERROR) -> None:
        self.place, self.kind, self.done = place, kind, []

    def step(self, name: str) -> bool:
        """Counts an operation; returns whether it is the one that fails."""
        self.done.append(name)
        return len(self.done) - 1 == self.place

    def fail(self) -> None:
        """Fails as the kind says."""
        if self.kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, "No space left on device")

    @contextlib.contextmanager
    def happening(self) -> Iterator[None]:
        """Has the operations inside pass through here."""
        originals = {name: getattr(os, name) for name in NAMES}
        opens = builtins.open, io.open
        try:
            for name, function in originals.items():
                setattr(os, name, self._counted(name, function))
            builtins.open = io.open = self._opening(opens[0])
            yield
        finally:
            for name, function in originals.items():
                setattr(os, name, function)
            builtins.open, io.open = opens

    def _counted(self, name, function):
        def counted(*arguments, **options):
            if self.step(name):
                self.fail()
            return function(*arguments, **options)

        return counted

    def _opening(self, original):
        def opening(file, mode="r", *arguments, **options):
            writes = "b" in mode and any(letter in mode for letter in "wax+")
            if not writes or isinstance(file, int):
                return original(file, mode, *arguments, **options)
            if self.step("open"):
                self.fail()
            raw = _Raw(file, mode.replace("b", ""))
            raw.faults = self
            kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
            return kind(raw)

        return opening


def survives(function: Callable[[], object]) -> bool:
    """Calls a function in a fork of this process; returns whether no kill ended it."""
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError):
            function()
        os._exit(0)
    return os.waitpid(child, 0)[1] != signal.SIGKILL


class _Raw(io.FileIO):
    """A file whose writes may fail."""

    faults: Faults

    def write(self, data, /):
        """Writes, if this write is not the one that fails."""
        if not self.faults.step("write"):
            return super().write(data)
        if self.faults.kind != ERROR:
            super().write(bytes(data)[: len(data) // 2])
        return self.faults.fail()
