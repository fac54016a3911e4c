"""What `compile` and `fit` take: losses, metrics and learning-rate schedules."""

from keras_seqattn.training.losses import MaskedCrossentropy
from keras_seqattn.training.metrics import (
    MaskedAccuracy,
    Perplexity,
    TokenCrossentropy,
)
from keras_seqattn.training.schedules import InverseSquareRoot, Noam

__all__ = [
    "InverseSquareRoot",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "Noam",
    "Perplexity",
    "TokenCrossentropy",
]
