"""Scaled dot-product attention as pure functions, and the choice of a kernel.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads
(H is a multiple of G), R = H / G, K key_dim, V value_dim.
"""

import functools
from typing import Any, Literal

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Implementation, Seed, Shape, Tensor
from keras_seqattn.backend import tracing
from keras_seqattn.backend.attention import (
    finds_cudnn,
    fused_attention_is_linear,
    has_fused_attention,
)
from keras_seqattn.layers import distances
from keras_seqattn.layers.attention import masks
from keras_seqattn.layers.attention.kernels import explicit, fused
from keras_seqattn.layers.attention.kernels.chunked.kernel import chunked_attention
from keras_seqattn.layers.distances import DistanceBias
from keras_seqattn.layers.shapes import check_batch, check_rank

IMPLEMENTATIONS = ("auto", "explicit", "fused", "chunked")
# From this many query-key pairs on, blocks of scores are faster than all at once, and
# take less memory: benchmarks/results/2026-11-22.md has both at several lengths.
LONG = 2**23


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
    dropout: float = 0.0,
    seed: Seed = None,
    implementation: Implementation = "auto",
) -> Tensor:
    """Weighs values by how well their keys fit each query.

    output = softmax(scale * query . key^T + bias) . value, where a masked pair has
    weight zero and a query that may attend to nothing gives exactly zero. The softmax
    is in float32; the query is scaled before the product, and scores of float16 are
    computed in float32, so that they do not overflow. Without dropout, every
    implementation gives the same numbers.

    The numbers at masked pairs change neither outputs nor gradients, as long as they
    are finite: NaN or infinity there may spread, since 0 * NaN is NaN. A length or a
    batch of 0 is allowed; with no keys at all, each query gives zero.
    Shapes: B batch, T target length, S source length, H heads, G key and value heads,
    K key_dim, V value_dim.

    Args:
        query: Float tensor `(B, T, H, K)`.
        key: Float tensor `(B, S, G, K)`, where H is a multiple of G: head h reads
            group h // (H / G).
        value: Float tensor `(B, S, G, V)`.
        mask: Bool tensor that broadcasts to `(B, H, T, S)`; True = may attend. Of rank
            3 it is `(B, T, S)`, of rank 2 `(T, S)`, for all heads.
        bias: Float tensor that broadcasts to `(B, H, T, S)`, of rank 3 `(H, T, S)`; or
            a `DistanceBias`. A number of at most -1e30 in a tensor, such as -inf or the
            lowest float32, hides its pair as a mask does.
        scale: Factor of the scores; None is 1 / sqrt(K), 1.0 leaves them unscaled.
        causal: Whether query i sees only keys j <= i + offset.
        window: Positive integer: query i sees only keys |i + offset - j| < window.
        offset: Position of the first query among the keys.
        dropout: Fraction of the weights dropped, in [0, 1). The function does not know
            whether it is training: pass 0 for inference.
        seed: Integer or `keras.random.SeedGenerator` of the dropout.
        implementation: "explicit" (O(T S) memory), "fused" (the backend's kernel, or
            Keras's formula in O(T S) memory where there is none; no dropout), "chunked"
            (O(T + S) memory) or "auto": see `choose_implementation`.

    Returns:
        Float tensor `(B, T, H, V)` in the dtype of `query`.

    Raises:
        ValueError: If shapes do not fit, `query` is not of floats, `mask` is not bool,
            an option is out of range, or `implementation` is unknown or cannot do what
            is asked.

    Example:
        >>> import numpy as np
        >>> q, k = np.zeros((2, 3, 4, 8), "float32"), np.zeros((2, 5, 4, 8), "float32")
        >>> tuple(dot_product_attention(q, k, k).shape)
        (2, 3, 4, 8)

    Reference:
        Vaswani et al. 2017, section 3.2.1. Differs: empty rows are zero.
    """
    query, key, value = checked_inputs(query, key, value)
    mask, bias = checked_mask_and_bias(query, key, mask, bias)
    arguments.scalar("scale", scale, optional=True)
    causal, window = masks.checked_band(causal, window, offset)
    dropout = arguments.fraction("dropout", dropout)
    arguments.seed("seed", seed)
    options = {"mask": mask, "causal": causal, "window": window, "offset": offset}
    arguments.choice("implementation", implementation, IMPLEMENTATIONS)
    attend_with = functools.partial(
        _attend_with, query, key, value, bias, scale, dropout, seed, **options
    )
    if implementation != "auto":
        return attend_with(implementation)
    choose = functools.partial(
        choose_implementation,
        *(query.shape, key.shape, value.shape),
        dtype=query.dtype,
        bias=bias,
        dropout=dropout,
        **options,
    )
    # A JAX program may be compiled for a different device than the host's
    # (`jax.export`). So both choices are kept, and the program's device decides. Only
    # a GPU's kernel differs: a TPU gets what a CPU gets, and on torch the device makes
    # no difference.
    chosen = choose(device="cpu")
    on_gpu = choose(device="gpu") if finds_cudnn() else chosen
    if on_gpu == chosen:
        return attend_with(chosen)
    return tracing.by_platform(
        query, default=lambda: attend_with(chosen), gpu=lambda: attend_with(on_gpu)
    )


