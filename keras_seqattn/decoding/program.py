"""The compiled programs of a model's searches: kept, counted, and run.

Of a full batch only the last sentences go on for long. So it begins with little room
for generated tokens, which makes each step cheaper; when a quarter is left, or the room
is used up, those left go on in a smaller program that has all the room. Of more
sentences than fill the programs that run at once, each program has a queue, and keeps
its rows full (see `queue`); those left then may wait once more, with longer ones.
Shapes: B sentences, N hypotheses, L room for generated tokens.
"""

import dataclasses
import threading
import weakref
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.backend import compile
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.batches import filled, in_batches
from keras_seqattn.decoding.queue import Queue

# The size in which the last sentences of a batch go on.
SMALLER = {32: 8, 64: 16}
# With which share of its rows a queue's program stops where they are searched once more
# elsewhere: that loses what they have found, and saves steps with empty rows.
MOVED = 0.75


class CompileReport(NamedTuple):
    """What was compiled for a model's searches.

    Attributes:
        num_programs: Number of programs.
        seconds: Seconds that their first calls took, the run included.

    Example:
        >>> CompileReport(2, 3.5).num_programs
        2
    """

    num_programs: int
    seconds: float


def compile_report(model):
    """Counts the programs that `generate` compiled for a model.

    Args:
        model: The model.

    Returns:
        A `CompileReport`.

    Example:
        >>> compile_report(object.__new__(type("Model", (), {})))
        CompileReport(num_programs=0, seconds=0)
    """
    made = programs(model)
    return CompileReport(
        sum(program.num_programs for program in made),
        sum(program.compile_seconds for program in made),
    )


def programs(model):
    """Gives the programs that `generate` compiled for a model.

    Args:
        model: The model.

    Returns:
        A list of `CompiledFunction`, each with `num_programs` and `compile_seconds`.

    Example:
        >>> programs(object.__new__(type("Model", (), {})))
        []
    """
    arguments.offers("model", model, ("__dict__",), "a model")
    made = _PROGRAMS.get(model, {}).values()
    both = [program for pair in made for program in (pair.start, pair.resume)]
    return [program for program in both if program.num_programs]


_PROGRAMS = weakref.WeakKeyDictionary()
_MAKING = threading.Lock()


def without_seed(search):
    """Returns a search as programs know it: its seed travels as data.

    Args:
        search: The search.

    Returns:
        A search.
    """
    return dataclasses.replace(search, seed=None) if hasattr(search, "seed") else search


def programs_of(model, search, size, first_room, room, tokens):
    """Gives the programs of a model for a search, made at the first call.

    Args:
        model: The model.
        search: The search.
        size: Number of rows.
        first_room: Room for generated tokens with which a search begins.
        room: Room for generated tokens L, at least as much.
        tokens: The `SpecialTokens`.

    Returns:
        A `Programs`.
    """
    search = without_seed(search)
    # `quantize` and `enable_lora` exchange variables: then the programs are others.
    variables = list(model.variables)
    key = (search, size, first_room, room, tokens, *map(id, variables))
    with _MAKING:
        made = _PROGRAMS.setdefault(model, {})
        if key not in made:
            made[key] = Programs(
                weakref.ref(model), variables, search, size, first_room, room, tokens
            )
        return made[key]


