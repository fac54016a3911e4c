"""Searches the heads and the depth of a translation model, and keeps the best one.

    python examples/tune.py                                     # 10 minutes on 2 cores
    python examples/tune.py --corpus multi30k --minutes 90      # photo captions
    python examples/tune.py --minutes 60 --workers 4            # 4 processes at once
    python examples/tune.py --train train.tsv --val val.tsv     # your own lines
    python examples/tune.py --train train.en train.de --val val.en val.de

You can stop it at any time, or lose power: the same command resumes the search, and
with more `--trials` or `--minutes` it searches longer. With `--minutes`, the model of
`--preset` gets most of them; given few, it trains only that one. It tries others only
if there is time to compare them. It needs
`pip install ".[tensorflow,text,score,corpora,plot,tuning]"`.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import sys

from options import amount, count, installed, print_all_scripts, seed

with installed(__doc__, "matplotlib"):
    import corpora
    from outputs import make, refuse

    import keras_seqattn as ks

# The hyperparameters that vary, with their values. The recipe fixes all others.
HEADS_AND_DEPTH = {
    "encoder_layers": (1, 2, 3, 4),
    "decoder_layers": (1, 2, 3),
    "num_heads": (1, 2, 4, 8),
    "key_dim": (16, 32, 64),
}
OBJECTIVES = ("val_chrf", "val_bleu", "val_loss", "val_perplexity")
COLUMNS = ["trial", "status", "score", "epochs", "seconds", "first_step", "parameters"]


def main():
    print_all_scripts()
    args = arguments()
    make(args.output)
    corpora.check_lines(args)
    recipe = ks.recipes.RECIPES[args.preset]
    train = corpora.load(args, "train")
    # Only for its size: the text may allow fewer tokens than the preset has.
    tokenizer = corpora.make_tokenizer(args, recipe, [*train[0], *train[1]])
    size = tokenizer.vocabulary_size
    try:
        study = ks.tuning.tune_translation(
            train,
            corpora.load(args, "val"),
            objective=args.objective,
            algorithm=args.algorithm,
            epochs=args.epochs,
            max_trials=args.trials,
            max_seconds=args.minutes and 60 * args.minutes,
            max_parameters=args.max_parameters,
            directory=args.output / "study",
            workers=args.workers,
            seed=args.seed,
            space=space_of(recipe, size, args.everything),
            warm_start=args.warm_start,
        )
    except ValueError as error:
        remedies = {
            "`directory`": "Choose another folder with --output.",
            "`bucket_lengths`": "Split the lines into shorter ones.",  # no pair fits
        }
        remedy = remedies.get(str(error).partition(" ")[0])
        if remedy is None:
            raise
        sys.exit(f"{error} {remedy}")
    tell(args, study)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    corpora.add_corpus(parser)
    test = "to score the best model on; default: --val"
    corpora.add_files(parser, val="to score trials on", test=test)
    add = parser.add_argument
    presets = [
        name
        for name, recipe in ks.recipes.RECIPES.items()
        if recipe.architecture == "TranslationTransformer"
    ]
    add("--preset", choices=presets, help="default: the corpus's own")
    add("--vocabulary-size", type=count, help="tokens; default: the preset's, or less")
    trials = (
        "new models; default: 10 (hyperband: an iteration), or what --minutes allow"
    )
    add("--trials", type=count, help=trials)
    add("--minutes", type=amount, help="most minutes, all runs together")
    epochs = (
        "most epochs of a trial; default: 9, or no limit with halving and --minutes"
    )
    add("--epochs", type=count, help=epochs)
    objective = "default: val_chrf; val_loss is without label smoothing"
    add("--objective", choices=OBJECTIVES, default=OBJECTIVES[0], help=objective)
    algorithms = ("halving", "hyperband", "random", "bayesian")
    add("--algorithm", choices=algorithms, default="halving", help="default: halving")
    everything = "search all hyperparameters, not only heads and depth"
    add("--everything", action="store_true", help=everything)
    add("--max-parameters", type=count, help="most weights of a model")
    warm = "start larger models from the weights of smaller ones"
    add("--warm-start", action="store_true", help=warm)
    workers = "processes on this machine; default: 1"
    add("--workers", type=count, default=1, help=workers)
    add("--seed", type=seed, default=0, help="default: 0")
    add("--output", type=pathlib.Path, help="default: a folder of its own in runs/")
    args = parser.parse_args()
    if args.minutes == math.inf:
        args.minutes = None
    corpora.check_files(parser, args)
    args.preset, args.evaluate = corpora.preset_of(args), corpora.split_of(args)
    args.output = args.output or pathlib.Path("runs", f"tune-{corpora.name_of(args)}")
    for name in ("run.json", "translator.keras", "scores.json", "study.png"):
        if (args.output / name).exists() and not (args.output / "study").exists():
            refuse(args.output, f"which holds {name} but no study")
    return args


def space_of(recipe, vocabulary_size, everything=False):
    """Returns the search space around a recipe: heads and depth, or everything."""
    around = ks.tuning.TranslationSpace.around
    if everything:
        return around(recipe, vocabulary_size=vocabulary_size)
    # The recipe's own heads and depth are added to the choices; it fixes all others.
    space = around(recipe, **HEADS_AND_DEPTH)
    own = space.center_values() | {"vocabulary_size": vocabulary_size}
    fixed = {name: own[name] for name in own.keys() - HEADS_AND_DEPTH.keys()}
    return dataclasses.replace(space, **fixed)


def tell(args, study):
    """Prints the table, and saves it, its picture and the best translator."""
    try:
        best = study.best_trial
    except ValueError as error:
        sys.exit(f"Nothing was found yet; more --minutes may help. {error}")
    table = study.table()
    names = study.hyperparameters()
    tried = table[table["score"].notna()].sort_values(
        "score", ascending=study.direction == "min"
    )
    print(f"\n{tried[[*COLUMNS, *names]].head(10).to_string(index=False)}")
    mattered = [f"{name} {share:.0%}" for name, share in study.importance().items()]
    if mattered:
        print(f"\nWhat mattered: {', '.join(mattered)}.")
    print(
        f"\nBest: trial {int(best.trial_id)}, {study.objective} {best.score:.4g}, "
        f"after {study.seconds / 60:.1f} minutes."
    )
    if args.workers == 1:
        print(f"Of this, {study.idle_seconds:.0f} s were spent between trials.")
    for doubt in study.doubts():
        print(f"Warning: {doubt}")

    study.plot(args.output / "study.png")
    translator = study.best_translator()
    translator.save(args.output / "translator.keras")
    evaluate(args, translator)
    names = sorted(path.name for path in args.output.iterdir())
    print(f"\nIn {args.output}: {', '.join(names)}")


def evaluate(args, translator):
    """Scores the best model, if possible on lines that did not help to choose it."""
    sources, references = corpora.load(args, args.evaluate)
    translations = translator(sources)
    corpora.show(sources, references, translations, count=5)
    scores = {"split": args.evaluate, **corpora.score(translations, references)}
    print(f"\nThe best model:\n{json.dumps(scores, indent=2)}")
    (args.output / "scores.json").write_text(json.dumps(scores, indent=2), "utf-8")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command goes on after the last finished epoch.")
