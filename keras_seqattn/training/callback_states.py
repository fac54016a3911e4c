"""The states of the callbacks of one `fit`, and the changes in them."""

import collections
import copy
import gc
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.training.snapshot import array_of, is_plain
from keras_seqattn.training.variables import changed_variables


class CallbackStates:
    """Finds what has changed in the states of callbacks since this object was made.

    Changes in `kept` are to be saved. A warning names any of `others` whose state
    changes.
    """

    def __init__(
        self,
        kept: Sequence[keras.callbacks.Callback],
        others: Sequence[keras.callbacks.Callback],
    ) -> None:
        self.kept, self.others = kept, others
        self._kept_begun = self.copies()
        self._unsaved_begun = [_unsaved(callback) for callback in kept]
        self._others_begun = [
            {**copy.deepcopy(_plain(callback)), **_unsaved(callback)}
            for callback in others
        ]
        self._warned = set()

    def changed(self) -> list[Any]:
        """Returns each kept callback's class name and its changed attributes."""
        self._warn()
        return [
            [type(callback).__name__, _changed(_plain(callback), begun)]
            for callback, begun in zip(self.kept, self._kept_begun, strict=True)
        ]

    def restore(self, saved: list[Any]) -> None:
        """Puts what `changed` returned into kept callbacks, by class and in order."""
        waiting = list(self.kept)
        for name, state in saved:
            of_class = (x for x in waiting if type(x).__name__ == name)
            callback = next(of_class, None)
            # The state of a missing callback is dropped; a new callback keeps its own.
            if callback is None:
                continue
            waiting.remove(callback)
            # It is still changed if it becomes what it was when this object was made.
            begun = self._kept_begun[self.kept.index(callback)]
            for attribute in state:
                begun.pop(attribute, None)
            if getattr(callback, "monitor_op", callback) is None:
                # Keras sets `monitor_op` in a callback's first epoch, and then negates
                # `min_delta` for "min". Until then the constructor's must stay, or its
                # sign would change twice.
                state = {k: v for k, v in state.items() if k != "min_delta"}
            vars(callback).update(state)

    def copies(self) -> list[dict[str, Any]]:
        """Returns copies of the current states, for `put_back`."""
        return [copy.deepcopy(_plain(callback)) for callback in self.kept]

    def put_back(self, copies: list[dict[str, Any]]) -> None:
        """Restores the states that `copies` returned."""
        for callback, state in zip(self.kept, copies, strict=True):
            vars(callback).update(state)

    def _warn(self):
        """Warns of changed state that is not saved, once per attribute or callback."""
        for callback, begun in zip(self.kept, self._unsaved_begun, strict=True):
            for name in _changed(_unsaved(callback), begun):
                self._warn_once(
                    (callback, name),
                    f"`Resume` does not save `{name}` of {type(callback).__name__}, "
                    "which has changed: a resumed run may differ. Keep it in "
                    "numbers, strings, NumPy arrays, or lists and dicts of these. "
                    f"Received: {name} of type {type(vars(callback)[name]).__name__}.",
                )
        for callback, begun in zip(self.others, self._others_begun, strict=True):
            state = {**_plain(callback), **_unsaved(callback)}
            if names := list(_changed(state, begun)):
                self._warn_once(
                    (callback, None),
                    f"`callbacks` of `Resume` does not list {type(callback).__name__}, "
                    f"whose {', '.join(names)} changed: a resumed run may differ. "
                    "Add it, or leave `callbacks` None to keep the state of all.",
                )

    def _warn_once(self, key, message):
        place = tuple(map(id, key))
        if place not in self._warned:
            self._warned.add(place)
            warnings.warn(message, stacklevel=2)


