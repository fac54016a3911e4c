"""What the methods of models take from outside: arrays and lists become tensors.

Shapes: B batch, L length.
"""

import keras
import numpy as np
from keras import ops

from keras_seqattn.decoding.ids import id_array


def id_tensor(name, token_ids, pad_id):
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


def tensors(structure):
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
