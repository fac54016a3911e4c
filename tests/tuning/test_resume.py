"""Killed at any moment, the same call comes to the same study."""

import os
import threading

import pytest

from keras_seqattn.tuning import records
from tests.pairs import slow
from tests.tuning.conftest import Killed

pytestmark = pytest.mark.backends("jax")  # nothing is computed

STUDIES = {
    "random": {"algorithm": "random", "max_trials": 7, "epochs": 3},
    "hyperband": {"algorithm": "hyperband", "max_trials": 12, "epochs": 4},
    "bayesian": {"algorithm": "bayesian", "max_trials": 10, "epochs": 1},
    "halving": {"algorithm": "halving", "max_trials": 6, "epochs": 9},
}


def kill_at(monkeypatch, number, after):
    """Kills this process, as it were, at one of its writes: before it, or after."""
    replace, count = os.replace, 0

    def killing(source, target):
        nonlocal count
        if threading.current_thread() is not threading.main_thread():
            return replace(source, target)
        count += not str(target).endswith("clock.json")
        if count == number and after:
            replace(source, target)
        if count == number:
            count += 1
            raise Killed
        return replace(source, target)

    monkeypatch.setattr(os, "replace", killing)
    return lambda: count


def found(study):
    """What a study came to, without how long it took and how often it was resumed."""
    return [
        (record.trial_id, record.status, record.values, record.score, scores(record))
        for record in records.load_records(study.directory)
    ]


def scores(record):
    return [epoch["score"] for epoch in record.epochs]


@pytest.mark.parametrize("algorithm", ["random", "halving", *slow("hyperband")])
def test_a_kill_at_a_write_changes_nothing(algorithm, simulated, study, monkeypatch):
    interrupt_all(algorithm, study, monkeypatch, every=29)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", STUDIES)
def test_a_kill_at_any_write_changes_nothing(algorithm, simulated, study, monkeypatch):
    interrupt_all(algorithm, study, monkeypatch, every=1)


def interrupt_all(algorithm, study, monkeypatch, every):
    """Interrupts one study at one write, the next at another, and resumes each."""
    options = STUDIES[algorithm]
    with monkeypatch.context() as patch:
        writes = kill_at(patch, 0, after=False)
        expected = found(study("whole", **options))
    assert len(expected) >= options["max_trials"]
    assert writes() > every  # so that several are interrupted
    for number in range(1, writes() + 1, every):
        folder = f"killed_{number}"
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(patch, number, after=number % 2)
            study(folder, **options)
        assert found(study(folder, **options)) == expected, number
