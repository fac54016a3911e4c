"""Token ids from outside, arrays or lists of lists, checked before a search.

Shapes: B sentences, S source length, P prefix length, L length.
"""

from typing import Any

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.decoding.hypotheses import pad_lists

WANTED = "an integer array (batch, length), or a list of lists of integers"


def checked_model(model: Any) -> Any:
    """Returns a model if it has the decoding protocol.

    Args:
        model: What the caller passed.

    Returns:
        `model`.

    Raises:
        ValueError: If it lacks a method or an attribute that a search needs.
    """
    methods = ("encode", "initial_state", "step")
    names = (*methods, "start_id", "end_id", "pad_id")
    wanted = "a model with the decoding protocol"
    arguments.offers("model", model, names, wanted)
    for name in methods:
        arguments.function(f"model.{name}", getattr(model, name))
    return model


def id_array(name: str, token_ids: Any, pad_id: int) -> np.ndarray:
    """Returns token ids as an array; lists of unequal lengths are padded.

    Args:
        name: Name of the argument, for the error.
        token_ids: Array or tensor, or a list of lists of integers.
        pad_id: What fills the shorter lists.

    Returns:
        Integer array `(B, L)`.

    Raises:
        ValueError: If `token_ids` is not of integers, or not of rank 2.

    Example:
        >>> id_array("source_ids", [[5, 7, 2], [2]], pad_id=0).tolist()
        [[5, 7, 2], [2, 0, 0]]
    """
    if isinstance(token_ids, list | tuple) and (
        not token_ids or any(map(_is_row, token_ids))
    ):
        rows = [_row(name, number, row) for number, row in enumerate(token_ids)]
        token_ids = pad_lists(rows, pad_id) if rows else np.zeros((0, 0), "int32")
    array = np.asarray(token_ids)
    if array.dtype.kind not in "biufc":
        arguments.refuse(name, token_ids, WANTED)
    if array.ndim != 2:
        raise ValueError(
            f"`{name}` must have rank 2, (batch, length). "
            f"Received: {name}.shape={array.shape}."
        )
    if array.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` must be integers. "
            f"Received: {name} of dtype {array.dtype.name!r}."
        )
    return array


def _row(name: str, number: int, row: Any) -> np.ndarray:
    """Returns one of several lists as an array `(L,)`."""
    flat = _is_row(row) and not any(map(_is_row, row))
    ids = np.asarray(row) if flat else None
    if not flat or (ids.size and ids.dtype.kind not in "iu"):
        arguments.refuse(f"{name}[{number}]", row, "a list of integers")
    return ids


def _is_row(ids: Any) -> bool:
    return isinstance(ids, list | tuple) or getattr(ids, "ndim", 0) > 0


def checked_ids(
    name: str, token_ids: Any, size: int | None = None, pad_id: int = 0
) -> np.ndarray:
    """Returns token ids of a batch if they are in a vocabulary.

    Args:
        name: Name of the argument, for the error.
        token_ids: What was given.
        size: Size of the vocabulary, or None.
        pad_id: What fills the shorter of several lists.

    Returns:
        Int32 array `(B, L)`.

    Raises:
        ValueError: If they are not integers of rank 2 in [0, size), or there are none.

    Example:
        >>> checked_ids("source_ids", [[3, 4]]).dtype.name
        'int32'
    """
    token_ids = id_array(name, token_ids, pad_id)
    if 0 in token_ids.shape:
        raise ValueError(
            f"`{name}` must not be empty. Received: {name}.shape={token_ids.shape}."
        )
    check_range(name, token_ids, size)
    return token_ids.astype("int32")


def check_range(name: str, token_ids: np.ndarray, size: int | None) -> None:
    """Raises an error where token ids are not in a vocabulary.

    Args:
        name: Name of the argument, for the error.
        token_ids: Integer array.
        size: Size of the vocabulary, or None.

    Raises:
        ValueError: If an id is negative, or not below `size`.

    Example:
        >>> check_range("prefix", np.array([[5]]), 5)
        Traceback (most recent call last):
        ValueError: `prefix` must be in [0, 5), the model's vocabulary. Received: \
ids from 5 to 5.
    """
    low, high = token_ids.min(initial=0), token_ids.max(initial=0)
    if low < 0 or (size is not None and high >= size):
        raise ValueError(
            f"`{name}` must be in [0, {size}), the model's vocabulary. "
            f"Received: ids from {token_ids.min()} to {high}."
        )


def checked_prefix(
    prefix: Any, batch_size: int, max_length: int, pad_id: int
) -> np.ndarray:
    """Returns forced first tokens if they fit a search.

    Args:
        prefix: What was given.
        batch_size: Number of sentences B.
        max_length: Number of generated tokens at most.
        pad_id: What fills the end of a short prefix.

    Returns:
        Int32 array `(B, P)`.

    Raises:
        ValueError: If it is not of integers and that shape, is longer than
            `max_length`, or has a gap.

    Example:
        >>> checked_prefix([[5], []], 2, 4, 0).tolist()
        [[5], [0]]
    """
    prefix = id_array("prefix", prefix, pad_id)
    if len(prefix) != batch_size:
        raise ValueError(
            f"`prefix` must have {batch_size} rows, one a sentence. "
            f"Received: prefix.shape={prefix.shape}."
        )
    real = prefix != pad_id
    if (real[:, 1:] & ~real[:, :-1]).any():
        row = int((real[:, 1:] & ~real[:, :-1]).any(1).argmax())
        raise ValueError(
            "`prefix` must be padded at its end alone. "
            f"Received: prefix[{row}]={prefix[row].tolist()}."
        )
    length = int(real.sum(1).max(initial=0))
    if length > max_length:
        raise ValueError(
            f"`prefix` must be no longer than max_length={max_length}. "
            f"Received: prefix of length {length}."
        )
    return prefix.astype("int32")
