"""What does each choice of a recipe bring on Multi30k en-de?

    python -m benchmarks.ablations --data-dir DIRECTORY --folder FOLDER
    python -m benchmarks.ablations --data-dir DIRECTORY --folder FOLDER --rows heads-1
    python -m benchmarks.ablations --folder FOLDER --pairs 300 --epochs 1  # a try

The recipe is `multi30k` with sinusoidal positions. A row trains it for 25 epochs with
one choice changed, which takes an hour or more of a core. Three rows change more:
`r-drop`, `cutoff` and `views` have two copies of each pair, so twice as many steps, and
`r-drop` also has a dropout of 0.3. A row is judged by BLEU on the validation lines
after the last epoch: of greedy search, and of 5 beams. The last column is the p-value
of sacrebleu's paired bootstrap against the row named in the column before. It counts
the chance in which lines are translated, not that in the seed of the training, which is
the same in all rows.

Each row has its own folder in `--folder`: the same command resumes where it was
stopped, and skips rows that are done. `--together N` trains N rows at a time, in
separate processes, to keep a GPU busy. There few `--lengths` are best, since a program
is compiled for each:

    python -m benchmarks.ablations --folder FOLDER --together 8 --lengths 16 24 32 64

The table has all rows that are done. `--picture FILE` draws the learning curves.
"""

import argparse
import concurrent.futures
import csv
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from benchmarks import pictures, rounds
from benchmarks.tuning import add_corpus_options

