"""An export stands at its path whole, or nothing does."""

import pathlib
import sys
import types

import pytest

from keras_seqattn.export import ctranslate2, export_translator
from tests.export.translators import make_translator

# The format that stands in for CTranslate2's below looks at nothing of it.
TRANSLATOR = types.SimpleNamespace(translate=None, model=None)


@pytest.fixture
def writes(monkeypatch):
    """Makes the format "ctranslate2" write one file, or what a test sets."""

    class Written:
        text = "new"
        error = None

        def write(self, folder):
            folder.mkdir()
            pathlib.Path(folder, "file").write_text(self.text)
            if self.error:
                raise self.error

    written = Written()
    monkeypatch.setattr(
        ctranslate2, "prepare", lambda translator, path, **options: written.write
    )
    return written


def export(path, **options):
    return export_translator(TRANSLATOR, path, "ctranslate2", **options)


def tree(path):
    return sorted(str(file.relative_to(path)) for file in path.rglob("*"))


def test_writes_into_folders_that_are_not_there_yet(tmp_path, writes):
    path = export(str(tmp_path / "a" / "b"))
    assert path == tmp_path / "a" / "b"
    assert tree(tmp_path) == ["a", "a/b", "a/b/file"]


def test_what_stands_there_stays_unless_told(tmp_path, writes):
    path = export(tmp_path / "model")
    writes.text = "newer"
    with pytest.raises(ValueError, match="unless `overwrite=True`. Received: .*model'"):
        export(path)
    assert (path / "file").read_text() == "new"
    export(path, overwrite=True)
    assert (path / "file").read_text() == "newer"
    assert tree(tmp_path) == ["model", "model/file"]


def test_a_link_to_nothing_stays_unless_told(tmp_path, writes):
    (tmp_path / "model").symlink_to(tmp_path / "nothing")
    with pytest.raises(ValueError, match="unless `overwrite=True`. Received: .*model'"):
        export(tmp_path / "model")
    export(tmp_path / "model", overwrite=True)
    assert tree(tmp_path) == ["model", "model/file"]


def test_an_error_leaves_everything_as_it_was(tmp_path, writes):
    path = export(tmp_path / "model")
    writes.text, writes.error = "half", OSError("disk full")
    with pytest.raises(OSError, match="disk full"):
        export(path, overwrite=True)
    assert (path / "file").read_text() == "new"
    with pytest.raises(OSError, match="disk full"):
        export(tmp_path / "other")
    assert tree(tmp_path) == ["model", "model/file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_cannot_be_renamed_leaves_the_old_one(
    tmp_path, writes, monkeypatch, error
):
    path = export(tmp_path / "model")
    rename = pathlib.Path.rename

    def broken(self, target):
        if self.parent.name == "new":
            raise error("another device")
        return rename(self, target)

    monkeypatch.setattr(pathlib.Path, "rename", broken)
    with pytest.raises(error, match="another device"):
        export(path, overwrite=True)
    assert (path / "file").read_text() == "new"
    assert tree(tmp_path) == ["model", "model/file"]


def test_says_what_it_does_when_told(tmp_path, writes, capsys):
    export(tmp_path / "quiet")
    assert not capsys.readouterr().out
    path = export(tmp_path / "model", verbose=True)
    out = capsys.readouterr().out
    assert "for ctranslate2" in out
    assert f"Wrote {path}: 0.0 MB" in out


def test_an_unknown_format_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="one of .*onnx.*Received: format='pickle'"):
        export_translator(TRANSLATOR, tmp_path / "model", "pickle")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ImportError, match=r"needs the package ctranslate2: pip .*expo"):
        export_translator(make_translator(), tmp_path / "model", "ctranslate2")
    assert not list(tmp_path.iterdir())
