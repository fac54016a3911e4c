"""How one trial runs, from its last saved epoch to its end, and what it records."""

import contextlib
import errno
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import keras_tuner
import numpy as np

from keras_seqattn import training
from keras_seqattn.backend.datasets import is_made_of_batches
from keras_seqattn.files import replacing
from keras_seqattn.training.callback_states import callbacks_with
from keras_seqattn.training.variables import without_optimizers
from keras_seqattn.tuning import records
from keras_seqattn.tuning.progress import Progress
from keras_seqattn.tuning.records import TrialRecord
from keras_seqattn.tuning.settings import Settings

# A trial whose process died this often before an epoch ended is given up: it would
# kill every process that resumes the study.
MOST_FRUITLESS_STARTS = 10
# The median rule needs PRUNING_TRIALS others, and no trial ends before PRUNING_EPOCHS.
PRUNING_TRIALS, PRUNING_EPOCHS = 4, 2
# How backends report that memory is short: each has an exception of its own.
_OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|ResourceExhausted|MemoryError|bad_alloc|out of memory"
    r"|can't allocate memory",
    re.IGNORECASE,
)
# How Python and HDF5 report a disk that is full or broken: by a number.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
_OF_THE_DISK = re.compile(rf"errno\W+({'|'.join(map(str, _DISK))})\b", re.IGNORECASE)


class TrialEnded(Exception):
    """A trial ends before its last epoch, for a reason that the table shows."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class SearchInterrupted(keras_tuner.errors.FatalError):
    """The search ends here, and the running trial stays as it is, to be resumed."""


class OutOfTime(SearchInterrupted):
    """The study's seconds are spent."""


class SaveScoredWeights(keras.callbacks.Callback):
    """Keeps the weights that each epoch was scored with.

    Once a validation has begun, the callbacks that average, also those of a user's
    `fit`, have put the averages into the model, wherever they stand.
    """

    def __init__(self, record: TrialRecord) -> None:
        super().__init__()
        self._record = record

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Raises an error if the averages would be put in twice, and so taken out."""
        swapping = keras.callbacks.SwapEMAWeights
        if sum(isinstance(x, swapping) for x in callbacks_with(self)) > 1:
            raise ValueError(
                "`fit` must be without a `SwapEMAWeights` of its own: the study adds "
                "one where the model's optimizer has `use_ema`. Received: both."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Removes the weights of an earlier epoch."""
        self._record.last_weights.unlink(missing_ok=True)

    def on_test_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Writes the weights with which a validation is scored."""
        if batch == 0:
            self._save()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the weights of an epoch without a validation."""
        if not self._record.last_weights.exists():
            self._save()

    def _save(self):
        """Writes the weights; those of optimizers are in the trial's state."""
        with (
            without_optimizers(self.model),
            replacing(self._record.last_weights) as unfinished,
        ):
            self.model.save_weights(unfinished)


class Recorder(keras.callbacks.Callback):
    """Records each epoch, and keeps the best weights.

    It ends a trial at once when the loss is not finite or the time is over.
    """

    def __init__(
        self, record: TrialRecord, settings: Settings, progress: Progress
    ) -> None:
        super().__init__()
        self._record, self._settings, self._progress = record, settings, progress

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Raises `OutOfTime` if an epoch as long as the last would not end in time."""
        last = self._record.epochs[-1:]
        if last and self._settings.clock.left() < last[0]["seconds"]:
            raise OutOfTime("no time is left for another epoch")
        self._begin = time.monotonic()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Begins to time the first step."""
        self._started, self._record.first_step = time.monotonic(), None

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Checks the loss and the clock."""
        if self._record.first_step is None:
            self._record.first_step = time.monotonic() - self._started
        loss = float((logs or {}).get("loss", 0.0))
        if not np.isfinite(loss):
            raise TrialEnded(records.NAN, f"the loss is {loss} at batch {batch}")
        if self._settings.clock.is_over():
            raise OutOfTime("the time is over")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Records the epoch."""
        record, settings = self._record, self._settings
        score = settings.task.score(settings.score_name, logs, record)
        # A metric may be an array, with a number for each class.
        logs = {name: float(x) for name, x in logs.items() if np.ndim(x) == 0}
        if not np.isfinite(score):
            name = settings.score_name
            raise TrialEnded(records.NAN, f"{name} is {score} in epoch {epoch + 1}")
        owner = records.TrialRecord.load(record.path).owner
        if owner != record.owner:
            raise SearchInterrupted(f"trial {record.trial_id} is now run by {owner}")
        seconds = time.monotonic() - self._begin
        direction, now = settings.objective.direction, settings.clock.elapsed()
        if record.note_epoch(epoch, logs, score, direction, seconds, now):
            record.last_weights.replace(record.best_weights)
        record.save()
        self._progress.epoch(record)


