"""The directory in which a training run is saved: its lock, its files, whose it is."""

import json
import os
import pathlib
import re
import warnings
from collections.abc import Iterable
from typing import Any

import keras

from keras_seqattn.annotations import Path
from keras_seqattn.files import LOCK, keep_copy, lock_directory, release_lock
from keras_seqattn.training.snapshot import array_of, read_snapshot, write_snapshot
from keras_seqattn.training.variables import optimizers_of

# The files: the last save, the one before, and the sizes of the files to which lines
# are appended, before any save.
LAST, _BEFORE, _BEGIN = "state.npz", "before.npz", "begin.npz"
# The keys that every save has. `passes_before`, `first_epoch`, `files` and `batches`
# came later.
_SAVED = (
    *("training", "seed", "epoch", "batch"),
    *("stopped", "records", "values", "callbacks"),
)


class RunDirectory:
    """The saves of one training run, in a directory that one process at a time uses.

    Args:
        path: Path of the directory.
        run: What `describe_run` returns for the model.
        appended: Paths of files to which the run appends lines. Their sizes are kept
            with each save.
    """

    def __init__(
        self, path: pathlib.Path, run: dict[str, Any], appended: Iterable[Path]
    ) -> None:
        self._path, self._run = path, run
        self._appended = [pathlib.Path(file).absolute() for file in appended]
        self._is_last_whole = True  # as far as is known

    def open(self) -> dict[str, Any] | None:
        """Locks the directory, and returns the last save, None if there is none.

        What was appended to files after that save is cut off. Raises a `ValueError` if
        the directory is in use, belongs to a different run, or is damaged.
        """
        lock_directory(self._path, "run")
        try:
            last = self._read_last()
            if last is not None:
                self._check(last["training"])
            sizes = self._first_sizes() if last is None else last.get("files", {})
            self._cut(sizes)
        except Exception:
            self.close()
            raise
        return last

    def save(self, state: dict[str, Any]) -> None:
        """Writes a save; the one before it stays as a copy, in case of damage."""
        last = self._path / LAST
        if last.exists() and self._is_last_whole:  # else the copy is the only save
            keep_copy(last, self._path / _BEFORE)
        write_snapshot(last, {**state, "training": self._run, "files": self._sizes()})
        self._is_last_whole = True

    def close(self) -> None:
        """Releases the lock, if this process holds it."""
        release_lock(self._path / LOCK)

    def _read_last(self):
        """Reads the last save, or the one before it if the last is damaged."""
        error = None
        for path in (self._path / LAST, self._path / _BEFORE):
            if not path.exists():
                continue
            try:
                saved = read_snapshot(path, _SAVED)
            except ValueError as damage:
                error = error or damage
                continue
            if error is not None:
                self._is_last_whole = False
                warnings.warn(
                    f"{error} Training continues from the save before it, in epoch "
                    f"{saved['epoch'] + 1}.",
                    stacklevel=2,
                )
            return saved
        if error is not None:
            raise error
        return None

    def _check(self, other):
        """Raises an error if the directory belongs to a different run."""
        different = [name for name in self._run if other.get(name) != self._run[name]]
        if different:
            raise ValueError(
                "`directory` must be new, or that of the same run. Received: "
                f"directory={str(self._path)!r}, of a run with a different "
                f"{' and '.join(different)}."
            )

    def _cut(self, sizes):
        """Cuts the files that are appended to down to the sizes they had."""
        for path in self._appended:
            size = sizes.get(self._name(path), sizes.get(str(path)))
            if size is not None and path.exists() and path.stat().st_size > size:
                os.truncate(path, size)

    def _first_sizes(self):
        """Returns the sizes that the files had before the run, and keeps them."""
        path = self._path / _BEGIN
        if path.exists():  # A kill came before the first save.
            return read_snapshot(path)["files"]
        sizes = self._sizes()
        if self._appended:
            write_snapshot(path, {"files": sizes})
        return sizes

    def _sizes(self):
        """Measures the files that are appended to; a missing one has size 0.

        Each has two names, since either it or the directory may be moved, or both.
        """
        sizes = {}
        for path in self._appended:
            size = path.stat().st_size if path.exists() else 0
            sizes |= {str(path): size, self._name(path): size}
        return sizes

    def _name(self, path):
        """Returns a file's path from the directory."""
        try:
            return os.path.relpath(path, self._path)
        except ValueError:  # They are on two drives of Windows.
            return str(path)


