"""Attention block by block: O(T + S) memory, for sequences of any length.

    forward: FlashAttention-2, algorithm 1, with the keys first in each block s,
    so that no product of matrices wants it transposed
        for each query block i:
            row_max, row_sum, acc = -1e30, 0, 0
            for each key/value block j that i sees:
                s = k[j] q[i]^T + bias[i, j], masked
                row_max, rescale = max(row_max, s), exp(old row_max - new row_max)
                p = exp(s - row_max)
                row_sum = rescale * row_sum + sum(p)
                acc = rescale * acc + v[j]^T (p * dropout[i, j])
            o[i], logsumexp[i] = acc / row_sum, row_max + log(row_sum)

    backward: FlashAttention-2, algorithm 2, from do, the gradient of o
        delta = sum(o * do)
        for each query block i and key/value block j that i sees:
            p = exp(s - logsumexp[i]), where s and dropout are computed again
            ds = p * (v[j] do[i]^T * dropout[i, j] - delta[i])
            dq[i] += ds^T k[j]
            dk[j] += ds q[i]
            dv[j] += (p * dropout[i, j]) do[i]
        where the bias is learned, for each such pair once more:
            dbias[i, j] += ds, computed again

`pairs.py` says which blocks see each other, their masks and their dropout; `biases.py`
makes bias[i, j] and dbias; `blocks.py` cuts sequences into blocks and loops over them.

Shapes: B batch, T target length, S source length, H query heads, G key and value heads,
R = H / G, K key_dim, V value_dim; N query blocks of t queries, M key/value blocks of s
keys. q and do are `(N, B, G, R * t, K or V)`, k and v `(M, B, G, s, K or V)`.

Reference:
    Milakov & Gimelshein 2018, algorithm 3 (the softmax, block by block); Rabe & Staats
    2021 (attention with it); Dao et al. 2022, algorithm 4 (FlashAttention's backward
    pass); Dao 2023 (FlashAttention-2: logsumexp). Differs: blocks are cut for a CPU's
    cache; within a window, the backward pass goes over the blocks twice.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import autodiff
from keras_seqattn.layers.attention.distances import DistanceBias
from keras_seqattn.layers.attention.kernels.chunked.biases import (
    BlockDistanceBias,
    PairBias,
)
from keras_seqattn.layers.attention.kernels.chunked.blocks import (
    map_blocks,
    scan_blocks,
)
from keras_seqattn.layers.attention.kernels.chunked.pairs import BlockPairs
from keras_seqattn.layers.attention.kernels.explicit import MASKED_SCORE, widen

# The logsumexp of a row that sees nothing: each weight made with it is zero.
EMPTY_ROW = 1e30


def chunked_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Computes `dot_product_attention` of a scaled query, block by block.

    A block of scores that `causal` or `window` hides is not computed. Lengths need not
    be multiples of a block, and may be unknown in a functional model. The mask, of rank
    4, is not broadcast as a whole, and of a `DistanceBias` not all pairs are made. The
    options are `causal`, `window`, `offset`, `dropout`, `seed` and
    the `block_length` of `BlockPairs`.
    """
    pairs = BlockPairs(query, key, mask, **options)
    key, value = (ops.cast(x, query.dtype) for x in (key, value))
    make_bias, learned, constant = _bias_of_blocks(pairs, bias)

    @autodiff.custom_gradient
    def attend(query, key, value, *learned):
        q = pairs.q.split(query, pairs.groups)
        k, v = (pairs.kv.split(x, pairs.groups) for x in (key, value))
        block_bias = make_bias(*learned, *constant)
        scores = functools.partial(_scores, pairs, block_bias, k)
        o, logsumexp = _forward(pairs, scores, q, v)

        def gradient(upstream):
            do = pairs.q.split(upstream, pairs.groups)
            delta = ops.sum(o * ops.cast(do, "float32"), axis=-1)[..., None, :]
            q_blocks = q, do, logsumexp, delta
            differentiate = functools.partial(_differentiate, pairs, scores, v)
            backward = _backward_twice if pairs.is_windowed else _backward_once
            dq, dk, dv = backward(pairs, differentiate, q_blocks, k, v)
            dq = pairs.q.join(ops.swapaxes(dq, -1, -2))  # (B, T, H, K)
            gradients = [dq, pairs.kv.join(dk), pairs.kv.join(dv)]
            if learned:

                def ds(i, j, *q_block):
                    return pairs.split_heads(differentiate(i, j, *q_block)[1])

                gradients.append(block_bias.gradient(ds, q_blocks))
            inputs = zip(gradients, (query, key, value, *learned), strict=True)
            return tuple(ops.cast(x, given.dtype) for x, given in inputs)

        return ops.cast(pairs.q.join(o), query.dtype), gradient

    return attend(query, key, value, *learned)


def _bias_of_blocks(pairs, bias):
    """Returns a function that makes bias[i, j], and its tensors, learned and constant.

    Learned tensors are arguments of the function with a gradient of its own.
    """
    if bias is None:
        return lambda: None, (), ()
    if not isinstance(bias, DistanceBias):
        values = pairs.broadcast(ops.convert_to_tensor(bias))
        return functools.partial(PairBias, pairs), (values,), ()
    make_bias, values = functools.partial(BlockDistanceBias, pairs), (bias.values,)
    return (make_bias, values, ()) if bias.learned else (make_bias, (), values)


