"""The memory that makes a decoder recurrent over the segments of a long text.

Shapes: B batch, T length of a segment, M memory_length, D model_dim.
"""

from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.layers.attention.masks import bool_mask, mask_of_all
from keras_seqattn.layers.shapes import check_batch, check_rank, check_width


def next_memory(memory: Tensor, segment: Tensor) -> Tensor:
    """Returns the last M positions of a memory `(B, M, ...)` and a segment after it.

    No gradient passes. Reference: Dai et al. 2019, section 3.2. Differs: none.
    """
    segment = ops.cast(segment, memory.dtype)
    joined = ops.concatenate([memory, segment], axis=1)  # (B, M + T, ...)
    return ops.stop_gradient(joined[:, -memory.shape[1] :])


@keras.saving.register_keras_serializable(package="keras_seqattn")
class SegmentMemory(arguments.Checked, keras.layers.Layer):
    """Holds the last vectors it was called with, and returns them at the next call.

    Row b of a batch continues row b of the batch before: texts are cut into segments,
    and each text keeps its row. The memory begins empty, no gradient passes through it,
    and it changes at every call, in training or not. It consists of two non-trainable
    variables, so it works in `fit` on every backend, compiled or not, but only for
    batches of the size it is made for. It is saved with the weights.
    Shapes: B batch, T length of a segment, M memory_length, D model_dim.

    Args:
        memory_length: Number of vectors kept M, a positive integer.
        batch_size: Number of rows B, a positive integer.
        **kwargs: `name`, `dtype`.

    Call arguments:
        x: Float tensor `(B, T, D)`, the segment.
        mask: Bool tensor `(B, T)`, True = a real token; else the mask on `x`.
        restart: Bool tensor `(B,)`, True = the row begins another text, and what it
            held is forgotten.
        x_mask: The same as `mask`; Keras uses this name if there is a `restart`.

    Returns:
        What was held before this call: the vectors `(B, M, D)` in the compute dtype,
        and a bool tensor `(B, M)`, False where nothing is held yet, or padding.

    Raises:
        ValueError: If a size is not a positive integer, or `x` has a different
            rank or batch size.

    Example:
        >>> import numpy as np
        >>> layer = SegmentMemory(memory_length=2, batch_size=1)
        >>> _ = layer(np.array([[[1.0], [2.0], [3.0]]]))
        >>> held, mask = layer(np.array([[[4.0]]]))
        >>> np.asarray(held)[0, :, 0].tolist(), np.asarray(mask).tolist()
        ([2.0, 3.0], [[True, True]])

    Reference:
        Dai et al. 2019, section 3.2. Differs: none.
    """

    def __init__(self, memory_length: int, batch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.memory_length = arguments.positive_integer("memory_length", memory_length)
        self.batch_size = arguments.positive_integer("batch_size", batch_size)
        self.supports_masking = True

    def build(self, x_shape: Shape) -> None:
        """Makes the variables, which hold nothing yet."""
        check_rank("x", x_shape, "(batch, length, width)")
        shape = (self.batch_size, self.memory_length)
        self.memory = self.add_weight(
            name="memory",
            shape=(*shape, x_shape[-1]),
            dtype=self.compute_dtype,
            initializer="zeros",
            trainable=False,
        )
        self.memory_mask = self.add_weight(
            name="memory_mask",
            shape=shape,
            dtype="bool",
            initializer="zeros",
            trainable=False,
        )

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        restart: Tensor | None = None,
        x_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Returns what is held, then holds the end of `x`."""
        check_rank("x", x, "(batch, length, width)")
        check_batch(x=x, memory=self.memory)
        check_width("x", x, self.memory.shape[-1])
        # Copies: torch's `assign` writes into the very tensor that was read.
        held, held_mask = ops.copy(self.memory), ops.copy(self.memory_mask)
        if restart is not None:
            restart = bool_mask("restart", restart)
            check_rank("restart", restart, "(batch,)")
            check_batch(x=x, restart=restart)
            going_on = ops.logical_not(restart)
            held_mask = ops.logical_and(held_mask, going_on[:, None])
        mask = mask_of_all(x, bool_mask("mask", x_mask if mask is None else mask))
        real = ops.where(mask[..., None], x, ops.cast(0.0, x.dtype))
        self.memory.assign(next_memory(held, real))
        self.memory_mask.assign(next_memory(held_mask, mask))
        return held, held_mask

    def reset(self) -> None:
        """Forgets everything: every row begins another text."""
        if self.built:
            self.memory.assign(ops.zeros(self.memory.shape, self.memory.dtype))
            self.memory_mask.assign(ops.zeros(self.memory_mask.shape, "bool"))

    def compute_mask(self, x: Tensor, mask: Tensor | None = None) -> None:
        """Returns None: the mask of the memory is an output."""
        return None

    def compute_output_spec(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        restart: Tensor | None = None,
        x_mask: Tensor | None = None,
    ) -> Any:
        """Returns the symbolic memory and its mask."""
        check_rank("x", x, "(batch, length, width)")
        check_batch(x=x, memory=self.memory)
        shape = (self.batch_size, self.memory_length)
        return (
            keras.KerasTensor((*shape, x.shape[-1]), self.compute_dtype),
            keras.KerasTensor(shape, "bool"),
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "memory_length": self.memory_length,
            "batch_size": self.batch_size,
        }
