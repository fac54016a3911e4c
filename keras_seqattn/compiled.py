"""The one room that touches the active backend: compilation, and counting programs.

Keras has no public way to compile a function. Here a function of tensors becomes one
XLA program per shape on TensorFlow and JAX, and runs eagerly on torch, whose compiler
does not take a loop that ends when its data say so.
"""

import time

import keras
import numpy as np
from keras import tree


class CompiledFunction:
    """Compiles a function of tensors once for each signature, and counts.

    Variables are read at each call: weights that change are seen.

    Args:
        function: A function of (nested) tensors, written in `keras.ops`.
        variables: The Keras variables it reads; it must not assign them.

    Call arguments:
        *args: (Nested) NumPy arrays.

    Returns:
        What `function` gives, as (nested) NumPy arrays.

    Example:
        >>> import numpy as np
        >>> double = CompiledFunction(lambda x: x * 2)
        >>> double(np.ones(2, "float32")).tolist(), double.num_programs
        ([2.0, 2.0], 1)
    """

    def __init__(self, function, variables=()):
        self._function = function
        self._variables = list(variables)
        self._run = _RUNNERS[keras.backend.backend()](function, self._variables)
        self._seconds = {}

    @property
    def num_programs(self):
        """The number of programs compiled so far: one for each signature."""
        return len(self._seconds)

    @property
    def compile_seconds(self):
        """The seconds that the first call of each signature took, its run included."""
        return sum(self._seconds.values())

    def __call__(self, *args):
        """Runs the program for the shapes of `args`."""
        args = tree.map_structure(np.asarray, args)
        signature = tuple((x.shape, x.dtype.str) for x in tree.flatten(args))
        start = time.perf_counter()
        result = tree.map_structure(keras.ops.convert_to_numpy, self._run(*args))
        self._seconds.setdefault(signature, time.perf_counter() - start)
        return result


def _tensorflow_runner(function, variables):
    import tensorflow as tf

    return tf.function(function, jit_compile=True)


def _jax_runner(function, variables):
    import jax

    # The values travel as arguments: read inside, they would become constants.
    def stateless(values, *args):
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return function(*args)

    program = jax.jit(stateless)
    return lambda *args: program([variable.value for variable in variables], *args)


def _torch_runner(function, variables):
    import torch

    @torch.no_grad()
    def run(*args):
        return function(*tree.map_structure(keras.ops.convert_to_tensor, args))

    return run


_RUNNERS = {
    "tensorflow": _tensorflow_runner,
    "jax": _jax_runner,
    "torch": _torch_runner,
}
