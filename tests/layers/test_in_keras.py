"""The layers where Keras users meet them: models, `fit`, precision, LoRA, int8."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests.evaluate import JIT, outputs
from tests.pairs import each_variant, named

L, V, D = 4, 11, 8
IDS = np.array([[5, 3, 9, 0], [4, 2, 0, 0]], "int32")


def every_layer_model(dropout=0.1):
    """A translation-like functional model in which each layer stands once."""
    source_ids = keras.Input((None,), dtype="int32", name="source")
    target_ids = keras.Input((None,), dtype="int32", name="target")
    embedding = layers.PositionalEmbedding(V, D, dropout=dropout)
    learned = layers.LearnedPositions(L)
    source = layers.EncoderBlock(2, 12, dropout=dropout, attention_dropout=dropout)(
        learned(embedding(source_ids))
    )
    target = layers.DecoderBlock(2, 12, norm="rms", gated=True, normalize_first=False)(
        embedding(target_ids), source
    )
    attention = layers.MultiHeadAttention(
        4, 4, value_dim=3, num_key_value_heads=2, use_gate=True, dropout=dropout
    )
    target = target + attention(target, source)
    target = target + layers.ScaledDotProductAttention()(target, source)
    target = layers.SinusoidalPositions()(target)
    target = layers.Residual(layers.FeedForward(12, dropout=dropout))(target)
    return keras.Model([source_ids, target_ids], embedding.logits(target))


def test_a_functional_model_takes_no_mask_of_floats():
    x, mask = keras.Input((L, D)), keras.Input((L, L))
    message = "`attention_mask` must be bool.*cannot be seen.*'float32'"
    for layer, inputs in (
        (layers.MultiHeadAttention(2, 4), (x, x)),
        (layers.ScaledDotProductAttention(), (x, x)),
        (layers.EncoderBlock(2, 12), (x,)),
    ):
        with pytest.raises(ValueError, match=message):
            layer(*inputs, attention_mask=mask)


def train_step(model, *inputs, **options):
    """Compiles, takes one step, and returns the loss and the greatest change."""
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        auto_scale_loss=False,  # It skips the first steps until the scale has fallen.
        **options,
    )
    model.optimizer.build(model.trainable_variables)
    before = model.get_weights()
    loss = model.train_on_batch(list(inputs), IDS)
    changes = [
        np.abs(a - b).max() for a, b in zip(model.get_weights(), before, strict=True)
    ]
    return loss, np.array(changes)


@each_variant(
    "policy",
    named("float32", "mixed_bfloat16", "mixed_float16"),
    on_jax=["float32"],
    on_tensorflow=["float32"],
)
def test_trains_in_a_functional_model(policy):
    """JAX always compiles, torch never; TensorFlow does with and without XLA."""
    jit_compile = JIT or (keras.backend.backend() != "torch" and policy == "float32")
    keras.config.set_dtype_policy(policy)
    model = every_layer_model()
    assert model.output.dtype == keras.config.dtype_policy().compute_dtype
    loss, changes = train_step(model, IDS, IDS, jit_compile=jit_compile)
    assert np.isfinite(loss)
    assert np.isfinite(changes).all()
    assert np.count_nonzero(changes) > 0.9 * len(changes)


@each_variant(
    "policy", named("mixed_bfloat16", "mixed_float16"), on_jax=["mixed_bfloat16"]
)
def test_mixed_precision_is_close_to_float32(policy):
    model = every_layer_model()
    keras.config.set_dtype_policy(policy)
    mixed = every_layer_model()
    mixed.set_weights(model.get_weights())
    expected, output = (outputs(each, [IDS, IDS]) for each in (model, mixed))
    real = IDS != 0
    # The root mean square, 0.6% to 3.4% over four seeds: the largest of 55 errors
    # depends on how the processor sums bfloat16.
    error = np.sqrt(np.mean((output[real] - expected[real]) ** 2))
    assert error < 0.05 * np.sqrt(np.mean(expected[real] ** 2))


def sequential_model():
    return keras.Sequential(
        [
            keras.Input((L,)),
            layers.PositionalEmbedding(V, D, positions="learned", max_length=L),
            layers.SinusoidalPositions(),
            layers.LearnedPositions(L),
            layers.EncoderBlock(2, 12),
            layers.DecoderBlock(2, 12),
            layers.FeedForward(12),
            layers.Residual(layers.FeedForward(12)),
            keras.layers.Dense(V),
        ]
    )


@pytest.mark.backends("tensorflow", "torch")
def test_layers_of_one_input_stand_in_a_sequential_model():
    model = sequential_model()
    np.testing.assert_array_equal(model(IDS)._keras_mask, IDS != 0)
    loss, changes = train_step(model, IDS, jit_compile=JIT)
    assert np.isfinite(loss) and np.isfinite(changes).all()
    assert np.count_nonzero(changes) > 0.9 * len(changes)


@pytest.mark.slow_on("jax")
def test_padding_is_not_seen_through_a_whole_model():
    """The implicit mask reaches every layer between the ids and the logits."""
    model = every_layer_model()
    short = outputs(model, [IDS[:, :3], IDS[:, :3]])
    long = outputs(model, [IDS, IDS])
    real = IDS[:, :3] != 0
    np.testing.assert_allclose(long[:, :3][real], short[real], atol=1e-5)


def reloaded(model, path):
    model.save(path)
    return keras.models.load_model(path)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "options",
    [
        {"num_key_value_heads": 2},
        {"implementation": "chunked"},
        {"implementation": "fused", "sliding_window": 2, "dtype": "float16"},
    ],
    ids=str,
)
def test_attention_is_traced_without_values(options):
    """So `fit` builds a subclassed model; if it fails, Keras warns that it cannot."""
    x = ops.ones((2, L, D))
    layer = layers.MultiHeadAttention(4, 4, **options)
    assert layer(x, x).shape == x.shape
    with keras.device("meta"):
        assert layer(x.to("meta"), x.to("meta")).shape == x.shape


@pytest.mark.slow_on("tensorflow")
@pytest.mark.backends("tensorflow", "torch")
def test_lora_trains_the_projections_and_the_table(tmp_path):
    """It is offered where Keras's own layer offers it, and survives saving."""
    model = every_layer_model(dropout=0.0)
    by_class = {type(layer): layer for layer in model.layers}
    attention = by_class[layers.MultiHeadAttention]
    adapted = [
        attention.query_dense,
        attention.output_dense,
        by_class[layers.EncoderBlock].feed_forward_residual.sublayer.hidden_dense,
        by_class[layers.PositionalEmbedding],
    ]
    for layer in model.layers:
        layer.trainable = False
    before = ops.convert_to_numpy(model([IDS, IDS]))
    for layer in adapted:
        layer.trainable = True
        layer.enable_lora(2)
    np.testing.assert_allclose(
        ops.convert_to_numpy(model([IDS, IDS])), before, atol=1e-5
    )
    train_step(model, IDS, IDS, jit_compile=JIT)
    trained = ops.convert_to_numpy(model([IDS, IDS]))
    assert not np.allclose(trained, before)
    loaded = reloaded(model, tmp_path / "lora.keras")
    np.testing.assert_allclose(
        ops.convert_to_numpy(loaded([IDS, IDS])), trained, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "torch")
