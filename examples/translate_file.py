"""Translates a file of any size, line by line, and resumes where it was stopped.

    python examples/translate_file.py INPUT OUTPUT --translator FILE.keras
    python examples/translate_file.py a.en.gz a.de.gz --translator FILE.keras --beam 5
    python examples/translate_file.py INPUT OUTPUT --translator FILE.keras --n-best 4

The output has a line for each line of the input. With `--n-best N` it has up to N lines
for each, `number ||| translation ||| score`, as Moses writes them: input lines are
numbered from 0, and the best translation is first. `--alignments` adds ` ||| 0-0 1-2`:
for each word of the translation, the number of the source word with the most attention
(the mean of all layers and heads), a hyphen, and the word's own number. Words are
separated by spaces and numbered from 0. This takes a pass of the model for each
translation. `--glossary FILE` has a source phrase, a tab and a target phrase in each
line: the translation of a line with the source phrase must contain the target phrase. A
greedy search then gets 4 beams.

Memory does not grow with the file: a block of lines is read, translated and written
before the next. You can stop or kill it at any time: the same command resumes after the
last block written. While it runs, the translations are in OUTPUT.part, whose lock keeps
other processes out. OUTPUT.json records what was translated, and how far. It stays
beside the output, so that no command takes another's output for its own. Files whose
names end in .gz are compressed. It needs `pip install ".[tensorflow,text]"`.
"""

import argparse
import codecs
import contextlib
import gzip
import hashlib
import itertools
import pathlib
import re
import sys
import warnings

from options import count, installed

with installed(__doc__):
    import keras
    import numpy as np
    from beams import with_beams

    import keras_seqattn as ks
    from keras_seqattn.text.journal import Journal
    from keras_seqattn.text.lines import reading_gzip


def main():
    args = arguments()
    total, run = identify(args)
    journal = journal_of(args.output, run)
    if args.output.exists():
        return tell_done(args.output, journal)
    with contextlib.ExitStack() as stack:
        try:
            journal.read_progress()  # Refuses other work before a model is loaded.
            translator = load(args)
            stack.enter_context(journal)
        except ValueError as error:
            sys.exit(str(error))
        translate(args, translator, total, journal)
        journal.path.rename(args.output)
    journal.lock.unlink(missing_ok=True)  # Windows does not delete what is open.
    print(f"{total:,} lines -> {args.output}")


def tell_done(output, journal):
    """Says that the output is whole; exits if this command did not write it."""
    try:
        is_own = journal.read_progress()
    except ValueError as error:
        sys.exit(str(error))
    if not is_own:
        sys.exit(f"`output` must not exist yet. Received: {output}.")
    print(
        f"Already translated: {output}. To translate anew, delete it and "
        f"{journal.progress}."
    )


def journal_of(output, run):
    """Returns the journal: OUTPUT, or OUTPUT.part until it is whole; OUTPUT.json."""
    part, progress = (
        output.with_name(output.name + ending) for ending in (".part", ".json")
    )
    path = output if output.exists() else part
    return Journal(path, run, progress, argument="output")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("input", type=pathlib.Path, help="UTF-8 text, a sentence a line; or .gz")
    add("output", type=pathlib.Path, help="a translation a line; or .gz")
    add(
        "--translator", type=pathlib.Path, required=True, help="file of Translator.save"
    )
    add("--beam", type=count, help="beams; 1: greedy; default: the translator's search")
    n_best = "translations of a line, with their scores; raises --beam to at least N"
    add("--n-best", type=count, metavar="N", help=n_best)
    add("--glossary", type=pathlib.Path, help="TSV of source and target phrases")
    add("--alignments", action="store_true", help="add pairs of words, by attention")
    add("--block", type=count, default=4096, help="lines at a time; default: 4096")
    args = parser.parse_args()
    for name in ("input", "translator", "glossary"):
        path = getattr(args, name)
        if path is not None and not path.is_file():
            parser.error(f"`{name}` must be a file. Received: {path}")
    if not args.output.name:
        parser.error(f"`output` must be a file. Received: {args.output}")
    return args


def identify(args):
    """Returns the input's number of lines, and what identifies the run."""
    input_digest, total = hashlib.sha256(), 0
    try:
        for total, line in enumerate(read(args.input), start=1):
            input_digest.update(line)
            try:
                line.decode()
            except UnicodeDecodeError as error:
                sys.exit(f"`input` must be UTF-8. Received: {error}, in line {total}.")
    except ValueError as error:  # a damaged .gz
        sys.exit(str(error))
    with open(args.translator, "rb") as file:
        translator_digest = hashlib.file_digest(file, "sha256")
    glossary = args.glossary and hashlib.sha256(args.glossary.read_bytes()).hexdigest()
    return total, {
        "input": input_digest.hexdigest(),
        "translator": translator_digest.hexdigest(),
        "beam": args.beam,
        "n-best": args.n_best,
        "alignments": args.alignments or None,
        "glossary": glossary,
    }


