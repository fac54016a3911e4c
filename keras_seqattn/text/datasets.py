"""Datasets for `fit` from a corpus: each pass over one is the next epoch."""

import functools
import importlib.util
from collections.abc import Iterator
from typing import Any

import keras

from keras_seqattn.annotations import Dataset
from keras_seqattn.text import graph
from keras_seqattn.text.epochs import Epochs


def make_batches(epochs: Epochs, skipped: int) -> Dataset:
    """Makes a dataset for `fit`, of which each pass is the next epoch.

    It is a `tf.data.Dataset` where TensorFlow is installed, else an `EpochDataset`, and
    has the method `pass_over` and the attributes `shapes`, `skipped` and
    `target_tokens`.
    """
    batches = EpochDataset(epochs)
    if importlib.util.find_spec("tensorflow"):
        example = epochs.epoch(0).batch(0)
        pass_over = batches.pass_over
        batches = graph.make_dataset(batches.__iter__, example, epochs.steps)
        batches.pass_over = pass_over
    batches.shapes = set(epochs.buckets)
    batches.skipped = skipped
    tokens = int(epochs.plain[-1].lengths.sum())
    batches.target_tokens = tokens * epochs.copies.number
    return batches


class EpochDataset(keras.utils.PyDataset):
    """Batches of arrays, epoch after epoch, without TensorFlow.

    Each pass is the next epoch, whether `fit` makes it or a loop does. A pass that
    stops before its last batch does not count, since a first `fit` reads a batch to
    build the loss. (`fit` reads a few batches ahead. If an epoch has no more than
    these, that first reading may count as a pass.) Within an epoch of `fit`, batches
    may be requested in any order, and more than once.
    """

    def __init__(self, epochs: Epochs) -> None:
        super().__init__()
        self._epochs, self._number = epochs, 0
        self.pass_over(0)

    def pass_over(self, epochs: int, batches: int = 0) -> int:
        """Skips epochs, and then batches of the epoch that follows.

        `training.Resume` calls it. A negative number of epochs goes back. Skipped
        batches are not made: the first batch after them comes in place of each. Returns
        the number of the epoch that comes next.
        """
        self._number += epochs
        self._first, self._batch_of, self._asked = batches, None, set()
        self._token = object()  # An iterator counts its pass only if this is unchanged.
        return self._number

    def __len__(self) -> int:
        """Returns the number of batches in each epoch."""
        return self._epochs.steps

    def __getitem__(self, index: int) -> Any:
        """Returns a batch of the current epoch by its number."""
        if self._batch_of is None:
            self._batch_of = self._batch_function()
        number = range(len(self))[index]
        # Where `fit` shuffles, the skipped batches are the first that it requests.
        none_left = len(self._asked) >= self._first
        self._asked.add(number)
        return self._batch_of(number, none_left)

    def on_epoch_end(self) -> None:
        """Goes on to the next epoch if all batches of this one were requested."""
        if len(self._asked) == len(self):
            self.pass_over(1)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of the next epoch."""
        batch_of = self._batch_function()
        token = self._token
        for index in range(len(self)):
            # Not if another iterator has ended since, or `pass_over` was called.
            if index + 1 == len(self) and self._token is token:
                self.pass_over(1)
            yield batch_of(index)

    def _batch_function(self):
        """Returns the function from a number to a batch of an epoch, the current one.

        Skipped batches are not made: the first one after them stands for each, unless
        all that are skipped were requested.
        """
        first, epoch = self._first, self._epochs.epoch(self._number)
        first_batch = functools.cache(lambda: epoch.batch(first))

        def batch_of(index, none_left=False):
            is_made = index > first or (none_left and index < first)
            return epoch.batch(index) if is_made else first_batch()

        return batch_of