MODULE = "benchmarks.ablations"
EPOCHS, BEAMS, LENGTH_PENALTY = 25, 5, 1.2
AVERAGED = "averaging"  # the unchanged recipe; most rows are compared with it
TWO_COPIES = {"repeat_batch": 2, "consistency": 3.0}
# For each row: its changes to the recipe, its changes to the model's arguments, and the
# row that it is compared with.
ROWS = {
    "last-weights": ({"ema_momentum": None, "ema_warmup": False}, {}, None),
    AVERAGED: ({}, {}, "last-weights"),
    "mean-of-epochs": (
        {"ema_momentum": None, "ema_warmup": False, "average_epochs": 5},
        {},
        "last-weights",
    ),
    "muon": ({"optimizer": "muon"}, {}, AVERAGED),
    "r-drop": ({**TWO_COPIES, "consistency": 5.0}, {"dropout": 0.3}, AVERAGED),
    "cutoff": ({**TWO_COPIES, "cutoff": 0.05}, {"zero_id": 3}, AVERAGED),
    "views": (
        {**TWO_COPIES, "views": ("plain", "sampled"), "sampling": 0.1},
        {},
        AVERAGED,
    ),
    "bidirectional": ({"bidirectional_epochs": EPOCHS // 3}, {}, AVERAGED),
    "dropout-0.1": ({}, {"dropout": 0.1}, AVERAGED),
    "dropout-0.3": ({}, {"dropout": 0.3}, AVERAGED),
    "no-smoothing": ({"label_smoothing": 0.0}, {}, AVERAGED),
    "vocabulary-10000": ({}, {"source_vocabulary_size": 10_000}, AVERAGED),
    "layers-6-2": ({}, {"encoder_layers": 6, "decoder_layers": 2}, AVERAGED),
    "layers-2-6": ({}, {"encoder_layers": 2, "decoder_layers": 6}, AVERAGED),
    "learned": ({}, {"positions": "learned", "max_length": 64}, AVERAGED),
    "rotary": ({}, {"positions": "rotary"}, AVERAGED),
    "relative": ({}, {"positions": "relative"}, AVERAGED),
    "heads-1": ({}, {"num_heads": 1}, AVERAGED),
    "heads-2": ({}, {"num_heads": 2}, AVERAGED),
    "heads-8": ({}, {"num_heads": 8}, AVERAGED),
}


def main():
    arguments = parse()
    if arguments.worker:
        return train_rows(arguments)
    claim(arguments)
    validation = load(arguments, "val")
    if arguments.together > 1:
        load(arguments, "train")  # Otherwise all workers would download it.
        train_together(arguments)
    else:
        train_rows(arguments)
    for name in arguments.rows:
        rounds.show({"row": name, **read(arguments.folder / name)}, arguments)
    done = {name: read(arguments.folder / name) for name in ROWS}
    done = {name: scores for name, scores in done.items() if scores}
    measures = [{"row": name, **scores} for name, scores in done.items()]
    sections = [report(arguments.folder, done, validation[1])]
    rounds.publish(MODULE, measures, sections, arguments)
    if arguments.picture:
        draw(arguments.folder, done).savefig(arguments.picture, dpi=150)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add_corpus_options(parser)
    add("--folder", type=pathlib.Path, required=True, help="for all rows; it is kept")
    add(
        "--rows", nargs="+", choices=ROWS, default=[*ROWS], help="to train; default all"
    )
    add("--epochs", type=rounds.count, default=EPOCHS)
    add(
        "--lengths",
        type=rounds.count,
        nargs="+",
        help="bucket lengths; default: its ten",
    )
    add("--together", type=rounds.count, default=1, help="rows trained at a time")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    add("--picture", type=rounds.new_file, help="file for the learning curves, as PNG")
    rounds.add_output_options(parser)
    return parser.parse_args()


def claim(arguments):
    """Claims the folder for rows with these options; exits if it has other rows."""
    names = ("corpus", "source", "target", "pairs", "epochs", "lengths")
    options = {name: getattr(arguments, name) for name in names}
    path = arguments.folder / "options.json"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if path.exists() and json.loads(path.read_text()) != options:
        sys.exit(f"`--folder` must be new, or of rows with these options: see {path}.")
    rounds.replace(path, json.dumps(options))


def train_rows(arguments):
    """Trains the rows that are not done, one after the other."""
    train, validation = load(arguments, "train"), load(arguments, "val")
    for name in arguments.rows:
        folder = arguments.folder / name
        if not read(folder):
            rounds.note(f"{name}: {folder}")
            recipe = recipe_of(name, arguments.epochs, arguments.lengths)
            run(recipe, train, validation, folder)


def train_together(arguments):
    """Trains the rows in processes, some at a time; raises an error after them all."""
    begin = [sys.executable, "-m", MODULE, *sys.argv[1:], "--worker", "--rows"]
    # Each process gets the same options, in the same folder, to which `--folder` may be
    # relative; of two `--rows` argparse takes the last.
    # No process may take all of a GPU's memory.
    variables = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def train(name):
        subprocess.run([*begin, name], env=variables, check=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.together) as pool:
        list(pool.map(train, arguments.rows))


def recipe_of(name, epochs, lengths=None):
    """Returns the recipe of a row; `lengths` replace its bucket lengths."""
    from keras_seqattn.recipes import RECIPES

    recipe = RECIPES["multi30k"]
    changes, model, _ = ROWS[name]
    model = {**recipe.model.options(), "positions": "sinusoidal", **model}
    changes = {"epochs": epochs, **changes}
    if both_ways := changes.get("bidirectional_epochs"):  # of `EPOCHS`
        changes["bidirectional_epochs"] = both_ways * epochs // EPOCHS
    if lengths:
        changes["bucket_lengths"] = tuple(lengths)
    return dataclasses.replace(recipe, model=model, **changes)


def load(arguments, split):
    """Loads the lines of both languages."""
    from keras_seqattn.text import load_parallel

    lines = load_parallel(
        arguments.corpus,
        arguments.source,
        arguments.target,
        split=split,
        data_dir=arguments.data_dir,
    )
    return tuple(side[: arguments.pairs] for side in lines)


def prepare(recipe, train):
    """Returns the tokenizer, the batches and the model of a row."""
    import keras

    from keras_seqattn import training
    from keras_seqattn.text import SentencePieceTokenizer, translation_batches

    training.keep_freed_memory()
    keras.utils.set_random_seed(0)
    tokenizer = SentencePieceTokenizer.train(
        [*train[0], *train[1]], recipe.vocabulary_size
    )
    batches = translation_batches(*train, tokenizer, seed=0, **recipe.batch_options())
    model = recipe.make_model(
        tokenizer.vocabulary_size, pieces=tokenizer.pieces if recipe.views else None
    )
    return tokenizer, batches, model


def run(recipe, train, validation, folder):
    """Trains a row, resuming it if it was stopped, and writes its scores."""
    import keras

    from keras_seqattn import Translator, training
    from keras_seqattn.text import translation_batches

    keras.backend.clear_session()
    tokenizer, batches, model = prepare(recipe, train)
    options = recipe.batch_options(training=False)
    scored = translation_batches(*validation, tokenizer, shuffle=False, **options)
    folder.mkdir(parents=True, exist_ok=True)
    history = folder / "history.csv"

    class Seconds(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.begin = time.monotonic()

        def on_epoch_end(self, epoch, logs=None):
            logs["seconds"] = time.monotonic() - self.begin

    model.fit(
        batches,
        validation_data=scored,
        epochs=recipe.epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            *recipe.average_callbacks(),
            Seconds(),
            keras.callbacks.CSVLogger(history, append=True),
            training.Resume(folder / "backup", batches),
        ],
    )
    write_scores(Translator(model, tokenizer), *validation, folder)
    shutil.rmtree(folder / "backup")


def write_scores(translator, sources, references, folder):
    """Translates the validation lines, and writes the translations and the scores."""
    import sacrebleu

    from keras_seqattn import decoding

    search = decoding.BeamSearch(BEAMS, length_penalty=LENGTH_PENALTY)
    greedy, beams = translator(sources), translator(sources, search)
    (folder / "translations.txt").write_text("\n".join(beams), encoding="utf-8")
    epochs = read_history(folder)
    scores = {
        "bleu": round(sacrebleu.corpus_bleu(beams, [references]).score, 2),
        "greedy": round(sacrebleu.corpus_bleu(greedy, [references]).score, 2),
        "chrf": round(sacrebleu.corpus_chrf(beams, [references]).score, 2),
        "val_perplexity": round(float(epochs[-1]["val_perplexity"]), 3),
        "parameters": translator.model.count_params(),
        "epochs": len(epochs),
        "minutes": round(sum(float(epoch["seconds"]) for epoch in epochs) / 60, 1),
    }
    rounds.replace(folder / "scores.json", json.dumps(scores))


def read(folder):
    """Returns the scores of a row; an empty dict if it is not done."""
    path = folder / "scores.json"
    return json.loads(path.read_text()) if path.exists() else {}


def read_history(folder):
    """Returns the logs of a row's epochs, dicts of strings.

    In folders of early versions, an epoch that was trained again may have two lines.
    """
    with (folder / "history.csv").open() as file:
        latest = {row["epoch"]: row for row in csv.DictReader(file)}
    return list(latest.values())


def report(folder, done, references):
    """Formats the table: a row for each that is done."""
    rows = []
    for name, scores in done.items():
        other = ROWS[name][2]
        compared = (
            [other, p_value(folder, name, other, references)] if other in done else []
        )
        rows.append(
            [
                name,
                f"{scores['bleu']:.2f}",
                f"{scores['greedy']:.2f}",
                f"{scores['val_perplexity']:.2f}",
                scores["epochs"],
                f"{scores['minutes']:.0f}",
                f"{scores['parameters'] / 1e6:.2f}",
                *(compared or ["", ""]),
            ]
        )
    header = ["Row", "val BLEU, 5 beams", "greedy", "perplexity", "epochs", "minutes"]
    return rounds.table([*header, "million weights", "against", "p"], rows)


def p_value(folder, name, other, references):
    """Returns the p-value of the difference in BLEU between two rows, as text."""
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    systems = [
        (row, (folder / row / "translations.txt").read_text("utf-8").split("\n"))
        for row in (other, name)
    ]
    test = PairedTest(systems, {"BLEU": BLEU()}, [list(references)], "bs", 1000)
    _, scores = test()
    return f"{scores['BLEU'][1].p_value:.3f}"


def draw(folder, done):
    """Draws the validation perplexity, a line for each row."""
    figure, panel = pictures.begin()
    for name, scores in done.items():
        values = [
            float(epoch["val_perplexity"]) for epoch in read_history(folder / name)
        ]
        label = f"{name}: BLEU {scores['bleu']:.1f}"
        panel.plot(range(1, 1 + len(values)), values, linewidth=1, label=label)
    panel.set_yscale("log")
    panel.set_xlabel("epochs")
    panel.set_ylabel("perplexity of the validation")
    panel.legend(frameon=False, fontsize=7, ncols=2)
    return figure


if __name__ == "__main__":
    main()
