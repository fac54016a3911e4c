"""`Queue`: a row of a running search whose sentence has ended takes the next one.

So the rows of a program stay full, where a batch would take as long as its longest
sentence. All rows are at the same step, each in a sentence that began at another one.
Shapes: Q sentences that queue, N rows, S source length.
"""

import keras
from keras import ops

from keras_seqattn.decoding import loop
from keras_seqattn.decoding.batches import block_size


class Queue:
    """Sentences that wait, encoded, for a row of a search.

    What is found for all, "all", and the number of the next one, "next", are carried
    by the loop.
    Shapes: Q sentences that queue, N rows, S source length.

    Args:
        model: The model; its `grow_state` gives a row its room.
        state: Function of source ids `(block, S)` and a room: the model's state.
        given: Dict of the "source_ids" `(Q, S)` and their "count", a scalar int32
            tensor; what is behind them fills Q.
        room: Room of a row, an integer: a sentence that is not over by then gives up
            its row, "outgrown".
    """

    def __init__(self, model, state, given, room):
        self._model, self._count, self._room = model, given["count"], room
        # Kept with room for one step.
        self._state, self._shared = _encoded(
            lambda source_ids: state(source_ids, 1), given["source_ids"], self._count
        )

    def begin(self, found, rows):
        """Makes what the loop carries, the first sentences in its rows.

        Args:
            found: What `loop.begin` made for all Q.
            rows: Number of rows N.

        Returns:
            A dict of tensors.
        """
        size = found["limit"].shape[0]
        found = {
            **found,
            "number": ops.arange(size, dtype="int32"),
            "start": ops.zeros((size,), "int32"),
            "outgrown": ops.zeros((size,), "bool"),
        }
        first, begun = keras.tree.map_structure(
            lambda x: x[:rows], (self._state, found)
        )
        state = self._model.grow_state(first, self._room, 0)
        return {
            **loop.carried({**state, **self._shared}, begun),
            "next": ops.convert_to_tensor(rows, "int32"),
            "all": found,
        }

    def waiting(self, carried):
        """Says whether a sentence waits, a bool tensor."""
        return carried["next"] < self._count

    def load(self, carried):
        """Gives each row whose sentence is over the next one that waits."""

        def possible(carried):
            over = ops.any(carried["found"]["finished"])
            return ops.logical_and(over, self.waiting(carried))

        return ops.while_loop(possible, lambda c: (self._load_one(c),), (carried,))[0]

    def _load_one(self, carried):
        found, index = carried["found"], carried["index"]
        row = ops.cast(ops.argmax(found["finished"]), "int32")
        every = put(carried["all"], found["number"][row], row_of(found, row))
        new = {**row_of(every, carried["next"]), "start": ops.reshape(index, (1,))}
        fresh = row_of(self._state, carried["next"])
        fresh = self._model.grow_state(fresh, self._room, 0)
        # What is shared stays.
        state = dict(carried["state"])
        state |= {part: put(state[part], row, fresh[part]) for part in fresh}
        return {
            "index": index,
            "next": carried["next"] + 1,
            "state": state,
            "found": put(found, row, new),
            "all": every,
        }

    def outgrow(self, found, index):
        """Ends the rows whose room is used up.

        Args:
            found: What the search has found.
            index: Int32 tensor `(N,)`, the number of tokens in each row.

        Returns:
            A dict like `found`.
        """
        full = ops.logical_and(index >= self._room, ops.logical_not(found["finished"]))
        return {
            **found,
            "finished": ops.logical_or(found["finished"], full),
            "outgrown": ops.logical_or(found["outgrown"], full),
        }


def _encoded(state, source_ids, count):
    """Gives the state of all that queue, and apart from it what it shares."""
    size, length = source_ids.shape
    block = block_size(length)

    def split(place):
        parts = dict(state(ops.slice(source_ids, (place, 0), (block, length))))
        shared = {"shared": parts.pop("shared")} if "shared" in parts else {}
        return parts, shared

    first, shared = split(0)
    empty = keras.tree.map_structure(
        lambda x: ops.zeros((size, *x.shape[1:]), x.dtype), first
    )
    _, every = ops.while_loop(
        lambda place, every: place < count,
        lambda place, every: (place + block, put(every, place, split(place)[0])),
        (ops.convert_to_tensor(block, "int32"), put(empty, 0, first)),
    )
    return every, shared


def row_of(tensors, row):
    """Takes one row of each tensor.

    Args:
        tensors: Nested structure of tensors `(N, ...)`.
        row: The row, an integer or a scalar int32 tensor.

    Returns:
        The same of tensors `(1, ...)`.

    Example:
        >>> [int(x) for x in row_of(ops.array([4, 5]), 1)]
        [5]
    """

    def take(x):
        return ops.slice(x, _place(x, row), (1, *x.shape[1:]))

    return keras.tree.map_structure(take, tensors)


def put(tensors, row, rows):
    """Puts rows in the place of others.

    Args:
        tensors: Nested structure of tensors `(N, ...)`.
        row: Where the first of them goes, an integer or a scalar int32 tensor.
        rows: The same structure of tensors `(n, ...)`.

    Returns:
        A structure like `tensors`.

    Example:
        >>> [int(x) for x in put(ops.array([4, 5]), 1, ops.array([6]))]
        [4, 6]
    """

    def update(x, new):
        return ops.slice_update(x, _place(x, row), new)

    return keras.tree.map_structure(update, tensors, rows)


def _place(x, row):
    return (row, *[0] * (len(x.shape) - 1))
