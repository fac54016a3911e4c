"""A function of arrays that runs as one program on JAX, and eagerly elsewhere.

JAX compiles each operation anew for each shape it meets, which takes longer than all
else that a test does; a test that computes in one function compiles once.
"""

import functools

import hypothesis
import keras
from keras import ops, tree

from keras_seqattn.backend.compile import CompiledFunction

ON_JAX = keras.backend.backend() == "jax"
# How training runs where a test is about something else: as fast as it can.
JIT = ON_JAX


def numpy(tensor):
    """Returns a tensor as a NumPy array of float32."""
    return ops.convert_to_numpy(tensor).astype("float32")


def evaluated(function, *layers, compiles=True):
    """Makes a function of tensors one of NumPy arrays.

    Args:
        function: A function of tensors that gives (nested) tensors, and no None.
        *layers: The layers whose weights it reads. What it assigns to them is lost on
            JAX.
        compiles: Whether to compile on JAX. The tensors of a program carry no implicit
            masks.

    Returns:
        A function of (nested) NumPy arrays that gives (nested) NumPy arrays of the
        tensors' dtypes. It compiles once for the shapes that it is called with.
    """
    if compiles and ON_JAX:
        variables = [variable for layer in layers for variable in layer.variables]
        function = CompiledFunction(function, variables)

    def run(*arrays):
        arrays = tree.map_structure(ops.convert_to_tensor, arrays)
        return tree.map_structure(ops.convert_to_numpy, function(*arrays))

    return run


@functools.lru_cache(maxsize=8)
def _program(model):
    return evaluated(model, model)


def outputs(model, *inputs):
    """Gives what a model makes of (nested) arrays; one program serves all its calls.

    Args:
        model: A built model, whose variables stay the same ones.
        *inputs: Its inputs.

    Returns:
        NumPy array of float32.
    """
    return _program(model)(*inputs).astype("float32")


def examples(count):
    """Returns hypothesis's settings for a test of a general property.

    Args:
        count: Number of examples; a third of it on JAX, which compiles each.
    """
    if ON_JAX:
        count = -(-count // 3)
    return hypothesis.settings(deadline=None, max_examples=count)
