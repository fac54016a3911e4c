"""`TerminateOnDivergence`: training that explodes ends with the last good weights."""

import functools

import keras
import numpy as np
import pytest

from keras_seqattn.training import CheckpointAverage, Resume, TerminateOnDivergence

X = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Spoil(keras.callbacks.Callback):
    """Raises the learning rate at the beginning of an epoch, and notes the weights."""

    def __init__(self, epoch, rate):
        super().__init__()
        self.epoch, self.rate, self.seen = epoch, rate, []

    def on_epoch_begin(self, epoch, logs=None):
        self.seen.append(self.model.get_weights())
        if epoch == self.epoch:
            self.model.optimizer.learning_rate = self.rate


def fit(*callbacks, epochs=6, batch_size=4, use_ema=True, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05, use_ema=use_ema, ema_momentum=0.5)
    model.compile(optimizer, "mse")
    data = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
    history = model.fit(
        X, Y, epochs=epochs, callbacks=list(callbacks), **data, **options
    )
    return model, history.history


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(
    ("rate", "seen"),
    [(1e30, "the loss is (nan|inf)"), (2.0, r"the mean loss is \d.*best")],
)
@pytest.mark.parametrize(
    "average",
    [keras.callbacks.Callback, keras.callbacks.SwapEMAWeights, CheckpointAverage],
)
def test_the_last_good_weights_and_averages_are_kept(rate, seen, average):
    spoil, watch = Spoil(3, rate), TerminateOnDivergence()
    with pytest.warns(UserWarning, match=f"diverged in epoch 4: {seen}.*learning rate"):
        model, logs = fit(watch, average(), spoil, validation_data=(X, Y))
    assert watch.diverged
    assert len(logs["loss"]) == 4
    assert np.isfinite(logs["val_loss"]).all()
    assert len(spoil.seen) == 4
    # Averages are near the weights that the epoch began with.
    expected, _ = fit(average(), epochs=3, validation_data=(X, Y))
    for mine, theirs in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=0.1)


@pytest.mark.parametrize("epochs", [3, 6])
def test_averages_that_stay_until_the_next_epoch_are_left(epochs):
    swap, options = keras.callbacks.SwapEMAWeights, {"validation_data": (X, Y)}
    seen = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(seen.model.get_weights())
    )
    weights = []
    with pytest.warns(UserWarning, match="diverged in epoch 3"):
        model, logs = fit(
            TerminateOnDivergence(),
            swap(swap_on_epoch=True),
            Spoil(2, 1e30),
            seen,
            epochs=epochs,
            **options,
        )
    expected, _ = fit(swap(swap_on_epoch=True), epochs=2, **options)
    for left in (weights[2], model.get_weights()):
        for mine, theirs in zip(left, expected.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert logs["val_loss"][2] == pytest.approx(logs["val_loss"][1])


def test_the_weights_left_are_those_that_the_epoch_began_with():
    spoil = Spoil(3, 1e30)
    with pytest.warns(UserWarning, match="diverged in epoch 4"):
        model, _ = fit(TerminateOnDivergence(), spoil, use_ema=False)
    np.testing.assert_equal(model.get_weights(), spoil.seen[3])


@pytest.mark.parametrize("is_validated", [False, True])
def test_a_last_step_that_no_loss_has_shown_is_seen(is_validated):
    watch, spoil = TerminateOnDivergence(), Spoil(2, float("nan"))
    data = {"validation_data": (X, Y)} if is_validated else {}
    with pytest.warns(UserWarning, match="diverged in epoch 3: a weight is not finite"):
        model, logs = fit(watch, spoil, epochs=3, batch_size=64, use_ema=False, **data)
    assert watch.diverged
    assert np.isfinite(logs.get("val_loss", 0)).all()
    np.testing.assert_equal(model.get_weights(), spoil.seen[2])


def test_an_evaluation_after_it_is_of_the_model_as_it_is():
    watch = TerminateOnDivergence()
    with pytest.warns(UserWarning, match="diverged in epoch 2"):
        model, _ = fit(watch, Spoil(1, 1e30), use_ema=False)
    expected = model.evaluate(X, Y, verbose=0)
    assert model.evaluate(X, Y, callbacks=[watch], verbose=0) == expected


def test_another_fit_is_watched_anew():
    watch = TerminateOnDivergence()
    with pytest.warns(UserWarning, match="diverged in epoch 5"):
        _, logs = fit(watch, Spoil(4, 1e30), use_ema=False)
    assert logs["loss"][3] < 0.5 * logs["loss"][0]
    _, logs = fit(watch, epochs=2, use_ema=False)
    assert not watch.diverged
    assert len(logs["loss"]) == 2


def test_an_error_leaves_the_weights_and_what_resume_saved(tmp_path):
    spoil, watch = Spoil(2, 1e30), TerminateOnDivergence(raise_error=True)
    with pytest.raises(RuntimeError, match="diverged in epoch 3.*from before"):
        fit(spoil, watch, Resume(tmp_path), use_ema=False)
    assert watch.diverged
    np.testing.assert_equal(watch.model.get_weights(), spoil.seen[2])
    watch.model.set_weights(spoil.seen[1])  # as after another training
    watch.model.evaluate(X, Y, callbacks=[watch], verbose=0)
    np.testing.assert_equal(watch.model.get_weights(), spoil.seen[1])
    _, logs = fit(Resume(tmp_path), use_ema=False)  # The same, without what spoiled it.
    assert len(logs["loss"]) == 6
    assert np.isfinite(logs["loss"]).all()


@pytest.mark.parametrize("batch_size", [4, 64])
def test_a_training_that_learns_or_stands_still_goes_on(batch_size):
    watch = TerminateOnDivergence()
    _, logs = fit(watch, Spoil(1, 1e-9), batch_size=batch_size)
    assert len(logs["loss"]) == 6
    assert not watch.diverged


def begun():
    """Returns the callback at the beginning of a training."""
    watch = TerminateOnDivergence()
    watch.set_model(keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]))
    watch.model.compile("sgd", "mse")
    watch.on_train_begin()
    return watch


