"""Keras's own attention layers as ours: their options, and their weights."""

from typing import Any

import keras

_CLASSES = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
# What `keras.layers.GroupQueryAttention` calls otherwise.
_RENAMED = {"head_dim": "key_dim", "num_query_heads": "num_heads"}


def options_of(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments with which `MultiHeadAttention` does what `layer` does.

    Args:
        layer: A layer of one of Keras's classes of multi-head attention.

    Returns:
        A dict of constructor arguments.

    Raises:
        ValueError: If `layer` is of another class.

    Example:
        >>> layer = keras.layers.GroupQueryAttention(8, 4, 2)
        >>> options_of(layer)["num_key_value_heads"]
        2
    """
    if not isinstance(layer, _CLASSES):
        raise ValueError(
            "`layer` must be a keras.layers.MultiHeadAttention or "
            f"keras.layers.GroupQueryAttention. Received: layer={layer!r}."
        )
    options = {_RENAMED.get(k, k): value for k, value in layer.get_config().items()}
    # Keras leaves it out of the config:
    # https://github.com/keras-team/keras/blob/v3.15.1/keras/src/layers/attention/multi_head_attention.py#L175
    return {**options, "flash_attention": layer._flash_attention}


def take_weights(layer: keras.layers.Layer, source: keras.layers.Layer) -> None:
    """Builds `layer` as `source` is built, and copies its weights.

    Args:
        layer: A `MultiHeadAttention` of the options of `source`.
        source: A layer of one of Keras's classes, whose weights have the same order.

    Raises:
        ValueError: If the weights of `source` are others than those of `layer`.
    """
    if not source.built:
        return
    layer.build_from_config(source.get_build_config())
    wanted, found = _describe(layer), _describe(source)
    if found[: len(wanted)] != wanted or len(found) > len(wanted):
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
