"""Does the learning rate that is best at one width hold at another?

    python -m benchmarks.widths --data-dir DIRECTORY
    python -m benchmarks.widths --corpus phrases --pairs 500 --epochs 1  # a try

Trains the corpus's recipe, with two blocks on each side, for a few epochs at each width
and rate, in two kinds: "standard", and "mup" with the smallest width as `base_dim`. At
that width both are the same. Heads are 32 wide; their number grows. The rate rises
during the first quarter of the steps. Models are judged by BLEU on the validation
lines, with averaged weights. With `--output FILE` the same command resumes where it was
stopped.
"""

import dataclasses
import json

from benchmarks import rounds
from benchmarks.tuning import Task, add_corpus_options

MODULE = "benchmarks.widths"
WIDTHS = (64, 128, 256)
RATES = (0.001, 0.002, 0.004, 0.008, 0.016)
KINDS = ("standard", "mup")
KEY_DIM = 32


def main():
    arguments = parse()
    task, measures = Task(arguments), read(arguments.output)
    least = min(arguments.widths)
    # Measures with other options do not count as done.
    names = ("corpus", "source", "target", "pairs", "epochs")
    options = {name: getattr(arguments, name) for name in names} | {"base_dim": least}
    runs = [
        {"kind": kind, "width": width, "rate": rate, **options}
        for width in sorted(arguments.widths)
        for kind in KINDS[: 1 if width == least else 2]
        for rate in sorted(arguments.rates)
    ]
    for number, run in enumerate(runs, start=1):
        if any(run.items() <= measure.items() for measure in measures):
            continue
        seconds, scores = rounds.timed(train, task, run, least, arguments.epochs)
        measures.append({**run, **scores, "seconds": round(seconds, 1)})
        rounds.note(f"[{number}/{len(runs)}] {measures[-1]}")
        rounds.show(measures[-1], arguments)
        if arguments.output:
            rounds.write(arguments.output, measures)
    # Of what the file holds, only what was asked for: all rates at each width.
    ours = [m for m in measures if any(run.items() <= m.items() for run in runs)]
    sections = [as_table(ours), transfer(ours)]
    rounds.publish(MODULE, measures, sections, arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add_corpus_options(parser)
    add("--widths", nargs="+", type=rounds.count, default=WIDTHS)
    add("--rates", nargs="+", type=float, default=RATES)
    add("--epochs", type=rounds.count, default=3)
    rounds.add_output_options(parser)
    return parser.parse_args()


def read(path):
    """Returns the measures that an earlier run has written."""
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(task, run, base_dim, epochs):
    """Trains one model; returns the scores of its averaged weights."""
    import keras

    from keras_seqattn import training

    training.keep_freed_memory()
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    width = run["width"]
    sizes = {
        "model_dim": width,
        "intermediate_dim": 2 * width,
        "num_heads": max(1, width // KEY_DIM),
        "key_dim": KEY_DIM,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "base_dim": base_dim if run["kind"] == "mup" else None,
    }
    batches, validation = task.batches()
    recipe = dataclasses.replace(
        task.recipe,
        model={**task.recipe.model.options(), **sizes},
        learning_rate=run["rate"],
        # The recipe's own warm-up may be longer than so few epochs.
        warmup_steps=max(1, epochs * len(batches) // 4),
        ema_warmup=True,
    )
    model = recipe.make_model(task.tokenizer.vocabulary_size)
    model.fit(
        batches,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=recipe.average_callbacks(),
    )
    scores = model.evaluate(validation, verbose=0, return_dict=True)
    return {
        "crossentropy": round(scores["token_crossentropy"], 4),
        "bleu": round(task.bleu(model), 2),
    }


def by_rate(measures, kind, width):
    """Returns a width's scores by rate; at the smallest width both kinds are equal."""
    if width == min(measure["width"] for measure in measures):
        kind = KINDS[0]
    wanted = {"kind": kind, "width": width}
    return {m["rate"]: m for m in measures if wanted.items() <= m.items()}


def as_table(measures):
    """Formats the scores: a row for each kind and rate, a column for each width."""
    widths = sorted({measure["width"] for measure in measures})
    rows = []
    for kind in KINDS:
        for rate in sorted({measure["rate"] for measure in measures}):
            found = [by_rate(measures, kind, width).get(rate) for width in widths]
            cells = [f"{m['bleu']:.2f} ({m['crossentropy']:.3f})" for m in found if m]
            rows.append([f"{kind}, rate {rate:g}", *cells])
    header = [f"val BLEU at {width} (cross-entropy)" for width in widths]
    return rounds.table(["", *header], [r for r in rows if len(r) > len(widths)])


def transfer(measures):
    """Formats what the best rate of the smallest width loses at the others."""
    least, *others = sorted({measure["width"] for measure in measures})

    def best(kind, width):
        found = by_rate(measures, kind, width)
        return max(found, key=lambda rate: found[rate]["bleu"])

    rate, rows = best(KINDS[0], least), []
    for kind in KINDS:
        for width in others:
            found, own = by_rate(measures, kind, width), best(kind, width)
            kept, most = found[rate]["bleu"], found[own]["bleu"]
            rows.append([f"{kind}, {width}", f"{own:g}", f"{most:.2f}", f"{kept:.2f}"])
    header = ["", "best rate", "BLEU with it", f"with {rate:g}, best at {least}"]
    return rounds.table(header, rows)


if __name__ == "__main__":
    main()
