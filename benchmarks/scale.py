"""How do time and memory of a training step grow with each size of model and batch?

Starting from one small Transformer, one size at a time is doubled: the length of the
sentences, the batch, the vocabulary, the width (feed-forward and heads grow with it)
and the depth (of encoder and decoder). "pairs" grows the corpus, and measures the time
and the memory of one pass through its batches, tokenized and in length buckets. Each
point has its own process, which trains as `benchmarks.training` does. The memory is
that above the imports; for "pairs", above that of the corpus and its tokenizer, too.

    python -m benchmarks.scale
    python -m benchmarks.scale --axes length depth --pictures docs/images
"""

import argparse
import dataclasses
import pathlib
import statistics

from benchmarks import pictures, rounds, training
from benchmarks.shapes import Shape

MODULE = "benchmarks.scale"
BASE = Shape("base", 4_000, 128, 256, 4, 2, 2, batch_size=32, length=32, min_length=32)
AXES = {
    "length": (16, 32, 64, 128, 256, 512),
    "batch": (8, 16, 32, 64, 128),
    "vocabulary": (2_000, 4_000, 8_000, 16_000, 32_000),
    "width": (64, 128, 256, 512),
    "depth": (1, 2, 4, 8),
    "pairs": (2_500, 5_000, 10_000, 20_000),
}
UNITS = {
    "length": "tokens in a sentence",
    "batch": "sentences in a batch",
    "vocabulary": "tokens in the vocabulary",
    "width": "model_dim",
    "depth": "layers of encoder and of decoder",
    "pairs": "pairs of sentences in the corpus",
}
BATCH_TOKENS = 4096


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments.system, arguments.axes[0], arguments.size)
    if arguments.pictures:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    measures = [row for axis in arguments.axes for row in measure(axis, arguments)]
    axes = rounds.grouped(measures, "axis")
    sections = [report(axis, own) for axis, own in axes.items()]
    rounds.publish(MODULE, measures, sections, arguments)
    if arguments.pictures:
        for axis, own in axes.items():
            picture = arguments.pictures / f"scale_{axis}.png"
            draw(axis, own).savefig(picture, dpi=150)
            rounds.note(f"{axis}: drawn in {picture}")


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument(
        "--pictures", type=pathlib.Path, help="folder for one picture an axis"
    )
    rounds.add_options(parser)
    parser.add_argument("--system", choices=training.SYSTEMS, default="ours-tensorflow")
    parser.add_argument("--size", type=rounds.count, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(axis, arguments):
    """Measures each size of one axis; prints and returns one dict per size."""
    measures = []
    for size in AXES[axis]:
        options = "--system", arguments.system, "--axes", axis, "--size", str(size)
        worker = rounds.Worker(MODULE, *options)
        answers = [worker.measure(3) for _ in range(arguments.rounds)]
        worker.close()
        seconds = statistics.median(answer["step_s"] for answer in answers)
        megabytes = answers[-1]["peak_mb"] - worker.ready["import_mb"]
        measures.append(
            dict(axis=axis, size=size, seconds=seconds, megabytes=megabytes)
        )
        rounds.note(f"{axis} {size}: {seconds:.3f} s, {megabytes:.0f} MB")
        rounds.show(measures[-1], arguments)
    return measures


def report(axis, measures):
    """Formats the table of one axis, with the growth from one size to the next."""
    rows, before = [], None
    for row in measures:
        growth = f"{row['seconds'] / before['seconds']:.2f}" if before else ""
        rows.append(
            [row["size"], f"{row['seconds']:.3f}", growth, f"{row['megabytes']:.0f}"]
        )
        before = row
    unit = "s a pass" if axis == "pairs" else "s a step"
    return rounds.table([UNITS[axis], unit, "times the last", "memory, MB"], rows)


def draw(axis, measures):
    """Draws time and memory over the sizes of one axis, on logarithmic scales."""
    from matplotlib.ticker import LogLocator

    figure, *panels = pictures.begin(panels=2, size=(7, 3))
    sizes = [row["size"] for row in measures]
    labels = ("seconds a step", "memory above the imports, MB")
    if axis == "pairs":
        labels = ("seconds a pass", "memory above that of the corpus, MB")
    for panel, name, unit in zip(
        panels,
        ("seconds", "megabytes"),
        labels,
        strict=True,
    ):
        panel.loglog(sizes, [row[name] for row in measures], "o-", color="#c2410c")
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.minorticks_off()
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xlabel(UNITS[axis])
        panel.set_ylabel(unit)
    return figure


def work(system, axis, size):
    """Trains one shape, or passes through one corpus, as often as stdin asks."""
    if axis == "pairs":
        return pass_through(size)
    return training.work(system, shape_of(axis, size))


def pass_through(size):
    """Makes batches of the first pairs of a corpus."""
    import keras_seqattn as ks

    sources, targets = (
        lines[:size] for lines in ks.text.load_parallel("phrases", "en", "de")
    )
    tokenizer = ks.text.SentencePieceTokenizer.train([*sources, *targets], 1000)
    before = rounds.peak_megabytes()

    def run():
        batches = ks.text.translation_batches(
            sources, targets, tokenizer, batch_tokens=BATCH_TOKENS
        )
        return sum(1 for _ in batches)

    def answer(times):
        seconds = sum(rounds.timed(run)[0] for _ in range(times)) / times
        return dict(step_s=seconds, peak_mb=rounds.peak_megabytes())

    return rounds.serve(dict(import_mb=before), answer)


def shape_of(axis, size):
    """Returns the base shape with one size changed."""
    sizes = {
        "length": dict(length=size, min_length=size),
        "batch": dict(batch_size=size),
        "vocabulary": dict(vocabulary_size=size),
        "width": dict(
            model_dim=size, intermediate_dim=2 * size, num_heads=max(1, size // 32)
        ),
        "depth": dict(encoder_layers=size, decoder_layers=size),
    }
    return dataclasses.replace(BASE, **sizes[axis])


if __name__ == "__main__":
    main()
