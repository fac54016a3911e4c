"""`generate`: a model's own search, in few compiled programs.

Batches and lengths are padded to few sizes (see `batches`), for which few programs are
compiled (see `program`).
Shapes: B sentences, S source length, L room for generated tokens, P prefix length.
"""

import collections
import functools
import inspect
import itertools

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.backend import compile
from keras_seqattn.decoding.batches import (
    SHORTEST,
    in_batches,
    is_far,
    lengthened,
    padded,
    padded_length,
    planned,
)
from keras_seqattn.decoding.hypotheses import SpecialTokens, hypotheses
from keras_seqattn.decoding.ids import (
    check_range,
    checked_ids,
    checked_model,
    checked_prefix,
)
from keras_seqattn.decoding.methods import checked_search
from keras_seqattn.decoding.program import programs_of, without_seed
from keras_seqattn.decoding.search import streams
from keras_seqattn.decoding.threads import in_threads, together

# Of the first room, by how much it is longer than the source: most translations fit.
SPARE = 8
# Sentences queue apart from longer ones if that saves so many positions of padding for
# each row: as much as the last rows of a queue cost.
WORTHWHILE = 40


def generate(model, source_ids, search=None, max_length=None, prefix=None):
    """Decodes a batch of source sentences with any model that has the protocol.

    `model` has `encode(source_ids) -> memory`, `initial_state(memory, max_length,
    width) -> state` and `step(token_ids, state, index) -> (logits, state)`. If it has
    `grow_state(state, max_length, index) -> state` too, a large batch begins with less
    room; if its `step` also takes `start`, many sentences queue for the rows of one.
    Batches and lengths are padded to few sizes, so few programs are compiled, each once
    a model and search; `compile_report(model)` counts them.

    Args:
        model: The model. Its attributes `start_id`, `end_id` and `pad_id` are used.
        source_ids: Int array `(B, S)`, padded with the model's `pad_id`, or a list of
            lists of integers.
        search: The search; `Greedy()` when None.
        max_length: Number of generated tokens at most, end included. When None, twice
            the tokens of each sentence and 10, or the model's own limit if less.
        prefix: Int array `(B, P)` of forced first tokens, padded with `pad_id`, or a
            list of B lists of integers, or None.

    Returns:
        The `Hypotheses`, in the order of `source_ids`.

    Raises:
        ValueError: If `source_ids` are not integers of rank 2, hold an id outside the
            vocabulary, or are longer than the model's `max_length`, or `max_length` is
            more than that, `search` is not a search, or `prefix` does not fit.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(50, model_dim=16, intermediate_dim=32)
        >>> found = generate(model, np.array([[5, 7, 2]]), max_length=4)
        >>> found.token_ids.shape
        (1, 1, 4)
    """
    checked_model(model)
    size = getattr(model, "source_vocabulary_size", None)
    source_ids = checked_ids("source_ids", source_ids, size, model.pad_id)
    _check_source_length(model, source_ids.shape[1])
    _check_max_length(model, source_ids.shape[1], max_length)
    if prefix is not None:
        most = max_length or _wanted(model, source_ids.shape[1])
        prefix = checked_prefix(prefix, len(source_ids), most, model.pad_id)
        check_range("prefix", prefix, getattr(model, "target_vocabulary_size", None))
    return decode(model, source_ids, search, max_length, prefix)


def decode(model, source_ids, search=None, max_length=None, prefix=None, plan=None):
    """Does what `generate` does, on arrays that were checked.

    Args:
        model: The model.
        source_ids: Int32 array `(B, S)`.
        search: The search, or None.
        max_length: Number of generated tokens at most, or None.
        prefix: Int32 array `(B, P)` or None.
        plan: The `batches.Plan` by which they are shared out; None: the fastest.

    Returns:
        The `Hypotheses`.

    Example:
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(50, model_dim=16, intermediate_dim=32)
        >>> decode(model, np.array([[5, 7, 2]], "int32"), max_length=3).lengths.shape
        (1, 1)
    """
    search = checked_search("search", search)
    count, length = source_ids.shape
    plan = plan or planned(count, search.width, _can_queue(model))
    length = padded_length(model, length, plan.queued)
    plan = plan.fitted(length, _room(model, length, max_length))
    numbers = streams(np.arange(count), search)
    given = _given(model, source_ids, length, numbers, max_length, prefix)
    programs = _programs(model, search, plan, given, max_length)

    def searched(part):
        chosen = {name: x[part] for name, x in given.items()}
        return programs.run(chosen, plan.most(length))

    parts = plan.cut(np.arange(count), length)
    found = zip(*_at_once(searched, parts), strict=True)
    token_ids, scores, _ = map(np.concatenate, found)
    order = np.argsort(np.concatenate(parts))
    return _hypotheses(model, given, token_ids[order], scores[order])


