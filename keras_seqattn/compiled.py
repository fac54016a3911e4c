"""Compilation on the active backend, and what it does in fewer operations.

Keras has no public way to compile a function. Here a function of tensors becomes one
XLA program per shape on TensorFlow and JAX, and runs eagerly on torch, whose compiler
does not take a loop that ends when its data say so.
"""

import contextlib
import contextvars
import functools
import os
import threading
import time

import keras
import numpy as np
from keras import tree

# Programs are traced one at a time: whoever needs the same one waits for it.
_TRACING = threading.RLock()
_SHAPES_ARE_FIXED = contextvars.ContextVar("shapes_are_fixed", default=False)


class CompiledFunction:
    """Compiles a function of tensors once for each signature, and counts.

    Variables are read at each call: weights that change are seen. Threads may share it.

    `num_programs` and `compile_seconds` say what was compiled: the seconds are those of
    each signature's first call, its run included.

    Args:
        function: A function of (nested) tensors, written in `keras.ops`.
        variables: The Keras variables it reads; it must not assign them.
        to_numpy: Whether to give NumPy arrays; False leaves the results where they
            are, for another call to go on with.

    Call arguments:
        *args: (Nested) NumPy arrays, or tensors of the backend.

    Returns:
        What `function` gives, as (nested) NumPy arrays or tensors.

    Example:
        >>> import numpy as np
        >>> double = CompiledFunction(lambda x: x * 2)
        >>> double(np.ones(2, "float32")).tolist(), double.num_programs
        ([2.0, 2.0], 1)
    """

    def __init__(self, function, variables=(), to_numpy=True):
        self._function = function
        self._variables = list(variables)
        self._to_numpy = to_numpy
        self._programs = {}
        self.compile_seconds = 0.0

    @property
    def num_programs(self):
        """The number of programs compiled so far: one for each signature."""
        return len(self._programs)

    def __call__(self, *args):
        """Runs the program for the shapes of `args`."""
        args = tree.map_structure(_tensor_or_array, args)
        signature = tuple(map(_shape_and_dtype, tree.flatten(args)))
        if signature not in self._programs:
            with _TRACING:
                if signature not in self._programs:
                    return self._first_call(signature, args)
        result = self._programs[signature](*args)
        return _to_numpy(result) if self._to_numpy else result

    def _first_call(self, signature, args):
        compile_function = _COMPILERS[keras.backend.backend()]
        program = compile_function(self._function, self._variables)
        start = time.perf_counter()
        result = program(*args)
        arrays = _to_numpy(result)  # waits for the end
        self.compile_seconds += time.perf_counter() - start
        self._programs[signature] = program
        return arrays if self._to_numpy else result


def _tensor_or_array(x):
    return x if keras.ops.is_tensor(x) else np.asarray(x)


def _shape_and_dtype(x):
    return tuple(x.shape), keras.backend.standardize_dtype(x.dtype)


def _to_numpy(result):
    return tree.map_structure(keras.ops.convert_to_numpy, result)


def num_threads():
    """Gives how many compiled programs are worth running at once, in threads.

    One program's many small operations leave a processor's other cores waiting.

    Returns:
        The number of cores this process may use, where XLA compiles for them; 1 where
        an accelerator computes, and on torch, whose threads Python runs in turn.

    Example:
        >>> num_threads() >= 1
        True
    """
    return _cores() if _COMPILES_FOR_CORES[keras.backend.backend()]() else 1


def _cores():
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tensorflow_on_cores():
    import tensorflow as tf

    return all(
        device.device_type == "CPU" for device in tf.config.get_visible_devices()
    )


def _jax_on_cores():
    import jax

    return jax.default_backend() == "cpu"


_COMPILES_FOR_CORES = {
    "tensorflow": _tensorflow_on_cores,
    "jax": _jax_on_cores,
    "torch": lambda: False,
}


def _compile_tensorflow(function, variables):
    import tensorflow as tf

    # TensorFlow counts how often it traces a function, whichever model that serves, and
    # warns; a partial is a function of its own.
    own = functools.partial(function)
    # A step is written in `keras.ops`: there is no Python for AutoGraph to convert.
    return tf.function(own, jit_compile=True, autograph=False)


def _compile_jax(function, variables):
    import jax

    # The values travel as arguments: read inside, they would become constants.
    def stateless(values, *args):
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return function(*args)

    program = jax.jit(stateless)
    return lambda *args: program([variable.value for variable in variables], *args)


def _compile_torch(function, variables):
    import torch

    @torch.no_grad()
    def run(*args):
        return function(*tree.map_structure(keras.ops.convert_to_tensor, args))

    return run


_COMPILERS = {
    "tensorflow": _compile_tensorflow,
    "jax": _compile_jax,
    "torch": _compile_torch,
}


def is_compiled_by_xla(x):
    """Tells whether a tensor is of a program that XLA will compile.

    Args:
        x: Tensor, of the program being traced or of none.

    Returns:
        A Python bool: True in all that JAX traces, and on TensorFlow in functions made
        with `jit_compile=True`, `model.fit` of such a model included.

    Example:
        >>> from keras import ops
        >>> is_compiled_by_xla(ops.ones(3))
        False
    """
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(x, jax.core.Tracer)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf
        from tensorflow.python.ops import control_flow_util

        # TensorFlow has no public way to ask.
        graph = tf.compat.v1.get_default_graph()
        return control_flow_util.GraphOrParentsInXlaContext(graph)
    return False


