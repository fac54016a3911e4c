"""Attention layers that take queries, keys and values as they are.

Shapes: B batch, T target length, S source length, H heads, K key_dim, V value_dim.
"""

from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Implementation, Shape, Tensor
from keras_seqattn.layers.attention import functional, masks
from keras_seqattn.layers.shapes import check_batch, check_rank


class AttentionLayer(arguments.Checked, keras.layers.Layer):
    """Holds what is the same for every score: masks, dropout, heads and shapes.

    A subclass computes the scores: it defines
    `_attend(query, key, value, *, return_scores, **options)` for tensors
    `(B, L, H, K)`, which returns the output and, if `return_scores`, the weights.
    Otherwise the second value is ignored.
    """

    def __init__(
        self, dropout: float = 0.0, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.dropout = arguments.fraction("dropout", dropout)
        self.seed = arguments.integer("seed", seed, optional=True)
        self.seed_generator = keras.random.SeedGenerator(self.seed) if dropout else None
        self.supports_masking = True

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attends from each vector of `query` to those of `value`."""
        check_inputs(query, value, key)
        key = value if key is None else key
        mask = masks.input_masks(query_mask, value_mask, key_mask, attention_mask)
        one_head = len(query.shape) == 3
        if one_head:
            query, key, value = (ops.expand_dims(x, 2) for x in (query, key, value))
        output, scores = self._attend(
            query,
            key,
            value,
            mask=mask,
            causal=masks.is_causal(use_causal_mask),
            dropout=self.dropout if training else 0.0,
            seed=self.seed_generator,
            return_scores=return_attention_scores,
        )
        if one_head:
            output = ops.squeeze(output, 2)
            scores = None if scores is None else ops.squeeze(scores, 1)
        return (output, scores) if return_attention_scores else output

    def compute_mask(self, query: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Passes the mask of `query` on to the output, none to the weights."""
        return mask

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        """Returns the shape of the output without the weights."""
        return (*query_shape[:-1], value_shape[-1])

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
    ) -> Any:
        """Returns the symbolic output, and the symbolic weights where asked for."""
        check_inputs(query, value, key)
        output = keras.KerasTensor(
            self.compute_output_shape(query.shape, value.shape), self.compute_dtype
        )
        if not return_attention_scores:
            return output
        batch, target, *heads = query.shape[:-1]
        shape = (batch, *heads, target, value.shape[1])
        return output, keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "dropout": self.dropout, "seed": self.seed}


def check_inputs(query: Tensor, value: Tensor, key: Tensor | None) -> None:
    """Checks that inputs are `(B, L, K)` or all `(B, L, H, K)`, of one batch size."""
    has_heads = len(query.shape) == 4
    layout = f"(batch, length, {'heads, ' if has_heads else ''}width)"
    for name, x in (("query", query), ("value", value), ("key", key)):
        check_rank(name, x, layout)
    check_batch(query=query, value=value, key=key)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class ScaledDotProductAttention(AttentionLayer):
    """Attends with queries, keys and values as they are, without projections.

    output = softmax(scale * query . key^T) . value. `attention_mask` and the padding
    masks, those given or else Keras's implicit ones, are combined: a masked key has
    weight zero, and a masked query, or one that may attend to nothing, gives exactly
    zero. The output has the mask of `query`. Vectors are rows: texts in which they are
    columns, with H = V softargmax(K^T Q), have the transpose of each matrix.
    Shapes: B batch, T target length, S source length, H heads, K key_dim, V value_dim.

    Args:
        scale: Factor of the scores; None is 1 / sqrt(K), 1.0 leaves them unscaled.
        dropout: Fraction of the weights dropped while training, in [0, 1).
        implementation: "auto", "explicit", "fused" or "chunked": see
            `dot_product_attention`.
        seed: Integer seed of the dropout, or None.
        **kwargs: `name`, `dtype`.

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
        self,
        scale: float | None = None,
        dropout: float = 0.0,
        implementation: Implementation = "auto",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(dropout=dropout, seed=seed, **kwargs)
        self.scale = arguments.number("scale", scale, optional=True)
        self.implementation = arguments.choice(
            "implementation", implementation, functional.IMPLEMENTATIONS
        )
        self.built = True

    def _attend(self, query, key, value, **options):
        return functional.attend(
            query,
            key,
            value,
            scale=self.scale,
            implementation=self.implementation,
            **options,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "scale": self.scale,
            "implementation": self.implementation,
        }
