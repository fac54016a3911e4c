"""A file is there whole or not at all."""

import os

import pytest

from keras_seqattn.files import replacing

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_replaced_once_it_is_whole(tmp_path, shared):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with replacing(path, shared) as unfinished:
        assert unfinished.suffix == ".keras"
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("old")
    with pytest.raises(OSError, match="no space"), replacing(path) as unfinished:
        unfinished.write_text("half")
        raise OSError("no space left")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_what_a_kill_left_is_overwritten(tmp_path):
    path = tmp_path / "model.keras"
    (tmp_path / "unfinished-model.keras").write_text("half, and longer")
    with replacing(path) as unfinished:
        unfinished.write_text("new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["model.keras"]


def test_processes_write_files_of_their_own(tmp_path):
    with replacing(tmp_path / "a.json", shared=True) as unfinished:
        assert str(os.getpid()) in unfinished.name
        unfinished.write_text("{}")
