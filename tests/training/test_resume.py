"""A resumed run is the uninterrupted one, to the bit."""

import concurrent.futures
import functools
import json
import linecache
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from keras_seqattn.files import take_lock
from keras_seqattn.models import LanguageModel
from keras_seqattn.text import ByteTokenizer, translation_batches
from keras_seqattn.training import (
    CheckpointAverage,
    MaskedCrossentropy,
    Resume,
    ScheduleFreeAverage,
    TerminateOnDivergence,
    divergence,
    run_directory,
)
from keras_seqattn.training.snapshot import read_snapshot
from tests.pairs import slow

LINES = [f"{i} red dogs" for i in range(24)]
ROOT = pathlib.Path(__file__).parent.parent.parent
EPOCHS, FILE, BEFORE, RUNS = 3, "state.npz", "before.npz", ("whole", "cut")


class Interrupt(keras.callbacks.Callback):
    """Ends `fit` as Ctrl-C does, after a batch of an epoch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.place = epoch, batch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            raise KeyboardInterrupt


class Stop(Interrupt):
    """Lets `fit` stop after a batch of an epoch, as a callback that saw a bad one."""

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            self.model.stop_training = True


def make_model(width=4, learning_rate=0.01, dropout=0.5):
    """A model with all that training may change: dropout, slots, an average."""
    keras.utils.set_random_seed(1)
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("source_ids", "target_ids")
    }
    x = keras.layers.Embedding(260, width)(inputs["target_ids"])
    x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.BatchNormalization()(x)
    model = keras.Model(inputs, keras.layers.Dense(260)(x))
    model.compile(
        keras.optimizers.Adam(learning_rate, use_ema=True, ema_momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)  # TensorFlow then traces once.
    return model


def batches(times=1):
    """Six batches an epoch, so many times."""
    lines = LINES * times
    return translation_batches(
        lines,
        lines,
        ByteTokenizer(),
        batch_tokens=64,
        bucket_lengths=(16,),
        rows_multiple=2,
    )


def state(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(ops.convert_to_numpy(x.value)) for x in variables]


def assert_same(left, right):
    for x, y in zip(left, right, strict=True):
        np.testing.assert_array_equal(x, y)


def fit(directory, *others, epochs=EPOCHS, every=None, interrupt=None, data=None):
    """Trains as a script would: all anew, but for what is in the directory."""
    model, data = make_model(), data or batches()
    callbacks = [*others, Resume(directory, data, every=every)]
    if interrupt:
        callbacks.append(interrupt)
    history = model.fit(
        data, epochs=epochs, shuffle=False, callbacks=callbacks, verbose=0
    )
    return model, history


@pytest.mark.backends("jax")
def test_weights_are_fetched_only_to_be_saved(tmp_path, monkeypatch):
    """Which Keras does for whoever reads the model of a callback."""
    fetched, before, after = [], [], []
    sync = keras.Model.jax_state_sync

    def noted(self):
        fetched.append(self)
        sync(self)

    monkeypatch.setattr(keras.Model, "jax_state_sync", noted)
    first, last = (
        keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, counts=counts: counts.append(
                len(fetched)
            )
        )
        for counts in (before, after)
    )
    fit(tmp_path, first, epochs=1, every=1000, interrupt=last)
    assert len(before) == len(batches())
    assert before == after


@pytest.mark.backends("torch")
def test_the_last_batch_of_an_epoch_is_saved_once(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        run_directory,
        "write_snapshot",
        lambda _, saved: written.append(saved.get("batch")),
    )
    fit(tmp_path, epochs=1, every=1)
    assert written == [*range(1, len(batches())), 0]


@pytest.mark.parametrize(
    "every",
    [
        pytest.param(None, marks=pytest.mark.backends("torch")),
        pytest.param(2, marks=pytest.mark.slow_on("tensorflow", "jax")),
    ],
)
def test_an_interrupted_training_ends_as_the_uninterrupted_one(every, tmp_path):
    whole, expected = fit(tmp_path / "whole", every=every)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", every=every, interrupt=Interrupt(1, 2))
    trained = []
    counter = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: trained.append(epoch)
    )
    model, history = fit(tmp_path / "cut", counter, every=every)
    assert trained == [1, 2]
    assert_same(state(model), state(whole))
    assert history.epoch == expected.epoch == [0, 1, 2]
    assert set(history.history) == set(expected.history)
    for name, values in expected.history.items():
        # Of an epoch that is resumed midway the metrics are those of the rest.
        known = [0, 1, 2] if every is None else [0, 2]
        assert [history.history[name][i] for i in known] == [values[i] for i in known]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("stop", ["killed", "ended"])
def test_the_schedule_free_average_goes_on(tmp_path, stop):
    """From the weights that are trained, not from the average in the model."""
    inputs, labels = next(iter(batches()))
    held_out = {name: np.asarray(x) for name, x in inputs.items()}, np.asarray(labels)

    def run(name, epochs=EPOCHS, interrupt=()):
        model, data = make_model(), batches()
        model.compile(keras.optimizers.ScheduleFreeAdamW(0.01), model.loss)
        callbacks = [ScheduleFreeAverage(), Resume(tmp_path / name, data), *interrupt]
        options = {"validation_data": held_out, "shuffle": False, "verbose": 0}
        history = model.fit(data, epochs=epochs, callbacks=callbacks, **options)
        return state(model), history.history

    whole, expected = run("whole")
    if stop == "ended":
        run("cut", epochs=2)
    else:
        with pytest.raises(KeyboardInterrupt):
            run("cut", interrupt=[Interrupt(1, 2)])
    again, history = run("cut")
    assert_same(again, whole)
    assert history == expected


@pytest.mark.backends("torch")
def test_a_run_that_begins_at_a_later_epoch_resumes_on_its_data(tmp_path):
    """Its first pass over them is that of its own first epoch."""

    def run(directory, interrupt=None):
        data = batches()
        callbacks = [Resume(directory, data)]
        callbacks += [interrupt] if interrupt else []
        model = make_model()
        options = {"initial_epoch": 3, "epochs": 7, "shuffle": False, "verbose": 0}
        model.fit(data, callbacks=callbacks, **options)
        return state(model)

    whole = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", Interrupt(5, 2))
    assert_same(run(tmp_path / "cut"), whole)


def holder_met_by_another(directory):
    """Has another thread take the directory's lock; returns who holds it, or None."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(take_lock, directory / "lock").result()