def test_int8_is_close_and_survives_saving(tmp_path):
    model = every_layer_model(dropout=0.0)
    expected = ops.convert_to_numpy(model([IDS, IDS]))
    model.quantize("int8")
    output = ops.convert_to_numpy(model([IDS, IDS]))
    real = IDS != 0
    error = np.abs(output - expected)[real].mean() / np.abs(expected)[real].mean()
    assert 0.0 < error < 0.05
    loaded = reloaded(model, tmp_path / "int8.keras")
    np.testing.assert_allclose(
        ops.convert_to_numpy(loaded([IDS, IDS])), output, atol=1e-5
    )


def test_a_model_may_be_cloned():
    model = sequential_model()
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(
        ops.convert_to_numpy(clone(IDS)), ops.convert_to_numpy(model(IDS)), atol=1e-6
    )


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (layers.ScaledDotProductAttention(), "query"),
        (layers.AdditiveAttention(4), "query"),
        (layers.MultiHeadAttention(2, 4), "query"),
        (layers.DecoderBlock(2, 12), "target"),
        (layers.EncoderBlock(2, 12), "x"),
        (layers.FeedForward(12), "x"),
        (layers.SinusoidalPositions(), "x"),
        (layers.PositionalEmbedding(V, D), "inputs"),
        (layers.TokenLogits(V), "inputs"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_list_of_tensors_is_refused_by_name(layer, name):
    x = ops.ones((2, L, D))
    for inputs in ([x, x], [keras.Input((L, D)), keras.Input((L, D))]):
        message = f"`{name}` must be one tensor or array, .*Received: {name} of 2 tens"
        with pytest.raises(ValueError, match=message):
            layer(inputs)


def test_a_call_of_the_users_own_may_take_a_list():
    class Pair(layers.ScaledDotProductAttention):
        def call(self, inputs):
            return super().call(*inputs)

        def compute_output_spec(self, inputs):
            return super().compute_output_spec(*inputs)

    x = ops.ones((2, L, D))
    assert Pair()([x, x]).shape == x.shape


def test_a_cell_takes_a_list_of_states():
    x = ops.ones((2, L))
    output, states = layers.RecurrentCell(D)(x, [ops.zeros((2, D))])
    assert output.shape == states[0].shape == (2, D)
