"""What is frozen stays frozen: where it is built, and where a model is loaded."""

from collections.abc import Sequence

import keras

from keras_seqattn.backend.parts import layers_of


def keep_frozen(layer: keras.layers.Layer) -> None:
    """Freezes what a layer that is not `trainable` is made of.

    For the end of its `build`: of a new layer Keras freezes its own weights alone.
    """
    if not layer.trainable:
        layer.trainable = False  # which reaches all its parts


def frozen_parts(model: keras.Model) -> list[str]:
    """Returns the paths of the parts whose `trainable` is False."""
    parts = (part for part in layers_of(model)[1:] if not part.trainable)
    return [part.path for part in parts if part.path is not None]


def freeze_parts(model: keras.Model, paths: Sequence[str]) -> None:
    """Freezes the parts at some paths, and no others within them.

    Where some paths are of no part, as files of early versions have them, what is
    within a frozen part is frozen.
    """
    parts = [part for part in layers_of(model)[1:] if part.path is not None]
    are_all = set(paths) <= {part.path for part in parts}
    # A part before those that it is made of: freezing it freezes them.
    for part in sorted(parts, key=lambda part: part.path.count("/")):
        if part.path in paths:
            part.trainable = False
        elif are_all and not part.trainable:
            part.trainable = True
