"""`CheckpointAverage` and `ScheduleFreeAverage`, beside Keras's `SwapEMAWeights`."""

import keras
import numpy as np
import pytest

from keras_seqattn.training import CheckpointAverage, ScheduleFreeAverage
from tests.pairs import each_variant, named

pytestmark = pytest.mark.backends("torch")

X = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(("last", "averaged"), [(2, 2), (9, 3)])
def test_the_mean_of_the_last_epochs_is_in_the_model(last, averaged):
    layers = [keras.Input((2,)), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), "mse", run_eagerly=True)
    seen = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(model.get_weights())
    )
    x = np.random.default_rng(0).normal(size=(8, 2))
    callbacks = [CheckpointAverage(last), watch]
    model.fit(x, x[:, :1], epochs=3, callbacks=callbacks, verbose=0)
    columns = zip(model.get_weights(), *seen[-averaged:], strict=True)
    for weight, *values in columns:
        assert not np.array_equal(values[0], values[-1])
        np.testing.assert_allclose(weight, np.mean(values, axis=0), rtol=1e-6)


def test_weights_that_are_no_floats_are_those_of_the_last_epoch():
    class Count(keras.layers.Layer):
        def build(self, shape):
            options = {"initializer": "zeros", "trainable": False, "dtype": "int32"}
            self.steps = self.add_weight(shape=(), **options)

        def call(self, x):
            self.steps.assign(self.steps + 1)
            return x

    model = keras.Sequential([keras.Input((2,)), Count(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    steps = model.layers[0].steps
    before = int(steps)
    model.fit(X, Y, epochs=3, callbacks=[CheckpointAverage(3)], verbose=0)
    assert int(steps) == before + 3


def test_the_epochs_of_an_interrupted_fit_are_forgotten():
    def interrupt(epoch, logs):
        raise KeyboardInterrupt

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    average, watch = CheckpointAverage(2), Watch()
    stop = keras.callbacks.LambdaCallback(on_epoch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, Y, callbacks=[average, stop], verbose=0)
    model.fit(X, Y, callbacks=[average, watch], verbose=0)
    for weight, trained in zip(model.get_weights(), watch.trained[-1], strict=True):
        np.testing.assert_allclose(weight, trained, rtol=1e-6)


def test_an_evaluation_after_fit_is_of_the_mean():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x, average = np.random.default_rng(0).normal(size=(8, 2)), CheckpointAverage(2)
    model.fit(x, x[:, :1], epochs=3, callbacks=[average], verbose=0)
    mean, data = model.get_weights(), (x, x[:, :1])
    expected = model.evaluate(*data, verbose=0)
    assert model.evaluate(*data, callbacks=[average], verbose=0) == expected
    np.testing.assert_equal(model.get_weights(), mean)


@pytest.mark.parametrize("last", [0, 1.5, None])
def test_last_is_checked(last):
    with pytest.raises(ValueError, match=f"Received: last={last!r}"):
        CheckpointAverage(last)


class Watch(keras.callbacks.Callback):
    """Notes the weights at the beginnings of validations and at the ends of epochs."""

    def __init__(self):
        super().__init__()
        self.validated, self.trained = [], []

    def on_test_begin(self, logs=None):
        self.validated.append(self.model.get_weights())

    def on_epoch_end(self, epoch, logs=None):
        self.trained.append(self.model.get_weights())


def fitted(optimizer, average, epochs=4):
    keras.utils.set_random_seed(0)
    layers = [keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)]
    model, watch = keras.Sequential(layers), Watch()
    model.compile(optimizer, "mse")
    # Else `ScheduleFreeAdamW` of Keras alone is wrong on TensorFlow.
    model.optimizer.build(model.trainable_variables)
    history = model.fit(
        X,
        Y,
        epochs=epochs,
        batch_size=4,
        shuffle=False,
        validation_data=(X, Y),
        callbacks=[average, watch],
        verbose=0,
    )
    loss = model.evaluate(X, Y, verbose=0)
    return model, watch, history.history["val_loss"], loss


AVERAGES = {
    "checkpoints": (lambda: keras.optimizers.SGD(0.1), lambda: CheckpointAverage(2)),
    "moving": (
        lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9),
        keras.callbacks.SwapEMAWeights,
    ),
    "schedule-free": (
        lambda: keras.optimizers.ScheduleFreeAdamW(0.1),
        ScheduleFreeAverage,
    ),
}


@pytest.mark.backends("tensorflow", "jax", "torch")
@each_variant("name", named(*AVERAGES), on_jax=AVERAGES, on_tensorflow=["moving"])
def test_what_is_validated_is_what_is_left_in_the_model(name):
    optimizer, average = (make() for make in AVERAGES[name])
    model, watch, losses, loss = fitted(optimizer, average)
    assert loss == pytest.approx(losses[-1], rel=1e-5)
    for weight, validated, trained in zip(
        model.get_weights(), watch.validated[-1], watch.trained[-1], strict=True
    ):
        np.testing.assert_allclose(weight, validated, rtol=1e-5, atol=1e-6)
        assert np.abs(weight - trained).max() > 1e-4


@pytest.mark.slow_on("tensorflow")
@pytest.mark.backends("tensorflow", "jax", "torch")
def test_the_training_goes_on_as_without_validations():
    for optimizer, average in AVERAGES.values():
        _, watch, _, _ = fitted(optimizer(), average())
        _, plain, _, _ = fitted(optimizer(), keras.callbacks.Callback())
        for mine, other in zip(watch.trained[-1], plain.trained[-1], strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.backends("jax")
def test_the_schedule_free_average_is_that_of_the_paper():
    """One weight, loss `(w - 1)^2 / 2`, by the paper's three sequences in float64."""
    beta, beta_2, rate, steps = 0.8, 0.999, 0.1, 7
    x = y = z = second = 0.0
    for t in range(1, steps + 1):
        gradient = y - 1
        second = beta_2 * second + (1 - beta_2) * gradient**2
        z -= rate * gradient / (np.sqrt(second / (1 - beta_2**t)) + 1e-8)
        x = (1 - 1 / t) * x + z / t
        y = (1 - beta) * z + beta * x
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    optimizer = keras.optimizers.ScheduleFreeAdamW(rate, beta_1=beta)
    model.compile(optimizer, lambda y, p: (p - y) ** 2 / 2)
    data = np.ones((steps, 1))
    model.fit(data, data, batch_size=1, verbose=0, callbacks=[ScheduleFreeAverage()])
    assert float(model.get_weights()[0][0, 0]) == pytest.approx(x, rel=1e-4)
    assert abs(x - y) > 0.01
    assert float(model.predict(np.ones((1, 1)), verbose=0)[0, 0]) == pytest.approx(
        x, rel=1e-4
    )


def test_the_schedule_free_average_has_the_dtype_of_the_weight():
    dense = keras.layers.Dense(1, use_bias=False, dtype="float64")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(keras.optimizers.ScheduleFreeAdamW(0.1, beta_1=0.5), "mse")
    x, average = np.ones((2, 1)), ScheduleFreeAverage()
    model.fit(x, x, verbose=0)
    average.set_model(model)
    (fast,) = (v for v in model.optimizer.variables if v.name.endswith("momentum"))
    y, z = (keras.ops.convert_to_numpy(v) for v in (dense.kernel, fast))
    np.testing.assert_allclose(average.averages()[0], 2 * y - z, rtol=1e-12)


def test_the_schedule_free_average_is_that_of_the_optimizer_whose_loss_is_scaled():
    keras.config.set_dtype_policy("mixed_float16")
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.1)
    model, watch, losses, loss = fitted(optimizer, ScheduleFreeAverage())
    assert model.optimizer is not optimizer
    assert loss == pytest.approx(losses[-1], rel=1e-3)
    assert np.abs(model.get_weights()[0] - watch.trained[-1][0]).max() > 1e-4


@pytest.mark.backends("tensorflow", "jax", "torch")
def test_schedule_free_steps_begin_at_the_weights():
    """Built by its first step on TensorFlow, the optimizer would begin at 0."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(keras.optimizers.ScheduleFreeAdamW(0.1), "mse")
    x = np.ones((1, 1))
    model.fit(x, 0 * x, callbacks=[ScheduleFreeAverage()], verbose=0)
    assert float(model.get_weights()[0][0, 0]) == pytest.approx(0.9, rel=1e-3)


@pytest.mark.backends("tensorflow")
def test_schedule_free_wants_a_model_that_is_built():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.ScheduleFreeAdamW(0.1), "mse")
    with pytest.raises(ValueError, match="`model` must be built before `fit`.*call it"):
        model.fit(X, Y, callbacks=[ScheduleFreeAverage()], verbose=0)


def test_schedule_free_wants_its_optimizer():
    with pytest.raises(ValueError, match="`optimizer` must be .*ScheduleFree.*SGD"):
        fitted(keras.optimizers.SGD(0.1), ScheduleFreeAverage())
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.1, beta_1=0.0)
    with pytest.raises(ValueError, match="`beta_1` must be above 0.*beta_1=0.0"):
        fitted(optimizer, ScheduleFreeAverage())


def test_schedule_free_wants_a_new_optimizer_once_weights_are_frozen():
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.1)
    model, *_ = fitted(optimizer, ScheduleFreeAverage())
    model.layers[-1].bias.trainable = False
    model.compile(optimizer, "mse")
    with pytest.raises(ValueError, match="`optimizer` must be a new one.*Received"):
        model.fit(
            np.ones((4, 2)), np.ones(4), callbacks=[ScheduleFreeAverage()], verbose=0
        )


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        (keras.callbacks.SwapEMAWeights, CheckpointAverage, "SwapEMAWeights"),
        (CheckpointAverage, keras.callbacks.SwapEMAWeights, "SwapEMAWeights"),
        (CheckpointAverage, ScheduleFreeAverage, "ScheduleFreeAverage"),
        (CheckpointAverage, CheckpointAverage, "CheckpointAverage"),
    ],
)
def test_two_averages_are_an_error(one, other, named):
    optimizer = keras.optimizers.SGD(0.1)
    callbacks = [
        make(swap_on_epoch=True) if make is keras.callbacks.SwapEMAWeights else make()
        for make in (one, other)
    ]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    with pytest.raises(ValueError, match=f"without `{named}` beside"):
        model.fit(np.ones((4, 2)), np.ones(4), callbacks=callbacks, verbose=0)


def test_the_average_of_an_optimizer_is_refused():
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.1, use_ema=True)
    with pytest.raises(ValueError, match="`use_ema` must be False for `ScheduleFree"):
        fitted(optimizer, ScheduleFreeAverage())


@pytest.mark.parametrize(
    ("callback", "option"),
    [
        (keras.callbacks.ModelCheckpoint("x.keras", save_best_only=True), "save_best"),
        (keras.callbacks.EarlyStopping(restore_best_weights=True), "restore_best"),
        (
            keras.callbacks.EarlyStopping("loss", restore_best_weights=True),
            "restore_best",
        ),
    ],
)
def test_what_keeps_the_best_weights_would_keep_others(callback, option):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    callbacks = [CheckpointAverage(), callback]
    with pytest.raises(ValueError, match=f"must be without `{option}.*True"):
        model.fit(np.ones((4, 2)), np.ones(4), callbacks=callbacks, verbose=0)


def test_what_keeps_the_weights_of_the_best_training_loss_goes_with_averages(tmp_path):
    """It keeps what it says: that loss is of the trained weights."""
    path, watch = tmp_path / "best.weights.h5", Watch()
    options = {"save_best_only": True, "save_weights_only": True}
    best = keras.callbacks.ModelCheckpoint(path, "loss", **options)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    callbacks = [CheckpointAverage(2), best, watch]
    history = model.fit(X, Y, epochs=3, callbacks=callbacks, verbose=0)
    assert np.argmin(history.history["loss"]) == 2
    model.load_weights(path)
    np.testing.assert_equal(model.get_weights(), watch.trained[2])


@pytest.mark.slow_on("tensorflow")
@pytest.mark.backends("torch", "tensorflow")
def test_a_further_fit_begins_at_the_schedule_free_average():
    optimizer = keras.optimizers.ScheduleFreeAdamW(0.1)
    model, _, losses, _ = fitted(optimizer, ScheduleFreeAverage())
    weights = model.get_weights()
    average = ScheduleFreeAverage()
    loss = model.evaluate(X, Y, callbacks=[average], verbose=0)
    assert loss == pytest.approx(losses[-1], rel=1e-5)
    model.optimizer.learning_rate = 0.0
    model.fit(X, Y, callbacks=[average], verbose=0)
    for now, before in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(now, before, rtol=1e-5, atol=1e-6)
