"""What kind of program a tensor belongs to, and what can be known of it there."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_seqattn.annotations import Tensor


def is_compiled_by_xla(x: Tensor) -> bool:
    """Returns whether a tensor is of a program that XLA will compile.

    It is in all that JAX traces, and on TensorFlow in functions made with
    `jit_compile=True`, `model.fit` of such a model included.
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


def by_platform(
    x: Tensor, default: Callable[[], Any], **forms: Callable[[], Any]
) -> Any:
    """Computes a function of `x` in its form for the platform that it runs on.

    `forms` are those for "cpu", "gpu" and "tpu", where they differ from `default`; all
    return (nested) tensors of the same shapes and dtypes. In a program of JAX the
    platform is the one which the program is compiled for, which need not be the host's
    (`jax.export`): JAX traces each form and compiles one.
    """
    if keras.backend.backend() == "jax" and is_compiled_by_xla(x):
        import jax

        if "gpu" in forms:
            forms["cuda"] = forms["rocm"] = forms.pop("gpu")
        return jax.lax.platform_dependent(default=default, **forms)
    return forms.get(_platform(x), default)()


def _platform(x):
    """Returns the kind of device that computes from a tensor: "cpu", "gpu", "tpu"."""
    if keras.backend.backend() == "jax":
        (kind,) = {device.platform for device in x.devices()}
        return kind
    if keras.backend.backend() == "torch":
        return {"cuda": "gpu"}.get(x.device.type, x.device.type)
    import tensorflow as tf

    # In a graph, a tensor has a device where the program names one, else the first.
    kind = tf.DeviceSpec.from_string(x.device or "").device_type
    return (kind or keras.distribution.list_devices()[0].partition(":")[0]).lower()


def leaves_out_unused() -> bool:
    """Returns whether programs leave out what none of their results needs.

    torch does not: it computes each operation when it is called.
    """
    return keras.backend.backend() != "torch"


def allows_any_shape(x: Tensor) -> bool:
    """Returns whether shapes may depend on values in the program a tensor belongs to.

    They may on TensorFlow and torch, in a program that is not compiled, on a CPU alone:
    an accelerator would make the host wait for each shape, and no measurement says that
    it pays there.
    """
    if keras.backend.backend() == "torch":
        import torch

        return _platform(x) == "cpu" and not torch.compiler.is_compiling()
    is_tensorflow = keras.backend.backend() == "tensorflow"
    return is_tensorflow and not is_compiled_by_xla(x) and _platform(x) == "cpu"


def known_values(x: Tensor, wait: bool = True) -> np.ndarray | None:
    """Returns the values of a tensor, or None where they cannot be seen.

    They cannot in a program that is being made (a TensorFlow graph, `jax.jit`,
    `torch.compile` or `torch.export`), nor in a functional model, nor, without `wait`,
    on an accelerator, where reading them waits until they are computed.
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