@pytest.mark.backends("torch")
@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_what_is_no_fit_leaves_the_directory_free(method, tmp_path):
    model, data = make_model(), batches()
    getattr(model, method)(data, callbacks=[Resume(tmp_path, data)], verbose=0)
    assert holder_met_by_another(tmp_path) is None


@pytest.mark.backends("torch")
def test_a_validation_does_not_free_the_directory(tmp_path):
    met = []
    model, data = make_model(), batches()
    after = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: met.append(holder_met_by_another(tmp_path))
    )
    model.fit(
        data,
        validation_data=batches(),
        shuffle=False,
        callbacks=[after, Resume(tmp_path, data)],
        verbose=0,
    )
    assert [f"process {os.getpid()} on " in holder for holder in met] == [True]


@pytest.mark.backends("tensorflow")
def test_data_without_an_end_are_refused(tmp_path):
    model, data = make_model(), batches().repeat()
    with pytest.raises(ValueError, match="must be None for a `data`.*infinitely many"):
        model.fit(
            data, steps_per_epoch=3, callbacks=[Resume(tmp_path, data)], verbose=0
        )


@pytest.mark.backends("torch")
def test_weights_of_before_an_epoch_outlive_an_interruption_within_it(tmp_path):
    """Of a run that diverges in the epoch which it goes on with."""
    good, left = [], []

    class Spoil(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3 and self.model.optimizer.iterations > 9:
                self.model.optimizer.learning_rate = 1e30

    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: good.append(state(note.model))
    )
    # Before `fit` puts the average into the model.
    after = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: left.append(state(after.model))
    )
    watch = TerminateOnDivergence()
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, watch, note, every=2, interrupt=Interrupt(1, 2))
    with pytest.warns(UserWarning, match="diverged in epoch 2"):
        fit(tmp_path, TerminateOnDivergence(), after, Spoil(), every=2)
    assert_same(left[-1], good[1])


# The loss falls, so the first epoch stays the best of what is to rise, or to fall far.
FIRST_IS_BEST = {"to rise": {"mode": "max"}, "to fall far": {"min_delta": 1000.0}}


def callbacks_with_state(**options):
    return [
        CheckpointAverage(last=2),
        keras.callbacks.EarlyStopping("loss", patience=3, **options),
        keras.callbacks.ReduceLROnPlateau("loss", patience=2, **options),
    ]


@pytest.mark.backends("tensorflow")
def test_tensorflow_keeps_what_it_has_compiled(tmp_path, monkeypatch):
    """Its random numbers, started anew, have it make every program ready anew."""
    started = []
    monkeypatch.setattr(tf.random, "set_seed", started.append)
    fit(tmp_path, epochs=2)
    assert started == [1]  # by the model's maker alone


@pytest.mark.backends("torch")
@pytest.mark.parametrize("best", FIRST_IS_BEST)
def test_callbacks_go_on_where_they_were(tmp_path, best):
    def run(name, **options):
        callbacks = callbacks_with_state(**FIRST_IS_BEST[best])
        return fit(tmp_path / name, *callbacks, epochs=9, **options)

    whole, expected = run("whole")
    with pytest.raises(KeyboardInterrupt):
        run("cut", interrupt=Interrupt(2, 0))
    model, history = run("cut")
    assert history.epoch == expected.epoch == [0, 1, 2, 3]
    rates = [float(x) for x in expected.history["learning_rate"]]
    assert rates[2] > rates[3]
    assert history.history == expected.history
    assert_same(state(model), state(whole))

    # A run that a callback stopped is at its end, and leaves the same weights.
    model, history = run("cut")
    assert history.epoch == expected.epoch
    assert_same(model.get_weights(), whole.get_weights())


@pytest.mark.backends("torch")
def test_a_finished_training_trains_no_more_and_goes_on_with_more_epochs(tmp_path):
    whole, _ = fit(tmp_path / "whole", epochs=2)
    short, first = fit(tmp_path / "short", epochs=1)
    again, same = fit(tmp_path / "short", epochs=1)
    assert same.epoch == [0]
    assert same.history == first.history
    assert_same(again.get_weights(), short.get_weights())
    model, history = fit(tmp_path / "short", epochs=2)
    assert history.epoch == [0, 1]
    assert_same(state(model), state(whole))
    # Nothing of it is left in the model: another `fit` starts at its own beginning.
    x = {name: np.ones((1, 2), "int32") for name in ("source_ids", "target_ids")}
    assert model.fit(x, x["target_ids"], verbose=0).epoch == [0]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("every", [2, *slow(None)])
def test_the_same_batches_may_be_fit_again_in_a_process(every, tmp_path):
    """A notebook makes them once, and runs the cell of `fit` as often as it likes."""
    whole, _ = fit(tmp_path / "whole", every=every)
    data = batches()
    fit(tmp_path / "cut", epochs=1, every=every, data=data)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", every=every, interrupt=Interrupt(1, 2), data=data)
    model, _ = fit(tmp_path / "cut", every=every, data=data)
    assert_same(state(model), state(whole))
    # Another run begins where the data stand, as it would without this one.
    model, _ = fit(tmp_path / "other", epochs=1, every=every, data=data)
    passed = batches()
    for _ in range(EPOCHS):
        list(passed)
    other, _ = fit(tmp_path / "passed", epochs=1, every=every, data=passed)
    assert_same(state(model), state(other))


