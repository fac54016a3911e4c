"""One file for model, tokenizers and search, as one object of Keras."""

from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.files import reading, replacing


def write(whole: Any, path: Path, kind: type) -> None:
    """Writes a file of all parts; a kill leaves the file that was there.

    The optimizer stays behind.

    Args:
        whole: The `Translator` or `TextGenerator`, with the parts as attributes.
        path: Path of the file, that ends in ".keras".
        kind: The class of the file, with the names of the parts.

    Raises:
        ValueError: If `path` does not end in ".keras".
    """
    if not str(path).endswith(".keras"):
        raise ValueError(f'`path` must end in ".keras". Received: path={str(path)!r}.')
    parts = {name: getattr(whole, name) for name in kind.parts}
    if parts.get("target_tokenizer") is parts.get("source_tokenizer"):
        parts.pop("target_tokenizer", None)
    model = whole.model
    optimizer = getattr(model, "optimizer", None)
    try:
        model.optimizer = None
        with replacing(path) as unfinished:
            kind(**parts).save(unfinished)
    finally:
        model.optimizer = optimizer


def read(cls: type, path: Path, kind: type) -> Any:
    """Reads what `write` wrote.

    Args:
        cls: The class, `Translator` or `TextGenerator`.
        path: Path of the file.
        kind: The class of the file.

    Returns:
        An instance of `cls`.

    Raises:
        ValueError: If there is no such file, it holds something else, or is damaged.
    """
    arguments.path("path", path)
    import keras_seqattn.text  # noqa: F401, registers the tokenizers

    written = f"that `{cls.__name__}.save` wrote"
    with reading(path, written, "save or copy it again"):
        file = keras.saving.load_model(path)
    if not isinstance(file, kind):
        parts = " and ".join(f"`{name}`" for name in kind.parts[:2])
        raise ValueError(
            f"`path` must be a file {written}: with {parts}. Load another with "
            f"`keras.saving.load_model`, and pass what it holds to `{cls.__name__}`. "
            f"Received: path={str(path)!r}, which holds a {type(file).__name__}."
        )
    with reading(path, written, "save or copy it again"):
        return cls(**{name: getattr(file, name) for name in kind.parts})


class _File(keras.Model):
    """Parts, of which one is the model, as the one object that Keras saves and loads.

    A subclass names its `parts`, the arguments of its constructor.
    """

    parts = ()

    def _keep(self, **parts):
        for name, part in parts.items():
            setattr(self, name, part)
        self.built = True

    def call(self, inputs):
        """Computes what the model does."""
        return self.model(inputs)

    def get_config(self):
        """Returns the constructor's arguments, as JSON can hold them."""
        config = {
            part: keras.saving.serialize_keras_object(getattr(self, part))
            for part in self.parts
        }
        config["model"].pop("compile_config", None)
        return {"name": self.name, **config}

    @classmethod
    def from_config(cls, config):
        """Makes the object of its configuration."""
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

    def __init__(
        self,
        model: Any,
        source_tokenizer: Any,
        target_tokenizer: Any = None,
        search: Any = None,
        max_source_length: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._keep(
            model=model,
            source_tokenizer=source_tokenizer,
            target_tokenizer=target_tokenizer,
            search=search,
            max_source_length=max_source_length,
        )


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TextGeneratorFile(_File):
    """What a text generator's file holds."""

    parts = ("model", "tokenizer", "search")

    def __init__(
        self, model: Any, tokenizer: Any, search: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._keep(model=model, tokenizer=tokenizer, search=search)
