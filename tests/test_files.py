"""A file is there whole or not at all."""

import concurrent.futures
import errno
import os
import platform
import signal
import stat
import subprocess
import sys

import pytest

from keras_seqattn import files
from keras_seqattn.files import (
    keep_copy,
    reading,
    release_lock,
    replacing,
    take_lock,
)

pytestmark = pytest.mark.backends("torch")


def test_a_file_is_replaced_once_it_is_whole(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with replacing(path) as unfinished:
        assert unfinished.suffix == ".keras"
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_the_folder_of_a_new_file_is_made(tmp_path):
    path = tmp_path / "runs" / "best" / "model.keras"
    with replacing(path) as unfinished:
        unfinished.write_text("new")
    assert path.read_text() == "new"


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(OSError, match="no space"), replacing(path) as unfinished:
        unfinished.write_text("half")
        raise OSError("no space left")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model.keras"]


KILLED = """
import os, signal, sys
from keras_seqattn.files import replacing
with replacing(sys.argv[1]) as unfinished:
    unfinished.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_what_a_kill_left_is_removed(tmp_path):
    path, other = tmp_path / "model.keras", tmp_path / ".unfinished-model.keras"
    other.write_text("a user's own")
    killed = subprocess.run([sys.executable, "-c", KILLED, path])
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    with replacing(tmp_path / "another-model.keras") as unfinished:
        unfinished.write_text("new")
    assert len(os.listdir(tmp_path)) == 3
    with replacing(path) as unfinished:
        unfinished.write_text("new")
    assert {x.name for x in tmp_path.iterdir()} == {
        "model.keras",
        "another-model.keras",
        ".unfinished-model.keras",
    }


@pytest.mark.skipif(files.fcntl is None, reason="nothing tells who is alive")
@pytest.mark.parametrize(
    ("machine", "error", "is_left"),
    [
        ("here", ProcessLookupError, False),
        ("here", PermissionError, True),  # It is alive, and another user's.
        ("there", ProcessLookupError, True),
    ],
)
def test_what_others_are_writing_is_left(
    machine, error, is_left, tmp_path, monkeypatch
):
    def kill(process, number):
        raise error

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(platform, "node", lambda: machine)
    path = tmp_path / "model.keras"
    with replacing(path) as unfinished:
        unfinished.write_text("of another process")
    unfinished.write_text("half")
    monkeypatch.setattr(platform, "node", lambda: "here")
    with replacing(path) as another:
        another.write_text("new")
    assert unfinished.exists() == is_left


def test_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.json"
    with replacing(path) as first, replacing(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"

    def write(text):
        for _ in range(20):
            with replacing(path) as unfinished:
                unfinished.write_text(text)

    texts = [letter * 1000 for letter in "abcd"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(write, texts))
    assert path.read_text() in texts
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_lock_is_taken_anew_by_its_thread_alone(tmp_path):
    path = tmp_path / "lock"
    assert take_lock(path) is take_lock(path) is None
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        holder = pool.submit(take_lock, path).result()
        assert f"process {os.getpid()} on " in holder
        assert "thread MainThread, since 2" in holder
        release_lock(path)
        assert pool.submit(take_lock, path).result() is None
        assert "thread ThreadPool" in take_lock(path)
    assert take_lock(path) is None  # Its thread has ended.
    release_lock(path)
    release_lock(path)


def test_an_error_of_the_file_system_lets_everyone_go_on(tmp_path, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(files.fcntl, "lockf", refuse)
    assert take_lock(tmp_path / "lock") is None
    release_lock(tmp_path / "lock")


def test_a_folder_need_not_be_written_through(tmp_path, monkeypatch):
    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not with a folder")

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "file") as unfinished:
        unfinished.write_text("whole")
    assert (tmp_path / "file").read_text() == "whole"


def test_a_file_keeps_its_mode_and_a_link_its_file(tmp_path):
    path, link = tmp_path / "kept" / "a.json", tmp_path / "a.json"
    path.parent.mkdir()
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as unfinished:
        unfinished.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == ["a.json"]


def test_a_file_has_the_ending_of_its_link(tmp_path):
    path, link = tmp_path / "blob", tmp_path / "a.keras"
    link.symlink_to(path)
    with replacing(link) as unfinished:
        assert unfinished.suffix == ".keras"
        unfinished.write_text("new")
    assert path.read_text() == "new"


def test_the_copy_of_a_link_is_of_its_file(tmp_path):
    path, link, copy = (tmp_path / name for name in ("a.json", "link", "b.json"))
    path.write_text("old")
    link.symlink_to(path)
    keep_copy(link, copy)
    with replacing(link) as unfinished:
        unfinished.write_text("new")
    assert copy.read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_copy_leaves_the_mode_of_what_it_copies(tmp_path):
    path, copy = tmp_path / "a.json", tmp_path / "b.json"
    for other in (path, copy):
        other.write_text("old")
        other.chmod(0o644)
    path.chmod(0o600)
    keep_copy(path, copy)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [KeyError("x"), OSError("disk"), RecursionError("x")])
def test_whatever_goes_wrong_in_reading_is_one_error(tmp_path, error):
    path = tmp_path / "a.json"
    path.write_text("{}")
    name = type(error).__name__
    message = rf"^`path` must be a file of x, whole.*; redo\. Received.*a.json.*{name}"
    with pytest.raises(ValueError, match=message), reading(path, "of x", "redo"):
        raise error


@pytest.mark.parametrize("error", [MemoryError("1 GB"), ModuleNotFoundError("x")])
def test_what_is_no_fault_of_a_file_is_raised_as_it_is(tmp_path, error):
    with pytest.raises(type(error), match=str(error)):
        with reading(tmp_path, "of x", "redo"):
            raise error
