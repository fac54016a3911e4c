"""Attention block by block: O(T + S) memory, for sequences of any length.

    forward: FlashAttention-2, algorithm 1, with the keys first in a block of scores s,
    so that no product needs it transposed
        for each query block i:
            row_max, row_sum, acc = -1e30, 0, 0
            for each key/value block j that i sees:
                s = k[j] q[i]^T + bias[i, j], masked
                row_max, rescale = max(row_max, s), exp(old row_max - new row_max)
                p = exp(s - row_max)
                row_sum = rescale * row_sum + sum(p)
                acc = rescale * acc + v[j]^T (p * dropout[i, j])
            o[i], logsumexp[i] = (acc / row_sum)^T, row_max + log(row_sum)

    kept for the backward pass: q, k, v, o, logsumexp and the dropout's seed; the scores
    s and the dropout are computed again

    backward: FlashAttention-2, algorithm 2, from do, the gradient of o
        delta = sum(o * do)  # the sum over keys of p * dp, without all the scores
        for each pair of a query block i and a key/value block j that i sees, in the
        order of `_backward_once` or `_backward_twice`:
            p = exp(s - logsumexp[i])
            ds = p * (v[j] do[i]^T * dropout[i, j] - delta[i])
            dq[i]^T += k[j]^T ds
            dk[j] += ds q[i]
            dv[j] += (p * dropout[i, j]) do[i]
        where the bias is learned, for each pair, with ds computed once more:
            dbias[i, j] += ds

Only `causal` and `window` determine which blocks see each other: a mask hides keys in a
block, but no block is skipped for it. `pairs.py` has these, the masks and the dropout;
`biases.py` makes bias[i, j] and dbias; `blocks.py` cuts sequences into blocks and loops
over them.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G, K key_dim, V value_dim; N query blocks of t queries, M key/value blocks of s
keys. q and do are `(N, B, G, R * t, K or V)`, k and v `(M, B, G, s, K or V)`. In shapes
s is that length; in formulas and code it is a block of scores `(B, G, s, R * t)`. A row
is one query of one head, as in the papers: a row of q, do and o, but, since the keys
come first, a column of s. So row_max, row_sum and logsumexp are `(B, G, 1, R * t)`.

Reference:
    Milakov & Gimelshein 2018, algorithm 3 (the softmax, block by block); Rabe & Staats
    2021 (attention with it); Dao et al. 2022, algorithm 4 (FlashAttention's backward
    pass); Dao 2023 (FlashAttention-2: logsumexp). Differs: each head's scores of a
    block fit the cache of a CPU's core; within a window, the backward pass goes over
    the blocks twice.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import autodiff
from keras_seqattn.backend.ops import largest
from keras_seqattn.layers.attention.kernels.chunked.biases import (
    BlockDistanceBias,
    BlockTensorBias,
)
from keras_seqattn.layers.attention.kernels.chunked.blocks import (
    map_blocks,
    scan_blocks,
)
from keras_seqattn.layers.attention.kernels.chunked.pairs import BlockPairs
from keras_seqattn.layers.attention.kernels.explicit import MASKED_SCORE, widen
from keras_seqattn.layers.distances import DistanceBias

# The logsumexp of a row that sees nothing: each weight computed with it is zero.
EMPTY_ROW = 1e30


def chunked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    bias: DistanceBias | Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Computes `dot_product_attention` of a scaled query, block by block.

    A block of scores that `causal` or `window` hides is not computed, except for the
    gradient of a tensor `bias`, which has a place for each pair. Lengths need not be
    multiples of a block, and may be unknown in a functional model. The mask, of rank 4,
    and a `DistanceBias` are expanded one block at a time. The options are those of
    `BlockPairs`.
    """
    pairs = BlockPairs(query, key, **options)
    make_bias, learned = _bias_of_blocks(pairs, bias)

    @autodiff.custom_gradient
    def attend(query, key, value, *learned):
        q = pairs.q.split(query, pairs.groups)
        k, v = (pairs.kv.split(x, pairs.groups) for x in (key, value))
        block_bias = make_bias(*learned)
        scores = functools.partial(_scores, pairs, block_bias, k)
        o, logsumexp = _forward(pairs, scores, q, v)

        def gradient(upstream):
            do = pairs.q.split(upstream, pairs.groups)
            # (N, B, G, 1, R * t)
            delta = ops.sum(o * ops.cast(do, "float32"), axis=-1)[..., None, :]
            q_blocks = q, do, logsumexp, delta
            dropped_and_ds = functools.partial(_dropped_and_ds, pairs, scores, v)
            gradients = _backward(
                pairs, dropped_and_ds, q_blocks, k, v, block_bias if learned else None
            )
            inputs = query, key, value, *learned
            return tuple(
                ops.cast(dx, x.dtype) for dx, x in zip(gradients, inputs, strict=True)
            )

        return ops.cast(pairs.q.join(o), query.dtype), gradient

    return attend(query, key, value, *learned)


