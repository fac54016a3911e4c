"""How large a tensor a function and its backward pass ever make."""

import math

import keras
from keras import ops

from tests.differentiate import values_and_gradients


def largest_tensor(function, arrays):
    """Gives the number of elements of the largest tensor on the way.

    Args:
        function: A function of float tensors that gives one.
        arrays: Arrays, one for each tensor.

    Returns:
        An integer; inputs and gradients count too.
    """
    sizes = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
    return max(sizes[keras.backend.backend()](function, arrays))


def _tensorflow(function, arrays):
    import tensorflow as tf

    @tf.function(autograph=False)
    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(function(*inputs))
        return tape.gradient(total, inputs)

    graph = run.get_concrete_function(*map(ops.convert_to_tensor, arrays)).graph
    # The bodies of loops are functions of the graph's library.
    graphs = [graph, *(x.graph for x in graph._functions.values())]
    for graph in graphs:
        for operation in graph.get_operations():
            if operation.type == "Placeholder":  # Some have no shape here.
                continue
            for output in operation.outputs:
                assert output.shape.is_fully_defined(), operation
                yield output.shape.num_elements()


def _jax(function, arrays):
    import jax
    from jax.extend.core import jaxprs_in_params

    def run(*inputs):
        every = tuple(range(len(inputs)))
        return jax.grad(lambda *x: function(*x).sum(), every)(*inputs)

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            yield from (math.prod(x.aval.shape) for x in equation.outvars)
            for inner in jaxprs_in_params(equation.params):
                yield from walk(inner)

    return walk(jax.make_jaxpr(run)(*arrays).jaxpr)


def _torch(function, arrays):
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            result = operation(*args, **(kwargs or {}))
            tensors = _pytree.tree_leaves(result)
            sizes.extend(x.numel() for x in tensors if hasattr(x, "numel"))
            return result

    with Watch():
        values_and_gradients(function, arrays)
    return sizes
