"""The mean of the weights at the last epochs' ends."""

from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.training.snapshot import array_of


class CheckpointAverage(keras.callbacks.Callback):
    """Leaves the mean of the last epochs' weights in the model when `fit` ends.

    The weights are taken at the end of each epoch, and averaged when the last one is
    over, in float64; weights that are no floats are those of the last epoch. No epoch
    is validated with the mean: `model.evaluate` after `fit` does that. Under an
    optimizer with `use_ema` the raw weights are averaged, unless
    `SwapEMAWeights(swap_on_epoch=True)` stands before in the list of callbacks.

    A copy of the weights for each of the epochs is held outside the accelerator. In a
    training that is to survive a kill, `Resume` keeps the copies.

    Args:
        last: Number of epochs, a positive integer. A training of fewer averages all.

    Raises:
        ValueError: If `last` is not a positive integer.

    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> x = np.ones((4, 1))
        >>> history = model.fit(
        ...     x, x, epochs=3, callbacks=[CheckpointAverage(last=2)], verbose=0
        ... )

    Reference:
        Vaswani et al. 2017, section 6.1. Differs: epochs in place of ten minutes.
    """

    def __init__(self, last: int = 10) -> None:
        super().__init__()
        self.last = arguments.positive_integer("last", last)
        self.checkpoints = []

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Forgets the epochs of an earlier `fit`."""
        self.checkpoints = []

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Takes a copy of the weights, and drops the oldest."""
        weights = [array_of(weight) for weight in self.model.weights]
        self.checkpoints = [*self.checkpoints, weights][-self.last :]

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Puts the mean into the model."""
        weights = self.model.weights
        for weight, *values in zip(weights, *self.checkpoints, strict=True):
            if values:
                weight.assign(_mean(values))


def _mean(values):
    if values[0].dtype.kind != "f":
        return values[-1]
    return np.mean(values, axis=0, dtype="float64").astype(values[0].dtype)
