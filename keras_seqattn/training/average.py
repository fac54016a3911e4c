"""Callbacks that average the weights, and validate and score the averages."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.training.callback_states import callbacks_with
from keras_seqattn.training.snapshot import array_of
from keras_seqattn.training.variables import (
    build_optimizers,
    check_built,
    inner_optimizer,
    slots_of,
)

FAST = "momentum"  # the name that Keras gives `ScheduleFreeAdamW`'s fast weights


class _AveragedWeights(keras.callbacks.Callback):
    """Puts averages into the model during validation, and when `fit` ends."""

    def __init__(self) -> None:
        super().__init__()
        self._trained: list[np.ndarray] = []

    def averages(self) -> list[np.ndarray]:
        """Returns an array for each of the model's weights."""
        raise NotImplementedError

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Raises an error for callbacks that conflict with averages in the model.

        Another callback that swaps weights would mistake the averages for the trained
        weights. One that saves the best weights would save the trained ones, chosen by
        the scores of the averages. One that restores the best weights would put trained
        ones in the place of the averages when `fit` ends, or before these are computed.
        """
        others, name = callbacks_with(self), type(self).__name__
        check_best_weights(others, name)
        swapping = keras.callbacks.SwapEMAWeights, _AveragedWeights
        for other in others:
            if isinstance(other, swapping) and other is not self:
                kind = type(other).__name__
                raise ValueError(
                    f"`callbacks` must be without `{kind}` beside `{name}`: both put "
                    "averages in the place of the weights that are trained. "
                    "Received: both."
                )

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the averages into the model."""
        self._trained = self._weights()
        self._assign(self.averages())

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the trained weights back into the model."""
        self._assign(self._trained)
        self._trained = []

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leaves the averages in the model."""
        self._assign(self.averages())

    def _weights(self):
        return [array_of(weight) for weight in self.model.weights]

    def _assign(self, values):
        for weight, value in zip(self.model.weights, values, strict=True):
            weight.assign(value)


