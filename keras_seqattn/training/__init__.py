"""What `compile` and `fit` take, and what a training wants of memory."""

from keras_seqattn.training.losses import MaskedCrossentropy
from keras_seqattn.training.memory import keep_freed_memory
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
    "keep_freed_memory",
]