def _attend_with(
    query, key, value, bias, scale, dropout, seed, implementation, **options
):
    """Computes `dot_product_attention` with one of the kernels."""
    if implementation == "explicit":
        mask = masks.pair_mask(query, key, **options)
        scores = dot_scores(query, key, scale)
        weights = explicit.softmax(scores, mask, bias, query.dtype)
        output = explicit.weighted_sum(weights, value, dropout, seed)
        return explicit.zero_empty_rows(output, mask, heads_last=True)
    scaled = _scale_query(query, scale)
    if implementation == "fused":
        bias = distances.of_pairs(bias)
        return fused.fused_attention(scaled, key, value, bias, dropout, **options)
    options["mask"] = masks.pair_mask(query, key, options["mask"])
    return chunked_attention(
        scaled, key, value, bias=bias, dropout=dropout, seed=seed, **options
    )


def attention_scores(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
) -> Tensor:
    """Computes the weights with which `dot_product_attention` sums the values.

    Each row sums to 1, or is all zero where the query may attend to nothing.
    Shapes: B batch, T target length, S source length, H heads, G key heads, K key_dim.

    Args:
        query: Float tensor `(B, T, H, K)`.
        key: Float tensor `(B, S, G, K)`.
        mask: As in `dot_product_attention`; so are the arguments after it.
        bias: Float tensor that broadcasts to `(B, H, T, S)`, or a `DistanceBias`.
        scale: Factor of the scores; None is 1 / sqrt(K).
        causal: Whether query i sees only keys j <= i + offset.
        window: Positive integer, or None.
        offset: Position of the first query among the keys.

    Returns:
        Float tensor `(B, H, T, S)` in the dtype of `query`.

    Raises:
        ValueError: If shapes do not fit, `query` is not of floats, `mask` is not bool,
            or an option is out of range.

    Example:
        >>> import numpy as np
        >>> q = np.zeros((1, 2, 1, 8), "float32")
        >>> np.asarray(attention_scores(q, q, causal=True))[0, 0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    query, key, _ = checked_inputs(query, key, key)
    mask, bias = checked_mask_and_bias(query, key, mask, bias)
    arguments.scalar("scale", scale, optional=True)
    causal, window = masks.checked_band(causal, window, offset)
    mask = masks.pair_mask(query, key, mask, causal, window, offset)
    weights = explicit.softmax(dot_scores(query, key, scale), mask, bias, query.dtype)
    return explicit.zero_empty_rows(weights, mask, heads_last=False)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_scores: bool,
    implementation: Implementation,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes `dot_product_attention`, and the weights `(B, H, T, S)` where asked for.

    The weights are those before dropout; None if not asked for. If they are, the
    computation is explicit, whatever `implementation` says. The options are those of
    `dot_product_attention`.
    """
    if not return_scores:
        output = dot_product_attention(
            query, key, value, implementation=implementation, **options
        )
        return output, None
    query, key, value = checked_inputs(query, key, value)
    dropout, seed = options.pop("dropout", 0.0), options.pop("seed", None)
    scores = attention_scores(query, key, **options)
    return explicit.weighted_sum(scores, value, dropout, seed), scores


