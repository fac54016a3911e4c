"""A translator's file: model, tokenizers and search as one object of Keras."""

import keras

from keras_seqattn.files import reading, replacing

_PARTS = (
    "model",
    "source_tokenizer",
    "target_tokenizer",
    "search",
    "max_source_length",
)


def write(translator, path):
    """Writes a translator's file; a kill leaves the file that was there.

    Args:
        translator: The `Translator`.
        path: Path of the file, that ends in ".keras".

    Raises:
        ValueError: If `path` does not end in ".keras".
    """
    if not str(path).endswith(".keras"):
        raise ValueError(f'`path` must end in ".keras". Received: path={str(path)!r}.')
    parts = {name: getattr(translator, name) for name in _PARTS}
    if translator.target_tokenizer is translator.source_tokenizer:
        parts["target_tokenizer"] = None
    model = translator.model
    optimizer = getattr(model, "optimizer", None)
    try:
        model.optimizer = None
        with replacing(path) as unfinished:
            TranslatorFile(**parts).save(unfinished)
    finally:
        model.optimizer = optimizer


def read(cls, path):
    """Reads a translator's file.

    Args:
        cls: The class, `Translator`.
        path: Path of the file.

    Returns:
        An instance of `cls`.

    Raises:
        ValueError: If there is no such file, it holds something else, or is damaged.
    """
    import keras_seqattn.text  # noqa: F401, registers the tokenizers

    with reading(path, "that `Translator.save` wrote", "save or copy it again"):
        parts = keras.saving.load_model(path)
        if not isinstance(parts, TranslatorFile):
            raise TypeError(f"it holds a {type(parts).__name__}")
        return cls(**{name: getattr(parts, name) for name in _PARTS})


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TranslatorFile(keras.Model):
    """What a translator's file holds, as the one object that Keras saves and loads."""

    def __init__(
        self,
        model,
        source_tokenizer,
        target_tokenizer=None,
        search=None,
        max_source_length=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.model = model
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        self.search = search
        self.max_source_length = max_source_length
        self.built = True

    def call(self, inputs):
        """Computes what the model does."""
        return self.model(inputs)

    def get_config(self):
        """Returns the constructor's arguments, as JSON can hold them."""
        config = {
            part: keras.saving.serialize_keras_object(getattr(self, part))
            for part in _PARTS
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
