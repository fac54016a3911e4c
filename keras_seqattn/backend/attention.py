"""What the backends' own attention kernels, `ops.dot_product_attention`, can do."""

import functools
from typing import Any, NamedTuple

import keras


class FusedAttention(NamedTuple):
    """What a backend's attention kernel can do.

    Attributes:
        any_width: Whether values may be of another width than keys.
        float16: Whether it differentiates float16 on every device.
        scores_in_float32: Devices on which it keeps the scores of float16 in float32;
            None: all.
        linear_memory: Pairs of device and dtype in which it never holds all scores;
            None: all.
    """

    any_width: bool
    float16: bool
    scores_in_float32: tuple[str, ...] | None
    linear_memory: tuple[tuple[str, str], ...] | None


# TensorFlow has no kernel. JAX's does not compile float16 on a CPU, nor differentiates
# it there; it is cuDNN's, which does not hold all scores, in bfloat16 on a GPU.
_KERNELS = {
    "jax": FusedAttention(False, False, ("gpu",), (("gpu", "bfloat16"),)),
    "torch": FusedAttention(True, True, None, None),
}


def has_fused_attention(dtype: Any, same_width: bool) -> bool:
    """Returns whether the backend has a kernel with a gradient, and the same numbers.

    Args:
        dtype: Dtype of the query.
        same_width: Whether the values are as wide as the keys.

    Returns:
        A bool.

    Example:
        >>> backend = keras.backend.backend()
        >>> has_fused_attention("float32", True) == (backend != "tensorflow")
        True
    """
    kernel = _KERNELS.get(keras.backend.backend())
    if kernel is None:
        return False
    return (kernel.any_width or same_width) and (kernel.float16 or dtype != "float16")


@functools.cache
def fused_attention_takes_float16() -> bool:
    """Returns whether the kernel keeps the scores of float16 in float32 on the device.

    Returns:
        A bool.

    Example:
        >>> fused_attention_takes_float16() or keras.backend.backend() != "torch"
        True
    """
    kernel = _KERNELS.get(keras.backend.backend())
    if kernel is None or kernel.scores_in_float32 is None:
        return kernel is not None
    return device_kind() in kernel.scores_in_float32


def fused_attention_is_linear(dtype: Any, device: str | None = None) -> bool:
    """Returns whether the kernel takes O(T + S) memory: never holds all scores.

    Args:
        dtype: Dtype of the query.
        device: "cpu", "gpu" or "tpu"; None looks it up.

    Returns:
        A bool.

    Example:
        >>> backend = keras.backend.backend()
        >>> fused_attention_is_linear("float32", "gpu") == (backend == "torch")
        True
    """
    kernel = _KERNELS.get(keras.backend.backend())
    if kernel is None or kernel.linear_memory is None:
        return kernel is not None
    return (device or device_kind(), dtype) in kernel.linear_memory


@functools.cache
def device_kind() -> str:
    """Returns the kind of the first device, on TensorFlow and JAX.

    Returns:
        "cpu", "gpu" or "tpu".

    Example:
        >>> keras.backend.backend() == "torch" or device_kind() in ("cpu", "gpu", "tpu")
        True
    """
    return keras.distribution.list_devices()[0].partition(":")[0]
