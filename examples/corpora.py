"""Shared by the examples that train: options that choose a corpus, and scores.

The corpus is a built-in one, Multi30k or, in examples with `--train` and `--val`, your
own files.
"""

import pathlib
import sys

import sacrebleu

import keras_seqattn as ks


def add_corpus(parser):
    """Adds the options that choose a corpus by its name, and the part to score."""
    add = parser.add_argument
    add("--corpus", choices=("phrases", "multi30k"), default="phrases")
    add("--data-dir", help="folder of multi30k's files; default: download them")
    add("--source", default="en", help="language translated from; default: en")
    add("--target", default="de", help="language translated to; default: de")
    evaluate = "part to score at the end; default: test if there is one; multi30k: val"
    add("--evaluate", choices=("val", "test"), help=evaluate)


def add_files(parser, val, test):
    """Adds the options for the user's own files; `val` and `test` say what they do."""
    add = parser.add_argument
    files = "in place of a corpus: a TSV file (--header where its first line names the "
    files += "columns), or two files; .gz is read too"
    add("--train", nargs="+", metavar="FILE", help=files)
    add("--val", nargs="+", metavar="FILE", help=f"the same, {val}")
    add("--test", nargs="+", metavar="FILE", help=f"the same, {test}")
    columns = "the source's and the target's in a TSV, from 0; default: it has only two"
    add("--columns", nargs=2, type=int, metavar="N", help=columns)
    add("--header", action="store_true", help="a TSV's first line names the columns")


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
    has_tsv = any(len(paths or ()) == 1 for paths in given.values())
    if (args.columns or args.header) and not has_tsv:
        parser.error(f"`columns` and `header` must come with a TSV. Received: {given}")
    if args.train and args.evaluate == "test" and not args.test:
        parser.error("`test` must be given to be evaluated. Received: --test missing")


def has_own_files(args):
    """Returns whether the user's files are the corpus; not every example takes some."""
    return bool(getattr(args, "train", None))


def preset_of(args):
    """Returns the preset's name: the chosen one, else the corpus's own."""
    corpus = "own" if has_own_files(args) else args.corpus
    # Presets have the names of their corpora, except for one.
    return args.preset or {"phrases": "default"}.get(corpus, corpus)


def name_of(args):
    """Returns the corpus's name, that of its languages or of the user's file."""
    if has_own_files(args):
        return pathlib.Path(args.train[0]).name.split(".")[0]
    return f"{args.corpus}-{args.source}-{args.target}"


def split_of(args):
    """Returns the part to score: the chosen one, else "test" if it may be used."""
    # Multi30k's test part is only for a final model: look at it once.
    has_test = args.test if has_own_files(args) else args.corpus == "phrases"
    return args.evaluate or ("test" if has_test else "val")


def load(args, split):
    """Returns the sources and the targets of a part of the corpus."""
    if has_own_files(args):
        return read(getattr(args, split), args, clean=split == "train")
    if (args.corpus, split) == ("multi30k", "test"):
        split = "test_2016_flickr"
    languages = args.source, args.target
    try:
        return ks.text.load_parallel(
            args.corpus, *languages, split=split, data_dir=args.data_dir
        )
    except ValueError as error:
        sys.exit(str(error))


def read(paths, args, clean):
    """Reads a TSV file, or two files, and prints what is left out."""
    columns = {"columns": args.columns, "header": args.header}
    options = {"skip_empty": True, "skip_duplicates": clean, "skip_malformed": clean}
    try:
        if len(paths) == 1:
            pairs = ks.text.read_tsv(*paths, **columns, **options)
        else:
            pairs = ks.text.read_parallel(*paths, **options)
    except ValueError as error:
        is_plain_tsv = len(paths) == 1 and not args.columns
        hint = "\nFor a TSV with more than two columns, choose --columns."
        sys.exit(f"{error}{hint if is_plain_tsv else ''}")
    print(f"{' and '.join(paths)}: {pairs.report}")
    if len(paths) == 1 and not args.header:
        first = " -> ".join(repr(side[0])[:60] for side in pairs)
        print(f"  The first pair is {first}; if it names the columns, add --header.")
    return pairs


def make_tokenizer(args, recipe, lines):
    """Trains the subwords; the same lines give the same ones, also when resumed.

    The text may allow fewer than the preset's, but not than `--vocabulary-size`.
    """
    chosen = args.vocabulary_size
    size = recipe.vocabulary_size if chosen is None else chosen
    try:
        tokenizer = ks.text.SentencePieceTokenizer.train(
            lines, size, strict=chosen is not None
        )
    except ValueError as error:
        sys.exit(f"{error} Choose another with --vocabulary-size.")
    if tokenizer.vocabulary_size < size:
        print(
            f"A vocabulary of {tokenizer.vocabulary_size}, the most that this text "
            f"allows, in place of the preset's {size}."
        )
    return tokenizer


def show(sources, references, translations, count):
    """Prints some lines, each with its reference and its translation."""
    for i in range(0, len(sources), -(-len(sources) // count)):
        print(f"\n  {sources[i]}\n= {references[i]}\n> {translations[i]}")


def score(translations, references):
    """Returns BLEU and chrF with their signatures, and the share of exact matches."""
    bleu, chrf = sacrebleu.BLEU(), sacrebleu.CHRF()
    matches = sum(map(str.__eq__, translations, references))
    return {
        "bleu": round(bleu.corpus_score(translations, [references]).score, 2),
        "bleu_signature": str(bleu.get_signature()),
        "chrf": round(chrf.corpus_score(translations, [references]).score, 2),
        "chrf_signature": str(chrf.get_signature()),
        "exact_match_percent": round(100 * matches / len(translations), 2),
    }
