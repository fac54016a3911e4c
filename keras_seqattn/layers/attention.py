"""Scaled dot-product attention: pure functions first, then the layer.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads
(H is a multiple of G), R = H / G, K key_dim, V value_dim.
"""

import keras
from keras import ops

from keras_seqattn.layers import arguments, masks

IMPLEMENTATIONS = ("auto", "explicit", "fused")
# Far below any score, and finite: a row with no key softmaxes to a mean instead of NaN,
# and is then set to zero.
MASKED_SCORE = -1e30
MASKED_SCORE_FLOAT16 = -3e4


def dot_product_attention(
    query,
    key,
    value,
    *,
    mask=None,
    bias=None,
    scale=None,
    causal=False,
    window=None,
    offset=0,
    dropout=0.0,
    seed=None,
    implementation="auto",
):
    """Weighs values by how well their keys fit each query.

    output = softmax(scale * query . key^T + bias) . value, where a masked pair weighs
    nothing and a query that may attend to nothing gives exactly zero. The softmax is
    in float32; the query is scaled before the product, so that float16 does not
    overflow. Every implementation gives the same numbers.
    Shapes: B batch, T target length, S source length, H heads, G key and value heads,
    K key_dim, V value_dim.

    Args:
        query: Float tensor `(B, T, H, K)`.
        key: Float tensor `(B, S, G, K)`, where H is a multiple of G: head h reads
            group h // (H / G).
        value: Float tensor `(B, S, G, V)`.
        mask: Bool tensor that broadcasts to `(B, H, T, S)`, or `(B, T, S)` for all
            heads; True = may attend.
        bias: Float tensor that broadcasts to `(B, H, T, S)`.
        scale: Factor of the scores; None is 1 / sqrt(K), 1.0 leaves them unscaled.
        causal: Whether query i sees only keys j <= i + offset.
        window: Positive integer: query i sees only keys |i + offset - j| < window.
        offset: Position of the first query among the keys.
        dropout: Fraction of the weights dropped, in [0, 1). The function knows no
            inference: pass 0 there.
        seed: Integer or `keras.random.SeedGenerator` of the dropout.
        implementation: "auto", "explicit" (O(T S) memory) or "fused" (the backend's
            kernel; no dropout).

    Returns:
        Float tensor `(B, T, H, V)` in the dtype of `query`.

    Raises:
        ValueError: If ranks, head counts or mask do not fit, or `implementation` is
            unknown or cannot do what is asked.

    Example:
        >>> import numpy as np
        >>> q, k = np.zeros((2, 3, 4, 8), "float32"), np.zeros((2, 5, 4, 8), "float32")
        >>> tuple(dot_product_attention(q, k, k).shape)
        (2, 3, 4, 8)

    Reference:
        Vaswani et al. 2017, section 3.2.1. Differs: empty rows are zero.
    """
    query, key, value = _checked(query, key, value)
    mask = masks.pair_mask(
        ops.shape(query), ops.shape(key), mask, causal, window, offset
    )
    query = _scaled(query, scale)
    arguments.choice("implementation", implementation, IMPLEMENTATIONS)
    if implementation == "auto":
        implementation = choose_implementation(
            query.shape, key.shape, value.shape, dropout=dropout, dtype=query.dtype
        )
    if implementation == "fused":
        output = _fused(query, key, value, mask, bias, dropout)
    else:
        scores = _softmax_scores(query, key, mask, bias)
        output = _dropped_sum(scores, value, dropout, seed)
    return _zero_empty_rows(output, mask, heads_last=True)


