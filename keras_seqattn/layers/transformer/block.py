"""What Transformer blocks share: options, sublayers, attention inside a residual.

Shapes: B batch, L length, D model_dim, H heads.
"""

from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Activation, Initializer, Norm, Shape, Tensor
from keras_seqattn.layers.attention.masks import bool_mask
from keras_seqattn.layers.attention.multi_head import MultiHeadAttention
from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.layers.dropout import if_known
from keras_seqattn.layers.norms import EPSILON, NORMS
from keras_seqattn.layers.shapes import check_batch, check_rank
from keras_seqattn.layers.transformer.feed_forward import FeedForward
from keras_seqattn.layers.transformer.residual import Residual
from keras_seqattn.layers.weights.quantization import dtype_config


class CarriesMask:
    """Makes the output of a layer carry the mask that a call is given.

    Keras passes on the argument `mask`, or else the mask of the first input. A mask
    that is given by its second name, `mask_name`, becomes `mask`. A mixin: name it
    between `Checked`, which knows the mask by the name it was given, and Keras's class.
    """

    mask_name = "x_mask"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer; refuses two masks, since Keras fills one in for `call`."""
        names = arguments.names_of(type(self).call)[1:]
        # Arguments from `mask` on that come by position are named, to be renamed.
        first = names.index("mask") if "mask" in names else len(args)
        by_position = dict(zip(names[first:], args[first:], strict=False))
        # What does not fit the signature is left for Keras to refuse.
        fits = len(args) <= len(names) and by_position.keys().isdisjoint(kwargs)
        if "mask" in names and fits:
            args, kwargs = args[:first], {**by_position, **kwargs}
            self._name_mask(kwargs)
        return super().__call__(*args, **kwargs)

    def _name_mask(self, kwargs):
        """Renames the mask in the arguments of a call to `mask`, and makes it bools."""
        mask, named = kwargs.get("mask"), kwargs.get(self.mask_name)
        if mask is None and named is None:
            return
        if mask is not None and named is not None:
            raise ValueError(
                f"`mask` must be None where `{self.mask_name}` is given: the two mean "
                f"the same. Received: mask of shape {np.shape(mask)}, "
                f"{self.mask_name} of shape {np.shape(named)}."
            )
        name = "mask"
        if mask is None:
            name, mask = self.mask_name, kwargs.pop(self.mask_name)
        # The values of a symbolic mask are seen when the model is called.
        is_symbolic = isinstance(mask, keras.KerasTensor)
        kwargs["mask"] = mask if is_symbolic else bool_mask(name, mask)


class Block(arguments.Checked, CarriesMask, keras.layers.Layer):
    """Holds what both blocks share: options, and the feed-forward as last sublayer."""

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: Activation = "relu",
        gated: bool = False,
        norm: Norm = "layer",
        normalize_first: bool = True,
        attention: dict[str, Any] | keras.layers.Layer | None = None,
        activation_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        gradient_checkpointing: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        epsilon: float = EPSILON,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = arguments.positive_integer("num_heads", num_heads)
        self.intermediate_dim = arguments.positive_integer(
            "intermediate_dim", intermediate_dim
        )
        self.key_dim = arguments.positive_integer("key_dim", key_dim, optional=True)
        self.dropout = arguments.fraction("dropout", dropout)
        self.attention_dropout = arguments.fraction(
            "attention_dropout", attention_dropout
        )
        self.activation = arguments.keras_object("activation", activation)
        self.gated = arguments.boolean("gated", gated)
        self.norm = arguments.choice("norm", norm, NORMS)
        self.normalize_first = arguments.boolean("normalize_first", normalize_first)
        self.attention = checked_attention("attention", attention)
        self.activation_dropout = arguments.fraction(
            "activation_dropout", activation_dropout
        )
        self.stochastic_depth = arguments.fraction("stochastic_depth", stochastic_depth)
        self.gradient_checkpointing = arguments.boolean(
            "gradient_checkpointing", gradient_checkpointing
        )
        self.kernel_initializer = arguments.keras_object(
            "kernel_initializer", kernel_initializer
        )
        self.bias_initializer = arguments.keras_object(
            "bias_initializer", bias_initializer
        )
        self.epsilon = arguments.number("epsilon", epsilon, above=0.0)
        self.use_bias = arguments.boolean("use_bias", use_bias)
        self.supports_masking = True
        self.cross_residual = None  # A decoder block with a source builds one.
        self.feed_forward_residual = self._residual(
            self._feed_forward(), "feed_forward_residual"
        )

    def _feed_forward(self):
        return FeedForward(
            self.intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            dropout=self.activation_dropout,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            use_bias=self.use_bias,
            name="feed_forward",
            dtype=self.dtype_policy,
        )

    def _residual(self, sublayer, name):
        return Residual(
            sublayer,
            dropout=self.dropout,
            norm=self.norm,
            normalize_first=self.normalize_first,
            stochastic_depth=self.stochastic_depth,
            epsilon=self.epsilon,
            name=name,
            dtype=self.dtype_policy,
        )

    def _attention_residual(self, attention, model_dim, name):
        """Wraps an attention, given as options or as a layer, in a residual."""
        if not isinstance(attention, keras.layers.Layer):
            attention = attention or {}
            options = {
                "num_heads": self.num_heads,
                "dropout": self.attention_dropout,
                "kernel_initializer": self.kernel_initializer,
                "bias_initializer": self.bias_initializer,
                "use_bias": self.use_bias,
                "name": name,
                "dtype": self.dtype_policy,
            }
            if "key_dim" not in attention:
                options["key_dim"] = width_of_head(
                    model_dim, self.num_heads, self.key_dim
                )
            options |= attention
            options["dtype"] = _with_quantized(options["dtype"], self.dtype_policy)
            attention = MultiHeadAttention(**options)
        return self._residual(attention, f"{name}_residual")

    @property
    def unpads(self) -> bool:
        """Whether `call_unpadded` does what a call does while training."""
        residuals = (self.attention_residual, self.cross_residual)
        attended = (each.sublayer for each in residuals if each is not None)
        plain = self.stochastic_depth == 0.0 and not self.gradient_checkpointing
        plain = plain and self.activity_regularizer is None
        # A block's `call_unpadded` must be of the class that `call` is of, or of one
        # derived from it: a user's class that overrides only `call` computes something
        # else.
        calls = (_defining(type(self), name) for name in ("call_unpadded", "call"))
        plain = plain and issubclass(*calls)
        return plain and all(map(_takes_tokens, attended))

    def compute_output_shape(
        self, x_shape: Shape, source_shape: Shape | None = None
    ) -> Shape:
        """Returns the shape of the first input, unchanged."""
        return x_shape

    def _output_spec(self, x, return_attention_scores, *attended):
        """Returns the symbolic output, and the weights of each residual's attention."""
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

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
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
            "attention": attention_config(self.attention),
            "activation_dropout": self.activation_dropout,
            "stochastic_depth": self.stochastic_depth,
            "gradient_checkpointing": self.gradient_checkpointing,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "epsilon": self.epsilon,
            "use_bias": self.use_bias,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the block, and the attention layers in its config."""
        made = {
            name: attention_from_config(config[name])
            for name in ("attention", "cross_attention")
            if name in config
        }
        config = {**config, **made}
        config.pop("skip_padding", None)  # in files of early versions
        return cls(**config)


def check_sequences(**inputs: Any) -> None:
    """Raises an error if inputs are not sequences of vectors with one batch size."""
    for name, x in inputs.items():
        check_rank(name, x, "(batch, length, width)")
    check_batch(**inputs)


def attend(
    residual: Residual,
    x: Tensor,
    source: Tensor | None = None,
    past: Tensor | None = None,
    return_attention_scores: bool = False,
    training: bool | None = None,
    **more: Any,
) -> tuple[Tensor, ...]:
    """Attends inside a residual; returns `(B, T, D)`, and weights if asked for.

    `x` attends to `source`, itself when None, and to `past` `(B, M, D)`, which came
    before it. `more` are arguments of the attention layer's call.
    """
    hidden = residual.enter(x)
    source = hidden if source is None else source
    if past is not None:
        source = ops.concatenate([residual.enter(past), source], axis=1)
    attended = residual.sublayer(
        hidden,
        source,
        return_attention_scores=return_attention_scores,
        **if_known(training),
        **more,
    )
    if not return_attention_scores:
        return (residual.leave(x, attended, training),)
    attended, scores = attended
    return residual.leave(x, attended, training), scores


def attend_unpadded(
    residual: Residual,
    x: Tensor,
    unpadding: Unpadding,
    source: Tensor | None = None,
    source_unpadding: Unpadding | None = None,
    **options: Any,
) -> Tensor:
    """Attends inside a residual, on only the tokens `(1, M, D)` of a batch.

    `source` is the tokens that `source_unpadding` takes, or `(B, S, D)` if that is
    None; when `source` is None, `x` attends to itself. The options are those of
    `MultiHeadAttention.call_unpadded`.
    """
    hidden = residual.enter(x)
    if source is None:
        source, source_unpadding = hidden, unpadding
    attended = residual.sublayer.call_unpadded(
        hidden, source, unpadding, source_unpadding, **options
    )
    return residual.leave(x, attended, training=True)


def _with_quantized(dtype, policy):
    """Returns an attention's own `dtype`, with what its block's policy quantizes."""
    maps = keras.dtype_policies.DTypePolicyMap
    if not isinstance(policy, maps) or isinstance(dtype, maps):
        return dtype
    quantized = {name: x for name, x in policy.items() if x.quantization_mode}
    return maps(dtype, quantized)


# Methods that a user's attention may override to relate the tokens of a sequence.
_OF_SEQUENCES = (
    *("call", "project_query", "project_key", "project_value", "project_output"),
)


def _takes_tokens(attention):
    """Returns whether an attention may get the tokens of all sequences as one."""
    own = (
        getattr(type(attention), name, None) is getattr(MultiHeadAttention, name)
        for name in _OF_SEQUENCES
    )
    # All projections have the same regularizer.
    return all(own) and attention.query_dense.activity_regularizer is None


def _defining(cls, name):
    """Returns the class, `cls` or one that it derives from, that defines a method."""
    return next(each for each in cls.__mro__ if name in vars(each))


def width_of_head(model_dim: int, num_heads: int, key_dim: int | None) -> int:
    """Returns `key_dim` if it is given, else `model_dim` over the number of heads."""
    if key_dim is not None:
        return key_dim
    if model_dim % num_heads:
        raise ValueError(
            "`num_heads` must divide the width of the input, or `key_dim` be "
            f"given. Received: num_heads={num_heads!r} for width {model_dim}."
        )
    return model_dim // num_heads


def checked_attention(name: str, attention: Any) -> Any:
    """Returns a block's attention if it is a dict of options, a layer or None."""
    kinds = (dict, keras.layers.Layer)
    arguments.instance(name, attention, kinds, "a dict or a layer", optional=True)
    if isinstance(attention, dict):
        names = arguments.names_of(MultiHeadAttention)
        arguments.known(attention, (*names, "name", "dtype", "trainable"), name)
    return attention


def attention_config(attention: Any) -> Any:
    """Returns a block's attention, options or a layer, with every object serialized."""
    if isinstance(attention, dict):
        return {name: attention_config(value) for name, value in attention.items()}
    if hasattr(attention, "get_config"):
        return arguments.configuration(attention)
    return attention


def attention_from_config(config: Any) -> Any:
    """Returns what `attention_config` was given.

    A layer among the options is made here, not by each attention that takes it: what
    several share is saved once, and must be loaded once.
    """
    if not isinstance(config, dict):
        return config
    if "class_name" in config:
        return keras.saving.deserialize_keras_object(config)
    return {name: attention_from_config(value) for name, value in config.items()}
