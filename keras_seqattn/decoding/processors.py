"""Pure functions that lead from log-probabilities to the tokens chosen.

Processors take and return float tensors `(B, W, V)` of log-probabilities; a token that
they forbid gets `FORBIDDEN`. They run after the softmax, and a search computes scores
from the log-probabilities before them, the model's own. `best_of_all` then finds the
largest values, fast on a CPU.
Shapes: B sentences, W beams, V vocabulary, L generated length, P prefix length.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import tracing

# The log-probability of a token that must not be chosen: far below any real sum of
# log-probabilities, but finite, so that the difference of two is never NaN.
FORBIDDEN = -1e9
# The largest number that an option may add to a log-probability, or subtract: a sum of
# thousands of them is still allowed.
MOST_ADDED = 1e5
# Value of what is no candidate (padding, or a beam that has ended). A forbidden token
# of a forbidden beam has about this value too.
NO_CANDIDATE = 2 * FORBIDDEN
# No value of a search is lower than this: `best_of_all` replaces a model's own -inf.
LOWEST = 4 * FORBIDDEN
# Replaces a value already taken by `largest`; ranks below all remaining ones.
CHOSEN_BEFORE = 8 * FORBIDDEN
# `best_of_all` cuts a vocabulary into blocks of the first of these sizes that divides
# it, or of 128 tokens if none does. A size that divides needs no padding.
BLOCK_SIZES = range(128, 63, -1)
# A token whose log-probability is this much lower than the highest is never drawn: the
# noise of two tokens differs by less than 20 (see `gumbel_noise`). Halved so often, it
# is the distance between two float32 numbers.
UNLIKELY, HALVINGS = 64.0, 30


def log_softmax(logits: Tensor) -> Tensor:
    """Returns the log-probabilities of logits `(..., V)`, in float32."""
    logits = ops.cast(logits, "float32")
    # Not `ops.log_softmax`, which makes one more copy of the logits before it sums.
    return logits - ops.logsumexp(logits, axis=-1, keepdims=True)


def forbid(log_probs: Tensor, ids: Sequence[int]) -> Tensor:
    """Returns log-probabilities `(B, W, V)` with the tokens `ids` forbidden."""
    if not ids:
        return log_probs
    every = ops.arange(log_probs.shape[-1], dtype="int32")
    return ops.where(is_one_of(every, ids), FORBIDDEN, log_probs)


def is_one_of(token_ids: Tensor, ids: Sequence[int]) -> Tensor:
    """Marks the tokens that are among `ids`, which must not be empty."""
    return functools.reduce(ops.logical_or, [token_ids == one for one in ids])


def add_biases(log_probs: Tensor, biases: Sequence[tuple[int, float]]) -> Tensor:
    """Adds biases of tokens to log-probabilities `(B, W, V)`, without normalizing."""
    added = np.zeros(log_probs.shape[-1], "float32")
    for token_id, bias in biases:
        added[token_id] = bias
    return log_probs + ops.convert_to_tensor(added)


def is_allowed(log_probs: Tensor) -> Tensor:
    """Marks the sums of log-probabilities that include no forbidden token."""
    return log_probs > FORBIDDEN / 2


def count_forced(prefix: Tensor, pad_id: int) -> Tensor:
    """Counts the tokens of each row of `prefix` `(B, P)`, int32 `(B,)`."""
    return ops.sum(ops.cast(prefix != pad_id, "int32"), axis=1)


def force(log_probs: Tensor, prefix: Tensor, index: Tensor, pad_id: int) -> Tensor:
    """Returns log-probabilities `(B, W, V)` in which a forced token is certain.

    The token of `prefix` `(B, P)` at the position `index` is forced unless it is
    `pad_id`: it gets 0, and all others `FORBIDDEN`, whatever they were. `index` is a
    scalar, or `(B,)` where each sentence has its own position.
    """
    batch_size, length = prefix.shape
    index = ops.broadcast_to(ops.reshape(index, (-1, 1)), (batch_size, 1))
    given = ops.take_along_axis(prefix, ops.minimum(index, length - 1), axis=1)
    free = ops.logical_or(given == pad_id, index >= length)[..., None]  # (B, 1, 1)
    every = ops.arange(log_probs.shape[-1], dtype="int32")
    # Two Python numbers would have Keras's default dtype.
    others = ops.convert_to_tensor(FORBIDDEN, log_probs.dtype)
    certain = ops.where(every == given[..., None], 0.0, others)  # (B, 1, V)
    return ops.where(free, log_probs, certain)


def penalize_repetition(
    log_probs: Tensor, token_ids: Tensor, index: Tensor, penalty: float
) -> Tensor:
    """Multiplies by a penalty the log-probability of tokens that a beam already has.

    A beam has the first `index` of its `token_ids` `(B, W, L)`; `index` is a scalar, or
    `(B,)` where each sentence has its own position. A penalty above 1 makes repetition
    less likely.

    Reference:
        Keskar et al. 2019, section 4.1. Differs: log-probabilities in place of logits,
        whose sign has no meaning.
    """
    positions = ops.arange(token_ids.shape[-1], dtype="int32")
    is_said = positions < ops.reshape(index, (-1, 1, 1))  # (B or 1, 1, L)
    said = _mark_where(is_said, token_ids, log_probs.shape[-1])
    return ops.where(said, log_probs * penalty, log_probs)


def forbid_repeated_ngrams(
    log_probs: Tensor, token_ids: Tensor, index: Tensor, n: int
) -> Tensor:
    """Forbids each token that would repeat a sequence of n tokens of the same beam.

    After 3, 4, 3 and with n = 2 this is 4. A beam has the first `index` of its
    `token_ids` `(B, W, L)`; `index` is a scalar, or `(B,)` where each sentence has its
    own position.

    Reference:
        Paulus et al. 2018, section 2.5.
    """
    length = token_ids.shape[-1]
    if length < n:
        return log_probs
    windows = length - n + 1
    index = ops.broadcast_to(ops.reshape(index, (-1, 1, 1)), (*token_ids.shape[:2], 1))
    repeated = ops.arange(windows, dtype="int32") + n - 1 < index  # (B, W, L - n + 1)
    # The first n - 1 tokens of each window are compared with the beam's last n - 1.
    for place in range(n - 1):
        last = ops.take_along_axis(
            token_ids, ops.maximum(index - n + 1 + place, 0), axis=-1
        )  # (B, W, 1)
        before = token_ids[..., place : place + windows]
        repeated = ops.logical_and(repeated, before == last)
    ends = token_ids[..., n - 1 :]  # (B, W, L - n + 1)
    said = _mark_where(repeated, ends, log_probs.shape[-1])
    return ops.where(said, FORBIDDEN, log_probs)


def _mark_where(is_marked: Tensor, token_ids: Tensor, vocabulary_size: int) -> Tensor:
    """Marks the ids `(B, W, L)` where `is_marked`, as bools `(B, W, V)`."""
    batch_size, width, length = ops.shape(token_ids)
    # The other ids are replaced by one outside the vocabulary.
    token_ids = ops.where(is_marked, token_ids, vocabulary_size)
    size = vocabulary_size + 1
    beams = ops.arange(batch_size * width, dtype="int32")
    places = ops.reshape(token_ids, (-1, length)) + beams[:, None] * size
    marks = ops.scatter_update(
        ops.zeros((batch_size * width * size,), "int32"),
        ops.reshape(places, (-1, 1)),
        ops.ones((batch_size * width * length,), "int32"),
    )
    return ops.reshape(marks, (batch_size, width, size))[..., :-1] > 0


def keep_top_k(log_probs: Tensor, k: int) -> Tensor:
    """Forbids all tokens except the k most probable and any that tie with the k-th.

    Reference:
        Fan et al. 2018, section 5.4.
    """
    if tracing.is_compiled_by_xla(log_probs):
        return _keep_until(log_probs, ops.ones_like(log_probs), k)
    # Where XLA does not compile, as on torch, Keras's own takes a tenth of the time.
    k = min(k, log_probs.shape[-1])
    least = ops.top_k(log_probs, k)[0][..., -1:]
    return ops.where(log_probs >= least, log_probs, FORBIDDEN)


def keep_top_p(log_probs: Tensor, p: float) -> Tensor:
    """Forbids all except the most probable tokens that together reach a probability p.

    The log-probabilities must be normalized.

    Reference:
        Holtzman et al. 2020, section 3.1.
    """
    # The first token is always kept: the probability before it is 0, and `p` more.
    p = max(p, float(np.finfo("float32").tiny))
    return _keep_until(log_probs, ops.exp(log_probs), p)


def _keep_until(log_probs, weights, limit):
    """Forbids a token if the weights of more probable ones reach a limit.

    The bound is found by bisection, between the most probable token and one that is too
    improbable to be drawn. XLA on a CPU sorts some twenty times as long; the row
    "sampling" of `benchmarks.paths` measures what a search gains.
    """

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        above = ops.where(log_probs > middle, weights, 0.0)
        reaches = ops.sum(above, axis=-1, keepdims=True) >= limit
        return ops.where(reaches, middle, low), ops.where(reaches, high, middle)

    high = ops.max(log_probs, axis=-1, keepdims=True)
    low, _ = ops.fori_loop(0, HALVINGS, halve, (high - UNLIKELY, high))
    return ops.where(log_probs > low, log_probs, FORBIDDEN)


def keep_min_p(log_probs: Tensor, p: float) -> Tensor:
    """Forbids tokens less than p times as probable as the most probable one.

    Reference:
        Nguyen et al. 2024, section 3.
    """
    least = ops.max(log_probs, axis=-1, keepdims=True) + math.log(p)
    return ops.where(log_probs >= least, log_probs, FORBIDDEN)


def gumbel_noise(seeds: Tensor, index: Tensor, vocabulary_size: int) -> Tensor:
    """Draws noise `(B, W, V)` whose sum with log-probabilities is largest at a sample.

    The numbers depend only on the seed `(B, W)`, the position (a scalar or `(B,)`) and
    the token, and come from integers that every backend multiplies alike. So a sample
    depends neither on the backend nor on which sentences are searched together.

    Reference:
        Gumbel-max: Maddison et al. 2014. Integer hash: "lowbias32" of Wellons 2018.
    """
    index = ops.reshape(ops.convert_to_tensor(index, "int32"), (-1, 1))
    # Two primes of xxHash32, so that position and token reach all bits.
    seeds = _hash(seeds + _hash(index * 0x27D4EB2F))
    tokens = ops.arange(vocabulary_size, dtype="int32")
    drawn = _shift_right(_hash(seeds[..., None] + tokens * 0x165667B1), 9)  # 23 bits
    uniform = (ops.cast(drawn, "float32") + 0.5) / 2.0**23
    return -ops.log(-ops.log(uniform))


def _hash(x: Tensor) -> Tensor:
    """Mixes the bits of 32-bit integers; products wrap around."""
    x = ops.bitwise_xor(x, _shift_right(x, 16)) * 0x7FEB352D
    x = ops.bitwise_xor(x, _shift_right(x, 15)) * (0x846CA68B - 2**32)  # as an int32
    return ops.bitwise_xor(x, _shift_right(x, 16))


def _shift_right(x: Tensor, places: int) -> Tensor:
    """Shifts bits to the right and fills with zeros, as for unsigned integers."""
    return ops.bitwise_and(ops.right_shift(x, places), 2 ** (32 - places) - 1)


def beam_seeds(seeds: Tensor, width: int) -> Tensor:
    """Derives a seed for each beam, `(B, W)`, from its sentence's, `(B,)`."""
    beams = ops.arange(width, dtype="int32")
    return _hash(ops.bitwise_xor(_hash(seeds)[:, None], beams))


