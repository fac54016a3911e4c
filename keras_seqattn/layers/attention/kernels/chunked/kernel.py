"""Attention block by block: O(T + S) memory, for sequences of any length.

The scores of one block of queries with one of keys exist at a time. Over the blocks of
keys, the softmax is renormalized whenever a larger score is met; the backward pass
computes each block of scores anew, from the logarithm of each row's sum.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G, K key_dim, V value_dim; N blocks of t queries, M blocks of s keys.
"""

import functools

import keras
from keras import ops

from keras_seqattn.backend import autodiff
from keras_seqattn.layers.attention.distances import DistanceBias
from keras_seqattn.layers.attention.kernels.chunked.grid import Grid, carry_along, stack
from keras_seqattn.layers.attention.kernels.chunked.tiles import (
    DistanceTiles,
    PairTiles,
)
from keras_seqattn.layers.attention.kernels.explicit import MASKED_SCORE, widened

# Stands for the logarithm of an empty row's sum: each weight made with it is zero.
EMPTY_ROW = 1e30


def chunked_attention(query, key, value, *, mask=None, bias=None, **options):
    """Computes `dot_product_attention` in blocks, forward and backward.

    A block of scores that `causal` or `window` hides is not computed. Lengths need not
    be multiples of a block, and may be unknown in a functional model.

    Args:
        query: Float tensor `(B, T, H, K)`, scaled already.
        key: Float tensor `(B, S, G, K)`.
        value: Float tensor `(B, S, G, V)`.
        mask: Bool tensor of rank 4 that broadcasts to `(B, H, T, S)`, or None; it is
            not broadcast as a whole.
        bias: Float tensor that broadcasts to `(B, H, T, S)`, a `DistanceBias`, of which
            not all pairs are made, or None.
        **options: `causal`, `window`, `offset`, `dropout` and `seed` as in
            `dot_product_attention`, and `block_length`: see `Grid`.

    Returns:
        Float tensor `(B, T, H, V)` in the dtype of `query`, zero where a query may
        attend to nothing.

    Example:
        >>> x = ops.ones((1, 6, 2, 4))
        >>> tuple(chunked_attention(x, x, x, causal=True, block_length=4).shape)
        (1, 6, 2, 4)

    Reference:
        Rabe & Staats 2021; for the backward pass Dao et al. 2022, algorithm 4. Differs:
        within a window, it goes over the blocks twice.
    """
    grid = Grid(query, key, mask, **options)
    key, value = (ops.cast(x, query.dtype) for x in (key, value))
    make_tiles, learned, constant = _biases(grid, bias)

    @autodiff.custom_gradient
    def attend(query, key, value, *biases):
        keys = grid.key_blocks(key), grid.key_blocks(value)
        weighing = _Weighing(grid, *keys, *map(make_tiles, biases or constant))
        queries = grid.query_blocks(query)
        output, log_sums = weighing.output(queries)

        def gradient(upstream):
            rows = _rows(queries, grid.query_blocks(upstream), output, log_sums)
            by_queries, *by_keys = weighing.gradients(rows)
            gradients = [
                grid.join_queries(by_queries),
                *(grid.join_keys(blocks) for blocks in by_keys),
                *(weighing.bias_gradient(rows) for _ in biases),
            ]
            inputs = (query, key, value, *biases)
            return tuple(
                ops.cast(x, given.dtype)
                for x, given in zip(gradients, inputs, strict=True)
            )

        return ops.cast(grid.join_queries(output), query.dtype), gradient

    return attend(query, key, value, *learned)


def _biases(grid, bias):
    """Gives what makes tiles of a bias, and the bias as one of two tuples of tensors.

    The first is of those that want a gradient, the second of those that want none.
    """
    if bias is None:
        return None, (), ()
    if not isinstance(bias, DistanceBias):
        pairs = grid.broadcast(ops.convert_to_tensor(bias))
        return functools.partial(PairTiles, grid), (pairs,), ()
    make_tiles, values = functools.partial(DistanceTiles, grid), (bias.values,)
    return (make_tiles, values, ()) if bias.learned else (make_tiles, (), values)


