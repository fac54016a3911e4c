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


def as_int32(x: Any) -> Any:
    """Returns an integer as it is, and a tensor of integers as int32.

    TensorFlow adds no int64, such as NumPy's integers, to the int32 of positions.
    """
    return keras.ops.cast(x, "int32") if hasattr(x, "dtype") else x


def largest(x: Tensor, axis: int, initial: float) -> Tensor:
    """Computes the maximum of `initial` and of `x` along an axis, which is kept.

    So an axis without elements gives `initial`. `keras.ops.max` has that argument too,
    but with it fails on torch's meta tensors, on which Keras builds a model.
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
