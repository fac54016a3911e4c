"""Checks of the token ids that callers pass, as arrays or lists of lists.

Shapes: B sentences, P prefix length, L length.
"""

from collections.abc import Iterable, Sequence, Sized
from typing import Any

import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.decoding.hypotheses import pad_lists

WANTED = "an integer array (batch, length), or a list of lists of integers"


def id_array(name: str, token_ids: Any, pad_id: int) -> np.ndarray:
    """Returns token ids, an array or a list of lists, as an integer array `(B, L)`.

    Shorter lists are padded. `name` is the argument's, for the error message.
    """
    if isinstance(token_ids, list | tuple) and (
        not token_ids or any(map(_is_row, token_ids))
    ):
        rows = [_row(name, number, row) for number, row in enumerate(token_ids)]
        # In 64 bits, so that `check_range` sees ids that are too large.
        token_ids = pad_lists(rows, pad_id, "int64") if rows else np.zeros((0, 0), int)
    array = _array(token_ids)
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
    ids = _array(row) if flat else None
    if not flat or (ids.size and ids.dtype.kind not in "iu"):
        arguments.refuse(f"{name}[{number}]", row, "a list of integers")
    return ids


def _array(ids: Any) -> np.ndarray:
    """Returns ids as an array, also a tensor of the backend on a GPU."""
    is_tensor = ops.is_tensor(ids)
    return ops.convert_to_numpy(ids) if is_tensor else np.asarray(ids)


def _is_row(ids: Any) -> bool:
    return isinstance(ids, list | tuple) or getattr(ids, "ndim", 0) > 0


def checked_ids(
    name: str, token_ids: Any, size: int | None = None, pad_id: int = 0
) -> np.ndarray:
    """Returns token ids as int32 `(B, L)` if not empty and in the vocabulary."""
    token_ids = id_array(name, token_ids, pad_id)
    if 0 in token_ids.shape:
        raise ValueError(
            f"`{name}` must not be empty. Received: {name}.shape={token_ids.shape}."
        )
    check_range(name, token_ids, size)
    return token_ids.astype("int32")


def check_prompts(name: str, prompt_ids: np.ndarray, pad_id: int) -> None:
    """Raises an error if a prompt is empty, or is padded elsewhere than at its end."""
    real = prompt_ids != pad_id
    wrong = ~real[:, :1].any(1) | (real[:, 1:] & ~real[:, :-1]).any(1)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"`{name}` must hold at least one token a row, `start_id` where there is "
            "no other, and padding at the end alone. "
            f"Received: {name}[{row}]={prompt_ids[row].tolist()}."
        )


def check_range(name: str, token_ids: np.ndarray, size: int | None) -> None:
    """Raises an error if ids are negative, or not below `size`, by default 2**31."""
    low, high = token_ids.min(initial=0), token_ids.max(initial=0)
    bound = 2**31 if size is None else size
    if low < 0 or high >= bound:
        what = "the range of int32" if size is None else "the model's vocabulary"
        raise ValueError(
            f"`{name}` must be in [0, {bound}), {what}. "
            f"Received: ids from {token_ids.min()} to {token_ids.max()}."
        )


def checked_prefix(
    prefix: Any, limits: Sequence[int], pad_id: int, size: int | None = None
) -> np.ndarray:
    """Returns forced first tokens as int32 `(B, P)` if they fit a search.

    `limits` holds the largest number of generated tokens of each sentence; `size` is
    the vocabulary's, if known.
    """
    prefix = id_array("prefix", prefix, pad_id)
    if len(prefix) != len(limits):
        raise ValueError(
            f"`prefix` must have {len(limits)} rows, one a sentence. "
            f"Received: prefix.shape={prefix.shape}."
        )
    real = prefix != pad_id
    has_gap = (real[:, 1:] & ~real[:, :-1]).any(axis=1)
    if has_gap.any():
        row = int(has_gap.argmax())
        raise ValueError(
            "`prefix` must be padded at its end alone. "
            f"Received: prefix[{row}]={prefix[row].tolist()}."
        )
    rows = (row[keep] for row, keep in zip(prefix, real, strict=True))
    check_prefix_lengths(rows, limits, range(len(limits)))
    check_range("prefix", prefix[real], size)
    return prefix.astype("int32")


def check_prefix_lengths(
    prefixes: Iterable[Sized], limits: Iterable[int], numbers: Iterable[int]
) -> None:
    """Raises an error where a prefix is longer than the limit of its sentence.

    `numbers` are the sentences' numbers, for the error message.
    """
    for number, prefix, limit in zip(numbers, prefixes, limits, strict=True):
        if (length := len(prefix)) > max(0, limit):
            raise ValueError(
                f"`prefix[{number}]` must have at most {limit} tokens, as many as are "
                "generated for its sentence. "
                f"Received: prefix[{number}] of {length} tokens."
            )