def _bias_of_blocks(pairs, bias):
    """Returns a function from learned tensors to the bias of blocks, and these tensors.

    `attend` takes these tensors as arguments, since only arguments get a gradient. A
    plain tensor always counts as learned, since it does not say; the values of a
    `DistanceBias` that is not learned are closed over.
    """
    if bias is None:
        return lambda: None, ()
    if not isinstance(bias, DistanceBias):
        values = pairs.broadcast(ops.convert_to_tensor(bias))
        return functools.partial(BlockTensorBias, pairs), (values,)
    if bias.learned:
        return functools.partial(BlockDistanceBias, pairs), (bias.values,)
    return functools.partial(BlockDistanceBias, pairs, bias.values), ()


def _forward(pairs, scores, q, v):
    """Computes o `(N, B, G, R * t, V)` and logsumexp `(N, B, G, 1, R * t)`."""
    batch, groups, rows, _ = ops.shape(q[0])
    zero_row = ops.zeros((batch, groups, 1, rows), "float32")
    zero_acc = ops.zeros((batch, groups, v.shape[-1], rows), "float32")

    def of_q_block(i, q_i):
        def add_kv_block(j, state):
            row_max, row_sum, acc = state
            s = scores(i, j, q_i)  # (B, G, s, R * t)
            # An empty batch has no largest score: hence the last argument.
            new_max = ops.maximum(row_max, largest(s, -2, MASKED_SCORE))
            p, rescale = ops.exp(s - new_max), ops.exp(row_max - new_max)
            row_sum = row_sum * rescale + ops.sum(p, axis=-2, keepdims=True)
            dropped = p * pairs.dropout(i, j, p)
            # Widened, since the weights are not divided by their sum yet: their
            # products with values could overflow float16.
            v_j = ops.swapaxes(widen(v[j]), -1, -2)  # (B, G, V, s)
            return new_max, row_sum, acc * rescale + _matmul(v_j, dropped)

        # While a row has seen only hidden keys, row_max is MASKED_SCORE and each of
        # them weighs exp(0) = 1. The first visible key makes `rescale` 0, which erases
        # them.
        start = zero_row + MASKED_SCORE, zero_row, zero_acc
        row_max, row_sum, acc = ops.fori_loop(*pairs.kv_range(i), add_kv_block, start)
        sees_any = ops.logical_not(row_max <= MASKED_SCORE)  # keeps NaN
        row_sum = ops.where(sees_any, row_sum, 1.0)
        logsumexp = ops.where(sees_any, row_max + ops.log(row_sum), EMPTY_ROW)
        return ops.where(sees_any, acc / row_sum, 0.0), logsumexp

    o, logsumexp = map_blocks(of_q_block, (q,), (zero_acc, zero_row))
    return ops.swapaxes(o, -1, -2), logsumexp


def _backward(pairs, dropped_and_ds, q_blocks, k, v, learned_bias):
    """Computes the gradients of query, key and value, and of a learned bias."""
    backward = _backward_twice if pairs.is_windowed else _backward_once
    dq, dk, dv = backward(pairs, dropped_and_ds, q_blocks, k, v)
    dq = ops.swapaxes(dq, -1, -2)  # (N, B, G, R * t, K)
    gradients = pairs.q.join(dq), pairs.kv.join(dk), pairs.kv.join(dv)
    if learned_bias is None:
        return gradients

    def ds(i, j, *q_block):
        return pairs.split_heads(dropped_and_ds(i, j, *q_block)[1])

    return *gradients, learned_bias.gradient(ds, q_blocks)