def decode_lists(
    model, lists, search=None, chosen=None, prefixes=None, first=0, max_length=None
):
    """Decodes lists of token ids, those of about one length together, as is fastest.

    Where they queue, the shortest are searched first, and what is not over when no more
    of a length wait, or does not fit into the room, waits once more, with the longer.

    Args:
        model: The model.
        lists: List of lists of integers, the sources.
        search: The search, or None.
        chosen: Places of the lists that are to be decoded; None: all.
        prefixes: List of as many lists of integers, the first tokens forced, or None.
        first: Place of the first list in all that is searched: a sample does not depend
            on those searched beside it.
        max_length: Number of generated tokens at most, or None.

    Yields:
        Pairs: a list of places, and the `Hypotheses` of the sentences there.

    Example:
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(50, model_dim=16, intermediate_dim=32)
        >>> [places for places, _ in decode_lists(model, [[7, 5, 2], [2], [5, 2]])]
        [[0, 2, 1]]
    """
    places = range(len(lists)) if chosen is None else chosen
    # The longest first: else threads end at other times, and the batch that is not
    # full is the most expensive one.
    places = sorted(places, key=lambda place: -len(lists[place]))
    search = checked_search("search", search)
    numbers = streams(first + np.arange(len(lists)), search)
    plan = planned(len(places), search.width, _can_queue(model))

    def fitted(length):
        return plan.fitted(length, max_length and _room(model, length, max_length))

    def searched(batch, length=None, to_the_end=True):
        source_ids = padded([lists[place] for place in batch], model.pad_id)
        length = length or padded_length(model, source_ids.shape[1])
        prefix = None
        if prefixes is not None:
            prefix = padded([prefixes[place] for place in batch], model.pad_id)
        given = _given(model, source_ids, length, numbers[batch], max_length, prefix)
        own = fitted(length)
        programs = _programs(model, search, own, given, max_length)
        token_ids, scores, ended = programs.run(given, own.most(length), to_the_end)
        found = _hypotheses(model, given, token_ids[ended], scores[ended])
        batch = np.asarray(batch)
        return batch[ended].tolist(), found, batch[~ended].tolist()

    if not plan.queued:
        parts = _fitting(fitted, places, lambda k: padded_length(model, len(lists[k])))
        for batch, found, _ in _at_once(searched, parts):
            yield batch, found
        return
    groups = collections.defaultdict(list)
    for place in places:
        groups[padded_length(model, len(lists[place]), queued=True)].append(place)
    longest = max(groups)
    waiting = groups.pop(longest)
    threads = range(compile.num_threads())
    left = [[] for _ in threads]
    yield from together(
        _queued(
            searched,
            plan,
            {length: some[k :: len(threads)] for length, some in groups.items()},
            longest,
            left[k],
        )
        for k in threads
    )
    waiting = sum(left, waiting)
    own = plan.fitted(longest)
    few = len(waiting) <= own.size  # for a program that has the processor to itself
    parts = [waiting] if few else own.cut(waiting, longest)
    some = functools.partial(searched, length=longest)
    for batch, found, _ in _at_once(some, parts):
        yield batch, found


def settled(model, source_ids, search, max_length=None):
    """Returns with what `decode` searches for one sentence, for a loop of one's own.

    Args:
        model: The model.
        source_ids: Int32 array `(1, S)`.
        search: The search.
        max_length: Number of generated tokens at most, or None.

    Returns:
        Four: a dict of arrays `(1, ...)`, "source_ids", "limits" and "streams"; the
        number of rows; the search, whose seed is in "streams"; and the number of
        generated tokens that its state needs memory for.
    """
    length = padded_length(model, source_ids.shape[1])
    numbers = streams(np.arange(1), search)
    given = _given(model, source_ids, length, numbers, max_length)
    room = max(int(given["limits"].max()), _room(model, length, max_length))
    return given, planned(1).size, without_seed(search), room


def _fitting(fitted, places, length):
    """Cuts places, the longest first, into batches that a program has the memory for.

    Args:
        fitted: Function of a padded length: the `Plan` for it.
        places: List of the places.
        length: Function of a place: the padded length of the sentence there.

    Yields:
        Slices of `places`.
    """
    while places:
        longest = length(places[0])
        most = places[: fitted(longest).size]
        batch = [place for place in most if not is_far(length(place), longest)]
        yield batch
        places = places[len(batch) :]


