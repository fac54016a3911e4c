"""Plain values and arrays in one file, which is written whole or not at all."""

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_seqattn.annotations import Path
from keras_seqattn.backend.processes import whole_array
from keras_seqattn.files import mapping, reading, replacing

REMEDY = "restore a copy of it, or delete it to begin anew"  # of a damaged file
_TEXT = "values"


def write_snapshot(path: Path, values: Any) -> None:
    """Writes values to a ".npz" file; a kill leaves the previous file intact.

    Values are nested dicts, lists and tuples of NumPy arrays, numbers, strings, bools
    and None.
    """
    arrays = {}
    text = json.dumps(_encode(values, arrays)).encode()
    with replacing(path) as unfinished:
        np.savez(unfinished, **{_TEXT: np.frombuffer(text, "uint8")}, **arrays)


def read_snapshot(path: Path, keys: Iterable[str] | None = None) -> Any:
    """Returns what `write_snapshot` wrote; with `keys`, a dict that must have them.

    Raises a `ValueError` if the file does not exist, holds something else, or is
    damaged.
    """
    with reading(path, "of saved values", REMEDY):
        with np.load(path, allow_pickle=False) as arrays:
            values = _decode(json.loads(arrays[_TEXT].tobytes()), arrays)
        return values if keys is None else mapping(values, keys)


def array_of(variable: Any) -> np.ndarray:
    """Copies a variable's value to an array, in a dtype that NumPy itself knows.

    All processes that train together must call this.

    Example:
        >>> import keras
        >>> array_of(keras.Variable([0.5], dtype="bfloat16"))
        array([0.5], dtype=float32)
    """
    value = np.array(whole_array(variable))
    return value.astype("float32") if value.dtype.kind == "V" else value


def is_plain(value: Any) -> bool:
    """Returns whether `write_snapshot` can write a value, and read it back the same.

    Classes derived from dict, list and tuple would be read back as these.
    """
    if type(value) is dict:
        return all(is_plain(x) for x in (*value, *value.values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    if isinstance(value, np.generic):
        return value.dtype.kind in "biufU"
    return value is None or isinstance(value, str | int | float | bool)


def _encode(value, arrays):
    """Returns a value that JSON can hold, moving arrays into `arrays` by name."""
    if isinstance(value, dict):
        pairs = [[_encode(x, arrays) for x in pair] for pair in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        items = [_encode(x, arrays) for x in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, np.ndarray):
        name = f"array_{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    return value.item() if isinstance(value, np.generic) else value


def _decode(value, arrays):
    """Undoes `_encode`."""
    if isinstance(value, list):
        return [_decode(x, arrays) for x in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[value["array"]]
    if "tuple" in value:
        return tuple(_decode(x, arrays) for x in value["tuple"])
    return {_decode(key, arrays): _decode(x, arrays) for key, x in value["dict"]}
