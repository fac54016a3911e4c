"""Batches without their padding: the vectors of real tokens alone, in rows.

What works on each vector by itself (projections, norms, dropout, the feed-forward)
needs no padding. Attention is given its heads at their places, `(B, L, ...)`, and what
it gives goes back to rows. Neighbouring blocks hand rows on: what one has unpacked
carries a note of its rows, and where nothing else reads the unpacked tensor, TensorFlow
leaves the unpacking out of its graph.

Shapes: B batch, L length, P = B L places, M rows, D width, H heads, K width of a head.
"""

import math

from keras import ops

from keras_seqattn.backend import autodiff
from keras_seqattn.backend.ops import gather
from keras_seqattn.layers.embedding.notes import Notes

# The number of rows is a multiple of this one: a library prepares its matrix products
# for each new shape.
MULTIPLE = 128
_PACKINGS, _ROWS = Notes("packing"), Notes("rows")


def packing_of(mask):
    """Gives the packing of a mask, the same one whenever it is asked for again.

    Args:
        mask: Bool tensor `(B, L)`, True = a real token.

    Returns:
        A `Packing`.

    Example:
        >>> packing = packing_of(ops.ones((2, 3), "bool"))
        >>> tuple(packing.pack(ops.ones((2, 3, 8))).shape)
        (1, 6, 8)
    """
    packing = _PACKINGS.read(mask)
    if packing is None:
        packing = Packing(mask)
        if _stand_together(mask, packing.places):
            _PACKINGS.write(mask, packing)
    return packing


class Packing:
    """Which places of a batch stand in which rows, and the ways there and back.

    Each real token has a row; some padding has one too, to make their number round.
    To attention it is the `Folding` of its inputs.

    Args:
        mask: Bool tensor `(B, L)`, True = a real token.

    Attributes:
        places: The place of each row, int32 `(M,)`.
        rows: The row of each place, int32 `(P,)`; M where it has none.
    """

    def __init__(self, mask):
        self._sizes = ops.shape(mask)
        real = ops.cast(ops.reshape(mask, (-1,)), "int32")  # (P,)
        index = ops.arange(math.prod(self._sizes), dtype="int32")
        until = ops.cumsum(real)
        count = ops.sum(real)
        # All real places come first, then the others.
        rows = ops.where(real > 0, until - 1, count + index - until)
        places = ops.scatter_update(index, rows[:, None], index)
        # A batch of padding alone has rows too: attention copies some to each place.
        self.places = places[: -(-ops.maximum(count, 1) // MULTIPLE) * MULTIPLE]
        self.rows = ops.minimum(rows, ops.shape(self.places)[0])
        self._by_heads = {}

    def pack(self, x, share=True):
        """Gives the rows of vectors.

        Args:
            x: Tensor `(B, L, D)`.
            share: Whether rows that are known already will do, and these be known.

        Returns:
            Tensor `(1, M, D)`.
        """
        noted, rows = _ROWS.read(x) or (None, None)
        if share and noted is self:
            return rows
        vectors = ops.reshape(x, (-1, x.shape[-1]))
        rows = ops.expand_dims(
            _moved(vectors, _take(self.places), _take_or_zero(self.rows)), 0
        )
        self._share(share, x, rows)
        return rows

    def unpack(self, rows, share=True):
        """Gives the vectors that rows are of, and zeros at places that have none.

        Args:
            rows: Tensor `(1, M, D)`.
            share: Whether a `pack` of the result shall give these rows.

        Returns:
            Tensor `(B, L, D)`.
        """
        vectors = _moved(
            ops.squeeze(rows, 0), _take_or_zero(self.rows), _take(self.places)
        )
        x = ops.reshape(vectors, (*self._sizes, rows.shape[-1]))
        self._share(share, x, rows)
        return x

    def _share(self, share, x, rows):
        """Notes on vectors which rows are theirs."""
        if share and _stand_together(x, rows):
            _ROWS.write(x, (self, rows))

    def inputs(self, x):
        """Gives heads `(1, M, H, K)` their places `(B, L, H, K)`, copies at others."""
        heads, width = x.shape[2:]
        places, _, copied = self._of_heads(heads)
        x = _moved(ops.reshape(x, (-1, width)), _take(copied), _take(places))
        batch_size, length = self._sizes
        x = ops.reshape(x, (batch_size, heads, length, width))
        # Where attention transposes it back, TensorFlow leaves both out.
        return ops.transpose(x, (0, 2, 1, 3))

    def output(self, x, queries):
        """Gives the rows `(1, M, H, V)` of what the heads gave, `(B, L, H, V)`."""
        heads, width = x.shape[2:]
        places, rows, _ = self._of_heads(heads)
        x = ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, width))
        x = _moved(x, _take(places), _take_or_zero(rows))
        return ops.reshape(x, (1, -1, heads, width))

    def mask(self, mask, queries, keys):
        """Gives the mask `(B, H, T, S)`, which is of places already."""
        return mask

    def scores(self, x, queries, keys):
        """Gives the weights `(B, H, T, S)`, which are of places already."""
        return x

    def _of_heads(self, heads):
        """Gives `places` of each row's heads `(M, H)`, and the rows of all places.

        The rows `(B, H, L)` come twice: a place that has none has the index behind the
        last, and in the second tensor the last.
        """
        if heads in self._by_heads:
            return self._by_heads[heads]
        batch_size, length = self._sizes
        head = ops.arange(heads, dtype="int32")
        of_sentence = self.places // length * heads
        places = (of_sentence[:, None] + head) * length
        places = places + (self.places % length)[:, None]  # (M, H)
        rows = ops.reshape(self.rows, (batch_size, 1, length))
        none = ops.shape(self.places)[0] * heads
        rows = ops.minimum(rows * heads + head[:, None], none)  # (B, H, L)
        places, rows = (ops.reshape(x, (-1,)) for x in (places, rows))
        each = places, rows, ops.minimum(rows, none - 1)
        if _stand_together(self.places, places):
            self._by_heads[heads] = each
        return each


def _stand_together(x, y):
    """Whether who has the one tensor may use the other.

    What TensorFlow makes in a function inside of another is unknown outside.
    """
    return getattr(x, "graph", None) is getattr(y, "graph", None)


def _moved(x, move, back):
    """Moves vectors; their gradient is moved back, and not added up."""
    return autodiff.custom_gradient(lambda x: (move(x), back))(x)


def _take(indices):
    """Makes what takes vectors `(N, D)` by their indices."""
    return lambda x: gather(x, indices)


def _take_or_zero(indices):
    """Makes what takes vectors `(N, D)` by their indices, and zeros by the index N."""

    def take(x):
        zero = ops.zeros((1, x.shape[-1]), x.dtype)
        return gather(ops.concatenate([x, zero]), indices)

    return take
