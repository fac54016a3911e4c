"""Finds the heads and the depth of a translation model, and keeps the best one.

    python examples/tune.py                                     # 10 minutes on 2 cores
    python examples/tune.py --corpus multi30k --minutes 90      # photo captions
    python examples/tune.py --minutes 60 --workers 4            # 4 processes at once
    python examples/tune.py --train train.tsv --val val.tsv     # your own lines
    python examples/tune.py --train train.en train.de --val val.en val.de

Stop it whenever you like, or let the power fail: the same command goes on, and with
more `--minutes` it searches on. It needs
`pip install ".[tensorflow,text,score,corpora,plot,tuning]"`.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import sacrebleu

import keras_seqattn as ks

# What varies: all that is given as a tuple or a range. The rest is the recipe's.
HEADS_AND_DEPTH = {
    "encoder_layers": (1, 2, 3, 4),
    "decoder_layers": (1, 2, 3),
    "num_heads": (1, 2, 4, 8),
    "key_dim": (16, 32, 64),
}
COLUMNS = ["trial", "status", "score", "epochs", "seconds", "first_step", "parameters"]


def main():
    args = arguments()
    recipe = ks.recipes.RECIPES[args.preset]
    train = load(args, "train")
    size = vocabulary_of(train, args.vocabulary_size, recipe)
    study = ks.tuning.tune_translation(
        train,
        load(args, "val"),
        objective=args.objective,
        algorithm=args.algorithm,
        epochs=args.epochs,
        max_seconds=60 * args.minutes,
        max_parameters=args.max_parameters,
        directory=args.output / "study",
        workers=args.workers,
        seed=args.seed,
        space=space_of(recipe, size, args.everything),
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
    files = "in place of a corpus: a TSV file (--header where its first line names the "
    files += "columns), or two files; .gz is read too"
    add("--train", nargs="+", metavar="FILE", help=files)
    add("--val", nargs="+", metavar="FILE", help="the same, that trials are scored on")
    add("--test", nargs="+", metavar="FILE", help="the same, for the best model; val")
    add("--columns", nargs=2, type=int, metavar="N", help="of a TSV; the first is 0")
    add("--header", action="store_true", help="a TSV's first line names the columns")
    add("--preset", choices=ks.recipes.RECIPES, help="default: the corpus's own")
    add("--vocabulary-size", type=int, help="tokens; default: the preset's, or less")
    add("--minutes", type=float, default=10.0, help="most minutes, all runs together")
    add("--epochs", type=int, help="most epochs of a trial; default: no limit")
    objective = "val_loss, unsmoothed: val_token_crossentropy; or val_bleu, ..."
    add("--objective", default="val_loss", help=objective)
    algorithms = ("halving", "hyperband", "random", "bayesian")
    add("--algorithm", choices=algorithms, default="halving")
    add("--everything", action="store_true", help="not heads and depth alone")
    add("--max-parameters", type=int, help="most weights of a model")
    add("--warm-start", action="store_true", help="from smaller trials' weights")
    add("--workers", type=int, default=1, help="processes on this machine; default: 1")
    add("--seed", type=int, default=0)
    add("--output", type=pathlib.Path, help="default: a folder of its own in runs/")
    args = parser.parse_args()
    check_files(parser, args)
    corpus = "own" if args.train else args.corpus
    args.preset = args.preset or {"phrases": "default"}.get(corpus, corpus)
    name = f"tune-{args.corpus}-{args.source}-{args.target}"
    if args.train:
        name = f"tune-{pathlib.Path(args.train[0]).name.split('.')[0]}"
    args.output = args.output or pathlib.Path("runs", name)
    return args


def check_files(parser, args):
    """Ends the program if the user's files do not make a corpus."""
    given = {split: getattr(args, split) for split in ("train", "val", "test")}
    for split, paths in given.items():
        if not 1 <= len(paths or [""]) <= 2:
            parser.error(f"`{split}` must be one file or two. Received: {paths}")
        for path in paths or ():
            if not pathlib.Path(path).is_file():
                parser.error(f"`{split}` must be a file. Received: {path}")
    if any(given.values()) and not (args.train and args.val):
        parser.error(f"`train` and `val` must come together. Received: {given}")