@pytest.mark.backends("torch")
def test_what_is_made_of_batches_resumes_by_the_batches(tmp_path):
    """Passes over a mapped dataset that are abandoned do not count for its batches."""

    def train(directory, epochs):
        model, data = make_model(), batches()
        mapped = data.map(lambda x, y: (x, y, tf.cast(y > 2, "float32")))
        for made in (mapped, mapped.take(2), data.prefetch(1)):
            with pytest.warns(UserWarning, match="`data` should be the batches of"):
                Resume(directory, made)
        resume = Resume(directory, data)
        model.fit(mapped, epochs=epochs, shuffle=False, callbacks=[resume], verbose=0)
        return model

    whole = train(tmp_path / "whole", epochs=3)
    train(tmp_path / "cut", epochs=1)
    assert_same(state(train(tmp_path / "cut", epochs=3)), state(whole))


@pytest.mark.backends("torch")
def test_an_epoch_is_a_pass(tmp_path):
    model, data = make_model(), batches()
    with pytest.raises(
        ValueError, match="`steps_per_epoch` of `fit` must be None.*2 s"
    ):
        model.fit(
            data,
            steps_per_epoch=2,
            shuffle=False,
            callbacks=[Resume(tmp_path, data)],
            verbose=0,
        )


class Counter(keras.callbacks.Callback):
    """Counts and lists the batches that it is told of."""

    def __init__(self):
        super().__init__()
        self.batches, self.seen, self.begun = 0, [], 0

    def on_train_batch_begin(self, batch, logs=None):
        self.begun += 1

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.seen.append(batch)


@pytest.mark.slow_on("tensorflow")
def test_a_rate_that_is_scaled_when_an_epoch_begins_is_scaled_once(tmp_path):
    def halve():
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)

    whole, _ = fit(tmp_path / "whole", halve(), every=2)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", halve(), every=2, interrupt=Interrupt(1, 2))
    model, _ = fit(tmp_path / "cut", halve(), every=2)
    assert_same(state(model), state(whole))


@pytest.mark.backends("torch")
def test_a_fit_after_one_that_was_interrupted_skips_nothing(tmp_path):
    """Interrupted while it skipped the batches that it had trained on."""
    data, directory = batches(), tmp_path / "run"
    path = tmp_path / "saved" / "{batch}.weights.h5"
    saving = keras.callbacks.ModelCheckpoint(path, save_freq=1, save_weights_only=True)
    with pytest.raises(KeyboardInterrupt):
        fit(directory, every=2, interrupt=Interrupt(0, 4))
    model = make_model()
    callbacks = [saving, Resume(directory, data, every=2), Interrupt(0, 1)]
    with pytest.raises(KeyboardInterrupt):
        model.fit(data, shuffle=False, callbacks=callbacks, verbose=0)
    assert not path.parent.exists()
    before = int(model.optimizer.iterations)
    model.fit(batches(), shuffle=False, callbacks=[saving], verbose=0)
    assert int(model.optimizer.iterations) == before + len(data)
    assert len([*path.parent.iterdir()]) == len(data)


@pytest.mark.backends("torch")
def test_an_epoch_that_a_callback_stopped_is_resumed_to_its_end(tmp_path):
    """After a kill between its last batch and its end, where it is validated."""
    whole, history = fit(tmp_path / "whole", Stop(1, 2), every=1)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", Stop(1, 2), every=1, interrupt=Interrupt(1, 2))
    model, resumed = fit(tmp_path / "cut", Stop(1, 2), every=1)
    assert_same(state(model), state(whole))
    assert resumed.epoch == history.epoch == [0, 1]


@pytest.mark.slow_on("tensorflow", "jax")
def test_callbacks_count_a_batch_once(tmp_path):
    whole, cut, resumed = Counter(), Counter(), Counter()
    fit(tmp_path / "whole", whole, every=2)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", cut, every=2, interrupt=Interrupt(1, 4))
    fit(tmp_path / "cut", resumed, every=2)
    assert len(batches()) * EPOCHS == whole.batches
    for name in ("batches", "seen", "begun"):
        assert getattr(resumed, name) == getattr(whole, name)


@pytest.mark.slow_on("tensorflow", "jax")
def test_weights_saved_by_batches_are_those_after_the_batch(tmp_path):
    """They are not saved again, nor in a file named by a loss, while it is skipped."""

    def saving(name):
        path = tmp_path / name / "{epoch}-{batch}-{loss:.3f}.weights.h5"
        options = {"save_freq": 2, "save_weights_only": True}
        return keras.callbacks.ModelCheckpoint(path, **options)

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(tmp_path / "one", saving("whole"), every=4, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "two", saving("cut"), every=4, interrupt=Interrupt(1, 4))
    before = {path.name: path.stat().st_mtime_ns for path in cut.iterdir()}
    fit(tmp_path / "two", saving("cut"), every=4, epochs=2)
    assert {"2-2", "2-4"} <= {name[:3] for name in before}
    # The loss of an epoch resumed within it is that of its rest.
    assert {p.name[:3] for p in cut.iterdir()} == {p.name[:3] for p in whole.iterdir()}
    for name, written in before.items():
        assert (cut / name).stat().st_mtime_ns == written


