"""Continuous batching: a row whose sentence has ended takes the next one that waits.

    begin the first R sentences, one in each row         # `_search_in_rows`
    while sentences wait or many are unfinished:
        for each free row: save its result, begin the next sentence there   # `_load`
        take one step of the search in all rows
        a row whose capacity is used up is free too: its sentence overflows
    the last few go on in a smaller program              # `static.finish`
    search what overflowed again, from its beginning     # `search_continuously`

So the rows of a program stay full, where a static batch would take as long as its
longest sentence (measured in benchmarks/results/2026-11-23.md). All rows are at the
same step, each in a sentence that began at a step of its own (`start`); the model's
caches are ring buffers of the rows' capacity. The model must have `grow_state`, and its
`step` must take `start`. If a program takes no more sentences than it has rows, none
would wait: `generation` makes it a static batch.

`schedule` searches short sentences before long ones. Those that a program of short ones
leaves unfinished, at most `HANDOFF_SHARE` of its rows and what overflowed, are searched
again with longer ones.
Shapes: B sentences, filled to Q, the number that a program takes; R rows.
"""

import collections
import itertools
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqattn.annotations import State, Tensor
from keras_seqattn.backend import compile
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.hypotheses import Hypotheses
from keras_seqattn.scheduling.programs import compiled
from keras_seqattn.scheduling.static import (
    ProgramOptions,
    Sentences,
    finish,
    first_model_state,
    first_search_state,
    in_batches,
    is_much_shorter,
    put_rows,
    search_batches,
    to_arrays,
)
from keras_seqattn.scheduling.threads import run_together

# The sources of a program are encoded in blocks of `BLOCK_TOKENS` tokens. A program
# takes at most `MOST_BLOCKS` of them, which bounds their memory.
BLOCK_TOKENS = 512
MOST_BLOCKS = 16
# A program whose last sentences will be searched again elsewhere stops when at most
# this share of its rows is unfinished. That loses what those have found, and saves
# steps in which many rows are free.
HANDOFF_SHARE = 0.75
# Sentences are searched apart from longer ones if that saves at least this many
# positions of padding for each row. A program of their own costs about as many, since
# most of its rows are free in its last steps.
MIN_PADDING_SAVED = 40


class ContinuousState(NamedTuple):
    """A continuous batch between two steps."""

    # The search in the R rows. A row that it calls finished is free: its sentence has
    # ended, or `overflow` is true.
    running: loop.LoopState
    start: Tensor  # int32 (R,): the step at which each row's sentence began
    number: Tensor  # int32 (R,): which of the Q sentences is in each row
    overflow: Tensor  # bool (R,): the capacity is used up before the sentence is over
    next: Tensor  # int32 scalar: number of the sentence that begins next
    # The search's state of each of the Q sentences: before its first step for one that
    # waits, at its end for one that has left its row.
    results: loop.SearchState


def most_sentences(length: int) -> int:
    """Returns Q, the number of sources of a padded length that one program takes."""
    return MOST_BLOCKS * BLOCK_TOKENS // length


def search_continuously(
    model: Any,
    options: ProgramOptions,
    sentences: Sentences,
    to_the_end: bool = True,
) -> loop.SearchState:
    """Searches at most Q sentences in the rows of one program.

    Unless `to_the_end`, sentences that the program leaves unfinished stay so. Returns
    the method's state, of NumPy arrays `(B, ...)`.
    """
    stop_at = options.tail if to_the_end else int(HANDOFF_SHARE * options.size)
    state = _run_rows(model, options, sentences, stop_at)
    overflow, number = map(ops.convert_to_numpy, (state.overflow, state.number))
    results = to_arrays(state.results)
    if to_the_end:
        found = finish(model, options, state.running, state.start)
    else:
        found = to_arrays(state.running.search_state)
    found.finished[overflow] = False  # `_mark_overflow` set it only to free their rows
    put_rows(results, number, found)
    results = keras.tree.map_structure(lambda x: x[: len(sentences.limits)], results)
    if to_the_end and options.tail:  # without a tail nothing overflows
        for left in in_batches(np.flatnonzero(~results.finished), options.tail):
            # The same two programs. The first begins the sentences and takes no step,
            # since so few are left; the second has the whole capacity.
            state = _run_rows(model, options, sentences.take(left), options.tail)
            found = finish(model, options, state.running, state.start)
            put_rows(results, left, found)
    return results


