"""Whether the workers of a study live, also on other machines that share its folder.

Each worker writes a file in the study's folder again and again. If the file stays the
same, the chief gives the worker's trial to the next worker that asks.
"""

import collections
import contextlib
import pathlib
import time
from collections.abc import Iterator
from typing import Any

from keras_seqattn.annotations import Path
from keras_seqattn.tuning.clock import repeating

BEAT_SECONDS = 2.0  # between two heartbeats
CHECK_SECONDS = 1.0  # between two checks of the heartbeats
# A worker counts as dead after PATIENCE checks without a new heartbeat, or after
# PATIENCE_GONE if its file was removed. Checks are counted, not timed, so that a
# machine that sleeps with all its processes declares none dead.
PATIENCE, PATIENCE_GONE = 60, 3


@contextlib.contextmanager
def heartbeat(directory: Path, tuner_id: str) -> Iterator[pathlib.Path]:
    """Writes a worker's file for as long as the block lasts, and yields its path."""
    path = file_of(directory, tuner_id)
    path.parent.mkdir(exist_ok=True)

    def beat():
        path.write_text(repr(time.time()))

    beat()
    try:
        with repeating(BEAT_SECONDS, beat):
            yield path
    finally:
        path.unlink(missing_ok=True)


class Heartbeats:
    """Lets an oracle release the workers that have no heartbeat any more."""

    def __init__(self, directory: pathlib.Path, oracle: Any) -> None:
        self._directory, self._oracle = directory, oracle
        self._seen, self._missed = {}, collections.Counter()

    def check(self) -> None:
        """Checks the file of each worker once."""
        for name in sorted(self._oracle.workers):
            beat = None
            with contextlib.suppress(OSError):
                beat = file_of(self._directory, name).read_text()
            if beat is not None and beat != self._seen.get(name):
                self._seen[name], self._missed[name] = beat, 0
                continue
            self._missed[name] += 1
            # It may take time until another machine sees a new file.
            gone = beat is None and name in self._seen
            if self._missed[name] >= (PATIENCE_GONE if gone else PATIENCE):
                self._oracle.release(name)
                self._seen.pop(name, None)
                del self._missed[name]


def file_of(directory: Path, tuner_id: str) -> pathlib.Path:
    """Returns the path of a worker's file."""
    return pathlib.Path(directory) / "workers" / tuner_id
