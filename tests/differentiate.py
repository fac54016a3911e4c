"""Values and gradients of a function of several tensors, compiled or not."""

import keras
import numpy as np
from keras import ops


def upstream_gradient(shape):
    """Gives some gradient for every place of an output, the same each time."""
    count = int(np.prod(shape))
    return np.cos(np.arange(count, dtype="float32")).reshape(shape)


def values_and_gradients(function, arrays, mode="eager", dtype="float32"):
    """Runs a function forward, and back from `upstream_gradient`.

    Args:
        function: A function of float tensors that gives one.
        arrays: Arrays, one for each tensor.
        mode: "eager", "graph" or "jit": what TensorFlow does. JAX always compiles,
            and torch never does.
        dtype: Dtype of the tensors.

    Returns:
        The value, and a list of gradients, float32 NumPy.
    """
    run = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}

    def loss(*inputs):
        value = ops.cast(function(*inputs), "float32")
        upstream = ops.convert_to_tensor(upstream_gradient(value.shape))
        return ops.sum(value * upstream), value

    inputs = [ops.cast(array, dtype) for array in arrays]
    value, gradients = run[keras.backend.backend()](loss, inputs, mode)
    return _numpy(value), [_numpy(x) for x in gradients]


def value_and_gradient(function, x):
    """Returns a scalar function's value and its gradient at `x`, float32 NumPy."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    value, (gradient,) = values_and_gradients(function, [x], dtype=dtype)
    return float(value), gradient


def _numpy(x):
    return ops.convert_to_numpy(ops.cast(x, "float32"))


def _tensorflow(loss, inputs, mode):
    import tensorflow as tf

    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total, value = loss(*inputs)
        return value, tape.gradient(total, inputs)

    if mode == "eager":
        return run(*inputs)
    return tf.function(run, jit_compile=mode == "jit", autograph=False)(*inputs)


def _jax(loss, inputs, mode):
    import jax

    def stateless(*inputs):  # A draw of random numbers stays within the program.
        with keras.StatelessScope():
            return loss(*inputs)

    every = tuple(range(len(inputs)))
    program = jax.jit(jax.value_and_grad(stateless, every, has_aux=True))
    (_, value), gradients = program(*inputs)
    return value, gradients


def _torch(loss, inputs, mode):
    import torch

    inputs = [x.detach().requires_grad_() for x in inputs]
    total, value = loss(*inputs)
    return value.detach(), torch.autograd.grad(total, inputs)
