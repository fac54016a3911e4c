"""Functional-API models built from the layers."""

from keras_seqattn.models.transformer import TranslationTransformer

__all__ = ["TranslationTransformer"]
