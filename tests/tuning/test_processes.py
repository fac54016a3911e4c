"""Workers without a heartbeat lose their trials; the others wait for them."""

import io
import threading
import types

import keras
import pytest

from keras_seqattn.tuning import (
    heartbeats,
    processes,
    settings,
    tasks,
    trials,
    tuner,
)
from tests.tuning import conftest

pytestmark = pytest.mark.backends("jax")  # nothing is computed


@pytest.fixture
def oracle(tmp_path):
    """The oracle of a study of two trials, as a chief has it."""
    task = tasks.TranslationTask(
        train=conftest.LINES,
        validation=conftest.LINES,
        space=conftest.SPACE,
        vocabulary_size=50,
        target_vocabulary_size=None,
        batch_tokens=64,
        bucket_lengths=(16,),
        seed=0,
    )
    study = settings.Settings(
        task=task,
        directory=tmp_path,
        objective=settings.keras_tuner.Objective("val_loss", "min"),
        algorithm="random",
        epochs=1,
        max_trials=2,
        **dict.fromkeys(("max_seconds", "max_parameters", "max_latency")),
        **dict.fromkeys(("prune", "warm_start", "verbose"), False),
        finish=0.0,
        seed=0,
    )
    oracle = study.make_oracle()
    oracle._set_project_dir(str(tmp_path), "study")
    hp = oracle.get_space()
    task.configuration(hp)  # declares them
    oracle.update_space(hp)
    return oracle


def end(oracle, trial):
    trial.status = "COMPLETED"
    oracle.update_trial(trial.trial_id, {"val_loss": 1.0})
    oracle.end_trial(trial)


def test_the_trial_of_a_dead_worker_goes_to_another(oracle, tmp_path):
    watch = heartbeats.Heartbeats(tmp_path, oracle)
    with heartbeats.heartbeat(tmp_path, "worker0"):
        lost = oracle.create_trial("worker0")
    with heartbeats.heartbeat(tmp_path, "worker1") as alive:
        watch.check()
        kept = oracle.create_trial("worker1")
        end(oracle, kept)
        assert oracle.create_trial("worker1").status == "IDLE"  # it may be needed
        for number in range(heartbeats.PATIENCE - 1):  # one was missed above
            assert oracle.workers == {"worker0", "worker1"}, number
            alive.write_text(str(number))
            watch.check()
        assert oracle.workers == {"worker1"}
        taken = oracle.create_trial("worker1")
        assert (taken.trial_id, taken.status) == (lost.trial_id, "RUNNING")
        end(oracle, taken)
        assert oracle.create_trial("worker1").status == "STOPPED"
    assert oracle.workers == set()


def test_one_that_said_goodbye_is_not_waited_for(oracle, tmp_path):
    watch = heartbeats.Heartbeats(tmp_path, oracle)
    with heartbeats.heartbeat(tmp_path, "worker0"):
        oracle.create_trial("worker0")
        watch.check()
    for _ in range(heartbeats.PATIENCE_GONE):
        assert oracle.workers == {"worker0"}
        watch.check()
    assert oracle.workers == set()


def test_a_worker_has_no_trial_once_the_time_is_over(oracle):
    oracle.create_trial("worker0")
    oracle._clock.limit = 0
    assert oracle.create_trial("worker0").status == "STOPPED"
    assert oracle.workers == set()
    oracle._clock.limit = None
    assert oracle.create_trial("worker1").trial_id == "0"


