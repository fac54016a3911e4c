"""The seconds that a study has spent, over all its resumptions."""

import contextlib
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Self

from keras_seqattn.annotations import Path
from keras_seqattn.tuning.records import read_json, write_json

TICK = 1.0  # seconds between two writes, the most that a kill may lose


@contextlib.contextmanager
def repeating(seconds, action):
    """Calls a function in a thread, every so many seconds, until the block ends.

    Example:
        >>> times = []
        >>> with repeating(0.001, lambda: times.append(time.monotonic())):
        ...     time.sleep(0.1)
        >>> len(times) > 1
        True
    """
    stopped = threading.Event()

    def repeat():
        while not stopped.wait(seconds):
            with contextlib.suppress(OSError):  # the disk may be full for a moment
                action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


class Clock:
    """Counts, in a file, the wall-clock seconds in which a study ran.

    The oracle's process keeps the clock; all others read it.
    """

    def __init__(self, folder: Path, limit: float | None = None) -> None:
        self._path = pathlib.Path(folder) / "clock.json"
        self.limit = limit
        self._origin = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Self]:
        """Counts for as long as the block lasts, from the seconds spent before."""
        self._origin = time.monotonic() - self.elapsed()
        try:
            with repeating(TICK, self._write):
                yield self
        finally:
            self._write()
            self._origin = None

    def _write(self):
        write_json(self._path, {"seconds": self.elapsed()})

    def elapsed(self) -> float:
        """Returns the seconds spent so far."""
        if self._origin is not None:
            return time.monotonic() - self._origin
        return read_json(self._path, {"seconds": 0.0}, ("seconds",))["seconds"]

    def left(self) -> float:
        """Returns the seconds left, infinity without a limit."""
        return float("inf") if self.limit is None else self.limit - self.elapsed()

    def is_over(self) -> bool:
        """Returns whether no time is left."""
        return self.left() <= 0
