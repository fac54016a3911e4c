"""Trains a Transformer to translate, scores it on unseen lines, and saves it.

    python examples/translation.py                    # about 5 minutes on 2 cores
    python examples/translation.py --preset smoke     # under a minute: does it run?
    python examples/translation.py --corpus multi30k  # photo captions, 35 minutes
    python examples/translation.py --train train.tsv --val val.tsv   # your own lines
    python examples/translation.py --train train.en train.de --val val.en val.de

A TSV file has a source, a tab and its translation in each line. Files are in UTF-8.
`--columns 1 0` translates the other way. Pairs of `--val` must not be in `--train`.

You can stop it at any time: the same command resumes after the last finished epoch. It
needs `pip install ".[tensorflow,text,score,corpora,plot]"`.
"""

import argparse
import contextlib
import csv
import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import shutil
import sys
import time

from options import amount, count, installed, print_all_scripts, seed

with installed(__doc__, "matplotlib"):
    import corpora
    import keras
    from outputs import alone, claim

    import keras_seqattn as ks

# What a run writes beside `run.json`.
WRITTEN = ("backup", "forward", "backward", "history.csv", "translator.keras")
WRITTEN += ("scores.json", "translations.txt", "learning_curve.png", "attention.png")


def main():
    print_all_scripts()
    args = arguments()
    corpora.check_lines(args)
    recipe = ks.recipes.RECIPES[args.preset]
    if args.epochs is not None:
        recipe = dataclasses.replace(recipe, epochs=args.epochs)
    if args.vocabulary_size is not None:
        recipe = recipe.with_vocabulary(args.vocabulary_size)
    keras.utils.set_random_seed(args.seed)
    ks.training.keep_freed_memory()  # Quicker steps on many Linux machines.
    claim_output(args, recipe)

    with on_devices(args.devices):
        train(args, recipe)

    evaluate(args, ks.Translator.load(args.output / "translator.keras"))


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    corpora.add_corpus(parser)
    corpora.add_files(parser, val="to validate on", test="to score; default: --val")
    add = parser.add_argument
    add("--preset", choices=ks.recipes.RECIPES, help="default: the corpus's own")
    add("--output", type=pathlib.Path, help="default: a folder of its own in runs/")
    add("--vocabulary-size", type=count, help="tokens; default: the preset's")
    add("--epochs", type=count, help="default: the preset's, for small own files more")
    minutes = "most minutes of training each model, which then ends; default: no limit"
    add("--minutes", type=amount, default=float("inf"), help=minutes)
    devices = "devices that share each batch (JAX only); default: 1"
    add("--devices", type=int, default=1, help=devices)
    add("--seed", type=seed, default=0, help="default: 0")
    args = parser.parse_args()
    args.backward = False  # Not an option: `diversify` sets it for a teacher.
    corpora.check_files(parser, args)
    args.preset, args.evaluate = corpora.preset_of(args), corpora.split_of(args)
    name = f"{corpora.name_of(args)}-{args.preset}"
    args.output = args.output or pathlib.Path("runs", name)
    return args


def claim_output(args, recipe):
    """Claims the output folder for this run; exits if it is another run's."""
    run = {name: getattr(args, name) for name in ("corpus", "source", "target", "seed")}
    if args.train:
        contents = [pathlib.Path(path).read_bytes() for path in args.train + args.val]
        digests = [hashlib.sha256(content).hexdigest() for content in contents]
        run = {"files": digests, "columns": args.columns, "header": args.header}
        run["seed"] = args.seed
    if args.devices > 1:
        run["devices"] = args.devices
    run["recipe"] = dataclasses.asdict(recipe)
    claim(args.output, run, WRITTEN, read_run)


def read_run(text):
    """Reads a `run.json`; as a `Recipe`, lists and tuples in a recipe are equal."""
    run = json.loads(text)
    recipe = run.pop("recipe", None)
    if recipe is not None:
        options = dataclasses.asdict(ks.recipes.Recipe.from_dict(recipe))
        run |= {f"recipe.{name}": value for name, value in options.items()}
    return run


def on_devices(count):
    """Returns the scope of replicas that share each batch."""
    if count == 1:
        return contextlib.nullcontext()
    jax = keras.backend.backend() == "jax"
    found = keras.distribution.list_devices() if jax else []
    if not 1 <= count <= len(found):
        sys.exit(
            "`--devices` must be 1 or, on JAX, a number of its devices. Received: "
            f"--devices={count}, with {len(found)} devices of JAX."
        )
    return keras.distribution.DataParallel(devices=found[:count]).scope()


def load(args, split):
    """Returns sources and targets of a part; swaps them for a backward teacher."""
    pairs = corpora.load(args, split)
    return pairs[::-1] if args.backward else pairs


def train(args, recipe):
    """Trains by the recipe, its teachers first, unless that was done; saves it."""
    saved = args.output / "translator.keras"
    if saved.exists():
        print(f"Already trained. To train anew, delete {args.output}.")
        return
    sources, targets = load(args, "train")
    tokenizer = corpora.make_tokenizer(args, recipe, [*sources, *targets])
    if recipe.teacher_epochs:
        sources, targets = diversify(args, recipe, sources, targets)
    with alone():
        translator = fit(args, recipe, sources, targets, tokenizer)
    translator.save(saved)
    shutil.rmtree(args.output / "backup", ignore_errors=True)


