"""Static batches: sentences that a program begins and searches together.

    state = _search_until_few(batch)             # steps until few sentences are left
    for each part of those that are left:        # `finish`
        _resume_search(state of that part)       # with the whole capacity

The last few sentences of a batch take many more steps than the others. So a batch of a
size in `TAILS` begins with little capacity for generated tokens, if the model's state
can grow and the caller sets no limit, which makes each step cheaper. It stops when only
its tail, a quarter of the sentences, is left, or when that capacity is used up. What is
left goes on in batches of the tail's size, with the whole capacity. A batch of another
size has the whole capacity from the beginning, and stops when all have ended.

Batches and lengths are padded to few sizes, for which few programs are compiled: short
batches of one search all to the same size, long ones to the next of `BATCH_SIZES`.
Shapes: B sentences, S source length, P prefix length, L capacity.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_seqattn.annotations import State, Tensor
from keras_seqattn.backend import compile
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.constraints import Constraints
from keras_seqattn.decoding.hypotheses import Hypotheses, SpecialTokens, next_power
from keras_seqattn.decoding.methods import Search
from keras_seqattn.decoding.protocol import initial_state, length_limit
from keras_seqattn.scheduling.programs import compiled
from keras_seqattn.scheduling.threads import in_threads

# Numbers of sentences that programs are compiled for: a batch is padded to one of them.
# The largest keeps a processor busy, and is small enough that a batch holds sentences
# of similar length: a batch takes as long as its longest sentence. Other sizes, tails
# and lengths were tried on a file: benchmarks/results/2026-11-26.md.
BATCH_SIZES = (1, 4, 8, 16, 32, 64)
# The shortest length that programs are compiled for: sources are padded to this times a
# power of 2.
SHORTEST = 16
# From the size of a batch to that of the batch in which its last sentences go on.
TAILS = {32: 8, 64: 16}
# In a batch of up to this padded length, sentences may be of any length; in a longer
# one all are longer than a quarter of it.
LONG_SOURCE = 128


class Sentences(NamedTuple):
    """Sentences to search, in arrays padded alike."""

    source_ids: Tensor  # int32 (B, S)
    limits: Tensor  # int32 (B,): most generated tokens
    seeds: Tensor  # int32 (B,): per-sequence seeds of random numbers
    prefix: Tensor  # int32 (B, P): forced first tokens; P is 0 without any
    constraints: Constraints | tuple[()] = ()  # phrases to generate; () for none

    def take(self, rows: Any) -> "Sentences":
        """Returns some of the sentences."""
        return keras.tree.map_structure(lambda x: x[rows], self)

    def fill(self, size: int) -> "Sentences":
        """Returns the sentences, filled to `size` with finished copies of the last."""
        rows = keras.tree.map_structure(lambda x: fill_batch(x, size), self)
        rows.limits[len(self.limits) :] = 0
        return rows


class ProgramOptions(NamedTuple):
    """The options that the programs of a search are compiled for.

    Without a tail the first capacity is the whole one: a program then leaves no
    sentence unfinished, since no other program would go on with it. An exception is
    `search_continuously` not `to_the_end`: what it leaves is searched again from its
    beginning.
    """

    method: Search  # without its seed
    tokens: SpecialTokens
    size: int  # number of sentences that are searched at once
    first_capacity: int  # generated tokens that a batch begins with memory for
    capacity: int  # L, generated tokens that there is memory for in the end

    @property
    def tail(self) -> int:
        """Number of unfinished sentences at which a program stops, or 0.

        They go on in a batch of that many rows.
        """
        return TAILS.get(self.size, 0)


def search_batch(
    model: Any, options: ProgramOptions, sentences: Sentences, to_the_end: bool = True
) -> loop.SearchState:
    """Searches at most `options.size` sentences, all begun at once.

    Unless `to_the_end`, sentences that the program leaves unfinished stay so. Returns
    the method's state, of NumPy arrays `(B, ...)`.
    """
    filled = sentences.fill(options.size)
    state = compiled(model, _search_until_few, options)(filled)
    if to_the_end:
        found = finish(model, options, state)
    else:
        found = to_arrays(state.search_state)
    return keras.tree.map_structure(lambda x: x[: len(sentences.limits)], found)


def finish(
    model: Any, options: ProgramOptions, state: loop.LoopState, *start: Tensor
) -> loop.SearchState:
    """Searches to their end the sentences that a program left unfinished.

    `start` `(B,)` are the steps at which they began, if these differ. Returns the
    method's state, of NumPy arrays `(B, ...)`.
    """
    found = to_arrays(state.search_state)
    # A sentence that is over. There is one wherever rows are to be filled, since `size`
    # divides the number of rows.
    filler = np.argmax(found.finished)
    size = options.tail or options.size
    for left in in_batches(np.flatnonzero(~found.finished), size):
        rows = np.full(size, filler, "int32")
        rows[: len(left)] = left
        ended = compiled(model, _resume_search, options)(state, rows, *start)
        put_rows(found, left, to_arrays(ended))
    return found


def begin_search(
    model: Any,
    method: Search,
    tokens: SpecialTokens,
    sentences: Sentences,
    first_capacity: int,
    capacity: int,
) -> loop.LoopState:
    """Encodes sentences; returns the state before the first step.

    The model's state has space for `first_capacity` steps, the method's for `capacity`.
    """
    model_state = first_model_state(model, method, sentences.source_ids, first_capacity)
    search_state = first_search_state(method, tokens, sentences, capacity)
    return loop.first_loop_state(model_state, search_state)


def first_search_state(
    method: Search, tokens: SpecialTokens, sentences: Sentences, capacity: int
) -> loop.SearchState:
    """Returns the method's state before the first step, for `capacity` tokens."""
    _, limits, seeds, prefix, constraints = sentences
    state = method.begin(limits, seeds, prefix, capacity, tokens)
    return method.constrain(state, constraints) if constraints else state


