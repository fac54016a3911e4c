"""`quantize` of a whole model: its bytes, its outputs, its searches and its file."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.decoding import generate
from keras_seqattn.layers import PositionalEmbedding
from keras_seqattn.layers.weights.quantization import quantize_composites
from keras_seqattn.models import EncoderModel, LanguageModel, TranslationRNN
from keras_seqattn.training import enable_lora
from tests.small import translation_model

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")

IDS = np.array([[1, 5, 6, 7, 2], [1, 8, 9, 2, 0]], "int32")
BOTH = {"source_ids": IDS, "target_ids": IDS}
SIZES = {"model_dim": 16, "num_heads": 2, "intermediate_dim": 32}
MODELS = {
    "transformer": lambda: (translation_model(200, **SIZES), BOTH),
    "recurrent": lambda: (TranslationRNN(200, model_dim=16), BOTH),
    "language": lambda **options: (
        LanguageModel(200, num_layers=1, **SIZES, **options),
        IDS,
    ),
    "encoder": lambda: (EncoderModel(200, num_layers=1, **SIZES), IDS),
}


def outputs(model, inputs):
    return ops.convert_to_numpy(model(inputs))


def num_bytes(model):
    return sum(
        int(np.prod(weight.shape)) * ops.convert_to_numpy(weight.value).dtype.itemsize
        for weight in model.weights
    )


def floats_beyond_vectors(model):
    """Returns the paths of what `quantize` left: no scales, norms and biases."""
    return [
        weight.path
        for weight in model.weights
        if weight.dtype == "float32"
        and min(weight.shape, default=1) > 1
        and len(weight.shape) > 1
        and weight.name not in ("bias", "kernel_scale")
    ]


def modes(model):
    """Maps the paths of the layers that are quantized to how."""
    return {
        layer.path: layer.quantization_mode
        for layer in model._flatten_layers()
        if layer.quantization_mode
    }


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("kind", MODELS)
def test_all_tables_and_kernels_are_int8(kind, tmp_path):
    model, inputs = MODELS[kind]()
    expected, before = outputs(model, inputs), num_bytes(model)
    model.quantize("int8")
    output = outputs(model, inputs)
    # What Keras has no int8 form of: its recurrences.
    left = [path for path in floats_beyond_vectors(model) if "gru_cell" not in path]
    assert left == []
    if kind != "recurrent":
        assert num_bytes(model) < 0.45 * before
    error = np.abs(output - expected).mean() / np.abs(expected).mean()
    assert 0.0 < error < 0.05
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert num_bytes(loaded) == num_bytes(model)
    np.testing.assert_allclose(outputs(loaded, inputs), output, atol=1e-5)


@pytest.mark.backends("tensorflow")
def test_a_program_made_before_is_not_run_again():
    """Keras quantizes no layer here, and so would keep it."""
    model, inputs = MODELS["encoder"]()
    before = model.predict(inputs, verbose=0)
    model.quantize("int8", filters="^embedding$")
    found = model.predict(inputs, verbose=0)
    assert np.abs(found - before).max() > 1e-4
    np.testing.assert_allclose(found, outputs(model, inputs), atol=1e-5)


@pytest.mark.backends("torch")
def test_layers_of_one_name_are_told_apart(tmp_path):
    """The logits' layer and those of the feed-forwards are all called "output"."""
    model, inputs = MODELS["language"](tie_embeddings=False)
    expected, before = outputs(model, inputs), num_bytes(model)
    model.quantize("int8", filters="^output$")
    output = outputs(model, inputs)
    assert num_bytes(model) < before
    assert (output != expected).any()
    hidden = "decoder/decoder_0/feed_forward_residual/feed_forward/output"
    assert modes(model) == {"output": "int8", hidden: "int8"}
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert num_bytes(loaded) == num_bytes(model)
    np.testing.assert_allclose(outputs(loaded, inputs), output, atol=1e-5)


