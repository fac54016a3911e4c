"""Losses, metrics, optimizers and callbacks for `fit`, and other tools for training."""

from keras_seqattn.layers.weights.lora import enable_lora
from keras_seqattn.training.average import CheckpointAverage, ScheduleFreeAverage
from keras_seqattn.training.distribution import distribute, layout_map
from keras_seqattn.training.divergence import TerminateOnDivergence
from keras_seqattn.training.losses import MaskedCrossentropy, linear_crossentropy
from keras_seqattn.training.memory import keep_freed_memory
from keras_seqattn.training.metrics import (
    MaskedAccuracy,
    Perplexity,
    TokenCrossentropy,
)
from keras_seqattn.training.optimizers import Adam, Muon
from keras_seqattn.training.resume import Resume
from keras_seqattn.training.schedules import InverseSquareRoot, Noam
from keras_seqattn.training.score import TranslationScore

__all__ = [
    "Adam",
    "CheckpointAverage",
    "InverseSquareRoot",
    "MaskedAccuracy",
    "MaskedCrossentropy",
    "Muon",
    "Noam",
    "Perplexity",
    "Resume",
    "ScheduleFreeAverage",
    "TerminateOnDivergence",
    "TokenCrossentropy",
    "TranslationScore",
    "distribute",
    "enable_lora",
    "keep_freed_memory",
    "layout_map",
    "linear_crossentropy",
]
