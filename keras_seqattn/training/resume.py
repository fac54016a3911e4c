"""Training that continues where it was stopped, as if it had not been stopped.

What `Resume` does when Keras calls its methods:

    set_params          locks the directory, reads the last save, and cuts files to
                        which lines were appended after it
    on_train_begin      restores variables and callbacks, and lets `fit` begin at the
                        saved epoch, and `data` at its pass and batch
    on_epoch_begin      seeds all random numbers; within an epoch, restores variables
                        again, which callbacks may have changed, and replaces the train
                        function by one that skips batches
    on_train_batch_end  with `every` alone: restores the callbacks after skipped
                        batches; saves
    on_epoch_end        saves
    on_train_end        releases the directory
"""

import itertools
import pathlib
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.backend.datasets import (
    has_generator,
    is_begun_again,
    is_made_of_batches,
)
from keras_seqattn.backend.processes import from_first, is_first
from keras_seqattn.backend.random import start_randomness
from keras_seqattn.files import reading
from keras_seqattn.training.callback_states import (
    CallbackStates,
    plain_logs,
    split,
    standing_before,
)
from keras_seqattn.training.run_directory import LAST, RunDirectory, describe_run
from keras_seqattn.training.skipping import SkippedBatches
from keras_seqattn.training.snapshot import REMEDY, array_of
from keras_seqattn.training.variables import (
    build_optimizers,
    changed_variables,
    check_built,
)


