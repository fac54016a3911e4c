"""The position-wise feed-forward sublayer."""

from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Activation, Initializer, Shape, Tensor
from keras_seqattn.backend.ops import sizes
from keras_seqattn.layers.dropout import Dropout, if_known
from keras_seqattn.layers.shapes import check_rank
from keras_seqattn.layers.weights.frozen import keep_frozen
from keras_seqattn.layers.weights.initializers import copy_initializer
from keras_seqattn.layers.weights.lora import Dense
from keras_seqattn.layers.weights.quantization import dtype_config


@keras.saving.register_keras_serializable(package="keras_seqattn")
def gelu_tanh(x: Tensor) -> Tensor:
    """Computes GELU by its approximation with tanh (Hendrycks and Gimpel 2016)."""
    return ops.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class FeedForward(arguments.Checked, keras.layers.Layer):
    """Transforms each position by itself through a wider hidden layer.

    y = W_2 dropout(act(W_1 x + b_1)) + b_2; if gated, the hidden layer is
    act(W_1 x + b_1) * (W_g x + b_g). Masks pass through.
    Shapes: D model_dim, F intermediate_dim.

    Args:
        intermediate_dim: Width F of the hidden layer, a positive integer.
        activation: Name or function of the activation.
        gated: Whether a linear branch multiplies the activated one ("silu" gives
            SwiGLU, "gelu" GEGLU).
        dropout: Fraction of the hidden layer dropped while training, in [0, 1).
        kernel_initializer: Initializer of the kernels.
        bias_initializer: Initializer of the biases.
        use_bias: Whether the projections have biases.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        x: Float tensor `(..., D)`.
        training: Whether to apply dropout.

    Returns:
        Float tensor `(..., D)` in the compute dtype.

    Raises:
        ValueError: If `intermediate_dim` is not a positive integer.

    Example:
        >>> import numpy as np
        >>> layer = FeedForward(32)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.3; gated: Shazeer 2020. Differs: the gate has
        a bias, unless `use_bias` is False.
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: Activation = "relu",
        gated: bool = False,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.intermediate_dim = arguments.positive_integer(
            "intermediate_dim", intermediate_dim
        )
        self.activation = arguments.keras_object("activation", activation)
        self.gated = arguments.boolean("gated", gated)
        self.dropout = arguments.fraction("dropout", dropout)
        self.kernel_initializer = arguments.keras_object(
            "kernel_initializer", kernel_initializer
        )
        self.bias_initializer = arguments.keras_object(
            "bias_initializer", bias_initializer
        )
        self.use_bias = arguments.boolean("use_bias", use_bias)
        self.supports_masking = True
        self.hidden_dense = self._dense(self.intermediate_dim, "hidden")
        self.gate_dense = None
        if gated:
            self.gate_dense = self._dense(self.intermediate_dim, "gate")
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def _dense(self, units, name):
        return Dense(
            units,
            use_bias=self.use_bias,
            kernel_initializer=copy_initializer(self.kernel_initializer),
            bias_initializer=copy_initializer(self.bias_initializer),
            name=name,
            dtype=self.dtype_policy,
        )

    def build(self, x_shape: Shape) -> None:
        """Makes the projections."""
        check_rank("x", x_shape, "(batch, ..., width)")
        self.hidden_dense.build(x_shape)
        if self.gated:
            self.gate_dense.build(x_shape)
        self.output_dense = self._dense(x_shape[-1], "output")
        self.output_dense.build((*x_shape[:-1], self.intermediate_dim))
        keep_frozen(self)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Transforms each position of `x`."""
        check_rank("x", x, "(batch, ..., width)")
        rows = ops.reshape(x, (-1, x.shape[-1]))  # faster gradients: see `Projection`
        hidden = self.activation(self.hidden_dense(rows))
        if self.gated:
            hidden = ops.multiply(hidden, self.gate_dense(rows))
        rows = self.output_dense(self.dropout_layer(hidden, **if_known(training)))
        return ops.reshape(rows, sizes(x))

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """Returns the shape of `x`, unchanged."""
        check_rank("x", x_shape, "(batch, ..., width)")
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "gated": self.gated,
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "use_bias": self.use_bias,
        }
