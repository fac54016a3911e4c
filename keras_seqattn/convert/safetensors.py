"""Tensors of safetensors files, as NumPy arrays that are read when they are used.

The whole format: eight bytes with the length of the header, the header as JSON, and the
tensors' bytes (https://github.com/huggingface/safetensors#format).
"""

import json
import math
import pathlib
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from keras_seqattn.convert.refusal import refuse

DTYPES = {
    "F64": np.dtype("float64"),
    "F32": np.dtype("float32"),
    "F16": np.dtype("float16"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Names of weight files that are pickles: loading one can run Python code.
PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# Longer headers are refused by the reference implementation too.
LONGEST_HEADER = 100_000_000


def read_folder(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a folder by name, mapped from its file or files."""
    if (folder / SINGLE).is_file():
        return read_file(folder / SINGLE)
    if (folder / INDEX).is_file():
        parts = [read_file(folder / name) for name in _files(folder / INDEX)]
        return {name: array for part in parts for name, array in part.items()}
    pickles = [path.name for kind in PICKLES for path in sorted(folder.glob(kind))]
    hint = (
        f"which holds {pickles[0]!r}, a pickle, and loading one can run any code: "
        "save the model again with `model.save_pretrained(folder)` of transformers"
        if pickles
        else "which holds no such file"
    )
    refuse(f"be a folder with {SINGLE!r}, the weights", f"{str(folder)!r}, {hint}")


def _files(index: pathlib.Path) -> list[str]:
    """Returns the names of the files that an index names."""
    try:
        found = json.loads(index.read_text(encoding="utf-8"))
        files = set(found["weight_map"].values())
    except (AttributeError, KeyError, TypeError, ValueError):
        files = {None}
    # A name with a folder could be that of any file.
    if not all(isinstance(x, str) and x == pathlib.PurePath(x).name for x in files):
        _refuse(index, "which does not name files of tensors beside it")
    return sorted(files)


def read_file(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a safetensors file by name, mapped from the file."""
    if not path.is_file():
        _refuse(path, "which is no file")
    size = path.stat().st_size
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        begin = 8 + header_size
        if not 2 <= header_size <= LONGEST_HEADER or begin > size:
            _refuse(path)
        try:
            header = json.loads(file.read(header_size))
        except ValueError:
            header = None
    if not isinstance(header, dict):
        _refuse(path)
    header.pop("__metadata__", None)
    # Mapped once, since each mapping keeps a file open, and a process may open few.
    data = np.memmap(path, "uint8", "r")[begin:]
    return {name: _array(path, data, about) for name, about in header.items()}


def _array(path, data, about: Any) -> np.ndarray:
    """Returns the tensor in the data that an entry of the header is about."""
    about = about if isinstance(about, dict) else {}
    dtype, shape = about.get("dtype"), about.get("shape")
    offsets = about.get("data_offsets")
    if not (isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets, 2)):
        _refuse(path, "whose header does not describe its tensors")
    first, last = offsets
    if dtype not in DTYPES:
        _refuse(path, f"with a tensor of dtype {dtype!r}, which is not a float type")
    count = math.prod(shape)
    if last > len(data) or last - first != count * DTYPES[dtype].itemsize:
        _refuse(path, "which is cut off")
    return data[first:last].view(DTYPES[dtype]).reshape(shape)


def _are_sizes(values: Any, count: int | None = None) -> bool:
    """Returns whether a value of the header is a list of sizes, of `count` if given."""
    return (
        isinstance(values, list)
        and all(type(value) is int and value >= 0 for value in values)
        and count in (None, len(values))
    )


def _refuse(
    path, why="which is something else, such as a pickle or a pointer of Git LFS"
) -> NoReturn:
    refuse("hold weights as safetensors", f"{path.name!r}, {why}")
