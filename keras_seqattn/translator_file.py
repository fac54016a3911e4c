"""One file for model, tokenizers and search, as one object of Keras."""

import threading
import zipfile
from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.decoding.ensemble import Ensemble
from keras_seqattn.files import reading, replacing

# What the error for a file that cannot be read asks for.
_REMEDY = "save or copy it again, and register your own classes before"
# Held while models are without their optimizers: a second thread would find none.
_SAVING = threading.RLock()


def write(whole: Any, path: Path, kind: type) -> None:
    """Writes all parts to a file; if the process is killed, the old file stays.

    The optimizer is left out. `whole` is the `Translator` or `TextGenerator`, and
    `kind` the class of its file.
    """
    if not str(path).endswith(".keras"):
        raise ValueError(f'`path` must end in ".keras". Received: path={str(path)!r}.')
    for model in _models(whole.model):
        if not isinstance(model, keras.Layer):  # Keras would leave out its variables.
            arguments.refuse("model", model, "a Keras model to be saved")
    parts = {name: getattr(whole, name) for name in kind.parts}
    # One tokenizer for both is written once: a `Translator` reads None as that.
    if parts.get("target_tokenizer") is parts.get("source_tokenizer"):
        parts.pop("target_tokenizer", None)
    models = list(_models(whole.model))
    with _SAVING:
        optimizers = [getattr(model, "optimizer", None) for model in models]
        try:
            for model in models:
                model.optimizer = None
            with replacing(path) as unfinished:
                kind(**parts).save(unfinished)
        finally:
            for model, optimizer in zip(models, optimizers, strict=True):
                model.optimizer = optimizer


def _models(model):
    """Yields a model, and those that an ensemble saves with it."""
    yield model
    for part in model.models if isinstance(model, Ensemble) else ():
        yield from _models(part)


def read(cls: type, path: Path, kind: type) -> Any:
    """Reads what `write` wrote with `kind`, as an instance of `cls`."""
    arguments.path("path", path)
    import keras_seqattn.text  # noqa: F401, registers the tokenizers

    written = f"that `{cls.__name__}.save` wrote"
    with reading(path, written, _REMEDY):
        # Keras would also download a model from an address, or read a folder, and says
        # of a file that is no archive that it does not exist.
        with zipfile.ZipFile(path):
            file = keras.saving.load_model(path)
    if not isinstance(file, kind):
        parts = " and ".join(f"`{name}`" for name in kind.parts[:2])
        raise ValueError(
            f"`path` must be a file {written}: with {parts}. Load another with "
            f"`keras.saving.load_model`, and pass what it holds to `{cls.__name__}`. "
            f"Received: path={str(path)!r}, which holds a {type(file).__name__}."
        )
    with reading(path, written, _REMEDY):
        return cls(**{name: getattr(file, name) for name in kind.parts})


class _File(keras.Model):
    """Holds parts, one of them the model, as the one object that Keras saves and loads.

    A subclass names its `parts`, the arguments of its constructor.
    """

    parts = ()

    def __init__(self, **kwargs: Any) -> None:
        parts = {name: kwargs.pop(name, None) for name in self.parts}
        super().__init__(**kwargs)
        for name, part in parts.items():
            setattr(self, name, part)
        self.built = True

    def call(self, inputs):
        return self.model(inputs)

    def get_config(self):
        config = {
            part: keras.saving.serialize_keras_object(getattr(self, part))
            for part in self.parts
        }
        config["model"].pop("compile_config", None)  # part of training, as optimizers
        return {"name": self.name, **config}

    @classmethod
    def from_config(cls, config):
        return cls(
            **{
                name: keras.saving.deserialize_keras_object(value)
                for name, value in config.items()
            }
        )


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TranslatorFile(_File):
    """What a translator's file holds."""

    parts = (
        "model",
        "source_tokenizer",
        "target_tokenizer",
        "search",
        "max_source_length",
    )


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TextGeneratorFile(_File):
    """What a text generator's file holds."""

    parts = ("model", "tokenizer", "search")