def test_a_worker_without_time_asks_until_it_is_told_to_stop(monkeypatch, tmp_path):
    """KerasTuner's chief ends only after it has told one."""
    answers = [types.SimpleNamespace(status=x) for x in ("RUNNING", "STOPPED")]

    class Worker(tuner.Tuner):
        tuner_id = "worker0"

        def __init__(self, *arguments):
            self.oracle = types.SimpleNamespace(create_trial=lambda _: answers.pop(0))

        def search(self):
            raise trials.OutOfTime

    monkeypatch.setattr(tuner, "Tuner", Worker)
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", processes.ADDRESS)
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "worker0")
    tuner.run(types.SimpleNamespace(directory=tmp_path))
    assert not answers


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_worker_that_worked_is_started_again_more_often(
    has_begun, monkeypatch, tmp_path
):
    """One that an error ends has taken its heartbeat's file with it."""
    monkeypatch.setattr(processes, "CHECK_SECONDS", 0.0)
    file = heartbeats.file_of(tmp_path, "worker0")
    file.parent.mkdir()

    class Group:
        starts, looks = 1, 0

        def status(self, name):
            if name == "chief":
                return None
            self.looks += 1
            if self.looks % 2:
                if has_begun:
                    file.touch()
                return None
            file.unlink(missing_ok=True)
            return 1

        def start(self, name):
            self.starts += 1

    group = Group()
    with pytest.raises(RuntimeError, match="All workers died"):
        processes._supervise(group, tmp_path, ["worker0"])
    most = processes.MOST_DEATHS if has_begun else processes.MOST_EARLY_DEATHS
    assert group.starts == most + 1


def test_workers_share_the_devices_and_the_chief_has_none(monkeypatch):
    started = {}

    def popen(command, env, **options):
        started[env["KERASTUNER_TUNER_ID"]] = env
        return types.SimpleNamespace(pid=0, stdin=io.BytesIO())

    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    set_affinity = "sched_setaffinity"
    monkeypatch.setattr(processes.os, set_affinity, lambda *_: None, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    group = processes.ProcessGroup(types.SimpleNamespace(workers=3))
    for name in ("chief", "worker0", "worker1", "worker2"):
        group.start(name)
    devices = {name: env["CUDA_VISIBLE_DEVICES"] for name, env in started.items()}
    assert devices == {"chief": "", "worker0": "3", "worker1": "5", "worker2": "3"}
    for env in started.values():  # None takes all of a device's memory.
        assert env["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        assert env["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"


def test_workers_have_the_settings_of_the_program(monkeypatch):
    """Else a trial that a worker began could not go on without workers."""

    def known():
        return keras.config.floatx(), keras.config.dtype_policy().name

    seen = []
    monkeypatch.setattr(processes.tuner, "run", lambda *_: seen.append(known()))
    monkeypatch.setattr(processes, "_die_with_parent", lambda: None)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("mixed_bfloat16")
    message = processes.ProcessGroup(types.SimpleNamespace(workers=1))._message
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    stdin = types.SimpleNamespace(buffer=io.BytesIO(message))
    monkeypatch.setattr(processes.sys, "stdin", stdin)
    processes.main()
    assert seen == [("float64", "mixed_bfloat16")]


@pytest.mark.parametrize(
    ("cores", "count", "shares"),
    [
        (4, 2, [{0, 1}, {2, 3}]),
        (5, 2, [{0, 1}, {2, 3}]),
        (2, 3, [{0}, {1}]),
    ],
)
def test_workers_share_the_processors(monkeypatch, cores, count, shares):
    system = types.SimpleNamespace(cpu_count=lambda: cores)
    monkeypatch.setattr(processes, "os", system)
    assert processes._shares(count) == shares


def test_a_full_disk_leaves_the_oracle_free(oracle, monkeypatch):
    """Its lock would otherwise stay with the thread in which an error was raised."""
    trial = oracle.create_trial("worker0")

    def full():
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(oracle, "save", full)
        oracle.release("worker0")
    assert oracle.workers == set()
    assert oracle.create_trial("worker1").trial_id == trial.trial_id
    with monkeypatch.context() as patch:
        patch.setattr(oracle, "_save_trial", lambda trial: full())
        with pytest.raises(OSError, match="No space left"):
            oracle.update_trial(trial.trial_id, {"val_loss": 1.0})
    found = []
    looking = threading.Thread(target=lambda: found.append(oracle.workers), daemon=True)
    looking.start()
    looking.join(10)
    assert found == [{"worker1"}]
