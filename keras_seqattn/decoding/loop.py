"""The loop of a search, in `keras.ops` that compile, for any model with the protocol.

    while sentences are unfinished:                                        # run
        logits, model_state = step(token, model_state, num_steps)          # take_step
        search_state, parents = method.advance(search_state, log_softmax(logits))
        model_state["beam"] = gather(model_state["beam"], parents)

The method (`methods`, `sampling`, `beam`) chooses tokens and beams; the loop reorders
the model's state and counts the steps. Sentences can be taken out of a running search
(`take_sentences`), and can begin at steps of their own (`start`). The model then gets
the step of the loop, `num_steps`, and the method the position in each sentence,
`num_steps - start`.
Shapes: B sentences, W beams, V vocabulary, S source length, P prefix length.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import State, Tensor
from keras_seqattn.backend import compile
from keras_seqattn.decoding.beam_state import BeamState
from keras_seqattn.decoding.hypotheses import Hypotheses, SpecialTokens, hypotheses
from keras_seqattn.decoding.ids import check_range, checked_prefix
from keras_seqattn.decoding.methods import (
    GreedyState,
    Search,
    checked_search,
    sequence_seeds,
)
from keras_seqattn.decoding.processors import gather, log_softmax
from keras_seqattn.decoding.protocol import check_leaves, check_step

# What a method carries from step to step.
SearchState: TypeAlias = GreedyState | BeamState


class LoopState(NamedTuple):
    """A search between two steps."""

    num_steps: Tensor  # int32 scalar: number of steps taken
    # The model's: {"beam": tensors (B, W, ...), which are reordered; "sentence":
    # (B, ...)}, and under "shared", if present, tensors that belong to no sentence.
    model_state: State
    search_state: SearchState


def first_loop_state(model_state: State, search_state: SearchState) -> LoopState:
    """Makes the state before the first step."""
    return LoopState(ops.convert_to_tensor(0, "int32"), model_state, search_state)


def take_step(
    method: Search,
    step: Callable[..., tuple[Tensor, State]],
    state: LoopState,
    tokens: SpecialTokens,
    start: Tensor | None = None,
) -> LoopState:
    """Takes one step; the sentences began at the steps `start` `(B,)`, or at 0."""
    num_steps, model_state, search_state = state
    began = {} if start is None else {"start": start}
    logits, model_state = step(search_state.token, model_state, num_steps, **began)
    position = num_steps if start is None else num_steps - start  # (B,)
    if method.needs_log_probs:
        log_probs = log_softmax(logits)  # (B, W, V)
    else:
        log_probs = ops.cast(logits, "float32")  # The logits have the same order.
    coverage = _coverage(model_state) if method.needs_coverage else None
    search_state, parents = method.advance(
        search_state, log_probs, position, tokens, coverage
    )
    if parents is not None and method.width > 1:
        beam = keras.tree.map_structure(
            lambda x: gather(x, parents), model_state["beam"]
        )
        model_state = {**model_state, "beam": beam}
    return LoopState(num_steps + 1, model_state, search_state)


def run(
    method: Search,
    step: Callable[..., tuple[Tensor, State]],
    state: LoopState,
    tokens: SpecialTokens,
    stop_at: int = 0,
    capacity: int | None = None,
    start: Tensor | None = None,
) -> LoopState:
    """Searches until few sentences are unfinished, or the model state is full.

    It stops when at most `stop_at` sentences are unfinished. `capacity` is the number
    of steps that the model state has memory for; None: for all. The sentences began at
    the steps `start` `(B,)`, or at 0.
    """

    def goes_on(state: LoopState) -> Tensor:
        many = count_unfinished(state.search_state) > stop_at
        if capacity is None:
            return many
        return ops.logical_and(many, state.num_steps < capacity)

    def body(state: LoopState) -> tuple[LoopState]:
        return (take_step(method, step, state, tokens, start),)

    return ops.while_loop(goes_on, body, (state,))[0]


def count_unfinished(search_state: SearchState) -> Tensor:
    """Counts the sentences that are not finished, an int32 scalar."""
    return ops.sum(ops.cast(ops.logical_not(search_state.finished), "int32"))


def take_sentences(state: LoopState, rows: Tensor) -> LoopState:
    """Takes the sentences of some rows, int32 `(C,)`, out of a running search."""

    def take(tensors: Any) -> Any:
        return keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tensors)

    model_state = {
        part: tensors if part == "shared" else take(tensors)
        for part, tensors in state.model_state.items()
    }
    return LoopState(state.num_steps, model_state, take(state.search_state))


def _coverage(model_state: State) -> Tensor:
    """Computes sum over the source of log(min(attention received, 1)), `(B, W)`."""
    received = ops.log(ops.clip(model_state["beam"]["coverage"], 1e-9, 1.0))
    real = model_state["sentence"]["mask"][:, None]
    return ops.sum(ops.where(real, received, 0.0), axis=-1)


def search(
    step: Callable[..., tuple[Tensor, dict[str, Any]]],
    state: dict[str, Any],
    *,
    batch_size: int,
    max_length: int,
    start_id: int = 1,
    end_id: int = 2,
    pad_id: int = 0,
    method: Search | None = None,
    prefix: np.ndarray | Sequence[Sequence[int]] | None = None,
) -> Hypotheses:
    """Searches for likely sequences under any step function.

    The whole search is one XLA program on TensorFlow and JAX; torch runs the same
    steps eagerly. It ends as soon as every sentence has ended. Each call compiles anew;
    `generate` keeps the programs of a model with the decoding protocol.

    Args:
        step: `step(token_ids, state, index) -> (logits, state)` in `keras.ops`:
            token ids int32 `(B, W)`, index a scalar int32 tensor, logits
            `(B, W, V)`.
        state: Structure of arrays with static shapes: `{"beam": arrays (B, W, ...),
            reordered when beams change places, "sentence": arrays (B, ...)}`, with
            W the method's `width`; under "shared" there may be arrays that belong to no
            sentence. A `coverage_penalty` needs two arrays: `["beam"]["coverage"]`,
            float32 `(B, W, S)`, the attention that each source position has got, which
            `step` adds to; and `["sentence"]["mask"]`, bool `(B, S)`, True = a real
            token.
        batch_size: Number of sentences B.
        max_length: Number of generated tokens at most, end included.
        start_id: The token every sentence starts with; never generated, unless it is
            also `end_id`.
        end_id: The token that ends a sentence.
        pad_id: The token that fills a sentence that has ended; never generated, unless
            it is also `end_id`.
        method: The search; `Greedy()` when None.
        prefix: Int array `(B, P)` of forced first tokens, padded with `pad_id` at the
            end of each row, or a list of B lists of integers, or None.

    Returns:
        The `Hypotheses`.

    Raises:
        ValueError: If `batch_size` or `max_length` is not a positive integer, `end_id`
            is not in the vocabulary, `method` is not a search, `prefix` does not fit
            or holds an id for which there is no logit, or `step` or `state` has other
            structures or shapes than these.

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
    if prefix is None:
        prefix = np.zeros((batch_size, 0), "int32")
    prefix = checked_prefix(prefix, [max_length] * batch_size, pad_id)

    def program(state: Any, seeds: Tensor, prefix: Tensor) -> Any:
        limits = ops.convert_to_tensor(np.full((batch_size,), max_length, "int32"))
        first = method.begin(limits, seeds, prefix, max_length, tokens)
        begun = first_loop_state(state, first)
        return run(method, step, begun, tokens).search_state

    check_leaves("`state` must have", state)
    state = keras.tree.map_structure(ops.convert_to_tensor, state)
    size = check_step(step, state, batch_size, method.width, method.needs_coverage)
    check_range("prefix", prefix[prefix != pad_id], size)
    seeds = sequence_seeds(np.arange(batch_size), method)
    found = compile.CompiledFunction(program)(state, seeds, prefix)
    return hypotheses(*method.results(found), tokens)
