"""Additive attention: pure functions first, then the layer.

The sums of each query with each key, before the tanh and the dot product, would take
O(T S U) memory. For long sequences they are computed block by block, and again in the
backward pass, so that only the O(T S) scores are kept.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G, U units, V value_dim; N blocks of t queries, M blocks of s keys.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Seed, Shape, Tensor
from keras_seqattn.backend import autodiff
from keras_seqattn.layers.attention import masks
from keras_seqattn.layers.attention.functional import (
    checked_inputs,
    checked_mask_and_bias,
)
from keras_seqattn.layers.attention.kernels import explicit
from keras_seqattn.layers.attention.kernels.chunked.blocks import Blocks, map_blocks
from keras_seqattn.layers.attention.scaled_dot import AttentionLayer
from keras_seqattn.layers.distances import DistanceBias
from keras_seqattn.layers.weights.frozen import keep_frozen
from keras_seqattn.layers.weights.lora import Dense
from keras_seqattn.layers.weights.quantization import dtype_config

# The largest number of sums in memory at once, for each sentence: 16 MB of float32.
AT_ONCE = 2**22


def additive_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    *,
    mask: Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
    dropout: float = 0.0,
    seed: Seed = None,
) -> Tensor:
    """Weighs values by additive scores of their keys.

    output = softmax(vector . tanh(query + key) + bias) . value, with the contract of
    `dot_product_attention`: a masked pair has weight zero, a query that may attend to
    nothing gives exactly zero, and the softmax is in float32.
    Shapes: B batch, T target length, S source length, H heads, G key and value heads,
    U units, V value_dim.

    Args:
        query: Float tensor `(B, T, H, U)`, already projected.
        key: Float tensor `(B, S, G, U)`, where H is a multiple of G.
        value: Float tensor `(B, S, G, V)`.
        vector: Float tensor `(H, U)`.
        mask: As in `dot_product_attention`; so are the arguments after it.
        bias: Float tensor that broadcasts to `(B, H, T, S)`, or a `DistanceBias`.
        causal: Whether query i sees only keys j <= i + offset.
        window: Positive integer: query i sees only keys |i + offset - j| < window.
        offset: Position of the first query among the keys.
        dropout: Fraction of the weights dropped, in [0, 1).
        seed: Integer or `keras.random.SeedGenerator` of the dropout.

    Returns:
        Float tensor `(B, T, H, V)` in the dtype of `query`.

    Raises:
        ValueError: If shapes do not fit, `query` is not of floats, `mask` is not bool,
            or an option is out of range.

    Example:
        >>> import numpy as np
        >>> q, k = np.ones((2, 3, 4, 8)), np.ones((2, 5, 4, 8))
        >>> tuple(additive_attention(q, k, k, np.ones((4, 8))).shape)
        (2, 3, 4, 8)

    Reference:
        Bahdanau et al. 2015, appendix A.1.2. Differs: empty rows are zero.
    """
    output, _ = attend(
        query,
        key,
        value,
        vector,
        mask=mask,
        bias=bias,
        causal=causal,
        window=window,
        offset=offset,
        dropout=dropout,
        seed=seed,
    )
    return output


def additive_scores(
    query: Tensor,
    key: Tensor,
    vector: Tensor,
    *,
    mask: Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
) -> Tensor:
    """Computes the weights with which `additive_attention` sums the values.

    Each row sums to 1, or is all zero where the query may attend to nothing.
    Shapes: B batch, T target length, S source length, H heads, G key heads, U units.

    Args:
        query: Float tensor `(B, T, H, U)`.
        key: Float tensor `(B, S, G, U)`.
        vector: Float tensor `(H, U)`.
        mask: As in `dot_product_attention`; so are the arguments after it.
        bias: Float tensor that broadcasts to `(B, H, T, S)`, or a `DistanceBias`.
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
        >>> q, vector = np.ones((1, 2, 1, 8), "float32"), np.ones((1, 8), "float32")
        >>> np.asarray(additive_scores(q, q, vector, causal=True))[0, 0].tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    query, key, _ = checked_inputs(query, key, key)
    mask, bias = checked_mask_and_bias(query, key, mask, bias)
    causal, window = masks.checked_band(causal, window, offset)
    arguments.tensor("vector", vector)
    vector = ops.convert_to_tensor(vector)
    if tuple(vector.shape) != tuple(query.shape[2:]):
        raise ValueError(
            "`vector` must have the heads and the width of `query`. Received: "
            f"vector.shape={tuple(vector.shape)}, query.shape={tuple(query.shape)}."
        )
    mask = masks.pair_mask(query, key, mask, causal, window, offset)
    sizes = *ops.shape(query)[1:], ops.shape(key)[1]
    # An unknown length counts as short, as in `choose_implementation`.
    is_long = all(isinstance(x, int) for x in sizes) and math.prod(sizes) > AT_ONCE
    compute = _scores_in_blocks if is_long else _scores_at_once
    scores = compute(*(ops.cast(x, "float32") for x in (query, key, vector)))
    weights = explicit.softmax(scores, mask, bias, query.dtype)
    return explicit.zero_empty_rows(weights, mask, heads_last=False)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    vector: Tensor,
    *,
    dropout: float = 0.0,
    seed: Seed = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Computes `additive_attention`, and the weights `(B, H, T, S)` before dropout.

    The options are those of `additive_scores`.
    """
    query, key, value = checked_inputs(query, key, value)
    arguments.fraction("dropout", dropout)
    arguments.seed("seed", seed)
    scores = additive_scores(query, key, vector, **options)
    return explicit.weighted_sum(scores, value, dropout, seed), scores


def _scores_at_once(query, key, vector):
    """Computes scores vector . tanh(query + key), `(B, H, T, S)`, all at once."""
    groups, (batch, target, heads, _) = key.shape[2], ops.shape(query)
    source = ops.shape(key)[1]
    rows, columns = _as_one_block(query, groups), _as_one_block(key, groups)
    vectors = _repeat_for_rows(vector, groups, target)
    scores = ops.einsum("bgtsu,gtu->bgts", _tanh(rows, columns), vectors)
    return ops.reshape(scores, (batch, heads, target, source))


def _scores_in_blocks(query, key, vector):
    """Computes what `_scores_at_once` does, in O(T S) memory, also backwards."""
    groups, (_, target, heads, units) = key.shape[2], ops.shape(query)
    source, repeats = ops.shape(key)[1], heads // groups
    q = Blocks.of(target, _block_length(source, heads * units))
    k = Blocks.of(source, _block_length(target, heads * units))

    @autodiff.custom_gradient
    def scores_of(query, key, vector):
        q_blocks = q.split(query, groups)  # (N, B, G, R * t, U)
        all_queries = _as_one_block(query, groups)  # (B, G, R * T, U)
        all_keys = _as_one_block(key, groups)  # (B, G, S, U)
        vectors = _repeat_for_rows(vector, groups, q.length)

        def score(_, block):
            return (ops.einsum("bgtsu,gtu->bgts", _tanh(block, all_keys), vectors),)

        zeros = ops.zeros((*ops.shape(q_blocks)[1:-1], source), "float32")
        scores = q.join(map_blocks(score, (q_blocks,), (zeros,))[0])  # (B, T, H, S)

        def query_and_vector_gradients(upstream):
            by_query = ops.transpose(upstream, (0, 2, 1, 3))  # (B, T, H, S)
            by_query = q.split(by_query, groups)  # (N, B, G, R * t, S)

            def of_q_block(_, block, upstream):
                tanh = _tanh(block, all_keys)
                d_tanh = ops.einsum("bgts,bgtsu->bgtu", upstream, 1.0 - tanh * tanh)
                return d_tanh * vectors, ops.einsum("bgts,bgtsu->gtu", upstream, tanh)

            like = ops.zeros_like(q_blocks[0]), ops.zeros_like(vectors)
            d_query, d_vector = map_blocks(of_q_block, (q_blocks, by_query), like)
            d_vector = ops.reshape(d_vector, (-1, groups, repeats, q.length, units))
            d_vector = ops.reshape(ops.sum(d_vector, axis=(0, 3)), (heads, units))
            return q.join(d_query), d_vector

        def key_gradient(upstream):
            upstream = ops.reshape(upstream, (-1, groups, repeats * target, source))
            by_key = ops.transpose(upstream, (0, 3, 1, 2))  # (B, S, G, R * T)
            by_key = k.split(by_key, groups)  # (M, B, G, s, R * T)
            k_blocks = k.split(key, groups)  # (M, B, G, s, U)
            vectors = _repeat_for_rows(vector, groups, target)[:, None]

            def of_k_block(_, block, upstream):
                tanh = _tanh(block, all_queries)
                d_tanh = (1.0 - tanh * tanh) * vectors  # (B, G, s, R * T, U)
                return (ops.einsum("bgst,bgstu->bgsu", upstream, d_tanh),)

            like = (ops.zeros_like(k_blocks[0]),)
            return k.join(map_blocks(of_k_block, (k_blocks, by_key), like)[0])

        def gradient(upstream):
            d_query, d_vector = query_and_vector_gradients(upstream)
            return d_query, key_gradient(upstream), d_vector

        return ops.transpose(scores, (0, 2, 1, 3)), gradient

    return scores_of(query, key, vector)


def _as_one_block(x, groups):
    """Transposes `(B, L, H, U)` to `(B, G, R * L, U)`, as one block."""
    length = ops.shape(x)[1]
    return Blocks(length, length, 1).split(x, groups)[0]


def _repeat_for_rows(vector, groups, length):
    """Repeats each head's vector for all its rows: `(G, R * length, U)`."""
    heads, units = vector.shape
    vector = ops.reshape(vector, (groups, heads // groups, 1, units))
    vector = ops.broadcast_to(vector, (groups, heads // groups, length, units))
    return ops.reshape(vector, (groups, heads // groups * length, units))


def _tanh(left, right):
    """Computes tanh of all sums of two blocks, `(B, G, rows, columns, U)`."""
    return ops.tanh(left[:, :, :, None] + right[:, :, None])


def _block_length(other, width):
    """Returns how many rows fit `AT_ONCE`, each with `other` sums of H U = `width`."""
    return max(1, AT_ONCE // (other * width))


@keras.saving.register_keras_serializable(package="keras_seqattn")
class AdditiveAttention(AttentionLayer):
    """Attends with the scores of a small network instead of dot products.

    score = v . tanh(W_q query + W_k key), output = softmax(score) . value.
    `attention_mask` and the padding masks, those given or else Keras's implicit ones,
    are combined: a masked key has weight zero, and a masked query, or one that may
    attend to nothing, gives exactly zero. The output has the mask of `query`. If the
    inputs have heads, these share the layer's weights.
    Shapes: B batch, T target length, S source length, H heads, K key_dim, V value_dim.

    Args:
        units: Width of the sum of projections, a positive integer.
        dropout: Fraction of the weights dropped while training, in [0, 1).
        use_bias: Whether a bias is added to the sum.
        seed: Integer seed of the dropout, or None.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: Float tensor `(B, T, K)` or `(B, T, H, K)`.
        value: Float tensor `(B, S, V)` or `(B, S, H, V)`.
        key: Float tensor like `value`, of any width; `value` when None.
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
        ValueError: If `units` is not a positive integer, `dropout` is not in [0, 1), or
            shapes do not fit.

    Example:
        >>> import numpy as np
        >>> x = np.zeros((2, 5, 8), "float32")
        >>> tuple(AdditiveAttention(16)(x, x).shape)
        (2, 5, 8)

    Reference:
        Bahdanau et al. 2015, appendix A.1.2. Differs: empty rows are zero.
    """

    def __init__(
        self,
        units: int,
        dropout: float = 0.0,
        use_bias: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.units = arguments.positive_integer("units", units)
        self.use_bias = arguments.boolean("use_bias", use_bias)

    def build(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        """Makes W_q, with the bias of the sum if there is one, W_k and v."""
        key_shape = value_shape if key_shape is None else key_shape
        self.query_dense = self._dense("query", query_shape, self.use_bias)
        self.key_dense = self._dense("key", key_shape, use_bias=False)
        self.vector = self.add_weight((self.units,), name="vector")
        keep_frozen(self)

    def _dense(self, name, input_shape, use_bias):
        dense = Dense(self.units, use_bias=use_bias, name=name, dtype=self.dtype_policy)
        dense.build(input_shape)
        return dense

    def _attend(self, query, key, value, *, return_scores, **options):
        """Returns the output, and always the weights, which are computed anyway."""
        vector = ops.broadcast_to(self.vector, (query.shape[2], self.units))
        projected = self.query_dense(query), self.key_dense(key)
        return attend(*projected, value, vector, **options)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "units": self.units,
            "use_bias": self.use_bias,
        }
