"""What the backends' own attention kernels, `ops.dot_product_attention`, can do."""

import functools
from typing import Any, NamedTuple

import keras

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import tracing


class FusedAttention(NamedTuple):
    """What a backend's attention kernel can do.

    Attributes:
        any_width: Whether values may be of another width than keys.
        float16: Whether it differentiates float16 on every device.
        linear_memory: Pairs of device and dtype in which it never holds all scores;
            None: all.
    """

    any_width: bool
    float16: bool
    linear_memory: tuple[tuple[str, str], ...] | None


# TensorFlow has no kernel. JAX's does not compile float16 on a CPU, nor differentiates
# it there; it is cuDNN's, which does not hold all scores, in bfloat16 on a GPU.
_KERNELS = {
    "jax": FusedAttention(False, False, (("gpu", "bfloat16"),)),
    "torch": FusedAttention(True, True, None),
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


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Computes attention with the kernel of the device that the program runs on.

    On JAX that is cuDNN's on a GPU, where JAX finds it: on a host with a GPU. Elsewhere
    it is what XLA makes of the formula. On a TPU Keras's splash kernel is not taken: it
    reads the first sequence's mask alone.

    Args:
        query: Float tensor `(B, T, H, K)`, scaled already.
        key: Float tensor `(B, S, H, K)`.
        value: Float tensor `(B, S, H, V)`; on JAX V is K.
        bias: Float tensor that broadcasts to `(B, H, T, S)`, or None.
        mask: Bool tensor that broadcasts to it; on torch not with a bias.
        is_causal: Whether query i sees only keys j <= i.

    Returns:
        Float tensor `(B, T, H, V)` in the dtype of `query`.

    Example:
        >>> x = keras.ops.ones((1, 3, 2, 4))
        >>> tuple(fused_attention(x, x, x).shape)
        (1, 3, 2, 4)
    """
    dtype = keras.backend.standardize_dtype(query.dtype)

    def attend(flash_attention: bool | None, compute_dtype: str = dtype) -> Tensor:
        heads = (keras.ops.cast(x, compute_dtype) for x in (query, key, value))
        options = {"mask": mask, "is_causal": is_causal, "scale": 1.0}
        output = keras.ops.dot_product_attention(
            *heads, bias=bias, flash_attention=flash_attention, **options
        )
        return keras.ops.cast(output, dtype)

    backend = keras.backend.backend()
    if backend == "torch":
        return attend(None)
    # Only JAX's kernel for a GPU keeps the scores of float16 in float32.
    plain = functools.partial(attend, False, "float32" if dtype == "float16" else dtype)
    if backend != "jax" or (dtype != "float16" and not finds_cudnn()):
        return plain()
    return tracing.by_platform(query, gpu=lambda: attend(None), default=plain)


def finds_cudnn() -> bool:
    """Returns whether programs for a GPU may have cuDNN's attention in them.

    Returns:
        A bool: False but on JAX, on a host whose first device is a GPU.

    Example:
        >>> finds_cudnn() and keras.backend.backend() != "jax"
        False
    """
    return keras.backend.backend() == "jax" and device_kind() == "gpu"


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
