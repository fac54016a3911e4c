"""The scores of long sequences as a grid of blocks: which are seen, and their masks.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G, K key_dim; N blocks of t queries, M blocks of s keys. A tensor of pairs is
`(B, G, S, R, T)`, where an axis of length 1 stands for all of its axis.
"""

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.layers.attention import masks

# Most queries and keys of a block. With more, its scores leave the cache; with fewer,
# a loop has too little to do at once.
MOST_ROWS, MOST_COLUMNS = 1024, 512
# A window is cut into blocks of about its own length, but not into splinters.
SHORTEST_BLOCK = 128


def cut(length, longest):
    """Gives the length and number of equal blocks of at most `longest`.

    Args:
        length: Length of a sequence, an integer or a scalar tensor.
        longest: Positive integer.

    Returns:
        The length of a block, an integer, and the number of blocks.

    Example:
        >>> cut(10, 4)
        (4, 3)
        >>> cut(8, 6)
        (4, 2)
    """
    if not isinstance(length, int):
        return longest, -(-length // longest)
    count = max(1, -(-length // longest))
    return max(1, -(-length // count)), count


def split(x, length, count, groups):
    """Cuts `(B, L, H, K)` into blocks, with the heads of a group below each other.

    Args:
        x: Tensor `(B, L, H, K)`.
        length: Length of a block.
        count: Number of blocks.
        groups: Number of groups G of heads.

    Returns:
        Tensor `(count, B, G, R * length, K)`, filled up with zeros.

    Example:
        >>> tuple(split(ops.ones((2, 10, 6, 5)), length=4, count=3, groups=2).shape)
        (3, 2, 2, 12, 5)
    """
    batch, total, heads, width = ops.shape(x)
    x = _filled(x, 1, length * count - total)
    x = ops.reshape(x, (batch, count, length, groups, heads // groups, width))
    x = ops.transpose(x, (1, 0, 3, 4, 2, 5))  # (count, B, G, R, length, K)
    return ops.reshape(x, (count, batch, groups, heads // groups * length, width))


def join(blocks, length, total):
    """Joins what `split` cut.

    Args:
        blocks: Tensor `(count, B, G, R * length, K)`.
        length: Length of a block.
        total: Length of the sequence.

    Returns:
        Tensor `(B, total, H, K)`.

    Example:
        >>> tuple(join(ops.ones((3, 2, 2, 12, 5)), length=4, total=10).shape)
        (2, 10, 6, 5)
    """
    count, batch, groups, rows, width = ops.shape(blocks)
    repeats = rows // length
    x = ops.reshape(blocks, (count, batch, groups, repeats, length, width))
    x = ops.transpose(x, (1, 0, 4, 2, 3, 5))  # (B, count, length, G, R, K)
    x = ops.reshape(x, (batch, count * length, groups * repeats, width))
    return x[:, :total]


def stack(function, blocks, like):
    """Calls a function for one block after the other, and stacks what it gives.

    Args:
        function: Takes the number of a block, and the block of each tensor of
            `blocks`; gives a tuple of tensors.
        blocks: Tuple of tensors with the blocks on the first axis.
        like: Tuple of tensors of the shapes and dtypes of what `function` gives.

    Returns:
        Tuple of tensors with one axis more, the first.

    Example:
        >>> x = ops.ones((3, 2))
        >>> (y,) = stack(lambda number, row: (row * 2,), (x,), (x[0],))
        >>> tuple(y.shape)
        (3, 2)
    """

    def step(_, *numbered):
        return (), function(*numbered)

    return carry_along(step, (), blocks, like)[1]


def carry_along(function, carry, blocks, like):
    """Does what `stack` does, and carries tensors from one block to the next.

    Args:
        function: Takes a tuple of tensors, the number of a block, and the block of each
            tensor of `blocks`; gives a tuple as the first, and a tuple to stack.
        carry: Tuple of tensors, the first to be carried.
        blocks: As for `stack`.
        like: As for `stack`.

    Returns:
        Tuple of the tensors carried past the last block, and the tuple stacked.

    Example:
        >>> def add(carry, number, row):
        ...     return (carry[0] + row,), (carry[0],)
        >>> (total,), (sums,) = carry_along(add, (0.0,), (ops.ones(3),), (0.0,))
        >>> float(total), ops.convert_to_numpy(sums).tolist()
        (3.0, [0.0, 1.0, 2.0])
    """
    given = len(like)

    # Keras stacks only what has the shape and dtype of the carry.
    def step(carried, numbered):
        carry, result = function(carried[given:], *numbered)
        return (*like, *carry), (*result, *carry)

    numbers = ops.arange(ops.shape(blocks[0])[0], dtype="int32")
    carried, stacked = ops.scan(step, (*like, *carry), (numbers, *blocks))
    return carried[given:], stacked[:given]


class Grid:
    """Cuts queries and keys into blocks, and knows what each pair of blocks may see.

    Lengths may be tensors, where a functional model leaves them unknown. The last
    blocks are filled up with zeros; their keys are masked.

    Args:
        query: Float tensor `(B, T, H, K)`.
        key: Float tensor `(B, S, G, K)`.
        mask: Bool tensor of rank 4 that broadcasts to `(B, H, T, S)`, or None.
        causal: Whether query i sees only keys j <= i + offset.
        window: Positive integer, or None.
        offset: Position of the first query among the keys.
        dropout: Fraction of the weights dropped.
        seed: Integer or `keras.random.SeedGenerator` of the dropout.
        block_length: Largest number of queries, and of keys, in a block; None takes
            `MOST_ROWS` and `MOST_COLUMNS`, or about the window.

    Example:
        >>> x = ops.zeros((1, 6, 2, 4))
        >>> grid = Grid(x, x, causal=True, block_length=2)
        >>> [tuple(int(edge) for edge in grid.keys_seen(row)) for row in range(3)]
        [(0, 1), (0, 2), (0, 3)]
    """

    def __init__(
        self,
        query,
        key,
        mask=None,
        causal=False,
        window=None,
        offset=0,
        dropout=0.0,
        seed=None,
        block_length=None,
    ):
        if window is not None:
            arguments.positive_integer("window", window)
        rows, columns = block_length or MOST_ROWS, block_length or MOST_COLUMNS
        if window is not None and block_length is None:
            rows = columns = min(MOST_COLUMNS, max(SHORTEST_BLOCK, window))
        self.target, self.source = ops.shape(query)[1], ops.shape(key)[1]
        self.groups = key.shape[2]
        self.repeats = query.shape[2] // self.groups
        self.rows, self.num_rows = cut(self.target, rows)
        self.columns, self.num_columns = cut(self.source, columns)
        self.offset = offset
        # A query at position p sees key j where nearest <= p - j <= farthest.
        self.farthest = None if window is None else window - 1
        self.nearest = 0 if causal else None if window is None else 1 - window
        self.mask = None if mask is None else self.pairs(self.broadcast(mask))
        self.dropout = dropout
        if dropout > 0.0:
            self._seed = keras.random.randint((), 0, 2**31 - 1, seed=seed)

    def query_blocks(self, x):
        """Cuts `(B, T, H, K)` into `(N, B, G, R * t, K)`."""
        return split(x, self.rows, self.num_rows, self.groups)

    def key_blocks(self, x):
        """Cuts `(B, S, G, K)` into `(M, B, G, s, K)`."""
        return split(x, self.columns, self.num_columns, self.groups)

    def join_queries(self, blocks):
        """Joins `(N, B, G, R * t, K)` to `(B, T, H, K)`."""
        return join(blocks, self.rows, self.target)

    def join_keys(self, blocks):
        """Joins `(M, B, G, s, K)` to `(B, S, G, K)`."""
        return join(blocks, self.columns, self.source)

    def broadcast(self, x):
        """Gives a mask or bias rank 4, and its full length to an axis of unknown one.

        Only what is known to be 1 may be taken for an axis that is shared.
        """
        for _ in range(4 - len(x.shape)):
            x = ops.expand_dims(x, 0)
        if None not in x.shape[1:]:
            return x
        full = (self.groups * self.repeats, self.target, self.source)
        sizes = [
            1 if size == 1 else length
            for size, length in zip(x.shape[1:], full, strict=True)
        ]
        return ops.broadcast_to(x, (ops.shape(x)[0], *sizes))

    def pairs(self, x):
        """Makes a mask or bias `(B, H, T, S)` a tensor of pairs, filled up."""
        batch, _, target, source = ops.shape(x)
        heads = (self.groups, self.repeats) if _is_spread(x, 1) else (1, 1)
        x = ops.reshape(x, (batch, *heads, target, source))
        x = ops.transpose(x, (0, 1, 4, 2, 3))
        if _is_spread(x, 2):
            x = _filled(x, 2, self.columns * self.num_columns - self.source)
        if _is_spread(x, 4):
            x = _filled(x, 4, self.rows * self.num_rows - self.target)
        return x

    def join_pairs(self, tiles, like):
        """Joins tiles `(N, M, B, G, s, R, t)` to `(B, H, T, S)`.

        Along an axis that is 1 in `like`, they are summed.
        """
        shared = [axis for axis in (0, 1) if not _is_spread(like, axis + 2)]
        tiles = ops.sum(tiles, axis=shared, keepdims=True) if shared else tiles
        tiles = ops.transpose(tiles, (2, 3, 5, 0, 6, 1, 4))  # (B, G, R, N, t, M, s)
        batch, groups, repeats, *lengths = ops.shape(tiles)
        target, source = lengths[0] * lengths[1], lengths[2] * lengths[3]
        x = ops.reshape(tiles, (batch, groups * repeats, target, source))
        return x[:, :, : ops.shape(like)[2], : ops.shape(like)[3]]

    def tile(self, x, row, column):
        """Gives the part of pairs `x` for a block of queries and one of keys."""
        if x is None:
            return None
        starts, sizes = [0] * 5, list(ops.shape(x))
        if _is_spread(x, 2):
            starts[2], sizes[2] = column * self.columns, self.columns
        if _is_spread(x, 4):
            starts[4], sizes[4] = row * self.rows, self.rows
        return ops.slice(x, starts, sizes)

    def visible(self, row, column):
        """Gives what a block of queries may see of a block of keys, or None for all.

        Returns:
            Bool tensor that broadcasts to `(B, G, s, R, t)`.
        """
        positions = ops.arange(self.rows, dtype="int32") + row * self.rows
        keys = ops.arange(self.columns, dtype="int32") + column * self.columns
        keys = keys[:, None, None]
        distance = positions + self.offset - keys  # (s, 1, t)
        is_filled = not isinstance(self.source, int) or self.source % self.columns
        return masks.combine_masks(
            self.tile(self.mask, row, column),
            None if self.nearest is None else distance >= self.nearest,
            None if self.farthest is None else distance <= self.farthest,
            keys < self.source if is_filled else None,
        )

    def keys_seen(self, row):
        """Gives the first block of keys that a block of queries sees, and the end."""
        first = row * self.rows + self.offset
        last = first + self.rows - 1
        return _touched(
            None if self.farthest is None else first - self.farthest,
            None if self.nearest is None else last - self.nearest,
            self.columns,
            self.num_columns,
        )

    def seen_by(self, column):
        """Gives the first block of queries that sees a block of keys, and the end."""
        first = column * self.columns - self.offset
        last = first + self.columns - 1
        return _touched(
            None if self.nearest is None else first + self.nearest,
            None if self.farthest is None else last + self.farthest,
            self.rows,
            self.num_rows,
        )

    def kept(self, row, column, like):
        """Gives the factors of dropout, the same whenever a block is computed.

        Args:
            row: Number of the block of queries.
            column: Number of the block of keys.
            like: Float tensor whose shape the factors have.

        Returns:
            Tensor of 0 where a weight is dropped, else 1 / (1 - dropout); 1 for all
            without dropout.
        """
        if self.dropout == 0.0:
            return 1.0
        seed = _Seed((self._seed, row * self.num_columns + column))
        draws = keras.random.uniform(ops.shape(like), seed=seed, dtype=like.dtype)
        return ops.where(draws >= self.dropout, 1.0 / (1.0 - self.dropout), 0.0)


class _Seed(keras.random.SeedGenerator):
    """Hands `keras.random` a seed computed in the program, which it takes no tensor of.

    It has no state: what it is given is what each draw gets.
    """

    def __init__(self, numbers):
        numbers = [ops.cast(number, "int32") for number in numbers]
        self._numbers = ops.cast(
            ops.stack(numbers), _SEED_DTYPES[keras.backend.backend()]
        )

    def next(self, ordered=True):
        """Gives the seed."""
        return self._numbers


_SEED_DTYPES = {"tensorflow": "int32", "jax": "uint32", "torch": "int32"}


def _is_spread(x, axis):
    return x.shape[axis] != 1


def _filled(x, axis, missing):
    """Adds zeros at the end of an axis."""
    if isinstance(missing, int) and missing == 0:
        return x
    return ops.pad(x, [(0, missing if i == axis else 0) for i in range(len(x.shape))])


def _touched(low, high, length, count):
    """Gives the first block that holds a position from low to high, and the end."""

    def number(position):
        blocks = ops.convert_to_tensor(position // length, "int32")
        return ops.clip(blocks, 0, count)

    first = 0 if low is None else number(low)
    return first, count if high is None else number(high + length)