def choose_implementation(
    query_shape: Shape,
    key_shape: Shape,
    value_shape: Shape | None = None,
    *,
    dtype: Any = "float32",
    mask: Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
    dropout: float = 0.0,
    device: Literal["cpu", "gpu", "tpu"] | None = None,
) -> Literal["explicit", "fused", "chunked"]:
    """Picks the implementation that `implementation="auto"` stands for.

    Attention is short if T * S is less than 2**23, or if a length is not yet known. It
    is then "fused" if the backend has a kernel (JAX, torch) that gives the same
    numbers, else "explicit". The kernels have no dropout; JAX's needs values as wide as
    the keys, and is not used in float16, for which it has no gradient on a CPU.

    Longer attention is "chunked", which takes O(T + S) memory and skips blocks that
    `causal` or `window` hides. It is "fused" if that kernel takes no more memory
    (torch's, or JAX's on a GPU in bfloat16), there is no bias, and pairs are hidden by
    nothing, by a mask of keys alone, or by `causal` alone with `offset` 0. If queries
    have a padding mask too, as in self-attention on padded inputs, layers combine both
    into a mask of pairs.

    Args:
        query_shape: Shape `(B, T, H, K)`.
        key_shape: Shape `(B, S, G, K)`.
        value_shape: Shape `(B, S, G, V)`; the key's when None.
        dtype: Dtype of the query; None: Keras's default float dtype.
        mask: The mask, of which only the shape counts, or None.
        bias: The bias, or None.
        causal: Whether the attention is causal.
        window: The window, or None.
        offset: Position of the first query among the keys.
        dropout: Fraction of the weights dropped in this call.
        device: "cpu", "gpu" or "tpu": what the program is compiled for; None: the
            device of the host.

    Returns:
        "explicit", "fused" or "chunked".

    Raises:
        ValueError: If a shape does not have four sizes, or an option is not as above.

    Example:
        >>> choose_implementation((1, 8, 2, 4), (1, 8, 2, 4), dropout=0.1)
        'explicit'
        >>> choose_implementation((1, 8192, 2, 4), (1, 8192, 2, 4), window=64)
        'chunked'
    """
    _check_shapes(query_shape, key_shape, value_shape)
    causal, window = masks.checked_band(causal, window, offset)
    arguments.tensor("mask", mask, optional=True)
    distances.check_bias(bias)
    arguments.fraction("dropout", dropout)
    arguments.choice("device", device, ("cpu", "gpu", "tpu"), optional=True)
    dtype = arguments.interpreted(
        "dtype", dtype, keras.backend.standardize_dtype, "the name of a dtype"
    )
    same_width = value_shape is None or value_shape[-1] == key_shape[-1]
    has_kernel = dropout == 0.0 and has_fused_attention(dtype, same_width)
    lengths = query_shape[1], key_shape[1]
    # An unknown length is None, a tensor, or a symbolic size of an exported program.
    are_known = all(isinstance(length, int) for length in lengths)
    if not are_known or lengths[0] * lengths[1] < LONG:
        return "fused" if has_kernel else "explicit"
    # No mask, or one that is the same for all queries.
    is_of_keys = mask is None or (len(mask.shape) > 2 and mask.shape[-2] == 1)
    is_simple = is_of_keys and not causal and window is None and bias is None
    is_simple = is_simple or fused.is_plain_causal(mask, bias, causal, window, offset)
    if has_kernel and is_simple and fused_attention_is_linear(dtype, device):
        return "fused"
    return "chunked"


