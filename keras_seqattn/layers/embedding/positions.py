"""The position of each vector in a sequence.

Shapes: B batch, L length.
"""

import inspect

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend.ops import as_int32
from keras_seqattn.layers.shapes import check_batch


def positions_of(
    x: Tensor, start: int | Tensor, positions: Tensor | None = None, axis: int = 1
) -> Tensor:
    """Returns the positions of the vectors of a sequence, int32 `(L,)` or `(B, L)`.

    They are `positions`, `(B, L)` or `(L,)` for all rows, or else `start`, `start + 1`,
    ... along `axis` of `x`.
    """
    if positions is None:
        return ops.arange(ops.shape(x)[axis], dtype="int32") + as_int32(start)
    positions = ops.convert_to_tensor(positions)
    dtype, shape = keras.backend.standardize_dtype(positions.dtype), positions.shape
    if "int" not in dtype or len(shape) not in (1, 2):
        raise ValueError(
            "`positions` must be an integer tensor of rank 1 or 2, (length,) or "
            f"(batch, length). Received: positions of dtype {dtype!r} and shape "
            f"{tuple(shape)}."
        )
    if not (isinstance(start, int) and start == 0):
        raise ValueError(
            f"`start` must be 0 where `positions` are given. Received: start={start!r}."
        )
    lengths = {shape[-1], x.shape[axis]} - {None}
    if len(lengths) > 1:
        raise ValueError(
            f"`positions` must have the length of the sequence, {x.shape[axis]}. "
            f"Received: positions.shape={tuple(shape)}."
        )
    if len(shape) == 2 and shape[0] != 1:
        check_batch(positions=positions, x=x)
    return ops.cast(positions, "int32")


def takes_positions(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer of positions takes those of each vector in a call."""
    return any(
        parameter.name == "positions" or parameter.kind is parameter.VAR_KEYWORD
        for parameter in inspect.signature(layer.call).parameters.values()
    )