@pytest.mark.backends("torch")
def test_skipped_batches_are_none_of_those_before_a_loss_tells(tmp_path, monkeypatch):
    """`TerminateOnDivergence` knows them, though its state is put back after them."""
    looked = []
    monkeypatch.setattr(
        TerminateOnDivergence,
        "_look",
        lambda self, logs, tells: looked.append(tells) if logs else None,
    )
    monkeypatch.setattr(divergence, "FEW", 2)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, every=2, epochs=1, interrupt=Interrupt(0, 2))
    fit(tmp_path, TerminateOnDivergence(), every=2, epochs=1)
    # Of six batches two were skipped; the last is the epoch's end.
    assert looked == [False, True, True, True, True]


@pytest.mark.backends("torch")
def test_swapped_weights_are_swapped_back(tmp_path):
    def swap():
        return keras.callbacks.SwapEMAWeights(swap_on_epoch=True)

    whole, _ = fit(tmp_path / "whole", swap())
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", swap(), interrupt=Interrupt(2, 0))
    model, _ = fit(tmp_path / "cut", swap())
    assert_same(state(model), state(whole))


@pytest.mark.backends("torch")
def test_state_goes_to_the_callback_of_its_class(tmp_path):
    """Whatever stands beside it; of two of one class in their order."""

    def callbacks():
        return [
            keras.callbacks.EarlyStopping("loss", mode="min", patience=9),
            keras.callbacks.EarlyStopping("loss", mode="max", patience=9),
            keras.callbacks.ModelCheckpoint(
                tmp_path / "best.weights.h5",
                monitor="loss",
                save_best_only=True,
                save_weights_only=True,
            ),
        ]

    first = callbacks()
    fit(tmp_path / "run", *first, epochs=2)
    again = [CheckpointAverage(), *callbacks(), keras.callbacks.TerminateOnNaN()]
    fit(tmp_path / "run", *again, epochs=2)
    for before, after in zip(first, again[1:], strict=False):
        assert before.best == after.best
    assert first[0].best != first[1].best
    fit(tmp_path / "run", epochs=2)  # Without them, too.


@pytest.mark.backends("torch")
def test_state_that_goes_back_to_what_a_second_fit_began_with_is_kept(tmp_path):
    class Alternating(keras.callbacks.Callback):
        is_odd = False

        def on_epoch_end(self, epoch, logs=None):
            self.is_odd = not self.is_odd

    same, again = Alternating(), Alternating()
    fit(tmp_path, same, epochs=1)
    fit(tmp_path, same, epochs=3)
    fit(tmp_path, again, epochs=3)
    assert again.is_odd


def fit_chosen(directory, kept, others, epochs):
    """Keeps the state of some callbacks alone."""
    model, data = make_model(), batches()
    resume = Resume(directory, data, kept)
    callbacks = [*kept, *others, resume]
    model.fit(data, epochs=epochs, shuffle=False, callbacks=callbacks, verbose=0)


@pytest.mark.backends("torch")
def test_the_state_of_chosen_callbacks_is_kept(tmp_path):
    def stopper():
        return keras.callbacks.EarlyStopping("loss", mode="max", patience=9)

    first, again, constant = stopper(), stopper(), keras.callbacks.TerminateOnNaN()
    fit_chosen(tmp_path, [first], [constant], epochs=2)
    fit_chosen(tmp_path, [again], [constant], epochs=2)
    assert again.wait == first.wait == 1


@pytest.mark.backends("torch")
def test_a_callback_whose_state_is_not_kept_is_named(tmp_path):
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    stopper = keras.callbacks.EarlyStopping("loss", mode="min")
    fix = "Add it, or leave `callbacks` None"
    message = f"not list SwapEMAWeights, whose _ema_weights_in_model changed.*{fix}"
    with pytest.warns(UserWarning, match=message) as warned:
        fit_chosen(tmp_path / "swap", [stopper], [swap], epochs=2)
    assert sum("Resume" in str(x.message) for x in warned) == 1
    with pytest.warns(UserWarning, match="not list EarlyStopping, whose .*best"):
        fit_chosen(tmp_path / "stop", [], [stopper], epochs=1)


@pytest.mark.backends("torch")
def test_chosen_callbacks_stand_before(tmp_path):
    late = keras.callbacks.LambdaCallback()
    model, data = make_model(), batches()
    callbacks = [Resume(tmp_path, data, [late]), late]
    message = r"stand before `Resume` in the same `fit`.*=\['LambdaCallback'\]"
    with pytest.raises(ValueError, match=message):
        model.fit(data, shuffle=False, callbacks=callbacks, verbose=0)
    callbacks.pop()
    with pytest.raises(ValueError, match=message):
        model.fit(data, shuffle=False, callbacks=callbacks, verbose=0)


class Collector(keras.callbacks.Callback):
    """Changes, at each epoch's end, one attribute of a kind."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.constant = kind, {"a"}
        self.value = {
            "set": set(),
            "tensor": ops.zeros(2),
            "variable": keras.Variable([0.0, 0.0]),
            "array": np.array(ops.zeros(2), "O"),
            "list": [{}, set()],
            "numbers": {"all": [0]},
        }[kind]

    def on_epoch_end(self, epoch, logs=None):
        self.weights = self.model.weights  # What `Resume` saves is not lost.
        if self.kind == "set":
            self.value.add(epoch)
        elif self.kind == "variable":
            self.value.assign_add([1.0, 1.0])
        elif self.kind == "list":
            self.value[1].add(epoch)
        elif self.kind == "numbers":
            self.value["all"].append(epoch)
        else:
            self.value += 1


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("tensor"),
        *(
            pytest.param(kind, marks=pytest.mark.backends("torch"))
            for kind in ("set", "variable", "array", "list")
        ),
    ],
)
def test_state_that_cannot_be_kept_is_named(kind, tmp_path):
    message = "does not save `value` of Collector, which has changed.*Received: value"
    with pytest.warns(UserWarning, match=message) as warned:
        fit(tmp_path, Collector(kind), epochs=2)
    assert sum("Resume" in str(x.message) for x in warned) == 1


@pytest.mark.backends("torch")
def test_state_that_is_kept_is_not_named(tmp_path):
    fit(tmp_path, Collector("numbers"), epochs=2)


@pytest.mark.backends("torch")
def test_the_open_files_of_tensorboard_are_not_named(tmp_path):
    """It opens that of the validation after `Resume` has looked at its state."""
    model, data = make_model(), batches()
    logs = keras.callbacks.TensorBoard(tmp_path / "logs")
    model.fit(
        data,
        validation_data=batches(),
        shuffle=False,
        callbacks=[logs, Resume(tmp_path / "run", data)],
        verbose=0,
    )


class Logger(keras.callbacks.Callback):
    """Logs something of the model at each epoch's end."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def on_epoch_end(self, epoch, logs=None):
        logs["own"] = self.log(self.model)