def adapt(directory: Path, before: keras.Model, after: keras.Model) -> None:
    """Lets a run that `Resume` saved continue with a different model.

    The model `after` has weights of the same shapes as `before` but, for example, a
    different rate of dropout. Weights and the optimizer's state are kept; the seeds are
    those of `after`. Both models must be built and compiled. Raises a `ValueError` if
    their weights differ in shape or number.
    """
    path = pathlib.Path(directory) / LAST
    saved = read_snapshot(path, _SAVED)
    shapes = [[tuple(w.shape) for w in model.weights] for model in (before, after)]
    if shapes[0] != shapes[1]:
        raise ValueError(
            "`after` must have weights of the shapes of those of `before`. Received: "
            f"shapes {shapes[1]}, where `before` has {shapes[0]}."
        )
    values = dict(zip(map(id, before.variables), saved["values"][0], strict=True))
    known = {
        id(new): values[id(old)]
        for old, new in zip(before.weights, after.weights, strict=True)
    }
    saved["values"][0] = [known.get(id(v), array_of(v)) for v in after.variables]
    saved["training"] = describe_run(after)
    write_snapshot(path, saved)
    # The save before is of the model `before`: after damage it must not be restored.
    (path.parent / _BEFORE).unlink(missing_ok=True)


def describe_run(model: keras.Model) -> dict[str, Any]:
    """Describes a training run, to distinguish it from others."""
    variables = [[list(v.shape), str(v.dtype)] for v in model.variables]
    optimizers = [_describe(x) or type(x).__name__ for x in optimizers_of(model)]
    return {
        "model": f"{type(model).__name__} {_describe(model, _config) or 'null'}",
        "variables": variables,
        "optimizer": " ".join(optimizers),
    }


def _config(model):
    """Returns a model's configuration, the same whatever is frozen."""
    config = {**model.get_config()}
    config.pop("frozen", None)  # Frozen parts do not make it a different model.
    return keras.saving.serialize_keras_object(config)


def _describe(thing, config=keras.saving.serialize_keras_object):
    """Returns a configuration as text, without parts that differ from run to run.

    None where there is none: of a subclass that has no configuration of its own, and
    of what holds a schedule without one, a `functools.partial` or another object that
    Keras cannot serialize.
    """
    try:
        with warnings.catch_warnings():
            # Keras warns of a lambda, as if the model were to be loaded again.
            warnings.simplefilter("ignore")
            found = _without_names(config(thing))
    except (NotImplementedError, TypeError, OSError):  # OSError: a lambda's source.
        return None
    text = json.dumps(found, sort_keys=True, default=lambda x: type(x).__name__)
    return re.sub(r"_\d+\b", "", text)  # Keras numbers the names that it makes.


def _without_names(config):
    if isinstance(config, list | tuple):
        return [_without_names(value) for value in config]
    if not isinstance(config, dict):
        return config
    # A function counts by its name. Keras adds the code of one without a name, which
    # holds the name of its file: in a notebook that of the process.
    # Of an activation it keeps the code alone, with defaults and closure.
    is_code = set(config) == {"value"} and isinstance(config["value"], tuple)
    if config.get("class_name") == "__lambda__" or is_code:
        return "lambda"
    # A learning rate that is a number may have been changed by a callback.
    return {
        key: _without_names(value)
        for key, value in config.items()
        if key != "name" and not (key == "learning_rate" and isinstance(value, float))
    }
