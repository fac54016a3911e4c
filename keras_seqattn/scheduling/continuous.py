"""Continuous batching: a row whose sentence has ended takes the next one that waits.

    begin the first N sentences, one in each row         # `_search_in_rows`
    while sentences wait or many are unfinished:
        for each free row: save its result, begin the next sentence there   # _load
        take one step of the search in all rows
        a row whose capacity is used up is free too: its sentence overflows
    search what overflowed again, with the whole capacity   # `search_continuously`

So the rows of a program stay full, where a static batch would take as long as its
longest sentence. All rows are at the same step, each in a sentence that began at a step
of its own (`start`); the model's caches are ring buffers of the rows' capacity.
`schedule` searches short sentences before long ones; those not over when no more of a
length wait, and those that overflow, wait once more, with the longer ones.
Shapes: Q sentences, N rows, S source length, P prefix length.
"""

import collections
import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import compile
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.beam_state import BeamState
from keras_seqattn.decoding.hypotheses import Hypotheses
from keras_seqattn.decoding.methods import GreedyState
from keras_seqattn.scheduling.programs import program
from keras_seqattn.scheduling.static import (
    ProgramOptions,
    Sentences,
    encode,
    finish,
    first_state,
    in_batches,
    is_far,
    put_rows,
    to_arrays,
)
from keras_seqattn.scheduling.threads import in_threads, run_together

# Sources that wait are encoded by so many tokens at once, and are at most so many
# blocks of them: this bounds their memory.
BLOCK_TOKENS = 512
MOST_BLOCKS = 16
# A program stops when no more than this share of its rows is unfinished and those will
# be searched again elsewhere: that loses what they have found, and saves steps of rows
# that are free.
HANDOFF_SHARE = 0.75
# Sentences are searched apart from longer ones if that saves at least so many positions
# of padding for each row: as much as the last rows of a program cost.
MIN_PADDING_SAVED = 40


class ContinuousState(NamedTuple):
    """A continuous batch between two steps."""

    rows: loop.LoopState  # the search of the N rows
    start: Tensor  # int32 (N,): the step at which each row's sentence began
    number: Tensor  # int32 (N,): which of the Q sentences is in each row
    overflow: Tensor  # bool (N,): the capacity is used up, the sentence is not over
    next: Tensor  # int32 scalar: number of the sentence that begins next
    results: GreedyState | BeamState  # of all Q sentences


def most_waiting(length: int) -> int:
    """Returns how many sources of a padded length one program takes."""
    return MOST_BLOCKS * BLOCK_TOKENS // length


def search_continuously(
    model: Any,
    options: ProgramOptions,
    sentences: Sentences,
    num_waiting: int,
    to_the_end: bool = True,
) -> GreedyState | BeamState:
    """Searches sentences in the rows of one program.

    The model's `step` takes `start`. The program takes `num_waiting` sentences, Q.
    Unless `to_the_end`, those are left unfinished that overflow or are the last few.
    Returns the method's state, of NumPy arrays `(B, ...)`.
    """
    count, rows = len(sentences.limits), sentences.fill(num_waiting)
    stop_at = options.tail if to_the_end else int(HANDOFF_SHARE * options.size)
    state = program(model, _search_in_rows, options)(
        rows, np.int32(count), np.int32(stop_at)
    )
    overflow, number = map(ops.convert_to_numpy, (state.overflow, state.number))
    results = to_arrays(state.results)
    found = to_arrays(state.rows.search_state)
    if to_the_end:
        found = finish(model, options, state.rows, state.start)
    found.finished[overflow] = False
    put_rows(results, number, found)
    results = keras.tree.map_structure(lambda x: x[:count], results)
    if to_the_end:
        # In batches of `tail` at most: their program ends before its first step, and
        # `finish` searches them with the whole capacity.
        left = np.flatnonzero(~results.finished)
        for again in in_batches(left, options.tail or options.size):
            some = sentences.take(again)
            found = search_continuously(model, options, some, num_waiting)
            put_rows(results, again, found)
    return results


