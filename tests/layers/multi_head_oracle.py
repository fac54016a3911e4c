"""Multi-head attention with all its options, in float64 NumPy and plain loops.

Stands on `tests/oracle.py`, and like it imports nothing of the package.
"""

import math

import numpy as np

from tests import oracle


def rotated(x, start=0, base=10000.0, scaling=1.0):
    """Turns each pair (i, i + K / 2) of `(B, L, H, K)` by p * base^(-2i / K)."""
    x = np.asarray(x, "float64")
    half = x.shape[-1] // 2
    turned = np.zeros_like(x)
    for position in range(x.shape[1]):
        for i in range(half):
            angle = (start + position) / scaling * base ** (-2 * i / x.shape[-1])
            left, right = x[:, position, :, i], x[:, position, :, i + half]
            turned[:, position, :, i] = left * math.cos(angle) - right * math.sin(angle)
            turned[:, position, :, i + half] = right * math.cos(
                angle
            ) + left * math.sin(angle)
    return turned


def t5_bucket(relative, num_buckets, max_distance, bidirectional):
    """T5's own formula, of the key's position less the query's."""
    bucket = 0
    if bidirectional:
        num_buckets //= 2
        bucket = num_buckets if relative > 0 else 0
        relative = abs(relative)
    else:
        relative = -min(relative, 0)
    exact = num_buckets // 2
    if relative < exact:
        return bucket + relative
    share = np.log(np.float32(relative / exact)) / np.float32(
        math.log(max_distance / exact)
    )
    far = exact + int(np.float32(share * (num_buckets - exact)))
    return bucket + min(far, num_buckets - 1)


def alibi_slopes(num_heads):
    """The geometric series of a power of two; else of it, then half of its double."""
    power = 1
    while 2 * power <= num_heads:
        power *= 2
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    doubled = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)]
    return np.array((slopes + doubled)[:num_heads])


def position_bias(kind, shape, offset, table, buckets):
    """Bias `(1, H, T, S)` of "alibi" or "relative" positions, zeros for others."""
    num_heads, target, source = shape
    bias = np.zeros((1, num_heads, target, source))
    for i in range(target):
        for j in range(source):
            if kind == "alibi":
                bias[0, :, i, j] = -alibi_slopes(num_heads) * abs(i + offset - j)
            elif kind == "relative":
                bias[0, :, i, j] = table[t5_bucket(j - i - offset, *buckets)]
    return bias


def multi_head_attention(
    query, value, weights, key, score, positions, buckets, offset, **options
):
    """Output and weights of all options.

    Args:
        query: Array (B, T, D).
        value: Array (B, S, D).
        weights: As of `tests.oracle.multi_head_attention`, and "query_norm",
            "key_norm", "vector" and "table" where the options want them.
        key: Array (B, S, D).
        score: "scaled_dot", "dot" or "additive".
        positions: None, "rotary", "alibi" or "relative".
        buckets: (num_buckets, max_distance, bidirectional) of relative positions.
        offset: Position of the first query.
        **options: `mask`, `causal`, `window`.
    """
    queries = oracle.dense(query, *weights["query"])
    keys = oracle.dense(key, *weights["key"])
    values = oracle.dense(value, *weights["value"])
    if "query_norm" in weights:
        queries = oracle.rms_norm(queries, *weights["query_norm"], 1e-6)
        keys = oracle.rms_norm(keys, *weights["key_norm"], 1e-6)
    if positions == "rotary":
        queries, keys = rotated(queries, offset), rotated(keys)
    shape = (queries.shape[2], queries.shape[1], keys.shape[1])
    bias = position_bias(positions, shape, offset, weights.get("table"), buckets)
    options = {"offset": offset, "bias": bias, **options}
    if score == "additive":
        scores = oracle.additive_scores(queries, keys, weights["vector"], **options)
        heads = oracle.weighted_sum(scores, values)
    else:
        heads, scores = oracle.attention(
            queries, keys, values, scale=1.0 if score == "dot" else None, **options
        )
    if "gate" in weights:
        heads = heads / (1.0 + np.exp(-oracle.dense(query, *weights["gate"])))
    return oracle.dense(heads, *weights["output"]), scores
