"""`Side`: the lines of one side as token ids, to be put into batches.

Shapes: P lines, R rows of a batch, L its length.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import TokenizerLike


class Side(NamedTuple):
    """Token ids of one side, flat; each line ends with the end token.

    Attributes:
        ids: Array of all ids, of any integer dtype, in memory or on disk.
        starts: Where each line begins in `ids`, int64 `(P,)`.
        lengths: Number of tokens of each line, its end included, integers `(P,)`.
        pad_id: The id that pads a batch.

    Example:
        >>> side = Side(np.array([7, 8, 2, 2]), np.array([0, 3]), np.array([3, 1]))
        >>> side.padded(np.array([1, 0, -1]), 4).tolist()
        [[2, 0, 0, 0], [7, 8, 2, 0], [0, 0, 0, 0]]
    """

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    pad_id: int = 0

    @classmethod
    def tokenized(
        cls,
        tokenizer: TokenizerLike,
        lines: Sequence[str],
        sampling: float = 0.0,
        seed: int | None = None,
    ) -> "Side":
        """Tokenizes P lines; with `sampling` their subwords are drawn from `seed`."""
        # A tokenizer that draws nothing need not take these.
        drawn = {"sampling": sampling, "seed": seed} if sampling else {}
        rows = tokenizer.tokenize(lines, **drawn)
        try:
            lengths = np.fromiter(map(len, rows), "int64", len(rows)) + 1
            tokens = itertools.chain.from_iterable(rows)
            tokens = np.fromiter(tokens, "int32", lengths.sum() - len(rows))
        except (TypeError, ValueError) as error:
            first = rows[:1] if isinstance(rows, list) else rows
            received = f"{first!r:.80} ({error})"
            _refuse(tokenizer, "a list of ids for each line", received)
        if len(rows) != len(lines):
            received = f"{len(rows)} lists for {len(lines)} lines"
            _refuse(tokenizer, "a list of ids for each line", received)
        special = (tokens == tokenizer.end_id) | (tokens == tokenizer.pad_id)
        if special.any():
            wanted = "ids without its `end_id` and `pad_id`, which batches add"
            first = np.argmax(special)
            line = lines[np.searchsorted(np.cumsum(lengths - 1), first, "right")]
            received = f"id {tokens[first]}, of {arguments.shown(line)}"
            _refuse(tokenizer, wanted, received)
        ends = np.cumsum(lengths)
        # All are ends at first; the lines' own tokens overwrite the rest.
        ids = np.full(lengths.sum(), tokenizer.end_id, "int32")
        is_token = np.ones(len(ids), bool)
        is_token[ends - 1] = False
        ids[is_token] = tokens
        return cls(ids, ends - lengths, lengths, tokenizer.pad_id)

    def select(self, which: np.ndarray) -> "Side":
        """Returns the lines that an array selects, by number or by a bool for each."""
        return Side(self.ids, self.starts[which], self.lengths[which], self.pad_id)

    def where(self, which: np.ndarray, other: "Side") -> "Side":
        """Returns these lines where `which`, bool `(P,)`, is True, else `other`'s."""
        together = self.ids is other.ids  # both read from one file
        ids = self.ids if together else np.concatenate([self.ids, other.ids])
        starts = other.starts + (0 if together else len(self.ids))
        return Side(
            ids,
            np.where(which, self.starts, starts),
            np.where(which, self.lengths, other.lengths),
            self.pad_id,
        )

    def padded(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Returns lines by number `(R,)` as int32 `(R, L)`; -1 gives only padding."""
        columns, rows = np.arange(length), rows[:, None]
        real = (rows >= 0) & (columns < self.lengths[rows])
        ids = np.full(real.shape, self.pad_id, "int32")
        ids[real] = self.ids[(self.starts[rows] + columns)[real]]
        return ids


def _refuse(tokenizer: Any, wanted: str, received: str) -> NoReturn:
    """Raises the error for what a tokenizer of the user's own returned."""
    raise ValueError(
        f"`tokenize` of {type(tokenizer).__name__} must return {wanted}. "
        f"Received: {received}."
    )
