"""Small operations on shapes and gradients that `keras.ops` lacks."""

from typing import Any

import keras

from keras_seqattn.annotations import Tensor


def sizes(x: Tensor) -> tuple[int | Tensor, ...]:
    """Returns a tensor's shape as `ops.reshape` takes it.

    A single unknown size is -1, which unlike a scalar tensor takes no operation.
    """
    shape = tuple(x.shape)
    if shape.count(None) > 1:
        return tuple(keras.ops.shape(x))
    return tuple(-1 if size is None else size for size in shape)


def largest(x: Tensor, axis: int, initial: float) -> Tensor:
    """Returns the largest number along an axis, which is kept, or `initial` if greater.

    It is `keras.ops.max` for a tensor that may be empty, which unlike that one with
    `initial` also takes torch's tensors without values, of which Keras builds a model.
    """
    if 0 in x.shape:
        return keras.ops.max(x, axis=axis, keepdims=True, initial=initial)
    return keras.ops.maximum(keras.ops.max(x, axis=axis, keepdims=True), initial)


def dense(gradient: Any) -> Tensor:
    """Returns a gradient as one tensor, even if it is a `tf.IndexedSlices`."""
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)
