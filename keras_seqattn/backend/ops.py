"""Operations that a backend does faster than Keras's own, and their Keras form."""

import keras

from keras_seqattn.backend.tracing import cpu_program


def random_uint16(shape, seed):
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


def sizes(x):
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


def has_adam(variable):
    """Returns whether the backend has an operation for Adam's update of a variable.

    Args:
        variable: The backend's variable, as optimizers are given it.

    Returns:
        A Python bool: True on TensorFlow for a variable of one CPU, where XLA does not
        compile, which makes one pass of many operations by itself.

    Example:
        >>> import numpy as np
        >>> has_adam(np.ones(3))
        False
    """
    if cpu_program(variable) != "tensorflow":
        return False
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    return isinstance(variable, BaseResourceVariable)


def adam_scalars(dtype, learning_rate, step, beta_1, beta_2, epsilon):
    """Makes what all updates of a step have in common, for `apply_adam`.

    Args:
        dtype: The variables' dtype.
        learning_rate: Float scalar.
        step: Integer scalar, 1 at the first update.
        beta_1: Float.
        beta_2: Float.
        epsilon: Float.

    Returns:
        Dict of scalar tensors.
    """
    import tensorflow as tf

    scalars = {"lr": learning_rate, "beta1": beta_1, "beta2": beta_2}
    scalars = {name: tf.cast(x, dtype) for name, x in scalars.items()}
    step = tf.cast(step, dtype)
    return scalars | {
        "beta1_power": tf.pow(scalars["beta1"], step),
        "beta2_power": tf.pow(scalars["beta2"], step),
        "epsilon": tf.cast(epsilon, dtype),
    }


def apply_adam(variable, momentum, velocity, gradient, scalars):
    """Updates a variable, its momentum and its velocity in one pass, on TensorFlow.

    Args:
        variable: Variable of TensorFlow.
        momentum: Variable of its shape.
        velocity: Variable of its shape.
        gradient: Tensor of its shape, or `IndexedSlices`.
        scalars: What `adam_scalars` gave for the variable's dtype.
    """
    import tensorflow as tf

    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=momentum.handle,
        v=velocity.handle,
        grad=tf.cast(tf.convert_to_tensor(gradient), variable.dtype),
        **scalars,
    )
