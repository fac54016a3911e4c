"""`search`: over any step function; knows no model and no layer.

Shapes: B sentences, W beams, L generated length, V vocabulary.
"""

import numpy as np
from keras import ops, tree

from keras_seqattn import arguments
from keras_seqattn.compiled import CompiledFunction
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.hypotheses import SpecialTokens, hypotheses
from keras_seqattn.decoding.methods import Greedy


def search(
    step,
    state,
    *,
    batch_size,
    max_length,
    start_id=1,
    end_id=2,
    pad_id=0,
    method=None,
    prefix=None,
):
    """Searches for likely sequences under any step function.

    The whole search is one XLA program on TensorFlow and JAX; torch runs the same
    steps eagerly. It ends as soon as every sentence has ended.

    Args:
        step: `step(token_ids, state, index) -> (logits, state)` in `keras.ops`:
            token ids int32 `(B, W)`, index a scalar int32 tensor, logits
            `(B, W, V)`.
        state: Structure of arrays with static shapes: `{"beam": arrays (B, W, ...),
            reordered when beams change places, "sentence": arrays (B, ...)}`, with
            W the method's `width`; under "shared" there may be arrays of no sentence.
        batch_size: Number of sentences B.
        max_length: Number of generated tokens at most, end included.
        start_id: The token every sentence starts with; never generated.
        end_id: The token that ends a sentence.
        pad_id: What fills a sentence that has ended; never generated.
        method: The search; `Greedy()` when None.
        prefix: Int array `(B, P)` of forced first tokens, filled with `pad_id` where
            the search is free, or None.

    Returns:
        The `Hypotheses`.

    Raises:
        ValueError: If `batch_size` or `max_length` is not a positive integer, or
            `prefix` does not fit.

    Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> def step(token_ids, state, index):  # says 5, 5, ... and ends at index 2
        ...     token = ops.where(index < 2, 5, 2)
        ...     logits = ops.one_hot(token, 8)[None, None] * 9.0
        ...     return logits, state
        >>> found = search(step, {"beam": {}, "sentence": {}}, batch_size=1,
        ...                max_length=6)
        >>> found.token_ids[0, 0].tolist(), found.lengths.tolist()
        ([5, 5, 0, 0, 0, 0], [[2]])

    Reference:
        Sutskever et al. 2014, section 3.2. Differs: none.
    """
    arguments.positive_integer("batch_size", batch_size)
    arguments.positive_integer("max_length", max_length)
    method = method or Greedy()
    tokens = SpecialTokens(start_id, end_id, pad_id)
    given = {"streams": streams(np.arange(batch_size), method)}
    if prefix is not None:
        given["prefix"] = checked_prefix(prefix, batch_size, max_length, pad_id)

    def program(state, given):
        limits = ops.convert_to_tensor(np.full((batch_size,), max_length, "int32"))
        found = loop.begin(method, limits, room=max_length, tokens=tokens, **given)
        carried = loop.carried(state, found)
        return loop.advance(method, step, carried, tokens)["found"]

    state, given = tree.map_structure(np.asarray, (state, given))
    found = CompiledFunction(program)(state, given)
    return hypotheses(*method.results(found, tokens), tokens)


def streams(numbers, method):
    """Gives each sentence's number for a search's randomness.

    Args:
        numbers: Int array `(B,)`, the sentences' places in all that is searched.
        method: The search.

    Returns:
        Int32 array `(B,)`.

    Example:
        >>> streams(np.arange(2), Greedy())[0].tolist()
        0
    """
    return (numbers.astype("int64") * 2654435761 + method.draw_seed()).astype("int32")


def checked_prefix(prefix, batch_size, max_length, pad_id):
    """Sees that forced tokens fit the search.

    Args:
        prefix: What was given.
        batch_size: Number of sentences B.
        max_length: Number of generated tokens at most.
        pad_id: What fills the end of a short prefix.

    Returns:
        Int32 array `(B, P)`.

    Raises:
        ValueError: If it is not of integers and that shape, is longer than
            `max_length`, or has a gap.

    Example:
        >>> checked_prefix([[5, 0]], 1, 4, 0).tolist()
        [[5, 0]]
    """
    prefix = np.asarray(prefix)
    integers = np.issubdtype(prefix.dtype, np.integer)
    if prefix.ndim != 2 or len(prefix) != batch_size or not integers:
        raise ValueError(
            f"`prefix` must be integers of shape ({batch_size}, length). "
            f"Received: prefix of shape {prefix.shape}, {prefix.dtype.name}."
        )
    real = prefix != pad_id
    if (real[:, 1:] & ~real[:, :-1]).any():
        row = int((real[:, 1:] & ~real[:, :-1]).any(1).argmax())
        raise ValueError(
            "`prefix` must be padded at its end alone. "
            f"Received: prefix[{row}]={prefix[row].tolist()}."
        )
    length = int(real.sum(1).max(initial=0))
    if length > max_length:
        raise ValueError(
            f"`prefix` must be no longer than max_length={max_length}. "
            f"Received: prefix of length {length}."
        )
    return prefix.astype("int32")
