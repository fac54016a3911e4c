"""The backends' own attention kernels, called by `ops.dot_product_attention`."""

import functools
from typing import Any

import keras

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import tracing


def has_fused_attention(dtype: Any, same_width: bool) -> bool:
    """Returns whether the backend has a differentiable kernel with the same results.

    TensorFlow has no kernel. JAX's needs values as wide as the keys, and on a CPU it
    neither compiles nor differentiates float16.
    """
    if keras.backend.backend() == "jax":
        return same_width and dtype != "float16"
    return keras.backend.backend() == "torch"


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    is_causal: bool,
) -> Tensor:
    """Computes attention `(B, T, H, V)` with the kernel of the program's device.

    On JAX that is cuDNN's kernel for programs on a GPU, if the host has one. Elsewhere,
    and on TensorFlow, which has no kernel, Keras computes the formula. On a TPU Keras's
    splash kernel is not used, since it reads only the first sequence's mask.

    Shapes: `query` `(B, T, H, K)`, already scaled; `key` `(B, S, H, K)`; `value`
    `(B, S, H, V)`, on JAX with V = K; `bias` and the bool `mask` broadcast to
    `(B, H, T, S)`, and on torch only one of the two may be given.
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
    # For float16, only JAX's GPU kernel keeps the scores in float32.
    plain = functools.partial(attend, False, "float32" if dtype == "float16" else dtype)
    if backend != "jax" or (dtype != "float16" and not finds_cudnn()):
        return plain()
    return tracing.by_platform(query, gpu=lambda: attend(None), default=plain)


def finds_cudnn() -> bool:
    """Returns whether JAX's first device here is a GPU, for which Keras asks for cuDNN.

    Whether cuDNN takes the inputs is known only to Keras, when it is called.
    """
    return keras.backend.backend() == "jax" and tracing.device_kind() == "gpu"


def fused_attention_is_linear(dtype: Any, device: str | None) -> bool:
    """Returns whether the kernel takes O(T + S) memory, never holding all scores.

    On JAX only cuDNN's does. `device` is "cpu", "gpu" or "tpu"; None looks it up.
    """
    if keras.backend.backend() == "jax":
        return (device or tracing.device_kind(), dtype) == ("gpu", "bfloat16")
    return keras.backend.backend() == "torch"
