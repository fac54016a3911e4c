"""From scores to weighted values with all O(T S) weights at once, whatever the score.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads
(H is a multiple of G), R = H / G, V value_dim.
"""

from typing import Any

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.layers.attention.distances import DistanceBias, of_pairs
from keras_seqattn.layers.dropout import drop

# Far below any score, and finite: a row with no key softmaxes to a mean instead of NaN,
# and is then set to zero.
MASKED_SCORE = -1e30


def widen(x: Tensor) -> Tensor:
    """Returns what scores are computed from: float16, whose products overflow, wider.

    Args:
        x: Queries or keys, a float tensor.

    Returns:
        `x`, in float32 where it is float16.

    Example:
        >>> keras.backend.standardize_dtype(widen(ops.ones(2, "float16")).dtype)
        'float32'
    """
    is_float16 = keras.backend.standardize_dtype(x.dtype) == "float16"
    return ops.cast(x, "float32") if is_float16 else x


def softmax(
    scores: Tensor, mask: Tensor | None, bias: DistanceBias | Tensor | None, dtype: Any
) -> Tensor:
    """Normalizes biased and masked scores, in float32.

    Args:
        scores: Float tensor `(B, H, T, S)`.
        mask: Bool tensor that broadcasts to it, or None.
        bias: Float tensor that broadcasts to it, a `DistanceBias`, or None.
        dtype: Dtype of the result.

    Returns:
        Tensor `(B, H, T, S)` whose rows sum to 1, those without a key too: see
        `zero_empty_rows`.

    Example:
        >>> float(softmax(ops.zeros((1, 1, 1, 4)), None, None, "float32")[0, 0, 0, 0])
        0.25
    """
    scores = ops.cast(scores, "float32")
    if bias is not None:
        scores = scores + ops.cast(of_pairs(bias), "float32")
    if mask is not None:
        # Added, since the gradient of a choice is another pass over all scores.
        scores = scores + ops.where(mask, 0.0, MASKED_SCORE)
    # Keras warns of a softmax over one key, which is what a first position may see.
    one_key = scores.shape[-1] == 1
    scores = ops.ones_like(scores) if one_key else ops.softmax(scores)
    return ops.cast(scores, dtype)


def zero_empty_rows(x: Tensor, mask: Tensor | None, heads_last: bool) -> Tensor:
    """Sets to zero what belongs to a query that may attend to nothing.

    Args:
        x: Weights `(B, H, T, S)`, or outputs `(B, H, T, V)` or `(B, T, H, V)`.
        mask: Bool tensor that broadcasts to `(B, H, T, S)`, or None.
        heads_last: Whether `x` are outputs `(B, T, H, V)`.

    Returns:
        Tensor of the shape and dtype of `x`.

    Example:
        >>> mask = ops.zeros((1, 1, 1, 2), "bool")
        >>> x = zero_empty_rows(ops.ones((1, 1, 1, 1)), mask, heads_last=True)
        >>> float(x[0, 0, 0, 0])
        0.0
    """
    if mask is None:
        return x
    seen = ops.any(mask, axis=-1, keepdims=True)  # (B, H, T, 1)
    if heads_last:
        seen = ops.transpose(seen, (0, 2, 1, 3))  # (B, T, H, 1)
    return ops.where(seen, x, ops.cast(0.0, x.dtype))


def weighted_sum(
    weights: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    seed: int | keras.random.SeedGenerator | None = None,
) -> Tensor:
    """Sums the values of each head with given weights.

    Args:
        weights: Float tensor `(B, H, T, S)`.
        value: Float tensor `(B, S, G, V)`, where H is a multiple of G.
        mask: Bool tensor that broadcasts to the shape of `weights`; a query that may
            attend to nothing is given zero. None where no weights are theirs.
        dropout: Fraction of the weights dropped, in [0, 1).
        seed: Integer or `keras.random.SeedGenerator` of the dropout.

    Returns:
        Float tensor `(B, T, H, V)`.

    Example:
        >>> weights, value = ops.ones((1, 4, 3, 2)), ops.ones((1, 2, 4, 8))
        >>> tuple(weighted_sum(weights, value).shape)
        (1, 3, 4, 8)
    """
    if dropout > 0.0:
        weights = drop(weights, dropout, seed)
    groups, value_dim = value.shape[2:]
    # Each size by itself: of a tensor without elements, -1 could be any.
    batch, heads, target, source = ops.shape(weights)
    weights = ops.reshape(weights, (batch, groups, heads // groups * target, source))
    output = ops.matmul(weights, ops.transpose(value, (0, 2, 1, 3)))  # (B, G, R T, V)
    output = ops.reshape(output, (batch, heads, target, value_dim))
    output = zero_empty_rows(output, mask, heads_last=False)
    return ops.transpose(output, (0, 2, 1, 3))
