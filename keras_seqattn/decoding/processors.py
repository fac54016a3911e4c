"""What is done to log-probabilities before a token is chosen: pure functions.

All take float tensors `(B, W, V)` of log-probabilities; what they forbid becomes
`FORBIDDEN`. They stand after the softmax, so the scores of a search stay the model's
own log-probabilities.
Shapes: B sentences, W beams, V vocabulary, L generated length, P prefix length.
"""

import keras
from keras import ops

# Far below any sum of log-probabilities, and finite: its differences are no NaN.
FORBIDDEN = -1e9


def forbid(log_probs, ids):
    """Forbids tokens.

    Args:
        log_probs: Float tensor `(B, W, V)`.
        ids: Integers.

    Returns:
        Float tensor `(B, W, V)`.

    Example:
        >>> [float(x) for x in forbid(ops.zeros((1, 1, 3)), (0, 2))[0, 0]]
        [-1000000000.0, 0.0, -1000000000.0]
    """
    every = ops.arange(log_probs.shape[-1], dtype="int32")
    forbidden = every == ids[0]
    for token_id in ids[1:]:
        forbidden = ops.logical_or(forbidden, every == token_id)
    return ops.where(forbidden, FORBIDDEN, log_probs)


def force(log_probs, prefix, index, pad_id):
    """Makes a given token certain where one is given for this position.

    Args:
        log_probs: Float tensor `(B, W, V)`.
        prefix: Int32 tensor `(B, P)`; `pad_id` where the search is free.
        index: The position, a scalar int32 tensor, or `(B,)` of each sentence's own.
        pad_id: What fills a prefix.

    Returns:
        Float tensor `(B, W, V)`: there 0 for that token and `FORBIDDEN` for all others,
        whatever they were.

    Example:
        >>> prefix = ops.array([[1]], "int32")
        >>> [float(x) for x in force(-ops.ones((1, 1, 3)), prefix, 0, 0)[0, 0]]
        [-1000000000.0, 0.0, -1000000000.0]
    """
    batch_size, length = prefix.shape
    index = ops.broadcast_to(ops.reshape(index, (-1, 1)), (batch_size, 1))
    given = ops.take_along_axis(prefix, ops.minimum(index, length - 1), axis=1)
    free = ops.logical_or(given == pad_id, index >= length)[..., None]  # (B, 1, 1)
    every = ops.arange(log_probs.shape[-1], dtype="int32")
    certain = ops.where(every == given[..., None], 0.0, FORBIDDEN)  # (B, 1, V)
    return ops.where(free, log_probs, certain)


def penalize_repetition(log_probs, token_ids, penalty):
    """Multiplies the log-probability of what a beam has said by a factor.

    Args:
        log_probs: Float tensor `(B, W, V)`.
        token_ids: Int32 tensor `(B, W, L)`, padded with an id that is never said.
        penalty: Positive number; above 1 it makes repetition less likely.

    Returns:
        Float tensor `(B, W, V)`.

    Example:
        >>> said = ops.array([[[1, 0]]], "int32")
        >>> penalized = penalize_repetition(ops.full((1, 1, 3), -2.0), said, 1.5)
        >>> [float(x) for x in penalized[0, 0]]
        [-3.0, -3.0, -2.0]

    Reference:
        Keskar et al. 2019, section 4.1. Differs: log-probabilities in place of logits,
        whose sign has no meaning.
    """
    said = _marked(token_ids, log_probs.shape[-1])
    return ops.where(said, log_probs * penalty, log_probs)


def forbid_repeated_ngrams(log_probs, token_ids, index, n):
    """Forbids what would end a sequence of n tokens that a beam has said before.

    Args:
        log_probs: Float tensor `(B, W, V)`.
        token_ids: Int32 tensor `(B, W, L)`, of which `index` are said.
        index: The position, a scalar int32 tensor, or `(B,)` of each sentence's own.
        n: Positive integer.

    Returns:
        Float tensor `(B, W, V)`.

    Example:
        >>> said = ops.array([[[3, 4, 3, 0]]], "int32")
        >>> allowed = forbid_repeated_ngrams(ops.zeros((1, 1, 6)), said, 3, 2)[0, 0]
        >>> [int(x) for x in allowed >= 0]
        [1, 1, 1, 1, 0, 1]

    Reference:
        Paulus et al. 2018, section 2.5.
    """
    length = token_ids.shape[-1]
    if length < n:
        return log_probs
    windows = length - n + 1
    index = ops.broadcast_to(ops.reshape(index, (-1, 1, 1)), (*token_ids.shape[:2], 1))
    repeated = ops.arange(windows, dtype="int32") + n - 1 < index  # (B, W, L - n + 1)
    for place in range(n - 1):
        last = ops.take_along_axis(
            token_ids, ops.maximum(index - n + 1 + place, 0), axis=-1
        )  # (B, W, 1)
        before = token_ids[..., place : place + windows]
        repeated = ops.logical_and(repeated, before == last)
    ends = token_ids[..., n - 1 :]  # (B, W, L - n + 1)
    # What is not repeated marks an id outside the vocabulary.
    vocabulary_size = log_probs.shape[-1]
    ends = ops.where(repeated, ends, vocabulary_size)
    said = _marked(ends, vocabulary_size + 1)[..., :-1]
    return ops.where(said, FORBIDDEN, log_probs)