def _search_in_rows(
    model: Any,
    options: ProgramOptions,
    sentences: Sentences,
    count: Tensor,
    stop_at: Tensor,
) -> ContinuousState:
    """Searches until none waits and at most `stop_at` are unfinished.

    Of the Q sentences `count` are real.
    """
    method, tokens, size = options.method, options.tokens, options.size
    waiting, shared = _encode_waiting(model, options, sentences.source_ids, count)

    def goes_on(state: ContinuousState) -> Tensor:
        many = loop.count_unfinished(state.rows.search_state) > stop_at
        return ops.logical_or(many, state.next < count)

    def can_load(state: ContinuousState) -> Tensor:
        is_free = ops.any(state.rows.search_state.finished)
        return ops.logical_and(is_free, state.next < count)

    def load(state: ContinuousState) -> tuple[ContinuousState]:
        new = model.grow_state(row_of(waiting, state.next), options.first_capacity, 0)
        return (_load(state, new),)

    def body(state: ContinuousState) -> tuple[ContinuousState]:
        state = ops.while_loop(can_load, load, (state,))[0]
        rows = loop.advance(method, model.step, state.rows, tokens, state.start)
        is_full = rows.index - state.start >= options.first_capacity
        return (_mark_overflow(state._replace(rows=rows), is_full),)

    results = first_state(method, tokens, sentences, options.capacity)
    first, begun = keras.tree.map_structure(lambda x: x[:size], (waiting, results))
    model_state = {**model.grow_state(first, options.first_capacity, 0), **shared}
    state = ContinuousState(
        rows=loop.begin(model_state, begun),
        start=ops.zeros((size,), "int32"),
        number=ops.arange(size, dtype="int32"),
        overflow=ops.zeros((size,), "bool"),
        next=ops.convert_to_tensor(size, "int32"),
        results=results,
    )
    state = ops.while_loop(goes_on, body, (state,))[0]
    if options.tail:
        return state
    return state._replace(rows=state.rows._replace(model_state={}))


def _load(state: ContinuousState, model_state: dict[str, Any]) -> ContinuousState:
    """Saves the result of the first free row, and begins the next sentence there.

    `model_state` is that of the next sentence, `(1, ...)`, without what is shared.
    """
    index, rows, found = state.rows
    row = ops.cast(ops.argmax(found.finished), "int32")
    ended = row_of(found, row)
    is_over = ops.logical_not(state.overflow[row][None])
    ended = ended._replace(finished=ops.logical_and(ended.finished, is_over))
    results = put(state.results, state.number[row], ended)
    # What is shared stays.
    rows = rows | {
        part: put(rows[part], row, model_state[part]) for part in model_state
    }
    found = put(found, row, row_of(results, state.next))
    return ContinuousState(
        rows=loop.LoopState(index, rows, found),
        start=put(state.start, row, index[None]),
        number=put(state.number, row, state.next[None]),
        overflow=put(state.overflow, row, ops.zeros((1,), "bool")),
        next=state.next + 1,
        results=results,
    )


def _mark_overflow(state: ContinuousState, is_full: Tensor) -> ContinuousState:
    """Ends the rows whose capacity is used up and whose sentence is not over."""
    found = state.rows.search_state
    overflow = ops.logical_and(is_full, ops.logical_not(found.finished))
    found = found._replace(finished=ops.logical_or(found.finished, overflow))
    return state._replace(
        rows=state.rows._replace(search_state=found),
        overflow=ops.logical_or(state.overflow, overflow),
    )