def test_a_small_loss_may_vary():
    watch = begun()
    for epoch, loss in enumerate((8.0, 0.001, 0.01, 2.4)):
        watch.on_epoch_begin(epoch)
        watch.on_train_batch_end(0, {"loss": loss})
        watch.on_epoch_end(epoch, {"loss": loss})
        assert not watch.diverged
    watch.on_epoch_begin(4)
    watch.on_train_batch_end(98, {"loss": 9.0})  # Too few to tell.
    assert not watch.diverged
    watch.on_train_batch_end(99, {"loss": 9.0})
    assert watch.diverged


def test_a_loss_may_be_negative():
    watch = begun()
    for epoch, loss in enumerate((-8.0, -8.0, -5.7)):
        watch.on_epoch_begin(epoch)
        watch.on_train_batch_end(0, {"loss": loss})
        watch.on_epoch_end(epoch, {"loss": loss})
        assert not watch.diverged
    watch.on_epoch_begin(3)
    watch.on_train_batch_end(99, {"loss": -5.5})
    assert watch.diverged


def test_batches_that_a_resumed_epoch_skips_do_not_count():
    watch = begun()
    for epoch, skipped in ((0, 0), (1, 500)):
        watch.on_epoch_begin(epoch)
        for batch in range(skipped):
            watch.on_train_batch_end(batch, {})
        for count in range(100):
            loss = 1.0 if epoch == 0 or count == 99 else 9.0
            watch.on_train_batch_end(skipped + count, {"loss": loss})
        assert not watch.diverged
        watch.on_epoch_end(epoch, {"loss": 1.0})


@pytest.mark.parametrize("rise", [0, -1.0, float("nan"), "0.3"])
def test_rise_is_checked(rise):
    with pytest.raises(ValueError, match="`rise` must be"):
        TerminateOnDivergence(rise=rise)


def test_a_model_of_keras_s_own_may_diverge_in_its_first_epoch():
    """Before its first step on TensorFlow, such a model's optimizer has no state."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e30), "mse")
    weights = model.get_weights()
    with pytest.warns(UserWarning, match="diverged in epoch 1"):
        model.fit(X, Y, epochs=2, callbacks=[TerminateOnDivergence()], verbose=0)
    np.testing.assert_equal(model.get_weights(), weights)


@pytest.mark.parametrize(
    "swap",
    [
        keras.callbacks.Callback,
        keras.callbacks.SwapEMAWeights,
        functools.partial(keras.callbacks.SwapEMAWeights, swap_on_epoch=True),
    ],
)
@pytest.mark.parametrize("scaled", [False, True])
def test_an_average_of_no_step_is_not_left_where_the_first_epoch_diverges(swap, scaled):
    """Keras would copy it into the weights, as 0, when `fit` ends."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(1e30, use_ema=True)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(optimizer, "mse")
    weights = model.get_weights()
    with pytest.warns(UserWarning, match="diverged in epoch 1"):
        model.fit(X, Y, callbacks=[TerminateOnDivergence(), swap()], verbose=0)
    np.testing.assert_equal(model.get_weights(), weights)


class Twins(keras.Model):
    """Two parts of one name, whose weights so have one path."""

    def __init__(self):
        super().__init__()
        self.parts = [keras.layers.Dense(1, name="part") for _ in range(2)]

    def call(self, x):
        return self.parts[0](x) - self.parts[1](x)


@pytest.mark.backends("torch")
def test_weights_of_one_path_have_averages_of_their_own():
    model = Twins()
    model(X)
    model.compile(keras.optimizers.SGD(1e30, use_ema=True), "mse")
    weights = model.get_weights()
    with pytest.warns(UserWarning, match="diverged in epoch 1"):
        model.fit(X, Y, callbacks=[TerminateOnDivergence()], verbose=0)
    np.testing.assert_equal(model.get_weights(), weights)


@pytest.mark.backends("tensorflow")
def test_a_model_that_its_first_step_would_build_is_refused():
    """Else its optimizer would be built for none of the weights."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="`model` must be built before `fit`.*call it"):
        model.fit(X, Y, callbacks=[TerminateOnDivergence()], verbose=0)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("rest", [0.1, 9.0])
def test_the_few_batches_of_a_resumed_epochs_rest_show_little(rest):
    watch = TerminateOnDivergence()
    watch.set_model(fit(epochs=1)[0])
    watch.on_train_begin()
    for epoch, (skipped, loss) in enumerate([(0, 1.0), (5, rest), (0, 1.0)]):
        watch.on_epoch_begin(epoch)
        for batch in range(6):
            watch.on_train_batch_end(batch, {} if batch < skipped else {"loss": loss})
        watch.on_epoch_end(epoch, {"loss": loss})
        assert not watch.diverged