def first_model_state(
    model: Any, method: Search, source_ids: Tensor, capacity: int
) -> State:
    """Encodes sources; returns the model's state before the first step."""
    memory = model.encode(source_ids)
    coverage = method.needs_coverage
    return initial_state(model, memory, capacity, method.width, coverage)


def _search_until_few(
    model: Any, options: ProgramOptions, sentences: Sentences
) -> loop.LoopState:
    """Searches until few sentences are left, or the first capacity is used up."""
    method, tokens, _, first_capacity, capacity = options
    state = begin_search(model, method, tokens, sentences, first_capacity, capacity)
    state = loop.run(method, model.step, state, tokens, options.tail, first_capacity)
    # Without a tail nothing is left that needs the model's state.
    return state if options.tail else state._replace(model_state={})


def _resume_search(
    model: Any,
    options: ProgramOptions,
    state: loop.LoopState,
    rows: Tensor,
    start: Tensor | None = None,
) -> loop.SearchState:
    """Searches some rows of a state to their end, with the whole capacity."""
    state = loop.take_sentences(state, rows)
    if options.first_capacity < options.capacity:
        grown = model.grow_state(state.model_state, options.capacity, state.num_steps)
        state = state._replace(model_state=grown)
    if start is not None:
        start = keras.ops.take(start, rows, axis=0)
    ended = loop.run(options.method, model.step, state, options.tokens, start=start)
    return ended.search_state


def to_arrays(state: loop.SearchState) -> loop.SearchState:
    """Copies a state to NumPy arrays that may be written to."""
    return keras.tree.map_structure(
        lambda x: np.array(keras.ops.convert_to_numpy(x)), state
    )


def put_rows(state: loop.SearchState, rows: np.ndarray, new: loop.SearchState) -> None:
    """Replaces some rows of a state of NumPy arrays by the first rows of another."""
    pairs = map(keras.tree.flatten, (state, new))
    for x, values in zip(*pairs, strict=True):
        x[rows] = values[: len(rows)]


