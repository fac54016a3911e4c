"""Learned positions: a vector for each position, added to a sequence of vectors."""

import math
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Initializer, Shape, Tensor
from keras_seqattn.backend import tracing
from keras_seqattn.layers.embedding.positions import positions_of
from keras_seqattn.layers.shapes import check_rank, check_width


@keras.saving.register_keras_serializable(package="keras_seqattn")
class LearnedPositions(arguments.Checked, keras.layers.Layer):
    """Adds a learned vector for each position.

    y[b, p] = x[b, p] + table[start + p]. Masks pass through.
    Shapes: B batch, L length, D model_dim.

    Args:
        max_length: Number of positions in the table, a positive integer.
        initializer: Initializer of the table.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        x: Float tensor `(B, L, D)`.
        start: Position of the first vector; a scalar tensor in cached decoding, where
            the caller must ensure that start + L <= max_length.
        positions: Integer tensor `(B, L)`, or `(L,)` for all rows: the position of each
            vector, as in packed or shifted sequences; in place of `start`.

    Returns:
        Float tensor `(B, L, D)` in the compute dtype.

    Raises:
        ValueError: If `max_length` is not a positive integer, the sequence is longer
            than it, or a shape does not fit. `positions` beyond the table are an error
            if their values can be seen. In a compiled program they cannot, and the
            vectors there are undefined. If such a program leaves the length or the
            start open instead, vectors beyond the table are NaN.

    Example:
        >>> import numpy as np
        >>> layer = LearnedPositions(max_length=16)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)

    Reference:
        Gehring et al. 2017, section 3.1. Differs: none.
    """

    def __init__(
        self, max_length: int, initializer: Initializer = "uniform", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.max_length = arguments.positive_integer("max_length", max_length)
        self.initializer = arguments.keras_object("initializer", initializer)
        self.supports_masking = True

    def build(self, x_shape: Shape) -> None:
        """Makes the table `(max_length, D)`."""
        check_rank("x", x_shape, "(batch, length, width)")
        self.table = self.add_weight(
            name="table",
            shape=(self.max_length, x_shape[-1]),
            initializer=self.initializer,
        )

    def call(
        self, x: Tensor, start: int | Tensor = 0, positions: Tensor | None = None
    ) -> Tensor:
        """Adds the positions `start`, `start + 1`, ..., or `positions`, to `x`."""
        check_rank("x", x, "(batch, length, width)")
        check_width("x", x, self.table.shape[1])
        length = x.shape[1]
        if ops.is_tensor(start):  # Keras makes a tensor of NumPy's integers
            known = tracing.known_values(start, wait=False)
            start = start if known is None or known.ndim else int(known)
        if positions is not None:
            rows = self._rows(positions_of(x, start, positions))
        elif isinstance(length, int) and isinstance(start, int):
            self._check_length(length, start)
            rows = self.table[start : start + length]
        else:
            # Length or start is known only when the program runs: NaN past the table.
            positions = positions_of(x, start)
            rows = ops.take(
                self.table, ops.minimum(positions, self.max_length - 1), axis=0
            )
            rows = ops.where(positions[..., None] < self.max_length, rows, math.nan)
        return x + ops.cast(rows, x.dtype)

    def _rows(self, positions):
        """Returns the vectors at positions; refuses those seen to be outside."""
        values = tracing.known_values(positions)
        if values is not None and values.size:
            lowest, highest = int(values.min()), int(values.max())
            if lowest < 0 or highest >= self.max_length:
                raise ValueError(
                    f"`positions` must be in [0, {self.max_length}), the table. "
                    f"Received: positions from {lowest} to {highest}."
                )
        return ops.take(self.table, positions, axis=0)

    def _check_length(self, length, start):
        arguments.integer("start", start, 0)
        if start + length > self.max_length:
            raise ValueError(
                f"`x` must end before position max_length={self.max_length}; cut the "
                "sequence or build the layer with a greater `max_length`. "
                f"Received: x of length {length}, start={start!r}."
            )

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """Returns the shape of `x`, unchanged."""
        check_rank("x", x_shape, "(batch, length, width)")
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "initializer": keras.initializers.serialize(self.initializer),
        }
