"""A damaged file is one error, with its name and what to do; a trial keeps its lock.

And scores tell which hyperparameters mattered.
"""

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


def test_what_the_score_depends_on_is_what_mattered(tmp_path):
    records.write_json(tmp_path / "study.json", FILES["study.json"])
    for number in range(16):
        values = {"idle": number % 4, "rate": number // 4, "same": 1}
        folder = records.folder_of(tmp_path, number)
        record = records.TrialRecord(str(number), "completed", values=values)
        record.path = folder
        record.note_epoch(0, {}, (number // 4) ** 2, "min", 1.0)
        record.save()
        if number == 13:  # the fifteenth is not yet here
            assert Study(tmp_path).importance() == {}
    shares = Study(tmp_path).importance()
    assert [*shares] == ["rate", "idle"]
    assert shares["rate"] > 0.9 and sum(shares.values()) == pytest.approx(1)
