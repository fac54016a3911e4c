"""Weights of Hugging Face's layers in the layers of this library.

Theirs are matrices `(out, in)`; ours `(in, out)`, with heads on axes of their own.

Shapes: D model_dim, H heads, K key_dim, F intermediate_dim.
"""

from typing import Any

import keras

from keras_seqattn.convert.checkpoint import Checkpoint, refuse
from keras_seqattn.layers.transformer.feed_forward import gelu_tanh

# By Hugging Face's names.
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
    """Returns the activation of Keras for a name of Hugging Face's."""
    if name not in ACTIVATIONS:
        refuse(f"have an activation of {tuple(ACTIVATIONS)}", f"activation {name!r}")
    return keras.activations.get(ACTIVATIONS[name])


def fill_norm(checkpoint: Checkpoint, name: str, norm: Any) -> None:
    """Fills a layer norm, or an RMS norm, which has a scale alone."""
    if isinstance(norm, keras.layers.RMSNormalization):
        norm.scale.assign(checkpoint.take(f"{name}.weight", norm.scale.shape))
        return
    norm.gamma.assign(checkpoint.take(f"{name}.weight", norm.gamma.shape))
    norm.beta.assign(checkpoint.take(f"{name}.bias", norm.beta.shape))


def fill_dense(checkpoint: Checkpoint, name: str, dense: Any) -> None:
    """Fills a dense layer `(in, out)`."""
    kernel = checkpoint.take(f"{name}.weight", dense.kernel.shape[::-1])
    dense.kernel.assign(kernel.T)
    if dense.bias is not None:
        dense.bias.assign(checkpoint.take(f"{name}.bias", dense.bias.shape))


def fill_attention(
    checkpoint: Checkpoint, name: str, attention: Any, projections: tuple[str, ...]
) -> None:
    """Fills a `MultiHeadAttention` from tensors whose names begin with `name`.

    `projections` are their names for query, key, value and output.
    """
    *into, out = projections
    denses = (attention.query_dense, attention.key_dense, attention.value_dense)
    for part, dense in zip(into, denses, strict=True):
        model_dim, heads, width = dense.kernel.shape
        shape = (heads * width, model_dim)
        kernel = checkpoint.take(f"{name}.{part}.weight", shape)
        dense.kernel.assign(kernel.T.reshape(model_dim, heads, width))
        if dense.bias is not None:
            bias = checkpoint.take(f"{name}.{part}.bias", shape[:1])
            dense.bias.assign(bias.reshape(heads, width))
    dense = attention.output_dense
    heads, width, model_dim = dense.kernel.shape
    kernel = checkpoint.take(f"{name}.{out}.weight", (model_dim, heads * width))
    dense.kernel.assign(kernel.T.reshape(heads, width, model_dim))
    if dense.bias is not None:
        dense.bias.assign(checkpoint.take(f"{name}.{out}.bias", (model_dim,)))
