"""`examples/distributed.py`: processes and devices train as one process does."""

import csv
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_seqattn.training.snapshot import read_snapshot
from tests.documents import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.backends("jax")]

# 19 batches of 32 rows, of which the last is not full.
OPTIONS = ("--pairs", "600", "--every", "3")
DEVICES = "--xla_force_host_platform_device_count="
# Seconds: for a start beside other work, and in which a job ends by itself.
START, ENDS_AFTER = 300, {signal.SIGKILL: 30, signal.SIGSTOP: 60}


def command(folder, *options):
    script = str(ROOT / "examples" / "distributed.py")
    return [sys.executable, script, *OPTIONS, "--output", str(folder), *options]


def environment(devices=1):
    variables = {"PYTHONPATH": str(ROOT), "XLA_FLAGS": f"{DEVICES}{devices}"}
    return os.environ | variables


def train(folder, *options, devices=1):
    """Runs the example to its end."""
    done = subprocess.run(
        command(folder, *options),
        env=environment(devices),
        capture_output=True,
        text=True,
        timeout=2 * START,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def curve(folder):
    """Maps each batch, by its epoch and number, to its crossentropy."""
    path = folder / "curve.csv"
    rows = list(csv.reader(path.open())) if path.exists() else []
    found = {(int(epoch), int(batch)): float(x) for epoch, batch, x in rows}
    assert len(found) == len(rows)  # none is written twice
    return found


def assert_same_training(folder, expected, averaged=True):
    """Compares each step's loss, all weights at the end, and what was logged.

    Where each process holds a part of the weights, no averages were validated.
    """
    losses, expected_losses = curve(folder), curve(expected)
    assert list(losses) == list(expected_losses)
    np.testing.assert_allclose(
        list(losses.values()), list(expected_losses.values()), rtol=0, atol=1e-5
    )
    files = [read_snapshot(x / "backup" / "state.npz") for x in (folder, expected)]
    for value, other in zip(*(file["values"][0] for file in files), strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=1e-4)
    assert (folder / "translator.keras").exists()
    if not averaged:
        return
    (row,), (other,) = (
        list(csv.DictReader((x / "history.csv").open())) for x in (folder, expected)
    )
    for name in ("val_loss", "val_crossentropy"):
        assert float(row[name]) == pytest.approx(float(other[name]), abs=1e-5)
    for name in ("val_bleu", "val_chrf"):
        assert float(row[name]) == pytest.approx(float(other[name]), abs=0.5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process with one device gives."""
    folder = tmp_path_factory.mktemp("alone")
    train(folder)
    return folder


@pytest.mark.parametrize(
    "processes, devices, model_devices",
    [(2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 4, 1), (1, 4, 2), (2, 1, 2), (2, 2, 2)],
)
def test_it_trains_as_one_device(processes, devices, model_devices, alone, tmp_path):
    """Losses, metrics, scores, the moving average of the weights, and the weights."""
    options = ("--processes", processes, "--model-devices", model_devices)
    train(tmp_path, *map(str, options), devices=devices)
    assert_same_training(tmp_path, alone, averaged=devices >= model_devices)


class Job:
    """The processes of one training, started as on several machines."""

    def __init__(self, folder, count):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        options = ("--processes", str(count)) if count > 1 else ()
        own = [("--coordinator", address, "--process", str(i)) for i in range(count)]
        self.folder = folder
        self.logs = [folder / f"process_{i}.log" for i in range(count)]
        self.processes = []
        for log, more in zip(self.logs, own if count > 1 else [()], strict=True):
            with open(log, "w") as file:
                self.processes.append(
                    subprocess.Popen(
                        command(folder, *options, *more),
                        env=environment(),
                        stdout=file,
                        stderr=file,
                    )
                )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.wait()

    def wait_for_batches(self, count):
        """Waits until so many batches are behind."""
        end = time.monotonic() + START
        while len(curve(self.folder)) < count:
            assert time.monotonic() < end, self.texts()
            assert all(x.poll() is None for x in self.processes), self.texts()
            time.sleep(0.05)

    def texts(self):
        return "\n".join(log.read_text()[-1500:] for log in self.logs)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", [0, 1])
def test_all_end_where_one_dies(victim, sign, tmp_path):
    with Job(tmp_path, 2) as job:
        job.wait_for_batches(2)
        job.processes[victim].send_signal(sign)
        other = job.processes[1 - victim]
        assert other.wait(timeout=ENDS_AFTER[sign]) != 0
        assert "rror" in job.logs[1 - victim].read_text()


def test_it_goes_on_with_another_number_of_processes(alone, tmp_path):
    """1, 2, 4 and again 1 process, within one epoch: the curve of one that ran it."""
    for count, until in ((1, 4), (2, 8), (4, 12)):
        with Job(tmp_path, count) as job:
            job.wait_for_batches(until)
            job.processes[-1].kill()
            for process in job.processes:
                process.wait(timeout=ENDS_AFTER[signal.SIGKILL])
        assert len(curve(tmp_path)) < 19
    train(tmp_path)
    assert_same_training(tmp_path, alone)


def test_a_launched_job_says_which_process_died(tmp_path):
    with subprocess.Popen(
        command(tmp_path, "--processes", "2"),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as launcher:
        end = time.monotonic() + START
        while not curve(tmp_path):
            assert launcher.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        children = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
        first, _ = children.read_text().split()
        os.kill(int(first), signal.SIGKILL)
        _, errors = launcher.communicate(timeout=30)
    assert launcher.returncode == 1
    assert "Process 0 was ended by SIGKILL: all of them end." in errors