WEIGHTS_ALONE = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("options", "tie_embeddings"),
    [
        ({"mode": "int8"}, False),
        ({"mode": "int4"}, False),
        ({"mode": "int4"}, True),
        ({"config": WEIGHTS_ALONE}, True),
    ],
)
def test_what_was_loaded_is_saved_again(options, tie_embeddings, tmp_path):
    """With what of the inputs is quantized, too."""
    model, inputs = MODELS["language"](tie_embeddings=tie_embeddings)
    before = num_bytes(model)
    model.quantize(**options)
    expected, size = outputs(model, inputs), num_bytes(model)
    assert size < before
    for name in ("first.keras", "second.keras"):
        model.save(tmp_path / name)
        model = keras.saving.load_model(tmp_path / name)
        assert num_bytes(model) == size
        np.testing.assert_allclose(outputs(model, inputs), expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_a_quantizer_without_a_configuration_is_left_out_with_a_warning(tmp_path):
    class Plain(keras.quantizers.AbsMaxQuantizer):
        get_config = keras.quantizers.Quantizer.get_config

    model, _ = MODELS["language"](tie_embeddings=False)
    own = keras.quantizers.Int8QuantizationConfig(activation_quantizer=Plain(axis=-1))
    model.quantize(config=own)
    with pytest.warns(UserWarning, match="`get_config`. Received: Plain"):
        model.save_weights(tmp_path / "model.weights.h5")


@pytest.mark.backends("torch")
def test_the_loss_of_a_loaded_model_is_scaled_as_before(tmp_path):
    """Of float16, which LoRA trains beside what is quantized."""
    model, _ = MODELS["language"](dtype="mixed_float16", memory_length=2)
    model.quantize("int4")
    enable_lora(model, rank=2)
    expected, loaded = outputs(model, IDS), model
    for name in ("first.keras", "second.keras"):
        loaded.save(tmp_path / name)
        loaded = keras.saving.load_model(tmp_path / name)
        assert modes(loaded) == modes(model)
        np.testing.assert_array_equal(outputs(loaded, IDS), expected)
    for each in (model, loaded, loaded.recurrent(batch_size=2)):
        each.compile("adam", "mse")
        assert isinstance(each.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.backends("torch")
def test_the_recurrent_form_of_what_was_loaded_is_loaded(tmp_path):
    """Its blocks are not where the map of the model has them."""
    model, _ = MODELS["language"](memory_length=2)
    model.quantize("int8")
    for name in ("first.keras", "second.keras"):
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
        reader = model.recurrent(batch_size=len(IDS))
        expected = outputs(reader, IDS)
        reader.save(tmp_path / name)
        loaded = keras.saving.load_model(tmp_path / name)
        np.testing.assert_allclose(outputs(loaded, IDS), expected, atol=1e-5)


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_a_search_sees_the_quantized_table(tie_embeddings):
    """Its steps give what the model gives: the score is the whole pass's."""
    model, _ = MODELS["language"](tie_embeddings=tie_embeddings)
    prompts = IDS[:1, :3]
    before = generate(model, prompts, max_length=4)
    model.quantize("int8")
    found = generate(model, prompts, max_length=4)
    assert found.scores[0, 0] != before.scores[0, 0]
    tokens = [*found.sequence(0), model.end_id][:4]
    logits = outputs(model, np.array([[*prompts[0], *tokens]], "int32"))[0, 2:-1]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    score = log_probs[np.arange(len(tokens)), tokens].sum()
    np.testing.assert_allclose(found.scores[0, 0], score, rtol=1e-2)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "filters", ["embedding", ["no", "embedding"], lambda layer: "emb" in layer.name]
)
def test_filters_choose_the_embedding(filters):
    model, inputs = MODELS["encoder"]()
    model(inputs)
    model.quantize("int8", filters="nothing has this name")
    assert modes(model) == {}
    model.quantize("int8", filters=filters)
    assert modes(model) == {"embedding": "int8"}


@pytest.mark.backends("torch")
def test_a_model_of_ones_own_quantizes_its_embedding_by_a_call():
    """As `docs/questions.md` says: Keras's `Model.quantize` leaves it as it is."""
    token_ids = keras.Input((None,), dtype="int32")
    embedding = PositionalEmbedding(200, 16)
    model = keras.Model(token_ids, keras.layers.Dense(3)(embedding(token_ids)))
    expected, before = outputs(model, IDS), num_bytes(model)
    model.quantize("int8")
    assert floats_beyond_vectors(model) == [embedding.embeddings.path]
    embedding.quantize("int8")
    assert floats_beyond_vectors(model) == []
    assert num_bytes(model) < 0.45 * before
    error = np.abs(outputs(model, IDS) - expected).mean() / np.abs(expected).mean()
    assert 0.0 < error < 0.05


@pytest.mark.backends("torch")
def test_a_mode_that_a_layer_does_not_know_is_left_out_with_a_warning(monkeypatch):
    def refuse(self, mode, **options):
        raise NotImplementedError(f"no {mode} here")

    monkeypatch.setattr(PositionalEmbedding, "quantize", refuse)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Sequential([ids, PositionalEmbedding(20, 8)])
    with pytest.warns(UserWarning, match="no int8 here"):
        quantize_composites(model, "int8")
