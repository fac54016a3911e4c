"""A training that goes on where it was stopped, as if it had not been."""

import copy
import json
import pathlib
import random
import re

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.training.snapshot import (
    array_of,
    is_plain,
    read_snapshot,
    write_snapshot,
)


class Resume(keras.callbacks.Callback):
    """Saves a training as it goes, and lets the same `fit` continue it.

    The first `fit` trains and saves at the end of each epoch. Whatever ended it, a kill
    too, the same script goes on after the last save, with the same weights at every
    step as the same training (with this callback) would have had uninterrupted, bit by
    bit, where the operations themselves repeat to the bit. A run that came to its end
    trains no more; more `epochs` continue it, unless a callback had stopped it.

    Saved are the weights, the seeds of layers that draw random numbers, the optimizer
    (its slots, its step, its learning rate, its moving averages), the epoch, the logs,
    so that the `History` that `fit` returns is whole, and the state of `callbacks`.
    The file is written aside and renamed: a kill while it is written costs nothing
    more. Only the last one is kept, and stays when the training has ended.

    The random numbers of Python, NumPy and, save for TensorFlow, the backend start anew
    with each epoch, from a number that the directory keeps. So what draws from them
    (dropout without a seed on torch, the shuffling of arrays by `fit`) draws the same
    in a resumed epoch. What cannot be exact: subword sampling
    (`translation_batches(sampling=...)`), which takes no seed, and what draws from
    TensorFlow's own random numbers, such as the shuffling of arrays by `fit`.

    It stands last in the list of callbacks: what they do at an epoch's end is done
    then.

    Args:
        directory: Folder of this training alone. It is made where there is none.
        data: What `fit` is given as `x`, where each pass over it has another order, as
            with `text.translation_batches`. As many passes are begun, and left, as
            epochs are behind, so that a resumed epoch gets its own. None: each pass is
            the same, or drawn from the random numbers named above.
        callbacks: Callbacks of the same `fit` that have a state of their own, such as
            `EarlyStopping`, `ReduceLROnPlateau`, `CheckpointAverage` and
            `SwapEMAWeights(swap_on_epoch=True)`: what they have changed of their
            numbers, strings and arrays since the training began is kept.
        every: Number of batches after which to save within an epoch too, or None. A
            resumed epoch passes over the batches that are behind; its metrics of
            training are those of the others.

    Raises:
        ValueError: If an argument is not as above; when the training begins, if the
            directory is that of another model, optimizer or list of callbacks, or the
            model was not built.

    Example:
        >>> import tempfile
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

    def __init__(self, directory, data=None, callbacks=(), every=None):
        super().__init__()
        if data is not None and (not hasattr(data, "__iter__") or iter(data) is data):
            raise ValueError(
                "`data` must be what can be iterated anew for each epoch, such as a "
                f"`tf.data.Dataset`. Received: data={data!r}."
            )
        self.directory = pathlib.Path(directory)
        self.data = data
        self.callbacks = list(callbacks)
        self.every = every
        if every is not None:
            arguments.positive_integer("every", every)
            # Keras calls the callbacks in a thread where none has this method.
            self.on_train_batch_end = self._on_train_batch_end

    @property
    def path(self):
        """Path of the file in the directory."""
        return self.directory / "state.npz"

    def on_train_begin(self, logs=None):
        """Brings back what was saved, if anything was."""
        model = self.model
        if not model.built:
            raise ValueError(
                "`model` must be built before `fit` to be resumed: call it on a batch. "
                f"Received: an unbuilt model, {model.name!r}."
            )
        self._training = _training(model, self.callbacks)
        self._begun = [copy.deepcopy(_plain(callback)) for callback in self.callbacks]
        self._skipped, self._records = 0, []
        if self.path.exists():
            self._restore(model, read_snapshot(self.path))
        else:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._seed = random.randrange(2**32)

    def _restore(self, model, saved):
        self._check(saved["training"])
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        for variables, values in zip(_variables(model), saved["values"], strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        for callback, state in zip(self.callbacks, saved["callbacks"], strict=True):
            vars(callback).update(state)
        self._seed, self._records = saved["seed"], saved["records"]
        self._skipped = saved["batch"]
        epoch = self.params["epochs"] if saved["stopped"] else saved["epoch"]
        # Keras has no other way to begin at an epoch that `fit` was not given.
        model._initial_epoch = epoch
        if epoch < self.params["epochs"]:
            self._begin_passes(saved["epoch"])

    def _check(self, other):
        """Raises unless the directory is that of the same training."""
        different = [name for name in other if other[name] != self._training[name]]
        if different:
            raise ValueError(
                "`directory` must be new, or that of the same training. Received: "
                f"directory={str(self.directory)!r}, of a training with other "
                f"{' and '.join(different)}."
            )

    def _begin_passes(self, number):
        for _ in range(number if self.data is not None else 0):
            next(iter(self.data), None)

    def on_epoch_begin(self, epoch, logs=None):
        """Starts the random numbers, and passes over what was trained on before."""
        self._epoch, self._saved_batch = epoch, self._skipped
        self._restore_history()
        self._start_random_numbers(0)
        if self._skipped:
            self._skip_batches(self.model, self._skipped)
            self._skipped = 0

    def _start_random_numbers(self, batch):
        place = np.random.SeedSequence((self._seed, self._epoch, batch))
        seed = int(place.generate_state(1)[0])
        if keras.backend.backend() != "tensorflow":
            keras.utils.set_random_seed(seed)
        else:
            # With TensorFlow's own, it would make all that it has compiled ready anew,
            # which took a tenth of each epoch.
            random.seed(seed)
            np.random.seed(seed)

    def _skip_batches(self, model, left):
        """Has `fit` pass over batches, by a train function that does nothing."""
        model.make_train_function(force=True)  # An earlier `fit` may have left ours.
        train, batch = model.train_function, left
        together = model.steps_per_execution

        def skip(*state_and_data):
            nonlocal left
            *state, data = state_and_data
            if hasattr(data, "__next__"):  # torch is given the batches themselves.
                for _ in range(together):
                    next(data)
            left -= together
            if left <= 0:
                model.train_function = train
                self._start_random_numbers(batch)
            return ({}, *state) if state else {}  # JAX has its state passed on.

        model.train_function = skip

    def _on_train_batch_end(self, batch, logs=None):
        """Saves, where as many batches have passed since the last save."""
        batch += 1
        steps = self.params["steps"]
        # The save of the epoch's end stands in for that of the last batch.
        if batch - self._saved_batch >= self.every and (not steps or batch < steps):
            self._saved_batch = batch
            self._save(self._epoch, batch)
            self._start_random_numbers(batch)

    def on_epoch_end(self, epoch, logs=None):
        """Saves."""
        self._records.append([epoch, dict(logs or {})])
        self._save(epoch + 1, 0)

    def _save(self, epoch, batch):
        model = self.model
        values = [[array_of(x) for x in variables] for variables in _variables(model)]
        states = [
            _changed(callback, begun)
            for callback, begun in zip(self.callbacks, self._begun, strict=True)
        ]
        write_snapshot(
            self.path,
            {
                "training": self._training,
                "seed": self._seed,
                "epoch": epoch,
                "batch": batch,
                "stopped": bool(model.stop_training),
                "records": self._records,
                "values": values,
                "callbacks": states,
            },
        )

    def on_train_end(self, logs=None):
        """Leaves the model ready for another `fit`."""
        self._restore_history()

    def _restore_history(self):
        """Gives the `History` the epochs before; it forgets when a training begins."""
        self.model._initial_epoch = None
        history = self.model.history
        if history is None or history.epoch:
            return
        history.epoch = [epoch for epoch, _ in self._records]
        history.history = {}
        for _, logs in self._records:
            for name, value in logs.items():
                history.history.setdefault(name, []).append(value)


def _variables(model):
    """Lists all that training changes: the model's, seeds included; the optimizer's."""
    return [model.variables, model.optimizer.variables]


def _training(model, callbacks):
    """Describes a training, to tell it from another."""
    variables = [[list(v.shape), str(v.dtype)] for v in model.variables]
    try:
        config = model.get_config()
    except NotImplementedError:  # Of a subclass that says nothing of itself.
        config = None
    return {
        "model": f"{type(model).__name__} {_described(config)}",
        "variables": variables,
        "optimizer": _described(model.optimizer),
        "callbacks": [type(callback).__name__ for callback in callbacks],
    }


def _described(thing):
    """Gives a configuration as text, without what differs from run to run."""
    config = _without_names(keras.saving.serialize_keras_object(thing))
    text = json.dumps(config, sort_keys=True, default=lambda x: type(x).__name__)
    return re.sub(r"_\d+\b", "", text)  # Keras numbers the names it gives.


def _without_names(config):
    if isinstance(config, list | tuple):
        return [_without_names(value) for value in config]
    if not isinstance(config, dict):
        return config
    # A callback may have changed a learning rate that is a number.
    return {
        key: _without_names(value)
        for key, value in config.items()
        if key != "name" and not (key == "learning_rate" and isinstance(value, float))
    }


def _plain(callback):
    """Gives those attributes of a callback that can be saved, without Keras's own."""
    return {
        name: value
        for name, value in vars(callback).items()
        if name != "params" and is_plain(value)
    }


def _changed(callback, begun):
    """Gives the attributes that are no longer as when the training began."""
    return {
        name: value
        for name, value in _plain(callback).items()
        if name not in begun or not _is_same(begun[name], value)
    }


def _is_same(left, right):
    """Whether two plain values are equal, arrays in them too."""
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
