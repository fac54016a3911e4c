"""A translator for other runtimes: SavedModel, CTranslate2, ONNX."""

from keras_seqattn.export.artifact import export_translator

__all__ = ["export_translator"]
