"""Transformer blocks, each a chain of residual sublayers.

Shapes: B batch, T target length, S source length, D model_dim, H heads, W beams.
"""

import keras

from keras_seqattn.layers import arguments
from keras_seqattn.layers.feed_forward import FeedForward
from keras_seqattn.layers.multi_head import MultiHeadAttention
from keras_seqattn.layers.quantization import dtype_config
from keras_seqattn.layers.residual import Residual


class _Block(keras.layers.Layer):
    """What the encoder's and the decoder's block share: options and sublayers."""

    def __init__(
        self,
        num_heads,
        intermediate_dim,
        key_dim=None,
        dropout=0.0,
        attention_dropout=0.0,
        activation="relu",
        gated=False,
        norm="layer",
        normalize_first=True,
        attention=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_integer("num_heads", num_heads)
        self.intermediate_dim = intermediate_dim
        self.key_dim = key_dim
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation = keras.activations.get(activation)
        self.gated = gated
        self.norm = norm
        self.normalize_first = normalize_first
        self.attention = attention
        self.supports_masking = True
        self.feed_forward_residual = self._residual(
            FeedForward(
                intermediate_dim,
                activation=activation,
                gated=gated,
                name="feed_forward",
                dtype=self.dtype_policy,
            ),
            "feed_forward_residual",
        )

    def _residual(self, sublayer, name):
        return Residual(
            sublayer,
            dropout=self.dropout,
            norm=self.norm,
            normalize_first=self.normalize_first,
            name=name,
            dtype=self.dtype_policy,
        )

    def _attention_residual(self, attention, model_dim, name):
        """Wraps the attention that options, or a layer, stand for."""
        if not isinstance(attention, keras.layers.Layer):
            options = {
                "num_heads": self.num_heads,
                "key_dim": self._width_of_head(model_dim),
                "dropout": self.attention_dropout,
                "name": name,
                "dtype": self.dtype_policy,
            }
            attention = MultiHeadAttention(**{**options, **(attention or {})})
        return self._residual(attention, f"{name}_residual")

    def _width_of_head(self, model_dim):
        if self.key_dim is not None:
            return self.key_dim
        if model_dim % self.num_heads:
            raise ValueError(
                "`num_heads` must divide the width of the input, or `key_dim` be "
                f"given. Received: num_heads={self.num_heads!r} for width {model_dim}."
            )
        return model_dim // self.num_heads

    def compute_output_shape(self, x_shape, source_shape=None):
        """Gives the shape of the first input, unchanged."""
        return x_shape

    def _output_spec(self, x, return_attention_scores, *attended):
        """Gives the symbolic output, and the weights of each residual's attention."""
        output = keras.KerasTensor(x.shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        scores = [
            residual.sublayer.compute_output_spec(
                x, source, return_attention_scores=True
            )[1]
            for residual, source in attended
        ]
        return output, *scores

    def get_config(self):
        """Gives the constructor's arguments."""
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "num_heads": self.num_heads,
            "intermediate_dim": self.intermediate_dim,
            "key_dim": self.key_dim,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "norm": self.norm,
            "normalize_first": self.normalize_first,
            "attention": _attention_config(self.attention),
        }

    @classmethod
    def from_config(cls, config):
        """Makes the block, and the attention layers it was given from their config."""
        made = {
            name: keras.saving.deserialize_keras_object(value)
            for name, value in config.items()
            if name in ("attention", "cross_attention")
            and "class_name" in (value or {})
        }
        return cls(**{**config, **made})


def _attend(residual, x, source=None, return_attention_scores=False, **options):
    """Attends inside a residual: gives `x`, and the weights where asked for."""
    hidden = residual.enter(x)
    attended = residual.sublayer(
        hidden,
        hidden if source is None else source,
        return_attention_scores=return_attention_scores,
        **options,
    )
    if not return_attention_scores:
        return (residual.leave(x, attended),)
    attended, scores = attended
    return residual.leave(x, attended), scores


def _attention_config(attention):
    if isinstance(attention, keras.layers.Layer):
        return keras.saving.serialize_keras_object(attention)
    return attention


@keras.saving.register_keras_serializable(package="keras_seqattn")
class EncoderBlock(_Block):
    """Lets each position attend to all, then transforms each by itself.

    x = residual(self-attention), y = residual(feed-forward). Masked positions are not
    attended to; the mask goes on with the output.
    Shapes: B batch, L length, D model_dim, H heads.

    Args:
        num_heads: Number of attention heads H, a positive integer.
        intermediate_dim: Width of the feed-forward's hidden layer.
        key_dim: Width of a head; D / H when None, which must be whole.
        dropout: Fraction of each sublayer's output dropped while training.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forward.
        gated: Whether the feed-forward is gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True) or post-norm (False).
        attention: A dict of further `MultiHeadAttention` arguments, or a layer that is
            called as one.

    Call arguments:
        x: Float tensor `(B, L, D)`.
        mask: Bool tensor `(B, L)`, True = a real token; else the mask on `x`.
        attention_mask: Bool tensor `(B, L, L)` or `(B, H, L, L)`.
        return_attention_scores: Whether to return the weights too.
        training: Whether to drop.

    Returns:
        Float tensor `(B, L, D)` in the compute dtype; with `return_attention_scores`
        also the weights `(B, H, L, L)`.

    Raises:
        ValueError: If `num_heads` does not divide D and `key_dim` is None, or an
            option is out of range.

    Example:
        >>> import numpy as np
        >>> block = EncoderBlock(num_heads=2, intermediate_dim=32)
        >>> tuple(block(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.1. Differs: none.
    """

    def build(self, x_shape):
        """Makes the attention and the feed-forward."""
        self.attention_residual = self._attention_residual(
            self.attention, x_shape[-1], "self_attention"
        )
        self.attention_residual.build(x_shape, x_shape)
        self.feed_forward_residual.build(x_shape)

    def call(
        self,
        x,
        mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        """Encodes `x`."""
        x, *scores = _attend(
            self.attention_residual,
            x,
            query_mask=mask,
            value_mask=mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
        )
        x = self.feed_forward_residual(x)
        return (x, *scores) if return_attention_scores else x

    def compute_mask(self, x, mask=None):
        """Passes the mask of `x` on to the output, none to the weights."""
        return mask

    def compute_output_spec(self, x, return_attention_scores=False, **kwargs):
        """Gives the symbolic output, and the symbolic weights where asked for."""
        return self._output_spec(
            x, return_attention_scores, (self.attention_residual, x)
        )


@keras.saving.register_keras_serializable(package="keras_seqattn")
class DecoderBlock(_Block):
    """Lets each target position attend to those before it, then to the source.

    x = residual(causal self-attention), x = residual(cross-attention to the source),
    y = residual(feed-forward). Called without a source it is a decoder-only block,
    without the middle part. The target's mask goes on with the output.
    Shapes: B batch, T target length, S source length, D model_dim, H heads.

    Args:
        num_heads: Number of attention heads H, a positive integer.
        intermediate_dim: Width of the feed-forward's hidden layer.
        key_dim: Width of a head; D / H when None, which must be whole.
        dropout: Fraction of each sublayer's output dropped while training.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forward.
        gated: Whether the feed-forward is gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True) or post-norm (False).
        attention: A dict of further `MultiHeadAttention` arguments for the
            self-attention, or a layer that is called as one.
        cross_attention: The same for the cross-attention.

    Call arguments:
        target: Float tensor `(B, T, D)`.
        source: Float tensor `(B, S, D)`, or None.
        mask: What Keras fills where there is no source; means `target_mask`.
        target_mask: Bool tensor `(B, T)`; else the mask on `target`.
        source_mask: Bool tensor `(B, S)`; else the mask on `source`.
        return_attention_scores: Whether to return the weights too.
        training: Whether to drop.
        use_causal_mask: Whether position i of the target sees only j <= i.

    Returns:
        Float tensor `(B, T, D)` in the compute dtype; with `return_attention_scores`
        also the weights of the self-attention `(B, H, T, T)`, and with a source those
        of the cross-attention `(B, H, T, S)`.

    Raises:
        ValueError: If both `mask` and `target_mask` are given, `num_heads` does not
            divide D and `key_dim` is None, or an option is out of range.

    Example:
        >>> import numpy as np
        >>> block = DecoderBlock(num_heads=2, intermediate_dim=32)
        >>> target, source = np.zeros((2, 5, 8)), np.zeros((2, 7, 8))
        >>> tuple(block(target, source).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.1. Differs: none.
    """

    def __init__(
        self,
        num_heads,
        intermediate_dim,
        key_dim=None,
        dropout=0.0,
        attention_dropout=0.0,
        activation="relu",
        gated=False,
        norm="layer",
        normalize_first=True,
        attention=None,
        cross_attention=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            intermediate_dim,
            key_dim=key_dim,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation=activation,
            gated=gated,
            norm=norm,
            normalize_first=normalize_first,
            attention=attention,
            **kwargs,
        )
        self.cross_attention = cross_attention

    def build(self, target_shape, source_shape=None):
        """Makes the attentions and the feed-forward."""
        self.attention_residual = self._attention_residual(
            self.attention, target_shape[-1], "self_attention"
        )
        self.attention_residual.build(target_shape, target_shape)
        self.cross_residual = None
        if source_shape is not None:
            self.cross_residual = self._attention_residual(
                self.cross_attention, target_shape[-1], "cross_attention"
            )
            self.cross_residual.build(target_shape, source_shape)
        self.feed_forward_residual.build(target_shape)

    def __call__(self, *args, **kwargs):
        """Refuses two masks of the target; `call` cannot, since Keras fills one in."""
        mask, target_mask = kwargs.get("mask"), kwargs.get("target_mask")
        if mask is not None and target_mask is not None:
            raise ValueError(
                "`mask` must be None where `target_mask` is given: the two mean the "
                f"same. Received: mask of shape {tuple(mask.shape)}, target_mask of "
                f"shape {tuple(target_mask.shape)}."
            )
        return super().__call__(*args, **kwargs)

    def call(
        self,
        target,
        source=None,
        mask=None,
        target_mask=None,
        source_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=True,
    ):
        """Decodes `target`, attending to `source`."""
        target_mask = target_mask if mask is None else mask
        self._check_source(source)
        x, *scores = _attend(
            self.attention_residual,
            target,
            query_mask=target_mask,
            value_mask=target_mask,
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
        )
        if source is not None:
            x, *cross_scores = _attend(
                self.cross_residual,
                x,
                source,
                query_mask=target_mask,
                value_mask=source_mask,
                return_attention_scores=return_attention_scores,
            )
            scores += cross_scores
        x = self.feed_forward_residual(x)
        return (x, *scores) if return_attention_scores else x

    def _check_source(self, source):
        if (source is None) != (self.cross_residual is None):
            raise ValueError(
                "`source` must be given in every call of a decoder block, or in none. "
                f"Received: source={'None' if source is None else 'a tensor'} after a "
                "first call that was the other."
            )

    def initial_cache(self, batch_size, width, max_length):
        """Makes the empty cache of `step`: that of the self-attention."""
        attention = self.attention_residual.sublayer
        return attention.initial_cache(batch_size, width, max_length)

    def project_memory(self, source):
        """Projects the source for the cross-attention, once a sentence."""
        return self.cross_residual.sublayer.project_memory(source)

    def step(self, target, cache, index, memory=None, source_mask=None):
        """Decodes one new position of each beam.

        Equals row `index` of a call on the whole sequence.

        Args:
            target: Float tensor `(B, W, D)`, the vector at `index` of each beam.
            cache: What `initial_cache` or the step before gave.
            index: The position, an integer or a scalar int32 tensor.
            memory: What `project_memory` gave, or None without a source.
            source_mask: Bool tensor `(B, S)`.

        Returns:
            Float tensor `(B, W, D)`, and the cache with this position.
        """
        residual = self.attention_residual
        attended, cache = residual.sublayer.step(residual.enter(target), cache, index)
        x = residual.leave(target, attended)
        if memory is not None:
            residual = self.cross_residual
            attended = residual.sublayer.step_memory(
                residual.enter(x), memory, source_mask
            )
            x = residual.leave(x, attended)
        return self.feed_forward_residual(x), cache

    def compute_mask(self, target, mask=None):
        """Passes the mask of `target` on to the output, none to the weights."""
        return mask

    def compute_output_spec(
        self, target, source=None, return_attention_scores=False, **kwargs
    ):
        """Gives the symbolic output, and the symbolic weights where asked for."""
        self._check_source(source)
        attended = [(self.attention_residual, target)]
        if source is not None:
            attended.append((self.cross_residual, source))
        return self._output_spec(target, return_attention_scores, *attended)

    def get_config(self):
        """Gives the constructor's arguments."""
        return {
            **super().get_config(),
            "cross_attention": _attention_config(self.cross_attention),
        }
