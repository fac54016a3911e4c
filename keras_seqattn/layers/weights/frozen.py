"""Which parts of a model are frozen, so that a saved one is frozen alike."""

from collections.abc import Sequence

import keras

from keras_seqattn.backend.parts import layers_of


def frozen_parts(model: keras.Model) -> list[str]:
    """Returns the paths of the parts whose `trainable` is False."""
    parts = (part for part in layers_of(model)[1:] if not part.trainable)
    return [part.path for part in parts if part.path is not None]


def freeze_parts(model: keras.Model, paths: Sequence[str]) -> None:
    """Freezes the parts at some paths."""
    for part in layers_of(model):
        if part.path in paths:
            part.trainable = False
