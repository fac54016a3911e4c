"""Recurrence: the plain cell, stacks of recurrent layers, and the encoder.

Shapes: B batch, L length, D width of the input, E width of the hidden states, U units.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Activation, Cell, Shape, Tensor
from keras_seqattn.backend.compile import compiles_cudnn
from keras_seqattn.layers.attention.masks import bool_mask
from keras_seqattn.layers.dropout import Dropout
from keras_seqattn.layers.shapes import (
    check_batch,
    check_not_empty,
    check_rank,
    check_width,
)
from keras_seqattn.layers.weights.quantization import dtype_config

CELLS = ("gru", "simple")


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

    Call arguments:
        inputs: Float tensor `(B, D)`, x[t].
        states: List of one float tensor `(B, U)`, h[t-1].

    Returns:
        Float tensor `(B, U)`, h[t], and the list that holds it.

    Raises:
        ValueError: If `units` is not a positive integer.

    Example:
        >>> import numpy as np
        >>> layer = keras.layers.RNN(RecurrentCell(4), return_sequences=True)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 4)

    Reference:
        Elman 1990. Differs: none.
    """

    def __init__(
        self, units: int, activation: Activation = "tanh", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.units = arguments.positive_integer("units", units)
        self.activation = arguments.keras_object("activation", activation)
        self.state_size = self.output_size = units

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


class RecurrentStack(arguments.Checked, keras.layers.Layer):
    """What encoder and decoder share: their options, and how a recurrence is made.

    Args:
        units: Width U of a state, a positive integer.
        num_layers: Number of layers in the stack.
        cell: "gru", or "simple" for a `RecurrentCell`.
        dropout: Fraction of each layer's outputs dropped while training, in [0, 1).
    """

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: Cell = "gru",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = arguments.positive_integer("units", units)
        self.num_layers = arguments.positive_integer("num_layers", num_layers)
        self.cell = arguments.choice("cell", cell, CELLS)
        self.dropout = arguments.fraction("dropout", dropout)
        self.supports_masking = True
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def recurrence(self, **options: Any) -> keras.layers.Layer:
        """Makes the Keras layer that runs a cell along a sequence."""
        options |= {
            "return_sequences": True,
            "return_state": True,
            "dtype": self.dtype_policy,
        }
        if self.cell == "simple":
            cell = RecurrentCell(self.units, dtype=self.dtype_policy)
            return keras.layers.RNN(cell, **options)
        cudnn = "auto" if compiles_cudnn() else False  # Decoding is compiled.
        return keras.layers.GRU(self.units, use_cudnn=cudnn, **options)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "units": self.units,
            "num_layers": self.num_layers,
            "cell": self.cell,
            "dropout": self.dropout,
        }


@keras.saving.register_keras_serializable(package="keras_seqattn")
class RecurrentEncoder(RecurrentStack):
    """Reads a sequence step by step, from both sides, into hidden states.

    A stack of gated recurrent units (GRU): each layer reads forwards and, in another
    recurrence, backwards, and puts the two states of a position side by side. A masked
    position leaves the state as it was, and its own output is zero; so what stands in
    it changes nothing, wherever it stands. A sequence that is all masked gives zeros.
    Shapes: B batch, L length, D width of the input, U units, E = 2 U, or U where the
    sequence is read forwards only.

    Args:
        units: Width U of each direction's state, a positive integer.
        num_layers: Number of layers in the stack.
        cell: "gru", or "simple" for a `RecurrentCell`.
        bidirectional: Whether to read backwards too.
        dropout: Fraction of each layer's outputs dropped while training, in [0, 1).

    Call arguments:
        x: Float tensor `(B, L, D)`.
        mask: Bool tensor `(B, L)`, True = a real token; else the mask on `x`.
        training: Whether to drop.

    Returns:
        The hidden states, a float tensor `(B, L, E)` with the mask of `x`, and the
        final states of the last layer, `(B, E)`: the forward one has read all, and so
        has the backward one, which ends on the first position.

    Raises:
        ValueError: If a size is not a positive integer, `cell` is unknown, or `x` has
            no position.

    Example:
        >>> import numpy as np
        >>> encoder = RecurrentEncoder(units=4)
        >>> hidden, state = encoder(np.zeros((2, 5, 8), "float32"))
        >>> tuple(hidden.shape), tuple(state.shape)
        ((2, 5, 8), (2, 8))

    Reference:
        Bahdanau et al. 2015, section 3.2; GRU: Cho et al. 2014. Differs: the reset gate
        stands after the recurrent product, as in cuDNN; dropout between layers (Zaremba
        et al. 2014).
    """

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: Cell = "gru",
        bidirectional: bool = True,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, num_layers, cell, dropout, **kwargs)
        self.bidirectional = arguments.boolean("bidirectional", bidirectional)

    @property
    def width(self) -> int:
        """The width E of the hidden states."""
        return 2 * self.units if self.bidirectional else self.units

    def build(self, x_shape: Shape) -> None:
        """Makes the stack."""
        check_rank("x", x_shape, "(batch, length, width)")
        self.recurrences = []
        for i in range(self.num_layers):
            recurrence = self.recurrence(name=f"layer_{i}", zero_output_for_mask=True)
            if self.bidirectional:
                recurrence = keras.layers.Bidirectional(
                    recurrence, name=f"layer_{i}", dtype=self.dtype_policy
                )
            recurrence.build(x_shape)
            x_shape = (*x_shape[:-1], self.width)
            self.recurrences.append(recurrence)

    def call(
        self, x: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encodes `x`."""
        check_rank("x", x, "(batch, length, width)")
        check_not_empty("x", x)
        mask = bool_mask("mask", mask)
        for recurrence in self.recurrences:
            x, *states = recurrence(x, mask=mask)
            x = self.dropout_layer(x)
        return x, ops.concatenate(states, axis=-1)

    def compute_mask(self, x: Tensor, mask: Tensor | None = None) -> Any:
        """Passes the mask of `x` on to the hidden states, none to the final ones."""
        return mask

    def compute_output_shape(self, x_shape: Shape) -> tuple[Shape, Shape]:
        """Returns the shapes of the hidden states and of the final ones."""
        return (*x_shape[:-1], self.width), (x_shape[0], self.width)

    def compute_output_spec(
        self, x: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> Any:
        """Returns the symbolic hidden states and final states."""
        check_rank("x", x, "(batch, length, width)")
        return tuple(
            keras.KerasTensor(shape, self.compute_dtype)
            for shape in self.compute_output_shape(x.shape)
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "bidirectional": self.bidirectional}
