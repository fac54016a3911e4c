"""The loop of a search, in `keras.ops` that compile.

What the loop carries is a dict of tensors: "index", a scalar; "state", the model's;
"found", the search's; and "prefix" where tokens are forced. All but the index and
what the state has under "shared" have the sentence as their first axis, so that
sentences can be taken out of a running search.
Shapes: B sentences, W beams, S source length, L room for generated tokens.
"""

import keras
from keras import ops

from keras_seqattn import compiled
from keras_seqattn.decoding.ranking import gathered


def begin(search, state, limits, streams, room, tokens, prefix=None):
    """Makes what the loop carries before the first step.

    Args:
        search: A `Greedy`, `Sample` or `BeamSearch`.
        state: The model's state: {"beam": tensors `(B, W, ...)`, "sentence": tensors
            `(B, ...)`}, and "shared", tensors of no sentence, if there are any.
        limits: Int32 tensor `(B,)`, each sentence's most tokens, at most L.
        streams: Int32 tensor `(B,)`, a number for each sentence's randomness.
        room: Room for generated tokens L, an integer.
        tokens: The `SpecialTokens`.
        prefix: Int32 tensor `(B, P)` of forced first tokens, or None.

    Returns:
        A dict of tensors.
    """
    carried = {
        "index": ops.convert_to_tensor(0, "int32"),
        "state": state,
        "found": search.begin(limits, streams, room, tokens),
    }
    return carried if prefix is None else {**carried, "prefix": prefix}


def advance(search, step, carried, tokens, enough=0, room=None):
    """Searches until few sentences are unfinished, or the state's room is used up.

    Args:
        search: A `Greedy`, `Sample` or `BeamSearch`.
        step: The step function.
        carried: What `begin` or another call gave.
        tokens: The `SpecialTokens`.
        enough: Number of unfinished sentences with which to stop.
        room: Number of steps that the state has room for; None: for all.

    Returns:
        A dict like `carried`.
    """

    def going_on(index, state, found):
        left = ops.sum(ops.cast(ops.logical_not(found["finished"]), "int32"))
        if room is None:
            return left > enough
        return ops.logical_and(left > enough, index < room)

    def body(index, state, found):
        logits, state = step(found["token"], state, index)
        logits = ops.cast(logits, "float32")
        # Not `log_softmax`, which writes down the logits once more before it sums.
        log_probs = logits - ops.logsumexp(logits, axis=-1, keepdims=True)  # (B, W, V)
        found, parents = search.advance(
            found,
            log_probs,
            index,
            tokens,
            carried.get("prefix"),
            _covered(state) if search.needs_coverage else None,
        )
        if parents is not None:
            beam = keras.tree.map_structure(
                lambda x: gathered(x, parents), state["beam"]
            )
            state = {**state, "beam": beam}
        return index + 1, state, found

    first = (carried["index"], carried["state"], carried["found"])
    index, state, found = ops.while_loop(going_on, body, first)
    return {**carried, "index": index, "state": state, "found": found}


def taken(carried, rows):
    """Takes sentences out of a running search.

    Args:
        carried: What `advance` gave.
        rows: Int32 tensor `(C,)`.

    Returns:
        A dict like `carried`, of C sentences.
    """

    def take(part, tensors):
        if part in ("index", "shared"):  # of no sentence
            return tensors
        return keras.tree.map_structure(lambda x: compiled.gather(x, rows), tensors)

    state = {part: take(part, tensors) for part, tensors in carried["state"].items()}
    rest = {part: take(part, carried[part]) for part in carried if part != "state"}
    return {**rest, "state": state}


def _covered(state):
    """Gives sum over the source of log(min(attention received, 1)), `(B, W)`."""
    received = ops.log(ops.clip(state["beam"]["coverage"], 1e-9, 1.0))
    real = state["sentence"]["mask"][:, None]
    return ops.sum(ops.where(real, received, 0.0), axis=-1)
