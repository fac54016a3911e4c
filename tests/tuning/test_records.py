"""A damaged file is one error, with its name and what to do; a trial keeps its lock."""

import json

import pytest

from keras_seqattn.files import LOCK
from keras_seqattn.plotting import study_figure
from keras_seqattn.tuning import records
from keras_seqattn.tuning.study import Study

pytestmark = pytest.mark.backends("torch")

FILES = {
    "study.json": {"objective": ["val_loss", "min"]},
    "clock.json": {"seconds": 2.0},
    "oracle.json": {"oracle": {}, "trials": [], "rejected": []},
    "trial_0/record.json": {"trial_id": "0"},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", ["", "half", "[1]", '{"x": 1}', b"\xff"])
def test_a_damaged_file_is_one_error(tmp_path, name, content):
    (tmp_path / "trial_0").mkdir()
    for other, whole in FILES.items():
        (tmp_path / other).write_text(json.dumps(whole))
    whole = json.dumps(FILES[name], indent=1)
    content = whole[: len(whole) // 2] if content == "half" else content
    data = content if isinstance(content, bytes) else content.encode()
    assert Study(tmp_path).seconds == 2.0
    assert len(records.load_records(tmp_path)) == 1
    (tmp_path / name).write_bytes(data)
    message = f"`path` must be a file that a study wrote.*{name}', which cannot be read"
    with pytest.raises(ValueError, match=message):
        _ = Study(tmp_path).seconds
        Study(tmp_path).table()


def test_every_status_that_counts_has_a_colour():
    assert set(study_figure.COLOURS) == set(records.COUNTED)


def test_a_trial_that_continues_another_keeps_its_own_lock(tmp_path):
    first, second = (
        records.TrialRecord(name, path=tmp_path / f"trial_{name}") for name in "01"
    )
    for record in (first, second):
        record.state.mkdir(parents=True)
        (record.state / LOCK).write_text(f"of trial {record.trial_id}")
    (first.state / "state.npz").write_text("state")
    first.best_weights.write_text("weights")
    second.inherit(first)
    assert second.best_weights.read_text() == "weights"
    assert (second.state / "state.npz").read_text() == "state"
    assert (second.state / LOCK).read_text() == "of trial 1"