def _encode_waiting(
    model: Any, options: ProgramOptions, source_ids: Tensor, count: Tensor
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Encodes all that wait; returns their state for one step, and what is shared."""
    size, length = source_ids.shape
    block = max(1, BLOCK_TOKENS // length)

    # The last block may reach beyond the end. `slice` and `slice_update` both begin so
    # much earlier then, and it repeats sentences of the block before.
    def encode_block(row: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
        some = ops.slice(source_ids, (row, 0), (block, length))
        # A waiting sentence needs no cache: `load` makes it.
        parts = dict(encode(model, options.method, some, capacity=1))
        shared = {"shared": parts.pop("shared")} if "shared" in parts else {}
        return parts, shared

    first, shared = encode_block(0)
    empty = keras.tree.map_structure(
        lambda x: ops.zeros((size, *x.shape[1:]), x.dtype), first
    )
    _, every = ops.while_loop(
        lambda row, every: row < count,
        lambda row, every: (row + block, put(every, row, encode_block(row)[0])),
        (ops.convert_to_tensor(block, "int32"), put(empty, 0, first)),
    )
    return every, shared


def row_of(tensors: Any, row: Tensor) -> Any:
    """Takes one row of each of nested tensors, `(N, ...)` to `(1, ...)`."""

    def take(x: Tensor) -> Tensor:
        return ops.slice(x, _starts_at(x, row), (1, *x.shape[1:]))

    return keras.tree.map_structure(take, tensors)


def put(tensors: Any, row: Tensor, rows: Any) -> Any:
    """Replaces rows of nested tensors `(N, ...)`, from one on, by others `(n, ...)`."""

    def update(x: Tensor, new: Tensor) -> Tensor:
        return ops.slice_update(x, _starts_at(x, row), new)

    return keras.tree.map_structure(update, tensors, rows)


def _starts_at(x: Tensor, row: Tensor) -> tuple:
    return (row, *[0] * (len(x.shape) - 1))


def schedule(
    search: Callable[..., tuple[list[int], Hypotheses, list[int]]],
    size_of: Callable[[int], int],
    lengths: dict[int, int],
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Searches many sentences, the short ones first, in several programs at once.

    `search` is a function of indices, their padded length, and whether to search all of
    them to the end; it returns the indices of what was searched to the end, the
    `Hypotheses` there, and the indices left. `size_of` returns the number of rows for a
    padded length. `lengths` are padded lengths by index, the longest first.
    """
    groups = collections.defaultdict(list)
    for index, length in lengths.items():
        groups[length].append(index)
    longest = max(groups)
    last, threads = groups.pop(longest), compile.num_threads()
    left = [[] for _ in range(threads)]
    yield from run_together(
        _short_to_long(
            search,
            size_of,
            {length: some[k::threads] for length, some in groups.items()},
            longest,
            left[k],
        )
        for k in range(threads)
    )
    last = sum(left, last)
    # A few: for a program that has the processor to itself.
    is_few = len(last) <= size_of(longest)
    parts = [last] if is_few else deal_out(last, size_of(longest), longest)
    for indices, found, _ in in_threads(
        lambda part: search(part, longest), parts, min(threads, len(parts))
    ):
        yield indices, found


def _short_to_long(
    search: Callable[..., tuple[list[int], Hypotheses, list[int]]],
    size_of: Callable[[int], int],
    groups: dict[int, list[int]],
    longest: int,
    left: list[int],
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Searches the sentences of one thread, one padded length after another.

    `groups` are their indices by padded length, all below `longest`; `left` gets the
    indices of what was not searched to the end. The rest is as of `schedule`.
    """
    length_of = {index: length for length, some in groups.items() for index in some}
    for length, longer in itertools.pairwise([*sorted(groups), longest]):
        waiting = left + groups[length]
        left.clear()
        saved = sum(longer - length_of[index] for index in waiting)
        if saved < size_of(length) * MIN_PADDING_SAVED:
            left += waiting
            continue
        batch_size = max(size_of(length), most_waiting(length))
        for batch in in_batches(waiting, batch_size):
            indices, found, others = search(batch, length, is_far(length, longer))
            left += others
            if indices:
                yield indices, found


def deal_out(items: Any, size: int, length: int) -> list[Any]:
    """Deals sentences of one padded length out to programs, as many to each thread.

    Each part takes every n-th of `items`, so that it spans them from first to last.
    """
    threads, most_items = compile.num_threads(), max(size, most_waiting(length))
    count = -(-len(items) // (most_items * threads)) * threads
    return [items[k::count] for k in range(min(count, len(items)))]
