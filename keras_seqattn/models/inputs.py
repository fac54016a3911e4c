"""Inputs of the models' methods: checks, and conversion of arrays and lists to tensors.

Shapes: B batch, L length.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import State, Tensor, TokenIds
from keras_seqattn.decoding.ids import id_array


def id_tensor(name: str, token_ids: TokenIds, pad_id: int) -> Tensor:
    """Returns token ids as an int32 tensor `(B, L)`; a tensor is returned unchanged."""
    if ops.is_tensor(token_ids) or isinstance(token_ids, keras.KerasTensor):
        return token_ids
    return ops.convert_to_tensor(id_array(name, token_ids, pad_id), "int32")


def memory_of(memory: Any, maker: str = "encode") -> State:
    """Checks a memory that `maker` returned, and converts its arrays to tensors."""
    return _parts("memory", memory, ("hidden", "mask"), maker)


def state_of(state: Any, index: Any) -> tuple[State, int | Tensor]:
    """Checks a state and its step, and converts their arrays to tensors."""
    index = arguments.index("index", index)
    index = ops.cast(index, "int32") if hasattr(index, "dtype") else index
    return _parts("state", state, ("beam", "sentence"), "initial_state"), index


def _parts(name, value, keys, maker):
    if not isinstance(value, dict) or not set(keys) <= set(value):
        wanted = f"what `{maker}` returned, a dict with {' and '.join(map(repr, keys))}"
        arguments.refuse(name, value, wanted)
    return tensors(value)


def check_sizes(max_length: Any, width: Any = 1, coverage: Any = False) -> None:
    """Checks the arguments of `initial_state` and `grow_state`."""
    arguments.index("max_length", max_length, 1)
    arguments.index("width", width, 1)
    arguments.boolean("coverage", coverage)


def tensors(structure: Any) -> Any:
    """Returns a nested structure with its NumPy arrays converted to tensors."""

    def convert(x):
        return ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x

    return keras.tree.map_structure(convert, structure)
