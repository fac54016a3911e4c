"""The recurrent encoder.

Shapes: B batch, L length, D width of the input, E width of the hidden states, U units.
"""

from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Cell, Shape, Tensor
from keras_seqattn.backend.parts import track_list
from keras_seqattn.layers.attention.masks import bool_mask
from keras_seqattn.layers.dropout import if_known
from keras_seqattn.layers.recurrent.stack import RecurrentStack
from keras_seqattn.layers.shapes import check_not_empty, check_rank, check_width
from keras_seqattn.layers.weights.frozen import keep_frozen


@keras.saving.register_keras_serializable(package="keras_seqattn")
class RecurrentEncoder(RecurrentStack):
    """Reads a sequence step by step, from both sides, into hidden states.

    A stack of gated recurrent units (GRU): each layer reads forwards and, in a second
    recurrence, backwards, and concatenates the two states of a position. A masked
    position leaves the state as it was, and its own output is zero, so its content
    changes nothing, wherever it is. A sequence that is all masked gives zeros.
    Shapes: B batch, L length, D width of the input, U units, E = 2 U, or U where the
    sequence is read forwards only.

    Args:
        units: Width U of each direction's state, a positive integer.
        num_layers: Number of layers in the stack.
        cell: "gru", or "simple" for a `RecurrentCell`.
        bidirectional: Whether to read backwards too.
        dropout: Fraction of each layer's outputs dropped while training, in [0, 1).
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        x: Float tensor `(B, L, D)`.
        mask: Bool tensor `(B, L)`, True = a real token; else the mask on `x`.
        training: Whether to apply dropout.

    Returns:
        The hidden states, a float tensor `(B, L, E)` with the mask of `x`, and the
        final states of the last layer, `(B, E)`, side by side: each direction's has
        read the whole sequence, since the backward one ends on the first position.

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
        comes after the recurrent product, as in cuDNN; dropout between layers (Zaremba
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
        self._input_width = x_shape[-1]
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
        track_list(self, "recurrences", self.recurrences)
        keep_frozen(self)

    def call(
        self, x: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """Encodes `x`."""
        check_rank("x", x, "(batch, length, width)")
        check_width("x", x, self._input_width)
        check_not_empty("x", x)
        mask = bool_mask("mask", mask)
        for recurrence in self.recurrences:
            x, *states = recurrence(x, mask=mask, **if_known(training))
            x = self.dropout_layer(x, **if_known(training))
        return x, ops.concatenate(states, axis=-1)

    def compute_mask(self, x: Tensor, mask: Tensor | None = None) -> Any:
        """Passes the mask of `x` on to the hidden states, none to the final ones."""
        return mask

    def compute_output_shape(self, x_shape: Shape) -> tuple[Shape, Shape]:
        """Returns the shapes of the hidden states and of the final ones."""
        check_rank("x", x_shape, "(batch, length, width)")
        return (*x_shape[:-1], self.width), (x_shape[0], self.width)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "bidirectional": self.bidirectional}
