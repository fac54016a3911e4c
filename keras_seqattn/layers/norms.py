"""The norms of a Transformer, by their names."""

from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Norm

EPSILON = 1e-5
NORMS = ("layer", "rms")


def make_norm(norm: Norm, epsilon: float, **kwargs: Any) -> keras.layers.Layer:
    """Makes the normalization that a name stands for."""
    if arguments.choice("norm", norm, NORMS) == "layer":
        return keras.layers.LayerNormalization(epsilon=epsilon, **kwargs)
    layer = keras.layers.RMSNormalization(epsilon=epsilon, **kwargs)
    layer.supports_masking = True  # else Keras warns that the mask ends here
    return layer
