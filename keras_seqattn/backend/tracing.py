"""Which kind of program a tensor belongs to, and what is known about it there.

Also what kind of device it is computed on.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_seqattn.annotations import Tensor


def is_compiled_by_xla(x: Tensor) -> bool:
    """Returns whether a tensor is part of a program that XLA will compile.

    That is everything that JAX traces, and on TensorFlow functions made with
    `jit_compile=True`, including `model.fit` of such a model.
    """
    if keras.backend.backend() == "jax":
        import jax

        return isinstance(x, jax.core.Tracer)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # TensorFlow offers this to Keras, and nothing public in its place:
        # https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/ops/control_flow_ops.py#L2208
        return tf.__internal__.get_enclosing_xla_context() is not None
    return False


def by_platform(
    x: Tensor, default: Callable[[], Any], **forms: Callable[[], Any]
) -> Any:
    """Computes a function of `x` in the form for the platform that it runs on.

    `forms` are the forms for "cpu", "gpu" or "tpu" that differ from `default`; all
    return (nested) tensors of the same shapes and dtypes. In a JAX program the platform
    is the one that the program is compiled for, which need not be the host's
    (`jax.export`): JAX traces every form and compiles one.
    """
    if keras.backend.backend() == "jax" and is_compiled_by_xla(x):
        import jax

        if "gpu" in forms:
            forms["cuda"] = forms["rocm"] = forms.pop("gpu")
        return jax.lax.platform_dependent(default=default, **forms)
    return forms.get(_platform(x), default)()


def _platform(x):
    """Returns the kind of device that holds a tensor: "cpu", "gpu" or "tpu"."""
    if keras.backend.backend() == "jax":
        (kind,) = {device.platform for device in x.devices()}
        return kind
    if keras.backend.backend() == "torch":
        return {"cuda": "gpu"}.get(x.device.type, x.device.type)
    import tensorflow as tf

    # In a graph a tensor has a device if the program names one; else take the first.
    kind = tf.DeviceSpec.from_string(x.device or "").device_type
    return (kind or device_kind()).lower()


@functools.cache
def device_kind() -> str:
    """Returns the kind of TensorFlow's or JAX's first device: "cpu", "gpu" or "tpu"."""
    return keras.distribution.list_devices()[0].partition(":")[0]


def leaves_out_unused() -> bool:
    """Returns whether programs leave out operations that no result depends on.

    torch's do not: it computes each operation when it is called.
    """
    return keras.backend.backend() != "torch"


def allows_any_shape(x: Tensor) -> bool:
    """Returns whether shapes may depend on values in the program a tensor belongs to.

    They may on TensorFlow and torch, in a program that is not compiled, and only on a
    CPU: with an accelerator the host would wait for each shape, and no measurement has
    shown that this pays.
    """
    if keras.backend.backend() == "torch":
        import torch

        return _platform(x) == "cpu" and not torch.compiler.is_compiling()
    is_tensorflow = keras.backend.backend() == "tensorflow"
    return is_tensorflow and not is_compiled_by_xla(x) and _platform(x) == "cpu"


def known_values(x: Tensor, wait: bool = True) -> np.ndarray | None:
    """Returns the values of a tensor, or None where they cannot be read.

    They cannot be read in a program that is being traced (a TensorFlow graph,
    `jax.jit`, `torch.compile` or `torch.export`) or in a functional model. Without
    `wait` they are not read on an accelerator, where reading waits for the computation.
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
