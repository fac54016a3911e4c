"""`TokenLogits` where Keras's own `Dense` would stand."""

import keras
import numpy as np
from keras import ops

from keras_seqattn import layers

X = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")


def test_int8_is_close_and_survives_saving(tmp_path):
    inputs = keras.Input((None, 16))
    model = keras.Model(inputs, layers.TokenLogits(30, name="logits")(inputs))
    expected = ops.convert_to_numpy(model(X))
    model.quantize("int8")
    assert model.get_layer("logits").quantization_mode == "int8"
    output = ops.convert_to_numpy(model(X))
    assert 0.0 < np.abs(output - expected).mean() / np.abs(expected).mean() < 0.05
    model.save(tmp_path / "int8.keras")
    loaded = keras.models.load_model(tmp_path / "int8.keras")
    np.testing.assert_allclose(ops.convert_to_numpy(loaded(X)), output, atol=1e-6)
