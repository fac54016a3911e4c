"""The plain recurrent cell.

Shapes: B batch, D width of the input, U units.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Activation, Shape, Tensor
from keras_seqattn.layers.shapes import check_batch, check_rank, check_width


@keras.saving.register_keras_serializable(package="keras_seqattn")
class RecurrentCell(arguments.Checked, keras.layers.Layer):
    """Computes a hidden state from the input and the state before it.

    h[t] = g(W_h [x[t]; h[t-1]] + b_h), where the one kernel W_h = [W_hx W_hh] takes
    input and state side by side: the same as W_hx x[t] + W_hh h[t-1] + b_h. In
    `keras.layers.RNN`, which runs it over a sequence, h[0] = 0.
    Shapes: B batch, D width of the input, U units.

    Args:
        units: Width U of the state, a positive integer.
        activation: The function g.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        inputs: Float tensor `(B, D)`, x[t].
        states: List of one float tensor `(B, U)`, h[t-1].

    Returns:
        Float tensor `(B, U)`, h[t], and the list that holds it.

    Raises:
        ValueError: If `units` is not a positive integer.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> layer = keras.layers.RNN(RecurrentCell(4), return_sequences=True)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 4)

    Reference:
        Elman 1990. Differs: tanh by default, where Elman's units are logistic.
    """

    def __init__(
        self, units: int, activation: Activation = "tanh", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units = arguments.positive_integer("units", units)
        self.activation = arguments.keras_object("activation", activation)
        self.state_size = self.output_size = self.units

    def build(self, inputs_shape: Shape, states_shape: Any = None) -> None:
        """Makes the kernel `(D + U, U)` and the bias."""
        check_rank("inputs", inputs_shape, "(batch, width)")
        self.kernel = self.add_weight(
            name="kernel", shape=(inputs_shape[-1] + self.units, self.units)
        )
        self.bias = self.add_weight(
            name="bias", shape=(self.units,), initializer="zeros"
        )

    def call(
        self, inputs: Tensor, states: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Computes the state after `inputs`."""
        check_rank("inputs", inputs, "(batch, width)")
        check_width("inputs", inputs, self.kernel.shape[0] - self.units)
        check_batch(inputs=inputs, states=states[0])
        both = ops.concatenate([inputs, states[0]], axis=-1)  # (B, D + U)
        hidden = self.activation(ops.matmul(both, self.kernel) + self.bias)
        return hidden, [hidden]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation),
        }
