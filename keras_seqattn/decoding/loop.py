"""The loop of a search, in `keras.ops` that compile.

What the loop carries is a dict of tensors: "index", a scalar; "state", the model's; and
"found", the search's, with "prefix" where tokens are forced, and "start" where a
sentence began at a step of its own. All but the index and what the state has under
"shared" have the sentence as their first axis, so that sentences can be taken out of a
running search, and others put in their place (see `queue`).
Shapes: B sentences, W beams, S source length, L room for generated tokens.
"""

import keras
from keras import ops

from keras_seqattn.backend.ops import gather
from keras_seqattn.decoding.ranking import gathered


def begin(search, limits, streams, room, tokens, prefix=None):
    """Makes what is found before the first step.

    Args:
        search: A `Greedy`, `Sample` or `BeamSearch`.
        limits: Int32 tensor `(B,)`, each sentence's most tokens, at most L.
        streams: Int32 tensor `(B,)`, a number for each sentence's randomness.
        room: Room for generated tokens L, an integer.
        tokens: The `SpecialTokens`.
        prefix: Int32 tensor `(B, P)` of forced first tokens, or None.

    Returns:
        A dict of tensors `(B, ...)`.
    """
    found = search.begin(limits, streams, room, tokens)
    return found if prefix is None else {**found, "prefix": prefix}


def carried(state, found):
    """Makes what the loop carries before the first step.

    Args:
        state: The model's state: {"beam": tensors `(B, W, ...)`, "sentence": tensors
            `(B, ...)`}, and "shared", tensors of no sentence, if there are any.
        found: What `begin` gave.

    Returns:
        A dict of tensors.
    """
    index = ops.convert_to_tensor(0, "int32")
    return {"index": index, "state": state, "found": found}


def advance(search, step, carried, tokens, enough=0, room=None, queue=None):
    """Searches until few sentences are unfinished, or the state's room is used up.

    Args:
        search: A `Greedy`, `Sample` or `BeamSearch`.
        step: The step function.
        carried: What `begin` or another call gave.
        tokens: The `SpecialTokens`.
        enough: Number of unfinished sentences with which to stop.
        room: Number of steps that the state has room for; None: for all.
        queue: The `Queue` that `carried` began with, from which rows are filled, so
            that there are few unfinished only when none waits; or None.

    Returns:
        A dict like `carried`.
    """

    def going_on(carried):
        unfinished = ops.logical_not(carried["found"]["finished"])
        many = ops.sum(ops.cast(unfinished, "int32")) > enough
        if queue is not None:
            return ops.logical_or(many, queue.waiting(carried))
        return many if room is None else ops.logical_and(many, carried["index"] < room)

    def body(carried):
        if queue is not None:
            carried = queue.load(carried)
        index, found = carried["index"], carried["found"]
        own, begun = index, {}  # the position in a sentence
        if "start" in found:
            own, begun = index - found["start"], {"start": found["start"]}
        logits, state = step(found["token"], carried["state"], index, **begun)
        log_probs = ops.cast(logits, "float32")  # (B, W, V)
        if search.needs_log_probs:
            # Not `log_softmax`, which writes down the logits once more before it sums.
            log_probs = log_probs - ops.logsumexp(log_probs, axis=-1, keepdims=True)
        found, parents = search.advance(
            found,
            log_probs,
            own,
            tokens,
            found.get("prefix"),
            _covered(state) if search.needs_coverage else None,
        )
        if parents is not None:
            beam = keras.tree.map_structure(
                lambda x: gathered(x, parents), state["beam"]
            )
            state = {**state, "beam": beam}
        if queue is not None:
            found = queue.outgrow(found, own + 1)
        return ({**carried, "index": index + 1, "state": state, "found": found},)

    return ops.while_loop(going_on, body, (carried,))[0]


def taken(carried, rows):
    """Takes sentences out of a running search.

    Args:
        carried: What `advance` gave, without what a queue added.
        rows: Int32 tensor `(C,)`.

    Returns:
        A dict like `carried`, of C sentences.
    """

    def take(tensors):
        return keras.tree.map_structure(lambda x: gather(x, rows), tensors)

    state = carried["state"]
    return {
        "index": carried["index"],
        "state": {p: state[p] if p == "shared" else take(state[p]) for p in state},
        "found": take(carried["found"]),
    }


def _covered(state):
    """Gives sum over the source of log(min(attention received, 1)), `(B, W)`."""
    received = ops.log(ops.clip(state["beam"]["coverage"], 1e-9, 1.0))
    real = state["sentence"]["mask"][:, None]
    return ops.sum(ops.where(real, received, 0.0), axis=-1)
