"""Trains a recurrent model and a Transformer for the same time, and compares them.

    python examples/recurrence.py                     # about 8 minutes on 2 cores
    python examples/recurrence.py --preset smoke      # under a minute: does it run?
    python examples/recurrence.py --corpus multi30k --minutes 20

Both have about the same number of weights, and the same tokens, loss, batches and seed
(with `--corpus multi30k` the recurrent model's batches have half as many tokens). Both
get the same minutes of `fit` after the first step, which include validation and
compiling for batches of other lengths. Greedy translations of unseen lines are scored.
It needs `pip install ".[tensorflow,text,score,corpora,plot]"`.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

from options import amount, installed, print_all_scripts, seed

with installed(__doc__):
    import corpora
    import keras
    import numpy as np
    from matplotlib.figure import Figure
    from outputs import make

    import keras_seqattn as ks
    from keras_seqattn.plotting.tokens import readable

COLOURS = {"recurrent": "#c2410c", "Transformer": "#1d4ed8"}


def main():
    print_all_scripts()
    args = arguments()
    make(args.output)
    corpora.check_lines(args)
    recipes = {
        "recurrent": ks.recipes.RECIPES[f"gru-{args.preset}"],
        "Transformer": ks.recipes.RECIPES[args.preset],
    }
    recipe = recipes["Transformer"]
    lines = [line for side in corpora.load(args, "train") for line in side]
    tokenizer = ks.text.SentencePieceTokenizer.train(lines, recipe.vocabulary_size)
    runs = {name: Run(args, recipes[name], tokenizer) for name in recipes}
    for name, run in runs.items():
        print(f"\n{name}: {run.model.count_params():,} weights, {args.minutes} minutes")
        run.train(args.minutes)
        run.score(*corpora.load(args, args.evaluate))
    report(args, runs)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    corpora.add_corpus(parser)
    add, own = parser.add_argument, "default: the corpus's own"
    add("--preset", choices=("smoke", "default", "multi30k"), help=own)
    add("--minutes", type=amount, help="of training for each; default: 3, smoke: 0.2")
    add("--output", type=pathlib.Path, help="default: a folder of its own in runs/")
    add("--seed", type=seed, default=0)
    args = parser.parse_args()
    args.preset, args.evaluate = corpora.preset_of(args), corpora.split_of(args)
    if args.minutes is None:
        args.minutes = 0.2 if args.preset == "smoke" else 3.0
    name = f"recurrence-{corpora.name_of(args)}-{args.preset}"
    args.output = args.output or pathlib.Path("runs", name)
    return args


class Run:
    """One model, with its batches, its training and its results."""

    def __init__(self, args, recipe, tokenizer):
        keras.utils.set_random_seed(args.seed)
        batches = ks.text.translation_batches
        options = {"seed": args.seed, **recipe.batch_options()}
        self.training = batches(*corpora.load(args, "train"), tokenizer, **options)
        options = {"shuffle": False, **recipe.batch_options(training=False)}
        self.validation = batches(*corpora.load(args, "val"), tokenizer, **options)
        self.averages = recipe.average_callbacks()
        self.model = recipe.make_model(
            tokenizer.vocabulary_size, metrics=[ks.training.Perplexity()]
        )
        self.translator = ks.Translator(self.model, tokenizer)
        self.results = {"weights": self.model.count_params()}

    def train(self, minutes):
        """Trains until the time is up, even in the middle of an epoch."""
        deadline = Deadline(minutes)
        self.history = self.model.fit(
            self.training,
            validation_data=self.validation,
            epochs=10_000,
            shuffle=False,  # The batches come shuffled.
            callbacks=[
                ks.training.TerminateOnDivergence(raise_error=True),
                *self.averages,  # Validates the averaged weights.
                deadline,
            ],
        ).history
        tokens = [np.count_nonzero(labels) for _, labels in self.training]
        seconds = statistics.median(deadline.step_seconds)
        self.results |= {
            "seconds": round(60 * self.history["minutes"][-1], 1),
            "epochs": round((1 + len(deadline.step_seconds)) / len(tokens), 2),
            # From the median step: a step in which a program is compiled takes longer.
            "target_tokens_per_second": round(statistics.mean(tokens) / seconds),
            "val_perplexity": round(self.history["val_perplexity"][-1], 3),
        }

    def score(self, sources, references):
        """Translates unseen lines, and keeps the attention of the first one."""
        translations = self.translator(sources, verbose=True)
        corpora.show(sources, references, translations, count=4)
        scores = corpora.score(translations, references)
        names = ("bleu", "chrf", "exact_match_percent")
        self.results |= {name: scores[name] for name in names}
        self.attention = self.translator.attention(sources[0])


class Deadline(keras.callbacks.Callback):
    """Stops training when its minutes are over, and measures the time of steps.

    The clock starts after the first step, which builds and compiles most.
    """

    def __init__(self, minutes):
        super().__init__()
        self.minutes, self.begin, self.step_seconds = minutes, None, []

    def on_train_batch_begin(self, batch, logs=None):
        """Starts the clock of this step."""
        self.step_begin = time.monotonic()

    def on_train_batch_end(self, batch, logs=None):
        """Ends the epoch when the time is up."""
        now = time.monotonic()
        if self.begin is None:
            self.begin = now
            return
        self.step_seconds.append(now - self.step_begin)
        if now - self.begin > 60 * self.minutes:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        """Adds the minutes to the logs."""
        logs["minutes"] = (time.monotonic() - self.begin) / 60


def report(args, runs):
    """Prints the results side by side, and writes them and a picture."""
    names = list(next(iter(runs.values())).results)
    print(f"\n{args.evaluate + ':':28}" + "".join(f"{name:>14}" for name in runs))
    for name in names:
        row = "".join(f"{run.results[name]:>14,}" for run in runs.values())
        print(f"{name:28}{row}")
    numbers = {
        "backend": keras.backend.backend(),
        "corpus": args.corpus,
        "split": args.evaluate,
        **{name: run.results for name, run in runs.items()},
    }
    (args.output / "comparison.json").write_text(json.dumps(numbers, indent=2))
    draw(runs).savefig(args.output / "comparison.png", dpi=150)
    print(f"\nIn {args.output}: comparison.json, comparison.png")


def draw(runs):
    """Draws validation perplexity against time, and each model's attention."""
    figure = Figure(figsize=(15, 4.8), layout="constrained")
    curves, *maps = figure.subplots(1, 1 + len(runs))
    for name, run in runs.items():
        minutes, perplexity = run.history["minutes"], run.history["val_perplexity"]
        curves.plot(minutes, perplexity, "o-", color=COLOURS[name], label=name)
    curves.set(xlabel="minutes of training", ylabel="validation perplexity")
    curves.set_yscale("log")
    curves.legend(frameon=False)
    curves.spines[["top", "right"]].set_visible(False)
    for panel, (name, run) in zip(maps, runs.items(), strict=True):
        source, target, weights = run.attention
        source, target = map(readable, (source, target))
        mean = weights.mean(axis=(0, 1))
        image = panel.imshow(mean, vmin=0, vmax=1, cmap="Blues")
        panel.set_xticks(range(len(source)), source, rotation=90)
        panel.set_yticks(range(len(target)), target)
        panel.tick_params(labelsize=8, length=0)
        panel.set_title(f"{name}: attention, mean of layers and heads", fontsize=10)
    bar = figure.colorbar(image, ax=maps, fraction=0.03)
    bar.set_label("attention weight (a row sums to 1)")
    return figure


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
