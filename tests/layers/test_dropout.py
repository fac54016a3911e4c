"""Dropout by hashing: as random as it must be, used where it should."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.backend import compile, tracing
from keras_seqattn.layers import dropout

pytestmark = pytest.mark.backends("tensorflow", "jax")
SHAPE = (64, 8, 128)
RATE = 0.25


def hashes(seed, count=0):
    numbers = dropout.hashes(SHAPE, ops.cast(np.array([seed, count]), "uint32"))
    return ops.convert_to_numpy(numbers).astype("uint32")


def tossed(seed, count=0):
    """Gives each place a coin: 1.0 where a number is kept at the rate, else 0.0."""
    return (hashes(seed, count) >= RATE * 2**32).astype("float64")


def within_chance(values, expected_mean, deviation):
    """Whether a mean of independent values is within five of its deviations."""
    return abs(values.mean() - expected_mean) < 5 * deviation / np.sqrt(values.size)


@pytest.mark.parametrize("seed", [0, 1, 123_456_789, 2**32 - 1])
def test_every_bit_is_a_fair_coin(seed):
    bits = hashes(seed)[..., None] >> np.arange(32, dtype="uint32") & 1
    assert all(within_chance(bits[..., i], 0.5, 0.5) for i in range(32))


@pytest.mark.parametrize("seed", [0, 1, 123_456_789])
def test_neighbours_are_dropped_independently(seed):
    kept = (tossed(seed) - (1 - RATE)) / np.sqrt(RATE * (1 - RATE))
    assert within_chance(kept, 0.0, 1.0)
    for axis in range(3):
        for step in (1, 2, 3):
            pairs = kept * np.roll(kept, step, axis)
            assert within_chance(pairs, 0.0, 1.0), (axis, step)


@pytest.mark.parametrize("other", [(0, 1), (1, 0), (2, 0), (1, 1), (2**31, 0)])
def test_seeds_are_independent(other):
    kept, also = ((tossed(*s) - (1 - RATE)) for s in ((0, 0), other))
    assert within_chance(kept * also / (RATE * (1 - RATE)), 0.0, 1.0)


class AlwaysDropping(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dropout = dropout.Dropout(RATE, seed=3)

    def call(self, x):
        return self.dropout(x, training=True)


def test_drops_its_share_and_scales_the_rest(monkeypatch):
    model = keras.Sequential([keras.Input(SHAPE[1:]), AlwaysDropping()])
    model.compile(jit_compile=True)
    monkeypatch.setattr(keras.random, "dropout", None)  # not called in programs
    x = np.ones(SHAPE, "float32")
    first, second = (model.predict(x, batch_size=64, verbose=0) for _ in range(2))
    np.testing.assert_allclose(np.unique(first), [0.0, 1 / (1 - RATE)])
    assert within_chance((first == 0.0), RATE, np.sqrt(RATE * (1 - RATE)))
    assert (first != second).mean() > RATE


def test_gradient_is_zero_where_it_drops():
    class Slope(keras.layers.Layer):
        """Multiplies by a weight for each number, all ones."""

        def build(self, shape):
            self.slope = self.add_weight(shape[1:], initializer="ones")

        def call(self, x):
            return x * self.slope

    inputs = keras.Input(SHAPE[1:])
    output = dropout.Dropout(RATE, seed=3)(Slope()(inputs))
    model = keras.Model(inputs, output)
    model.compile(keras.optimizers.SGD(1.0), lambda _, y: ops.sum(y), jit_compile=True)
    x = np.ones((1, *SHAPE[1:]), "float32")
    model.train_on_batch(x, x)
    gradient = 1.0 - model.get_weights()[0]
    np.testing.assert_allclose(np.unique(gradient), [0.0, 1 / (1 - RATE)], rtol=1e-6)
    assert within_chance((gradient == 0.0), RATE, np.sqrt(RATE * (1 - RATE)))


def test_knows_where_xla_compiles():
    told = []

    def tell(x):
        told.append(tracing.is_compiled_by_xla(x))
        return x

    compile.CompiledFunction(tell)(np.ones(2, "float32"))
    assert told and all(told)
    assert not tracing.is_compiled_by_xla(ops.ones(2))
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        told.clear()
        tf.function(tell)(tf.ones(2))
        assert told == [False]