def _marked(token_ids, vocabulary_size):
    """Marks the ids of each beam, `(B, W, L)` to bool `(B, W, V)`."""
    batch_size, width, length = ops.shape(token_ids)
    beams = ops.arange(batch_size * width, dtype="int32")
    places = ops.reshape(token_ids, (-1, length)) + beams[:, None] * vocabulary_size
    marks = ops.scatter_update(
        ops.zeros((batch_size * width * vocabulary_size,), "int32"),
        ops.reshape(places, (-1, 1)),
        ops.ones((batch_size * width * length,), "int32"),
    )
    return ops.reshape(marks, (batch_size, width, vocabulary_size)) > 0


def keep_top_k(log_probs, k):
    """Forbids all but the k most probable tokens, and those as probable as the last.

    Args:
        log_probs: Float tensor `(B, W, V)`.
        k: Positive integer.

    Returns:
        Float tensor `(B, W, V)`.

    Example:
        >>> [int(x) for x in keep_top_k(ops.array([[[3.0, 1.0, 2.0]]]), 2)[0, 0] > 0]
        [1, 0, 1]

    Reference:
        Fan et al. 2018, section 5.4.
    """
    k = min(k, log_probs.shape[-1])
    least = ops.top_k(log_probs, k)[0][..., -1:]
    return ops.where(log_probs >= least, log_probs, FORBIDDEN)


def keep_top_p(log_probs, p):
    """Forbids all but the most probable tokens that together reach a probability p.

    Args:
        log_probs: Float tensor `(B, W, V)`, normalized.
        p: Probability in (0, 1].

    Returns:
        Float tensor `(B, W, V)`.

    Example:
        >>> probs = ops.array([[[0.5, 0.2, 0.3]]])
        >>> [int(x) for x in keep_top_p(ops.log(probs), 0.7)[0, 0] > -5]
        [1, 0, 1]

    Reference:
        Holtzman et al. 2020, section 3.1.
    """
    ordered = ops.flip(ops.sort(log_probs, axis=-1), axis=-1)
    probs = ops.exp(ordered)
    before = ops.cumsum(probs, axis=-1) - probs
    # The first is always kept: nothing stands before it.
    least = ops.min(ops.where(before < p, ordered, 0.0), axis=-1, keepdims=True)
    return ops.where(log_probs >= least, log_probs, FORBIDDEN)


def keep_min_p(log_probs, p):
    """Forbids what is less than p times as probable as the most probable token.

    Args:
        log_probs: Float tensor `(B, W, V)`.
        p: Number in (0, 1].

    Returns:
        Float tensor `(B, W, V)`.

    Example:
        >>> probs = ops.array([[[0.5, 0.2, 0.3]]])
        >>> [int(x) for x in keep_min_p(ops.log(probs), 0.5)[0, 0] > -5]
        [1, 0, 1]

    Reference:
        Nguyen et al. 2024, section 3.
    """
    least = ops.max(log_probs, axis=-1, keepdims=True) + ops.log(p)
    return ops.where(log_probs >= least, log_probs, FORBIDDEN)


def gumbel_noise(streams, index, vocabulary_size):
    """Draws noise whose sum with log-probabilities is largest at a sample of them.

    The numbers are a function of the stream, the position and the token alone, in
    integers that every backend multiplies alike: a sample does not depend on the
    backend, nor on which sentences are searched together.

    Args:
        streams: Int32 tensor `(B, W)`, a number for each beam.
        index: The position, a scalar int32 tensor, or `(B,)` of each sentence's own.
        vocabulary_size: Number of tokens V.

    Returns:
        Float32 tensor `(B, W, V)`.

    Example:
        >>> streams = ops.array([[1], [1], [2]], "int32")
        >>> a, b, c = (float(x) for x in gumbel_noise(streams, 0, 4)[:, 0, 0])
        >>> a == b, a == c
        (True, False)

    Reference:
        Gumbel-max: Maddison et al. 2014. Integer hash: "lowbias32" of Wellons 2018.
    """
    index = ops.reshape(ops.convert_to_tensor(index, "int32"), (-1, 1))
    streams = _hash(streams + _hash(index * 668265263))
    tokens = ops.arange(vocabulary_size, dtype="int32")
    drawn = _shifted(_hash(streams[..., None] + tokens * 374761393), 9)  # 23 bits
    uniform = (ops.cast(drawn, "float32") + 0.5) / 2.0**23
    return -ops.log(-ops.log(uniform))


def _hash(x):
    """Mixes the bits of 32-bit integers; products wrap around."""
    x = ops.bitwise_xor(x, _shifted(x, 16)) * 2146121005
    x = ops.bitwise_xor(x, _shifted(x, 15)) * -2073254261
    return ops.bitwise_xor(x, _shifted(x, 16))


def _shifted(x, places):
    """Shifts to the right and fills with zeros, as of an unsigned integer."""
    return ops.bitwise_and(ops.right_shift(x, places), 2 ** (32 - places) - 1)


def hashed(numbers, seed):
    """Gives each number of a seed a stream of its own for `gumbel_noise`.

    Args:
        numbers: Int32 tensor of any shape.
        seed: Integer tensor or integer in [0, 2**31).

    Returns:
        Int32 tensor of the same shape.

    Example:
        >>> int(hashed(ops.array(0, "int32"), 0))
        0
    """
    seed = keras.ops.convert_to_tensor(seed, "int32")
    return _hash(ops.bitwise_xor(_hash(numbers), seed))
