"""What kind of program a tensor belongs to, and what can be known of it there."""

import keras
import numpy as np

from keras_seqattn.annotations import Tensor


def is_compiled_by_xla(x: Tensor) -> bool:
    """Returns whether a tensor is of a program that XLA will compile.

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

        # What TensorFlow offers to Keras; it has no public way to ask:
        # https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/ops/control_flow_ops.py#L2208
        return tf.__internal__.get_enclosing_xla_context() is not None
    return False


def is_compiled_for_cpu(x: Tensor) -> bool:
    """Returns whether a tensor belongs to a program that XLA will compile for a CPU.

    Forms of operations that are faster there alone, as measured by
    `benchmarks/paths.py`, are chosen by it; an accelerator, on which nothing has been
    measured, gets Keras's own.

    Args:
        x: Tensor, of the program being traced or of none.

    Returns:
        A Python bool: False outside a program, and always on torch.

    Example:
        >>> from keras import ops
        >>> is_compiled_for_cpu(ops.ones(3))
        False
    """
    return is_compiled_by_xla(x) and _is_on_cpu()


def _is_on_cpu():
    """Whether TensorFlow or JAX computes on a CPU."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() == "cpu"
    import tensorflow as tf

    return not tf.config.get_visible_devices("GPU")


def leaves_out_unused() -> bool:
    """Returns whether programs leave out what none of their results needs.

    Returns:
        A bool: False on torch, which computes each operation when it is called.

    Example:
        >>> leaves_out_unused() == (keras.backend.backend() != "torch")
        True
    """
    return keras.backend.backend() != "torch"


def allows_any_shape(x: Tensor) -> bool:
    """Returns whether shapes may depend on values in the program a tensor belongs to.

    They may on a CPU alone: an accelerator would make the host wait for each shape, and
    no measurement says that it pays there.

    Args:
        x: Tensor, of the program being traced or of none.

    Returns:
        A Python bool: True on TensorFlow and torch, unless the program is compiled.

    Example:
        >>> from keras import ops
        >>> allows_any_shape(ops.ones(3)) == (keras.backend.backend() != "jax")
        True
    """
    if keras.backend.backend() == "torch":
        import torch

        return x.device.type == "cpu" and not torch.compiler.is_compiling()
    is_tensorflow = keras.backend.backend() == "tensorflow"
    return is_tensorflow and not is_compiled_by_xla(x) and _is_on_cpu()


def known_values(x: Tensor, wait: bool = True) -> np.ndarray | None:
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
