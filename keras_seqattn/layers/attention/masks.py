"""Boolean attention masks: pure functions, True = may attend.

The functions of attention take only bool masks (`pair_mask`). A layer's mask of numbers
is read as in Keras: 0 is False and 1 is True. A negative number is refused: it belongs
to a mask that is added to scores (0 and -1e9), in which 0 means "may attend". A mask of
only zeros could be of either kind; as in Keras, it hides everything. Where the values
cannot be seen, in a compiled program or a functional model, a mask of floats is
refused, since it may be one that is added.

Shapes: B batch, L length, T target length, S source length.
"""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import tracing
from keras_seqattn.backend.ops import as_int32
from keras_seqattn.layers.distances import check_lengths
from keras_seqattn.layers.shapes import check_rank


def padding_mask(token_ids: Tensor, pad_id: int = 0) -> Tensor:
    """Marks the real tokens of a padded batch.

    Args:
        token_ids: Integer tensor `(B, L)`.
        pad_id: The id that fills the end of a short sentence.

    Returns:
        Bool tensor `(B, L)`, True where a real token stands.

    Raises:
        ValueError: If `token_ids` is not a tensor, or `pad_id` is not an integer.

    Example:
        >>> import numpy as np
        >>> np.asarray(padding_mask(np.array([[5, 7, 0]]))).tolist()
        [[True, True, False]]
    """
    arguments.tensor("token_ids", token_ids)
    return ops.not_equal(token_ids, arguments.integer("pad_id", pad_id))


def causal_mask(
    target_length: int | Tensor,
    source_length: int | Tensor | None = None,
    offset: int | Tensor = 0,
) -> Tensor:
    """Lets each query see the keys up to its own position.

    Query i may attend to key j where j <= i + offset.

    Args:
        target_length: Number of queries T, an integer or a scalar tensor.
        source_length: Number of keys S; T when None.
        offset: Position of the first query among the keys; a scalar tensor
            in cached decoding. 0 is the alignment of Keras.

    Returns:
        Bool tensor `(T, S)`.

    Raises:
        ValueError: If a length or `offset` is not an integer or a scalar tensor.

    Example:
        >>> import numpy as np
        >>> np.asarray(causal_mask(2, 3)).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0]]
    """
    return _distance(target_length, source_length, offset) >= 0


def window_mask(
    target_length: int | Tensor,
    source_length: int | Tensor | None,
    window: int,
    offset: int | Tensor = 0,
) -> Tensor:
    """Lets each query see the keys nearer than `window`, on both sides.

    Query i may attend to key j where |i + offset - j| < window: the band of
    Keras's `sliding_window`. Combined with `causal_mask`, only its past half remains.

    Args:
        target_length: Number of queries T, an integer or a scalar tensor.
        source_length: Number of keys S; T when None.
        window: Positive integer; 1 sees only the query's own position.
        offset: Position of the first query among the keys.

    Returns:
        Bool tensor `(T, S)`.

    Raises:
        ValueError: If `window` is not a positive integer, or a length or `offset` is
            not an integer or a scalar tensor.

    Example:
        >>> import numpy as np
        >>> np.asarray(window_mask(3, 3, window=2)).astype(int).tolist()
        [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    arguments.positive_integer("window", window)
    return ops.abs(_distance(target_length, source_length, offset)) < window


def combine_masks(*masks: Tensor | None) -> Tensor | None:
    """Combines masks: what all of them allow is allowed.

    Args:
        *masks: Bool tensors whose shapes broadcast, or ones and zeros; None stands
            for "all allowed" and is passed over.

    Returns:
        Bool tensor of the broadcast shape, or None when nothing was given.

    Raises:
        ValueError: If a mask holds a negative number, or floats whose values cannot be
            seen, or the shapes do not broadcast.

    Example:
        >>> import numpy as np
        >>> padding = np.array([[[True, False]]])
        >>> np.asarray(combine_masks(padding, None, causal_mask(2))).tolist()
        [[[True, False], [True, False]]]
    """
    given = [bool_mask("masks", mask) for mask in masks if mask is not None]
    try:
        return functools.reduce(ops.logical_and, given) if given else None
    except Exception as error:  # Each backend raises an error of its own.
        shapes = [tuple(mask.shape) for mask in given]
        if _broadcast(shapes):  # The memory is exhausted, say.
            raise
        raise ValueError(
            "`masks` must have shapes that broadcast: give a mask (batch, source) an "
            f"axis of queries, by `mask[:, None]`. Received: masks of shapes {shapes}."
        ) from error


def _broadcast(shapes):
    """Returns whether shapes broadcast, as far as their sizes are known."""
    try:
        np.broadcast_shapes(*([size or 1 for size in shape] for shape in shapes))
    except ValueError:
        return False
    return True


def input_masks(
    query_mask: Tensor | None,
    value_mask: Tensor | None,
    key_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor | None:
    """Combines the masks of a layer's inputs with its attention mask `(..., T, S)`.

    The masks of the inputs are `(B, T)` and `(B, S)`. Axes of the attention mask
    between the batch and the lengths are those of the heads. The result broadcasts to
    `(..., T, S)`; it is None if all masks are.
    """
    attention_mask = bool_mask("attention_mask", attention_mask)
    rank = 3 if attention_mask is None else len(attention_mask.shape)
    return combine_masks(
        _sequence_mask("query_mask", query_mask, -1, rank),
        _sequence_mask("value_mask", value_mask, -2, rank),
        _sequence_mask("key_mask", key_mask, -2, rank),
        attention_mask,
    )


def _sequence_mask(name, mask, axis, rank):
    """Adds to a mask `(B, L)` the axis of the other sequence, and of the heads."""
    mask = bool_mask(name, mask)
    if mask is None:
        return None
    mask = ops.expand_dims(mask, axis)
    for _ in range(rank - len(mask.shape)):
        mask = ops.expand_dims(mask, -3)
    return mask


def bool_mask(name: str, mask: Tensor | None) -> Tensor | None:
    """Returns a mask of bools, or of ones and zeros, as a bool tensor, or None."""
    if mask is None:
        return None
    arguments.tensor(name, mask)
    given = mask  # In a JAX program an array's values are known, its tensor's are not.
    if not (ops.is_tensor(mask) or isinstance(mask, keras.KerasTensor)):
        mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    values = tracing.known_values(given)
    if values is None:
        arguments.check_unseen_mask(name, mask)
    if values is not None and (values < 0).any():
        raise ValueError(
            f"`{name}` must be bool, or of ones and zeros: True or 1 = may attend. "
            f"Pass {arguments.of_added_mask(name)} "
            f"Received: {name} of dtype {dtype!r} with the value {values.min()}."
        )
    return ops.greater(mask, 0)


def mask_of_all(x: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the bool mask of vectors `(B, L, D)` as `(B, L)`, all True if None.

    The mask given may have one row for all sequences, and one column for all positions.
    """
    shape = ops.shape(x)[:2]
    return ops.ones(shape, "bool") if mask is None else ops.broadcast_to(mask, shape)