def _queued(searched, plan, groups, longest, left):
    """Searches the sentences of one thread, those of each padded length in a queue.

    Args:
        searched: Function of places, their padded length, and whether to search all of
            them to the end: returns the places of what was searched to the end, what
            was found there, and the other places.
        plan: The `Plan`.
        groups: Dict of the places by padded length.
        longest: A padded length above these.
        left: List that gets the places of what was not searched to the end.

    Yields:
        Pairs of places and their `Hypotheses`.
    """
    own = {place: length for length, some in groups.items() for place in some}
    for length, longer in itertools.pairwise([*sorted(groups), longest]):
        waiting = left + groups[length]
        left.clear()
        saved = sum(longer - own[place] for place in waiting)
        if saved < plan.size * WORTHWHILE:
            left += waiting
            continue
        for batch in in_batches(waiting, plan.fitted(length).most(length)):
            to_the_end = is_far(length, longer)
            batch, found, others = searched(batch, length, to_the_end)
            left += others
            if batch:
                yield batch, found


def _given(model, source_ids, length, numbers, max_length=None, prefix=None):
    """Makes what a program gets, a dict of arrays `(B, ...)`.

    Args:
        model: The model.
        source_ids: Int32 array `(B, S)`.
        length: The length that they are padded to.
        numbers: Int32 array `(B,)`, the sentences' randomness.
        max_length: Number of generated tokens at most, or None.
        prefix: Int32 array `(B, P)` or None.
    """
    given = {
        "source_ids": lengthened(model, source_ids, length),
        "limits": _limits(model, source_ids, max_length),
        "streams": numbers,
    }
    if prefix is not None and (prefix != model.pad_id).any():
        width = padded_length(model, prefix.shape[1])
        given["prefix"] = lengthened(model, prefix, width)
    return given


def _programs(model, search, plan, given, max_length=None):
    """Gives the programs for what `_given` made."""
    _check_coverage(model, search)
    length = given["source_ids"].shape[1]
    room = max(int(given["limits"].max()), _room(model, length, max_length))
    first_room = room
    if max_length is None and hasattr(model, "grow_state"):
        first_room = min(room, length + SPARE)
    tokens = _tokens(model)
    return programs_of(model, search, plan.size, first_room, room, tokens)


def _room(model, length, max_length=None):
    """Returns the room for generated tokens that sources of a padded length get."""
    if max_length is None:
        return _wanted(model, length)
    return _round_up(max_length, SHORTEST)


def _hypotheses(model, given, token_ids, scores):
    return hypotheses(token_ids[:, :, : given["limits"].max()], scores, _tokens(model))


def _tokens(model):
    return SpecialTokens(model.start_id, model.end_id, model.pad_id)


def _at_once(function, batches):
    """Gives what a function gives for each batch, as many at once as is fastest."""
    batches = list(batches)
    return in_threads(function, batches, min(compile.num_threads(), len(batches)))


def _limits(model, source_ids, max_length):
    """Gives the most tokens of each sentence, int32 `(B,)`."""
    lengths = (source_ids != model.pad_id).sum(axis=1).tolist()
    return np.array([_wanted(model, n, max_length) for n in lengths], "int32")


def _round_up(number, multiple):
    return -(-number // multiple) * multiple


def _can_queue(model):
    """Says whether a sentence can begin while others go on."""
    able = "start" in inspect.signature(model.step).parameters
    return able and hasattr(model, "grow_state")


def _check_coverage(model, search):
    able = "coverage" in inspect.signature(model.initial_state).parameters
    if search.needs_coverage and not able:
        raise ValueError(
            "`search` must have a `coverage_penalty` of 0 for a model whose "
            "`initial_state` takes no `coverage`. "
            f"Received: search={search!r}."
        )


def _check_source_length(model, length):
    most = getattr(model, "max_length", None)
    if most is not None and length > most:
        raise ValueError(
            f"`source_ids` must be no longer than {most}, the model's `max_length`. "
            f"Received: source_ids of length {length}."
        )


def _check_max_length(model, source_length, max_length):
    if max_length is None:
        return
    arguments.positive_integer("max_length", max_length)
    most = _most_generated(model, source_length)
    if most is not None and max_length > most:
        raise ValueError(
            f"`max_length` must be at most {most}, the model's own. "
            f"Received: max_length={max_length!r}."
        )


def _wanted(model, source_length, max_length=None):
    """Returns the number of tokens that the caller and the model allow."""
    wanted = 2 * source_length + 10 if max_length is None else max_length
    most = _most_generated(model, source_length)
    return wanted if most is None else min(wanted, most)


def _most_generated(model, source_length):
    """Gives the model's own limit; a language model's counts the prompt too."""
    if hasattr(model, "most_generated"):
        return model.most_generated(source_length)
    return getattr(model, "max_length", None)
