"""Attention layers for Keras 3, models that translate with them, and their tuning.

`layers`, `models`, `decoding` and `training` are there at once; what needs more than
keras and numpy is imported when first used.
"""

import importlib

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("tensorflow", "jax", "torch"):
        raise
    raise ImportError(
        f"Keras computes with {missing} here, which is not installed: "
        f"`pip install {missing}`, or choose another that is installed by the "
        'environment variable KERAS_BACKEND: "tensorflow", "jax" or "torch".'
    ) from error

from keras_seqattn import decoding, layers, models, training
from keras_seqattn.version import __version__

_LAZY_MODULES = ("audit", "export", "plotting", "recipes", "text", "tuning")

_LAZY_CLASSES = {"TextGenerator": "text_generator", "Translator": "translator"}

__all__ = [
    "TextGenerator",
    "Translator",
    "__version__",
    "decoding",
    "layers",
    "models",
    "training",
    *_LAZY_MODULES,
]


def __getattr__(name):
    if name in _LAZY_CLASSES:
        module = importlib.import_module(f"keras_seqattn.{_LAZY_CLASSES[name]}")
        return getattr(module, name)
    if name in _LAZY_MODULES:
        return importlib.import_module(f"keras_seqattn.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
