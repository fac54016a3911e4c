"""Converts Keras's own attention layers to ours: their options and weights."""

import inspect
from typing import Any

import keras

_CLASSES = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
# Arguments that `keras.layers.GroupQueryAttention` names differently.
_RENAMED = {"head_dim": "key_dim", "num_query_heads": "num_heads"}
# Methods that a subclass may override without computing anything else.
_HARMLESS = ("__init__", "build", "get_config", "get_build_config")
_HARMLESS += ("compute_output_shape", "compute_output_spec")


def options_of(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the arguments with which `MultiHeadAttention` does what `layer` does."""
    if not isinstance(layer, _CLASSES):
        raise ValueError(
            "`layer` must be a keras.layers.MultiHeadAttention or "
            f"keras.layers.GroupQueryAttention. Received: layer={layer!r}."
        )
    base = next(kind for kind in type(layer).__mro__ if kind in _CLASSES)
    _refuse_overridden(type(layer), base)
    # A subclass may have options of its own, which Keras's class does not know.
    options = {_RENAMED.get(k, k): value for k, value in base.get_config(layer).items()}
    # Keras leaves `flash_attention` out of the config:
    # https://github.com/keras-team/keras/blob/v3.15.1/keras/src/layers/attention/multi_head_attention.py#L175
    return {**options, "flash_attention": layer._flash_attention}


def _refuse_overridden(kind, base):
    """Raises an error if a subclass of Keras's `base` may compute something else."""
    for name, method in vars(base).items():
        is_hook = inspect.isfunction(method) and name not in _HARMLESS
        if is_hook and getattr(kind, name) is not method:
            raise ValueError(
                "`layer` must be of Keras's own class, or of a subclass that overrides "
                "none of the methods that compute. If it computes the same, make a "
                "`MultiHeadAttention` with its options, build it, and copy the weights "
                f"with `set_weights`. Received: {kind.__name__}.{name}."
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
            "kernels, convert before quantizing, and give no option that adds weights "
            "or changes their shapes. Received: weights "
            f"{[' '.join(map(str, each)) for each in found]}."
        )
    layer.set_weights(source.get_weights())
    if not source.trainable:
        return  # The option `trainable`, that of `source` by default, decides for all.
    for weight, theirs in zip(layer.weights, source.weights, strict=True):
        weight.trainable = weight.trainable and theirs.trainable


def _describe(layer):
    """Returns name, shape and dtype of each weight."""
    return [
        ("/".join(w.path.split("/")[-2:]), tuple(w.shape), w.dtype)
        for w in layer.weights
    ]
