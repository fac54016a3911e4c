"""Token ids on disk instead of in memory: written once, read when they are needed.

The file is a sequence of blocks, each with some pairs of one corpus. A block holds:

- three int64: the number of the corpus, how many sides there are (1 where both have
  the same ids in all corpora), and how many pairs;
- the lengths of the sources and of the targets, int32;
- their ids, of 2 bytes where the vocabularies are small enough, else 4;
- zeros up to a multiple of 8 bytes.

A last block, of corpus -1 and without pairs, marks the file as complete.
"""

import hashlib
import itertools
import json
import operator
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Path, TokenizerLike
from keras_seqattn.files import reading
from keras_seqattn.text.journal import Journal
from keras_seqattn.text.lines import TextLines
from keras_seqattn.text.mixing import Corpus
from keras_seqattn.text.side import Side

PAIRS_IN_A_BLOCK = 8192
PROBED_PAIRS = 100  # whose ids tell apart tokenizers that have no configuration

_HEADER, _END = 3 * 8, -1


def cached_sides(
    directory: Path, corpora: Sequence[Corpus], tokenizers: Sequence[TokenizerLike]
) -> tuple[list[Side], list[int]]:
    """Returns both `Side`s, with ids on disk, and the number of pairs of each corpus.

    Tokenizes the corpora into a file in the folder, unless a complete one is there.
    Before the first block it reads all lines once, so that it finds an error in them
    before it makes the folder. After an interruption the same call continues after the
    last block. It is an error if the folder belongs to other corpora or tokenizers, or
    if another process is writing to it.
    """
    path = pathlib.Path(directory, "tokens")
    both = _needs_both(corpora, tokenizers)
    first = zip(*itertools.islice(corpora[0].pairs(), PROBED_PAIRS), strict=True)
    run = {
        "corpora": [_identity(corpus, both) for corpus in corpora],
        "tokenizers": list(map(identity_of_tokenizer, tokenizers, first)),
    }
    journal = Journal(path, run, argument="cache")
    dtype = _dtype_of(tokenizers)
    if not _is_whole(journal):
        unit = "pair" if both else "text"
        if not journal.lines:  # Else an earlier call has read them.
            _read_through(corpora, unit)
        with journal:
            _write(journal, corpora, tokenizers, dtype, both, unit)
    pad_ids = [x.pad_id for x in tokenizers]
    return _open(path, dtype, len(corpora), pad_ids, journal.lines)


def _needs_both(corpora, tokenizers):
    """Returns whether the ids of some source and target may differ: both are stored."""
    return tokenizers[0] is not tokenizers[1] or any(
        corpus.targets is not corpus.sources or corpus.tag is not None
        for corpus in corpora
    )


def _is_whole(journal):
    """Returns whether all pairs are written, so that no lock is needed."""
    if not (journal.path.exists() and journal.read_progress() and journal.size):
        return False
    with open(journal.path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _HEADER, 0))
        end = np.frombuffer(file.read(_HEADER), "int64")
    return size == journal.size and end.tolist() == [_END, 0, 0]


def _identity(corpus, both):
    """Returns what distinguishes a corpus from others, as JSON can hold it."""
    sides = list(zip(corpus.names, (corpus.sources, corpus.targets), strict=True))
    sides = sides if both else sides[:1]
    return [corpus.tag, *(_identity_of_lines(name, lines) for name, lines in sides)]


def _identity_of_lines(name, lines):
    if isinstance(lines, TextLines):
        return lines.identity()
    lines = arguments.listed(lines)
    arguments.instance(name, lines, list | tuple, "a list or `TextLines`")
    digest = hashlib.sha256()
    for line in lines:
        # As JSON, which escapes a line break within a line.
        digest.update(json.dumps(line).encode() + b"\n")
    return digest.hexdigest()


def identity_of_tokenizer(tokenizer: Any, lines: Sequence[str] = ()) -> str:
    """Returns a tokenizer's class name, and a hash of its configuration.

    What Keras adds to any layer's configuration, such as a numbered name, is left out.
    Of a tokenizer without a configuration, it is the hash of the ids of `lines`, if
    there are any, with the vocabulary's size and the end token.
    """
    name = type(tokenizer).__name__
    if not hasattr(tokenizer, "get_config"):
        if not lines:
            return name
        ids = [list(map(int, row)) for row in tokenizer.tokenize([*lines])]
        size = getattr(tokenizer, "vocabulary_size", None)
        text = json.dumps([ids, size and int(size), int(tokenizer.end_id)])
        return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"
    config = keras.saving.serialize_keras_object(tokenizer)["config"]
    of_keras = ("name", "dtype", "trainable")
    config = {key: value for key, value in config.items() if key not in of_keras}
    text = json.dumps(config, sort_keys=True, default=str)
    return f"{name} {hashlib.sha256(text.encode()).hexdigest()}"


