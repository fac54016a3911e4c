"""Operations that a backend does faster than Keras's own, and their Keras form."""

from typing import Any

import keras

from keras_seqattn.annotations import Tensor


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
