"""Attention layers for Keras 3, models that translate with them, and their tuning.

`layers`, `models`, `decoding` and `training` are imported with the package; modules
that need more than keras and numpy are imported when first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

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
except ValueError as error:
    if "Unable to import backend" not in str(error):
        raise
    name = str(error).rpartition(" ")[2]
    raise ValueError(
        '`KERAS_BACKEND` must be "tensorflow", "jax" or "torch". Received: '
        f'KERAS_BACKEND={name}. Set it or, without it, "backend" in the file '
        "~/.keras/keras.json."
    ) from error

from keras_seqattn import decoding, layers, models, training
from keras_seqattn.version import __version__

if TYPE_CHECKING:
    from keras_seqattn import audit, convert, export, plotting, recipes, text, tuning
    from keras_seqattn.text_generator import TextGenerator
    from keras_seqattn.translator import Translator

# The packages of extras without which a part cannot be imported.
_EXTRAS = {"sentencepiece": "text", "keras_tuner": "tuning"}
_LAZY_CLASSES = {"TextGenerator": "text_generator", "Translator": "translator"}

__all__ = [
    "TextGenerator",
    "Translator",
    "__version__",
    "audit",
    "convert",
    "decoding",
    "export",
    "layers",
    "models",
    "plotting",
    "recipes",
    "text",
    "training",
    "tuning",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_CLASSES:
        return getattr(_import_part(_LAZY_CLASSES[name]), name)
    if name in __all__:
        return _import_part(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _import_part(name):
    try:
        return importlib.import_module(f"keras_seqattn.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        raise ImportError(
            f"`keras_seqattn.{name}` needs {package}: "
            f'pip install ".[{_EXTRAS[package]}]" in a clone of the repository.'
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
