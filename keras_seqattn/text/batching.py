"""Batches of sentence pairs for `fit`: few shapes, little padding."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Dataset, Lines, Path, TokenizerLike
from keras_seqattn.text.copies import Copies
from keras_seqattn.text.datasets import make_batches
from keras_seqattn.text.epochs import Epochs, lengths_of, tokenize_sides
from keras_seqattn.text.lines import TextLines
from keras_seqattn.text.mixing import Corpus, corpora_of, rows_of
from keras_seqattn.text.token_cache import cached_sides


def translation_batches(
    sources: Lines | TextLines | Mapping[str, Lines | TextLines],
    targets: Lines | TextLines | Mapping[str, Lines | TextLines],
    source_tokenizer: TokenizerLike,
    target_tokenizer: TokenizerLike | None = None,
    batch_tokens: int = 4096,
    bucket_lengths: Sequence[int] = (16, 32, 64),
    shuffle: bool = True,
    seed: int = 0,
    sampling: float = 0.0,
    repeat_batch: int = 1,
    rows_multiple: int = 1,
    cutoff: float = 0.0,
    views: Sequence[Literal["plain", "sampled"]] | None = None,
    bidirectional_epochs: int = 0,
    temperature: float = 1.0,
    cache: Path | None = None,
) -> Dataset:
    """Makes batches for training and evaluating a translation model.

    Each element is `({"source_ids": x + end, "target_ids": start + y}, y + end)`,
    int32, padded with each tokenizer's `pad_id`. A pair goes to the shortest bucket
    that holds the longer of its sides and one special token. All batches of a bucket of
    length L have the same shape `(R, L)`, so that few programs are compiled: R is the
    largest multiple of `repeat_batch * rows_multiple` with at most `batch_tokens`
    positions. A batch that is not full is filled with rows of padding, which count for
    nothing in a loss over real tokens. Finer buckets waste less on padding, but need
    more compiled programs.

    Pass it to `fit` with `shuffle=False`: otherwise Keras warns that it cannot shuffle
    a dataset.

    The number of replicas that share each batch (`tf.distribute`, `keras.distribution`)
    must divide its rows: pass it as `rows_multiple`. The pairs of a batch that is not
    full are spread over its `rows_multiple` equal parts, so that each replica has about
    the same number.

    Each epoch has a new order of pairs and of batches, which depends only on `seed` and
    the number of the epoch, whatever the machine. Text is tokenized once, but anew in
    each epoch with `sampling`, whose draws also come from `seed`. A drawn segmentation
    that is too long for the last bucket is replaced by the plain one.

    Several corpora, for a multilingual model, are given as dicts from each corpus's
    tag, such as "<de>", to its lines. The tag and a space are put before each source
    line; put them also before the lines that the model is to translate. Small corpora
    are repeated as `temperature` says; batches mix pairs of all corpora.

    A corpus larger than memory is given as `TextLines` of its files, with a folder as
    `cache`: its lines are read once, to find errors in them, then their token ids are
    written there, with progress bars. A batch reads from disk what it needs. Batches
    and their order are the same as for that corpus in memory. Memory holds 24 bytes a
    pair. After an interruption the same call continues where it stopped. Any later call
    with the same corpus and tokenizers reads the cache, whatever its batches and in any
    number of processes. A file is the same if its name, size and time of change are, so
    copy files with `cp -p`.

    Args:
        sources: List of strings or `TextLines`, or a dict from tags to these. The line
            break at the end of a string does not count, as in `Translator`.
        targets: The same, of as many strings, their translations.
        source_tokenizer: Tokenizer of the sources.
        target_tokenizer: Tokenizer of the targets. None: `source_tokenizer`.
        batch_tokens: Most positions in one side of a batch, padding included; at least
            the last of `bucket_lengths` times `repeat_batch` times `rows_multiple`.
        bucket_lengths: Increasing lengths of the buckets, ends included. Pairs longer
            than the last are left out, with a warning.
        shuffle: Whether to shuffle; if not, batches come bucket by bucket, in the given
            order.
        seed: Integer seed of the shuffling and of the sampling, at least 0.
        sampling: Strength of subword sampling (see the tokenizer), 0 for none.
        repeat_batch: Number of copies of each pair, side by side: with 2, rows 2i and
            2i + 1 are equal, as a consistency loss such as R-Drop's needs them.
        rows_multiple: Number that divides the rows of every batch, such as the number
            of replicas; the copies of a pair stay in one part.
        cutoff: Share in [0, 1) of the input tokens, on both sides, that are replaced by
            the tokenizer's `unknown_id` in all copies except the first. This is
            SimCut's token cutoff if the model is made with
            `zero_id=tokenizer.unknown_id`, which embeds that token as 0. Each token is
            drawn independently; the source's end, the target's start and all labels
            stay.
        views: "plain" or "sampled" for each copy of `repeat_batch`, such as
            `("plain", "sampled")`: whether its subwords are the usual ones or drawn,
            independently for each copy, with the strength `sampling`. The copies'
            labels then also differ; `training.MaskedCrossentropy(pieces=...)` compares
            what they have in common. None: all copies have the same segmentation.
        bidirectional_epochs: Number of epochs, from the first, in which half of the
            pairs have their sides swapped: a random half in one epoch, the other half
            in the next. So two epochs have both directions of all pairs, and the number
            and shapes of their batches are unchanged. It needs one tokenizer for both
            sides and one corpus. 0: one direction from the start.
        temperature: Number of at least 1, for several corpora. A corpus of n pairs that
            fit a bucket, where the largest has m, gives n (m / n)^(1 - 1 / temperature)
            pairs: 1 repeats nothing, 5 is usual, 100 makes all about as large as the
            largest.
        cache: Path of a folder for the token ids of this corpus alone, not with
            `sampling`; None: they stay in memory.

    Returns:
        A prefetched `tf.data.Dataset` where TensorFlow is installed, else a
        `keras.utils.PyDataset` of the same batches as arrays. `len` returns the number
        of batches in each epoch. It has the attributes `shapes`, the set of all (batch,
        length); `skipped`, the number of pairs left out because they are too long for
        the last bucket (a warning says so too); and `target_tokens`, the number of real
        target tokens in an epoch, end included. `target_tokens` counts one direction,
        and plain segmentations even with `sampling`.

    Raises:
        ValueError: If the corpus is empty or its sides differ in length; if a
            tokenizer's `pad_id` is its `end_id`; if no pair fits a bucket or, with a
            `temperature` above 1, none of a corpus; if the numbers given do not
            describe batches; if there is `cutoff` without a second
            copy, or with a tokenizer that has no `unknown_id`; if `views` are not one
            for each copy, or do not fit `sampling`; if there are `bidirectional_epochs`
            with two tokenizers or several corpora; if the dicts differ in their tags;
            or if `cache` comes with `sampling`, holds other token ids, or is being
            written by another process.

    Example:
        >>> from keras_seqattn.text import ByteTokenizer
        >>> dataset = translation_batches(
        ...     ["one", "two"], ["eins", "zwei"], ByteTokenizer(), batch_tokens=64
        ... )
        >>> for inputs, labels in dataset:
        ...     print(inputs["source_ids"].shape, labels.shape)
        (4, 16) (4, 16)

    Reference:
        Wu et al. 2021, "R-Drop". `cutoff`: Gao et al. 2022, "Bi-SimCut", section 3.
        `views`: Wang et al. 2021, "Multi-view Subword Regularization".
        `bidirectional_epochs`: Ding et al. 2021, "Improving Neural Machine Translation
        by Bidirectional Training". Differs: the labels of altered copies also count in
        the crossentropy; SimCut's divergence has one direction, KL(first copy || cut
        copy), and that of `training.MaskedCrossentropy` is the mean of both, with half
        of its `consistency` as the factor; an epoch of both directions has each pair
        once.
    """
    arguments.number("temperature", temperature, least=1.0)
    corpora = corpora_of(sources, targets)
    copies = Copies(repeat_batch, sampling, views, cutoff)
    check_tokenizer("source_tokenizer", source_tokenizer, cutoff)
    check_tokenizer("target_tokenizer", target_tokenizer, cutoff, optional=True)
    tokenizers = (source_tokenizer, target_tokenizer or source_tokenizer)
    both_ways = arguments.integer("bidirectional_epochs", bidirectional_epochs, 0)
    if both_ways and isinstance(sources, Mapping):
        arguments.refuse("bidirectional_epochs", both_ways, "0 with several corpora")
    if both_ways and tokenizers[0] is not tokenizers[1]:
        arguments.refuse("bidirectional_epochs", both_ways, "0 with two tokenizers")
    epochs, skipped = plan_epochs(
        corpora,
        tokenizers,
        copies,
        batch_tokens=batch_tokens,
        bucket_lengths=bucket_lengths,
        shuffle=shuffle,
        seed=seed,
        rows_multiple=rows_multiple,
        bidirectional_epochs=both_ways,
        temperature=temperature,
        cache=cache,
    )
    return make_batches(epochs, skipped)


def plan_epochs(
    corpora: Sequence[Corpus],
    tokenizers: Sequence[TokenizerLike],
    copies: Copies,
    *,
    batch_tokens: int,
    bucket_lengths: Sequence[int],
    shuffle: bool,
    seed: int,
    rows_multiple: int,
    bidirectional_epochs: int = 0,
    temperature: float = 1.0,
    cache: Path | None = None,
) -> tuple[Epochs, int]:
    """Returns the epochs of tokenized corpora, and how many pairs are too long.

    `tokenizers` has that of the sources and that of the targets. With one, the corpora
    are texts, which are their own translations: only one side is tokenized and kept,
    and blank lines are left out.
    Checks the arguments that `translation_batches` and `language_batches` share.
    """
    arguments.path("cache", cache, optional=True)
    if copies.sampling and cache is not None:
        arguments.refuse("sampling", copies.sampling, "0 with a `cache`")
    batch_tokens = arguments.positive_integer("batch_tokens", batch_tokens)
    bucket_lengths = arguments.increasing("bucket_lengths", bucket_lengths)
    arguments.boolean("shuffle", shuffle)
    seed = arguments.integer("seed", seed, 0)
    rows_multiple = arguments.positive_integer("rows_multiple", rows_multiple)
    group = copies.number * rows_multiple  # the rows of a batch are a multiple of it
    kind = "text" if len(tokenizers) == 1 else "pair"
    _check_budget(batch_tokens, bucket_lengths[-1], group, kind)
    if cache is None:
        lines, sizes = _read(corpora)
        lines = lines[-len(tokenizers) :]
        plain = tokenize_sides(tokenizers, lines)
    else:
        both = (tokenizers[0], tokenizers[-1])
        plain, sizes = cached_sides(cache, corpora, both)
        plain = plain[-len(tokenizers) :]
    lengths = lengths_of(plain)
    rows = np.arange(len(lengths))
    if kind == "text":
        given = len(getattr(tokenizers[0], "prefix_ids", ()))
        rows = _without_blank(rows, lengths - given)
    fits = _fits(lengths[rows], bucket_lengths, kind)
    rows = rows[fits]
    if temperature > 1:
        sizes = _sizes_found(rows, lengths, sizes, corpora, bucket_lengths)
        rows = rows[rows_of(sizes, temperature, seed)]
    drawn_lines = None
    if copies.sampling:  # then there is no cache
        drawn_lines = [[side[row] for row in rows] for side in lines]
    epochs = Epochs(
        tokenizers=tokenizers,
        lines=drawn_lines,
        plain=[side.select(rows) for side in plain],
        buckets=[
            (batch_tokens // (length * group) * group, length)
            for length in bucket_lengths
        ],
        copies=copies,
        parts=rows_multiple,
        shuffle=shuffle,
        seed=seed,
        bidirectional_epochs=bidirectional_epochs,
    )
    return epochs, int(np.sum(~fits))


def _read(corpora):
    """Returns all sources, all targets, and the number of pairs of each corpus."""
    pairs = [list(corpus.pairs()) for corpus in corpora]
    sides = zip(*itertools.chain.from_iterable(pairs), strict=True)
    return [list(side) for side in sides], [len(corpus) for corpus in pairs]


def _without_blank(rows, lengths):
    """Returns the rows of texts that have a token before their end."""
    found = rows[lengths[rows] > 1]
    if not len(found):
        raise ValueError(
            "`lines` must hold a line that is not blank. "
            f"Received: lines of {len(rows)} blank ones."
        )
    return found


def _fits(lengths, bucket_lengths, kind):
    """Returns which pairs fit into the longest bucket; warns if some do not."""
    longest = bucket_lengths[-1]
    fits = lengths <= longest
    if not fits.any():
        raise ValueError(
            f"`bucket_lengths` must have room for some {kind}, at least "
            f"{lengths.min()} tokens. Received: bucket_lengths={bucket_lengths!r}."
        )
    if not fits.all():
        warnings.warn(
            f"{np.sum(~fits)} of {len(fits)} {kind}s are left out, being longer than "
            f"{longest} tokens, the last of `bucket_lengths`.",
            stacklevel=4,
        )
    return fits


def _sizes_found(rows, lengths, sizes, corpora, bucket_lengths):
    """Returns how many of these pairs each corpus has; none is an error."""
    ends = np.cumsum(sizes)
    counts = np.diff(np.searchsorted(rows, [0, *ends])).tolist()
    parts = np.split(lengths, ends[:-1])
    for corpus, count, part in zip(corpora, counts, parts, strict=True):
        if not count:
            raise ValueError(
                f"`bucket_lengths` must have room for some pair of {corpus.tag!r}, at "
                f"least {part.min()} tokens. Received: bucket_lengths="
                f"{bucket_lengths!r}."
            )
    return counts


def check_tokenizer(
    name: str, tokenizer: Any, cutoff: float = 0.0, optional: bool = False
) -> None:
    """Raises an error if a tokenizer cannot make batches."""
    needed = ("tokenize", "start_id", "end_id", "pad_id")
    needed += ("unknown_id",) if cutoff else ()
    arguments.offers(name, tokenizer, needed, "a tokenizer", optional)
    if tokenizer is not None and tokenizer.pad_id == tokenizer.end_id:
        raise ValueError(
            f"`{name}` must have a `pad_id` other than its `end_id`, which would be "
            f"hidden as padding. Received: {name}.pad_id={tokenizer.pad_id}, end_id="
            f"{tokenizer.end_id}."
        )


def _check_budget(batch_tokens, longest, group, kind):
    if batch_tokens < longest * group:
        rows = f"a {kind}" if group == 1 else f"{group} rows"
        wanted = f"at least {longest * group}, to hold {rows} of the longest bucket"
        arguments.refuse("batch_tokens", batch_tokens, wanted)
