"""Shared by the examples that train: options that choose a corpus, and scores.

The corpus is a built-in one, Multi30k or, in examples with `--train` and `--val`, your
own files.
"""

import pathlib
import re
import sys

import sacrebleu

import keras_seqattn as ks


def add_corpus(parser):
    """Adds the options that choose a corpus by its name, and the part to score."""
    add = parser.add_argument
    names = "phrases needs no network, multi30k is downloaded; default: phrases"
    add("--corpus", choices=("phrases", "multi30k"), default="phrases", help=names)
    add("--data-dir", help="folder of multi30k's files; default: download them")
    add("--source", default="en", help="language translated from; default: en")
    add("--target", default="de", help="language translated to; default: de")
    evaluate = "part to score at the end; default: test if there is one; multi30k: val"
    add("--evaluate", choices=("val", "test"), help=evaluate)


def add_files(parser, val, test):
    """Adds the options for the user's own files; `val` and `test` say what they do."""
    add = parser.add_argument
    files = "in place of a corpus: a TSV file (--header where its first line names the "
    files += "columns), or two files; UTF-8; .gz is read too"
    add("--train", nargs="+", metavar="FILE", help=files)
    add("--val", nargs="+", metavar="FILE", help=f"the same, {val}")
    add("--test", nargs="+", metavar="FILE", help=f"the same, {test}")
    add_columns(parser)


def add_columns(parser):
    """Adds the options that say what a TSV file holds."""
    columns = "the source's and the target's in a TSV, from 0; default: 0 1, if there "
    columns += "are no more; 1 0 translates the other way"
    parser.add_argument("--columns", nargs=2, type=int, metavar="N", help=columns)
    header = "a TSV's first line names the columns"
    parser.add_argument("--header", action="store_true", help=header)


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
    corpus = args.corpus, args.data_dir
    if args.train and corpus != tuple(map(parser.get_default, ("corpus", "data_dir"))):
        parser.error(
            "`--corpus` and `--data-dir` must be left out with `--train`. Received: "
            f"--corpus={args.corpus}, --data-dir={args.data_dir}."
        )
    languages = args.source, args.target
    if args.train and languages != tuple(map(parser.get_default, ("source", "target"))):
        parser.error(
            "`--source` and `--target` must be left out with `--train`. Received: "
            f"--source={args.source}, --target={args.target}. To translate the other "
            "way, choose --columns 1 0, or give the two files in the other order."
        )
    for split in ("val", "test"):
        for path in set(given[split] or ()).intersection(args.train or ()):
            parser.error(
                f"`--{split}` must be of other lines than `--train`. Received: "
                f"--{split}={path}. Move some lines of --train into another file."
            )


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


def check_lines(args):
    """Reads what is scored at the end, and all of the user's files, before the work.

    Prints what is left out of these. Exits if a file cannot be read, or if most of its
    lines are no pairs.
    """
    if not has_own_files(args):
        load(args, args.evaluate)
        return
    train = set()
    for split in ("train", "val", "test"):
        paths = getattr(args, split)
        if not paths:
            continue
        pairs = load(args, split)
        names = " and ".join(paths)
        if "\0" in pairs[0][0]:  # In UTF-16 half of the bytes of English are 0.
            found = f"{names}, which looks like UTF-16. Save it as UTF-8."
            sys.exit(f"A corpus must be UTF-8. Received: {found}")
        print(f"{names}: {pairs.report}")
        if pairs.found["malformed"]:
            tell_malformed(args, split, pairs)
        if len(paths) == 1 and not args.header:
            first = " -> ".join(shortened(side[0]) for side in pairs)
            print(
                f"  The first pair is {first}; if it names the columns, add --header."
            )
        if split == "train":
            train.update(zip(*pairs, strict=True))
            continue
        warn_of_shared(split, train, pairs)


def warn_of_shared(split, train, pairs):
    """Warns of pairs that are scored, and in the set of those to train on too."""
    shared = sum(pair in train for pair in zip(*pairs, strict=True))
    if shared:
        print(
            f"Warning: {shared:,} of the {len(pairs[0]):,} pairs of --{split} are "
            "in --train too. The model has seen them, so its scores are too good."
        )


def shortened(text):
    """Returns a text in quotation marks, of a long one the first 57 characters."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")


def tell_malformed(args, split, pairs):
    """Prints what is wrong with the first malformed line; exits if most lines are."""
    reason = first_error(args, split)
    if 2 * len(pairs.found["malformed"]) > pairs.num_lines:
        sys.exit(f"More than half of the lines are malformed. The first: {reason}")
    print(f"  The first malformed line: {reason}")


def first_error(args, split):
    """Returns what is wrong with the first line that is no pair, and what to do."""
    try:
        read(args, split, clean=False)
    except ValueError as error:
        return f"{error}{advice(error, args.columns)}"


def advice(error, columns):
    """Returns what to do about an error of `ks.text.read_tsv`, in words of options."""
    found = re.search(r", line \d+, with (\d+): \[", str(error))
    if found and found[1] == "1":
        return " The line has no tab: columns must be separated by tabs."
    if found and not columns:
        return " Choose two columns, counted from 0, such as --columns 0 1."
    return ""


def load(args, split):
    """Returns sources and targets of a part of the corpus; exits if it is not there."""
    if has_own_files(args):
        return load_own(args, split)
    if (args.corpus, split) == ("multi30k", "test"):
        split = "test_2016_flickr"
    languages = args.source, args.target
    try:
        return ks.text.load_parallel(
            args.corpus, *languages, split=split, data_dir=args.data_dir
        )
    except (ImportError, OSError, ValueError) as error:  # no Babel, no files
        sys.exit(str(error))


def load_own(args, split):
    """Reads a part of the user's files; training lines that are no pairs are left out.

    Exits if no pair is left or, in the other parts, at a line that is no pair.
    """
    try:
        return read(args, split, clean=split == "train")
    except ValueError:
        sys.exit(first_error(args, split))


def read(args, split, clean):
    """Reads a TSV file, or two files."""
    paths = getattr(args, split)
    options = {"skip_empty": True, "skip_duplicates": clean, "skip_malformed": clean}
    if len(paths) == 2:
        return ks.text.read_parallel(*paths, **options)
    return ks.text.read_tsv(*paths, columns=args.columns, header=args.header, **options)


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
