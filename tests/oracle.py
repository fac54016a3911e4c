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
    return weighted_sum(scores, value), scores


def attention_gradients(query, key, value, upstream, bias=None, scale=None, **options):
    """Gradients of query, key, value and bias, in the bias's shape, or None.

    Args:
        query: Array (B, T, H, K).
        key: Array (B, S, G, K).
        value: Array (B, S, G, V).
        upstream: Gradient of the output, array (B, T, H, V).
        bias: Array that broadcasts to (B, H, T, S), or None.
        scale: Factor of the scores; None is 1 / sqrt(K).
        **options: Passed on to `attention_scores`.
    """
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    scores = attention_scores(query, key, bias=bias, scale=scale, **options)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    d_query, d_key, d_value = map(np.zeros_like, (query, key, value))
    d_scores = np.zeros_like(scores)
    ratio = query.shape[2] // key.shape[2]
    for b, h, i in np.ndindex(*scores.shape[:3]):
        g, weights = h // ratio, scores[b, h, i]
        d_weights = value[b, :, g] @ upstream[b, i, h]  # (S,)
        d_scores[b, h, i] = weights * (d_weights - weights @ d_weights)
        for j in range(len(weights)):
            d_value[b, j, g] += weights[j] * upstream[b, i, h]
            d_query[b, i, h] += scale * d_scores[b, h, i, j] * key[b, j, g]
            d_key[b, j, g] += scale * d_scores[b, h, i, j] * query[b, i, h]
    if bias is None:
        return d_query, d_key, d_value, None
    shape = (1,) * (4 - bias.ndim) + bias.shape
    shared = tuple(axis for axis in range(4) if shape[axis] == 1)
    d_bias = d_scores.sum(shared, keepdims=True).reshape(bias.shape)
    return d_query, d_key, d_value, d_bias


def additive_scores(query, key, vector, mask=None, bias=None, **options):
    """Weights (B, H, T, S) of the scores vector . tanh(query + key).

    Args:
        query: Array (B, T, H, U).
        key: Array (B, S, G, U).
        vector: Array (H, U).
        mask: As in `attention_scores`.
        bias: As in `attention_scores`.
        **options: `causal`, `window` and `offset`.
    """
    query, key = np.asarray(query, "float64"), np.asarray(key, "float64")
    batch, target_length, num_heads, _ = query.shape
    source_length, num_groups = key.shape[1:3]
    sums = np.zeros((batch, num_heads, target_length, source_length))
    for b, h, i, j in np.ndindex(*sums.shape):
        group = h // (num_heads // num_groups)
        sums[b, h, i, j] = np.tanh(query[b, i, h] + key[b, j, group]) @ vector[h]
    # The sums are the bias of dot products that the scale removes.
    bias = sums if bias is None else sums + _broadcast_scores(bias, sums.shape)
    return attention_scores(query, key, mask=mask, bias=bias, scale=0.0, **options)


def weighted_sum(scores, value):
    """Values (B, S, G, V) summed with weights (B, H, T, S): (B, T, H, V)."""
    value = np.asarray(value, "float64")
    batch, num_heads, target_length, source_length = scores.shape
    num_groups, value_dim = value.shape[2:]
    output = np.zeros((batch, target_length, num_heads, value_dim))
    for b, h, i, j in np.ndindex(*scores.shape):
        group = h // (num_heads // num_groups)
        output[b, i, h] += scores[b, h, i, j] * value[b, j, group]
    return output


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