def best_of_all(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the C largest of each sentence's W * V values, and their indices.

    Both are `(B, C)`, with C = `count`, the largest first. The vocabulary of each beam
    is cut into blocks. Of the blocks of all beams, the C with the largest maxima hold
    the C largest values. So one pass over all values and a search in these blocks find
    them. The row "best" of `benchmarks.paths` measures what this saves.
    """
    batch_size, width, size = ops.shape(values)
    block = next((n for n in BLOCK_SIZES if size % n == 0), BLOCK_SIZES[0])
    padding = ((0, 0), (0, 0), (0, -size % block))
    padded = ops.pad(values, padding, constant_values=NO_CANDIDATE)
    blocks = ops.reshape(padded, (batch_size, -1, block))  # (B, W * blocks, block)
    num_blocks = min(count, blocks.shape[1])
    # Without this lower bound XLA computes the maximum of the maxima from all values
    # again.
    maxima = ops.maximum(ops.max(blocks, axis=-1), LOWEST)
    _, kept = largest(maxima, num_blocks)  # the blocks' numbers, (B, num_blocks)
    values = ops.reshape(gather(blocks, kept), (batch_size, -1))
    best, places = largest(ops.maximum(values, LOWEST), count)  # (B, C)
    holder = gather(kept, places // block)  # the number of each value's block, (B, C)
    blocks_a_beam = blocks.shape[1] // width
    beam, within = holder // blocks_a_beam, holder % blocks_a_beam
    # Padding, which is found before a model's own -inf, is no token of the vocabulary.
    token = ops.minimum(within * block + places % block, size - 1)
    return best, beam * size + token


def best_of_each(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the C largest of each beam's V values, and their tokens: `(B, W, C)`."""
    batch_size, width, size = ops.shape(values)
    rows = ops.reshape(values, (batch_size * width, 1, size))
    best, token = best_of_all(rows, count)
    shape = (batch_size, width, count)
    return ops.reshape(best, shape), ops.reshape(token, shape)


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Returns the `count` largest of each row, and their indices: two `(B, C)`.

    The values are `(B, M)`, none lower than `LOWEST`. The largest come first; equal
    values keep their order. They are found one after another, each by two plain
    reductions, since XLA on a CPU sorts a whole row for `ops.top_k`, and reads it
    number by number for `ops.argmax`.
    """
    size = values.shape[1]
    columns = ops.arange(size, dtype="int32")
    best, indices = [], []
    for _ in range(count):
        best.append(ops.max(values, axis=-1, keepdims=True))
        # If all values are NaN, none equals the maximum: the last index is taken.
        equal = ops.where(values == best[-1], columns, size - 1)
        indices.append(ops.min(equal, axis=-1, keepdims=True))
        values = ops.where(columns == indices[-1], CHOSEN_BEFORE, values)
    return ops.concatenate(best, axis=1), ops.concatenate(indices, axis=1)


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """Gathers values of each sentence, `(B, M, ...)` by `(B, C)` to `(B, C, ...)`."""
    batch_size, size = x.shape[:2]
    rows = ops.arange(batch_size, dtype="int32")[:, None] * size
    flat = ops.reshape(x, (batch_size * size, *x.shape[2:]))
    return ops.take(flat, ops.cast(indices, "int32") + rows, axis=0)
