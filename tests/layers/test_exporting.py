"""Keras's own `Model.export` of our layers and models, for lengths not yet known."""

import importlib.metadata

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers, models
from tests.pairs import slow
from tests.small import translation_model

SIZES = {"model_dim": 16, "num_heads": 2, "intermediate_dim": 32}
IDS = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]], "int32")
VECTORS = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
quiet = pytest.mark.filterwarnings(
    *("ignore::UserWarning", "ignore::DeprecationWarning"),
    # torch's, of each size that an exported program compares
    "ignore:Converting a tensor",
)


def attention(**options):
    x = keras.Input((None, 16))
    layer = layers.MultiHeadAttention(2, 8)
    return keras.Model(x, layer(x, x, **options)), VECTORS


def masked_attention():
    token_ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(30, 16, mask_zero=True)(token_ids)
    return keras.Model(token_ids, layers.MultiHeadAttention(2, 8)(x, x)), IDS


def block():
    x = keras.Input((None, 16))
    return keras.Model(x, layers.EncoderBlock(2, 32)(x)), VECTORS


def of_ids(model, inputs=IDS):
    model(inputs)
    return model, inputs


BOTH = {"source_ids": IDS, "target_ids": IDS[:, ::-1]}
MODELS = {
    "attention": lambda: attention(use_causal_mask=True),
    "masked": masked_attention,
    "block": block,
    "language": lambda: of_ids(models.LanguageModel(30, num_layers=1, **SIZES)),
    "encoder": lambda: of_ids(models.EncoderModel(30, num_layers=1, **SIZES)),
    "translation": lambda: of_ids(translation_model(30, **SIZES), BOTH),
    "recurrent": lambda: of_ids(models.TranslationRNN(30, model_dim=16), BOTH),
}


def cut(inputs):
    """Returns one row, of three positions."""
    return keras.tree.map_structure(lambda x: x[:1, :3], inputs)


def expected(model, inputs):
    return ops.convert_to_numpy(model(inputs))


# JAX's version from which on TensorFlow 2.21 cannot read its programs.
UNREAD = (0, 12)


def jax_version():
    return tuple(map(int, importlib.metadata.version("jax").split(".")[:2]))


@quiet
@pytest.mark.backends("jax")
@pytest.mark.skipif(jax_version() >= UNREAD, reason="TensorFlow cannot read it")
@pytest.mark.parametrize(
    "kind", ["language", *slow(*(kind for kind in MODELS if kind != "language"))]
)
def test_jax_exports_unknown_lengths(kind, tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    model, inputs = MODELS[kind]()
    model.export(tmp_path / "saved", format="tf_saved_model", verbose=False)
    loaded = tensorflow.saved_model.load(tmp_path / "saved")
    for given in (inputs, cut(inputs)):
        np.testing.assert_allclose(
            loaded.serve(given).numpy(), expected(model, given), atol=1e-5
        )


@quiet
@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["attention", "masked"])
def test_torch_exports_attention_to_onnx(kind, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = MODELS[kind]()
    model(inputs)
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path)
    (name,) = (x.name for x in session.get_inputs())
    for given in (inputs, cut(inputs)):
        (output,) = session.run(None, {name: given})
        np.testing.assert_allclose(output, expected(model, given), atol=1e-5)


@quiet
@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["block", "language", "encoder", "translation"])
def test_torch_exports_models_of_given_sizes_to_onnx(kind, tmp_path):
    """Of any size: not while Keras's own `LayerNormalization` fails there."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model, inputs = MODELS[kind]()
    model(inputs)
    signature = keras.tree.map_structure(
        lambda x: keras.InputSpec(shape=x.shape, dtype=str(x.dtype)), inputs
    )
    path = tmp_path / "model.onnx"
    model.export(path, format="onnx", verbose=False, input_signature=[signature])
    session = onnxruntime.InferenceSession(path)
    # A dict's arrays come in the order of their names.
    names = [x.name for x in session.get_inputs()]
    arrays = keras.tree.flatten(inputs)
    given = dict(zip(names, arrays, strict=True))
    (output,) = session.run(None, given)
    np.testing.assert_allclose(output, expected(model, inputs), atol=1e-5)