def _forward(pairs, scores, q, v):
    """Computes o `(N, B, G, R * t, V)` and logsumexp `(N, B, G, 1, R * t)`."""
    batch, groups, rows, _ = ops.shape(q[0])
    zero_row = ops.zeros((batch, groups, 1, rows), "float32")
    zero_acc = ops.zeros((batch, groups, v.shape[-1], rows), "float32")

    def of_q_block(i, q_i):
        def add_kv_block(j, state):
            row_max, row_sum, acc = state
            s = scores(i, j, q_i)  # (B, G, s, R * t)
            # Of an empty batch there is no largest score: hence `initial`.
            largest = ops.max(s, axis=-2, keepdims=True, initial=MASKED_SCORE)
            new_max = ops.maximum(row_max, largest)
            p, rescale = ops.exp(s - new_max), ops.exp(row_max - new_max)
            row_sum = row_sum * rescale + ops.sum(p, axis=-2, keepdims=True)
            p = p * pairs.dropout(i, j, p)
            # p is not yet divided by its sum: products of float16 could overflow.
            v_j = ops.swapaxes(widen(v[j]), -1, -2)  # (B, G, V, s)
            return new_max, row_sum, acc * rescale + _matmul(v_j, p)

        # A hidden pair in a block before the first visible one weighs exp(0) = 1, which
        # `rescale` makes 0 as soon as one is visible.
        start = zero_row + MASKED_SCORE, zero_row, zero_acc
        row_max, row_sum, acc = ops.fori_loop(*pairs.kv_range(i), add_kv_block, start)
        is_seen = row_max > MASKED_SCORE
        row_sum = ops.where(is_seen, row_sum, 1.0)
        logsumexp = ops.where(is_seen, row_max + ops.log(row_sum), EMPTY_ROW)
        return ops.where(is_seen, acc / row_sum, 0.0), logsumexp

    o, logsumexp = map_blocks(of_q_block, (q,), (zero_acc, zero_row))
    return ops.swapaxes(o, -1, -2), logsumexp


def _backward_once(pairs, differentiate, q_blocks, k, v):
    """Computes dq `(N, B, G, K, R * t)`, dk and dv, with each pair of blocks once.

    Each key/value block goes over all query blocks; those that do not see it stay as
    they are.
    """

    def add_kv_block(j, totals):
        dq, dk, dv = totals
        first, end = pairs.q_range(j)

        def add_q_block(dkv_j, i, dq_i, *q_block):
            def add():
                p, ds = differentiate(i, j, *q_block)
                return dq_i + _dq(k[j], ds), *_add_dkv(dkv_j, p, ds, *q_block)

            if pairs.sees_all:
                dq_i, *dkv_j = add()
            else:
                is_seen = ops.logical_and(first <= i, i < end)
                dq_i, *dkv_j = ops.cond(is_seen, add, lambda: (dq_i, *dkv_j))
            return tuple(dkv_j), (dq_i,)

        zeros = _zeros(k[0]), _zeros(v[0])
        dkv_j, (dq,) = scan_blocks(add_q_block, zeros, (dq, *q_blocks), (dq[0],))
        dk, dv = (
            ops.slice_update(total, (j, 0, 0, 0, 0), block[None])
            for total, block in zip((dk, dv), dkv_j, strict=True)
        )
        return dq, dk, dv

    start = _zeros(ops.swapaxes(q_blocks[0], -1, -2)), _zeros(k), _zeros(v)
    return ops.fori_loop(0, pairs.kv.count, add_kv_block, start)


def _backward_twice(pairs, differentiate, q_blocks, k, v):
    """Computes what `_backward_once` does, dq first, then dk and dv.

    Within a window each block sees few others, and meets no more than those.
    """
    zero_dq = _zeros(ops.swapaxes(q_blocks[0][0], -1, -2))
    zero_dkv = _zeros(k[0]), _zeros(v[0])

    def of_q_block(i, *q_block):
        def add_kv_block(j, dq_i):
            return dq_i + _dq(k[j], differentiate(i, j, *q_block)[1])

        return (ops.fori_loop(*pairs.kv_range(i), add_kv_block, zero_dq),)

    def of_kv_block(j, *_):
        def add_q_block(i, dkv_j):
            q_block = [x[i] for x in q_blocks]
            return _add_dkv(dkv_j, *differentiate(i, j, *q_block), *q_block)

        return ops.fori_loop(*pairs.q_range(j), add_q_block, zero_dkv)

    (dq,) = map_blocks(of_q_block, q_blocks, (zero_dq,))
    return dq, *map_blocks(of_kv_block, (k, v), zero_dkv)


def _differentiate(pairs, scores, v, i, j, q_i, do_i, logsumexp_i, delta_i):
    """Computes p after dropout, and ds: of one pair of blocks, `(B, G, s, R * t)`."""
    p = ops.exp(scores(i, j, q_i) - logsumexp_i)
    dropout = pairs.dropout(i, j, p)
    dp = _matmul(v[j], ops.swapaxes(do_i, -1, -2)) * dropout
    return p * dropout, p * (dp - delta_i)


def _dq(k_j, ds):
    """Computes what a pair of blocks adds to dq[i], `(B, G, K, R * t)`."""
    return _matmul(ops.swapaxes(k_j, -1, -2), ds)


def _add_dkv(dkv_j, p, ds, q_i, do_i, *_):
    """Adds what a pair of blocks does to dk[j] and dv[j], `(B, G, s, K or V)`."""
    dk_j, dv_j = dkv_j
    return dk_j + _matmul(ds, q_i), dv_j + _matmul(p, do_i)


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
    """Multiplies in the dtype of the inputs, to which p and ds are cast, to float32."""
    is_wide = keras.backend.standardize_dtype(left.dtype) == "float32"
    dtype = right.dtype if is_wide else left.dtype
    return ops.cast(
        ops.matmul(ops.cast(left, dtype), ops.cast(right, dtype)), "float32"
    )


def _zeros(x):
    return ops.zeros_like(x, dtype="float32")