def _backward_once(pairs, dropped_and_ds, q_blocks, k, v):
    """Computes dq `(N, B, G, K, R * t)`, dk and dv; visits each pair of blocks once.

    For each key/value block it loops over all query blocks; those that do not see the
    key/value block add nothing. Not for a window.
    """

    def add_kv_block(j, gradients):
        dq, dk, dv = gradients
        first, _ = pairs.q_range(j)  # There is no window: all later ones see j too.

        def add_q_block(dkv_j, i, dq_i, *q_block):
            def add():
                dropped, ds = dropped_and_ds(i, j, *q_block)
                return dq_i + _dq(k[j], ds), *_add_dkv(dkv_j, dropped, ds, *q_block)

            if pairs.sees_all:  # On torch `cond` would wait for the device.
                dq_i, *dkv_j = add()
            else:
                dq_i, *dkv_j = ops.cond(first <= i, add, lambda: (dq_i, *dkv_j))
            return tuple(dkv_j), (dq_i,)

        # dq goes in a block at a time, and comes out stacked. Carried as a whole, it
        # would be copied in each step by backends that do not update it in place.
        zeros = _zeros(k[0]), _zeros(v[0])
        dkv_j, (dq,) = scan_blocks(add_q_block, zeros, (dq, *q_blocks), (dq[0],))
        dk, dv = (
            ops.slice_update(total, (j, 0, 0, 0, 0), block[None])
            for total, block in zip((dk, dv), dkv_j, strict=True)
        )
        return dq, dk, dv

    start = _zeros(ops.swapaxes(q_blocks[0], -1, -2)), _zeros(k), _zeros(v)
    return ops.fori_loop(0, pairs.kv.count, add_kv_block, start)


def _backward_twice(pairs, dropped_and_ds, q_blocks, k, v):
    """Computes what `_backward_once` does, dq first, then dk and dv.

    For a window, in which a block sees few others. Only pairs that see each other are
    visited, each twice; `_backward_once` takes a step for every pair, seen or not.
    """
    zero_dq = _zeros(ops.swapaxes(q_blocks[0][0], -1, -2))
    zero_dkv = _zeros(k[0]), _zeros(v[0])

    def of_q_block(i, *q_block):
        def add_kv_block(j, dq_i):
            return dq_i + _dq(k[j], dropped_and_ds(i, j, *q_block)[1])

        return (ops.fori_loop(*pairs.kv_range(i), add_kv_block, zero_dq),)

    def of_kv_block(j, _):
        def add_q_block(i, dkv_j):
            q_block = [x[i] for x in q_blocks]
            return _add_dkv(dkv_j, *dropped_and_ds(i, j, *q_block), *q_block)

        return ops.fori_loop(*pairs.q_range(j), add_q_block, zero_dkv)

    (dq,) = map_blocks(of_q_block, q_blocks, (zero_dq,))
    # `dropped_and_ds` holds k and v; here k only gives the number of blocks.
    return dq, *map_blocks(of_kv_block, (k,), zero_dkv)


def _dropped_and_ds(pairs, scores, v, i, j, q_i, do_i, logsumexp_i, delta_i):
    """Computes p * dropout, and ds, of one pair of blocks, `(B, G, s, R * t)`."""
    p = ops.exp(scores(i, j, q_i) - logsumexp_i)
    dropout = pairs.dropout(i, j, p)
    dp = _matmul(v[j], ops.swapaxes(do_i, -1, -2)) * dropout
    return p * dropout, p * (dp - delta_i)


def _dq(k_j, ds):
    """Computes what a pair of blocks adds to dq[i], `(B, G, K, R * t)`."""
    return _matmul(ops.swapaxes(k_j, -1, -2), ds)


def _add_dkv(dkv_j, dropped, ds, q_i, do_i, *_):
    """Adds the part of a pair of blocks to dk[j] and dv[j], `(B, G, s, K or V)`."""
    dk_j, dv_j = dkv_j
    return dk_j + _matmul(ds, q_i), dv_j + _matmul(dropped, do_i)


def _scores(pairs, bias, k, i, j, q_i):
    """Computes one block of masked scores, float32 `(B, G, s, R * t)`."""
    k_j, q_i = widen(k[j]), widen(q_i)
    s = ops.cast(ops.matmul(k_j, ops.swapaxes(q_i, -1, -2)), "float32")
    visible = pairs.visible(i, j)
    if bias is None and visible is None:
        return s
    x = pairs.split_heads(s)  # (B, G, s, R, t)
    if bias is not None:
        x = x + ops.cast(bias.block(i, j), "float32")
    if visible is not None:
        x = ops.where(visible, x, MASKED_SCORE)
    return ops.reshape(x, ops.shape(s))


def _matmul(left, right):
    """Casts both to the narrower of their dtypes, multiplies, and returns float32."""
    is_wide = keras.backend.standardize_dtype(left.dtype) == "float32"
    dtype = right.dtype if is_wide else left.dtype
    return ops.cast(
        ops.matmul(ops.cast(left, dtype), ops.cast(right, dtype)), "float32"
    )


def _zeros(x):
    return ops.zeros_like(x, dtype="float32")
