"""Batches of sentence pairs for `fit`: few shapes, little padding, nothing lost."""

import dataclasses
import itertools
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
import tensorflow as tf

from keras_seqattn import arguments
from keras_seqattn.annotations import Dataset, Lines, TokenizerLike
from keras_seqattn.text.copies import Copies
from keras_seqattn.text.side import Side
from keras_seqattn.text.tokenizers import check_lines

# With subword sampling the lengths, and so the number of batches, vary from epoch to
# epoch, while Keras wants one number: the most of so many trials, and one to spare. An
# epoch of fewer batches halves some; one of more is drawn again, at most so often.
TRIALS, ATTEMPTS = 2, 5

# What tells the draws of the cutoff, and of directions, from those of the order.
CUTS, TURNS = 1, 2


def translation_batches(
    sources: Lines,
    targets: Lines,
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
) -> Dataset:
    """Makes batches for training and evaluating a translation model.

    Each element is `({"source_ids": x + end, "target_ids": start + y}, y + end)`,
    int32, padded with 0. A pair goes to the shortest bucket that holds the longer of
    its sides and one special token. All batches of a bucket of length L have the one
    shape `(batch_tokens // L, L)`, so that few programs are compiled; the last one of
    an epoch is filled with rows of padding, which count for nothing in a loss over
    real tokens. Finer buckets waste less on padding and cost more programs.

    `fit` takes it with `shuffle=False`: by default Keras warns that it cannot shuffle a
    dataset.

    Replicas that share each batch (`tf.distribute`, `keras.distribution`) must divide
    its rows: `rows_multiple`. The pairs of a batch that is not full are spread over its
    `rows_multiple` equal parts, so that each replica has about as many.

    Each epoch has another order of pairs and of batches, the same for the same
    `seed` and number of the epoch, on every machine. Text is tokenized once. With
    `sampling` it is tokenized anew for each epoch, by draws that come from `seed` too;
    a drawn segmentation too long for the last bucket is replaced by the plain one.

    Args:
        sources: List of strings.
        targets: List of as many strings, their translations.
        source_tokenizer: Tokenizer of the sources.
        target_tokenizer: Tokenizer of the targets. None: `source_tokenizer`.
        batch_tokens: Positions in one side of a batch, padding included.
        bucket_lengths: Increasing lengths of the buckets.
        shuffle: Whether to shuffle; else bucket by bucket, in the given order.
        seed: Integer seed of the shuffling and of the sampling, at least 0.
        sampling: Strength of subword sampling (see the tokenizer), 0 for none.
        repeat_batch: Copies of each pair, side by side: rows 2i and 2i + 1 are equal
            for 2, as a consistency loss such as R-Drop's wants them.
        rows_multiple: Number that divides the rows of every batch, such as the number
            of replicas; the copies of a pair stay in one part.
        cutoff: Share in [0, 1) of the input tokens of all copies but the first that are
            replaced by the tokenizer's `unknown_id`, on both sides: token cutoff, as
            SimCut has it, where the model is made with `zero_id=tokenizer.unknown_id`,
            and so embeds that token as 0. Each token is drawn by itself; the source's
            end, the target's start and all labels stay.
        views: "plain" or "sampled" for each copy of `repeat_batch`, such as
            `("plain", "sampled")`: whether its subwords are the usual ones or drawn,
            each copy by itself, with the strength `sampling`. The copies' labels then
            differ too; `training.MaskedCrossentropy(pieces=...)` compares what they
            have in common. None: all copies have the same segmentation.
        bidirectional_epochs: Number of epochs, from the first, in which half of the
            pairs are turned round: in one epoch a target is translated into its
            source, in the next it is not, each pair begins by chance. So two epochs
            have both directions of all pairs, in batches of the same number and shapes.
            It takes one tokenizer for both sides; 0 for one direction from the start.

    Returns:
        A prefetched `tf.data.Dataset` of known cardinality, with the attributes
        `shapes`, the set of all (batch, length); `skipped`, the number of pairs left
        out since they are too long for the last bucket (also said by a warning);
        `target_tokens`, the number of real target tokens in an epoch, end included
        (of plain segmentations, where there is `sampling`, and in one direction).

    Raises:
        ValueError: If the corpus is empty or its sides differ in length, if no pair
            fits, if the numbers given do not describe batches, if there is `cutoff`
            without a second copy, or with a tokenizer that has no `unknown_id`, or if
            `views` are not one for each copy, or do not fit `sampling`, or if there are
            `bidirectional_epochs` with two tokenizers.

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
        by Bidirectional Training". Differs: the labels of the copies that are altered
        count in the crossentropy too; an epoch of both directions has each pair once.
    """
    copies = Copies(repeat_batch, sampling, views, cutoff)
    tokenizers = (source_tokenizer, target_tokenizer or source_tokenizer)
    _check_tokenizers(source_tokenizer, target_tokenizer, cutoff)
    arguments.positive_integer("batch_tokens", batch_tokens)
    arguments.sequence(
        "bucket_lengths",
        bucket_lengths,
        "increasing positive integers",
        arguments.integer,
    )
    arguments.boolean("shuffle", shuffle)
    arguments.integer("seed", seed, 0)
    sources = list(check_lines(sources, "sources"))
    targets = list(check_lines(targets, "targets"))
    _check_corpus(sources, targets)
    arguments.positive_integer("rows_multiple", rows_multiple)
    arguments.integer("bidirectional_epochs", bidirectional_epochs, 0)
    if bidirectional_epochs and tokenizers[0] is not tokenizers[1]:
        arguments.refuse(
            "bidirectional_epochs", bidirectional_epochs, "0 with two tokenizers"
        )
    group = repeat_batch * rows_multiple  # rows that a batch has at least
    _check_lengths(batch_tokens, bucket_lengths, group)
    columns = (tf.constant(sources), tf.constant(targets))
    plain = _tokenized(tokenizers, columns)
    fits = _fits(_lengths(plain), bucket_lengths)
    epochs = _Epochs(
        tokenizers,
        [tf.boolean_mask(column, fits) for column in columns],
        [side.kept(fits) for side in plain],
        [
            (batch_tokens // (length * group) * group, length)
            for length in bucket_lengths
        ],
        copies,
        rows_multiple,
        shuffle,
        seed,
        bidirectional_epochs,
    )
    dataset = epochs.dataset()
    dataset.skipped = int(np.sum(~fits))
    return dataset


@dataclasses.dataclass
class _Epochs:
    """The batches of a corpus, epoch after epoch.

    Attributes:
        tokenizers: Those of the sources and of the targets.
        columns: String tensors `(P,)`, the lines of both.
        plain: Their `Side`s without sampling, all of which fit.
        shapes: List of the (rows, length) of each bucket.
        copies: The `Copies` of each pair.
        parts: Number of equal parts of a batch.
        shuffle: Whether each epoch has another order.
        seed: What the orders and the draws of all epochs come from.
        both_ways: Number of epochs, from the first, of both directions.
        steps: Number of batches in each epoch.
    """

    tokenizers: tuple
    columns: list
    plain: list
    shapes: list
    copies: Copies
    parts: int
    shuffle: bool
    seed: int
    both_ways: int

    def __post_init__(self):
        """Counts the batches of an epoch."""
        plans = (self._plan(drawn) for drawn in self._draws(0))
        spare = 1 if self.copies.sampling else 0
        self.steps = max(len(plan) for plan in plans) + spare
        self._numbers = itertools.count()

    def dataset(self):
        """Returns the dataset, each pass over which is the next epoch."""
        ids = tf.TensorSpec((None, None), tf.int32)
        signature = ({"source_ids": ids, "target_ids": ids}, ids)
        dataset = tf.data.Dataset.from_generator(
            self._batches, output_signature=signature
        )
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.steps))
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
        dataset.shapes = set(self.shapes)
        dataset.target_tokens = int(self.plain[1].lengths.sum()) * self.copies.number
        return dataset

    def _batches(self):
        """Yields the batches of the next epoch."""
        number = next(self._numbers)
        rng = np.random.default_rng((self.seed, number)) if self.shuffle else None
        for drawn in self._draws(1 + number):
            plan = self._plan(drawn, rng, self.steps)
            if len(plan) == self.steps:
                break
        if number < self.both_ways:
            drawn = self._turned(drawn, number)
        cuts = np.random.default_rng((self.seed, number, CUTS))
        for (size, length), rows in plan:
            rows = _spread(rows, size // self.copies.number, self.parts)
            source_ids, labels = (
                self.copies.side_by_side([x.padded(rows, length) for x in column])
                for column in zip(*drawn, strict=True)
            )
            inputs, labels = _arrays(source_ids, labels, self.tokenizers[1])
            yield self._cut(inputs, cuts), labels

    def _turned(self, drawn, number):
        """Exchanges both sides of half of the pairs: of the others an epoch later."""
        rng = np.random.default_rng((self.seed, number // 2, TURNS))
        is_kept = rng.permutation(len(self.plain[0].lengths)) % 2 == number % 2
        return [
            (source.where(is_kept, target), target.where(is_kept, source))
            for source, target in drawn
        ]

    def _plan(self, drawn, rng=None, steps=0):
        """Lists an epoch's batches as (shape, pairs)."""
        lengths = np.max([_lengths(sides) for sides in drawn], axis=0)
        return _plan(lengths, self.shapes, self.copies.number, rng, steps)

    def _cut(self, inputs, rng):
        """Cuts off tokens of a batch's inputs."""
        if not self.copies.cutoff:
            return inputs
        return {
            name: self.copies.cut(
                ids, (x.pad_id, x.start_id, x.end_id), x.unknown_id, rng
            )
            for (name, ids), x in zip(inputs.items(), self.tokenizers, strict=True)
        }

    def _draws(self, number):
        """Yields drawn segmentations, and at last plain ones, which are shorter.

        Each is a list of the two `Side`s of each of the copies' segmentations. The
        number is that of the epoch from 1, or 0 for those that only count.
        """
        views = self.copies.segmentations
        attempts = ATTEMPTS if number else TRIALS
        for attempt in range(attempts if self.copies.sampling else 0):
            yield [
                self._drawn((self.seed, number, attempt, copy))
                if view == "sampled"
                else self.plain
                for copy, view in enumerate(views)
            ]
        yield [self.plain] * len(views)

    def _drawn(self, seed):
        """Draws a segmentation of each line, the plain one where it is too long."""
        longest = self.shapes[-1][1]
        drawn = _tokenized(self.tokenizers, self.columns, self.copies.sampling, seed)
        return [
            side.where(side.lengths <= longest, plain)
            for side, plain in zip(drawn, self.plain, strict=True)
        ]


def _tokenized(tokenizers, columns, sampling=0.0, seed=()):
    """Returns the `Side` of each column, by draws that come from some integers."""
    seeds = np.random.SeedSequence(seed).generate_state(len(columns)).tolist()
    sides = zip(tokenizers, columns, seeds, strict=True)
    return [
        Side.tokenized(tokenizer, lines, sampling, seed)
        for tokenizer, lines, seed in sides
    ]


def _lengths(sides):
    """The positions that each pair needs: those of its longer side."""
    return np.maximum(sides[0].lengths, sides[1].lengths)


def _plan(lengths, shapes, repeat_batch, rng=None, steps=0):
    """Lists an epoch's batches as (shape, rows), halving some to make `steps`."""
    places = np.searchsorted([length for _, length in shapes], lengths)
    batches = []
    for place, shape in enumerate(shapes):
        rows = np.flatnonzero(places == place)
        rows = rng.permutation(rows) if rng else rows
        size = shape[0] // repeat_batch
        batches += [(shape, rows[i : i + size]) for i in range(0, len(rows), size)]
    while len(batches) < steps:
        fullest = max(range(len(batches)), key=lambda i: len(batches[i][1]))
        shape, rows = batches[fullest]
        batches[fullest] = (shape, rows[::2])
        batches.append((shape, rows[1::2]))
    order = rng.permutation(len(batches)) if rng else range(len(batches))
    return [batches[i] for i in order]


def _spread(pairs, size, parts):
    """Fills a batch of `size` pairs part by part, with -1 where there is none."""
    rows = np.full((parts, size // parts), -1)
    for row, part in zip(rows, np.array_split(pairs, parts), strict=True):
        row[: len(part)] = part
    return rows.reshape(-1)


def _arrays(source_ids, labels, target_tokenizer):
    """Makes inputs and labels of a batch: the target's input is the labels shifted."""
    starts = np.full((len(labels), 1), target_tokenizer.start_id, "int32")
    shifted = np.concatenate([starts, labels[:, :-1]], axis=1)
    target_ids = np.where(labels == target_tokenizer.pad_id, labels, shifted)
    return {"source_ids": source_ids, "target_ids": target_ids}, labels


def _fits(lengths, bucket_lengths):
    """Which pairs fit into the longest bucket; says how many do not."""
    longest = bucket_lengths[-1]
    fits = lengths <= longest
    if not fits.any():
        raise ValueError(
            f"`bucket_lengths` must have room for some pair, at least {lengths.min()} "
            f"tokens. Received: bucket_lengths={bucket_lengths!r}."
        )
    if not fits.all():
        warnings.warn(
            f"{np.sum(~fits)} of {len(fits)} pairs are left out, being longer than "
            f"{longest} tokens, the last of `bucket_lengths`.",
            stacklevel=3,
        )
    return fits


def _check_tokenizers(source_tokenizer, target_tokenizer, cutoff):
    needed = ("tokenize", "unknown_id") if cutoff else ("tokenize",)
    given = {"source_tokenizer": source_tokenizer, "target_tokenizer": target_tokenizer}
    for name, tokenizer in given.items():
        optional = name == "target_tokenizer"
        arguments.offers(name, tokenizer, needed, "a tokenizer", optional)


def _check_corpus(sources, targets):
    if len(sources) != len(targets):
        raise ValueError(
            f"`targets` must hold as many lines as `sources`, {len(sources)}. "
            f"Received: targets with {len(targets)}."
        )
    if not sources:
        raise ValueError("`sources` must hold lines. Received: sources=[].")


def _check_lengths(batch_tokens, bucket_lengths, group):
    lengths = list(bucket_lengths)
    whole = all(isinstance(length, int | np.integer) for length in lengths)
    if not (lengths and whole and 0 < lengths[0] and lengths == sorted(set(lengths))):
        raise ValueError(
            "`bucket_lengths` must be increasing positive integers. "
            f"Received: bucket_lengths={bucket_lengths!r}."
        )
    if batch_tokens < lengths[-1] * group:
        rows = "a pair" if group == 1 else f"{group} rows"
        raise ValueError(
            f"`batch_tokens` must be at least {lengths[-1] * group}, to hold {rows} of "
            f"the longest bucket. Received: batch_tokens={batch_tokens!r}."
        )