def logged(tmp_path, log):
    """Returns what the history of a run that ended has of it, and of one resumed."""
    return [fit(tmp_path, Logger(log), epochs=n)[1].history["own"] for n in (1, 2)]


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(lambda model: model.optimizer.learning_rate, id="rate"),
        *(
            pytest.param(log, marks=pytest.mark.backends("torch"), id=name)
            for name, log in {
                "tensor": lambda model: ops.max(model.weights[0]),
                "vector": lambda model: ops.max(model.weights[0], axis=0),
            }.items()
        ),
    ],
)
def test_a_tensor_may_be_logged(tmp_path, log):
    (first,), (again, second) = logged(tmp_path, log)
    np.testing.assert_array_equal(again, ops.convert_to_numpy(first))
    assert np.shape(again) == ops.shape(second)


@pytest.mark.backends("torch")
def test_what_is_logged_and_is_no_value_is_named(tmp_path):
    with pytest.warns(UserWarning, match="`own` of the logs.*Received: own={1}"):
        assert logged(tmp_path, lambda model: {1}) == [[{1}], [{1}]]


def rows(path):
    lines = path.read_text().splitlines()
    return [line.split(",")[0] for line in lines]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("epoch", "copied"), [(0, False), (1, False), (0, True), (1, True)]
)
def test_an_end_between_logger_and_save_writes_no_epoch_twice(epoch, copied, tmp_path):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "notes.txt").write_text("before\n")

    def note(epoch, logs):
        with open(folder / "notes.txt", "a") as file:
            file.write(f"{epoch}\n")

    def run(end=None):
        """Ends, as a kill would, once the epoch is in the log and before the save."""
        model, data = make_model(), batches()
        resume = Resume(folder / "backup", data, files=[folder / "notes.txt"])
        if end is not None:
            save = resume._save

            def interrupt(epoch, batch):
                if epoch == end + 1:
                    raise KeyboardInterrupt
                save(epoch, batch)

            resume._save = interrupt
        callbacks = [
            keras.callbacks.CSVLogger(folder / "history.csv", append=True),
            keras.callbacks.LambdaCallback(on_epoch_end=note),
            resume,
        ]
        return model.fit(data, epochs=3, shuffle=False, callbacks=callbacks, verbose=0)

    with pytest.raises(KeyboardInterrupt):
        run(end=epoch)
    if copied:  # to a different machine, say
        folder = shutil.copytree(folder, tmp_path / "there")
    log = folder / "history.csv"
    assert rows(log) == ["epoch", *map(str, range(epoch + 1))]
    # So is half a line, where the kill came sooner.
    log.write_bytes(log.read_bytes()[:-3])
    history = run()
    assert rows(log) == ["epoch", "0", "1", "2"]
    assert (folder / "notes.txt").read_text() == "before\n0\n1\n2\n"
    losses = [float(x.split(",")[2]) for x in log.read_text().splitlines()[1:]]
    np.testing.assert_allclose(losses, history.history["loss"])


@pytest.mark.backends("torch")
@pytest.mark.parametrize("chosen", [None, []])
def test_a_log_keeps_its_columns(chosen, tmp_path):
    """Whatever the first epoch after an interruption logs."""

    def run(name, epochs):
        model, log = make_model(), tmp_path / f"{name}.csv"
        callbacks = [
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.01),
            keras.callbacks.CSVLogger(log, append=True),
            Resume(tmp_path / name, callbacks=chosen),
        ]
        options = {"validation_freq": 2, "callbacks": callbacks, "verbose": 0}
        data = batches()
        model.fit(data, validation_data=data, epochs=epochs, shuffle=False, **options)
        return [line.count(",") for line in log.read_text().splitlines()]

    run("cut", 1)
    assert run("cut", 2) == run("whole", 2)


@pytest.mark.backends("torch")
def test_a_file_that_a_user_began_anew_stays_so(tmp_path):
    notes = tmp_path / "notes.txt"

    def run(epochs):
        model, data = make_model(), batches()
        resume = Resume(tmp_path / "run", data, files=[notes])
        model.fit(data, epochs=epochs, shuffle=False, callbacks=[resume], verbose=0)

    for epochs, text in ((1, "long notes of another run\n"), (2, "anew\n")):
        notes.write_text(text)
        run(epochs)
        assert notes.read_text() == text


