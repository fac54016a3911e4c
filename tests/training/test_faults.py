"""Whatever fails in a save of `Resume`, a whole save stays."""

import os
import shutil

import keras
import numpy as np
import pytest

from keras_seqattn.training import Resume
from keras_seqattn.training.snapshot import read_snapshot
from tests.faults import KILL, KINDS, Faults, survives

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="it forks"),
]

X = np.arange(12.0, dtype="float32").reshape(6, 2)
FILES = "state.npz", "before.npz"


def fit(directory, epochs):
    """Trains a small model; returns the callback and the model."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(40)])
    model.compile(keras.optimizers.Adam(), "mse")
    resume = Resume(directory)
    model.fit(X, X @ np.ones((2, 40)), epochs=epochs, callbacks=[resume], verbose=0)
    return resume, model


def epochs_of(directory):
    """Reads the epochs of the last save and of the one before."""
    return [read_snapshot(directory / name)["epoch"] for name in FILES]


def save(resume, faults):
    """Makes the save of a third epoch; says whether it came to its end."""
    try:
        with faults.happening():
            resume.on_epoch_end(2, {"loss": 1.0})
    except OSError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_any_operation_of_a_save_leaves_a_whole_one(kind, tmp_path):
    resume, _ = fit(tmp_path / "live", epochs=2)
    shutil.copytree(tmp_path / "live", tmp_path / "before")
    counted = Faults()
    assert save(resume, counted)
    assert {"open", "write", "fsync", "replace", "link"} <= set(counted.done)
    assert epochs_of(tmp_path / "live") == [3, 2]
    for place in range(len(counted.done)):
        shutil.rmtree(tmp_path / "live")
        shutil.copytree(tmp_path / "before", tmp_path / "live")
        faults = Faults(place, kind)
        if kind == KILL:
            came_to_its_end = survives(lambda: save(resume, faults))  # noqa: B023
        else:
            came_to_its_end = save(resume, faults)
        last, before = epochs_of(tmp_path / "live")
        assert last in (2, 3) and before in (1, 2), (place, counted.done[place])
        assert not came_to_its_end or last == 3
        # The next save finds nothing in its way, and leaves nothing lying about.
        assert save(resume, Faults())
        assert epochs_of(tmp_path / "live")[0] == 3
        left = {path.name for path in (tmp_path / "live").iterdir()}
        assert left == {path.name for path in (tmp_path / "before").iterdir()}


@pytest.mark.parametrize("operation", ["write", "fsync", "replace"])
def test_the_same_training_goes_on_after_a_fault(operation, tmp_path):
    _, whole = fit(tmp_path / "whole", epochs=3)
    resume, _ = fit(tmp_path / "cut", epochs=2)
    counted = Faults()
    shutil.copytree(tmp_path / "cut", tmp_path / "copy")
    save(resume, counted)
    shutil.rmtree(tmp_path / "cut")
    shutil.copytree(tmp_path / "copy", tmp_path / "cut")
    assert not save(resume, Faults(counted.done.index(operation), "short write"))
    _, model = fit(tmp_path / "cut", epochs=3)
    np.testing.assert_equal(whole.get_weights(), model.get_weights())
