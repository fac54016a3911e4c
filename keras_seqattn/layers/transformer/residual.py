"""The residual connection around every sublayer of a block, and its norm.

Shapes: B batch, D model_dim.
"""

from typing import Any, Self

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Norm, Shape, Tensor
from keras_seqattn.backend.parts import build_part
from keras_seqattn.layers.dropout import Dropout, if_known
from keras_seqattn.layers.norms import EPSILON, make_norm
from keras_seqattn.layers.shapes import check_built, check_tensor
from keras_seqattn.layers.weights.frozen import keep_frozen
from keras_seqattn.layers.weights.quantization import dtype_config


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Residual(arguments.Checked, keras.layers.Layer):
    """Adds what a sublayer computes to its input, with norm and dropout around it.

    Pre-norm: y = x + dropout(sublayer(norm(x))); post-norm:
    y = norm(x + dropout(sublayer(x))). Masks pass through. A sublayer that takes more
    inputs than `x` is called between `enter` and `leave`. While training, stochastic
    depth p skips the sublayer for a sample with probability p, and multiplies its
    output for the others by 1 / (1 - p), so that nothing is scaled at inference.

    Args:
        sublayer: The layer, which keeps the shape of its first input.
        dropout: Fraction of the sublayer's output dropped while training, in [0, 1).
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True) or post-norm (False).
        stochastic_depth: Fraction of the samples that skip the sublayer while training,
            in [0, 1).
        epsilon: Number added to the norm's variance, positive; 1e-5 by default.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        x: Float tensor `(B, ..., D)`.
        training: Whether to apply dropout and stochastic depth.

    Returns:
        Float tensor of the shape of `x` in the compute dtype.

    Raises:
        ValueError: If `norm` is unknown, a fraction is not in [0, 1), or `epsilon` is
            not positive.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> layer = Residual(keras.layers.Dense(8), dropout=0.1)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.1; pre-norm: Xiong et al. 2020; RMS norm: Zhang
        and Sennrich 2019; stochastic depth: Huang et al. 2016, who skip a layer in a
        whole batch, as LayerDrop does (Fan et al. 2020), and scale at inference.
        Differs: each sample skips by itself, which has the same mean and less variance,
        and is the same program however many skip.
    """

    def __init__(
        self,
        sublayer: keras.layers.Layer,
        dropout: float = 0.0,
        norm: Norm = "layer",
        normalize_first: bool = True,
        stochastic_depth: float = 0.0,
        epsilon: float = EPSILON,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.sublayer = arguments.instance(
            "sublayer", sublayer, keras.layers.Layer, "a layer"
        )
        self.dropout = arguments.fraction("dropout", dropout)
        self.norm = norm
        self.normalize_first = arguments.boolean("normalize_first", normalize_first)
        self.stochastic_depth = arguments.fraction("stochastic_depth", stochastic_depth)
        self.epsilon = arguments.number("epsilon", epsilon, above=0.0)
        self.supports_masking = True
        self.norm_layer = make_norm(norm, epsilon, name="norm", dtype=self.dtype_policy)
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def build(self, x_shape: Shape, *more_shapes: Shape) -> None:
        """Builds the norm, and the sublayer for `x` and its other inputs."""
        self._width = x_shape[-1]
        self.norm_layer.build(x_shape)
        # Keras's, since ours takes no `noise_shape`; made when the rank is known.
        self.skip_layer = keras.layers.Dropout(
            self.stochastic_depth,
            noise_shape=(None, *[1] * (len(x_shape) - 1)),
            name="skip",
            dtype=self.dtype_policy,
        )
        build_part(self.sublayer, x_shape, *more_shapes)
        keep_frozen(self)

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Builds for the shapes that a saved layer was built for."""
        shapes = config.get("shapes_dict", {})
        if "more_shapes" in shapes:  # Keras would pass them on by this name.
            self.build(shapes["x_shape"], *shapes["more_shapes"])
        else:
            super().build_from_config(config)

    def enter(self, x: Tensor) -> Tensor:
        """Returns the input of the sublayer: `x`, normalized when pre-norm."""
        check_built(self)
        check_tensor("x", x, width=self._width)
        return self.norm_layer(x) if self.normalize_first else x

    def leave(self, x: Tensor, output: Tensor, training: bool | None = None) -> Tensor:
        """Adds the sublayer's output to `x`."""
        check_built(self)
        check_tensor("x", x, width=self._width)
        check_tensor("output", output, width=self._width)
        arguments.check_flag("training", training, optional=True)
        # A call has cast `x`; a step, or a call on tokens without padding, has not.
        x = ops.cast(ops.convert_to_tensor(x), self.compute_dtype)
        given = if_known(training)
        x = x + self.skip_layer(self.dropout_layer(output, **given), **given)
        return x if self.normalize_first else self.norm_layer(x)

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        """Computes the sublayer and adds its output."""
        output = self.sublayer(self.enter(x), **if_known(training))
        return self.leave(x, output, training)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """Returns the shape of `x`, unchanged."""
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "sublayer": arguments.configuration(self.sublayer),
            "dropout": self.dropout,
            "norm": self.norm,
            "normalize_first": self.normalize_first,
            "stochastic_depth": self.stochastic_depth,
            "epsilon": self.epsilon,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the layer, and the sublayer from its own config."""
        sublayer = keras.saving.deserialize_keras_object(config["sublayer"])
        return cls(**{**config, "sublayer": sublayer})
