"""`Journal`: what is said to be done is on the disk, whatever fails."""

import concurrent.futures
import functools
import os

import pytest

from keras_seqattn.files import take_lock
from keras_seqattn.text.journal import Journal
from tests.faults import KILL, KINDS, Faults, survives

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks"),
]

BLOCKS = [bytes([65 + number]) * 5000 for number in range(4)]


def work(path, faults=None, blocks=4):
    """Appends the blocks that are not there yet; returns the journal."""
    with Journal(path, {"work": "letters"}) as journal:
        for block in BLOCKS[journal.lines : blocks]:
            if faults is None:
                journal.append(block, lines=1)
            else:
                with faults.happening():
                    journal.append(block, lines=1)
    return journal


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_operation_loses_no_block_that_was_done(kind, tmp_path):
    counted = Faults()
    work(tmp_path / "whole", counted)
    assert {"open", "write", "fsync", "replace"} <= set(counted.done)
    for place in range(len(counted.done)):
        path, faults = tmp_path / f"{place}", Faults(place, kind)
        run = functools.partial(work, path, faults)
        if kind == KILL:
            assert not survives(run)
        else:
            with pytest.raises(OSError, match="No space"):
                run()
        done = Journal(path, {"work": "letters"})
        done.read_progress()
        assert path.read_bytes()[: done.size] == b"".join(BLOCKS[: done.lines])
        assert work(path).lines == len(BLOCKS)
        assert path.read_bytes() == b"".join(BLOCKS)
        names = {other.name for other in tmp_path.glob(f"{place}*")}
        assert names == {f"{place}{end}" for end in ("", ".lock", ".progress")}


def test_it_goes_on_where_it_was(tmp_path):
    path = tmp_path / "letters"
    assert work(path, blocks=2).lines == 2
    with path.open("ab") as file:
        file.write(b"half a block")
    assert work(path).size == 4 * 5000
    assert path.read_bytes() == b"".join(BLOCKS)


def test_a_file_that_was_refused_is_free_for_others(tmp_path):
    path = tmp_path / "letters"
    work(path)
    with pytest.raises(ValueError, match="with other work"):
        with Journal(path, {"work": "numbers"}):
            pass
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(take_lock, tmp_path / "letters.lock").result() is None


def test_what_is_not_its_file_is_refused(tmp_path):
    path = tmp_path / "letters"
    work(path)
    with pytest.raises(ValueError, match="with other work; delete it"):
        Journal(path, {"work": "numbers"}).read_progress()
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="`path` must be whole, of 20000 bytes.*of 5;"):
        work(path)
    (tmp_path / "letters.progress").unlink()
    with pytest.raises(ValueError, match="`path` must be new.*of other work"):
        work(path)