class Programs:
    """The compiled programs of one model, search and room.

    `start` begins a batch, and stops when few enough are left for a smaller one, or its
    room is used up; `resume` brings as many as a smaller one holds to their end. With a
    queue, `start` begins as many rows as there are, and a sentence that outgrows their
    room is searched again where there is more, here or by the caller.
    """

    def __init__(self, reference, variables, search, size, first_room, room, tokens):
        # A reference: the dict of programs must not keep its own key alive.
        self._model, self._search, self._size = reference, search, size
        self._first_room, self._room, self._tokens = first_room, room, tokens
        # With how many left `start` stops; then they go on in as many rows.
        self._enough = SMALLER.get(size, 0)
        self._smaller = self._enough or size
        self.start = compile.CompiledFunction(self._start, variables, to_numpy=False)
        self.resume = compile.CompiledFunction(self._resume, variables, to_numpy=False)

    def run(self, given, most, to_the_end=True):
        """Searches at most `most` sentences.

        Args:
            given: Dict of the arrays "source_ids" `(B, S)`, "limits" `(B,)`, "streams"
                `(B,)`, and "prefix" `(B, P)` if tokens are forced.
            most: Number of sentences that `start` takes, B of them real.
            to_the_end: Whether those are brought to their end that `start` leaves.

        Returns:
            Token ids `(B, N, L)`, scores `(B, N)`, and whether that is the end `(B,)`.
        """
        found = self._found(given, most, to_the_end)
        ended = found["finished"] & ~found.get("outgrown", np.bool_(False))
        return *self._search.results(found, self._tokens), ended

    def _found(self, given, most, to_the_end=True):
        """Gives what is found, a dict of NumPy arrays `(B, ...)`."""
        count = len(given["limits"])
        # The rows added repeat the last one, and are finished before they begin.
        rows = {name: filled(x, most) for name, x in given.items()}
        rows["limits"][count:] = 0
        if most > self._size:
            rows["count"] = np.int32(count)
            few = self._enough if to_the_end else int(MOVED * self._size)
            rows["enough"] = np.int32(few)
        carried = self.start(rows)
        found = last = self._ended(carried) if to_the_end else _arrays(carried["found"])
        if "all" in carried:
            found = _arrays(carried["all"])
            for name, values in last.items():
                found[name][last["number"]] = values
        found = {name: x[:count] for name, x in found.items()}
        if to_the_end and "outgrown" in found:
            # So few that they leave `start` at once, for where there is more room.
            outgrown = np.flatnonzero(found["outgrown"])
            for again in in_batches(outgrown, self._smaller):
                chosen = {name: x[again] for name, x in given.items()}
                for name, values in self._found(chosen, most).items():
                    found[name][again] = values
        return found

    def _ended(self, carried):
        """Brings what `start` left to its end; gives what is found in its rows."""
        found = _arrays(carried["found"])
        done = np.argmax(found["finished"])  # a sentence to fill up with
        for left in in_batches(np.flatnonzero(~found["finished"]), self._smaller):
            rows = np.full(self._smaller, done, "int32")
            rows[: len(left)] = left
            for name, values in self.resume(carried, rows).items():
                found[name][left] = ops.convert_to_numpy(values)[: len(left)]
        return found

    def _start(self, given):
        model, search = self._model(), self._search
        enough = given.get("enough", self._enough)
        room = self._first_room if self._enough else self._room
        # Only a search that asks for it finds out whether a model can.
        options = {"coverage": True} if search.needs_coverage else {}

        def state(source_ids, room):
            memory = model.encode(source_ids)
            return model.initial_state(memory, room, width=search.width, **options)

        found = loop.begin(
            search,
            given["limits"],
            given["streams"],
            self._room,
            self._tokens,
            given.get("prefix"),
        )
        queue = None
        if "count" in given:
            queue = Queue(model, state, given, room)
            carried = queue.begin(found, self._size)
        else:
            carried = loop.carried(state(given["source_ids"], room), found)
        carried = loop.advance(
            search, model.step, carried, self._tokens, enough, room, queue
        )
        kept = {"found", "all"} | ({"state", "index"} if self._enough else set())
        return {name: carried[name] for name in carried if name in kept}

    def _resume(self, carried, rows):
        model = self._model()
        carried = loop.taken(carried, rows)
        if self._first_room < self._room:
            carried["state"] = model.grow_state(
                carried["state"], self._room, carried["index"]
            )
        return loop.advance(self._search, model.step, carried, self._tokens)["found"]


def _arrays(tensors):
    """Gives NumPy arrays that may be written to."""
    return {name: np.array(ops.convert_to_numpy(x)) for name, x in tensors.items()}
