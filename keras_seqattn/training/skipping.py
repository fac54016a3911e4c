"""The batches of a resumed epoch that a run has trained on before."""

from collections.abc import Callable, Iterable
from typing import Any

import keras


class SkippedBatches:
    """Lets `fit` skip the first batches of an epoch.

    For these the model's train function does nothing, and no callback that saves
    weights by its `save_freq` is called after them: the weights are not those that the
    model had then.

    Args:
        model: The model, at the beginning of an epoch.
        number: How many batches to skip. `steps_per_execution` divides it.
        callbacks: The callbacks of the `fit`.
        before_next: Function called before the first batch that is not skipped.
    """

    def __init__(
        self,
        model: keras.Model,
        number: int,
        callbacks: Iterable[keras.callbacks.Callback],
        before_next: Callable[[], None],
    ) -> None:
        self.number = number
        self._model, self._left, self._before_next = model, number, before_next
        self._history, self._has_ended = model.history, False
        model.make_train_function(force=True)  # An earlier `fit` may have left ours.
        self._train, model.train_function = model.train_function, self._skip
        for callback in callbacks:
            if hasattr(callback, "save_freq"):  # as `ModelCheckpoint` has
                self._silence(callback)

    def end(self) -> None:
        """Restores what was replaced; the epoch may have ended before all batches."""
        self._has_ended = True
        if self._model.train_function == self._skip:
            self._model.train_function = self._train

    @property
    def _is_over(self):
        # A `fit` that was interrupted has not called `end`; the next has a new history.
        return self._has_ended or self._model.history is not self._history

    def _skip(self, *state_and_data):
        """Takes the place of the model's train function."""
        if self._is_over:
            self._model.train_function = self._train
            return self._train(*state_and_data)
        *state, data = state_and_data
        together = self._model.steps_per_execution
        if hasattr(data, "__next__"):  # On torch, data is a batch, not an iterator.
            for _ in range(together):
                next(data)
        self._left -= together
        if self._left <= 0:
            self._model.train_function = self._train
            self._before_next()
        return ({}, *state) if state else {}  # On JAX the state is returned too.

    def _silence(self, callback: Any) -> None:
        on_batch_end = type(callback).on_train_batch_end

        def on_train_batch_end(batch, logs=None):
            if self._is_over or batch >= self.number:
                on_batch_end(callback, batch, logs)

        callback.on_train_batch_end = on_train_batch_end
