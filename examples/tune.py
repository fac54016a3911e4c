"""Finds the heads and the depth of a translation model, and keeps the best one.

    python examples/tune.py                                     # 10 minutes on 2 cores
    python examples/tune.py --corpus multi30k --minutes 90      # photo captions
    python examples/tune.py --minutes 60 --workers 4            # 4 processes at once

Stop it whenever you like, or let the power fail: the same command goes on, and with
more `--minutes` it searches on. It needs
`pip install "keras_seqattn[text,score,corpora,plot,tuning]"`.
"""

import argparse
import pathlib

import keras_seqattn as ks

# What varies: all that is given as a tuple or a range. The rest is the recipe's.
HEADS_AND_DEPTH = {
    "encoder_layers": (1, 2, 3, 4),
    "decoder_layers": (1, 2, 3),
    "num_heads": (1, 2, 4, 8),
    "key_dim": (16, 32, 64),
}
COLUMNS = ["trial", "status", "score", "epochs", "seconds", "parameters"]


def main():
    args = arguments()
    recipe = ks.recipes.RECIPES[args.preset]
    study = ks.tuning.tune_translation(
        load(args, "train"),
        load(args, "val"),
        objective=args.objective,
        algorithm=args.algorithm,
        epochs=args.epochs,
        max_seconds=60 * args.minutes,
        max_parameters=args.max_parameters,
        directory=args.output / "study",
        workers=args.workers,
        seed=args.seed,
        space=space_of(recipe, args.everything),
        batch_tokens=recipe.batch_tokens,
        bucket_lengths=recipe.bucket_lengths,
        warm_start=args.warm_start,
    )
    tell(args, study)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--corpus", choices=("phrases", "multi30k"), default="phrases")
    add("--data-dir", help="folder of multi30k's files; default: download them")
    add("--source", default="en", help="language translated from; default: en")
    add("--target", default="de", help="language translated to; default: de")
    add("--preset", choices=ks.recipes.RECIPES, help="default: the corpus's own")
    add("--minutes", type=float, default=10.0, help="most minutes, all runs together")
    add("--epochs", type=int, default=9, help="most epochs of a trial; default: 9")
    add("--objective", default="val_loss", help="or val_bleu, val_chrf, ...")
    algorithms = ("hyperband", "random", "bayesian")
    add("--algorithm", choices=algorithms, default="hyperband")
    add("--everything", action="store_true", help="not heads and depth alone")
    add("--max-parameters", type=int, help="most weights of a model")
    add("--warm-start", action="store_true", help="from smaller trials' weights")
    add("--workers", type=int, default=1, help="processes on this machine; default: 1")
    add("--seed", type=int, default=0)
    add("--output", type=pathlib.Path, help="default: a folder of its own in runs/")
    args = parser.parse_args()
    phrases = args.corpus == "phrases"
    args.preset = args.preset or ("default" if phrases else "multi30k")
    name = f"tune-{args.corpus}-{args.source}-{args.target}"
    args.output = args.output or pathlib.Path("runs", name)
    return args


def load(args, split):
    return ks.text.load_parallel(
        args.corpus, args.source, args.target, split=split, data_dir=args.data_dir
    )


def space_of(recipe, everything=False):
    """Gives the space around a recipe: heads and depth, or all that may vary."""
    given = {
        "ema_momentum": recipe.ema_momentum,
        "vocabulary_size": recipe.vocabulary_size,
    }
    if everything:
        return ks.tuning.TranslationSpace(**given)
    model_dim = recipe.model["model_dim"]
    return ks.tuning.TranslationSpace(
        **HEADS_AND_DEPTH,
        **given,
        model_dim=model_dim,
        feed_forward_ratio=recipe.model["intermediate_dim"] // model_dim,
        dropout=recipe.model["dropout"],
        label_smoothing=recipe.label_smoothing,
        normalize_first=True,
        positions="sinusoidal",
        learning_rate=recipe.peak_learning_rate,
        warmup_steps=recipe.warmup_steps,
    )


def tell(args, study):
    """Prints the table, and saves it, its picture and the best translator."""
    best = study.best_trial  # an error where no epoch has ended in the time
    table = study.table()
    names = study.hyperparameters()
    tried = table[table["score"].notna()].sort_values(
        "score", ascending=study.direction == "min"
    )
    print(f"\n{tried[[*COLUMNS, *names]].head(10).to_string(index=False)}")
    mattered = [f"{name} {share:.0%}" for name, share in study.importance().items()]
    print(f"\nWhat mattered: {', '.join(mattered) or 'too few trials to say'}.")
    print(f"Best: trial {int(best.trial_id)}, after {study.seconds / 60:.1f} minutes.")

    study.plot(args.output / "study.png")
    translator = study.best_translator()
    translator.save(args.output / "translator.keras")
    sources, references = load(args, "val")
    for source, reference, translation in zip(
        sources[:3], references[:3], translator(sources[:3]), strict=True
    ):
        print(f"\n  {source}\n= {reference}\n> {translation}")
    names = sorted(path.name for path in args.output.iterdir())
    print(f"\nIn {args.output}: {', '.join(names)}")


if __name__ == "__main__":
    main()
