"""A chief and its workers: KerasTuner's own, started and watched on this machine.

The chief holds the oracle; the workers ask it for trials over KerasTuner's connection.
KerasTuner's chief waits forever for a worker that died. Here each worker has a
heartbeat (see `heartbeats`), and one that died is started again.
"""

import collections
import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import keras
import keras_tuner

from keras_seqattn.tuning import heartbeats, tuner
from keras_seqattn.tuning.settings import Settings

ADDRESS = "127.0.0.1"
CHECK_SECONDS = 1.0  # between two checks of the processes
# A worker that dies more often, in all or before a first heartbeat, is given up.
MOST_DEATHS, MOST_EARLY_DEATHS = 20, 2
FATAL = 3  # exit status of a worker that must not be started again
# What a program may have set of `keras.config`, in an order that holds when set again.
GLOBAL = ("floatx", "epsilon", "image_data_format", "dtype_policy")


def run(settings: Settings) -> None:
    """Runs a study with a chief and workers on this machine, until it ends.

    A worker that dies is started again; its trial goes on from its last epoch.
    """
    names = [f"worker{number}" for number in range(settings.workers)]
    with contextlib.closing(ProcessGroup(settings)) as group:
        group.start("chief")
        for name in names:
            heartbeats.file_of(settings.directory, name).unlink(missing_ok=True)
            group.start(name)
        _supervise(group, settings.directory, names)


def _supervise(group, directory, names):
    """Waits for the workers to end, and restarts those that died."""
    deaths, early_deaths = collections.Counter(), collections.Counter()
    running, begun, ended = set(names), set(), False
    while running:
        time.sleep(CHECK_SECONDS)
        chief = group.status("chief")
        if chief not in (None, 0):
            raise RuntimeError(f"The chief died with status {chief}; run it again.")
        for name in sorted(running):
            status, file = group.status(name), heartbeats.file_of(directory, name)
            if file.exists():
                begun.add(name)
            if status is None:
                continue
            if status == FATAL:
                raise RuntimeError("The study cannot go on: a worker has said why.")
            deaths[name] += status != 0
            early_deaths[name] += name not in begun
            begun.discard(name)
            file.unlink(missing_ok=True)
            too_many = deaths[name] > MOST_DEATHS
            too_many = too_many or early_deaths[name] > MOST_EARLY_DEATHS
            if status == 0 or too_many or chief is not None:
                running.remove(name)
                ended = ended or status == 0
            else:
                group.start(name)
    if not ended:
        counts = ", ".join(f"{name}: {count}" for name, count in deaths.items())
        raise RuntimeError(f"All workers died. Deaths: {counts}.")


class ProcessGroup:
    """The processes of a study."""

    def __init__(self, settings: Settings) -> None:
        # Each process reads this on its standard input.
        known = {name: getattr(keras.config, name)() for name in GLOBAL}
        known["dtype_policy"] = known["dtype_policy"].name
        self._message = pickle.dumps((settings, known))
        self._port, self._cores = _free_port(), _shares(settings.workers)
        self._processes = {}

    def close(self) -> None:
        """Kills all processes; the study can go on from what they leave."""
        for process in self._processes.values():
            _end(process)

    def start(self, name: str) -> None:
        """Starts the process of a name: "chief", or "worker" and a number."""
        if name in self._processes:
            _end(self._processes[name])
        self._processes[name] = process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            env=self._environment(name),
            start_new_session=True,  # so that Ctrl-C is this process's to handle
        )
        if name != "chief" and hasattr(os, "sched_setaffinity"):
            # Every backend makes a thread for each processor that it may use.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, _share(name, self._cores))
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self._message)
            process.stdin.flush()

    def status(self, name: str) -> int | None:
        """Returns the exit status of a process, None while it lives."""
        return self._processes[name].poll()

    def _environment(self, name):
        """Returns the variables that KerasTuner and the backends read."""
        threads = str(len(self._cores[0]))
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        visible = {"CUDA_VISIBLE_DEVICES": ""} if name == "chief" else {}
        if len(devices) > 1 and not visible:
            visible = {"CUDA_VISIBLE_DEVICES": _share(name, devices)}
        return {
            # Several processes on one device: none may take all of its memory.
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "OMP_NUM_THREADS": threads,
            "TF_NUM_INTRAOP_THREADS": threads,
            **os.environ,
            "KERASTUNER_TUNER_ID": name,
            "KERASTUNER_ORACLE_IP": ADDRESS,
            "KERASTUNER_ORACLE_PORT": str(self._port),
            "KERAS_BACKEND": keras.backend.backend(),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "no_grpc_proxy": ADDRESS,
            **visible,
        }


def _end(process):
    """Ends a process if it lives, and waits until it is gone."""
    process.kill()
    process.wait()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def _share(name, shares):
    """Returns the share of a worker, whose name ends in its number."""
    return shares[int(name.removeprefix("worker")) % len(shares)]


def _shares(count):
    """Divides the processors among workers: disjoint sets, or one each if few."""
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    size = max(1, len(cores) // count)
    return [set(cores[i : i + size]) for i in range(0, len(cores) - size + 1, size)]


def _free_port():
    with socket.socket() as listener:
        listener.bind((ADDRESS, 0))
        return listener.getsockname()[1]


def main() -> None:
    """Runs the chief or a worker, as the settings on standard input say."""
    settings, known = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    for name, value in known.items():
        getattr(keras.config, f"set_{name}")(value)
    stream = sys.stdout
    try:
        # KerasTuner prints each condition of the space whenever it sends it.
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            tuner.run(settings, stream)
    except keras_tuner.errors.FatalRuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(FATAL)


def _die_with_parent():
    """Ends this process when its standard input ends, as it does with the parent."""
    os.read(sys.stdin.fileno(), 1)  # unbuffered: Python's buffer has a lock
    os._exit(1)