def read(path):
    """Reads the lines of a file as bytes."""
    opened = gzip.open(path) if path.suffix == ".gz" else open(path, "rb")
    with reading_gzip(path), opened as file:
        first = next(file, b"").removeprefix(codecs.BOM_UTF8)
        if first:  # A file that holds only a byte-order mark has no line.
            yield first
        yield from file


def load(args):
    """Loads the translator, with the search of --beam; checks what it has to do.

    So nothing is written if it cannot do it.
    """
    translator = ks.Translator.load(args.translator)
    if args.beam:
        translator.search = with_beams(translator.search, args.beam)
    if args.glossary:
        translator.translate([], glossary=args.glossary)
    if args.alignments:
        translator.attention("", "")
    return translator


def translate(args, translator, total, journal):
    """Translates the remaining lines, a block at a time."""
    if journal.lines:
        print(f"Going on after line {journal.lines:,} of {total:,}.")
    bar = keras.utils.Progbar(total - journal.lines, unit_name="line")
    left = itertools.islice(read(args.input), journal.lines, None)
    is_gz = args.output.suffix == ".gz"
    if is_gz and not total:  # No bytes at all would not be gzip data.
        journal.append(gzip.compress(b""), lines=0)
    # Each block is translated by itself, so that a resumed run batches the lines as an
    # uninterrupted one does.
    while block := list(itertools.islice(left, args.block)):
        lines = [line.decode().rstrip("\r\n") for line in block]
        with told(journal.lines):
            data = formatted(args, translator, lines, journal.lines).encode()
        journal.append(gzip.compress(data) if is_gz else data, len(block))
        bar.add(len(block))


@contextlib.contextmanager
def told(first):
    """Prints warnings, once each, with the number of the block's first line."""
    with warnings.catch_warnings(record=True) as noted:
        # Each block has its own lines, which must not count as told before.
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in noted):
                if "lines[" in text:
                    text += f" (lines[0] is line {first + 1:,} of the input.)"
                print(f"\n{text}")


def formatted(args, translator, lines, first):
    """Returns the output of some lines as text; `first` is the first one's number."""
    if args.n_best is None and args.glossary is None:
        texts = translator(lines)  # quicker: it computes no scores
        translations = [[(text, None)] for text in texts]
    else:
        translations = translator.translate(
            lines, num_hypotheses=args.n_best or 1, glossary=args.glossary
        )
    rows = []
    for number, (line, hypotheses) in enumerate(zip(lines, translations, strict=True)):
        # The translator's own search may return more hypotheses.
        for text, score in hypotheses[: args.n_best or 1]:
            # A model may generate line breaks, but each output must stay one line.
            text = " ".join(text.splitlines())
            row = [text]
            if args.n_best is not None:
                row = [str(first + number), text, f"{score:.6f}"]
            if args.alignments:
                row.append(alignment(translator, line, text))
            rows.append(" ||| ".join(row) + "\n")
    return "".join(rows)


def alignment(translator, source, target):
    """Returns the source word of each target word, such as "0-0 1-2"."""
    if not (source.strip() and target.strip()):
        return ""
    weights = translator.attention(source, target).weights.mean(axis=(0, 1))  # (T, S)
    rows = words(translator.target_tokenizer, target, weights.shape[0])
    columns = words(translator.source_tokenizer, source, weights.shape[1])
    links = []
    for word in sorted({*rows} - {-1}):
        # Tokens outside words, -1, add nothing to word 0.
        looked = weights[np.equal(rows, word)].sum(axis=0)
        shares = np.bincount(np.maximum(columns, 0), looked * np.greater(columns, -1))
        links.append(f"{shares.argmax()}-{word}")
    return " ".join(links)


def words(tokenizer, line, length):
    """Returns the number of the word of each of `length` tokens, -1 for none."""
    # The line may be cut: no word after the first `length` has a token among them.
    found = itertools.islice(re.finditer(r"\S+", line), length)
    ends = [match.end() for match in found]
    # A tokenizer's prefix, such as T5's, is also put before an empty line.
    before, *after = map(len, tokenizer.tokenize(["", *(line[:end] for end in ends)]))
    last = min(after[-1], length - 1)  # The line may be cut; its last token is the end.
    places = np.searchsorted(after, np.arange(last), side="right")
    places[:before] = -1
    return [*places.tolist(), *[-1] * (length - last)]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command goes on after the last block written.")