def read(paths, args, clean):
    """Reads a TSV file, or two files, and prints what is left out."""
    options = {"skip_empty": True, "skip_duplicates": clean, "skip_malformed": clean}
    if len(paths) == 1:
        columns = {"columns": args.columns, "header": args.header}
        pairs = ks.text.read_tsv(*paths, **columns, **options)
    else:
        pairs = ks.text.read_parallel(*paths, **options)
    print(f"{' and '.join(paths)}: {pairs.report}")
    if len(paths) == 1 and not args.header:
        first = " -> ".join(repr(side[0])[:60] for side in pairs)
        print(f"  The first pair is {first}; if it names the columns, add --header.")
    return pairs


def load(args, split):
    if args.train:
        return read(getattr(args, split) or args.val, args, clean=split == "train")
    if (args.corpus, split) == ("multi30k", "test"):
        split = "test_2016_flickr"
    return ks.text.load_parallel(
        args.corpus, args.source, args.target, split=split, data_dir=args.data_dir
    )


def vocabulary_of(pairs, chosen, recipe):
    """Returns the vocabulary's size: what was chosen, else what the text allows."""
    size = chosen or recipe.vocabulary_size
    lines = [line for side in pairs for line in side]
    train = ks.text.SentencePieceTokenizer.train
    try:
        allowed = train(lines, size, strict=chosen is not None).vocabulary_size
    except ValueError as error:
        sys.exit(f"{error} Choose another with --vocabulary-size.")
    if allowed < size:
        print(
            f"A vocabulary of {allowed}, the most that this text allows, in place of "
            f"the preset's {size}."
        )
    return allowed


def space_of(recipe, vocabulary_size, everything=False):
    """Returns the space around a recipe: heads and depth, or all that may vary."""
    space = ks.tuning.TranslationSpace.around(recipe, vocabulary_size=vocabulary_size)
    if everything:
        return space
    # The recipe's own values, but of heads and depth.
    fixed = space.center_values() | {"vocabulary_size": vocabulary_size}
    return dataclasses.replace(space, **(fixed | HEADS_AND_DEPTH))


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
    if mattered:
        print(f"\nWhat mattered: {', '.join(mattered)}.")
    print(
        f"\nBest: trial {int(best.trial_id)}, {study.objective} {best.score:.4g}, "
        f"after {study.seconds / 60:.1f} minutes."
    )
    if args.workers == 1:
        print(f"In {study.idle_seconds:.0f} seconds no trial trained or was scored.")
    for doubt in study.doubts():
        print(f"Warning: {doubt}")

    study.plot(args.output / "study.png")
    translator = study.best_translator()
    translator.save(args.output / "translator.keras")
    evaluate(args, translator)
    names = sorted(path.name for path in args.output.iterdir())
    print(f"\nIn {args.output}: {', '.join(names)}")


def evaluate(args, translator):
    """Scores the best model on lines that no trial was chosen by, where there are."""
    split = "val" if args.train and not args.test else "test"
    sources, references = load(args, split)
    translations = translator(sources)
    for i in range(0, len(sources), -(-len(sources) // 5)):
        print(f"\n  {sources[i]}\n= {references[i]}\n> {translations[i]}")
    matches = sum(map(str.__eq__, translations, references))
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    scores = {
        "split": split,
        "bleu": round(bleu.corpus_score(translations, [references]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf": round(chrf.corpus_score(translations, [references]).score, 2),
        "chrf_signature": str(chrf.get_signature()),
        "exact_match_percent": round(100 * matches / len(sources), 2),
    }
    print(f"\nThe best model:\n{json.dumps(scores, indent=2)}")
    (args.output / "scores.json").write_text(json.dumps(scores, indent=2), "utf-8")


if __name__ == "__main__":
    main()
