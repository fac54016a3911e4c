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


def write_trial(folder, number, scores, status="completed", **fields):
    """Writes the record of a trial, with an epoch of 2 seconds for each score."""
    path = records.folder_of(folder, number)
    record = records.TrialRecord(str(number), status, path=path, **fields)
    for epoch, score in enumerate(scores):
        record.note_epoch(epoch, {}, score, "min", 2.0)
    record.save()
    return record


@pytest.fixture
def folder(tmp_path):
    """The folder of a study without trials."""
    for name in ("study.json", "clock.json"):
        records.write_json(tmp_path / name, FILES[name])
    return tmp_path


def test_an_epoch_that_ended_forgives_the_starts_before_it(tmp_path):
    record = write_trial(tmp_path, 0, [], starts=12, fruitless_starts=9)
    record.note_epoch(0, {}, 1.0, "min", 2.0)
    assert (record.starts, record.fruitless_starts) == (12, 0)


def test_a_trial_that_failed_has_no_score_in_the_table(folder):
    write_trial(folder, 0, [3.0])
    write_trial(folder, 1, [1.0], status="nan")
    write_trial(folder, 2, [2.0], status="stopped")
    table = Study(folder).table()
    assert table["score"].isna().tolist() == [False, True, False]
    assert table["epochs"].tolist() == [1, 1, 1]
    assert Study(folder).best_trial.trial_id == "2"


def test_time_without_a_training_is_idle(folder):
    records.write_json(folder / "clock.json", {"seconds": 11.0})
    write_trial(folder, 0, [3.0, 2.0])
    write_trial(folder, 1, [3.0], status="failed")
    study = Study(folder)
    assert (study.seconds, study.idle_seconds) == (11.0, 5.0)


def test_a_study_doubts_few_epochs_and_few_trials(folder):
    write_trial(folder, 0, [3.0, 2.0])
    short, few = Study(folder).doubts()
    assert short.startswith("No trial got 3 epochs, the longest had 2")
    assert few.startswith("Fewer than 15 trials were trained for equally many epochs")
    write_trial(folder, 0, [3.0, 2.0, 1.0])
    assert Study(folder).doubts() == [few]
    # Together with the trial that it continues it is one training.
    write_trial(folder, 1, [3.0, 2.0, 1.0, 1.0], inherited_epochs=3)
    for number in range(2, 15):
        write_trial(folder, number, [3.0, 2.0, 1.0])
    assert Study(folder).doubts() == [few]
    write_trial(folder, 15, [3.0, 2.0, 1.0])
    assert Study(folder).doubts() == []


@pytest.mark.parametrize(
    "values",
    [
        lambda number: {"kind": "abcd"[number % 4]},
        lambda number: {"kind": 0.0} if number % 4 < 2 else {},
    ],
    ids=["a name", "active or not"],
)
def test_what_is_no_number_may_matter_too(folder, values):
    for number in range(16):
        own = {"idle": number // 4, **values(number)}
        write_trial(folder, number, [float(number % 4)], values=own)
    shares = Study(folder).importance()
    assert [*shares] == ["kind", "idle"] and shares["kind"] > 0.8


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
