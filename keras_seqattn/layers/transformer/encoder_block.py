"""The encoder's block: self-attention, feed-forward.

Shapes: B batch, L length, D model_dim, H heads.
"""

from typing import Any

import keras

from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.layers.attention.masks import bool_mask, input_masks
from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.layers.dropout import if_known
from keras_seqattn.layers.shapes import check_rank
from keras_seqattn.layers.transformer.block import (
    Block,
    attend,
    attend_unpadded,
    check_sequences,
)
from keras_seqattn.layers.transformer.checkpointing import checkpointed
from keras_seqattn.layers.weights.frozen import keep_frozen


@keras.saving.register_keras_serializable(package="keras_seqattn")
class EncoderBlock(Block):
    """Lets each position attend to all, then transforms each by itself.

    x = residual(self-attention), y = residual(feed-forward). Masked positions are not
    attended to; the output carries the mask.
    Shapes: B batch, L length, D model_dim, H heads.

    Args:
        num_heads: Number of attention heads H, a positive integer.
        intermediate_dim: Width of the feed-forward's hidden layer.
        key_dim: Width of a head; D / H when None, which must then be an integer.
        dropout: Fraction of each sublayer's output dropped while training.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forward.
        gated: Whether the feed-forward is gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True) or post-norm (False).
        attention: A dict of further `MultiHeadAttention` arguments, or a layer that is
            called as one.
        activation_dropout: Fraction of the feed-forward's hidden layer dropped while
            training.
        stochastic_depth: Fraction of the samples that skip a sublayer while training,
            drawn for each sublayer: see `Residual`.
        gradient_checkpointing: Whether to keep only the block's output, and recompute
            the block in the backward pass with the same dropout: less memory for more
            time. Not for sublayers that change their own weights when called, or that
            add losses.
        kernel_initializer: Initializer of the kernels of attention and feed-forward.
        bias_initializer: Initializer of their biases.
        epsilon: Number added to the variance of each norm, positive; 1e-5 by default.
            The norms of `qk_norm` have 1e-6.
        use_bias: Whether the projections of attention and feed-forward have biases; a
            `use_bias` among an attention's own options takes precedence.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        x: Float tensor `(B, L, D)`.
        mask: Bool tensor `(B, L)`, True = a real token; else the mask on `x`.
        attention_mask: Bool tensor `(B, L, L)` or `(B, H, L, L)`.
        return_attention_scores: Whether to return the weights too.
        training: Whether to apply dropout and stochastic depth.
        use_causal_mask: Whether position i sees only j <= i; False by default. With it,
            these blocks, called one after another, are a decoder-only Transformer. A
            `TransformerStack` does not pass it on: make it of `DecoderBlock`s.
        x_mask: The same as `mask`; Keras gives the mask on `x` this name if there is an
            `attention_mask`.

    Returns:
        Float tensor `(B, L, D)` in the compute dtype; with `return_attention_scores`
        also the weights `(B, H, L, L)`.

    Raises:
        ValueError: If both `mask` and `x_mask` are given, `num_heads` does not divide D
            and `key_dim` is None, or an option is out of range.

    Example:
        >>> import numpy as np
        >>> block = EncoderBlock(num_heads=2, intermediate_dim=32)
        >>> tuple(block(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.1. Differs: pre-norm (Xiong et al. 2020) and no
        dropout, unless given.
    """

    def build(self, x_shape: Shape) -> None:
        """Makes the attention and the feed-forward."""
        check_rank("x", x_shape, "(batch, length, width)")
        self.attention_residual = self._attention_residual(
            self.attention, x_shape[-1], "self_attention"
        )
        self.attention_residual.build(x_shape, x_shape)
        self.feed_forward_residual.build(x_shape)
        keep_frozen(self)

    @checkpointed
    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        x_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Encodes `x`."""
        check_sequences(x=x)
        mask = bool_mask("mask", x_mask if mask is None else mask)
        x, *scores = attend(
            self.attention_residual,
            x,
            query_mask=mask,
            value_mask=mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
            use_causal_mask=use_causal_mask,
        )
        x = self.feed_forward_residual(x, **if_known(training))
        return (x, *scores) if return_attention_scores else x

    def call_unpadded(
        self,
        x: Tensor,
        unpadding: Unpadding,
        mask: Tensor,
        memory: None = None,
        memory_unpadding: None = None,
        memory_mask: None = None,
    ) -> Tensor:
        """Does what a call does while training, on only the tokens of a batch.

        Args:
            x: Float tensor `(1, M, D)`, the tokens that `unpadding` takes.
            unpadding: The `Unpadding` of `mask`.
            mask: Bool tensor `(B, L)`.
            memory: None, like the arguments after it, which only decoder blocks use.
            memory_unpadding: None.
            memory_mask: None.

        Returns:
            Float tensor `(1, M, D)`.
        """
        mask = input_masks(mask, mask)
        x = attend_unpadded(self.attention_residual, x, unpadding, mask=mask)
        return self.feed_forward_residual(x, training=True)

    def compute_mask(self, x: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Passes the mask of `x` on to the output, none to the weights."""
        return mask

    def compute_output_spec(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        x_mask: Tensor | None = None,
    ) -> Any:
        """Returns the symbolic output, and the symbolic weights where asked for."""
        check_sequences(x=x)
        return self._output_spec(
            x, return_attention_scores, (self.attention_residual, x)
        )
