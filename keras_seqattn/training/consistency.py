"""How far apart two predictions of the same labels are, as R-Drop measures it.

Shapes: B batch, T target length, N = B T tokens, V vocabulary, P pairs of tokens.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import autodiff


class Pairs(NamedTuple):
    """The tokens that two neighbouring rows of a batch have in common.

    Attributes:
        weights: Of each token, the same for both of a pair and 0 for those of none,
            float32 `(N,)`.
        place: Where each token of a pair stands when the pairs come first, the two of
            one side by side, int32 `(N,)`. Of other tokens it says nothing.
        count: The number of tokens in pairs, an even int32 scalar.
    """

    weights: Any
    place: Any
    count: Any

    def weights_of(self, tokens: Tensor, start: int | Tensor) -> Tensor:
        """Returns the weights of the tokens that stand at `start` and after it."""
        weights = ops.take(self.weights, tokens, axis=0)
        place = start + ops.arange(tokens.shape[0], dtype="int32")
        return ops.where(place < self.count, weights, 0.0)


def find_pairs(labels: Tensor, weights: Tensor, length: int) -> Pairs:
    """Finds the pairs in rows 2i and 2i + 1 whose labels are equal.

    Args:
        labels: Int32 token ids `(N,)`, row after row.
        weights: Float32 tensor `(N,)`. A pair has the lesser of its two tokens'.
        length: Number of tokens T of a row.

    Returns:
        The `Pairs`.

    Example:
        >>> labels = ops.array([4, 2, 4, 2, 5, 2, 6, 2])
        >>> pairs = find_pairs(labels, ops.ones(8), 2)
        >>> ops.convert_to_numpy(pairs.weights).tolist()
        [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """
    if isinstance(length, int):
        length = max(length, 1)  # Of rows without tokens there are no pairs.
    total = ops.shape(labels)[0]
    paired = total // (2 * length) * (2 * length)  # An odd last row is left out.
    twice = (-1, 2, length)
    rows = ops.reshape(labels[:paired], twice)
    equal = ops.all(rows[:, 0] == rows[:, 1], axis=-1, keepdims=True)
    weights = ops.reshape(weights[:paired], twice)
    lesser = ops.where(equal, ops.minimum(weights[:, 0], weights[:, 1]), 0.0)
    before = ops.cumsum(ops.cast(ops.reshape(lesser != 0, (-1,)), "int32"))
    first = ops.reshape(2 * before - 2, (-1, length))  # (B // 2, T)
    place = ops.stack([first, first + 1], axis=1)  # (B // 2, 2, T)
    lesser = ops.stack([lesser, lesser], axis=1)
    rest = total - paired
    return Pairs(
        _filled(lesser, rest),
        _filled(place, rest),
        ops.sum(ops.cast(lesser != 0, "int32")),
    )


def _filled(values, rest):
    """Returns values in a row, and zeros for the rest of the tokens."""
    zeros = ops.zeros((rest,), values.dtype)
    return ops.concatenate([ops.reshape(values, (-1,)), zeros])


def divergence(
    log_probs: Tensor, probs: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums the weighted divergence of pairs, and gives its gradient.

    Of the two predictions p and q of a pair it is `(KL(p || q) + KL(q || p)) / 2`.

    Args:
        log_probs: Float32 tensor `(2 P, V)`: normalized rows, a pair's side by side.
        probs: Their exponentials.
        weights: Float32 tensor `(2 P,)`, the same for both of a pair. Where it is 0
            nothing is added, whatever the rows hold.

    Returns:
        The sum, a float32 scalar, and its gradient `(2 P, V)` for the logits that the
        log-probabilities come from.

    Example:
        >>> probs = ops.array([[0.5, 0.5], [0.5, 0.5]])
        >>> float(divergence(ops.log(probs), probs, ops.ones(2))[0])
        0.0

    Reference:
        Wu et al. 2021, "R-Drop", equation 2. Differs: none.
    """
    pairs = (-1, 2, log_probs.shape[-1])
    log_probs, probs = ops.reshape(log_probs, pairs), ops.reshape(probs, pairs)
    weights = ops.reshape(weights, (-1, 2, 1))
    apart = log_probs - ops.flip(log_probs, axis=1)  # (P, 2, V)
    each = ops.sum(probs * apart, axis=-1, keepdims=True)  # KL(p || q), KL(q || p)
    slopes = probs * (apart - each + 1.0) - ops.flip(probs, axis=1)
    each, slopes = (ops.where(weights != 0, weights * x, 0.0) for x in (each, slopes))
    return ops.sum(each) / 2, ops.reshape(slopes / 2, (-1, pairs[-1]))


def paired_divergence(logits: Tensor, pairs: Pairs, rows: int) -> Tensor:
    """Sums the weighted divergence of all pairs of a batch.

    Pairs are taken a block at a time, and the gradient is computed beside the value;
    beside the gradient itself, memory is that of a block.

    Args:
        logits: Float tensor `(N, V)`.
        pairs: The `Pairs`.
        rows: Number of tokens in a block, even.

    Returns:
        Float32 scalar, exactly 0 where there is no pair.

    Example:
        >>> pairs = find_pairs(ops.array([4, 4]), ops.ones(2), 1)
        >>> logits = ops.array([[0.0, 0.0], [0.0, 2.0]])
        >>> round(float(paired_divergence(logits, pairs, rows=2)), 4)
        0.3808
    """
    size, vocabulary_size = ops.shape(logits)
    if isinstance(size, int) and size == 0:  # There is no block to look at.
        return ops.sum(ops.cast(logits, "float32"))
    paired = pairs.weights != 0
    index = ops.arange(size, dtype="int32")
    rest = pairs.count + index - ops.cumsum(ops.cast(paired, "int32"))
    place = ops.where(paired, pairs.place, rest)
    room = size + -size % rows
    order = ops.scatter(place[:, None], index, (room,))

    @autodiff.custom_gradient
    def total(logits):
        def body(start, value, slopes):
            tokens = ops.slice(order, (start,), (rows,))
            weights = pairs.weights_of(tokens, start)
            block = ops.cast(ops.take(logits, tokens, axis=0), "float32")
            log_probs = ops.log_softmax(block)
            added, slope = divergence(log_probs, ops.exp(log_probs), weights)
            return (
                start + rows,
                value + added,
                ops.slice_update(slopes, (start, 0), ops.cast(slope, slopes.dtype)),
            )

        _, value, slopes = ops.while_loop(
            lambda start, *_: start < pairs.count,
            body,
            (
                ops.zeros((), "int32"),
                ops.zeros((), "float32"),
                ops.zeros((room, vocabulary_size), logits.dtype),
            ),
        )

        def gradient(upstream):
            slope = ops.cast(ops.take(slopes, place, axis=0), "float32")
            return ops.cast(slope * upstream, logits.dtype)

        return value, gradient

    return total(logits)
