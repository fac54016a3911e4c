"""Checks of what methods take that compute one position, or the bias of lengths."""

from keras_seqattn import arguments
from keras_seqattn.layers.attention.masks import bool_mask
from keras_seqattn.layers.shapes import check_tensor

BEAMS = "(batch, beams, width)"


def check_kept(name, kept, maker):
    """Raises an error if an argument is not the keys and values that a method kept.

    Args:
        name: Name of the argument.
        kept: What the caller passed.
        maker: Name of the method that makes such a dict.

    Raises:
        ValueError: If `kept` is no dict with "key" and "value".

    Example:
        >>> check_kept("cache", {"key": 1, "value": 2}, "initial_cache")
    """
    if not isinstance(kept, dict) or not {"key", "value"} <= set(kept):
        wanted = f"what `{maker}` returned, a dict with 'key' and 'value'"
        arguments.refuse(name, kept, wanted)


def check_lengths(target_length, source_length, offset):
    """Raises an error if lengths or a position are not integers or tensors of such.

    Args:
        target_length: Number of queries, an integer or a scalar tensor.
        source_length: Number of keys.
        offset: Position of the first query.

    Raises:
        ValueError: If one of them is something else.

    Example:
        >>> check_lengths(3, 4, offset=0)
    """
    arguments.index("target_length", target_length, 0)
    arguments.index("source_length", source_length, 0)
    arguments.index("offset", offset)


def check_cache_sizes(batch_size, width, max_length):
    """Raises an error if a size of a cache is not an integer or a tensor of one.

    Args:
        batch_size: Number of sentences.
        width: Number of beams a sentence.
        max_length: Number of steps that there is room for.

    Raises:
        ValueError: If one of them is something else, or too small.

    Example:
        >>> check_cache_sizes(2, width=1, max_length=6)
    """
    arguments.index("batch_size", batch_size, 0)
    arguments.index("width", width, 1)
    arguments.index("max_length", max_length, 0)


def checked_mask(name, mask, length):
    """Returns the mask of one step as a bool tensor, if it fits.

    Args:
        name: Name of the argument.
        mask: Bool tensor `(B, L)`, or None.
        length: Number of positions L, or None where it is not known.

    Returns:
        A bool tensor, or None.

    Raises:
        ValueError: If `mask` is something else.

    Example:
        >>> checked_mask("mask", None, 3) is None
        True
    """
    mask = bool_mask(name, mask)
    if mask is None:
        return None
    check_tensor(name, mask, "(batch, length)")
    sizes = (mask.shape[1], length)
    if all(isinstance(size, int) for size in sizes) and sizes[0] not in (1, length):
        raise ValueError(
            f"`{name}` must be (batch, length) of {length} positions. "
            f"Received: {name}.shape={tuple(mask.shape)}."
        )
    return mask
