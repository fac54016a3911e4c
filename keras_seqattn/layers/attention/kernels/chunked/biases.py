"""Biases of the chunked kernel, made and differentiated one block at a time.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G; N query blocks of t queries, M key/value blocks of s keys.
"""

from collections.abc import Callable

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.layers.attention.kernels.chunked.blocks import map_blocks
from keras_seqattn.layers.attention.kernels.chunked.pairs import BlockPairs
from keras_seqattn.layers.distances import relative_shift, relative_unshift


class BlockTensorBias:
    """A bias that is a tensor of rank 4, which broadcasts to `(B, H, T, S)`."""

    def __init__(self, pairs: BlockPairs, values: Tensor) -> None:
        self._pairs, self._values = pairs, values
        self._keys_first = pairs.put_keys_first(values)

    def block(self, i: int | Tensor, j: int | Tensor) -> Tensor:
        """Returns a block, which broadcasts to `(B, G, s, R, t)`."""
        return self._pairs.block(self._keys_first, i, j)

    def gradient(
        self, ds: Callable[..., Tensor], q_blocks: tuple[Tensor, ...]
    ) -> Tensor:
        """Computes d_bias[i, j] = ds[i, j], summed where the bias is broadcast.

        `ds` computes a block `(B, G, s, R, t)` of the scores' gradient from i, j and
        the blocks i of `q_blocks`, which have the query blocks on the first axis. The
        result is in float32. It has a place for each pair, so all pairs are visited; ds
        is 0 for those that do not see each other.
        """
        count = self._pairs.kv.count
        kv_numbers = ops.arange(count, dtype="int32")
        broadcast = [axis for axis in range(5) if self._keys_first.shape[axis] == 1]
        like_block = ops.zeros_like(self.block(0, 0), dtype="float32")
        like_row = ops.zeros((count, *ops.shape(like_block)), "float32")

        def of_q_block(i, *q_block):
            def of_pair(j, _):
                return (ops.sum(ds(i, j, *q_block), axis=broadcast, keepdims=True),)

            # `kv_numbers` only gives the number of blocks.
            return map_blocks(of_pair, (kv_numbers,), (like_block,))

        (x,) = map_blocks(of_q_block, q_blocks, (like_row,))  # (N, M, B, G, s, R, t)
        _, _, target, source = ops.shape(self._values)
        # If one value serves all queries, or all keys, each block adds a part of its
        # gradient.
        in_parts = [axis for axis in (0, 1) if self._values.shape[axis + 2] == 1]
        x = ops.sum(x, axis=in_parts, keepdims=True) if in_parts else x
        x = ops.transpose(x, (2, 3, 5, 0, 6, 1, 4))  # (B, G, R, N, t, M, s)
        batch, groups, repeats, n, t, m, s = ops.shape(x)
        x = ops.reshape(x, (batch, groups * repeats, n * t, m * s))
        return x[:, :, :target, :source]


class BlockDistanceBias:
    """A bias `(H or 1, T + S - 1)`, a value for each distance: see `DistanceBias`."""

    def __init__(self, pairs: BlockPairs, values: Tensor) -> None:
        self._pairs, self._distances = pairs, ops.shape(values)[1]
        is_shared = values.shape[0] == 1
        self._heads = (1, 1) if is_shared else (pairs.groups, pairs.repeats)
        self._summed_axes = (0, 1, 3) if is_shared else (0,)
        # In a block, rows are keys and columns are queries. So `relative_shift` needs
        # query i and key j (not blocks) at i - j + S - 1, where `values` has them at
        # j - i + T - 1: hence the flip. S and T then grow to whole blocks: padding of
        # keys adds distances at the front, padding of queries at the end.
        padding = ((0, 0), (pairs.kv.padding, pairs.q.padding))
        self._flipped = ops.pad(ops.flip(values, 1), padding)

    def block(self, i: int | Tensor, j: int | Tensor) -> Tensor:
        """Returns a block `(1, G, s, R, t)`, or `(1, 1, s, 1, t)`."""
        x = relative_shift(self._slice(self._flipped, i, j), self._pairs.kv.length)
        x = ops.reshape(x, (1, *self._heads, *ops.shape(x)[1:]))  # (1, G, R, s, t)
        return ops.swapaxes(x, 2, 3)

    def gradient(
        self, ds: Callable[..., Tensor], q_blocks: tuple[Tensor, ...]
    ) -> Tensor:
        """Sums the ds of each distance, in float32: see `BlockTensorBias`."""
        heads = self._flipped.shape[0]

        def add_q_block(i, d_flipped):
            q_block = [x[i] for x in q_blocks]

            def add_pair(j, d_flipped):
                x = ops.sum(ds(i, j, *q_block), axis=self._summed_axes, keepdims=True)
                x = ops.swapaxes(x, 2, 3)  # (1, G, R, s, t)
                x = relative_unshift(ops.reshape(x, (heads, *ops.shape(x)[3:])))
                x = self._slice(d_flipped, i, j) + x
                return ops.slice_update(d_flipped, (0, self._start(i, j)), x)

            return ops.fori_loop(*self._pairs.kv_range(i), add_pair, d_flipped)

        zeros = ops.zeros_like(self._flipped, dtype="float32")
        d_flipped = ops.fori_loop(0, self._pairs.q.count, add_q_block, zeros)
        padding = self._pairs.kv.padding
        return ops.flip(d_flipped[:, padding : padding + self._distances], 1)

    def _start(self, i, j):
        """Returns where a block's distances begin in the flipped values.

        They begin with its first query, i * t, and its last key, (j + 1) * s - 1.
        """
        kv = self._pairs.kv
        return (kv.count - 1 - j) * kv.length + i * self._pairs.q.length

    def _slice(self, x, i, j):
        size = self._pairs.q.length + self._pairs.kv.length - 1
        return ops.slice(x, (0, self._start(i, j)), (x.shape[0], size))
