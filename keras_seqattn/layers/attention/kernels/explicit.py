"""Turns any kind of score into weighted values, with all O(T S) weights at once.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads
(H is a multiple of G), R = H / G, V value_dim.
"""

from typing import Any

import keras
from keras import ops

from keras_seqattn.annotations import Seed, Tensor
from keras_seqattn.layers.distances import DistanceBias, of_pairs
from keras_seqattn.layers.dropout import drop

# Far below any score, but finite: the softmax of a row without keys gives equal weights
# instead of NaN, and the row is then set to zero.
MASKED_SCORE = -1e30


def widen(x: Tensor) -> Tensor:
    """Casts float16, in which products overflow, to float32; returns others as is."""
    is_float16 = keras.backend.standardize_dtype(x.dtype) == "float16"
    return ops.cast(x, "float32") if is_float16 else x


def softmax(
    scores: Tensor, mask: Tensor | None, bias: DistanceBias | Tensor | None, dtype: Any
) -> Tensor:
    """Computes the weights `(B, H, T, S)` of scores with bias and mask, in float32.

    Rows without a key sum to 1 too: see `zero_empty_rows`. Only the result is in
    `dtype`.
    """
    scores = ops.cast(scores, "float32")
    if bias is not None:
        scores = scores + ops.cast(of_pairs(bias), "float32")
    if mask is not None:
        # Added, since the gradient of `where` would be another pass over all scores. A
        # tensor, since two Python numbers would have Keras's default dtype.
        hidden = ops.convert_to_tensor(MASKED_SCORE, "float32")
        scores = scores + ops.where(mask, 0.0, hidden)
    # Keras warns about a softmax over one key, all that a first position may see.
    one_key = scores.shape[-1] == 1
    scores = scores * 0 + 1 if one_key else ops.softmax(scores)  # 1, but NaN of NaN
    return ops.cast(scores, dtype)


def zero_empty_rows(x: Tensor, mask: Tensor | None, heads_last: bool) -> Tensor:
    """Sets the rows of queries that may attend to nothing to zero.

    `x` is weights `(B, H, T, S)`; with `heads_last`, outputs `(B, T, H, V)`. The mask
    broadcasts to `(B, H, T, S)`.
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
    dropout: float,
    seed: Seed,
) -> Tensor:
    """Computes the sums `(B, T, H, V)` of each head's values with given weights."""
    if dropout > 0.0:
        weights = drop(weights, dropout, seed)
    groups, value_dim = value.shape[2:]
    # All sizes are given, since -1 is ambiguous for a tensor without elements.
    batch, heads, target, source = ops.shape(weights)
    weights = ops.reshape(weights, (batch, groups, heads // groups * target, source))
    output = ops.matmul(weights, ops.transpose(value, (0, 2, 1, 3)))  # (B, G, R T, V)
    output = ops.reshape(output, (batch, heads, target, value_dim))
    # Keras's product of float64 is float32 on torch.
    return ops.cast(ops.transpose(output, (0, 2, 1, 3)), value.dtype)
