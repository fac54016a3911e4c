"""What the package must compute, in float64 NumPy and plain loops.

Nothing here is fast, and nothing here imports the package: each function is the
formula, written down once more by another route. Masks are bool, True = may attend.
"""

import math

import numpy as np


def _broadcast_scores(array, shape):
    """Returns a mask or bias as (B, H, T, S); rank 3 is (B, T, S)."""
    array = np.asarray(array)
    if array.ndim == 3:
        array = array[:, None]
    return np.broadcast_to(array, shape)


def may_attend(i, j, causal=False, window=None, offset=0):
    """Whether query i may see key j by position alone."""
    position = i + offset
    if causal and j > position:
        return False
    return window is None or abs(position - j) < window


def softmax(row):
    """Softmax of one vector."""
    row = np.asarray(row, "float64")
    exponentials = np.exp(row - row.max())
    return exponentials / exponentials.sum()


def attention_scores(
    query,
    key,
    mask=None,
    bias=None,
    scale=None,
    causal=False,
    window=None,
    offset=0,
):
    """Attention weights (B, H, T, S) of (B, T, H, K) and (B, S, G, K)."""
    query, key = np.asarray(query, "float64"), np.asarray(key, "float64")
    batch, target_length, num_heads, key_dim = query.shape
    source_length, num_groups = key.shape[1:3]
    shape = (batch, num_heads, target_length, source_length)
    mask = _broadcast_scores(True if mask is None else mask, shape)
    bias = _broadcast_scores(0.0 if bias is None else bias, shape)
    scale = 1.0 / math.sqrt(key_dim) if scale is None else scale

    scores = np.zeros(shape)
    for b in range(batch):
        for h in range(num_heads):
            group = h // (num_heads // num_groups)
            for i in range(target_length):
                allowed = [
                    j
                    for j in range(source_length)
                    if mask[b, h, i, j] and may_attend(i, j, causal, window, offset)
                ]
                if allowed:
                    logits = [
                        scale * np.dot(query[b, i, h], key[b, j, group])
                        + bias[b, h, i, j]
                        for j in allowed
                    ]
                    scores[b, h, i, allowed] = softmax(logits)
    return scores


def attention(query, key, value, **options):
    """Weighted values (B, T, H, V), and the weights (B, H, T, S)."""
    scores = attention_scores(query, key, **options)
    value = np.asarray(value, "float64")
    batch, num_heads, target_length, source_length = scores.shape
    num_groups, value_dim = value.shape[2:]
    output = np.zeros((batch, target_length, num_heads, value_dim))
    for b in range(batch):
        for h in range(num_heads):
            group = h // (num_heads // num_groups)
            for i in range(target_length):
                for j in range(source_length):
                    output[b, i, h] += scores[b, h, i, j] * value[b, j, group]
    return output, scores


def dense(x, kernel, bias=None):
    """``x @ kernel + bias``; a kernel (D, H, K) splits heads, (H, K, D) joins them."""
    x, kernel = np.asarray(x, "float64"), np.asarray(kernel, "float64")
    joined = 2 if x.ndim == 4 and kernel.ndim == 3 else 1
    output = np.tensordot(x, kernel, axes=joined)
    return output if bias is None else output + np.asarray(bias, "float64")


def multi_head_attention(query, value, weights, key=None, **options):
    """Projects, attends, projects back; returns output (B, T, D) and scores.

    Args:
        query: Array (B, T, D).
        value: Array (B, S, D).
        weights: Dict of (kernel, bias or None) for "query", "key", "value",
            "output" and, when gated, "gate".
        key: Array (B, S, D), or None for `value`.
        **options: Passed on to `attention_scores`.
    """
    key = value if key is None else key
    context, scores = attention(
        dense(query, *weights["query"]),
        dense(key, *weights["key"]),
        dense(value, *weights["value"]),
        **options,
    )
    if "gate" in weights:
        context = context / (1.0 + np.exp(-dense(query, *weights["gate"])))
    return dense(context, *weights["output"]), scores


