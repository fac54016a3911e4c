"""Operations that a backend does faster than Keras's own, and their Keras form."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_seqattn.annotations import Tensor


def random_uint16(shape: Sequence[int | Tensor], seed: Tensor) -> Tensor:
    """Draws 16 random bits for each place of a shape, on TensorFlow.

    Args:
        shape: Tuple of integers or scalar tensors.
        seed: Tensor of two integers.

    Returns:
        Tensor of the shape, uint16.

    Raises:
        NotImplementedError: On another backend.

    Example:
        >>> if keras.backend.backend() == "tensorflow":
        ...     assert random_uint16((2, 3), keras.ops.array([7, 0])).shape == (2, 3)
    """
    if keras.backend.backend() != "tensorflow":
        raise NotImplementedError("Only TensorFlow draws bits here.")
    import tensorflow as tf

    *others, width = shape
    # The generator fills 32 bits at a time.
    both = tf.random.stateless_uniform(
        (*others, (width + 1) // 2), tf.cast(seed, "int32"), None, None, "uint32"
    )
    numbers = tf.reshape(tf.bitcast(both, "uint16"), (*others, -1))
    is_even = isinstance(width, int) and width % 2 == 0
    return numbers if is_even else numbers[..., :width]


def sizes(x: Tensor) -> tuple[int | Tensor, ...]:
    """Returns a tensor's shape as `ops.reshape` takes it.

    Args:
        x: Tensor.

    Returns:
        Tuple of its sizes: -1 in place of a single one that is unknown, which takes no
        operation, as scalar tensors do.

    Example:
        >>> import numpy as np
        >>> sizes(np.ones((2, 3)))
        (2, 3)
    """
    shape = tuple(x.shape)
    if shape.count(None) > 1:
        return tuple(keras.ops.shape(x))
    return tuple(-1 if size is None else size for size in shape)


def dense(gradient: Any) -> Tensor:
    """Adds up a gradient that TensorFlow keeps in parts, one for each lookup of a row.

    Args:
        gradient: Tensor, or on TensorFlow `tf.IndexedSlices`.

    Returns:
        Tensor.

    Example:
        >>> dense(keras.ops.ones((2, 3))).shape == (2, 3)
        True
    """
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)
