"""Studies of a second: real KerasTuner over training that is a formula.

What is simulated is `trials.fit` alone, and it keeps to its contract: an epoch is
written down, then the state that the next one continues from.
"""

import json
import zlib

import keras
import pytest

from keras_seqattn import tuning
from keras_seqattn.tuning import records, tasks, trials

LINES = (["one red dog", "two red dogs"], ["ein roter Hund", "zwei rote Hunde"])
SPACE = tuning.TranslationSpace(model_dim=8, key_dim=(2, 4), num_heads=(1, 2, 4))


class Killed(BaseException):
    """Stands for a SIGKILL: nothing catches it."""


def step(value, values):
    """One epoch: where it leads depends on where it stood."""
    own = {name: x for name, x in values.items() if not name.startswith("tuner/")}
    target = zlib.crc32(json.dumps(own, sort_keys=True).encode()) / 2**32
    return value + 0.3 * (target - value)


def simulated_fit(model, hp, study, record, epochs, is_done, *more):
    path = record.state / "state.json"
    state = records.read_json(path, {"epoch": 0, "value": 1.0})
    record.state.mkdir(exist_ok=True)
    if len(record.epochs) < epochs and is_done(record):
        return True
    for epoch in range(state["epoch"], epochs):
        value = step(state["value"], hp.values)
        if record.note_epoch(epoch, {}, value, study.objective.direction, 1.0):
            record.best_weights.write_text(repr(value))
        record.save()
        state = {"epoch": epoch + 1, "value": value}
        records.write_json(path, state)
        if is_done(record):
            return len(record.epochs) < epochs
    return False


@pytest.fixture
def simulated(monkeypatch):
    """Makes a study take milliseconds: no batches, no models, no training."""
    monkeypatch.setattr(tasks.TranslationTask, "prepare", lambda self: None)
    monkeypatch.setattr(trials, "fit", simulated_fit)
    monkeypatch.setattr(tuning.TranslationHyperModel, "build", lambda self, hp: None)
    monkeypatch.setattr(keras.utils, "clear_session", lambda: None)


@pytest.fixture
def study(tmp_path):
    """Runs a study in a folder of its own, with a tiny space."""

    def run(folder="study", **options):
        options = {"space": SPACE, "vocabulary_size": 50, "verbose": False} | options
        return tuning.tune_translation(
            LINES, LINES, directory=tmp_path / folder, **options
        )

    run.folder = tmp_path / "study"
    return run
