"""Converts Keras's own attention layers to ours: their options and weights."""

import inspect
from typing import Any

import keras

_CLASSES = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
# Arguments that `keras.layers.GroupQueryAttention` names differently.
_RENAMED = {"head_dim": "key_dim", "num_query_heads": "num_heads"}
# Methods that a subclass may override without computing anything else.
_HARMLESS = ("__init__", "build", "get_config", "get_build_config")


def options_of(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments with which `MultiHeadAttention` does what `layer` does."""
    if not isinstance(layer, _CLASSES):
        raise ValueError(
            "`layer` must be a keras.layers.MultiHeadAttention or "
            f"keras.layers.GroupQueryAttention. Received: layer={layer!r}."
        )
    _refuse_overridden(layer)
    options = {_RENAMED.get(k, k): value for k, value in layer.get_config().items()}
    # Keras leaves `flash_attention` out of the config:
    # https://github.com/keras-team/keras/blob/v3.15.1/keras/src/layers/attention/multi_head_attention.py#L175
    return {**options, "flash_attention": layer._flash_attention}


def _refuse_overridden(layer):
    """Raises an error if a subclass of Keras's class may compute something else."""
    kind = type(layer)
    base = next(cls for cls in kind.__mro__ if cls in _CLASSES)
    for name, method in vars(base).items():
        is_hook = inspect.isfunction(method) and name not in _HARMLESS
        if is_hook and getattr(kind, name) is not method:
            raise ValueError(
                "`layer` must compute what Keras's own class does, whose methods it "
                "overrides: make a layer with the same options, and copy the weights "
                "with `set_weights`, if this one does too. "
                f"Received: {kind.__name__}.{name}."
            )


def take_weights(layer: keras.layers.Layer, source: keras.layers.Layer) -> None:
    """Builds `layer` as `source` is, and copies the weights, frozen where they are."""
    if not source.built:
        return
    layer.build_from_config(source.get_build_config())
    wanted, found = _describe(layer), _describe(source)
    if found != wanted:
        raise ValueError(
            "`layer` must have the weights of a plain layer: merge LoRA into the "
            "kernels, convert before quantizing, and give no option that changes "
            "shapes. Received: weights "
            f"{[' '.join(map(str, each)) for each in found]}."
        )
    layer.set_weights(source.get_weights())
    for weight, theirs in zip(layer.weights, source.weights, strict=True):
        weight.trainable = theirs.trainable


def _describe(layer):
    """Returns name, shape and dtype of each weight."""
    return [
        ("/".join(w.path.split("/")[-2:]), tuple(w.shape), w.dtype)
        for w in layer.weights
    ]