def standing_before(
    callback: keras.callbacks.Callback,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks before this one in the same `fit`; [] if none are found.

    Keras does not tell a callback which list it is in. So the list is searched among
    the objects in memory, by the callback's parameters, which must be set. A warning
    names the callbacks that act at an epoch's end and stand after this one.
    """
    together = callbacks_with(callback)
    place = together.index(callback) if together else 0
    _warn_of_late(together[place + 1 :])
    return together[:place]


def callbacks_with(
    callback: keras.callbacks.Callback,
) -> list[keras.callbacks.Callback]:
    """Returns all callbacks of the same `fit`, with this one; [] if none are found."""
    for thing in gc.get_objects():
        if not issubclass(type(thing), keras.callbacks.CallbackList):
            continue
        # The list of an earlier `fit` with the same callback may still be in memory.
        if thing.params is callback.params and callback in thing.callbacks:
            return thing.callbacks
    return []


def plain_logs(logs: dict[str, Any]) -> dict[str, Any]:
    """Returns logs with tensors as numbers or arrays, and without what is no value."""
    plain = {}
    for name, value in logs.items():
        if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
            value = array_of(value)
            value = value if value.ndim else value.item()
        if is_plain(value):
            plain[name] = value
        else:
            warnings.warn(
                f"`Resume` does not save `{name}` of the logs: the history of a "
                "resumed run lacks it. Let callbacks log numbers, strings, tensors, or "
                f"lists and dicts of numbers. Received: {name}={value!r:.80}.",
                stacklevel=2,
            )
    return plain


def _warn_of_late(after):
    """Warns if a callback that acts at an epoch's end stands after `Resume`."""
    own = keras.callbacks.History, keras.callbacks.ProgbarLogger
    default = keras.callbacks.Callback.on_epoch_end
    late = [
        type(callback).__name__
        for callback in after
        if type(callback).on_epoch_end is not default and not isinstance(callback, own)
    ]
    if late:
        warnings.warn(
            "`callbacks` of `fit` should end with `Resume`, which saves what others "
            f"have done. Received: {' and '.join(late)} after it.",
            stacklevel=2,
        )


def split(
    before: list[keras.callbacks.Callback],
    chosen: Sequence[keras.callbacks.Callback] | None,
) -> tuple[list[keras.callbacks.Callback], list[keras.callbacks.Callback]]:
    """Splits the callbacks before `Resume` into the chosen (None: all) and the rest."""
    if chosen is None:
        return before, []
    places = set(map(id, before))
    if strange := [x for x in chosen if id(x) not in places]:
        names = [type(x).__name__ for x in strange]
        wanted = "callbacks that stand before `Resume` in the same `fit`"
        arguments.refuse("callbacks", names, wanted)
    places = set(map(id, chosen))
    others = [x for x in before if id(x) not in places]
    return [x for x in before if id(x) in places], others


def _plain(callback):
    """Returns the attributes of a callback that can be saved, without Keras's own."""
    return {
        name: value
        for name, value in vars(callback).items()
        if name != "params" and is_plain(value)
    }


def _unsaved(callback):
    """Returns copies of the data in the attributes that cannot be saved."""
    model = callback.model
    variables = [] if model is None else changed_variables(model)
    saved = set(map(id, itertools.chain.from_iterable(variables)))
    data = {
        name: _data(value, saved)
        for name, value in vars(callback).items()
        if not is_plain(value)
    }
    return {name: value for name, value in data.items() if value is not None}


def _data(value, saved):
    """Copies the data in a value; None if it is not data, or is saved elsewhere."""
    if id(value) in saved or isinstance(value, keras.KerasTensor):
        return None
    if isinstance(value, keras.Variable):
        return array_of(value)
    if keras.ops.is_tensor(value):
        try:
            return np.array(keras.ops.convert_to_numpy(value))
        except RuntimeError:  # JAX has deleted a tensor that was donated to a step.
            return None
    if isinstance(value, dict):
        # The keys of values that are no data, such as open files, are none either.
        if all(x is not None and _data(x, saved) is None for x in value.values()):
            return None
        value = [*value, *value.values()]
    if isinstance(value, list | tuple | collections.deque):
        items = [_data(x, saved) for x in value]
        return None if all(x is None for x in items) else items
    if isinstance(value, set | frozenset | bytes | bytearray | np.ndarray):
        return copy.deepcopy(value)
    return value if is_plain(value) else None


def _changed(state, begun):
    """Returns the attributes that have changed since training began."""
    return {
        name: value
        for name, value in state.items()
        if name not in begun or not _is_same(begun[name], value)
    }


def _is_same(left, right):
    """Returns whether two plain values, and the arrays in them, are equal."""
    both = (left, right)
    if any(isinstance(x, np.ndarray) for x in both):
        return left is right or np.array_equal(left, right)
    if all(isinstance(x, list | tuple) for x in both):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if all(isinstance(x, dict) for x in both):
        return left.keys() == right.keys() and all(
            _is_same(value, right[key]) for key, value in left.items()
        )
    return left == right
