"""The best among many values, and what stands where they stand, fast on a CPU.

Shapes: B sentences, W beams, V vocabulary, C places of M, n blocks of size M.
"""

from keras import ops

from keras_seqattn.backend.ops import gather
from keras_seqattn.decoding.processors import FORBIDDEN

# A vocabulary is searched for its best tokens in blocks, of a size that divides it
# where one does.
BLOCK_SIZES = range(128, 63, -1)


def best_of_all(values, count):
    """Gives the largest of each sentence's values and where they stand.

    The `count` largest of a beam stand in the `count` blocks of its vocabulary with the
    largest maxima: so one pass over all and a sort of few find them.

    Args:
        values: Float tensor `(B, W, V)`.
        count: Positive integer, at most W V.

    Returns:
        Float tensor and int32 tensor `(B, count)`, largest first; the places count the
        W V values of a sentence.

    Example:
        >>> values, places = best_of_all(ops.array([[[1.0, 3.0], [2.0, 0.0]]]), 2)
        >>> [float(x) for x in values[0]], [int(x) for x in places[0]]
        ([3.0, 2.0], [1, 2])
    """
    batch_size, width, size = ops.shape(values)
    block = next((n for n in BLOCK_SIZES if size % n == 0), BLOCK_SIZES[0])
    padding = ((0, 0), (0, 0), (0, -size % block))
    padded = ops.pad(values, padding, constant_values=2 * FORBIDDEN)
    blocks = ops.reshape(padded, (batch_size, -1, block))  # (B, W n, M)
    count_blocks = min(count, blocks.shape[1])
    # A bound that none falls below: else XLA takes the maximum of the maxima of all
    # values once more.
    maxima = ops.maximum(ops.max(blocks, axis=-1), 8 * FORBIDDEN)
    _, chosen = largest(maxima, count_blocks)
    few = ops.reshape(gathered(blocks, chosen), (batch_size, -1))
    best, places = largest(few, count)
    chosen = gathered(chosen, places // block)
    blocks_a_beam = blocks.shape[1] // width
    beam, within = chosen // blocks_a_beam, chosen % blocks_a_beam
    return best, beam * size + within * block + places % block


def largest(values, count):
    """Gives the largest of each row and their places, largest first.

    One after the other, each by two plain reductions: XLA on a CPU sorts all of a row
    for `ops.top_k`, and goes through it number by number for `ops.argmax`.

    Args:
        values: Float tensor `(B, M)`.
        count: Positive integer, at most M.

    Returns:
        Float tensor and int32 tensor `(B, count)`; of equal values the first first.

    Example:
        >>> [int(x) for x in largest(ops.array([[1.0, 3.0, 2.0]]), 2)[1][0]]
        [1, 2]
    """
    size = values.shape[1]
    columns = ops.arange(size, dtype="int32")
    best, places = [], []
    for _ in range(count):
        best.append(ops.max(values, axis=-1, keepdims=True))
        # Where all is NaN nothing equals it, and the last place must do.
        equal = ops.where(values == best[-1], columns, size - 1)
        places.append(ops.min(equal, axis=-1, keepdims=True))
        values = ops.where(columns == places[-1], 4 * FORBIDDEN, values)
    return ops.concatenate(best, axis=1), ops.concatenate(places, axis=1)


def gathered(x, places):
    """Takes values of each sentence.

    Args:
        x: Tensor `(B, M, ...)`.
        places: Int tensor `(B, C)`.

    Returns:
        Tensor `(B, C, ...)`.

    Example:
        >>> [int(x) for x in gathered(ops.array([[3, 4]]), ops.array([[1, 1]]))[0]]
        [4, 4]
    """
    batch_size, size = x.shape[:2]
    rows = ops.arange(batch_size, dtype="int32")[:, None] * size
    flat = ops.reshape(x, (batch_size * size, *x.shape[2:]))
    return gather(flat, ops.cast(places, "int32") + rows)