def schedule(
    search: Callable[[list[int], int], tuple[list[int], Hypotheses, list[int]]],
    size_of: Callable[[int], int],
    lengths: dict[int, int],
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Searches sentences in static batches, those of similar length together.

    `search` and the pairs yielded are as in `search_batches`. `size_of` returns the
    most sentences of a batch for a padded length. `lengths` are padded lengths by
    index, the longest first: otherwise threads would end at different times, and the
    batch that is not full would be the most expensive one.
    """
    batches, waiting = [], list(lengths)
    while waiting:
        longest = lengths[waiting[0]]
        batch = waiting[: size_of(longest)]
        batch = [i for i in batch if not is_much_shorter(lengths[i], longest)]
        batches.append((batch, longest))
        waiting = waiting[len(batch) :]
    yield from search_batches(search, batches)


def search_batches(
    search: Callable[[list[int], int], tuple[list[int], Hypotheses, list[int]]],
    batches: list[tuple[list[int], int]],
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Searches batches, each given as its indices and its padded length, in threads.

    `search` is a function of these two. It returns the indices, their `Hypotheses`, and
    the indices left, here none. Yields indices and their `Hypotheses`.
    """
    threads = min(compile.num_threads(), len(batches))
    for indices, found, _ in in_threads(lambda one: search(*one), batches, threads):
        yield indices, found


def num_rows(count: int, length: int, most: int, width: int = 1) -> int:
    """Returns how many rows a program has for `count` sentences, at most `most`.

    Each row has `width` beams. A batch of up to `LONG_SOURCE` tokens has `most`, so
    that few programs are compiled. In a longer one the rows that only fill it would
    take longer than compiling.

    Example:
        >>> [num_rows(5, length, most=64) for length in (128, 256)]
        [64, 8]
    """
    return most if length <= LONG_SOURCE else min(most, rounded_size(count, width))


def rounded_size(count: int, width: int) -> int:
    """Returns the fewest rows, of `width` beams each, that programs have for `count`.

    It is the smallest of `BATCH_SIZES` that is large enough, or
    `compile.fewest_rows()`, below which a program is no faster.
    """
    size = next(size for size in BATCH_SIZES if size >= count)
    return size if size * width >= compile.fewest_rows() else compile.fewest_rows()


def in_batches(items: Any, size: int = BATCH_SIZES[-1]) -> Iterator[Any]:
    """Yields slices of `size` items, which are searched, or scored, together."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def is_much_shorter(length: int, longer: int) -> bool:
    """Returns whether sentences would waste most of the time in a longer batch.

    False in batches of at most `LONG_SOURCE` tokens, so that few programs are compiled
    for those. Both lengths are padded.

    Example:
        >>> [is_much_shorter(n, longer) for n, longer in ((16, 64), (64, 1024))]
        [False, True]
    """
    return longer > LONG_SOURCE and longer >= 4 * length


def padded_length(model: Any, length: int, continuous: bool = False) -> int:
    """Returns the length that sentences of a length are padded to, at most the model's.

    `continuous` also allows three quarters of each power of 2, for waiting sentences.
    """
    power = next_power(length, SHORTEST)
    if continuous and SHORTEST < power and length <= power * 3 // 4:
        power = power * 3 // 4
    return max(length, min(power, length_limit(model) or power))


def pad_to_length(token_ids: np.ndarray, length: int, pad_id: int) -> np.ndarray:
    """Pads sentences at their end, `(B, ..., S)` to `(B, ..., length)`."""
    padding = [(0, 0)] * (token_ids.ndim - 1) + [(0, length - token_ids.shape[-1])]
    return np.pad(token_ids, padding, constant_values=pad_id)


def fill_batch(array: np.ndarray, size: int) -> np.ndarray:
    """Fills a batch by repeating its last row, `(B, ...)` to `(size, ...)`."""
    padding = [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1)
    return np.pad(array, padding, mode="edge")
