import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests import oracle
from tests.layers.weights import dense_weights, norm_weights, randomize
from tests.pairs import each_variant, named


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("normalize_first", [True, False])
def test_equals_the_oracle(rng, norm, normalize_first):
    layer = layers.Residual(
        keras.layers.Dense(8), norm=norm, normalize_first=normalize_first, dropout=0.5
    )
    x = rng.normal(size=(2, 3, 8)).astype("float32")
    layer.build(x.shape)
    randomize(layer, rng)
    expected = oracle.residual(
        x,
        lambda h: oracle.dense(h, *dense_weights(layer.sublayer)),
        norm_weights(layer.norm_layer),
        normalize_first,
        layer.norm_layer.epsilon,
    )
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x)), expected, atol=1e-4)


def test_drops_the_sublayer_and_never_the_input(rng):
    layer = layers.Residual(
        keras.layers.Dense(64, bias_initializer="ones"), dropout=0.5
    )
    x = rng.normal(size=(2, 3, 64)).astype("float32")
    quiet = ops.convert_to_numpy(layer(x))
    dropped = ops.convert_to_numpy(layer(x, training=True))
    untouched = np.isclose(dropped, x, atol=1e-6)
    assert 0.3 < untouched.mean() < 0.7
    kept = ~untouched
    np.testing.assert_allclose((dropped - x)[kept], 2.0 * (quiet - x)[kept], atol=1e-4)


@each_variant("normalize_first", named(True, False), on_jax=["True"])
@each_variant("rank", named(2, 3, 4), on_jax=["3"])
def test_samples_skip_the_sublayer_one_by_one(rng, normalize_first, rank):
    """A sample that does not skip gets 1 / (1 - p) of what the sublayer gives."""
    layer = layers.Residual(
        keras.layers.Dense(8, bias_initializer="ones"),
        normalize_first=normalize_first,
        stochastic_depth=0.25,
    )
    x = rng.normal(size=(200, 3, 2, 8)[: rank - 1] + (8,)).astype("float32")
    quiet = ops.convert_to_numpy(layer(x))
    np.testing.assert_array_equal(ops.convert_to_numpy(layer(x, training=False)), quiet)
    given = ops.convert_to_numpy(layer(x, training=True))
    if normalize_first:
        skipped, kept = x, x + (quiet - x) / 0.75
    else:
        norm, inner = layer.norm_layer, ops.convert_to_numpy(layer.sublayer(x))
        skipped, kept = (ops.convert_to_numpy(norm(x + k * inner)) for k in (0, 4 / 3))
    rows = (200, -1)
    skips = np.isclose(given, skipped, atol=1e-4).reshape(rows).all(1)
    keeps = np.isclose(given, kept, atol=1e-4).reshape(rows).all(1)
    assert (skips ^ keeps).all()
    assert 0.12 < skips.mean() < 0.38


def test_keeps_a_sublayer_that_is_built_already(rng):
    dense = keras.layers.Dense(8)
    dense.build((None, 8))
    kernel = dense.kernel
    layers.Residual(dense)(rng.normal(size=(2, 8)).astype("float32"))
    assert dense.kernel is kernel


def test_a_residual_built_with_a_source_is_made_again():
    residual = layers.Residual(layers.MultiHeadAttention(2, 4))
    residual.build((None, 3, 8), (None, 5, 6))
    config = keras.saving.serialize_keras_object(residual)
    again = keras.saving.deserialize_keras_object(config)
    shapes = [[weight.shape for weight in x.weights] for x in (residual, again)]
    assert shapes[0] == shapes[1]


def test_passes_the_mask_on():
    x = keras.layers.Embedding(5, 4, mask_zero=True)(np.array([[1, 2, 0]]))
    output = layers.Residual(keras.layers.Dense(4))(x)
    np.testing.assert_array_equal(output._keras_mask, [[True, True, False]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "batch"}, "`norm` must be.*norm='batch'"),
        ({"dropout": 1.0}, "`dropout` must be in .*dropout=1.0"),
        ({"stochastic_depth": -0.1}, "`stochastic_depth` must be in .*depth=-0.1"),
    ],
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.Residual(keras.layers.Dense(4), **arguments)