@pytest.mark.backends("torch")
def test_a_callback_of_an_epochs_end_that_stands_after_is_named(tmp_path):
    model, data = make_model(), batches()
    late = keras.callbacks.CSVLogger(tmp_path / "history.csv")
    with pytest.warns(UserWarning, match="end with `Resume`.* Received: CSVLogger"):
        model.fit(data, shuffle=False, callbacks=[Resume(tmp_path, data), late])


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_replicas_resume_as_if_never_interrupted(tmp_path):
    command = [sys.executable, "-m", "tests.training.replicas", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    whole, cut = json.loads(done.stdout.splitlines()[-1])
    assert cut == whole


@pytest.mark.backends("torch")
def test_a_directory_is_used_by_one_training_at_a_time(tmp_path):
    begun, go_on = threading.Event(), threading.Event()

    def wait(epoch, logs):
        begun.set()
        assert go_on.wait(30)

    waiting = keras.callbacks.LambdaCallback(on_epoch_begin=wait)
    thread = threading.Thread(
        target=fit, args=(tmp_path, waiting), kwargs={"epochs": 1}, name="first"
    )
    thread.start()
    assert begun.wait(30)
    who = rf"directory='.*', in use by process {os.getpid()} on .*, thread first, since"
    with pytest.raises(ValueError, match=f"not be in use by another.*{who}"):
        fit(tmp_path)
    go_on.set()
    thread.join()
    assert fit(tmp_path)[1].epoch == [0, 1, 2]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("below", ["", "folder"])
def test_a_directory_is_no_file(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("mine")
    message = "`directory` must be a folder, or new.*file.*, where a file is"
    with pytest.raises(ValueError, match=message):
        fit(file / below)


HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from files import take_lock
assert take_lock(sys.argv[1]) is None
print("taken", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_another_process_holds_a_directory_until_it_dies(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / "lock", ROOT / "keras_seqattn"],
        stdout=subprocess.PIPE,
    )
    with process:
        try:
            assert process.stdout.readline() == b"taken\n"
            who = f"in use by process {process.pid} on {platform.node()}, "
            with pytest.raises(ValueError, match=f"{who}.* since 2"):
                fit(tmp_path, epochs=1)
        finally:
            process.kill()
    assert fit(tmp_path, epochs=1)[1].epoch == [0]


@pytest.mark.backends("torch")
def test_the_file_is_that_of_one_run(tmp_path):
    def train(model, **options):
        x = {name: np.ones((1, 2), "int32") for name in ("source_ids", "target_ids")}
        callbacks = [Resume(tmp_path, **options)]
        model.fit(x, x["target_ids"], callbacks=callbacks, verbose=0)

    train(make_model())
    train(make_model(learning_rate=0.5))  # A callback may change it.
    end = "of a run with a different"
    with pytest.raises(ValueError, match=f"{end} model and variables"):
        train(make_model(width=3))
    assert holder_met_by_another(tmp_path) is None
    model = make_model()
    model.compile(keras.optimizers.Adam(0.01, beta_1=0.5), model.loss)
    with pytest.raises(ValueError, match=f"{end} optimizer"):
        train(model)
    for name in (FILE, BEFORE):
        (tmp_path / name).write_bytes(b"something")
    with pytest.raises(ValueError, match=f"Received: path='.*{FILE}'"):
        train(make_model())


class Falling(keras.optimizers.schedules.LearningRateSchedule):
    """Has no configuration, as in TensorFlow's own tutorial of the Transformer."""

    def __call__(self, step):
        return 0.1 / (1.0 + ops.cast(step, "float32"))


class Rate:
    def __call__(self):
        return 0.1


def doubling(file):
    source = "lambda x: 2 * x"
    linecache.cache[file] = len(source), None, [source], file  # as a notebook does
    return eval(compile(source, file, "eval"))


def gelu():
    return functools.partial(keras.activations.gelu, approximate=True)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("activation", "rate"),
    [
        (lambda file: "relu", Falling),
        (lambda file: "relu", Rate),
        (lambda file: gelu(), lambda: 0.1),
        (doubling, lambda: 0.1),
    ],
)
def test_what_has_no_configuration_is_resumed(tmp_path, activation, rate):
    """Or one with the code of a lambda, which names the notebook's process."""

    def train(epochs, file):
        keras.utils.set_random_seed(0)
        hidden = keras.layers.Dense(2, activation(file))
        model = keras.Sequential([keras.Input((1,)), hidden])
        model.compile(keras.optimizers.SGD(rate()), "mse")
        x, callbacks = np.ones((4, 1)), [Resume(tmp_path)]
        return model.fit(x, x, epochs=epochs, callbacks=callbacks, verbose=0).epoch

    train(1, "ipykernel_1/2.py")
    assert train(2, "ipykernel_3/4.py") == [0, 1]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("frozen", [(False, True), (True, False)])
def test_a_run_trains_the_same_weights(tmp_path, frozen):
    """A part that is frozen meanwhile, or no longer, is no damage of the file."""
    ids = np.ones((1, 2), "int32")

    def train(is_frozen):
        model = LanguageModel(9, 8, 2, 1, intermediate_dim=8)
        model.get_layer("decoder_0").trainable = not is_frozen
        model.compile("adam", MaskedCrossentropy())
        model.fit(ids, ids, callbacks=[Resume(tmp_path)], verbose=0)

    train(frozen[0])
    with pytest.raises(ValueError, match="`model` must train the same weights"):
        train(frozen[1])
    train(frozen[0])


@pytest.mark.backends("torch")
def test_an_epoch_is_resumed_on_data_of_the_same_length(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, epochs=1, every=2, interrupt=Interrupt(0, 3))
    message = "`data` must be those of .* of 6 batches. Received: data with 12"
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, epochs=1, every=2, data=batches(2))
    fit(tmp_path, epochs=1, every=2)
    # A further epoch may have more data.
    assert fit(tmp_path, epochs=2, every=2, data=batches(2))[1].epoch == [0, 1]


