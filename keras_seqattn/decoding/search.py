"""`search`: over any step function; knows no model and no layer.

Shapes: B sentences, W beams, L generated length, V vocabulary.
"""

import numpy as np
from keras import ops, tree

from keras_seqattn import arguments
from keras_seqattn.backend.compile import CompiledFunction
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.hypotheses import SpecialTokens, hypotheses
from keras_seqattn.decoding.ids import checked_prefix
from keras_seqattn.decoding.methods import checked_search


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
            the search is free, or a list of B lists of integers, or None.

    Returns:
        The `Hypotheses`.

    Raises:
        ValueError: If `batch_size` or `max_length` is not a positive integer, `method`
            is not a search, or `prefix` does not fit.

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
    arguments.function("step", step)
    arguments.instance("state", state, dict, "a dict")
    special = {"start_id": start_id, "end_id": end_id, "pad_id": pad_id}
    for name, token_id in special.items():
        arguments.integer(name, token_id)
    arguments.positive_integer("batch_size", batch_size)
    arguments.positive_integer("max_length", max_length)
    method = checked_search("method", method)
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
        >>> from keras_seqattn.decoding import Greedy
        >>> streams(np.arange(2), Greedy())[0].tolist()
        0
    """
    return (numbers.astype("int64") * 2654435761 + method.draw_seed()).astype("int32")