def attention_scores(
    query,
    key,
    *,
    mask=None,
    bias=None,
    scale=None,
    causal=False,
    window=None,
    offset=0,
):
    """Computes the weights with which `dot_product_attention` sums the values.

    Each row sums to 1, or is all zero where the query may attend to nothing.

    Args:
        query: Float tensor `(B, T, H, K)`.
        key: Float tensor `(B, S, G, K)`.
        mask: As in `dot_product_attention`; so are the arguments after it.
        bias: Float tensor that broadcasts to `(B, H, T, S)`.
        scale: Factor of the scores; None is 1 / sqrt(K).
        causal: Whether query i sees only keys j <= i + offset.
        window: Positive integer, or None.
        offset: Position of the first query among the keys.

    Returns:
        Float tensor `(B, H, T, S)` in the dtype of `query`.

    Raises:
        ValueError: If ranks, head counts or mask do not fit.

    Example:
        >>> import numpy as np
        >>> q = np.zeros((1, 2, 1, 8), "float32")
        >>> np.asarray(attention_scores(q, q, causal=True))[0, 0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    query, key, _ = _checked(query, key, key)
    mask = masks.pair_mask(
        ops.shape(query), ops.shape(key), mask, causal, window, offset
    )
    scores = _softmax_scores(_scaled(query, scale), key, mask, bias)
    return _zero_empty_rows(scores, mask, heads_last=False)


def weighted_sum(scores, value):
    """Sums the values of each head with given weights.

    Args:
        scores: Float tensor `(B, H, T, S)`.
        value: Float tensor `(B, S, G, V)`, where H is a multiple of G.

    Returns:
        Float tensor `(B, T, H, V)`.

    Example:
        >>> import numpy as np
        >>> scores, value = np.ones((1, 4, 3, 2)), np.ones((1, 2, 4, 8))
        >>> tuple(weighted_sum(scores, value).shape)
        (1, 3, 4, 8)
    """
    groups, value_dim = value.shape[2:]
    _, heads, target, source = ops.shape(scores)
    scores = ops.reshape(scores, (-1, groups, heads // groups, target, source))
    output = ops.einsum("bgrts,bsgv->btgrv", scores, value)
    return ops.reshape(output, (-1, target, heads, value_dim))  # (B, T, H, V)


def attend(query, key, value, *, return_scores, implementation, **options):
    """Attends, and gives the weights too where they are asked for.

    Args:
        query: Float tensor `(B, T, H, K)`.
        key: Float tensor `(B, S, G, K)`.
        value: Float tensor `(B, S, G, V)`.
        return_scores: Whether the weights are wanted; then they are explicit.
        implementation: As in `dot_product_attention`.
        **options: The other arguments of `dot_product_attention`.

    Returns:
        The output `(B, T, H, V)`, and the weights `(B, H, T, S)` before dropout, or
        None.

    Example:
        >>> import numpy as np
        >>> x = np.zeros((1, 3, 2, 4), "float32")
        >>> _, scores = attend(x, x, x, return_scores=True, implementation="auto")
        >>> tuple(scores.shape)
        (1, 2, 3, 3)
    """
    if not return_scores:
        output = dot_product_attention(
            query, key, value, implementation=implementation, **options
        )
        return output, None
    dropout, seed = options.pop("dropout", 0.0), options.pop("seed", None)
    scores = attention_scores(query, key, **options)
    return _dropped_sum(scores, value, dropout, seed), scores


def choose_implementation(
    query_shape, key_shape, value_shape=None, *, dropout=0.0, dtype="float32"
):
    """Picks the implementation that `implementation="auto"` stands for.

    The fused kernel where the backend has one (JAX, torch), unless dropout falls on
    the weights. On JAX explicit, too, where values have another width than the keys,
    and in float16, for which its kernel has no gradient on a CPU.

    Args:
        query_shape: Shape `(B, T, H, K)`.
        key_shape: Shape `(B, S, G, K)`.
        value_shape: Shape `(B, S, G, V)`; the key's when None.
        dropout: Fraction of the weights dropped in this call.
        dtype: Dtype of the query.

    Returns:
        "explicit" or "fused".

    Example:
        >>> choose_implementation((1, 8, 2, 4), (1, 8, 2, 4), dropout=0.1)
        'explicit'
    """
    backend = keras.backend.backend()
    same_width = value_shape is None or value_shape[-1] == key_shape[-1]
    is_float16 = keras.backend.standardize_dtype(dtype) == "float16"
    fits_jax = same_width and not is_float16
    has_kernel = backend == "torch" or (backend == "jax" and fits_jax)
    return "fused" if has_kernel and dropout == 0.0 else "explicit"


def _checked(query, key, value):
    """Converts the three to tensors and sees that they fit each other."""
    query, key, value = map(ops.convert_to_tensor, (query, key, value))
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if len(tensor.shape) != 4:
            raise ValueError(
                f"`{name}` must have rank 4, (batch, length, heads, width). "
                f"Received: {name}.shape={tuple(tensor.shape)}."
            )
    if query.shape[2] % key.shape[2] or key.shape[2] != value.shape[2]:
        raise ValueError(
            "`query` must have a multiple of the heads of `key` and `value`, which "
            f"must be equal. Received: query.shape={tuple(query.shape)}, "
            f"key.shape={tuple(key.shape)}, value.shape={tuple(value.shape)}."
        )
    lengths = {x.shape[1] for x in (key, value)} - {None}
    if query.shape[3] != key.shape[3] or len(lengths) > 1:
        raise ValueError(
            "`key` must have the width of `query` and the length of `value`. "
            f"Received: query.shape={tuple(query.shape)}, "
            f"key.shape={tuple(key.shape)}, value.shape={tuple(value.shape)}."
        )
    return query, key, value


def _dropped_sum(scores, value, dropout, seed):
    """Sums the values with weights of which a fraction is dropped."""
    if dropout > 0.0:
        scores = keras.random.dropout(scores, dropout, seed=seed)
    return weighted_sum(scores, value)


def _scaled(query, scale):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return query * ops.cast(scale, query.dtype)


def _softmax_scores(query, key, mask, bias):
    """Gives softmax(query . key^T + bias) of a scaled query, `(B, H, T, S)`."""
    groups = key.shape[2]
    _, target, heads, key_dim = ops.shape(query)
    grouped = ops.reshape(query, (-1, target, groups, heads // groups, key_dim))
    scores = ops.einsum("btgrk,bsgk->bgrts", grouped, key)
    scores = ops.reshape(scores, (-1, heads, target, ops.shape(key)[1]))
    scores = ops.cast(scores, "float32")  # (B, H, T, S)
    if bias is not None:
        scores = scores + ops.cast(bias, "float32")
    if mask is not None:
        scores = ops.where(mask, scores, MASKED_SCORE)
    # Keras warns of a softmax over one key, which is what a first position may see.
    one_key = scores.shape[-1] == 1
    scores = ops.ones_like(scores) if one_key else ops.softmax(scores, axis=-1)
    return ops.cast(scores, query.dtype)


def _fused(query, key, value, mask, bias, dropout):
    """Calls the backend's kernel with a query that is scaled already."""
    if dropout > 0.0:
        raise ValueError(
            "`dropout` must be 0 in the fused implementation; take 'auto' or "
            f"'explicit'. Received: dropout={dropout!r}."
        )
    repeats = query.shape[2] // key.shape[2]
    if repeats > 1:
        key, value = (ops.repeat(x, repeats, axis=2) for x in (key, value))
    if mask is not None and bias is not None:
        # torch's kernel takes one of the two.
        is_float16 = keras.backend.standardize_dtype(query.dtype) == "float16"
        masked = MASKED_SCORE_FLOAT16 if is_float16 else MASKED_SCORE
        bias = ops.where(
            mask, ops.cast(bias, query.dtype), ops.cast(masked, query.dtype)
        )
        mask = None
    # JAX's kernel wants one width; zeros change no product.
    value_dim, width = value.shape[-1], max(key.shape[-1], value.shape[-1])
    query, key, value = (_widened(x, width) for x in (query, key, value))
    output = ops.dot_product_attention(
        query, key, value, bias=bias, mask=mask, scale=1.0
    )
    return output[..., :value_dim]


