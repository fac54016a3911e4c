"""A trained model in Hugging Face's format: its configuration and its tensors."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.convert.refusal import refuse
from keras_seqattn.convert.safetensors import read_folder

_MISSING = object()


class Checkpoint:
    """The configuration (`config.json`) of a trained model, and its tensors by name.

    `unread` are the names of the tensors that nothing has taken so far.
    """

    def __init__(self, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        self._config, self._tensors = config, tensors
        self.unread: set[str] = set(tensors)

    @classmethod
    def of(cls, source: Any) -> "Checkpoint":
        """Reads a folder, or takes over a model of transformers."""
        if hasattr(source, "state_dict") and hasattr(source, "config"):
            tensors = {
                name: value.detach().cpu().float().numpy()
                for name, value in source.state_dict().items()
            }
            return cls(source.config.to_dict(), tensors)
        folder = model_folder(arguments.path("source", source))
        return cls(read_json(folder / "config.json"), read_folder(folder))

    @property
    def model_type(self) -> str:
        """What the configuration calls the architecture."""
        return str(self._config.get("model_type"))

    def option(self, *names: str, default: Any = _MISSING) -> Any:
        """Returns the first option of these names that is there and not None.

        If there is none it returns `default`, or without one raises an error.
        """
        for name in names:
            if self._config.get(name) is not None:
                return self._config[name]
        if default is not _MISSING:
            return default
        refuse(
            f"have the option {names[0]!r} in its configuration",
            f"a configuration of model_type={self.model_type!r} without it",
        )

    def has_option(self, name: str) -> bool:
        """Returns whether the configuration has an option, even if it is None."""
        return name in self._config

    def take(self, names: str | Sequence[str], shape: Sequence[int]) -> np.ndarray:
        """Returns the tensor that has these names and this shape, as float32.

        Not all of the names need be there; those that are must name equal tensors.
        """
        names = [names] if isinstance(names, str) else list(names)
        self.unread.difference_update(names)
        known = [name for name in names if name in self._tensors]
        shape = tuple(shape)
        if not known:
            refuse(
                f"hold the tensor {names[0]!r} of shape {shape}",
                f"{len(self._tensors)} tensors without it",
            )
        found, *others = known
        array = self._tensors[found]
        for other in others:
            if not np.array_equal(self._tensors[other], array):
                refuse(
                    f"share {found!r} and {other!r}, as its configuration has it",
                    "tensors that differ",
                )
        if tuple(array.shape) != shape:
            refuse(
                f"hold the tensor {found!r} of shape {shape}, as its configuration has "
                "it",
                f"shape {tuple(array.shape)}",
            )
        return np.asarray(array, "float32")

    def fill(self, weight: Any, names: str | Sequence[str]) -> None:
        """Fills a weight with the tensor that has one of these names and its shape."""
        weight.assign(self.take(names, weight.shape))

    def has_tensor(self, name: str) -> bool:
        """Returns whether there is a tensor of this name."""
        return name in self._tensors

    def tensor(self, name: str) -> np.ndarray:
        """Returns a tensor as it is, without counting it as taken."""
        return self._tensors[name]

    def ignore(self, *endings: str) -> None:
        """Leaves out the tensors with these endings of names: they say nothing new."""
        self.unread = {name for name in self.unread if not name.endswith(endings)}

    def check_all_read(self) -> None:
        """Raises an error if some tensor was not taken."""
        if self.unread:
            refuse(
                f"be a model of type {self.model_type!r} without further weights",
                f"the tensor {min(self.unread)!r}, one of {len(self.unread)} that have "
                "no place in our model",
            )


def model_folder(folder: Path) -> pathlib.Path:
    """Returns the path of a folder that holds a `config.json`, checked."""
    path = pathlib.Path(folder)
    if not (path / "config.json").is_file():
        refuse(
            "be the folder of a model of transformers, with its 'config.json'",
            repr(str(folder)),
        )
    return path


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Returns what a JSON file holds, a dict."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        refuse(f"hold {path.name!r} as a JSON object", "a file that is not one")
    return found