def _run_rows(
    model: Any, options: ProgramOptions, sentences: Sentences, stop_at: int
) -> ContinuousState:
    """Calls the compiled `_search_in_rows` on sentences filled to Q."""
    filled = sentences.fill(most_sentences(sentences.source_ids.shape[1]))
    run = compiled(model, _search_in_rows, options)
    # Arrays, not options, so that one program serves all numbers of sentences.
    return run(filled, np.int32(len(sentences.limits)), np.int32(stop_at))


def _search_in_rows(
    model: Any,
    options: ProgramOptions,
    sentences: Sentences,
    count: Tensor,
    stop_at: Tensor,
) -> ContinuousState:
    """Searches until no sentence waits and at most `stop_at` are unfinished.

    Only the first `count` of the Q sentences are real.
    """
    method, tokens, size = options.method, options.tokens, options.size
    encoded, shared = _encode_all(model, options, sentences.source_ids, count)

    def goes_on(state: ContinuousState) -> Tensor:
        many = loop.count_unfinished(state.running.search_state) > stop_at
        return ops.logical_or(many, state.next < count)

    def can_load(state: ContinuousState) -> Tensor:
        is_free = ops.any(state.running.search_state.finished)
        return ops.logical_and(is_free, state.next < count)

    def load(state: ContinuousState) -> tuple[ContinuousState]:
        new = {**row_of(encoded, state.next), **shared}
        return (_load(state, model.grow_state(new, options.first_capacity, 0)),)

    def body(state: ContinuousState) -> tuple[ContinuousState]:
        state = ops.while_loop(can_load, load, (state,))[0]
        running = loop.take_step(method, model.step, state.running, tokens, state.start)
        is_full = running.num_steps - state.start >= options.first_capacity
        return (_mark_overflow(state._replace(running=running), is_full),)

    results = first_search_state(method, tokens, sentences, options.capacity)
    first, begun = keras.tree.map_structure(lambda x: x[:size], (encoded, results))
    model_state = model.grow_state({**first, **shared}, options.first_capacity, 0)
    state = ContinuousState(
        running=loop.first_loop_state(model_state, begun),
        start=ops.zeros((size,), "int32"),
        number=ops.arange(size, dtype="int32"),
        overflow=ops.zeros((size,), "bool"),
        next=ops.convert_to_tensor(size, "int32"),
        results=results,
    )
    state = ops.while_loop(goes_on, body, (state,))[0]
    if options.tail:
        return state
    # Without a tail nothing is left that needs the model's state.
    return state._replace(running=state.running._replace(model_state={}))


def _load(state: ContinuousState, new: State) -> ContinuousState:
    """Saves the result of the first free row, and begins the next sentence there.

    `new` is the model's state of the next sentence, `(1, ...)`.
    """
    num_steps, model_state, found = state.running
    row = ops.cast(ops.argmax(found.finished), "int32")
    ended = row_of(found, row)
    is_over = ops.logical_not(state.overflow[row][None])
    ended = ended._replace(finished=ops.logical_and(ended.finished, is_over))
    results = put(state.results, state.number[row], ended)
    model_state = {
        part: tensors if part == "shared" else put(tensors, row, new[part])
        for part, tensors in model_state.items()
    }
    found = put(found, row, row_of(results, state.next))
    return ContinuousState(
        running=loop.LoopState(num_steps, model_state, found),
        start=put(state.start, row, num_steps[None]),
        number=put(state.number, row, state.next[None]),
        overflow=put(state.overflow, row, ops.zeros((1,), "bool")),
        next=state.next + 1,
        results=results,
    )


def _mark_overflow(state: ContinuousState, is_full: Tensor) -> ContinuousState:
    """Frees the rows whose capacity is used up and whose sentence is not over."""
    found = state.running.search_state
    overflow = ops.logical_and(is_full, ops.logical_not(found.finished))
    found = found._replace(finished=ops.logical_or(found.finished, overflow))
    return state._replace(
        running=state.running._replace(search_state=found),
        overflow=ops.logical_or(state.overflow, overflow),
    )


