"""How fast does a training step run, ours and the peers', best against best?

Every system trains the same encoder-decoder Transformer (`benchmarks/shapes.py`): equal
sizes, equal parameter count (checked), equal dropout, Adam, padded batches of random
sentences. A measure is the wall time of `model.fit` (PyTorch: of the usual loop) over
`--steps` steps, so it includes all that a step costs a user. The first step, with its
tracing and compilation, is reported separately.

The work is equal as far as the peers allow: ours and PyTorch smooth the labels by 0.1.
The Keras peers take `SparseCategoricalCrossentropy`, which cannot do so, since the
one-hot labels of `CategoricalCrossentropy` would cost them more.

    python -m benchmarks.training
    python -m benchmarks.training --systems ours-jax kerashub-jax --shapes T1 --steps 5
"""

import dataclasses
import os
import statistics

from benchmarks import rounds, shapes
from benchmarks.shapes import SHAPES, random_batches

MODULE = "benchmarks.training"
SYSTEMS = (
    "ours-tensorflow-jit",
    "ours-tensorflow",
    "ours-tensorflow-checkpointed",
    "ours-jax",
    "kerashub-tensorflow-jit",
    "kerashub-tensorflow",
    "kerashub-jax",
    "keras-tensorflow-jit",
    "keras-tensorflow",
    "torch-eager",
    "torch-compiled",
)
COMPARISONS = (
    ("ours-tensorflow", "kerashub-tensorflow"),
    ("ours-tensorflow", "keras-tensorflow"),
    ("ours-jax", "kerashub-jax"),
    ("ours", "kerashub"),
    ("ours", "keras"),
    ("ours", "torch"),
)
WARM_UP_STEPS = 2


def main():
    arguments = parse()
    if arguments.worker:
        work(arguments.system, shape_of(arguments.shape, arguments))
        return
    measures, sections = [], []
    for name in arguments.shapes:
        shape = shape_of(name, arguments)
        measures += measure(shape, arguments)
        sections.append(report(shape, [m for m in measures if m["shape"] == name]))
    rounds.publish(MODULE, measures, sections, arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    shapes.add_options(parser, SYSTEMS)
    parser.add_argument(
        "--attention-dropout",
        type=float,
        default=0.1,
        help="rate on attention weights; default: 0.1, always that of KerasHub",
    )
    return parser.parse_args()


def shape_of(name, arguments):
    return dataclasses.replace(
        SHAPES[name], attention_dropout=arguments.attention_dropout
    )


def measure(shape, arguments):
    """Runs all systems on one shape; prints and returns one dict per measure."""
    options = "--shape", shape.name, "--attention-dropout", shape.attention_dropout
    workers = rounds.start(MODULE, arguments.systems, options)
    measures = []
    for number, system, answer in rounds.alternate(
        workers, arguments.rounds, arguments.steps
    ):
        rate = shape.positions / answer["step_s"]
        ready = workers[system].ready
        measures.append(
            dict(shape=shape.name, system=system, round=number, **ready, **answer)
            | dict(positions_per_s=rate, flops=shape.flops)
            | dict(ceiling_gflops=rounds.matmul_gflops())
        )
        rounds.note(f"{shape.name} round {number} {system}: {rate:.0f} positions/s")
        rounds.show(measures[-1], arguments)
    return measures


def report(shape, measures):
    """Formats the table of systems and the table of ratios of one shape."""
    rows, rates = [], {}
    for system, own in rounds.grouped(measures).items():
        rates[system] = [m["positions_per_s"] for m in own]
        shares = [m["flops"] / m["step_s"] / 1e9 / m["ceiling_gflops"] for m in own]
        rate, last = statistics.median(rates[system]), own[-1]
        rows.append(
            [
                system,
                f"{rate:.0f}",
                f"{1000 * shape.positions / rate:.0f}",
                f"{rate / shape.positions * shape.flops / 1e9:.0f}",
                f"{statistics.median(shares):.0%}",
                f"{last['first_step_s']:.1f}",
                f"{last['peak_mb']:.0f}",
                f"{last['peak_mb'] - last['import_mb']:.0f}",
            ]
        )
    header = [
        f"{shape.name}: {shape.parameters:,} parameters",
        "target positions/s",
        "ms a step",
        "GFLOP/s",
        "of the ceiling",
        "first step, s",
        "peak memory, MB",
        "without the imports",
    ]
    return "\n\n".join([rounds.table(header, rows), rounds.compare(rates, COMPARISONS)])


def work(system, shape):
    """Trains one system here, for as many steps as each line of stdin asks."""
    library, backend, *how = system.split("-")
    shape = dataclasses.replace(shape, gradient_checkpointing="checkpointed" in how)
    batches = random_batches(shape)
    if library == "torch":
        from benchmarks import torch_peer

        imported = rounds.peak_megabytes()
        compiled = backend == "compiled"
        parameters, run = torch_peer.trainer(shape, batches, compiled)
    else:
        os.environ["KERAS_BACKEND"] = backend
        from benchmarks import peers

        imported = rounds.peak_megabytes()
        jit_compile = backend == "jax" or "jit" in how
        parameters, run = peers.trainer(library, shape, batches, jit_compile)
    shape.check(system, parameters)
    first, _ = rounds.timed(run, 1)
    run(WARM_UP_STEPS)

    def answer(steps):
        seconds, loss = run(steps)
        return dict(step_s=seconds / steps, loss=loss, peak_mb=rounds.peak_megabytes())

    ready = dict(parameters=parameters, first_step_s=first, import_mb=imported)
    rounds.serve(ready, answer)


if __name__ == "__main__":
    main()