def _widened(x, width):
    missing = width - x.shape[-1]
    return ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x


def _zero_empty_rows(x, mask, heads_last):
    """Sets to zero what belongs to a query that may attend to nothing."""
    if mask is None:
        return x
    seen = ops.any(mask, axis=-1, keepdims=True)  # (B, H, T, 1)
    if heads_last:
        seen = ops.transpose(seen, (0, 2, 1, 3))  # (B, T, H, 1)
    return ops.where(seen, x, ops.cast(0.0, x.dtype))


@keras.saving.register_keras_serializable(package="keras_seqattn")
class ScaledDotProductAttention(keras.layers.Layer):
    """Attends with queries, keys and values as they are, without projections.

    output = softmax(scale * query . key^T) . value. Implicit Keras masks and the masks
    given are combined: a masked key weighs nothing, and a masked query, or one that may
    attend to nothing, gives exactly zero. The output has the mask of `query`.
    Shapes: B batch, T target length, S source length, H heads, K key_dim, V value_dim.

    Args:
        scale: Factor of the scores; None is 1 / sqrt(K), 1.0 leaves them unscaled.
        dropout: Fraction of the weights dropped while training, in [0, 1).
        implementation: "auto", "explicit" or "fused": see `dot_product_attention`.
        seed: Integer seed of the dropout, or None.

    Call arguments:
        query: Float tensor `(B, T, K)` or `(B, T, H, K)`.
        value: Float tensor `(B, S, V)` or `(B, S, H, V)`.
        key: Float tensor `(B, S, K)` or `(B, S, H, K)`; `value` when None.
        query_mask: Bool tensor `(B, T)`.
        value_mask: Bool tensor `(B, S)`.
        key_mask: Bool tensor `(B, S)`.
        attention_mask: Bool tensor `(B, T, S)` or one that broadcasts to
            `(B, H, T, S)`.
        return_attention_scores: Whether to return the weights too.
        training: Whether to drop weights.
        use_causal_mask: Whether query i sees only keys j <= i.

    Returns:
        Float tensor of the shape of `query` with the width of `value`, in the compute
        dtype; with `return_attention_scores` also the weights, `(B, T, S)` or
        `(B, H, T, S)`.

    Raises:
        ValueError: If `dropout` is not in [0, 1), or shapes do not fit.

    Example:
        >>> import numpy as np
        >>> x = np.zeros((2, 5, 8), "float32")
        >>> tuple(ScaledDotProductAttention()(x, x).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.2.1. Differs: empty rows are zero.
    """

    def __init__(
        self, scale=None, dropout=0.0, implementation="auto", seed=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.scale = scale
        self.dropout = arguments.fraction("dropout", dropout)
        self.implementation = arguments.choice(
            "implementation", implementation, IMPLEMENTATIONS
        )
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None
        self.supports_masking = True
        self.built = True

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        """Attends from each vector of `query` to those of `value`."""
        key = value if key is None else key
        mask = masks.input_masks(query_mask, value_mask, key_mask, attention_mask)
        one_head = len(query.shape) == 3
        if one_head:
            query, key, value = (ops.expand_dims(x, 2) for x in (query, key, value))
        output, scores = attend(
            query,
            key,
            value,
            mask=mask,
            scale=self.scale,
            causal=use_causal_mask,
            dropout=self.dropout if training else 0.0,
            seed=self.seed_generator,
            implementation=self.implementation,
            return_scores=return_attention_scores,
        )
        if one_head:
            output = ops.squeeze(output, 2)
            scores = None if scores is None else ops.squeeze(scores, 1)
        return (output, scores) if return_attention_scores else output

    def compute_mask(self, query, mask=None):
        """Passes the mask of `query` on to the output, none to the weights."""
        return mask

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        """Gives the shape of the output without the weights."""
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        """Gives the symbolic output, and the symbolic weights where asked for."""
        output = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape), self.compute_dtype
        )
        if not return_attention_scores:
            return output
        batch, target, *heads = query.shape[:-1]
        shape = (batch, *heads, target, value.shape[1])
        return output, keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self):
        """Gives the constructor's arguments."""
        return {
            **super().get_config(),
            "scale": self.scale,
            "dropout": self.dropout,
            "implementation": self.implementation,
            "seed": self.seed,
        }