def is_causal(use_causal_mask: Any) -> bool:
    """Returns a layer's `use_causal_mask` as a bool; like Keras's it may be 0 or 1."""
    kinds = (int, np.bool_)
    wanted = "True or False"
    return bool(arguments.instance("use_causal_mask", use_causal_mask, kinds, wanted))


def checked_band(
    causal: bool, window: int | None, offset: int | Tensor
) -> tuple[bool, int | None]:
    """Returns `causal` and `window` as plain Python, if they and `offset` are valid."""
    causal = arguments.boolean("causal", causal)
    window = arguments.positive_integer("window", window, optional=True)
    arguments.index("offset", offset)
    return causal, window


def pair_mask(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    causal: bool = False,
    window: int | None = None,
    offset: int | Tensor = 0,
) -> Tensor | None:
    """Combines all that hides pairs of a query `(B, T, H, K)` and key `(B, S, G, K)`.

    The mask is `(B, T, S)`, or broadcasts to `(B, H, T, S)`. So does the result, which
    has rank 4; None allows every pair.
    """
    batch, target, heads, _ = ops.shape(query)
    source = ops.shape(key)[1]
    band = combine_masks(
        causal_mask(target, source, offset) if causal else None,
        None if window is None else window_mask(target, source, window, offset),
    )
    if band is not None:
        band = band[None, None]
    if mask is None:
        return band
    mask = _rank_4_mask(ops.convert_to_tensor(mask), (batch, heads, target, source))
    return combine_masks(mask, band)


def _rank_4_mask(mask, full):
    """Returns a bool mask that fits `full` (B, H, T, S), with the axes it lacks.

    `(T, S)` and `(B, T, S)` become `(1, 1, T, S)` and `(B, 1, T, S)`.
    """
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool":
        raise ValueError(
            "`mask` must be bool, True = may attend. Pass "
            f"{arguments.of_added_mask('mask')} Received: mask of dtype {dtype!r}."
        )
    shape = tuple(mask.shape)
    if len(shape) == 2:
        mask = ops.expand_dims(mask, 0)
    if len(shape) in (2, 3):
        mask = ops.expand_dims(mask, 1)
    if not arguments.may_broadcast(mask.shape, full):
        raise ValueError(
            f"`mask` must broadcast to (batch, heads, target, source) = {full}, or to "
            f"(batch, target, source) for all heads. Received: mask.shape={shape}."
        )
    return mask


def _distance(target_length, source_length, offset):
    """Returns the position of each query minus that of each key, i + offset - j."""
    source_length = target_length if source_length is None else source_length
    check_lengths(target_length, source_length, offset)
    rows = ops.arange(target_length, dtype="int32") + as_int32(offset)
    columns = ops.arange(source_length, dtype="int32")
    return rows[:, None] - columns[None, :]  # (T, S)


def checked_mask(name: str, mask: Tensor | None, length: int | None) -> Tensor | None:
    """Returns a step's mask `(B, L)` as bools, if it fits; L is None if unknown."""
    mask = bool_mask(name, mask)
    if mask is None:
        return None
    check_rank(name, mask, "(batch, length)")
    if not arguments.may_be(mask.shape[1], 1, length):
        raise ValueError(
            f"`{name}` must be (batch, length) of {length} positions. "
            f"Received: {name}.shape={tuple(mask.shape)}."
        )
    return mask