def sinusoidal_table(length, dim, base=10000.0, cosine_exponent="even", start=0):
    """Table (length, dim): column 2k is the sine and column 2k + 1 the cosine.

    The sine's exponent is 2k / dim. The cosine's is the same ("even", Vaswani et
    al.), or its own column's (2k + 1) / dim ("odd").
    """
    table = np.zeros((length, dim))
    for row in range(length):
        for column in range(dim):
            is_sine = column % 2 == 0
            exponent = column if is_sine or cosine_exponent == "odd" else column - 1
            angle = (start + row) / base ** (exponent / dim)
            table[row, column] = math.sin(angle) if is_sine else math.cos(angle)
    return table


def layer_norm(x, gamma, beta, epsilon):
    """Zero mean and unit variance over the last axis, then gamma and beta."""
    x = np.asarray(x, "float64")
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * gamma + beta


def rms_norm(x, scale, epsilon):
    """Unit mean square over the last axis, then scale."""
    x = np.asarray(x, "float64")
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def relu(x):
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def silu(x):
    """x * sigmoid(x)."""
    return x / (1.0 + np.exp(-x))


def gelu(x):
    """x * Phi(x), with the exact normal distribution."""
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


ACTIVATIONS = {"relu": relu, "silu": silu, "gelu": gelu}


def feed_forward(x, weights, activation="relu"):
    """``act(x W_1) W_2``, or ``(act(x W_1) * (x W_g)) W_2`` when there is a gate.

    Args:
        x: Array (B, T, D).
        weights: Dict of (kernel, bias or None) for "intermediate", "output" and,
            when gated, "gate".
        activation: "relu", "silu" or "gelu".
    """
    hidden = ACTIVATIONS[activation](dense(x, *weights["intermediate"]))
    if "gate" in weights:
        hidden = hidden * dense(x, *weights["gate"])
    return dense(hidden, *weights["output"])


def normalize(x, weights, epsilon):
    """Layer norm for weights (gamma, beta), RMS norm for weights (scale,)."""
    return (layer_norm if len(weights) == 2 else rms_norm)(x, *weights, epsilon)


def residual(x, sublayer, norm, normalize_first, epsilon):
    """``x + f(norm(x))`` before, or ``norm(x + f(x))`` after."""
    if normalize_first:
        return x + sublayer(normalize(x, norm, epsilon))
    return normalize(x + sublayer(x), norm, epsilon)


def encoder_block(
    x,
    weights,
    mask=None,
    normalize_first=True,
    activation="relu",
    epsilon=1e-6,
):
    """Self-attention, then the feed-forward network, each with its residual.

    Args:
        x: Array (B, T, D).
        weights: Dict with "attention" and "feed_forward" (as above) and the norms
            "attention_norm" and "feed_forward_norm".
        mask: Attention mask, broadcastable to (B, H, T, T).
        normalize_first: Whether the norm stands before the sublayer.
        activation: Of the feed-forward network.
        epsilon: Of the norms.
    """
    common = {"normalize_first": normalize_first, "epsilon": epsilon}

    def attend(h):
        return multi_head_attention(h, h, weights["attention"], mask=mask)[0]

    def feed(h):
        return feed_forward(h, weights["feed_forward"], activation)

    x = np.asarray(x, "float64")
    x = residual(x, attend, weights["attention_norm"], **common)
    return residual(x, feed, weights["feed_forward_norm"], **common)


def decoder_block(
    target,
    source,
    weights,
    target_mask=None,
    source_mask=None,
    normalize_first=True,
    activation="relu",
    epsilon=1e-6,
):
    """Causal self-attention, attention to the source, the feed-forward network.

    As `encoder_block`; `weights` has "cross_attention" and "cross_attention_norm"
    too, and `source` may be None. The masks are attention masks.
    """
    common = {"normalize_first": normalize_first, "epsilon": epsilon}

    def attend(h):
        return multi_head_attention(
            h, h, weights["attention"], mask=target_mask, causal=True
        )[0]

    def cross_attend(h):
        return multi_head_attention(
            h, source, weights["cross_attention"], mask=source_mask
        )[0]

    def feed(h):
        return feed_forward(h, weights["feed_forward"], activation)

    x = np.asarray(target, "float64")
    x = residual(x, attend, weights["attention_norm"], **common)
    if source is not None:
        x = residual(x, cross_attend, weights["cross_attention_norm"], **common)
    return residual(x, feed, weights["feed_forward_norm"], **common)
