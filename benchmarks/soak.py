"""Does memory stay flat over hours of use?

    python -m benchmarks.soak
    python -m benchmarks.soak --parts fit translate --scale 0.01   # does it run?

Each part has its own process, on the backend that KERAS_BACKEND names:

fit        20,000 steps of `model.fit` of a tiny recipe, in many epochs, validated and
           with an average of the weights.
models     500 models made, compiled, trained for a step and dropped.
cleared    The same, with `keras.utils.clear_session()` after each.
translate  200,000 lines through one `Translator`, thousands at a time and one by one.
serve      An hour of `examples/serve.py`, whose clients ask one line after another.

The memory is the process's own, without pages of files; for `serve` it is the server's.
It is read 50 times, evenly spread. The first fifth is the warm-up. The growth is that
from the median of the second fifth to the median of the last; at most 2% counts as
flat. `alive` counts dropped models that were not freed. `--scale` makes all parts
shorter.
"""

import argparse
import collections
import itertools
import json
import pathlib
import statistics
import time
import weakref

from benchmarks import rounds, serving

MODULE = "benchmarks.soak"
AMOUNTS = {
    "fit": (20_000, "steps"),
    "models": (500, "models"),
    "cleared": (500, "models"),
    "translate": (200_000, "lines"),
    "serve": (60, "minutes"),
}
SAMPLES = 50
FEWEST = 5  # samples, one for each fifth
FLAT = 0.02
NOTES = 10  # samples between two lines of progress
TINY = {
    "model_dim": 32,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "intermediate_dim": 64,
    "max_length": 64,
}


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments)
    measures = []
    for number, part in enumerate(arguments.parts, start=1):
        progress = f"[{number}/{len(arguments.parts)}] {part}"
        measures.append(measure(part, progress, arguments))
        rounds.show(measures[-1], arguments)
    rounds.publish(MODULE, measures, [as_table(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add("--parts", nargs="+", choices=AMOUNTS, default=list(AMOUNTS))
    add("--scale", type=float, default=1.0, help="of all amounts; default: 1")
    add("--minutes", type=float, default=60, help="of the server; default: 60")
    add("--clients", type=rounds.count, default=4, help="of the server; default: 4")
    add("--translator", help="file that the server loads; none: random weights")
    rounds.add_output_options(parser)
    add("--part", choices=AMOUNTS, help=argparse.SUPPRESS)
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 0 < arguments.scale <= 1:
        parser.error(f"--scale must be in (0, 1]. Received: {arguments.scale}.")
    return arguments


def amount_of(part, arguments):
    """Returns how much a part does: a count, or minutes for the server."""
    if part == "serve":
        return arguments.minutes * arguments.scale
    return max(FEWEST, round(AMOUNTS[part][0] * arguments.scale))


def measure(part, progress, arguments):
    """Runs a part in its own process; returns a summary of its samples."""
    amount, (_, unit) = amount_of(part, arguments), AMOUNTS[part]
    options = ["--part", part, "--scale", arguments.scale]
    options += ["--minutes", arguments.minutes, "--clients", arguments.clients]
    if arguments.translator:
        options += ["--translator", pathlib.Path(arguments.translator).resolve()]
    begun, samples = time.monotonic(), []
    # The C library frees memory as it does for a user.
    worker = rounds.Worker(MODULE, *map(str, options), variables={})
    while (sample := worker.answer()) != {"ended": True}:
        samples.append(sample)
        if len(samples) % NOTES in (0, 1):
            rounds.note(
                f"{progress}: {sample['done']:,} of {amount:,} {unit}, "
                f"{sample['mb']:.1f} MB, {(time.monotonic() - begun) / 60:.1f} min"
            )
    worker.close()
    return {
        "part": part,
        "backend": worker.ready["backend"],
        "amount": amount,
        "unit": unit,
        "minutes": (time.monotonic() - begun) / 60,
        **summary([sample["mb"] for sample in samples]),
        **{key: samples[-1][key] for key in ("alive", "errors") if key in samples[-1]},
        "samples": samples,
    }


def summary(megabytes):
    """Returns the memory after the warm-up, at the end and at most, and its growth.

    Args:
        megabytes: The samples in their order, at least five.

    Returns:
        A dict: `warm_mb` and `end_mb` are medians of the second and the last fifth.
    """
    fifth = len(megabytes) // 5
    warm = statistics.median(megabytes[fifth : 2 * fifth])
    end = statistics.median(megabytes[-fifth:])
    growth = end / warm - 1
    return {
        "warm_mb": warm,
        "end_mb": end,
        "largest_mb": max(megabytes),
        "growth": growth,
        "flat": growth <= FLAT,
    }


def as_table(measures):
    header = ["part", "backend", "amount", "minutes", "MB after warm-up"]
    header += ["MB at the end", "largest", "growth, %", "verdict"]
    rows = [
        [
            m["part"],
            m["backend"],
            f"{m['amount']:,} {m['unit']}",
            f"{m['minutes']:.0f}",
            *(f"{m[name]:.1f}" for name in ("warm_mb", "end_mb", "largest_mb")),
            f"{100 * m['growth']:+.1f}",
            verdict(m),
        ]
        for m in measures
    ]
    return rounds.table(header, rows)


def verdict(measure):
    """Says whether the memory was flat, and what else went wrong."""
    parts = ["flat" if measure["flat"] else "grows"]
    parts += [
        f"{measure[name]} {name}" for name in ("alive", "errors") if measure.get(name)
    ]
    return ", ".join(parts)


def work(arguments):
    """Does a part in this process, and writes a JSON line at each sample."""
    import keras

    def report(done, process="self", **more):
        sample = {"done": done, "mb": rounds.own_megabytes(process), **more}
        print(json.dumps(sample), flush=True)

    print(json.dumps({"backend": keras.backend.backend()}), flush=True)
    part = arguments.part
    PARTS[part](amount_of(part, arguments), arguments, report)
    print(json.dumps({"ended": True}), flush=True)


def spread(amount):
    """Yields `(number, done)` for each sample: the work until it, and all so far."""
    count = min(SAMPLES, amount)
    ends = [amount * number // count for number in range(1, count + 1)]
    for begin, end in itertools.pairwise([0, *ends]):
        yield end - begin, end


def fit(amount, arguments, report):
    """Trains one model as a recipe does."""
    import keras

    from keras_seqattn import recipes, text, training

    training.keep_freed_memory()
    recipe = recipes.RECIPES["smoke"]
    sources, targets = text.load_parallel("phrases", "en", "de")
    tokenizer = text.SentencePieceTokenizer.train(
        [*sources, *targets], recipe.vocabulary_size
    )
    options = recipe.batch_options() | {"batch_tokens": 256}
    batches = text.translation_batches(
        sources[:2000], targets[:2000], tokenizer, **options
    )
    validation = text.translation_batches(
        sources[-200:], targets[-200:], tokenizer, shuffle=False, **options
    )
    ends = collections.deque(end for _, end in spread(amount))
    steps = itertools.count(1)

    def sample_at(batch, logs):
        if ends and next(steps) == ends[0]:
            report(ends.popleft())
            model.stop_training = not ends

    model = recipe.make_model(tokenizer.vocabulary_size)
    model.fit(
        batches,
        validation_data=validation,
        epochs=amount,  # It stops earlier.
        shuffle=False,
        callbacks=[
            training.TerminateOnDivergence(raise_error=True),
            *recipe.average_callbacks(),
            keras.callbacks.LambdaCallback(on_train_batch_end=sample_at),
        ],
        verbose=0,
    )


def models(amount, arguments, report, clear=False):
    """Makes models and drops them, and lets the garbage collector free them."""
    import gc

    import keras
    import numpy as np

    from keras_seqattn import models, training

    ids = np.array([[3, 4, 5, 2], [3, 6, 2, 0]], "int32")
    inputs = {"source_ids": ids, "target_ids": ids}

    def make():
        model = models.TranslationTransformer(260, **TINY)
        model.compile(
            training.Adam(0.01),
            training.MaskedCrossentropy(),
            metrics=[training.TokenCrossentropy()],
        )
        model.fit(inputs, ids, verbose=0)
        if clear:
            keras.utils.clear_session()
        return weakref.ref(model)

    made = []
    for number, done in spread(amount):
        made += [make() for _ in range(number)]
        gc.collect()
        report(done, alive=sum(model() is not None for model in made))


def cleared(amount, arguments, report):
    """Does what `models` does, and clears Keras's session after each."""
    models(amount, arguments, report, clear=True)


def translate(amount, arguments, report):
    """Translates lines; for each sample, up to twenty of them one by one."""
    from keras_seqattn import text

    translator = serving.make_translator(**TINY)
    lines = text.load_parallel("phrases", "en", "de")[0]
    limit = translator.max_source_length
    lines = itertools.cycle(line for line in lines if len(line.encode()) < limit)
    for number, done in spread(amount):
        single = min(20, number // 2)
        for line in itertools.islice(lines, single):
            translator([line])
        translator(list(itertools.islice(lines, number - single)))
        report(done)


def serve(amount, arguments, report):
    """Sends requests to a server from this process, and reads the server's memory."""
    seconds = 60 * amount
    count = min(SAMPLES, max(FEWEST, round(seconds / 5)))
    with (
        serving.saved(arguments.translator, **TINY) as path,
        serving.served(path) as (process, port),
    ):
        errors = 0
        for number in range(1, count + 1):
            answers = serving.load(port, arguments.clients, seconds / count, beam=4)
            errors += answers["errors"]
            done = round(amount * number / count, 2)
            report(done, process.pid, lines_s=answers["rate"], errors=errors)


PARTS = {
    "fit": fit,
    "models": models,
    "cleared": cleared,
    "translate": translate,
    "serve": serve,
}


if __name__ == "__main__":
    main()
