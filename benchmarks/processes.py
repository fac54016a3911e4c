"""How does a training step scale over cores, devices and processes of one machine?

The same step on the same global batch, on JAX, as `examples/distributed.py` trains:

- one-core: one process on one core.
- all-cores: one process on all cores, the usual way to train.
- devices: one process on all cores, with a virtual device for each.
- processes: a process for each core, which reduce their gradients over loopback.

A measure is the wall time of `model.fit` over `--steps` steps.

    python -m benchmarks.processes
    python -m benchmarks.processes --shapes T1 --rounds 5
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys

from benchmarks import rounds, shapes
from benchmarks.shapes import SHAPES, random_batches

MODULE = "benchmarks.processes"
SYSTEMS = ("one-core", "all-cores", "devices", "processes")
USUAL = "all-cores"
COMPARISONS = tuple((system, USUAL) for system in SYSTEMS if system != USUAL)
WARM_UP_STEPS = 2


def main():
    arguments = parse()
    if arguments.worker:
        work(arguments.system, SHAPES[arguments.shape], arguments.join)
        return
    measures, sections = [], []
    for name in arguments.shapes:
        found = measure(SHAPES[name], arguments)
        measures += found
        sections.append(report(SHAPES[name], found))
    rounds.publish(MODULE, measures, sections, arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    shapes.add_options(parser, SYSTEMS)
    parser.add_argument("--join", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(shape, arguments):
    """Runs all systems on one shape; prints and returns one dict per measure."""
    workers = rounds.start(MODULE, arguments.systems, ("--shape", shape.name))
    measures = []
    for number, system, answer in rounds.alternate(
        workers, arguments.rounds, arguments.steps
    ):
        rate = shape.positions / answer["step_s"]
        measures.append(
            dict(shape=shape.name, system=system, round=number)
            | dict(**workers[system].ready, **answer, positions_per_s=rate)
        )
        rounds.note(f"{shape.name} round {number} {system}: {rate:.0f} positions/s")
        rounds.show(measures[-1], arguments)
    return measures


def report(shape, measures):
    """Formats the table of systems and the table of ratios of one shape."""
    rows, rates = [], {}
    for system, own in rounds.grouped(measures).items():
        rates[system] = [m["positions_per_s"] for m in own]
        rate, last = statistics.median(rates[system]), own[-1]
        rows.append(
            [
                system,
                f"{rate:.0f}",
                f"{last['first_step_s']:.1f}",
                f"{last['loss']:.4f}",
            ]
        )
    header = [shape.name, "target positions/s", "first step, s", "loss"]
    return "\n\n".join([rounds.table(header, rows), rounds.compare(rates, COMPARISONS)])


def work(system, shape, join):
    """Trains one system here, for as many steps as each line of stdin asks.

    If there are several processes, the first starts the others, and passes the requests
    on to them.

    Args:
        system: Name of the system.
        shape: The `Shape`.
        join: Address of the first process and the number of this one; None for the
            first.
    """
    os.environ["KERAS_BACKEND"] = "jax"
    cores = sorted(os.sched_getaffinity(0))
    address, number = join or (_free_address(), "0")
    others = []
    if system == "devices":
        flag = f"--xla_force_host_platform_device_count={len(cores)}"
        os.environ["XLA_FLAGS"] = flag
    if system == "processes" and not join:
        command = [sys.executable, *sys.orig_argv[1:], "--join", address]
        others = [
            subprocess.Popen(
                [*command, str(i)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
            for i in range(1, len(cores))
        ]
    if system in ("one-core", "processes"):
        os.sched_setaffinity(0, {cores[int(number)]})
    import jax

    if system == "processes":
        jax.distributed.initialize(address, len(cores), int(number))
    run = prepare(shape)
    first, _ = rounds.timed(run, 1)
    run(WARM_UP_STEPS)

    def answer(steps):
        for other in others:
            other.stdin.write(f"{steps}\n")
            other.stdin.flush()
        seconds, loss = run(steps)
        return dict(step_s=seconds / steps, loss=loss)

    rounds.serve(dict(first_step_s=first), answer)
    for other in others:
        other.stdin.close()
    if system == "processes":
        jax.distributed.shutdown()  # It waits for all, and they for each other.
    for other in others:
        other.wait()


def prepare(shape):
    """Builds and distributes the model and its batches; returns a function of steps."""
    import keras
    import tensorflow as tf

    from benchmarks import peers
    from keras_seqattn import training

    keras.utils.set_random_seed(0)  # The same weights in all processes.
    if len(keras.distribution.list_devices()) > 1:
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(auto_shard_dataset=False)
        )
    source_ids, target_ids, labels = random_batches(shape)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    data = tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat()
    data = training.distribute(data)
    model = peers.compiled("ours", shape)
    shape.check("ours", peers.parameter_count(model))
    return lambda steps: peers.timed_fit(model, data, steps_per_epoch=steps)


def _free_address():
    """Returns a loopback address with a free port."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


if __name__ == "__main__":
    main()
