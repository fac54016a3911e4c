import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests import oracle
from tests.layers.weights import feed_forward_weights, randomize


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_equals_the_oracle(rng, gated, activation):
    layer = layers.FeedForward(12, activation=activation, gated=gated)
    x = rng.normal(size=(2, 3, 8)).astype("float32")
    layer.build(x.shape)
    randomize(layer, rng)
    expected = oracle.feed_forward(x, feed_forward_weights(layer), activation)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, atol=1e-4)


def test_drops_while_training_only(rng):
    layer = layers.FeedForward(64, dropout=0.5)
    x = rng.normal(size=(2, 3, 8)).astype("float32")
    quiet = ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x, training=False)), quiet)
    assert not np.allclose(ops.convert_to_numpy(layer(x, training=True)), quiet)


def test_passes_the_mask_on():
    layer = layers.FeedForward(8)
    embedding = keras.layers.Embedding(5, 4, mask_zero=True)
    hidden = embedding(np.array([[1, 2, 0]]))
    mask = layer(hidden)._keras_mask
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), [[True, True, False]])


@pytest.mark.parametrize("intermediate_dim", [0, -3, 2.0, "8", None])
def test_width_must_be_a_positive_integer(intermediate_dim):
    received = f"intermediate_dim={intermediate_dim!r}"
    with pytest.raises(ValueError, match=f"`intermediate_dim` must be.*{received}"):
        layers.FeedForward(intermediate_dim)


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 2])
def test_dropout_must_be_a_fraction(dropout):
    with pytest.raises(ValueError, match=f"dropout={dropout}"):
        layers.FeedForward(8, dropout=dropout)
