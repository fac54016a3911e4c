"""A callback that ends a training run that diverges and restores good weights."""

import itertools
import math
import types
import warnings
from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.training.callback_states import callbacks_with
from keras_seqattn.training.snapshot import array_of
from keras_seqattn.training.variables import (
    begin_averages,
    build_optimizers,
    changed_variables,
    check_built,
)

# Number of batches of an epoch after which their mean loss is reliable.
FEW = 100


class TerminateOnDivergence(keras.callbacks.Callback):
    """Ends `fit` when the loss is not finite or explodes, and restores good weights.

    The model's weights and the optimizer's state are then those that the epoch began
    with: of the end of the last good epoch, or of the beginning of `fit`. So are other
    optimizers among the model's attributes, as with `Resume`. A warning or an error
    says what happened and what may help.

    The callback watches the mean loss of the epoch so far. It must be finite after each
    batch. From 100 batches on, and at the end of an epoch, it must not exceed the
    lowest of all epochs by more than `rise` times the first such mean (that of the
    first 100 batches, or of a shorter first epoch). So a loss near 0 may vary. No
    loss shows what the last step of an epoch did, so at its end the weights must be
    finite too.

    A copy of the weights and of the optimizer's state is held outside the accelerator.
    Put this callback first, so that callbacks that average, validate or save see the
    good weights. A run that `Resume` saved stays stopped or, with `raise_error`,
    diverges again: begin anew in another directory, with other settings.

    Args:
        rise: Allowed rise, as a positive share of the loss at the beginning.
        raise_error: Whether to raise an error instead of ending `fit` with a warning.

    Attributes:
        diverged: Whether the last `fit` diverged.

    Raises:
        ValueError: If an argument is out of range; on TensorFlow, when training begins,
            if the model is not built.
        RuntimeError: In `fit`, with `raise_error`, when training diverges.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.SGD(1e30), "mse")
        >>> watch = TerminateOnDivergence(raise_error=True)
        >>> x = np.ones((64, 1))
        >>> try:
        ...     model.fit(x, 2 * x, epochs=2, callbacks=[watch], verbose=0)
        ... except RuntimeError as error:
        ...     print(str(error)[:28])
        Training diverged in epoch 1
    """

    def __init__(self, rise: float = 0.3, raise_error: bool = False) -> None:
        super().__init__()
        self.rise = arguments.number("rise", rise, above=0)
        self.raise_error = arguments.boolean("raise_error", raise_error)
        self.diverged = False
        self._first = self._lowest = None
        self._good, self._seen, self._is_first_batch = [], "", False
        # An object, since `Resume` resets numbers to what they were before it skipped
        # batches.
        self._skipped = types.SimpleNamespace(batches=0, seen=0)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forgets an earlier `fit`."""
        self.diverged, self._first, self._lowest = False, None, None
        self._good = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Copies the weights and the optimizer's state, which are still good."""
        check_built(self.model, "watched")
        build_optimizers(self.model)
        self._skipped.batches = self._skipped.seen = 0
        # Else `Resume` restored those of this epoch's beginning.
        self._is_first_batch = not self._good
        if self._is_first_batch:
            self._copy()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Copies them again if averages were in the model when the epoch began."""
        if self._is_first_batch and self._swaps_averages:
            self._copy()  # A callback has taken the averages out since.
        self._is_first_batch = False

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Checks the mean loss so far, and ends training if it is bad."""
        # A `fit` resumed within an epoch skips batches, which have no loss.
        if "loss" not in (logs or {}):
            self._skipped.batches = batch + 1
        self._skipped.seen = batch + 1 - self._skipped.batches
        self._look(logs, self._skipped.seen >= FEW)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the good weights, so that they are validated."""
        if not self._good:  # In an `evaluate` after `fit` there are none.
            return
        self._look_at_weights()
        if self.diverged:
            self._restore()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks the epoch's loss and weights; warns or raises if training diverged."""
        # A few batches, the rest of an epoch that was resumed, show little.
        is_reliable = not self._skipped.batches or self._skipped.seen >= FEW
        self._look(logs, is_reliable)
        self._look_at_weights()
        if self.diverged:
            # Not earlier: within an epoch JAX's trainer holds the weights itself.
            self._restore()
            self._leave_averages()
        elif is_reliable and self._first is not None and "loss" in (logs or {}):
            self._lowest = min(self._lowest, float(logs["loss"]))
        self._good = []
        if self.diverged:
            self._tell(epoch)

    def _look(self, logs, is_reliable):
        """Decides from a mean loss whether training diverged."""
        loss = (logs or {}).get("loss")
        if loss is None or self.diverged:
            return
        loss = float(loss)
        if not math.isfinite(loss):
            self._seen = f"the loss is {loss}"
            self.diverged = self.model.stop_training = True
        elif is_reliable and self._first is None:
            self._first, self._lowest = abs(loss), loss
        elif is_reliable and loss > self._lowest + self.rise * self._first:
            self._seen = f"the mean loss is {loss:.4g} after {self._lowest:.4g} at best"
            self.diverged = self.model.stop_training = True

    def _look_at_weights(self):
        """Decides from the weights whether the last step diverged."""
        weights = map(array_of, self.model.trainable_variables)
        if not self.diverged and not all(np.isfinite(x).all() for x in weights):
            self._seen = "a weight is not finite after the last step"
            self.diverged = self.model.stop_training = True

    def _copy(self):
        self._good = [array_of(variable) for variable in self._variables()]

    def _restore(self):
        for variable, value in zip(self._variables(), self._good, strict=True):
            variable.assign(value)
        begin_averages(self.model)  # `fit` ends by copying them into the weights.

    def _leave_averages(self):
        """Puts averages into the model if a callback will swap them in now.

        As in the last epoch, it must find the same values on both sides: `fit` ends by
        copying what was swapped out.
        """
        if self._swaps_averages:
            model = self.model
            model.optimizer.finalize_variable_values(model.trainable_weights)

    @property
    def _swaps_averages(self):
        """Whether a callback swaps averages in and out between epochs."""
        swapping = keras.callbacks.SwapEMAWeights
        others = [x for x in callbacks_with(self) if isinstance(x, swapping)]
        return any(x.swap_on_epoch for x in others)

    def _tell(self, epoch):
        message = (
            f"Training diverged in epoch {epoch + 1}: {self._seen}. The model has "
            "the weights from before this epoch. Lower the learning rate, give it more "
            "steps of warm-up, or set `global_clipnorm` of the optimizer; if there is "
            "a `Resume`, give it a new directory, since a run keeps its settings."
        )
        if self.raise_error:
            raise RuntimeError(message)
        warnings.warn(message, stacklevel=2)

    def _variables(self):
        return list(itertools.chain.from_iterable(changed_variables(self.model)))
