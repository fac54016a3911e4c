"""`stream_tokens`: the tokens of one text, one after another as they are found.

Two compiled programs: one reads the prompt, one takes a step of the search's loop.
"""

from collections.abc import Iterator
from typing import Any

from keras import ops

from keras_seqattn.decoding import loop
from keras_seqattn.decoding.methods import Search
from keras_seqattn.scheduling.generation import prepare_one
from keras_seqattn.scheduling.programs import compiled
from keras_seqattn.scheduling.static import ProgramOptions, Sentences, begin_search


def stream_tokens(
    model: Any, ids: list[int], search: Search, max_length: int | None = None
) -> Iterator[int]:
    """Yields the tokens that a search finds for one sentence, each when it is found.

    The end token is left out. The search is a `Greedy`, or a `Sample` of one
    hypothesis.
    """
    sentences, options = prepare_one(model, ids, search, max_length)
    state = compiled(model, _read_prompt, options)(sentences)
    take_step = compiled(model, _take_step, options)
    is_finished = False
    while not is_finished:
        state = take_step(state)
        found = state.search_state
        token = int(ops.convert_to_numpy(found.token)[0, 0])
        if token in (model.end_id, model.pad_id):
            return
        yield token
        is_finished = ops.convert_to_numpy(found.finished)[0]


def _read_prompt(
    model: Any, options: ProgramOptions, sentences: Sentences
) -> loop.LoopState:
    method, tokens, _, _, capacity = options
    return begin_search(model, method, tokens, sentences, capacity, capacity)


def _take_step(
    model: Any, options: ProgramOptions, state: loop.LoopState
) -> loop.LoopState:
    return loop.take_step(options.method, model.step, state, options.tokens)
