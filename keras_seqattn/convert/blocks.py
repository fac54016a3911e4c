"""Weights of Hugging Face's layers in the layers of this library.

Theirs are matrices `(out, in)`; ours are `(in, out)`, with separate axes for heads.
"""

import math
from typing import Any

import keras

from keras_seqattn.convert.checkpoint import Checkpoint
from keras_seqattn.convert.refusal import refuse
from keras_seqattn.layers.transformer.feed_forward import gelu_tanh

# Activations by Hugging Face's names.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


def activation_of(name: str) -> Any:
    """Returns Keras's activation for one of Hugging Face's names."""
    if name not in ACTIVATIONS:
        refuse(f"have an activation of {tuple(ACTIVATIONS)}", f"activation {name!r}")
    return keras.activations.get(ACTIVATIONS[name])


def fill_norm(checkpoint: Checkpoint, name: str, norm: Any) -> None:
    """Fills a layer norm, or an RMS norm, which has only a scale."""
    if isinstance(norm, keras.layers.RMSNormalization):
        checkpoint.fill(norm.scale, f"{name}.weight")
        return
    checkpoint.fill(norm.gamma, f"{name}.weight")
    checkpoint.fill(norm.beta, f"{name}.bias")


def fill_dense(
    checkpoint: Checkpoint, name: str, dense: Any, input_axes: int = 1
) -> None:
    """Fills a dense layer, whose kernel begins with `input_axes` axes of inputs."""
    fill_kernel(checkpoint, f"{name}.weight", dense.kernel, input_axes)
    if dense.bias is not None:
        size = math.prod(dense.bias.shape)
        bias = checkpoint.take(f"{name}.bias", (size,))
        dense.bias.assign(bias.reshape(dense.bias.shape))


def fill_kernel(
    checkpoint: Checkpoint, name: str, kernel: Any, input_axes: int = 1
) -> None:
    """Fills a kernel, which begins with `input_axes` axes of inputs, from a matrix."""
    inputs, outputs = kernel.shape[:input_axes], kernel.shape[input_axes:]
    matrix = checkpoint.take(name, (math.prod(outputs), math.prod(inputs)))
    kernel.assign(matrix.T.reshape(kernel.shape))


def fill_attention(
    checkpoint: Checkpoint, name: str, attention: Any, projections: tuple[str, ...]
) -> None:
    """Fills a `MultiHeadAttention` from tensors whose names begin with `name`.

    `projections` are their names for query, key, value and output.
    """
    *into, out = projections
    denses = (attention.query_dense, attention.key_dense, attention.value_dense)
    for part, dense in zip(into, denses, strict=True):
        fill_dense(checkpoint, f"{name}.{part}", dense)
    fill_dense(checkpoint, f"{name}.{out}", attention.output_dense, input_axes=2)
