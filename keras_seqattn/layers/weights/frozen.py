"""Keeps frozen layers frozen: when they are built, and when a model is loaded."""

from collections.abc import Sequence

import keras

from keras_seqattn.backend.parts import layers_of


def keep_frozen(layer: keras.layers.Layer) -> None:
    """Freezes the parts of a layer that is not `trainable`.

    Call it at the end of the layer's `build`: Keras freezes only its own weights.
    """
    if not layer.trainable:
        # Part by part: Keras on TensorFlow ignores `layer.trainable = False` where it
        # is False already.
        for part in layers_of(layer)[1:]:
            part.trainable = False


def frozen_parts(model: keras.Model) -> list[str]:
    """Returns the paths of the parts whose `trainable` is False."""
    parts = (part for part in layers_of(model)[1:] if not part.trainable)
    return [part.path for part in parts if part.path is not None]


def freeze_parts(model: keras.Model, paths: Sequence[str]) -> None:
    """Freezes the parts at some paths, and no others within them.

    If some path is not that of a part, as in files of early versions, all parts within
    a frozen part are frozen too.
    """
    parts = [part for part in layers_of(model)[1:] if part.path is not None]
    are_all = set(paths) <= {part.path for part in parts}
    # Outer parts first: freezing a part also freezes the parts within it.
    for part in sorted(parts, key=lambda part: part.path.count("/")):
        if part.path in paths:
            part.trainable = False
        elif are_all and not part.trainable:
            part.trainable = True
