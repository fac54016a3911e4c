"""The options of `MultiHeadAttention` in models: masks, shapes, saving, LoRA, int8."""

import keras
import numpy as np
import pytest

from keras_seqattn import layers
from tests.evaluate import JIT, evaluated, numpy
from tests.pairs import each_variant, named
from tests.small import translation_model

V, D = 11, 8
IDS = np.array([[5, 3, 9, 0], [4, 2, 0, 0]], "int32")

OPTIONS = [
    {"positions": "rotary", "qk_norm": True, "num_key_value_heads": 1},
    {"positions": "relative", "score": "additive", "use_gate": True},
    {"positions": "alibi", "score": "dot", "implementation": "chunked"},
]
each_option = each_variant("options", named(*OPTIONS), on_jax=[])


def attention_model(options):
    """Adds what self-attention gives to embedded tokens, and classifies each."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(V, D, "orthogonal", mask_zero=True)(ids)
    attention = layers.MultiHeadAttention(2, 4, name="attention", **options)
    x = keras.layers.Add()([x, attention(x, x, use_causal_mask=True)])
    return keras.Model(ids, keras.layers.Dense(V)(x))


def train_step(model, *inputs):
    """Takes one step, and returns which weights changed, by path."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT)
    before = model.get_weights()
    assert np.isfinite(model.train_on_batch(*inputs))
    return {
        weight.path
        for weight, a, b in zip(model.weights, before, model.get_weights(), strict=True)
        if np.any(a != b)
    }


@each_option
def test_masks_go_on_past_the_layer_and_weights_learn(options):
    """The implicit mask holds inside the layer, in its output and in its inputs."""
    model = attention_model(options)
    np.testing.assert_array_equal(model(IDS)._keras_mask, IDS != 0)
    # In front, where the tokens after it might see it.
    front = IDS[:, ::-1]
    short = numpy(model(front[:, 1:]))
    np.testing.assert_allclose(numpy(model(front))[:, 1:], short, atol=1e-5)
    changed = train_step(model, IDS, IDS)
    # A bias of all keys alike changes no weight of a dot product.
    unchanged = {w.path for w in model.trainable_weights} - changed
    assert unchanged <= {"attention/key/bias"}


@each_variant("options", named(*OPTIONS[:2]), on_jax=[])
def test_lora_trains_the_projections_and_is_saved(options, tmp_path):
    model = attention_model(options)
    attention = model.get_layer("attention")
    before = numpy(model(IDS))
    for layer in model.layers:
        layer.trainable = False
    for dense in (attention.query_dense, attention.output_dense):
        dense.trainable = True
        dense.enable_lora(2)
    np.testing.assert_allclose(numpy(model(IDS)), before, atol=1e-5)
    assert any("lora" in path for path in train_step(model, IDS, IDS))
    trained = numpy(model(IDS))
    assert not np.allclose(trained, before)
    model.save(tmp_path / "lora.keras")
    loaded = keras.models.load_model(tmp_path / "lora.keras")
    np.testing.assert_allclose(numpy(loaded(IDS)), trained, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS[:1], ids=str)
@pytest.mark.slow_on("tensorflow", "jax")
def test_int8_is_close_and_is_saved(options, tmp_path):
    model = attention_model(options)
    expected = evaluated(model, model)(IDS)
    model.quantize("int8")
    assert model.get_layer("attention").key_dense.quantization_mode == "int8"
    output = evaluated(model, model)(IDS)
    real = IDS != 0
    error = np.abs(output - expected)[real].mean() / np.abs(expected)[real].mean()
    assert 0.0 < error < 0.05
    model.save(tmp_path / "int8.keras")
    loaded = keras.models.load_model(tmp_path / "int8.keras")
    np.testing.assert_allclose(evaluated(loaded, loaded)(IDS), output, atol=1e-5)


@each_option
@pytest.mark.slow_on("jax")
def test_symbolic_shapes_are_the_eager_ones(options, rng):
    layer = layers.MultiHeadAttention(2, 4, value_dim=3, output_shape=5, **options)
    query, value = keras.Input((None, D)), keras.Input((None, D))
    symbolic = layer(query, value, return_attention_scores=True, offset=2)
    assert [tensor.shape for tensor in symbolic] == [
        (None, None, 5),
        (None, 2, None, None),
    ]
    model = keras.Model([query, value], symbolic)
    arrays = [rng.normal(size=(3, length, D)).astype("float32") for length in (4, 6)]
    eager = layer(*arrays, return_attention_scores=True, offset=2)
    for left, right in zip(model(arrays), eager, strict=True):
        np.testing.assert_allclose(numpy(left), numpy(right), atol=1e-6)


@each_variant("options", named(*OPTIONS), on_jax=[], on_tensorflow=[])
def test_a_translation_model_takes_the_options(options):
    """It trains, is made again from its config, and generates."""
    model = translation_model(V, intermediate_dim=12, dropout=0.0, attention=options)
    inputs = {"source_ids": IDS, "target_ids": IDS}
    assert train_step(model, inputs, IDS)
    again = type(model).from_config(model.get_config())
    again.set_weights(model.get_weights())
    np.testing.assert_allclose(numpy(again(inputs)), numpy(model(inputs)), atol=1e-5)
    found = model.generate(IDS, max_length=5)
    assert found.token_ids.shape == (2, 1, 5)


def test_the_documented_differences_from_keras():
    embedding = keras.layers.Embedding(9, 8, mask_zero=True)
    ids = np.array([[3, 4, 0]])
    theirs = keras.layers.MultiHeadAttention(2, 4)
    used = embedding(ids)
    expected = theirs(used, used)
    assert getattr(used, "_keras_mask", None) is None
    ours = layers.MultiHeadAttention.from_keras(theirs)
    x = embedding(ids)
    output = keras.ops.convert_to_numpy(ours(x, x))
    assert getattr(x, "_keras_mask", None) is not None
    expected = keras.ops.convert_to_numpy(expected)
    np.testing.assert_allclose(output[:, :2], expected[:, :2], atol=1e-5)
    np.testing.assert_array_equal(output[:, 2], 0)  # the output's bias
    assert np.abs(expected[:, 2]).max() > 0
    x = keras.ops.convert_to_numpy(x)
    given = {"query_mask": np.array([[True, False, True]])}
    hidden, seen = (
        keras.ops.convert_to_numpy(y(x, x, **given)) for y in (ours, theirs)
    )
    np.testing.assert_array_equal(hidden[:, 1], 0)
    np.testing.assert_allclose(seen, keras.ops.convert_to_numpy(theirs(x, x)))
