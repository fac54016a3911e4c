"""How many sentences a program searches at once, and how they are padded.

Few sizes of batches and few lengths make few programs. On a processor of many cores
several programs run at once, each with a part of the sentences.
"""

from typing import NamedTuple

import keras
import numpy as np

from keras_seqattn.backend import compile

# What a program is compiled for: every batch is padded to one of these sizes, and every
# source to a power of 2 of tokens, from the shortest on; one that queues also to three
# quarters of it. The largest size fills what computes it, and is small enough that
# sentences of about one length meet: a batch takes as long as its longest sentence.
BATCH_SIZES = (1, 4, 8, 16, 32, 64)
SHORTEST = 16
# Of each of several programs at once: the least that one is begun for, and the most.
SHARES = (16, 32)
# Sources that queue for a program's rows are encoded by so many tokens at once, and are
# at most so many blocks of them: this bounds their memory.
BLOCK_TOKENS = 512
QUEUE_BLOCKS = 16
# Sentences of a quarter of the length are not searched beside longer ones than this.
LONG = 128
# Most tokens of a line of text where neither the model nor the caller has a limit.
MOST_TOKENS = 1024
# Most positions of one program: its rows times their beams times the tokens of a source
# and of its translation. This bounds its memory: 64 sentences of 512 tokens in greedy
# search, 16 of them with 5 beams, fewer of longer ones.
MOST_POSITIONS = 2**17


class Plan(NamedTuple):
    """How sentences are shared out among programs.

    Attributes:
        size: Number of sentences that a program searches at once, its rows.
        queued: Whether more of them wait in the program for a row.
        width: Number of beams a sentence.

    Example:
        >>> Plan(32, queued=True).most(16), Plan(32, queued=False).most(16)
        (512, 32)
    """

    size: int
    queued: bool
    width: int = 1

    def fitted(self, length, generated=None):
        """Returns the plan for sentences of a length, with no more rows than fit.

        Args:
            length: The length that sources are padded to.
            generated: Number of generated tokens; None: twice the length and 10.

        Returns:
            A `Plan`, of 1 row where even two hold more than `MOST_POSITIONS`.

        Example:
            >>> [Plan(64, False, width=4).fitted(2**k).size for k in (7, 8, 11, 17)]
            [64, 32, 4, 1]
        """
        generated = 2 * length + 10 if generated is None else generated
        most = MOST_POSITIONS // (self.width * (length + generated))
        if most >= self.size:
            return self
        fitting = [size for size in BATCH_SIZES if size <= most]
        return self._replace(size=max(fitting, default=1))

    def most(self, length):
        """Returns how many sources of a padded length one program takes."""
        waiting = QUEUE_BLOCKS * BLOCK_TOKENS // length
        return max(self.size, waiting) if self.queued else self.size

    def cut(self, items, length=None):
        """Cuts a sequence into what each program takes, a list of slices of it.

        The padded length of the sentences counts only where they queue.
        """
        if not self.queued:
            return list(in_batches(items, self.size))
        # As many for each of the programs at once, each from the first to the last.
        threads = compile.num_threads()
        count = -(-len(items) // (self.most(length) * threads)) * threads
        return [items[k::count] for k in range(min(count, len(items)))]


def planned(count, width=1, can_queue=False):
    """Plans the fastest search of a number of sentences.

    Args:
        count: Number of sentences.
        width: Number of beams a sentence.
        can_queue: Whether the model can begin a sentence while others go on.

    Returns:
        A `Plan`, of one of `BATCH_SIZES`, or of 2.

    Example:
        >>> planned(3)
        Plan(size=4, queued=False, width=1)
    """
    threads = compile.num_threads()
    least, most = SHARES if threads > 1 else BATCH_SIZES[-1:] * 2
    share = min(max(-(-count // threads), least), most)
    size = next(size for size in BATCH_SIZES if size >= min(count, share))
    if size * width == 1 and keras.backend.backend() == "tensorflow":
        # Its XLA takes loops of scalars for the products of a single row: on a CPU two
        # take half of the time.
        size = 2
    return Plan(size, can_queue and 1 < threads and threads * most < count, width)


def is_far(length, longer):
    """Returns whether sentences would waste most of the time in a longer batch.

    Args:
        length: The length that they are padded to by themselves.
        longer: The length of the batch.

    Returns:
        A bool; False in batches of at most `LONG` tokens, which few programs serve.

    Example:
        >>> is_far(16, 64), is_far(64, 1024), is_far(512, 1024)
        (False, True, False)
    """
    return longer > LONG and longer >= 4 * length


def source_limit(model):
    """Returns the most tokens that a line of text is read to, its end included.

    Args:
        model: The model.

    Returns:
        The model's `max_length`, or `MOST_TOKENS` where it has none.

    Example:
        >>> source_limit(None)
        1024
    """
    return getattr(model, "max_length", None) or MOST_TOKENS


def block_size(length):
    """Gives how many sources that queue are encoded at once.

    Args:
        length: The length that they are padded to.

    Returns:
        A positive integer.

    Example:
        >>> block_size(16), block_size(1000)
        (32, 1)
    """
    return max(1, BLOCK_TOKENS // length)


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


def padded_length(model, length, queued=False):
    """Gives the length that sentences of a length are padded to.

    Args:
        model: The model, whose `max_length` is not exceeded.
        length: Number of tokens.
        queued: Whether they queue for the rows of a program.

    Returns:
        An integer.

    Example:
        >>> padded_length(None, 17), padded_length(None, 17, queued=True)
        (32, 24)
    """
    room = SHORTEST
    while room < length:
        room *= 2
    if queued and SHORTEST < room and length <= room * 3 // 4:
        room = room * 3 // 4
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
