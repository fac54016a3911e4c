"""What the methods of models take from outside: arrays and lists become tensors.

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
    """Returns token ids as a tensor; tensors pass as they are.

    Args:
        name: Name of the argument, for the error.
        token_ids: Tensor, integer array or list of lists of integers.
        pad_id: What fills the shorter lists.

    Returns:
        Int32 tensor `(B, L)`.

    Raises:
        ValueError: If `token_ids` is not of integers, or not of rank 2.

    Example:
        >>> tuple(id_tensor("source_ids", [[5, 7, 2], [2]], 0).shape)
        (2, 3)
    """
    if ops.is_tensor(token_ids) or isinstance(token_ids, keras.KerasTensor):
        return token_ids
    return ops.convert_to_tensor(id_array(name, token_ids, pad_id), "int32")


def memory_of(memory: Any, maker: str = "encode") -> State:
    """Returns what `encode` returned, with tensors in the place of NumPy's arrays.

    Args:
        memory: What the caller passed.
        maker: Name of the method that makes it.

    Returns:
        A dict.

    Raises:
        ValueError: If it is no dict with "hidden" and "mask".

    Example:
        >>> x = np.ones((2, 3))
        >>> sorted(memory_of({"hidden": x, "mask": x > 0}))
        ['hidden', 'mask']
    """
    return _parts("memory", memory, ("hidden", "mask"), maker)


def state_of(state: Any, index: Any) -> tuple[State, int | Tensor]:
    """Returns a state and its position, with tensors in the place of NumPy's arrays.

    Args:
        state: What the caller passed.
        index: Number of steps taken, an integer or an int tensor.

    Returns:
        A dict, and `index`.

    Raises:
        ValueError: If `state` is no dict with "beam" and "sentence", or `index` is
            neither an integer nor an int tensor.

    Example:
        >>> state_of({"beam": {}, "sentence": {}}, 1)
        ({'beam': {}, 'sentence': {}}, 1)
    """
    index = tensors(arguments.index("index", index))
    return _parts("state", state, ("beam", "sentence"), "initial_state"), index


def _parts(name, value, keys, maker):
    if not isinstance(value, dict) or not set(keys) <= set(value):
        wanted = f"what `{maker}` returned, a dict with {' and '.join(map(repr, keys))}"
        arguments.refuse(name, value, wanted)
    return tensors(value)


def check_sizes(max_length: Any, width: Any = 1, coverage: Any = False) -> None:
    """Checks the sizes of a state.

    Args:
        max_length: Number of steps.
        width: Number of beams.
        coverage: Whether steps sum the attention.

    Raises:
        ValueError: If a number is no positive integer, or `coverage` no bool.

    Example:
        >>> check_sizes(5, width=2)
    """
    arguments.index("max_length", max_length, 1)
    arguments.index("width", width, 1)
    arguments.boolean("coverage", coverage)


def tensors(structure: Any) -> Any:
    """Returns a nested structure with tensors in the place of NumPy's arrays.

    Args:
        structure: Nested structure of tensors, arrays and numbers.

    Returns:
        The same structure.

    Example:
        >>> ops.is_tensor(tensors({"beam": (np.zeros((2, 3)), 1)})["beam"][0])
        True
    """

    def convert(x):
        return ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x

    return keras.tree.map_structure(convert, structure)