@pytest.mark.backends("jax")
def test_an_epoch_is_resumed_by_steps_that_divide_what_was_trained(tmp_path):
    def train(together, interrupt=None):
        model, data = make_model(), batches()
        model.compile("sgd", model.loss, steps_per_execution=together)
        callbacks = [Resume(tmp_path, data, every=2)]
        callbacks += [interrupt] if interrupt else []
        options = {"epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(data, callbacks=callbacks, **options).epoch

    with pytest.raises(KeyboardInterrupt):
        train(2, Interrupt(1, 3))
    message = "`steps_per_execution` must divide 4, .*: steps_per_execution=3"
    with pytest.raises(ValueError, match=message):
        train(3)
    assert train(1) == [0, 1]


@pytest.mark.backends("torch")
def test_a_run_continues_with_another_dropout(tmp_path):
    """A layer that drops nothing has no seed, so there are more variables."""
    x = {name: np.ones((4, 2), "int32") for name in ("source_ids", "target_ids")}

    def train(model, epochs):
        given = {"callbacks": [Resume(tmp_path)], "epochs": epochs, "verbose": 0}
        return model.fit(x, x["target_ids"], **given)

    before, after = make_model(dropout=0.0), make_model()
    train(before, epochs=2)
    with pytest.raises(ValueError, match="different model and variables"):
        train(after, epochs=2)
    with pytest.raises(ValueError, match="`after` must have weights of the shapes"):
        run_directory.adapt(tmp_path, before, make_model(width=3))
    run_directory.adapt(tmp_path, before, after)
    history = train(after, epochs=2)  # It trains no more.
    assert history.epoch == [0, 1]
    assert_same(before.get_weights(), after.get_weights())
    for left, right in zip(
        before.optimizer.variables, after.optimizer.variables, strict=True
    ):
        assert_same([ops.convert_to_numpy(left)], [ops.convert_to_numpy(right)])
    assert train(after, epochs=3).epoch == [0, 1, 2]


@pytest.mark.backends("torch")
def test_of_a_damaged_save_the_one_before_is_used(tmp_path, monkeypatch):
    """Wherever it is damaged: what is read is what was saved, or it is seen."""
    whole, expected = fit(tmp_path / "whole")
    fit(tmp_path / "cut", epochs=2)
    path = tmp_path / "cut" / FILE
    content, rng = path.read_bytes(), np.random.default_rng(0)
    saved = read_snapshot(path)
    for place in rng.integers(0, len(content), 100):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        for damaged in (flipped, content[:place]):
            path.write_bytes(damaged)
            try:
                read = read_snapshot(path)
            except ValueError:
                continue
            assert_same(keras.tree.flatten(read), keras.tree.flatten(saved))
    message = f"{FILE}.*continues from the save before it, in epoch 2"
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match=message):
        # A kill, or a full disk, while the first save after it is written.
        patch.setattr(run_directory, "write_snapshot", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(tmp_path / "cut")
    with pytest.warns(UserWarning, match=message):
        model, history = fit(tmp_path / "cut")
    assert_same(state(model), state(whole))
    assert history.history == expected.history


@pytest.mark.backends("torch")
def test_bad_arguments(tmp_path):
    with pytest.raises(ValueError, match="Received: every=0"):
        Resume(tmp_path, every=0)
    with pytest.raises(ValueError, match="anew for each epoch.*Received: data=<gener"):
        Resume(tmp_path, data=(x for x in "ab"))
    with pytest.raises(ValueError, match="`callbacks` must be a list of callb.*='all'"):
        Resume(tmp_path, callbacks="all")
    with pytest.raises(ValueError, match="`callbacks` must be a list of callb.*5"):
        Resume(tmp_path, None, [5])
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callback = Resume(tmp_path)
    callback.set_model(model)
    with pytest.raises(ValueError, match="Received: an unbuilt model, 'sequential"):
        callback.set_params({"epochs": 1})
    with pytest.raises(ValueError, match="`files` must be a list of paths. Received: "):
        Resume(tmp_path, files="history.csv")


SCRIPT = """
import pathlib, sys
import keras, numpy as np
from tests.training.test_resume import fit, state
folder = pathlib.Path(sys.argv[1])
others = [
    keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    keras.callbacks.CSVLogger(folder / "history.csv", append=True),
]
model, _ = fit(folder, *others, epochs=60, every=2)
np.savez(folder / "end.npz", *state(model))
"""


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_kills_at_any_time_change_nothing(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(folder):
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", SCRIPT, str(folder)]
        return subprocess.Popen(command, env=environment)

    assert start(tmp_path / "whole").wait() == 0
    kills, rng = 0, np.random.default_rng(0)
    while not (tmp_path / "cut" / "end.npz").exists():
        process = start(tmp_path / "cut")
        seen = (tmp_path / "cut" / FILE).exists()
        if kills < 4:
            begun = time.time()
            while process.poll() is None and not (
                (tmp_path / "cut" / FILE).exists()
                and (tmp_path / "cut" / FILE).stat().st_mtime > begun
            ):
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, 0.5))
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        assert process.wait() in (0, -signal.SIGKILL)
        assert (tmp_path / "cut" / FILE).exists() or not seen
    assert kills == 4
    whole, cut = (np.load(tmp_path / run / "end.npz") for run in RUNS)
    assert_same(whole.values(), cut.values())
    for run in RUNS:
        assert rows(tmp_path / run / "history.csv") == ["epoch", *map(str, range(60))]


