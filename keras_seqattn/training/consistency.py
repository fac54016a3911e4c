"""The divergence of two predictions of the same labels, as R-Drop measures it.

Shapes: B batch, T target length, N = B T tokens, V vocabulary, P pairs of tokens, C =
B / 2 pairs of rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import autodiff


class Pairs(NamedTuple):
    """The pairs of equal tokens in neighbouring rows of a batch.

    Attributes:
        weights: Weight of each token, the same for both tokens of a pair and 0 for
            tokens in no pair, float32 `(N,)`.
        place: Place of each paired token when all pairs come first, the two of a pair
            side by side, int32 `(N,)`. For other tokens it has no meaning.
        count: The number of tokens in pairs, an even int32 scalar.
    """

    weights: Any
    place: Any
    count: Any

    def weights_of(self, tokens: Tensor, start: int | Tensor) -> Tensor:
        """Returns the weights of `tokens`, which occupy the places from `start` on."""
        weights = ops.take(self.weights, tokens, axis=0)
        # Places after the last token hold token 0, which may have a weight of its own.
        place = start + ops.arange(tokens.shape[0], dtype="int32")
        return ops.where(place < self.count, weights, 0.0)


class Pieces:
    """The texts of all tokens, used to align two segmentations of a text.

    Texts are compared by fingerprints: polynomials of their bytes modulo 2**32. The
    places where tokens begin in a text are compared too, as powers of the polynomials'
    base. No token's text is empty; the text of `pad_id` is ignored.

    Example:
        >>> pieces = Pieces(["<pad>", "a", "b", "ab"], pad_id=0)
        >>> labels = ops.array([[[3, 1, 0], [1, 2, 1]]])
        >>> ops.convert_to_numpy(ops.cast(pieces.align(labels)[0], "int32")).tolist()
        [[0, 0, 0], [0, 0, 1], [0, 0, 0]]

    Reference:
        Karp and Rabin 1987. Differs: none.
    """

    # Modulo 2**32 the powers of BASE repeat after 2**30; every text is shorter.
    BASE, MODULUS = 1_000_003, 2**32

    def __init__(self, texts: Sequence[str], pad_id: int) -> None:
        self._pad_id = pad_id
        prints, growths = [], []
        for text in texts:
            code = text.encode()
            value = 0
            for byte in reversed(code):
                value = (value * self.BASE + byte + 1) % self.MODULUS
            prints.append(value)
            growths.append(pow(self.BASE, len(code), self.MODULUS))
        self._prints, self._growths = (
            np.array(numbers, "uint32").view("int32") for numbers in (prints, growths)
        )

    def align(self, labels: Tensor) -> Tensor:
        """Finds the tokens of labels `(C, 2, T)` at the same place of the same text.

        Returns bools `(C, T, T)`: whether both rows have the same text, and token i of
        the first row and token j of the second are equal and begin at the same place.
        So a token has at most one partner.
        """
        real = labels != self._pad_id
        indices = ops.clip(labels, 0, len(self._prints) - 1)
        prints, growths = (
            ops.take(ops.convert_to_tensor(table), indices, axis=0)
            for table in (self._prints, self._growths)
        )
        # Products and sums of int32 numbers are modulo 2**32.
        ends = ops.cumprod(ops.where(real, growths, 1), axis=-1)
        ends = ops.cast(ends, "int32")
        starts = ops.concatenate([ops.ones_like(ends[..., :1]), ends[..., :-1]], -1)
        texts = ops.sum(ops.where(real, prints * starts, 0), axis=-1)  # (C, 2)
        texts = ops.cast(texts, "int32")
        alike = ops.logical_and(
            texts[:, 0] == texts[:, 1], ends[:, 0, -1] == ends[:, 1, -1]
        )
        aligned = ops.logical_and(alike[:, None, None], real[:, 0, :, None])
        for x in (labels, starts):
            same = x[:, 0, :, None] == x[:, 1, None, :]
            aligned = ops.logical_and(aligned, same)  # (C, T, T)
        return aligned


def find_pairs(
    labels: Tensor, weights: Tensor, length: int, pieces: Pieces | None = None
) -> Pairs:
    """Finds the tokens of rows 2i and 2i + 1 that are copies of each other.

    If the labels of both rows are equal, all tokens form pairs. With `pieces`, if the
    rows are two segmentations of one text, equal tokens at equal places form pairs.
    Labels and weights are `(N,)`, row after row. The weight of a pair is the lesser of
    its tokens' weights.
    """
    if isinstance(length, int):
        length = max(length, 1)  # Rows without tokens have no pairs.
    total = ops.shape(labels)[0]
    used = total // (2 * length) * (2 * length)  # An odd last row is left out.
    by_pair = (-1, 2, length)  # (C, 2, T)
    labels, weights = (ops.reshape(x[:used], by_pair) for x in (labels, weights))
    lesser = _lesser_weights(labels, weights, pieces)  # (2, C, T)
    found = ops.cast(ops.reshape(lesser != 0, (2, -1)), "int32")  # (2, C * T)
    # Two partners have the same number, each counted among the paired tokens of its
    # side: the even rows or the odd ones.
    number = ops.cast(ops.cumsum(found, axis=-1), "int32") - 1
    place = 2 * number + ops.arange(2, dtype="int32")[:, None]
    place = ops.transpose(ops.reshape(place, (2, -1, length)), (1, 0, 2))  # (C, 2, T)
    rest = total - used
    return Pairs(
        _append_zeros(ops.transpose(lesser, (1, 0, 2)), rest),
        _append_zeros(place, rest),
        ops.cast(ops.sum(found), "int32"),
    )


def _lesser_weights(labels, weights, pieces):
    """Returns each token's weight in its pair, 0 if it has none, `(2, C, T)`.

    Both tokens of a pair get the lesser of their weights. Labels and weights are
    `(C, 2, T)`.
    """
    if pieces is None:
        equal = ops.all(labels[:, 0] == labels[:, 1], axis=-1, keepdims=True)
        lesser = ops.where(equal, ops.minimum(weights[:, 0], weights[:, 1]), 0.0)
        return ops.stack([lesser, lesser])
    lesser = ops.minimum(weights[:, 0, :, None], weights[:, 1, None, :])
    lesser = ops.where(pieces.align(labels), lesser, 0.0)  # (C, T, T)
    return ops.stack([ops.sum(lesser, axis=2), ops.sum(lesser, axis=1)])


def _append_zeros(values, rest):
    """Returns the values flattened, then zeros for the rest of the tokens."""
    zeros = ops.zeros((rest,), values.dtype)
    return ops.concatenate([ops.reshape(values, (-1,)), zeros])


def divergence(
    log_probs: Tensor, probs: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the weighted sum of pairs' divergences, and its gradient `(2 P, V)`.

    A pair of predictions p and q has the divergence `(KL(p || q) + KL(q || p)) / 2`.
    The log-probabilities `(2 P, V)` are normalized, and a pair's rows stand side by
    side; `probs` are their exponentials. The weights `(2 P,)` are the same for both
    rows of a pair; rows of weight 0 add nothing, whatever they hold. The gradient is
    that for the logits.

    Reference:
        Wu et al. 2021, "R-Drop", equation 2. Differs: none.
    """
    pairs = (-1, 2, log_probs.shape[-1])
    log_probs, probs = ops.reshape(log_probs, pairs), ops.reshape(probs, pairs)
    weights = ops.reshape(weights, (-1, 2, 1))
    flipped = ops.flip(log_probs, axis=1)
    # Where both are -inf, a token that the model forbids, they are not apart.
    apart = ops.where(log_probs == flipped, 0.0, log_probs - flipped)  # (P, 2, V)
    each = ops.sum(probs * apart, axis=-1, keepdims=True)  # KL(p || q), KL(q || p)
    # The gradient for the logits of p is p (apart - KL(p || q)) from the first KL, and
    # p - q from the second.
    d_logits = probs * (apart - each + 1.0) - ops.flip(probs, axis=1)
    each, d_logits = (
        ops.where(weights != 0, weights * x, 0.0) for x in (each, d_logits)
    )
    return ops.sum(each) / 2, ops.reshape(d_logits / 2, (-1, pairs[-1]))


