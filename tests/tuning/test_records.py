"""A study's damaged file is one error, with its name and what to do."""

import json

import pytest

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