# Forks runs of a process that has imported all, and trained nothing: each is
# killed after a random time, until the kills are many; one that came to its end is
# compared with the one that nobody killed.
KILLS = """
import os, pathlib, random, shutil, signal, sys, time
import numpy as np
from tests.training.test_resume import fit, state

folder, kills, seed = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)

def train(directory):
    child = os.fork()
    if child:
        return child
    model, _ = fit(directory, epochs=6, every=1)
    np.savez(directory / "end.npz", *state(model))
    os._exit(0)

start = time.monotonic()
assert os.waitpid(train(folder / "whole"), 0)[1] == 0
seconds, done, runs, cut = time.monotonic() - start, 0, 0, folder / "cut"
with np.load(folder / "whole" / "end.npz") as arrays:
    whole = list(arrays.values())
while done < kills:
    child = train(cut)
    time.sleep(rng.uniform(0, seconds))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    done += status == signal.SIGKILL
    if (cut / "end.npz").exists() and status == 0:
        with np.load(cut / "end.npz") as arrays:
            for one, other in zip(arrays.values(), whole, strict=True):
                np.testing.assert_array_equal(one, other)
        runs += 1
        shutil.rmtree(cut)
print(done, runs)
"""


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_a_thousand_kills_change_nothing(tmp_path):
    """Two processes side by side, which kill 500 times each."""
    processes = []
    for seed in range(2):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", KILLS, str(folder), "500", str(seed)],
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for process in processes:
        kills, runs = map(int, process.communicate()[0].split())
        assert kills == 500
        assert runs > 10
        print(f"{kills} kills in {runs} runs that came to their end")


class TwoOptimizers(keras.Model):
    """Trains by an optimizer of its own, as Keras's adversarial networks do."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def compile(self, own):
        super().compile()
        self.own = own

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x) - y) ** 2)
        weights = self.trainable_weights
        self.own.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def two_optimizers():
    keras.utils.set_random_seed(0)
    model = TwoOptimizers()
    model(np.zeros((1, 3)))
    model.compile(keras.optimizers.Adam(0.1))
    return model


@pytest.mark.backends("tensorflow")
def test_optimizers_of_a_train_step_go_on(tmp_path):
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")

    def run(name, epochs, model):
        data = {"batch_size": 4, "shuffle": False, "verbose": 0}
        callbacks = [Resume(tmp_path / name)]
        model.fit(x, x[:, :1], epochs=epochs, callbacks=callbacks, **data)
        return [*model.get_weights(), *(v.numpy() for v in model.own.variables)]

    run("cut", 1, two_optimizers())
    assert_same(run("cut", 3, two_optimizers()), run("whole", 3, two_optimizers()))
    other = two_optimizers()
    other.compile(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="of a run with a different optimizer"):
        run("cut", 3, other)


@pytest.mark.backends("tensorflow")
def test_a_train_step_that_diverges_leaves_its_optimizers_good():
    model, good = two_optimizers(), []

    def spoil(epoch, logs):
        good[:] = [v.numpy() for v in model.own.variables]
        if epoch == 2:
            model.own.learning_rate = 1e30

    x = np.ones((8, 3), "float32")
    callbacks = [TerminateOnDivergence()]
    callbacks += [keras.callbacks.LambdaCallback(on_epoch_begin=spoil)]
    options = {"epochs": 4, "batch_size": 4, "verbose": 0}
    with pytest.warns(UserWarning, match="diverged in epoch 3"):
        model.fit(x, 2 * x[:, :1], callbacks=callbacks, **options)
    assert_same([v.numpy() for v in model.own.variables], good)


class Shuffled(keras.utils.PyDataset):
    """Shuffles at the end of an epoch, as Keras's guide does."""

    def __init__(self):
        super().__init__()
        self.random, self.seen = np.random.default_rng(0), []
        self.order = self.random.permutation(6)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = np.full((2, 3), self.order[index], "float32")
        return x, x[:, :1]

    def on_epoch_end(self):
        self.order = self.random.permutation(6)


@pytest.mark.slow_on("tensorflow")
def test_a_dataset_that_shuffles_at_an_epochs_end_has_its_order(tmp_path):
    def run(name, epochs):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        data = Shuffled()
        model.fit(
            data,
            epochs=epochs,
            shuffle=False,
            callbacks=[Resume(tmp_path / name, data=data)],
            verbose=0,
        )
        return data.order.tolist(), model.get_weights()

    run("cut", 1)
    (order, weights), (expected, whole) = run("cut", 3), run("whole", 3)
    assert order == expected
    for one, other in zip(weights, whole, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def fit_line(directory, data, epochs):
    """Fits a line to data, with `Resume`, and returns its weights."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    options = {"epochs": epochs, "shuffle": False, "verbose": 0}
    model.fit(data, callbacks=[Resume(directory, data=data)], **options)
    return model.get_weights()


@pytest.mark.backends("torch")
def test_a_loader_of_torch_has_its_order(tmp_path):
    torch = pytest.importorskip("torch")

    def run(name, epochs):
        x = torch.arange(7.0)[:, None]
        pairs = torch.utils.data.TensorDataset(x, x)
        data = torch.utils.data.DataLoader(pairs, batch_size=2, shuffle=True)
        return fit_line(tmp_path / name, data, epochs)

    run("cut", 1)
    assert_same(run("cut", 3), run("whole", 3))
    own, loader = torch.Generator(), torch.utils.data.DataLoader
    sampler = torch.utils.data.RandomSampler([7], generator=own)
    for data in loader([7], shuffle=True, generator=own), loader([7], sampler=sampler):
        with pytest.warns(UserWarning, match="`data` should have no `generator`"):
            Resume(tmp_path / "own", data=data)
    Resume(tmp_path / "own", data=loader([7], generator=own))  # It draws nothing.


@pytest.mark.backends("tensorflow")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("known", [True, False])
def test_a_dataset_of_tensorflow_has_its_order(known, tmp_path):
    """Keras begins it twice an epoch if its length is known, and shuffles each time."""

    def run(name, epochs):
        x = np.arange(8, dtype="float32").reshape(8, 1, 1) / 8
        data = tf.data.Dataset.from_tensor_slices((x, x)).shuffle(8, seed=1)
        data = data if known else data.filter(lambda *pair: True)
        return fit_line(tmp_path / name, data, epochs)

    run("cut", 2)
    assert_same(run("cut", 4), run("whole", 4))