def _dtype_of(tokenizers):
    sizes = [getattr(tokenizer, "vocabulary_size", 2**31) for tokenizer in tokenizers]
    return np.dtype("uint16" if max(sizes) <= 2**16 else "int32")


def _read_through(corpora, unit):
    """Reads all pairs, which raises the error of a bad one, and shows the progress."""
    bar = keras.utils.Progbar(None, unit_name=f"{unit} read")
    pairs = itertools.chain.from_iterable(corpus.pairs() for corpus in corpora)
    count = 0
    for count, _ in enumerate(pairs, start=1):
        if count % PAIRS_IN_A_BLOCK == 0:
            bar.update(count)
    bar.update(count, finalize=True)


def _write(journal, corpora, tokenizers, dtype, both, unit):
    """Writes the blocks that are missing, and shows the progress in pairs."""
    bar = keras.utils.Progbar(None, unit_name=unit)
    pairs = (
        (number, *pair)
        for number, corpus in enumerate(corpora)
        for pair in corpus.pairs()
    )
    pairs = itertools.islice(pairs, journal.lines, None)
    for number, some in itertools.groupby(pairs, key=operator.itemgetter(0)):
        while block := list(itertools.islice(some, PAIRS_IN_A_BLOCK)):
            _, *columns = zip(*block, strict=True)
            given = [*zip(tokenizers, columns, strict=True)]
            sides = [
                Side.tokenized(tokenizer, list(lines))
                for tokenizer, lines in (given if both else given[1:])
            ]
            journal.append(_block(number, sides, dtype), len(block))
            bar.update(journal.lines)
    journal.append(_block(_END, [], dtype), 0)
    bar.update(journal.lines, finalize=True)


def _block(corpus, sides, dtype):
    """Returns the bytes of a block."""
    pairs = len(sides[0].lengths) if sides else 0
    parts = [np.array([corpus, len(sides), pairs], "int64")]
    parts += [side.lengths.astype("int32") for side in sides]
    parts += [side.ids.astype(dtype) for side in sides]
    data = b"".join(part.tobytes() for part in parts)
    return data + bytes(-len(data) % 8)


def _open(path, dtype, num_corpora, pad_ids, num_pairs):
    """Returns the sides, and the size of each corpus, from a complete file."""
    with reading(path, "of token ids", "delete its folder, and it is made again"):
        data = np.memmap(path, np.uint8, "r")
        sizes, lengths, starts = [0] * num_corpora, [], []
        for corpus, first, block in _blocks(data, dtype):
            sizes[corpus] += block.shape[1]
            lengths.append(block)
            # `block` is (sides, pairs). The sum runs on through it: the ids of all
            # targets follow those of all sources.
            starts.append(first + block.cumsum().reshape(block.shape) - block)
        # Where the file system has no locks, two processes may have written it.
        if sum(sizes) != num_pairs:
            raise ValueError(f"it holds {sum(sizes)} pairs, not {num_pairs}")
        lengths, starts = (np.concatenate(parts, axis=1) for parts in (lengths, starts))
    ids = data.view(dtype)
    # Where one side is stored, 0 and -1 are both that side.
    return [
        Side(ids, starts[side], lengths[side], pad_id)
        for side, pad_id in zip((0, -1), pad_ids, strict=True)
    ], sizes


def _blocks(data, dtype):
    """Yields each block's corpus, the index of its first id, and its lines' lengths."""
    at = 0
    while True:
        corpus, sides, pairs = data[at : at + _HEADER].view("int64").tolist()
        if corpus == _END:
            return
        if sides not in (1, 2) or min(corpus, pairs) < 0:
            raise ValueError("a block of it is damaged")
        at, end = at + _HEADER, at + _HEADER + 4 * sides * pairs
        lengths = data[at:end].view("int32").reshape(sides, pairs)
        if lengths.min(initial=0) < 0:
            raise ValueError("a block of it is damaged")
        yield corpus, end // dtype.itemsize, lengths
        at = end + int(lengths.sum()) * dtype.itemsize
        at += -at % 8
