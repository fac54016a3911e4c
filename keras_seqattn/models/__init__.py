"""Functional-API models built from the layers."""

from keras_seqattn.models.encoder import EncoderModel
from keras_seqattn.models.language import LanguageModel
from keras_seqattn.models.recurrent import TranslationRNN
from keras_seqattn.models.transformer import TranslationTransformer

__all__ = ["EncoderModel", "LanguageModel", "TranslationRNN", "TranslationTransformer"]