class Resume(keras.callbacks.Callback):
    """Saves a training run as it goes, and lets the same `fit` continue it.

    The first `fit` trains and saves at the end of each epoch. However it ended, even by
    a kill, the same script continues after the last save. At every step the weights are
    then those that the run (with this callback) would have had without the
    interruption, bit by bit if the operations themselves repeat to the bit. A run that
    reached its end trains no further; more `epochs` continue it, unless a callback had
    stopped it. (After `SwapEMAWeights(swap_on_epoch=True)` they continue from the
    averages: it drops the trained weights at the end of the last epoch.) A number that
    the optimizer is given as another learning rate changes nothing: the run keeps its
    own, which only a callback may change.

    It saves the weights, the seeds of layers that draw random numbers, the optimizer
    (its slots, its step, its learning rate, its moving averages), the epoch, and the
    logs, so that the `History` that `fit` returns is complete. It also saves the state
    of the callbacks of the same `fit`, such as `EarlyStopping`, `ReduceLROnPlateau`,
    `ModelCheckpoint`, `SwapEMAWeights` and `CheckpointAverage`: of their numbers,
    strings, arrays, and lists and dicts of these, all that have changed since training
    began. A warning names anything else that has changed, such as a set or a tensor.

    If the model has a `train_step` of its own with more optimizers, these are saved
    too, where they are attributes of the model. Build those that train only some of the
    weights before `fit`: any that is not built then is built for all of them.

    The file is written under a different name and then renamed, so a kill during the
    write does not damage it. The last two files are kept, even when training has ended.
    If checksums show that the last one is damaged, a warning says so and training
    continues from the one before.

    Before training continues, lines that `CSVLogger(append=True)` wrote after the last
    save are cut from its file, since those epochs are trained again. Files given as
    `files` are cut in the same way.

    Where processes train together on JAX (`training.distribute`), only the first reads
    and writes the directory; the others need no access to it. A run can be continued
    by a different number of processes, with a different layout of the weights.

    A directory serves one run at a time: a lock of the operating system refuses a
    second process or thread until `fit` returns. A killed process leaves nothing
    locked. After an error in `fit` the same thread may continue; others may continue
    once the process has ended.

    The random numbers of Python, NumPy and, except on TensorFlow, the backend are
    seeded again at each epoch, from a number that the directory keeps. So operations
    that draw from them (dropout without a seed on torch, the shuffling of arrays by
    `fit`) draw the same numbers in a resumed epoch. What draws from TensorFlow's own
    random numbers, such as the shuffling of arrays by `fit` there, cannot be repeated
    exactly.

    Put this callback last in the list, so that it saves what the others do at the end
    of an epoch.

    Args:
        directory: Folder for this run alone. It is made if it does not exist.
        data: What `fit` is given as `x`, if each pass over it has a different order, as
            with `text.translation_batches`. If `fit` is given `batches.map(...)` of
            such batches, give `batches` themselves (a warning says so). If it has a
            method `pass_over(epochs, batches)`, as those batches have, no batch that
            was trained on is made again; if that method also returns how many passes
            have begun, the same object may be fit again in one process. Without the
            method, one pass is begun and abandoned for each epoch that has ended, so
            that a resumed epoch gets its own order. It must not be the
            `validation_data` too, since each validation is a pass. (Batches for
            validation should not be shuffled: a resumed run begins with their first
            order, on which `val_loss` depends.) On TensorFlow, `fit` must have no
            `steps_per_epoch` for a `tf.data.Dataset`. A torch `DataLoader` must have no
            `generator` of its own, also where it is not given here. None: each pass is
            the same, or drawn from the random numbers named above. Give None too if
            `fit` has `steps_per_epoch` for data that continues past an epoch, such as
            an infinite `tf.data.Dataset`; a resumed run then starts the data from its
            beginning.
        callbacks: List of those callbacks before this one in the same `fit` whose state
            is kept; a warning names any other whose state changes. None: all.
        every: Number of batches after which to save within an epoch too, or None. A
            resumed epoch skips the batches that it has trained on; its training metrics
            are those of the rest, so let callbacks such as `ReduceLROnPlateau` monitor
            metrics of the validation. Other callbacks are called for skipped batches
            with empty logs, except those that save by a `save_freq`; if `every` is
            still given, their state is then reset to what it was before the skipped
            batches.
        files: Paths of files that callbacks of the same `fit` append to, except those
            of `CSVLogger`.

    Raises:
        ValueError: If an argument is not as above; when training begins, if
            `steps_per_epoch` is not the length of `data`, if `data` has a different
            length than when a save within an epoch was made, if the model's
            `steps_per_execution` does not divide the batches before that save, if
            another process or thread uses the directory, if the directory belongs to a
            different model or optimizer, or to a run in which other weights were
            trained, if the model is not built, if one of `callbacks` does not stand
            before this one in `fit`, or if every save is damaged.

    Example:
        >>> import tempfile
        >>> import keras
        >>> import numpy as np
        >>> def fit(directory, epochs):
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        ...     callbacks = [Resume(directory)]
        ...     x = np.ones((4, 1))
        ...     return model.fit(x, x, epochs=epochs, callbacks=callbacks, verbose=0)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     interrupted = fit(directory, epochs=1)
        ...     print(fit(directory, epochs=3).epoch)
        [0, 1, 2]
    """

    def __init__(
        self,
        directory: Path,
        data: Any = None,
        callbacks: Sequence[keras.callbacks.Callback] | None = None,
        every: int | None = None,
        files: Sequence[Path] = (),
    ) -> None:
        super().__init__()
        if data is not None and (not hasattr(data, "__iter__") or iter(data) is data):
            raise ValueError(
                "`data` must be what can be iterated anew for each epoch, such as a "
                f"`tf.data.Dataset`. Received: data={data!r}."
            )
        if is_made_of_batches(data):
            warnings.warn(
                "`data` should be the batches of `translation_batches` or "
                "`language_batches` themselves if `fit` is given a dataset with one "
                "batch for each of theirs, as `map` makes: a resumed run would begin "
                "again with the order of their first epoch. After `cache` it is right. "
                f"Received: data={data!r}.",
                stacklevel=2,
            )
        if has_generator(data):
            warnings.warn(
                "`data` should have no `generator`: a resumed run would have another "
                "order. Without one a `DataLoader` draws from torch's own random "
                f"numbers, which are seeded again. Received: data={data!r}.",
                stacklevel=2,
            )
        arguments.path("directory", directory)
        wanted = "a list of callbacks"
        arguments.sequence("callbacks", callbacks, wanted, _callback, optional=True)
        arguments.sequence("files", files, "a list of paths", arguments.path)
        self.directory = pathlib.Path(directory)
        self.data = data
        self.callbacks = None if callbacks is None else list(callbacks)
        self.every = arguments.positive_integer("every", every, optional=True)
        self.files = list(files)
        self._is_training = False
        if every is not None:
            # Set only here: if no callback has this method, Keras calls the callbacks
            # in a thread.
            self.on_train_batch_end: Callable[..., None] = self._on_train_batch_end

    @property
    def path(self) -> pathlib.Path:
        """Path of the file with the last save."""
        return self.directory / LAST

    def set_params(self, params: dict[str, Any]) -> None:
        """Locks the directory and cuts files, before a callback opens them."""
        super().set_params(params)
        before = standing_before(self)
        loggers = [x for x in before if isinstance(x, keras.callbacks.CSVLogger)]
        kept, others = split(before, self.callbacks)
        # A logger always keeps its columns, which it chooses by the first logs it gets.
        kept += [x for x in others if x in loggers]
        self._kept_and_others = [kept, [x for x in others if x not in loggers]]
        files = [*(x.filename for x in loggers), *self.files]
        check_built(self.model, "resumed")
        run = describe_run(self.model)
        self._saves = RunDirectory(self.directory, run, files)
        self._seed, self._saved = from_first(self._begin)

    def _begin(self):
        """Returns a new seed, and the last save, if there is one."""
        return random.randrange(2**32), self._saves.open()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores what was saved, if anything was."""
        build_optimizers(self.model)
        self._states = CallbackStates(*self._kept_and_others)
        self._check_steps()
        # Batches of the first epoch that an earlier run trained on.
        self._to_skip, self._skipped = 0, None
        self._records, self._first_epoch = [], None
        # Passes over `data` that began before this run did. The run's first epoch is
        # the pass of this number, in a later process too, so that each epoch keeps its
        # own order.
        self._passes_before, self._is_training = self._count_passes(), True
        if self._saved is not None:
            self._restore(self._saved)
            self._saved = None

    def _check_steps(self):
        """Raises an error if an epoch of `fit` is not one pass over the data."""
        steps = self.params.get("steps")
        if steps is None or self.data is None:
            return
        try:
            batches = len(self.data)
        except TypeError as error:  # The length is unknown or infinite.
            if "infinite" not in str(error):
                return
            batches = "infinitely many"
        if steps != batches:
            raise ValueError(
                "`steps_per_epoch` of `fit` must be None for a `data` of which each "
                f"epoch is a pass. Received: {steps} steps, of {batches}."
            )

    def _num_batches(self):
        """Returns the length of the data, None if they have none."""
        try:
            return len(self.data)
        except TypeError:
            return None

    def _check_batches(self, saved):
        """Raises an error if an epoch is to be resumed on data of a different length.

        So it is if a step takes so many batches that some would be skipped that the run
        has not trained on. Between two epochs both may change.
        """
        together = self.model.steps_per_execution
        if saved["batch"] % together:
            raise ValueError(
                f"`steps_per_execution` must divide {saved['batch']}, the number of "
                "batches after which the run was saved within an epoch. Received: "
                f"steps_per_execution={together}."
            )
        wanted, batches = saved.get("batches"), self._num_batches()
        known = wanted is not None and batches is not None
        if saved["batch"] and known and wanted != batches:
            raise ValueError(
                "`data` must be those of the run, which was saved within an epoch of "
                f"{wanted} batches. Received: data with {batches}."
            )

    def _check_trained(self, saved):
        """Raises an error if the run's optimizers have state for other weights.

        The description of a run does not say which parts of its model are frozen.
        """
        _, *optimizers = changed_variables(self.model)
        shapes = [[tuple(x.shape) for x in each] for each in optimizers]
        _, *values = saved["values"]
        if shapes != [[np.shape(x) for x in each] for each in values]:
            count = len(self.model.trainable_variables)
            raise ValueError(
                "`model` must train the same weights as the run in `directory`: freeze "
                "the same parts, or begin anew in a new directory. Received: a model "
                f"that trains {count} weights, in {str(self.directory)!r}."
            )

    def _restore(self, saved):
        self._check_batches(saved)
        self._check_trained(saved)
        with reading(self.path, "that `Resume` saved for this run", REMEDY):
            self._assign(saved)
        epoch = self.params["epochs"] if saved["stopped"] else saved["epoch"]
        _begin_at(self.model, epoch)
        if epoch < self.params["epochs"]:
            self._begin_passes(saved["epoch"] - self._first_epoch, saved["batch"])

    def _assign(self, saved):
        """Restores the saved state of model, optimizer and callbacks."""
        self._values = saved["values"]
        self._assign_values()
        self._states.restore(saved["callbacks"])
        self._seed, self._records = saved["seed"], saved["records"]
        self._first_epoch = saved.get("first_epoch", 0)
        # Older files lack this: they are taken as saved by another process.
        self._passes_before = saved.get("passes_before", self._passes_before)
        self._to_skip = saved["batch"]

    def _assign_values(self):
        changed = changed_variables(self.model)
        for variables, values in zip(changed, self._values, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def _count_passes(self):
        """Returns how many passes over the data have begun, 0 if it cannot tell."""
        # Passing over nothing begins the next pass anew, whose number it returns.
        can_tell = hasattr(self.data, "pass_over")
        return (self.data.pass_over(0, 0) or 0) if can_tell else 0

    def _begin_passes(self, number, batch):
        """Lets the data begin at a pass, counted from the run's first, and a batch."""
        if hasattr(self.data, "pass_over"):
            # An earlier `fit` in this process may have passed over the same data.
            begun = self._count_passes() - self._passes_before
            return self.data.pass_over(number - begun, batch)
        for _ in range(number if self.data is not None else 0):
            if isinstance(self.data, keras.utils.PyDataset):  # It may shuffle here.
                self.data.on_epoch_begin()
                self.data.on_epoch_end()
            else:
                next(iter(self.data), None)
                if is_begun_again(self.data, self.params.get("steps")):
                    iter(self.data)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Seeds the random numbers, and skips the batches already trained on."""
        to_skip, self._to_skip = self._to_skip, 0
        self._epoch, self._saved_batch = epoch, to_skip
        if self._first_epoch is None:  # This epoch is `initial_epoch` of `fit`.
            self._first_epoch = epoch
        # `fit` has read it; a later `fit` must not begin there too.
        _begin_at(self.model, None)
        self._restore_history()
        self._start_random_numbers(0)
        if to_skip:
            # Callbacks have begun this epoch a second time, such as one that scales the
            # learning rate.
            self._assign_values()
            self._before_skipped = self._states.copies()
            self._skipped = SkippedBatches(
                self.model,
                to_skip,
                itertools.chain.from_iterable(self._kept_and_others),
                lambda: self._start_random_numbers(to_skip),
            )
        self._values = None

    def _start_random_numbers(self, batch):
        """Seeds all random numbers by the place in training.

        It is called wherever a later run can enter: at an epoch's begin, and after a
        save within it. From there on both runs draw the same numbers.
        """
        place = np.random.SeedSequence((self._seed, self._epoch, batch))
        seed = int(place.generate_state(1)[0])
        start_randomness(seed)

    def _on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        """Saves when `every` batches have passed since the last save."""
        batch += 1
        if self._skipped is not None and batch >= self._skipped.number:
            self._end_skipping()
            self._states.put_back(self._before_skipped)
            self._before_skipped = []
        if batch - self._saved_batch < self.every:
            return  # Whoever reads `self.model` on JAX fetches all of its weights.
        steps = self.params["steps"]
        # After the last batch the save at the end of the epoch suffices. A callback may
        # stop at a bad batch, and repair the weights only at that end.
        is_last = self.model.stop_training or (steps and batch >= steps)
        if not is_last:
            self._saved_batch = batch
            self._save(self._epoch, batch)
            self._start_random_numbers(batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves the state at the end of the epoch."""
        self._end_skipping()
        self._records.append([epoch, plain_logs(logs or {})])
        self._save(epoch + 1, 0)

    def _end_skipping(self):
        if self._skipped is not None:
            self._skipped.end()
            self._skipped = None

    def _save(self, epoch, batch):
        values = [[*map(array_of, each)] for each in changed_variables(self.model)]
        if not is_first():
            return
        self._saves.save(
            {
                "seed": self._seed,
                "epoch": epoch,
                "batch": batch,
                "batches": self._num_batches(),
                "passes_before": self._passes_before,
                "first_epoch": self._first_epoch,
                "stopped": bool(self.model.stop_training),
                "records": self._records,
                "values": values,
                "callbacks": self._states.changed(),
            }
        )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Leaves the model ready for another `fit`, and the directory free."""
        _begin_at(self.model, None)
        self._restore_history()
        self._is_training, self._values = False, None
        self._saves.close()

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        """Unlocks the directory after an `evaluate`, which locks it as `fit` does."""
        if not self._is_training:
            self._saves.close()

    def on_predict_end(self, logs: dict[str, Any] | None = None) -> None:
        """Unlocks the directory after a `predict`, which locks it as `fit` does."""
        self.on_test_end(logs)

    def _restore_history(self):
        """Restores earlier epochs in the `History`, which a new `fit` clears."""
        history = self.model.history
        if history is None or history.epoch:  # it is complete already
            return
        history.epoch = [epoch for epoch, _ in self._records]
        history.history = {}
        for _, logs in self._records:
            for name, value in logs.items():
                history.history.setdefault(name, []).append(value)


def _callback(name, value):
    return arguments.instance(name, value, keras.callbacks.Callback, "a callback")


def _begin_at(model, epoch):
    """Makes `fit` begin at an epoch; None: at its own `initial_epoch`."""
    # Keras's own callback also has no other way to begin at a later epoch:
    # https://github.com/keras-team/keras/blob/v3.15.1/keras/src/callbacks/backup_and_restore.py#L152
    model._initial_epoch = epoch
