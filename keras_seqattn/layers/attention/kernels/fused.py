"""The attention kernels of JAX and torch, with the contract of our own kernels.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
K key_dim, V value_dim.
"""

from typing import Any

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import attention
from keras_seqattn.backend.ops import largest
from keras_seqattn.layers.attention import masks
from keras_seqattn.layers.attention.kernels import explicit

LOWEST_FLOAT16 = -65504.0


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout: float,
    **options: Any,
) -> Tensor:
    """Computes `dot_product_attention` of a scaled query with the backend's kernel.

    The bias is a tensor, or None; dropout must be 0. The options are `mask`, `causal`,
    `window` and `offset`.
    """
    if dropout > 0.0:
        raise ValueError(
            "`dropout` must be 0 in the fused implementation; take 'auto', 'explicit' "
            f"or 'chunked'. Received: dropout={dropout!r}."
        )
    repeats = query.shape[2] // key.shape[2]
    if repeats > 1:
        key, value = (_repeat_heads(x, repeats) for x in (key, value))
    is_causal = is_plain_causal(bias=bias, **options)
    pairs = None if is_causal else masks.pair_mask(query, key, **options)
    mask = _open_empty_rows(pairs)
    dtype = keras.backend.standardize_dtype(query.dtype)
    if dtype == "float16" and bias is None and mask is not None:
        bias = ops.zeros((1, 1, 1, 1))  # torch hides by a number that scores can reach.
    if bias is not None:  # torch's kernel takes only one of the two.
        bias, mask = _bias_of_kernel(bias, mask, dtype), None
    # JAX's kernel needs a single width; padding with zeros changes no product.
    value_dim, width = value.shape[-1], max(key.shape[-1], value.shape[-1])
    query, key, value = (_pad_width(x, width) for x in (query, key, value))
    output = attention.fused_attention(query, key, value, bias, mask, is_causal)
    return explicit.zero_empty_rows(output[..., :value_dim], pairs, heads_last=True)


def _repeat_heads(x, repeats):
    """Does what `ops.repeat` does, also for torch's tensors without values."""
    batch, length, heads, width = ops.shape(x)
    x = ops.broadcast_to(x[:, :, :, None], (batch, length, heads, repeats, width))
    return ops.reshape(x, (batch, length, heads * repeats, width))


def _open_empty_rows(mask):
    """Lets a query that may attend to nothing attend to all: its output is not used.

    On a Hopper GPU the gradient of cuDNN's kernel is NaN in such a row if the number of
    keys is 64 more than a multiple of 128 (pytorch/pytorch#196678; seen with JAX).
    """
    if mask is None:
        return None
    return ops.logical_or(mask, ops.logical_not(ops.any(mask, axis=-1, keepdims=True)))


def is_plain_causal(
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    window: int | None,
    offset: int | Tensor,
) -> bool:
    """Returns whether a kernel's causal flag by itself says what is hidden."""
    is_aligned = isinstance(offset, int) and offset == 0
    return causal and is_aligned and mask is None and bias is None and window is None


def _bias_of_kernel(bias, mask, dtype):
    """Returns a bias in a dtype that gives the same weights, with the mask in it.

    Subtracting one number from all scores of a row leaves its weights unchanged. In 16
    bits it is the largest bias that is not masked: those near it keep their precision,
    and only a bias far below it is out of float16's range.
    """
    is_half = dtype in ("float16", "bfloat16")
    bias = ops.cast(bias, "float32" if is_half else dtype)
    if mask is not None:
        bias = ops.where(mask, bias, explicit.MASKED_SCORE)
    if not is_half:
        return bias
    # Without keys there is no largest bias: hence the last argument.
    row_max = largest(bias, -1, explicit.MASKED_SCORE)
    bias = bias - ops.stop_gradient(row_max)
    if dtype == "float16":
        # Not `clip`: JAX halves the gradient of what is equal to a bound, as to the 0.
        bias = ops.maximum(bias, LOWEST_FLOAT16)
        if mask is not None:
            bias = ops.where(mask, bias, -float("inf"))
    return ops.cast(bias, dtype)


def _pad_width(x, width):
    missing = width - x.shape[-1]
    return ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x
