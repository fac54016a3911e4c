"""Compilation on the active backend.

Keras has no public way to compile a function. Here a function of tensors becomes one
XLA program per shape on TensorFlow and JAX. On torch it runs eagerly, since torch's
compiler does not take a loop whose end depends on data.
"""

import functools
import math
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
from keras import tree

from keras_seqattn.backend.processes import are_several, whole_array
from keras_seqattn.backend.tracing import device_kind

# Programs are traced one at a time: a thread that needs the same one waits for it.
_TRACING = threading.RLock()


# The id of the process that has computed; a forked child has its parent's too.
_COMPUTED_IN = set()
# Where Linux says how much of the processor a container may use.
CPU_LIMIT = pathlib.Path("/sys/fs/cgroup/cpu.max")


def note_variables() -> None:
    """Records that this process has a model, whose variables the backend holds.

    TensorFlow and JAX start threads for them, which a forked process will not have.
    """
    if keras.backend.backend() != "torch":
        _COMPUTED_IN.add(os.getpid())


def _check_process():
    """Raises an error where a program would hang.

    A forked child has the parent's locks but none of its threads. So a backend that had
    computed in the parent would wait forever in the child.
    """
    if _COMPUTED_IN - {os.getpid()}:
        raise RuntimeError(
            "A process that was forked must not compute with the backend of one "
            "that had computed or loaded a model: it would hang. Start processes by "
            '`multiprocessing.get_context("spawn")`, or load the model after the '
            f"fork. Received: process {os.getpid()}, forked from {os.getppid()}."
        )
    _COMPUTED_IN.add(os.getpid())


class CompiledFunction:
    """Compiles a function of tensors once for each signature, and counts the programs.

    A call takes (nested) NumPy arrays or tensors of the backend. Variables are read at
    each call, so a change of weights takes effect. Threads may share one instance. A
    call raises a `RuntimeError` in a process that was forked from one that had run a
    program or, on TensorFlow and JAX, loaded a translator.

    `num_programs` is the number of signatures compiled; `compile_seconds` is the total
    time of each signature's first call, which includes running it once.

    Args:
        function: A function of (nested) tensors, written in `keras.ops`.
        variables: The Keras variables it reads; it must not assign them.
        to_numpy: Whether to return NumPy arrays; False returns tensors of the backend,
            as input of another call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        variables: Iterable[Any] = (),
        to_numpy: bool = True,
    ) -> None:
        self._function = function
        self._variables = list(variables)
        self._to_numpy = to_numpy
        self._programs = {}
        self.compile_seconds: float = 0.0

    @property
    def num_programs(self) -> int:
        """The number of programs compiled so far: one for each signature."""
        return len(self._programs)

    def __call__(self, *args: Any) -> Any:
        """Runs the program for the shapes of `args`."""
        _check_process()
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


def _tensor_or_array(x: Any) -> Any:
    """Converts anything that is not a tensor of the backend to a NumPy array."""
    return x if keras.ops.is_tensor(x) else np.asarray(x)


def _shape_and_dtype(x):
    return tuple(x.shape), keras.backend.standardize_dtype(x.dtype)


def _to_numpy(result):
    return tree.map_structure(whole_array, result)


def num_threads() -> int:
    """Returns how many compiled programs are worth running at once, in threads.

    One program's many small operations leave the other cores of a CPU waiting. If XLA
    compiles for the CPU, the number is that of the cores this process may use.
    Otherwise it is 1: on an accelerator, on torch, whose threads Python runs in turn,
    and in processes that compute together and must run their programs in one order.
    """
    if keras.backend.backend() == "torch" or are_several():
        return 1
    return _cores() if device_kind() == "cpu" else 1


def fewest_rows() -> int:
    """Returns the fewest rows that a compiled program should compute.

    TensorFlow's XLA computes the products of a single row in loops of scalars: on a CPU
    two rows take half the time of one (benchmarks/results/2026-11-23.md).
    """
    return 2 if keras.backend.backend() == "tensorflow" else 1


def compiles_cudnn() -> bool:
    """Returns whether a compiled program may contain cuDNN's recurrent kernels.

    XLA cannot compile TensorFlow's operation for them.
    """
    return keras.backend.backend() != "tensorflow"


def _cores():
    """Returns how many cores this process may use, by a container's limit, too."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    try:
        microseconds, period = map(int, CPU_LIMIT.read_text().split())
    except (OSError, ValueError):  # There is no limit.
        return cores
    return min(cores, math.ceil(microseconds / period))


def _compile_tensorflow(function, variables):
    import tensorflow as tf

    # TensorFlow counts the traces of a function, even those for different models, and
    # warns of many; a partial counts as a new function.
    function = functools.partial(function)
    # The function is written in `keras.ops`: AutoGraph has no Python to convert.
    return tf.function(function, jit_compile=True, autograph=False)


def _compile_jax(function, variables):
    import jax

    # Values are passed as arguments: read inside, they would become constants.
    def stateless(values, *args):
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return function(*args)

    program = jax.jit(stateless)

    def run(*args):
        try:
            values = [variable.value for variable in variables]
        except TypeError as error:  # Keras has taken them away.
            raise RuntimeError(
                "`model` must not be within `fit`, `evaluate` or `predict`, where on "
                "JAX only their own step has its weights. In a callback, read "
                "`callback.model` first, which fetches them; in a different thread, "
                "use a second copy that is loaded from a file."
            ) from error
        return program(values, *args)

    return run


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
