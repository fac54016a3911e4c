"""What is added to the scores of chunked attention, one tile of pairs at a time.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G; N blocks of t queries, M blocks of s keys.
"""

from keras import ops

from keras_seqattn.layers.attention import distances
from keras_seqattn.layers.attention.kernels.chunked.grid import stack


class PairTiles:
    """Tiles of a bias that has a number for each pair.

    Args:
        grid: The `Grid` of the sequences.
        bias: Float tensor of rank 4 that broadcasts to `(B, H, T, S)`.
    """

    def __init__(self, grid, bias):
        self._grid, self._bias = grid, bias
        self._pairs = grid.pairs(bias)

    def tile(self, row, column):
        """Gives a tile, which broadcasts to `(B, G, s, R, t)`."""
        return self._grid.tile(self._pairs, row, column)

    def gradient(self, differentiate, rows):
        """Gives the gradient of the bias, summed over the axes it is broadcast along.

        Args:
            differentiate: Gives a tile `(B, G, s, R, t)` of the scores' gradient from
                the numbers of a block of queries and one of keys, and the former.
            rows: Tuple of tensors with the blocks of queries on the first axis.

        Returns:
            Float32 tensor of the shape of the bias.
        """
        grid, pairs = self._grid, self._pairs
        nothing = ops.zeros_like(self.tile(0, 0), dtype="float32")
        shared = [axis for axis in range(5) if pairs.shape[axis] == 1]
        numbers = ops.arange(grid.num_columns, dtype="int32")

        def gather(row, *block):
            def tile(column, _):
                d_scores = differentiate(row, column, *block)
                return (ops.sum(d_scores, axis=shared, keepdims=True),)

            return stack(tile, (numbers,), (nothing,))

        across = ops.zeros((grid.num_columns, *ops.shape(nothing)), "float32")
        tiles = stack(gather, rows, (across,))[0]  # (N, M, B, G, s, R, t)
        return grid.join_pairs(tiles, self._bias)


class DistanceTiles:
    """Tiles of a bias that has a number for each distance of key and query.

    Args:
        grid: The `Grid` of the sequences.
        values: Float tensor `(H, T + S - 1)`, or `(1, T + S - 1)`: see `DistanceBias`.
    """

    def __init__(self, grid, values):
        self._grid = grid
        is_shared = values.shape[0] == 1
        self._heads = (1, 1) if is_shared else (grid.groups, grid.repeats)
        self._summed = (0, 1, 3) if is_shared else (0,)
        # From the farthest key back, with the distances of what fills up the last
        # blocks, too.
        self._before = grid.columns * grid.num_columns - grid.source
        after = grid.rows * grid.num_rows - grid.target
        self._distances = ops.shape(values)[1]
        self._values = ops.pad(ops.flip(values, 1), ((0, 0), (self._before, after)))

    def tile(self, row, column):
        """Gives a tile `(1, G, s, R, t)`, or `(1, 1, s, 1, t)`."""
        grid = self._grid
        start, size = self._place(row, column)
        values = ops.slice(self._values, (0, start), (self._values.shape[0], size))
        tile = distances.relative_shift(values, grid.columns)  # (H or 1, s, t)
        tile = ops.reshape(tile, (1, *self._heads, *ops.shape(tile)[1:]))
        return ops.swapaxes(tile, 2, 3)

    def gradient(self, differentiate, rows):
        """Gives the gradient of the values, a float32 tensor of their shape.

        Args:
            differentiate: As in `PairTiles.gradient`.
            rows: As there.
        """
        grid = self._grid
        heads = self._values.shape[0]

        def gather(row, total):
            block = [x[row] for x in rows]

            def add(column, total):
                pairs = differentiate(row, column, *block)
                pairs = ops.sum(pairs, axis=self._summed, keepdims=True)
                pairs = ops.swapaxes(pairs, 2, 3)
                pairs = ops.reshape(pairs, (heads, *ops.shape(pairs)[3:]))
                start, size = self._place(row, column)
                sums = ops.slice(total, (0, start), (heads, size))
                sums = sums + distances.relative_unshift(pairs)
                return ops.slice_update(total, (0, start), sums)

            return ops.fori_loop(*grid.keys_seen(row), add, total)

        total = ops.zeros_like(self._values, dtype="float32")
        total = ops.fori_loop(0, grid.num_rows, gather, total)
        total = total[:, self._before : self._before + self._distances]
        return ops.flip(total, 1)

    def _place(self, row, column):
        """Gives where the distances of a tile begin, and how many they are."""
        grid = self._grid
        columns = (grid.num_columns - 1 - column) * grid.columns
        start = columns + row * grid.rows
        return start, grid.rows + grid.columns - 1