def allows_any_shape(x):
    """Tells whether shapes may hang on values in the program that a tensor is of.

    Args:
        x: Tensor, of the program being traced or of none.

    Returns:
        A Python bool: True on TensorFlow and torch, unless the program is compiled, or
        within `fixed_shapes`.

    Example:
        >>> from keras import ops
        >>> allows_any_shape(ops.ones(3)) == (keras.backend.backend() != "jax")
        True
    """
    if _SHAPES_ARE_FIXED.get():
        return False
    if keras.backend.backend() == "torch":
        import torch

        return not torch.compiler.is_compiling()
    return keras.backend.backend() == "tensorflow" and not is_compiled_by_xla(x)


def known_values(x, wait=True):
    """Returns the values of a tensor where they can be seen, as arguments are checked.

    They cannot in a program that is being made (a TensorFlow graph, `jax.jit`,
    `torch.compile` or `torch.export`), nor in a functional model.

    Args:
        x: An array, a tensor or a `keras.KerasTensor`.
        wait: Whether to wait for what an accelerator computes; else its values cannot
            be seen either.

    Returns:
        A NumPy array, or None.

    Example:
        >>> import numpy as np
        >>> known_values(np.array([1, 2])).tolist(), known_values(keras.Input((2,)))
        ([1, 2], None)
    """
    if isinstance(x, keras.KerasTensor):
        return None
    if not keras.ops.is_tensor(x):
        return np.asarray(x)
    if not wait and "cpu" not in str(getattr(x, "device", "cpu")).lower():
        return None
    return _KNOWN_VALUES[keras.backend.backend()](x)


def _known_values_tensorflow(x):
    import tensorflow as tf

    return tf.get_static_value(x)


def _known_values_jax(x):
    import jax

    is_seen = not isinstance(x, jax.core.Tracer) and x.is_fully_addressable
    return np.asarray(x) if is_seen else None


def _known_values_torch(x):
    import torch

    is_seen = x.device.type != "meta" and not torch.compiler.is_compiling()
    return keras.ops.convert_to_numpy(x) if is_seen else None


_KNOWN_VALUES = {
    "tensorflow": _known_values_tensorflow,
    "jax": _known_values_jax,
    "torch": _known_values_torch,
}


@contextlib.contextmanager
def fixed_shapes():
    """Has no shape hang on values: what is drawn at a place is so whatever the others.

    Example:
        >>> with fixed_shapes():
        ...     allows_any_shape(np.ones(3))
        False
    """
    token = _SHAPES_ARE_FIXED.set(True)
    try:
        yield
    finally:
        _SHAPES_ARE_FIXED.reset(token)


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


def gather(x, indices):
    """Takes what stands at places of the first axis, without asking whether they are.

    `ops.take` reads negative places from the end, at the price of eight operations on
    TensorFlow.

    Args:
        x: Tensor `(N, ...)`.
        indices: Int tensor of any shape, of numbers in [0, N).

    Returns:
        Tensor of the shape of `indices`, then that of a row of `x`.

    Example:
        >>> [int(x) for x in gather(np.array([5, 6]), np.array([1, 1]))]
        [6, 6]
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(keras.ops.convert_to_tensor(x), indices)
    return keras.ops.take(x, indices, axis=0)


def sizes(x):
    """Gives a tensor's shape as `ops.reshape` takes it.

    Args:
        x: Tensor.

    Returns:
        Tuple of its sizes: -1 in place of a single one that is unknown, which takes no
        operation, as scalar tensors do.

    Example:
        >>> sizes(np.ones((2, 3)))
        (2, 3)
    """
    shape = tuple(x.shape)
    if shape.count(None) > 1:
        return tuple(keras.ops.shape(x))
    return tuple(-1 if size is None else size for size in shape)


def has_adam(variable):
    """Tells whether the backend has an operation for Adam's update of a variable.

    Args:
        variable: The backend's variable, as optimizers are given it.

    Returns:
        A Python bool: True on TensorFlow for a variable of one device, where XLA does
        not compile, which makes one pass of many operations by itself.

    Example:
        >>> has_adam(np.ones(3))
        False
    """
    if keras.backend.backend() != "tensorflow":
        return False
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    is_single = isinstance(variable, BaseResourceVariable)
    return is_single and not is_compiled_by_xla(variable)


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


@contextlib.contextmanager
def repeated_randomness(seed=0):
    """Starts the backend's own random numbers from `seed`, and restores them after.

    On torch, `keras.random.dropout` without a seed of the user's draws from them, and
    not from its `SeedGenerator`. TensorFlow and JAX have no such state for Keras.

    Args:
        seed: Integer.

    Example:
        >>> with repeated_randomness():
        ...     x = keras.layers.Dropout(0.5)(np.ones(3), training=True)
    """
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