def _check_shapes(query_shape, key_shape, value_shape):
    shapes = {"query_shape": query_shape, "key_shape": key_shape}
    shapes |= {} if value_shape is None else {"value_shape": value_shape}
    for name, shape in shapes.items():
        sized = hasattr(shape, "__len__") and not isinstance(shape, str | dict)
        if not sized or len(shape) != 4:
            arguments.refuse(name, shape, "a shape (batch, length, heads, width)")


def checked_inputs(
    query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns query, key and value as tensors, if their shapes fit each other.

    Key and value get the dtype of the query, which is the result's.
    """
    inputs = {"query": query, "key": key, "value": value}
    for name, given in inputs.items():
        inputs[name] = ops.convert_to_tensor(arguments.tensor(name, given))
        check_rank(name, inputs[name], "(batch, length, heads, width)")
    check_batch(**inputs)
    query, key, value = inputs.values()
    heads = key.shape[2]
    if heads == 0 or query.shape[2] % heads or heads != value.shape[2]:
        raise ValueError(
            "`query` must have a multiple of the heads of `key` and `value`, which "
            f"must be equal and not 0. Received: query.shape={tuple(query.shape)}, "
            f"key.shape={tuple(key.shape)}, value.shape={tuple(value.shape)}."
        )
    # Compared, not put in a set: when torch exports a model, sizes are tensors.
    lengths = key.shape[1], value.shape[1]
    unequal = None not in lengths and lengths[0] != lengths[1]
    if query.shape[3] != key.shape[3] or unequal:
        raise ValueError(
            "`key` must have the width of `query` and the length of `value`. "
            f"Received: query.shape={tuple(query.shape)}, "
            f"key.shape={tuple(key.shape)}, value.shape={tuple(value.shape)}."
        )
    dtype = keras.backend.standardize_dtype(query.dtype)
    if not keras.backend.is_float_dtype(dtype):  # Its weights would be integers too.
        raise ValueError(
            f"`query` must be of floats. Received: query of dtype {dtype!r}."
        )
    return query, ops.cast(key, query.dtype), ops.cast(value, query.dtype)


def checked_mask_and_bias(
    query: Tensor, key: Tensor, mask: Tensor | None, bias: DistanceBias | Tensor | None
) -> tuple[Tensor | None, DistanceBias | Tensor | None]:
    """Returns a mask that also hides what the bias hides, and a bias that is finite.

    Other libraries hide a pair by a bias of -inf, or of the lowest number of a dtype.
    Added to scores, a row of -inf gives NaN, and the lowest number may outweigh a mask.
    """
    arguments.tensor("mask", mask, optional=True)
    sizes = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
    distances.check_bias(bias, sizes)
    if bias is None or isinstance(bias, DistanceBias):
        return mask, bias
    bias = ops.convert_to_tensor(bias)
    hidden = ops.cast(bias, "float32") <= explicit.MASKED_SCORE
    seen = ops.logical_not(hidden)  # not `>`, which would hide a NaN
    bias = ops.where(seen, bias, ops.cast(0.0, bias.dtype))
    seen = ops.reshape(seen, (*[1] * (4 - len(seen.shape)), *ops.shape(seen)))
    return masks.combine_masks(masks.pair_mask(query, key, mask), seen), bias


def _scale_query(query, scale):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return query * ops.cast(scale, query.dtype)


def dot_scores(query: Tensor, key: Tensor, scale: float | None) -> Tensor:
    """Computes scale * query . key^T `(B, H, T, S)`; a scale of None is 1 / sqrt(K)."""
    # Both, and their gradients, are transposed once; an einsum would do so per product.
    query, key = (explicit.widen(x) for x in (query, key))
    query, key = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key))
    groups, source = key.shape[1], ops.shape(key)[2]
    batch, heads, target, key_dim = ops.shape(query)
    query = ops.reshape(
        _scale_query(query, scale), (batch, groups, heads // groups * target, key_dim)
    )
    scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # (B, G, R T, S)
    return ops.reshape(scores, (batch, heads, target, source))