def paired_divergence(logits: Tensor, pairs: Pairs, rows: int) -> Tensor:
    """Sums the weighted divergence of all pairs of logits `(N, V)`; 0 without pairs.

    Pairs are taken in blocks of at most `rows` tokens, an even number, and the gradient
    is computed together with the value. So apart from the gradient, only one block is
    held in memory.
    """
    size, vocabulary_size = ops.shape(logits)
    if isinstance(size, int) and size == 0:  # There is no block.
        return ops.sum(ops.cast(logits, "float32"))
    if isinstance(size, int):
        rows = min(rows, size + size % 2)
    paired = pairs.weights != 0
    index = ops.arange(size, dtype="int32")
    rest = pairs.count + index - ops.cumsum(ops.cast(paired, "int32"))
    place = ops.where(paired, pairs.place, rest)
    padded_size = size + -size % rows
    order = ops.scatter(place[:, None], index, (padded_size,))

    @autodiff.custom_gradient
    def total(logits):
        def body(start, value, d_ordered):
            tokens = ops.slice(order, (start,), (rows,))
            weights = pairs.weights_of(tokens, start)
            block = ops.cast(ops.take(logits, tokens, axis=0), "float32")
            log_probs = ops.log_softmax(block)
            added, d_block = divergence(log_probs, ops.exp(log_probs), weights)
            d_block = ops.cast(d_block, d_ordered.dtype)
            d_ordered = ops.slice_update(d_ordered, (start, 0), d_block)
            return start + rows, value + added, d_ordered

        _, value, d_ordered = ops.while_loop(
            # The count is even, so never the 1 that `_TokenBlocks.has_more` avoids.
            lambda start, *_: start < pairs.count,
            body,
            (
                ops.zeros((), "int32"),
                ops.zeros((), "float32"),
                ops.zeros((padded_size, vocabulary_size), logits.dtype),
            ),
        )

        def gradient(upstream):
            d_logits = ops.cast(ops.take(d_ordered, place, axis=0), "float32")
            return ops.cast(d_logits * upstream, logits.dtype)

        return value, gradient

    return total(logits)
