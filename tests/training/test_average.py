"""`CheckpointAverage`: the mean of the last epochs' weights."""

import keras
import numpy as np
import pytest

from keras_seqattn.training import CheckpointAverage

pytestmark = pytest.mark.backends("torch")


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


@pytest.mark.parametrize("last", [0, 1.5, None])
def test_last_is_checked(last):
    with pytest.raises(ValueError, match=f"Received: last={last!r}"):
        CheckpointAverage(last)