def _rows(queries, upstream, output, log_sums):
    """Gives what the backward pass needs of each block of queries.

    The last is what each row's gradients share: sum_s weight * d_weight, which equals
    output . upstream.
    """
    shares = ops.sum(output * ops.cast(upstream, "float32"), axis=-1)
    return queries, upstream, log_sums, shares[..., None, :]


class _Weighing:
    """Weighs values, and differentiates it, with one block of scores at a time.

    A block is `(B, G, s, R * t)`: with the keys first, no product of matrices wants it
    turned.

    Args:
        grid: The `Grid` of the sequences.
        keys: Blocks `(M, B, G, s, K)`.
        values: Blocks `(M, B, G, s, V)`.
        bias: `PairTiles` or `DistanceTiles`, or None.
    """

    def __init__(self, grid, keys, values, bias=None):
        self._grid, self._keys, self._values, self._bias = grid, keys, values, bias

    def output(self, queries):
        """Gives the weighted values `(N, B, G, R * t, V)`, and the rows' log sums."""
        batch, groups, rows, _ = ops.shape(queries[0])
        blank = ops.zeros((batch, groups, 1, rows), "float32")
        nothing = ops.zeros((batch, groups, self._values.shape[-1], rows), "float32")

        def attend(row, query):
            def see(column, state):
                return self._see(row, column, query, *state)

            edges = self._grid.keys_seen(row)
            start = blank + MASKED_SCORE, blank, nothing
            peak, total, output = ops.fori_loop(*edges, see, start)
            seen = peak > MASKED_SCORE
            total = ops.where(seen, total, 1.0)
            log_sum = ops.where(seen, peak + ops.log(total), EMPTY_ROW)
            return ops.where(seen, output / total, 0.0), log_sum

        output, log_sums = stack(attend, (queries,), (nothing, blank))
        return ops.swapaxes(output, -1, -2), log_sums

    def gradients(self, rows):
        """Gives those of the queries `(N, B, G, R * t, K)`, the keys and the values.

        Within a window, a block sees few of the others: queries gather from keys, then
        keys from queries, and the scores are made twice. Without one they are made
        once, and each block of keys adds to the gradient of all queries.
        """
        if self._grid.farthest is None:
            of_queries, *of_keys = self._one_pass(rows)
        else:
            of_queries, of_keys = self._query_gradients(rows), self._key_gradients(rows)
        return ops.swapaxes(of_queries, -1, -2), *of_keys

    def bias_gradient(self, rows):
        """Gives the gradient of the bias."""

        def differentiate(row, column, *block):
            return self._unfold(self._differentiate(row, column, *block)[1])

        return self._bias.gradient(differentiate, rows)

    def _one_pass(self, rows):
        """Gives all gradients, the queries' `(N, B, G, K, R * t)`, from one pass."""

        def gather(column, totals):
            of_queries, *of_keys = totals
            of_queries, *blocks = self._add_keys(column, of_queries, rows)
            return of_queries, *(
                ops.slice_update(total, (column, 0, 0, 0, 0), block[None])
                for total, block in zip(of_keys, blocks, strict=True)
            )

        totals = (ops.swapaxes(rows[0], -1, -2), self._keys, self._values)
        totals = tuple(ops.zeros_like(x, dtype="float32") for x in totals)
        return ops.fori_loop(0, self._grid.num_columns, gather, totals)

    def _add_keys(self, column, of_queries, rows):
        """Adds a block of keys to the gradient of the queries, and gives its own."""
        first, end = self._grid.seen_by(column)

        def see(of_keys, row, of_query, *block):
            def differentiate():
                pair = self._differentiate(row, column, *block)
                return (
                    self._add_to_query(of_query, column, pair),
                    *self._add_to_keys(of_keys, pair, *block),
                )

            if self._grid.nearest is None:
                of_query, *own = differentiate()
            else:
                is_seen = ops.logical_and(first <= row, row < end)
                unchanged = of_query, *of_keys
                of_query, *own = ops.cond(is_seen, differentiate, lambda: unchanged)
            return tuple(own), (of_query,)

        blocks = self._keys[0], self._values[0]
        nothing = tuple(ops.zeros_like(x, dtype="float32") for x in blocks)
        of_keys, (of_queries,) = carry_along(
            see, nothing, (of_queries, *rows), (of_queries[0],)
        )
        return of_queries, *of_keys

    def _query_gradients(self, rows):
        """Gives the gradient of the queries, `(N, B, G, K, R * t)`."""
        query = ops.swapaxes(rows[0][0], -1, -2)
        nothing = ops.zeros_like(query, dtype="float32")

        def gather(row, *block):
            def see(column, total):
                pair = self._differentiate(row, column, *block)
                return self._add_to_query(total, column, pair)

            return (ops.fori_loop(*self._grid.keys_seen(row), see, nothing),)

        return stack(gather, rows, (nothing,))[0]

    def _key_gradients(self, rows):
        """Gives the gradients of the keys and values, `(M, B, G, s, K)` and V."""
        blocks = self._keys, self._values
        nothing = tuple(ops.zeros_like(x[0], dtype="float32") for x in blocks)

        def gather(column, *_):
            def be_seen(row, totals):
                block = [x[row] for x in rows]
                pair = self._differentiate(row, column, *block)
                return self._add_to_keys(totals, pair, *block)

            return ops.fori_loop(*self._grid.seen_by(column), be_seen, nothing)

        return stack(gather, blocks, nothing)

    def _add_to_query(self, total, column, pair):
        """Adds a block of keys to the gradient of one of queries."""
        _, d_scores = pair
        return total + _product(ops.swapaxes(self._keys[column], -1, -2), d_scores)

    def _add_to_keys(self, totals, pair, query, upstream, *_):
        """Adds a block of queries to the gradients of one of keys and values."""
        weights, d_scores = pair
        of_key, of_value = totals
        return (
            of_key + _product(d_scores, query),
            of_value + _product(weights, upstream),
        )

    def _see(self, row, column, query, peak, total, output):
        """Takes one more block of keys into the online softmax."""
        scores = self._scores(row, column, query)
        highest = ops.maximum(peak, _highest(scores))
        weights, fading = ops.exp(scores - highest), ops.exp(peak - highest)
        total = total * fading + ops.sum(weights, axis=-2, keepdims=True)
        weights = weights * self._grid.kept(row, column, weights)
        values = self._values[column]
        if keras.backend.standardize_dtype(values.dtype) == "float16":
            # Not yet divided by their sum, the weighted values may overflow.
            values = ops.cast(values, "float32")
        added = _product(ops.swapaxes(values, -1, -2), weights)
        return highest, total, output * fading + added

    def _differentiate(self, row, column, query, upstream, log_sum, share):
        """Gives one block of weights after dropout, and the scores' gradient."""
        weights = ops.exp(self._scores(row, column, query) - log_sum)
        kept = self._grid.kept(row, column, weights)
        d_weights = _product(self._values[column], ops.swapaxes(upstream, -1, -2))
        return weights * kept, weights * (d_weights * kept - share)

    def _scores(self, row, column, query):
        """Gives one block of masked scores, float32 `(B, G, s, R * t)`."""
        key, query = widened(self._keys[column]), widened(query)
        scores = ops.cast(ops.matmul(key, ops.swapaxes(query, -1, -2)), "float32")
        bias = None if self._bias is None else self._bias.tile(row, column)
        visible = self._grid.visible(row, column)
        if bias is None and visible is None:
            return scores
        pairs = self._unfold(scores)
        if bias is not None:
            pairs = pairs + ops.cast(bias, "float32")
        if visible is not None:
            pairs = ops.where(visible, pairs, MASKED_SCORE)
        return ops.reshape(pairs, ops.shape(scores))

    def _unfold(self, scores):
        """Turns `(B, G, s, R * t)` into `(B, G, s, R, t)`."""
        batch, groups, columns, rows = ops.shape(scores)
        repeats = self._grid.repeats
        shape = (batch, groups, columns, repeats, rows // repeats)
        return ops.reshape(scores, shape)


def _product(left, right):
    """Multiplies in the dtype of what is not float32, and gives float32."""
    is_wide = keras.backend.standardize_dtype(left.dtype) == "float32"
    dtype = right.dtype if is_wide else left.dtype
    product = ops.matmul(ops.cast(left, dtype), ops.cast(right, dtype))
    return ops.cast(product, "float32")


def _highest(scores):
    """Returns the largest score of each query; of an empty batch, nothing."""
    return ops.max(scores, axis=-2, keepdims=True, initial=MASKED_SCORE)
