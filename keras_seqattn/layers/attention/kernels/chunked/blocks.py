"""Sequences as blocks: cutting them, joining them and looping over them.

Shapes: B batch, L length of a sequence, H heads in G groups, R = H / G, K width.
"""

from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_seqattn.annotations import Tensor


class Blocks(NamedTuple):
    """A sequence as blocks of equal length, the last one padded with zeros.

    `total` is the length of the sequence and `count` the number of blocks: integers, or
    scalar tensors if a functional model leaves the length unknown.

    Example:
        >>> Blocks.of(10, longest=4)
        Blocks(total=10, length=4, count=3)
    """

    total: int | Tensor
    length: int
    count: int | Tensor

    @classmethod
    def of(cls, total: int | Tensor, longest: int) -> "Blocks":
        """Returns the fewest blocks that `longest` allows, as short as they can be."""
        # A tensor or, in an export of JAX, a symbolic dimension, which `maximum` does
        # not take. `length` must be an integer all the same.
        if not isinstance(total, int):
            count = -(-total // longest)
            if ops.is_tensor(count):
                count = ops.maximum(count, 1)
            return cls(total, longest, count)
        count = max(1, -(-total // longest))
        return cls(total, max(1, -(-total // count)), count)

    @property
    def padding(self) -> int | Tensor:
        """Number of positions by which the last block is longer than its content."""
        return self.length * self.count - self.total

    def pad(self, x: Tensor, axis: int) -> Tensor:
        """Pads an axis of length `total` to that of all blocks."""
        padding = self.padding
        if isinstance(padding, int) and padding == 0:
            return x
        rank = len(x.shape)
        return ops.pad(x, [(0, padding if i == axis else 0) for i in range(rank)])

    def split(self, x: Tensor, groups: int) -> Tensor:
        """Cuts `(B, L, H, K)` into `(count, B, G, R * length, K)`.

        The R heads of a group are stacked as rows, so that one product with the keys
        they share serves all of them.
        """
        batch, _, heads, width = ops.shape(x)
        repeats = heads // groups
        x = self.pad(x, axis=1)
        x = ops.reshape(x, (batch, self.count, self.length, groups, repeats, width))
        x = ops.transpose(x, (1, 0, 3, 4, 2, 5))  # (count, B, G, R, length, K)
        shape = (self.count, batch, groups, repeats * self.length, width)
        return ops.reshape(x, shape)

    def join(self, x: Tensor) -> Tensor:
        """Joins what `split` cut, `(count, B, G, R * length, K)` to `(B, L, H, K)`."""
        _, batch, groups, rows, width = ops.shape(x)
        repeats = rows // self.length
        x = ops.reshape(x, (self.count, batch, groups, repeats, self.length, width))
        x = ops.transpose(x, (1, 0, 4, 2, 3, 5))  # (B, count, length, G, R, K)
        shape = (batch, self.count * self.length, groups * repeats, width)
        return ops.reshape(x, shape)[:, : self.total]

    def blocks_between(
        self, low: int | Tensor | None, high: int | Tensor | None
    ) -> tuple[int | Tensor, int | Tensor]:
        """Returns the range of blocks that positions `low` to `high` lie in.

        The range is its first block and the one after its last. Both positions are
        included, and may lie outside the sequence; None is its own start or end.
        """

        def block_of(position):
            block = ops.convert_to_tensor(position // self.length, "int32")
            return ops.clip(block, 0, self.count)

        first = 0 if low is None else block_of(low)
        # Position `high + length` lies in the block after that of `high`.
        end = self.count if high is None else block_of(high + self.length)
        return first, end


def map_blocks(
    function: Callable[..., tuple], blocks: tuple[Tensor, ...], like: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Calls `function(number, *block)` for each block in turn; stacks the results.

    The blocks are on the first axis of each of `blocks`. The function returns a tuple
    of tensors, which have the shapes and dtypes of `like`.
    """

    def step(_, *number_and_block):
        return (), function(*number_and_block)

    return scan_blocks(step, (), blocks, like)[1]


def scan_blocks(
    function: Callable[..., tuple],
    carry: tuple[Tensor, ...],
    blocks: tuple[Tensor, ...],
    like: tuple[Tensor, ...],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Does what `map_blocks` does, and carries tensors from one block to the next.

    `function(carry, number, *block)` returns the tensors to carry on and a tuple of
    results. Returns what the last block carried on, and the stacked results.

    Example:
        >>> def add(carry, number, row):
        ...     return (carry[0] + row,), (carry[0],)
        >>> (total,), (sums,) = scan_blocks(add, (0.0,), (ops.ones(3),), (0.0,))
        >>> float(total), ops.convert_to_numpy(sums).tolist()
        (3.0, [0.0, 1.0, 2.0])
    """
    num_results = len(like)

    # On TensorFlow `ops.scan` stacks only what has the shapes and dtypes of the carry.
    # So both are (results, carry). In what is carried, `like` stands for the results;
    # of what is stacked, the carries are dropped.
    def step(carried, block):
        carry, result = function(carried[num_results:], *block)
        return (*like, *carry), (*result, *carry)

    def step_of_number(carried, number):
        return step(carried, (number, *(x[number] for x in blocks)))

    numbers = ops.arange(ops.shape(blocks[0])[0], dtype="int32")
    start = (*like, *carry)
    if blocks[0].shape[0] is None:
        # On TensorFlow `ops.scan` takes several tensors only if their length is known.
        carried, stacked = ops.scan(step_of_number, start, numbers)
    else:
        carried, stacked = ops.scan(step, start, (numbers, *blocks))
    return carried[num_results:], stacked[:num_results]
