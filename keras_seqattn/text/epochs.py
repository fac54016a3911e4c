"""`Epochs`: the batches of a corpus as arrays, any batch of any epoch.

The epochs of texts without translations have only the targets' side.
Shapes: P pairs, R rows of a batch, L its length.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_seqattn.annotations import TokenizerLike
from keras_seqattn.text.copies import Copies
from keras_seqattn.text.side import Side

# With subword sampling the lengths, and so the number of batches, vary from epoch to
# epoch, but Keras needs one number: the largest of TRIALS draws and of the plain
# segmentation, plus one. An epoch with fewer batches halves some. One with more is
# drawn again; after ATTEMPTS draws it takes the plain segmentation, which always fits.
TRIALS, ATTEMPTS = 2, 5

# Appended to the numbers of a seed, so that these draws differ from those of the order.
CUTS, DIRECTIONS = 1, 2


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The batches of a corpus, each epoch with its own order and draws.

    Attributes:
        tokenizers: The tokenizer of each side: of the sources and of the targets, or of
            texts alone.
        lines: The P lines of each side if subwords are drawn, else None.
        plain: The `Side`s without sampling, of pairs that all fit a bucket.
        buckets: The (rows, length) of each bucket.
        parts: Number of equal parts of a batch, over which its pairs are spread.
        bidirectional_epochs: Number of epochs, from the first, with both directions.
    """

    tokenizers: Sequence[TokenizerLike]
    lines: Sequence[list[str]] | None
    plain: Sequence[Side]
    buckets: Sequence[tuple[int, int]]
    copies: Copies
    parts: int
    shuffle: bool
    seed: int
    bidirectional_epochs: int

    @functools.cached_property
    def steps(self) -> int:
        """Number of batches in each epoch."""
        counts = (len(self._list_batches(sides)) for sides in self._draws(0))
        spare = 1 if self.copies.sampling else 0
        return max(counts) + spare

    def epoch(self, number: int) -> "Epoch":
        """Returns the epoch of a number, from 0; it is the same in every call."""
        rng = np.random.default_rng((self.seed, number)) if self.shuffle else None
        for sides in self._draws(1 + number):
            batches = self._list_batches(sides, rng, self.steps)
            if len(batches) == self.steps:
                break  # at the latest with the plain segmentation, which comes last
        if number < self.bidirectional_epochs:
            sides = self._swap_sides(sides, number)
        return Epoch(self, number, sides, batches)

    def _swap_sides(self, sides, number):
        """Swaps the sides of half of the pairs; an epoch later, of the other half."""
        rng = np.random.default_rng((self.seed, number // 2, DIRECTIONS))
        is_kept = rng.permutation(len(self.plain[0].lengths)) % 2 == number % 2
        return [
            (source.where(is_kept, target), target.where(is_kept, source))
            for source, target in sides
        ]

    def _list_batches(self, sides, rng=None, steps=0):
        """Lists an epoch's batches as (shape, pairs), halving some to reach `steps`."""
        lengths = np.max([lengths_of(both) for both in sides], axis=0)
        fitting = np.searchsorted([length for _, length in self.buckets], lengths)
        batches = []
        for number, shape in enumerate(self.buckets):
            pairs = np.flatnonzero(fitting == number)
            pairs = rng.permutation(pairs) if rng else pairs
            size = shape[0] // self.copies.number
            slices = (pairs[i : i + size] for i in range(0, len(pairs), size))
            batches += [(shape, some) for some in slices]
        while len(batches) < steps:
            fullest = max(range(len(batches)), key=lambda i: len(batches[i][1]))
            shape, pairs = batches[fullest]
            batches[fullest] = (shape, pairs[::2])
            batches.append((shape, pairs[1::2]))
        order = rng.permutation(len(batches)) if rng else range(len(batches))
        return [batches[i] for i in order]

    def _draws(self, number) -> Iterator[list]:
        """Yields drawn segmentations, and finally plain ones, which always fit `steps`.

        Each has its `Side`s for each of the copies' segmentations.
        `number` counts epochs from 1; 0 is for the draws that only determine `steps`.
        """
        views = self.copies.segmentations
        attempts = ATTEMPTS if number else TRIALS
        for attempt in range(attempts if self.copies.sampling else 0):
            yield [
                self._draw((self.seed, number, attempt, copy))
                if view == "sampled"
                else self.plain
                for copy, view in enumerate(views)
            ]
        yield [self.plain] * len(views)

    def _draw(self, seed):
        """Draws a segmentation of each line; one that is too long becomes the plain."""
        longest = self.buckets[-1][1]
        drawn = tokenize_sides(self.tokenizers, self.lines, self.copies.sampling, seed)
        return [
            side.where(side.lengths <= longest, plain)
            for side, plain in zip(drawn, self.plain, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class Epoch:
    """The batches of one epoch.

    `number` counts epochs from 0. `sides` has for each of the copies' segmentations its
    `Side`s, `batches` the (shape, pairs) of each batch.
    """

    epochs: Epochs
    number: int
    sides: Sequence[Sequence[Side]]
    batches: Sequence[tuple[tuple[int, int], np.ndarray]]

    def batch(self, index: int) -> tuple[Any, np.ndarray]:
        """Returns a batch's inputs and labels, int32 `(R, L)`.

        The inputs are a dict of "source_ids" and "target_ids"; those of texts without
        translations are the target's ids alone.
        """
        epochs, ((size, length), pairs) = self.epochs, self.batches[index]
        rows = _spread(pairs, size // epochs.copies.number, epochs.parts)
        *sources, labels = (
            epochs.copies.side_by_side([side.padded(rows, length) for side in views])
            for views in zip(*self.sides, strict=True)
        )
        target_ids = _shifted(labels, epochs.tokenizers[-1])
        if not sources:
            return target_ids, labels
        inputs = self._cut([*sources, target_ids], index)
        return dict(zip(("source_ids", "target_ids"), inputs, strict=True)), labels

    def _cut(self, inputs, index):
        """Applies the token cutoff to the inputs of a batch's sides."""
        epochs = self.epochs
        if not epochs.copies.cutoff:
            return inputs
        rng = np.random.default_rng((epochs.seed, self.number, index, CUTS))
        return [
            epochs.copies.cut(ids, (x.pad_id, x.start_id, x.end_id), x.unknown_id, rng)
            for ids, x in zip(inputs, epochs.tokenizers, strict=True)
        ]


def tokenize_sides(
    tokenizers: Sequence[TokenizerLike],
    lines: Sequence[list[str]],
    sampling: float = 0.0,
    seed: Sequence[int] = (),
) -> list[Side]:
    """Tokenizes the lines of each side, with its own draws from `seed`."""
    seeds = np.random.SeedSequence(seed).generate_state(len(lines)).tolist()
    return [
        Side.tokenized(tokenizer, column, sampling, seed)
        for tokenizer, column, seed in zip(tokenizers, lines, seeds, strict=True)
    ]


def lengths_of(sides: Sequence[Side]) -> np.ndarray:
    """Returns how many positions each pair needs, `(P,)`: those of its longer side."""
    return np.max([side.lengths for side in sides], axis=0)


def _spread(pairs, size, parts):
    """Spreads pairs over the parts of a batch of `size`, with -1 for empty places."""
    rows = np.full((parts, size // parts), -1)
    for row, part in zip(rows, np.array_split(pairs, parts), strict=True):
        row[: len(part)] = part
    return rows.reshape(-1)


def _shifted(labels, tokenizer):
    """Returns the target's input: the labels, each one place later, after the start."""
    starts = np.full((len(labels), 1), tokenizer.start_id, "int32")
    shifted = np.concatenate([starts, labels[:, :-1]], axis=1)
    return np.where(labels == tokenizer.pad_id, labels, shifted)
