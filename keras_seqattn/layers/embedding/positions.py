"""Which position each vector of a sequence stands at.

Shapes: B batch, L length.
"""

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.layers.shapes import check_batch


def positions_of(
    x: Tensor, start: int | Tensor = 0, positions: Tensor | None = None, axis: int = 1
) -> Tensor:
    """Returns the positions of the vectors of a sequence.

    Args:
        x: Tensor `(B, ..., L, ...)`.
        start: Position of the first vector, an integer or a scalar tensor.
        positions: Integer tensor `(B, L)`, or `(L,)` for all rows: the position of each
            vector. None: `start`, `start + 1`, ...
        axis: The axis of the length.

    Returns:
        Int32 tensor `(L,)` or `(B, L)`.

    Raises:
        ValueError: If `positions` are not integers, or do not fit `x`, or `start` is
            given with them.

    Example:
        >>> x = ops.ones((2, 3, 8))
        >>> ops.convert_to_numpy(positions_of(x, start=4)).tolist()
        [4, 5, 6]
        >>> packed = [[0, 1, 0], [0, 1, 2]]
        >>> tuple(positions_of(x, positions=packed).shape)
        (2, 3)
    """
    if positions is None:
        return ops.arange(ops.shape(x)[axis], dtype="int32") + start
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
