"""Our layer norm is Keras's, gradients included."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.layers.transformer.residual import LayerNormalization
from tests.differentiate import values_and_gradients

rng = np.random.default_rng(0)
X = rng.normal(2.0, 3.0, (3, 4, 6)).astype("float32")
GAMMA, BETA = rng.normal(size=(2, 6)).astype("float32")


def run(cls, mode, dtype):
    layer = cls(epsilon=1e-5, dtype=dtype)
    layer.build(X.shape)
    gamma, beta = layer.gamma, layer.beta

    def function(x, new_gamma, new_beta):
        state = [(gamma, new_gamma), (beta, new_beta)]
        with keras.StatelessScope(state_mapping=state):
            return layer(x)

    value, gradients = values_and_gradients(function, (X, GAMMA, BETA), mode)
    return [value, *gradients]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@pytest.mark.backends("tensorflow")
def test_numbers_and_gradients_are_those_of_keras(mode, dtype):
    ours = run(LayerNormalization, mode, dtype)
    theirs = run(keras.layers.LayerNormalization, mode, dtype)
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    for x, y in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance * np.abs(y).max())


def test_each_vector_has_mean_zero_and_variance_one():
    layer = LayerNormalization(epsilon=0.0)
    y = ops.convert_to_numpy(layer(X))
    np.testing.assert_allclose(y.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(y.var(-1), 1.0, atol=1e-4)
