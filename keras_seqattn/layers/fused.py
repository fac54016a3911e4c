"""The attention kernels of JAX and torch, under the contract of ours.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
K key_dim, V value_dim.
"""

import keras
from keras import ops

from keras_seqattn.layers import explicit, masks

# Far below any score that float16 holds.
MASKED_SCORE_FLOAT16 = -3e4


def fused_attention(query, key, value, bias=None, dropout=0.0, **options):
    """Computes `dot_product_attention` with the kernel of the backend.

    Args:
        query: Float tensor `(B, T, H, K)`, scaled already.
        key: Float tensor `(B, S, G, K)`.
        value: Float tensor `(B, S, G, V)`.
        bias: Float tensor that broadcasts to `(B, H, T, S)`, or None.
        dropout: Must be 0.
        **options: `mask`, `causal`, `window` and `offset` as in
            `dot_product_attention`.

    Returns:
        Float tensor `(B, T, H, V)`.

    Raises:
        ValueError: If `dropout` is not 0.

    Example:
        >>> x = ops.ones((1, 3, 2, 4))
        >>> tuple(fused_attention(x, x, x, causal=True).shape)
        (1, 3, 2, 4)
    """
    if dropout > 0.0:
        raise ValueError(
            "`dropout` must be 0 in the fused implementation; take 'auto', 'explicit' "
            f"or 'chunked'. Received: dropout={dropout!r}."
        )
    repeats = query.shape[2] // key.shape[2]
    if repeats > 1:
        key, value = (ops.repeat(x, repeats, axis=2) for x in (key, value))
    is_causal = is_plain_causal(bias=bias, **options)
    shapes = ops.shape(query), ops.shape(key)
    pairs = mask = None if is_causal else masks.pair_mask(*shapes, **options)
    if mask is not None and bias is not None:
        # torch's kernel takes one of the two.
        bias, mask = _masked_bias(mask, bias, query.dtype), None
    # JAX's kernel wants one width; zeros change no product.
    value_dim, width = value.shape[-1], max(key.shape[-1], value.shape[-1])
    query, key, value = (_widened(x, width) for x in (query, key, value))
    output = ops.dot_product_attention(
        query, key, value, bias=bias, mask=mask, scale=1.0, is_causal=is_causal
    )
    return explicit.zero_empty_rows(output[..., :value_dim], pairs, heads_last=True)


def is_plain_causal(mask=None, bias=None, causal=False, window=None, offset=0):
    """Tells whether the causal flag of a backend's kernel says all there is to say.

    Args:
        mask: The mask, or None.
        bias: The bias, or None.
        causal: Whether the attention is causal.
        window: The window, or None.
        offset: Position of the first query among the keys.

    Returns:
        A bool.

    Example:
        >>> is_plain_causal(causal=True), is_plain_causal(causal=True, window=4)
        (True, False)
    """
    is_aligned = isinstance(offset, int) and offset == 0
    return causal and is_aligned and mask is None and bias is None and window is None


def _masked_bias(mask, bias, dtype):
    """Gives a bias that hides what the mask does, as far as the dtype can."""
    is_float16 = keras.backend.standardize_dtype(dtype) == "float16"
    masked = MASKED_SCORE_FLOAT16 if is_float16 else explicit.MASKED_SCORE
    return ops.where(mask, ops.cast(bias, dtype), ops.cast(masked, dtype))


def _widened(x, width):
    missing = width - x.shape[-1]
    return ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x
