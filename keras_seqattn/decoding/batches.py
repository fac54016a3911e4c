"""How many sentences a program searches at once, and how they are padded.

Few sizes of batches and few lengths make few programs. On a processor of many cores
several programs run at once, each with a part of the sentences.
"""

import numpy as np

from keras_seqattn import compiled

# What a program is compiled for: every batch is padded to one of these sizes, and every
# source to a power of 2 of tokens, from the shortest on. The largest size fills what
# computes it, and is small enough that sentences of about one length meet: a batch
# takes as long as its longest sentence.
BATCH_SIZES = (1, 4, 8, 16, 32, 64)
SHORTEST = 16
# Of each of several programs at once: the least that one is begun for, and the most.
SHARES = (16, 32)


def fastest_size(count):
    """Gives the number of sentences with which a program searches all there are.

    Args:
        count: Number of sentences.

    Returns:
        One of `BATCH_SIZES`.

    Example:
        >>> fastest_size(3), fastest_size(1000) in (32, 64)
        (4, True)
    """
    threads = compiled.num_threads()
    least, most = SHARES if threads > 1 else BATCH_SIZES[-1:] * 2
    share = min(max(-(-count // threads), least), most)
    return next(size for size in BATCH_SIZES if size >= min(count, share))


def in_batches(items, size=BATCH_SIZES[-1]):
    """Cuts a sequence into batches that are searched, or scored, together.

    Args:
        items: List or array.
        size: Number of items in a batch.

    Yields:
        What a slice of `items` is.

    Example:
        >>> [len(batch) for batch in in_batches([0] * 100)]
        [64, 36]
    """
    for start in range(0, len(items), size):
        yield items[start : start + size]


def padded(lists, pad_id):
    """Makes an array of lists of token ids.

    Args:
        lists: List of lists of integers.
        pad_id: What fills the shorter ones.

    Returns:
        Int32 array, as long as the longest list, and at least 1.

    Example:
        >>> padded([[5, 2], [2]], pad_id=0).tolist()
        [[5, 2], [2, 0]]
    """
    length = max(1, max(map(len, lists)))
    token_ids = np.full((len(lists), length), pad_id, "int32")
    for row, ids in zip(token_ids, lists, strict=True):
        row[: len(ids)] = ids
    return token_ids


def padded_length(model, length):
    """Gives the length that sentences of a length are padded to.

    Args:
        model: The model, whose `max_length` is not exceeded.
        length: Number of tokens.

    Returns:
        An integer.

    Example:
        >>> padded_length(None, 17)
        32
    """
    room = SHORTEST
    while room < length:
        room *= 2
    return max(length, min(room, getattr(model, "max_length", None) or room))


def lengthened(model, token_ids, length):
    """Pads sentences at their end.

    Args:
        model: The model, whose `pad_id` fills them.
        token_ids: Int array `(B, S)`.
        length: The length that they get, at least S.

    Returns:
        Int array `(B, length)`.

    Example:
        >>> from types import SimpleNamespace
        >>> lengthened(SimpleNamespace(pad_id=0), np.array([[5, 2]]), 4).tolist()
        [[5, 2, 0, 0]]
    """
    padding = ((0, 0), (0, length - token_ids.shape[1]))
    return np.pad(token_ids, padding, constant_values=model.pad_id)


def filled(array, size):
    """Fills a batch by repeating its last row.

    Args:
        array: Array `(B, ...)`.
        size: Number of rows that it gets, at least B.

    Returns:
        Array `(size, ...)`.

    Example:
        >>> filled(np.array([5, 2]), 4).tolist()
        [5, 2, 2, 2]
    """
    padding = [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1)
    return np.pad(array, padding, mode="edge")
