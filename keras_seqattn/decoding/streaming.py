"""`streamed`: the tokens of one text, one after another as they are found.

Two compiled programs: one reads the prompt, one takes a step of the search's loop.
"""

import threading
import weakref

from keras import ops

from keras_seqattn.backend.compile import CompiledFunction
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.batches import filled
from keras_seqattn.decoding.generation import settled
from keras_seqattn.decoding.hypotheses import SpecialTokens


def streamed(model, source_ids, search, max_length=None):
    """Yields the tokens that `decode` finds for one sentence, each when it is found.

    Args:
        model: The model.
        source_ids: Int32 array `(1, S)`.
        search: A `Greedy`, or a `Sample` of one hypothesis.
        max_length: Number of generated tokens at most, or None.

    Yields:
        Token ids, integers, without the end.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.decoding import Greedy
        >>> from keras_seqattn.decoding.generation import decode
        >>> from keras_seqattn.models import LanguageModel
        >>> model = LanguageModel(50, model_dim=16, intermediate_dim=32)
        >>> prompt = np.array([[1, 7]], "int32")
        >>> found = decode(model, prompt, Greedy(), max_length=3)
        >>> list(streamed(model, prompt, Greedy(), 3)) == found.sequence(0)
        True
    """
    given, size, search, room = settled(model, source_ids, search, max_length)
    rows = {name: filled(x, size) for name, x in given.items()}
    rows["limits"][1:] = 0  # finished before they begin
    begin, advance = _programs(model, search, room)
    carried, finished = begin(rows), False
    while not finished:
        carried = advance(carried)
        token = int(_first(carried["found"]["token"])[0])
        if token in (model.end_id, model.pad_id):
            return
        yield token
        finished = bool(_first(carried["found"]["finished"]))


def _first(x):
    """Returns the first row of a tensor as an array."""
    return ops.convert_to_numpy(x)[0]


_PROGRAMS = weakref.WeakKeyDictionary()
_MAKING = threading.Lock()


def _programs(model, search, room):
    """Returns the model's two programs for a search, made at the first call."""
    variables = list(model.variables)
    key = (search, room, *map(id, variables))
    with _MAKING:
        made = _PROGRAMS.setdefault(model, {})
        if key not in made:
            made[key] = tuple(
                CompiledFunction(function, variables, to_numpy=False)
                for function in _functions(weakref.ref(model), search, room)
            )
        return made[key]


def _functions(reference, search, room):
    """Returns what the programs compute; the dict of them must not keep its own key."""
    model = reference()
    tokens = SpecialTokens(model.start_id, model.end_id, model.pad_id)

    def begin(given):
        model = reference()
        state = model.initial_state(model.encode(given["source_ids"]), room, width=1)
        found = loop.begin(search, given["limits"], given["streams"], room, tokens)
        return loop.carried(state, found)

    def advance(carried):
        to = carried["index"] + 1
        return loop.advance(search, reference().step, carried, tokens, room=to)

    return begin, advance
