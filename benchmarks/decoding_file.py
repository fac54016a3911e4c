"""The part of `benchmarks.decoding` on real lengths: one file, two engines, one model.

A translator is loaded, and translates the first 1,000 lines of Multi30k's `val` from
strings to strings: ours as a user calls it, and CTranslate2 with the exported weights
and the same tokenizer. With random weights, which never end a line, both go from ids to
ids. As in `decoding_peers`, `prepare(width, alone)` returns the function that is timed,
and one that counts the tokens in what it returns. The file is one call or, if `alone`,
`ALONE` of its lines are one call each.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import tempfile

from benchmarks import peers
from benchmarks.decoding_peers import (
    CTRANSLATE2_THREADS,
    count_tokens,
    quickest,
    search_of,
)
from benchmarks.shapes import SHAPES

LINES = 1_000
# Number of lines in the measure of one line at a time.
ALONE = 100
# A translator with random weights never ends a line by itself.
RANDOM_LENGTH = 16
BATCH_SIZES = (32, 64)


def load_lines(data_dir):
    """Reads the lines to translate."""
    from keras_seqattn.text import load_parallel

    sources, _ = load_parallel("multi30k", "en", "de", split="val", data_dir=data_dir)
    return sources[:LINES]


def load_translator(path, data_dir):
    """Loads a translator, or makes a Transformer-Tiny with random weights."""
    from keras_seqattn import Translator
    from keras_seqattn.text import SentencePieceTokenizer, load_parallel

    if path:
        return Translator.load(path)
    sources, targets = load_parallel("multi30k", "en", "de", data_dir=data_dir)
    shape = dataclasses.replace(SHAPES["T1"], tied=True)
    tokenizer = SentencePieceTokenizer.train(
        sources + targets, vocabulary_size=shape.vocabulary_size
    )
    return Translator(peers.ours(shape), tokenizer)


def ours(path, data_dir):
    """Prepares our `Translator` or, with random weights, `generate` to fixed length."""
    from keras_seqattn import decoding
    from keras_seqattn.decoding.hypotheses import pad_lists
    from keras_seqattn.scheduling.static import in_batches

    translator, lines = load_translator(path, data_dir), load_lines(data_dir)
    model = translator.model

    def prepare(width, alone):
        calls = calls_of(lines, alone)
        if path:
            search = search_of(width)

            def translate():
                found = (translator(some, search=search) for some in calls)
                return list(itertools.chain.from_iterable(found))

            return translate, functools.partial(_count_tokens_of, translator)
        search = search_of(width, min_length=RANDOM_LENGTH)
        batches = [
            pad_lists(some, 0)
            for call in calls
            for some in in_batches(
                sorted(source_ids(translator, call), key=len), BATCH_SIZES[-1]
            )
        ]

        def run():
            options = dict(search=search, max_length=RANDOM_LENGTH)
            return [decoding.generate(model, ids, **options) for ids in batches]

        return run, lambda found: sum(int(batch.lengths.sum()) for batch in found)

    return model.count_params(), prepare


def ctranslate2(path, data_dir, precision):
    """Prepares CTranslate2 with the same weights, in its fastest configuration."""
    import ctranslate2

    translator, lines = load_translator(path, data_dir), load_lines(data_dir)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder, "model")
        translator.export(folder, "ctranslate2")
        engines = [
            ctranslate2.Translator(str(folder), compute_type=precision, **threads)
            for threads in CTRANSLATE2_THREADS
        ]
        names, adds_end = read_vocabulary(folder)
    numbers = {name: number for number, name in enumerate(names)}

    def tokenize(call):
        return named(source_ids(translator, call), names, adds_end)

    def from_lines(engine, calls, **options):
        texts = []
        for call in calls:
            found = engine.translate_batch(tokenize(call), **options)
            best = [[numbers[token] for token in one.hypotheses[0]] for one in found]
            texts += translator.target_tokenizer.detokenize(best)
        return texts

    def from_tokens(engine, calls, **options):
        found = (engine.translate_batch(tokens, **options) for tokens in calls)
        return list(itertools.chain.from_iterable(found))

    def prepare(width, alone):
        calls = calls_of(lines, alone)
        if not path:
            calls = [tokenize(call) for call in calls]
        options = dict(beam_size=width)
        if translator.model.max_length:
            limits = "max_input_length", "max_decoding_length"
            options |= dict.fromkeys(limits, translator.model.max_length)
        if not path:
            limits = "min_decoding_length", "max_decoding_length"
            options |= dict.fromkeys(limits, RANDOM_LENGTH)

        run = from_lines if path else from_tokens
        runs = (
            functools.partial(run, engine, calls, max_batch_size=size, **options)
            for engine, size in itertools.product(engines, BATCH_SIZES)
        )
        count = (
            functools.partial(_count_tokens_of, translator) if path else count_tokens
        )
        return quickest(*runs), count

    return translator.model.count_params(), prepare


def calls_of(lines, alone):
    """Returns the lines of each call: all lines, or each of the first `ALONE`."""
    return [[line] for line in lines[:ALONE]] if alone else [lines]


def source_ids(translator, lines):
    """Tokenises lines as `Translator` does."""
    end = translator.model.end_id
    return [[*ids, end] for ids in translator.source_tokenizer.tokenize(lines)]


def named(sources, names, adds_end):
    """Returns token ids as CTranslate2 takes them; an end that it adds is left out."""
    return [[names[i] for i in (ids[:-1] if adds_end else ids)] for ids in sources]


def _count_tokens_of(translator, texts):
    """Counts the tokens of translations."""
    return sum(map(len, translator.target_tokenizer.tokenize(texts)))


def read_vocabulary(folder):
    """Reads an export's tokens by id, and whether the engine adds the end token."""
    config = json.loads((folder / "config.json").read_text())
    (path,) = (p for p in folder.glob("*_vocabulary.json") if "target" not in p.name)
    return json.loads(path.read_text()), config.get("add_source_eos", False)
