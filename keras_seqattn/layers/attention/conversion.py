"""Converts Keras's own attention layers to ours: their options and weights."""

from typing import Any

import keras

_CLASSES = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
# Arguments that `keras.layers.GroupQueryAttention` names differently.
_RENAMED = {"head_dim": "key_dim", "num_query_heads": "num_heads"}


def options_of(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments with which `MultiHeadAttention` does what `layer` does."""
    if not isinstance(layer, _CLASSES):
        raise ValueError(
            "`layer` must be a keras.layers.MultiHeadAttention or "
            f"keras.layers.GroupQueryAttention. Received: layer={layer!r}."
        )
    options = {_RENAMED.get(k, k): value for k, value in layer.get_config().items()}
    # Keras leaves `flash_attention` out of the config:
    # https://github.com/keras-team/keras/blob/v3.15.1/keras/src/layers/attention/multi_head_attention.py#L175
    return {**options, "flash_attention": layer._flash_attention}


def take_weights(layer: keras.layers.Layer, source: keras.layers.Layer) -> None:
    """Builds `layer` as `source` is built, and copies the weights in their order."""
    if not source.built:
        return
    layer.build_from_config(source.get_build_config())
    wanted, found = _describe(layer), _describe(source)
    if found != wanted:
        raise ValueError(
            "`layer` must have the weights of a plain layer: merge LoRA into the "
            "kernels and convert before quantizing. Received: weights "
            f"{[' '.join(map(str, each)) for each in found]}."
        )
    layer.set_weights(source.get_weights())


def _describe(layer):
    """Returns name, shape and dtype of each weight."""
    return [
        ("/".join(w.path.split("/")[-2:]), tuple(w.shape), w.dtype)
        for w in layer.weights
    ]