def _encode_all(
    model: Any, options: ProgramOptions, source_ids: Tensor, count: Tensor
) -> tuple[State, State]:
    """Encodes the first `count` of the Q sentences, block by block.

    Returns the model's state of each, of capacity 1, and the state that belongs to no
    sentence.
    """
    size, length = source_ids.shape
    block = max(1, BLOCK_TOKENS // length)

    # If the last block reaches beyond the end, `slice` and `slice_update` both begin
    # earlier by as much, so that it repeats sentences of the block before.
    def encode_block(row: Tensor) -> tuple[State, State]:
        some = ops.slice(source_ids, (row, 0), (block, length))
        # A waiting sentence needs no cache: `load` makes it.
        parts = dict(first_model_state(model, options.method, some, capacity=1))
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
    """Takes one row of each of nested tensors, `(R, ...)` to `(1, ...)`."""

    def take(x: Tensor) -> Tensor:
        return ops.slice(x, _starts_at(x, row), (1, *x.shape[1:]))

    return keras.tree.map_structure(take, tensors)


def put(tensors: Any, row: Tensor, new: Any) -> Any:
    """Replaces a part of nested tensors `(R, ...)`, beginning at `row`, by `new`."""

    def update(x: Tensor, values: Tensor) -> Tensor:
        return ops.slice_update(x, _starts_at(x, row), values)

    return keras.tree.map_structure(update, tensors, new)


def _starts_at(x: Tensor, row: Tensor) -> tuple:
    return (row, *[0] * (len(x.shape) - 1))


def schedule(
    search: Callable[..., tuple[list[int], Hypotheses, list[int]]],
    size_of: Callable[[int], int],
    lengths: dict[int, int],
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Searches many sentences, the short ones first, in several programs at once.

    `search` is a function of indices, their padded length, and `to_the_end`, by default
    True; if False, sentences that the program leaves unfinished stay so. It returns the
    indices that were searched to the end, their `Hypotheses`, and the indices left.
    `size_of` returns the number of rows for a padded length. `lengths` are padded
    lengths by index, the longest first. Yields indices and their `Hypotheses`.
    """
    groups = collections.defaultdict(list)
    for index, length in lengths.items():
        groups[length].append(index)
    longest = max(groups)
    last, threads = groups.pop(longest), compile.num_threads()
    left = [[] for _ in range(threads)]

    def search_short(k: int) -> Iterator[tuple[list[int], Hypotheses]]:
        own = {length: some[k::threads] for length, some in groups.items()}
        left[k] = yield from _short_to_long(search, size_of, own, longest)

    yield from run_together(search_short(k) for k in range(threads))
    last = [*last, *itertools.chain.from_iterable(left)]
    # A few sentences share one program, which has the processor to itself.
    is_few = len(last) <= size_of(longest)
    parts = [last] if is_few else split_evenly(last, size_of(longest), longest)
    yield from search_batches(search, [(part, longest) for part in parts])


def _short_to_long(
    search: Callable[..., tuple[list[int], Hypotheses, list[int]]],
    size_of: Callable[[int], int],
    groups: dict[int, list[int]],
    longest: int,
) -> Generator[tuple[list[int], Hypotheses], None, list[int]]:
    """Searches the sentences of one thread, one padded length after another.

    `groups` are their indices by padded length, all below `longest`. Yields as
    `schedule` does, and returns the indices of what was not searched to the end.
    """
    length_of = {index: length for length, some in groups.items() for index in some}
    waiting = []
    for length, longer in itertools.pairwise([*sorted(groups), longest]):
        waiting = waiting + groups[length]
        saved = sum(longer - length_of[index] for index in waiting)
        if saved < size_of(length) * MIN_PADDING_SAVED:
            continue
        batch_size = max(size_of(length), most_sentences(length))
        batches, waiting = in_batches(waiting, batch_size), []
        for batch in batches:
            # Where the next length is much longer, none is left to it: each would take
            # a row there that is mostly padding.
            indices, found, left = search(
                batch, length, to_the_end=is_much_shorter(length, longer)
            )
            waiting += left
            if indices:
                yield indices, found
    return waiting


def split_evenly(items: Any, size: int, length: int) -> list[Any]:
    """Splits sentences of one padded length into programs, as many for each thread.

    Each of n parts takes every n-th of `items`, and so spans them from first to last.
    """
    threads, most_items = compile.num_threads(), max(size, most_sentences(length))
    count = -(-len(items) // (most_items * threads)) * threads
    return [items[k::count] for k in range(min(count, len(items)))]