def diversify(args, recipe, sources, targets):
    """Adds translations of the pairs, by models of both directions (diversification).

    Each is trained as this model will be, but for `teacher_epochs` epochs and in its
    own folder.
    """
    parts = [(sources, targets)]
    for number in range(1, recipe.teachers + 1):
        for name, lines in (("forward", sources), ("backward", targets)):
            folder = name if number == 1 else f"{name}-{number}"
            teacher = argparse.Namespace(**vars(args))
            teacher.output, teacher.backward = args.output / folder, name == "backward"
            teacher.seed = args.seed + number
            print(f"First a teacher, {folder}:")
            parts.append(teach(teacher, recipe, lines))
    keras.utils.set_random_seed(args.seed)
    pairs = dict.fromkeys(pair for part in parts for pair in zip(*part, strict=True))
    return tuple(map(list, zip(*pairs, strict=True)))


def teach(args, recipe, lines):
    """Trains a teacher, and returns the pairs that it makes of the lines."""
    keras.utils.set_random_seed(args.seed)
    epochs = {"epochs": recipe.teacher_epochs, "teacher_epochs": 0}
    train(args, dataclasses.replace(recipe, **epochs))
    print(f"It translates the {len(lines):,} training lines:")
    teacher = ks.Translator.load(args.output / "translator.keras")
    with alone():
        pairs = ks.text.synthesize(
            teacher,
            lines,
            reverse=args.backward,
            path=args.output / "translations.jsonl",
            verbose=True,
        )
    print(pairs.report)
    return pairs


def fit(args, recipe, sources, targets, tokenizer):
    """Trains the model, from the backup if there is one; returns a translator."""
    batches = functools.partial(
        ks.text.translation_batches,
        source_tokenizer=tokenizer,
        rows_multiple=args.devices,
    )
    try:
        training = batches(sources, targets, seed=args.seed, **recipe.batch_options())
        validation = batches(
            *load(args, "val"), shuffle=False, **recipe.batch_options(training=False)
        )
    except ValueError as error:
        if not str(error).startswith("`bucket_lengths`"):  # no pair fits
            raise
        sys.exit(f"{error} Split the lines into shorter ones.")

    model = recipe.make_model(
        tokenizer.vocabulary_size,
        metrics=[ks.training.Perplexity()],
        pieces=tokenizer.pieces if recipe.views else None,
    )
    print(f"{len(sources):,} pairs, {model.count_params():,} weights -> {args.output}")
    epochs = recipe.epochs
    if args.preset == "own" and not args.epochs:
        # The learning rate rises over many steps, so a small file gets more epochs.
        steps = 5 * recipe.warmup_steps
        epochs = max(epochs, math.ceil(steps / len(training)))
    history = args.output / "history.csv"
    model.fit(
        training,
        validation_data=validation,
        epochs=epochs,
        shuffle=False,  # The batches come shuffled.
        # In this order: a diverged epoch is neither averaged nor saved, the averages
        # are what is validated, the minutes are logged before the file is written, and
        # `Resume` saves what all others did.
        callbacks=[
            ks.training.TerminateOnDivergence(raise_error=True),
            *recipe.average_callbacks(),  # Validates the averaged weights.
            Stopwatch(history, args.minutes),
            keras.callbacks.CSVLogger(history, append=True),
            ks.training.Resume(args.output / "backup", training),
        ],
    )
    translator = ks.Translator(model, tokenizer)
    if recipe.beam_widths:
        print("Choosing the beam search that translates the validation lines best:")
        tuned = translator.tune_search(
            *load(args, "val"), widths=recipe.beam_widths, verbose=True
        )
        translator.search = tuned.search
    return translator


class Stopwatch(keras.callbacks.Callback):
    """Logs the minutes of training, including those before a resume; keeps a limit.

    An epoch does not begin if it would end past the limit, taking as long as the last.
    The first epoch of each start of the command always runs.
    """

    def __init__(self, history, limit):
        super().__init__()
        self.history, self.limit = history, limit

    def on_train_begin(self, logs=None):
        """Starts from the time that earlier runs of the command took."""
        self.begin = time.monotonic() - 60 * minutes_trained(self.history)

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the clock of this epoch."""
        self.epoch_begin = time.monotonic()

    def on_epoch_end(self, epoch, logs=None):
        """Adds the minutes to the logs; stops if the next epoch would take too long."""
        now = time.monotonic()
        logs["minutes"] = (now - self.begin) / 60
        if logs["minutes"] + (now - self.epoch_begin) / 60 > self.limit:
            self.model.stop_training = True


def minutes_trained(history):
    rows = list(csv.DictReader(history.open())) if history.exists() else []
    return float(rows[-1]["minutes"]) if rows else 0.0


def evaluate(args, translator):
    """Translates the held-out part; prints, draws and writes the results."""
    sources, references = load(args, args.evaluate)
    print(f"Translating the {len(sources):,} lines of {args.evaluate}:")
    translations = translator(sources, verbose=True)
    corpora.show(sources, references, translations, count=12)
    histories = args.output.rglob("history.csv")  # Its own, and its teachers'.
    scores = {
        "minutes": round(sum(map(minutes_trained, histories)), 1),
        "split": args.evaluate,
        **corpora.score(translations, references),
    }
    print(f"\n{json.dumps(scores, indent=2)}")

    write = {"encoding": "utf-8"}
    (args.output / "scores.json").write_text(json.dumps(scores, indent=2), **write)
    text = "".join(f"{translation}\n" for translation in translations)
    (args.output / "translations.txt").write_text(text, **write)
    curves = ks.plotting.learning_curves(args.output / "history.csv", x="minutes")
    curves.savefig(args.output / "learning_curve.png", dpi=150)
    attention = translator.attention(sources[0])
    ks.plotting.attention_map(
        attention.weights.mean(axis=(0, 1)),
        attention.source_tokens,
        attention.target_tokens,
        title="Cross-attention, mean of all layers and heads",
    ).savefig(args.output / "attention.png", dpi=150)
    names = sorted(path.name for path in args.output.iterdir())
    print(f"In {args.output}: {', '.join(names)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command goes on after the last finished epoch.")