class Pausing(training.Resume):
    """A `Resume` that ends a trial where `is_done` says so, and sets `has_paused`.

    Sets `stop_training` only after saving: a save that recorded it would not resume.
    """

    def __init__(
        self,
        record: TrialRecord,
        is_done: Callable[[TrialRecord], bool],
        **kwargs: Any,
    ) -> None:
        super().__init__(record.state, **kwargs)
        self._record, self._is_done = record, is_done
        self.has_paused: bool = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves, then ends the trial if `is_done` says so."""
        super().on_epoch_end(epoch, logs)
        if self._is_done(self._record):
            self.model.stop_training = self.has_paused = True


def is_below_median(
    record: TrialRecord, others: list[TrialRecord], direction: str
) -> bool:
    """Returns whether the median stopping rule ends a trial.

    It does where the trial's best score so far is worse than the median of the other
    trials' best scores up to the same epoch, but never in the first epochs or among few
    others. `others` may include the trial itself.

    Reference:
        Golovin et al. 2017, "Google Vizier", section 3.1. Differs: uses the best score
        of each other trial so far, not its mean, also of trials that still run.
    """
    num_epochs = len(record.epochs)
    if num_epochs < PRUNING_EPOCHS:
        return False
    scores = [
        other.best_until(num_epochs, direction)
        for other in others
        if other.trial_id != record.trial_id and len(other.epochs) >= num_epochs
    ]
    if len(scores) < PRUNING_TRIALS:
        return False
    score = record.best_until(num_epochs, direction)
    return score != records.BEST[direction](score, np.median(scores))


@contextlib.contextmanager
def failures_as_ends() -> Iterator[None]:
    """Turns an error that ends a trial, but not the search, into `TrialEnded`.

    A disk that is full or broken says nothing of the trial, and ends the search.
    """
    try:
        yield
    except (TrialEnded, keras_tuner.errors.FatalError):
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if _OF_THE_DISK.search(message):
            fatal = keras_tuner.errors.FatalRuntimeError
            raise fatal(f"the search ended in {message}") from error
        short = _OUT_OF_MEMORY.search(message) is not None
        status = records.OUT_OF_MEMORY if short else records.FAILED
        raise TrialEnded(status, message[:2000]) from error


def fit(
    model: keras.Model,
    hp: keras_tuner.HyperParameters,
    settings: Settings,
    record: TrialRecord,
    epochs: int,
    is_done: Callable[[TrialRecord], bool],
    progress: Progress,
) -> bool:
    """Continues a trial's training; returns whether `is_done` ended it.

    `is_done` is asked after each epoch; a callback of the user's may also end it.
    """
    # A kill may have come after the last epoch but before the trial was ended.
    if len(record.epochs) < epochs and is_done(record):
        return True
    task = settings.task
    given = task.fit_arguments(model, record)
    batches = None if "y" in given else given["x"]
    if is_made_of_batches(batches):
        batches = None  # Their order cannot be repeated.
    if hasattr(batches, "pass_over"):
        # A trial begins with the first pass, whatever this process trained before.
        batches.pass_over(-(batches.pass_over(0, 0) or 0))
    # Last, so that every epoch that it saves has been recorded.
    pausing = Pausing(record, is_done, data=batches)
    callbacks = [
        SaveScoredWeights(record),
        *task.callbacks(model, record, settings.objective.name),
        Recorder(record, settings, progress),
        pausing,
    ]
    task.hypermodel.fit(
        hp, model, epochs=epochs, callbacks=callbacks, verbose=0, **given
    )
    if not record.epochs:
        raise ValueError(
            "`build` must have a `fit` that passes `callbacks` on to the model's. "
            "Received: a `fit` in which they recorded no epoch."
        )
    return pausing.has_paused and len(record.epochs) < epochs