class CheckpointAverage(_AveragedWeights):
    """Validates, and leaves in the model, the mean of the last epochs' weights.

    The weights are taken at the end of each epoch, and averaged in float64; weights
    that are not floats are those of the last epoch. Each validation uses the mean of
    the last epochs, at most `last` of them. With validation data, so does a
    `TranslationScore` that stands after this callback. In between, training goes on
    with its own weights.

    In the same `fit` two kinds of callback are an error: another that averages, such as
    `SwapEMAWeights`, and one that keeps the best weights (`restore_best_weights`, or
    `save_best_only` by a validation score), since it would keep the trained weights,
    not the mean.

    A copy of the weights of each of these epochs is held outside the accelerator.
    `Resume` saves the copies, so a training run that is killed does not lose them.

    Args:
        last: Number of epochs, a positive integer. A shorter run averages all of its
            epochs.

    Raises:
        ValueError: If `last` is not a positive integer; when training begins, if there
            is a callback of the kinds named above.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((4, 1))
        >>> history = model.fit(
        ...     x, x, epochs=3, callbacks=[CheckpointAverage(last=2)], verbose=0
        ... )

    Reference:
        Vaswani et al. 2017, section 6.1. Differs: a checkpoint per epoch, not per ten
        minutes, and the last 10, where theirs were 5 or 20.
    """

    def __init__(self, last: int = 10) -> None:
        super().__init__()
        self.last = arguments.positive_integer("last", last)
        self.checkpoints = []

    def averages(self) -> list[np.ndarray]:
        """Returns the mean of the current weights and those of the last epochs.

        Returns:
            List of arrays, one for each of the model's weights.
        """
        return self._means([*self.checkpoints, self._weights()])

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forgets the epochs of an earlier `fit`."""
        super().on_train_begin(logs)
        self.checkpoints = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Copies the weights, and drops the oldest copy if there are too many."""
        self.checkpoints = [*self.checkpoints, self._weights()][-self.last :]

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leaves the mean in the model."""
        if self.checkpoints:
            self._assign(self._means(self.checkpoints))
        self.checkpoints = []  # So a later `evaluate` also uses the mean.

    def _means(self, checkpoints):
        columns = zip(*checkpoints[-self.last :], strict=True)
        return [_mean(values) for values in columns]


class ScheduleFreeAverage(_AveragedWeights):
    """Validates, and leaves in the model, the average of `ScheduleFreeAdamW`.

    The optimizer trains weights `y = beta_1 x + (1 - beta_1) z` between the average
    `x`, which is the result, and its own fast weights `z`. Each validation uses `x`,
    and so does a `TranslationScore` that stands after this callback. In between,
    training goes on with `y`. When `fit` ends, `x` is in the model, and a further `fit`
    of the same model begins from it. `Resume` continues with `y`.

    It builds the optimizer if that is not built yet. Built by its first step, `z` would
    begin at 0 on TensorFlow, in Keras 3.15, and not at the weights.

    Raises:
        ValueError: When training begins, if the model's optimizer is not a
            `keras.optimizers.ScheduleFreeAdamW` with `beta_1` above 0 and without
            `use_ema`, or was built for a different number of weights; if there is a
            callback that `CheckpointAverage` refuses; or, on TensorFlow, if the model
            is not built.

    Example:
        >>> import keras
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.ScheduleFreeAdamW(0.01), "mse")
        >>> x = np.ones((4, 1))
        >>> history = model.fit(x, x, callbacks=[ScheduleFreeAverage()], verbose=0)

    Reference:
        Defazio et al. 2024, "The Road Less Scheduled", equations 2 to 4. Differs: on
        TensorFlow and torch, Keras 3.15 computes the step's `y` from the new `z` and
        the paper from the old one, so `x` is not quite the paper's average there.
    """

    def averages(self) -> list[np.ndarray]:
        """Returns `x` for the trained weights, and other weights unchanged.

        Returns:
            List of arrays, one for each of the model's weights.
        """
        fast = self._fast_weights()
        return [
            self._average(weight, fast.get(id(weight))) for weight in self.model.weights
        ]

    def _fast_weights(self):
        """Returns each trained weight's variable `z` by the weight's id.

        The dict is empty before the optimizer is built.
        """
        optimizer = inner_optimizer(self.model.optimizer)
        slots = slots_of(optimizer, self.model.trainable_variables, FAST)
        return {id(weight): fast for weight, fast in slots}

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leaves the averages in the model, and sets `z` to them for another `fit`."""
        super().on_train_end(logs)
        fast = self._fast_weights()
        for weight in self.model.weights:
            if id(weight) in fast:
                fast[id(weight)].assign(array_of(weight))

    def _average(self, weight, fast):
        if fast is None:
            return array_of(weight)
        beta = inner_optimizer(self.model.optimizer).beta_1
        y, z = array_of(weight), array_of(fast).astype("float64")
        return ((y - (1 - beta) * z) / beta).astype(y.dtype)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the optimizer, and builds it."""
        super().on_train_begin(logs)
        kind = keras.optimizers.ScheduleFreeAdamW
        optimizer = inner_optimizer(self.model.optimizer)
        if not isinstance(optimizer, kind):
            wanted = "a `keras.optimizers.ScheduleFreeAdamW`"
            arguments.refuse("optimizer", type(optimizer).__name__, wanted)
        if not optimizer.beta_1:
            wanted = "above 0 for `ScheduleFreeAverage`"
            arguments.refuse("beta_1", optimizer.beta_1, wanted)
        trained = len(self.model.trainable_variables)
        fast = sum(x.name.endswith(f"_{FAST}") for x in optimizer.variables)
        if fast and fast != trained:
            raise ValueError(
                f"`optimizer` must be a new one when other weights are trained, now "
                f"{trained}. Received: an optimizer of {fast} weights."
            )
        if optimizer.use_ema:
            wanted = "False for `ScheduleFreeAdamW`, which has an average of its own"
            arguments.refuse("use_ema", True, wanted)
        check_built(self.model, "averaged")
        build_optimizers(self.model)


def check_best_weights(
    callbacks: Sequence[keras.callbacks.Callback], averaging: str, remedy: str = ""
) -> None:
    """Raises an error for a callback that keeps the best weights beside averages.

    Args:
        callbacks: The callbacks of one `fit`.
        averaging: Name of the one that puts averages into the model only while this is
            validated and when `fit` ends.
        remedy: What ends the error, a space and a sentence, or "".

    Raises:
        ValueError: If one of the callbacks has `restore_best_weights`, or
            `save_best_only` by a validation score.

    Example:
        >>> check_best_weights([keras.callbacks.EarlyStopping()], "SwapEMAWeights")
    """
    for other in callbacks:
        is_validated = str(getattr(other, "monitor", "")).startswith("val")
        best = is_validated and getattr(other, "save_best_only", False)
        if best or getattr(other, "restore_best_weights", False):
            option = "save_best_only" if best else "restore_best_weights"
            raise ValueError(
                f"`callbacks` must be without `{option}` beside `{averaging}`: it "
                "keeps trained weights, and the model has the averages while it is "
                "validated and when `fit` ends. "
                f"Received: {type(other).__name__}({option}=True).{remedy}"
            )


def _mean(values):
    if values[0].dtype.kind != "f":
        return values[-1]
    return np.mean(values, axis=0, dtype="float64").astype(values[0].dtype)
