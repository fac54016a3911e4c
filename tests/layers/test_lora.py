"""LoRA over a whole model: what trains, what is saved, and that it goes on."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.backend.parts import layers_of
from tests.evaluate import JIT
from tests.layers.weights import randomize

IDS = np.array([[5, 3, 2, 0], [4, 6, 2, 0]], "int32")
PROGRAM = """
import json, sys, keras, numpy as np, keras_seqattn
model = keras.models.load_model(sys.argv[1])
ids = np.array(json.loads(sys.argv[2]))
print(json.dumps([float(model.train_on_batch(ids, ids)) for _ in range(2)]))
"""


def made(**options):
    model = ks.models.LanguageModel(
        11,
        model_dim=8,
        num_heads=2,
        num_layers=1,
        intermediate_dim=12,
        dropout=0.0,
        **options,
    )
    randomize(model, np.random.default_rng(0))
    return model


def compiled(model):
    model.compile(
        keras.optimizers.Adam(0.01), ks.training.MaskedCrossentropy(), jit_compile=JIT
    )
    return model


def values(model):
    return {
        w.path: np.array(keras.ops.convert_to_numpy(w.value)) for w in model.weights
    }


def arrays(model):
    return list(values(model).values())


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("tied", [True, False])
def test_the_factors_alone_are_trained(tied):
    model = made(tie_embeddings=tied)
    before = keras.ops.convert_to_numpy(model(IDS))
    count = ks.training.enable_lora(model, rank=2, alpha=4)
    assert count == sum(np.prod(w.shape) for w in model.trainable_weights)
    assert all("lora" in w.path for w in model.trainable_weights)
    # query, key, value, output, hidden, output, embedding, and logits of their own
    assert len(model.trainable_weights) == 2 * (7 + (not tied))
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(model(IDS)), before, atol=1e-5
    )
    old = values(model)
    for _ in range(2):  # in the first step B alone moves, since it was zero
        compiled(model).train_on_batch(IDS, IDS)
    changed = {path for path, x in values(model).items() if (x != old[path]).any()}
    assert changed == {w.path for w in model.trainable_weights}


@pytest.mark.backends("tensorflow")  # whose programs hold what was traced
def test_programs_made_before_know_the_factors():
    model = made()
    before = model.predict(IDS, verbose=0)
    ks.training.enable_lora(model, rank=2)
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones_like(variable))
    found = model.predict(IDS, verbose=0)
    np.testing.assert_allclose(found, keras.ops.convert_to_numpy(model(IDS)), atol=1e-4)
    assert np.abs(found - before).max() > 0.1


def test_targets_and_norms():
    model = made()
    targets = [r"attention(_\d+)?/(query|value)"]
    count = ks.training.enable_lora(model, 2, targets=targets, train_norms=True)
    assert count == 2 * 40 + 3 * 16
    kinds = {"lora" if "lora" in w.path else "norm" for w in model.trainable_weights}
    assert kinds == {"lora", "norm"}
    assert sum("lora" in w.path for w in model.trainable_weights) == 4


@pytest.mark.backends("torch")
def test_the_first_factor_is_as_large_as_the_contracted_axes_say():
    """He uniform: up to sqrt(6 / n) for a kernel that contracts n numbers."""
    layer = ks.layers.MultiHeadAttention(num_heads=4, key_dim=5)
    layer.build((1, 3, 16), (1, 3, 16))
    parts = [part for part in layers_of(layer) if hasattr(part, "enable_lora")]
    assert len(parts) == 4
    for part in parts:
        part.enable_lora(2)
        contracted = 20 if part.name == "attention_output" else 16
        largest = np.abs(part.lora_kernel_a.numpy()).max() / (6 / contracted) ** 0.5
        assert 0.8 < largest <= 1


@pytest.mark.backends("torch")
def test_the_logits_of_classes_are_adapted(tmp_path):
    sizes = {"model_dim": 8, "num_heads": 2, "num_layers": 1, "intermediate_dim": 8}
    model = ks.models.EncoderModel(11, num_classes=3, **sizes)
    assert ks.training.enable_lora(model, rank=2, targets=["classes"]) == 2 * (8 + 3)
    # A user's own model of these layers can be loaded too.
    keras.Model(model.input, model.output).save(tmp_path / "own.keras")
    loaded = keras.saving.load_model(tmp_path / "own.keras")
    np.testing.assert_array_equal(
        *(keras.ops.convert_to_numpy(x(IDS)) for x in (loaded, model))
    )


@pytest.mark.backends("torch")
def test_a_target_finds_every_attention_of_a_model_of_ones_own():
    x = inputs = keras.Input((None, 8))
    for _ in range(3):
        x = ks.layers.MultiHeadAttention(2, 4)(x, x)
    model = keras.Model(inputs, x)
    ks.training.enable_lora(model, 2, targets=[r"attention(_\d+)?/(query|value)"])
    assert len(model.trainable_weights) == 3 * 2 * 2


@pytest.mark.backends("torch")
def test_moving_statistics_are_frozen_too(rng):
    x = keras.Input((None, 8))
    y = ks.layers.MultiHeadAttention(2, 4)(x, x)
    model = keras.Model(x, keras.layers.BatchNormalization()(y))
    ks.training.enable_lora(model, rank=2)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    before, array = values(model), rng.normal(3.0, size=(2, 3, 8))
    model.train_on_batch(array, array)
    changed = {path for path, x in values(model).items() if (x != before[path]).any()}
    assert changed and all("lora" in path for path in changed)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("part", [None, "decoder_0"])
def test_what_was_frozen_before_is_adapted(part):
    model, expected = made(), ks.training.enable_lora(made(), rank=2)
    (model if part is None else model.get_layer(part)).trainable = False
    assert ks.training.enable_lora(model, rank=2) == expected > 0
    assert all("lora" in weight.path for weight in model.trainable_weights)


@pytest.mark.slow
def test_model_and_optimizer_are_saved_and_go_on(tmp_path):
    """In this process on every backend, in a fresh one on torch."""
    model = made(tie_embeddings=False)
    ks.training.enable_lora(model, rank=2, alpha=4)
    compiled(model)
    for _ in range(2):
        model.train_on_batch(IDS, IDS)
    path = tmp_path / "lora.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    for name, *pair in zip(values(model), *map(arrays, (model, loaded)), strict=True):
        np.testing.assert_array_equal(*pair, err_msg=name)
    prompts = IDS[:, :2]
    found = [m.generate(prompts, max_length=4).scores for m in (model, loaded)]
    np.testing.assert_array_equal(*found)
    expected = [float(model.train_on_batch(IDS, IDS)) for _ in range(2)]
    assert len(set(expected)) == 2
    if keras.backend.backend() == "torch":
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, path, json.dumps(IDS.tolist())],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        again = json.loads(done.stdout.splitlines()[-1])
    else:
        again = [float(loaded.train_on_batch(IDS, IDS)) for _ in range(2)]
    np.testing.assert_array_equal(again, expected)


@pytest.mark.backends("torch")
def test_weights_go_to_a_model_with_lora_or_without(tmp_path):
    model = made(tie_embeddings=False)
    ks.training.enable_lora(model, rank=2, alpha=16)
    compiled(model).train_on_batch(IDS, IDS)
    model.save_weights(tmp_path / "w.weights.h5")
    plain, adapted = made(tie_embeddings=False), made(tie_embeddings=False)
    ks.training.enable_lora(adapted, rank=2)
    expected = keras.ops.convert_to_numpy(model(IDS))
    for other in (plain, adapted):
        other.load_weights(tmp_path / "w.weights.h5")
        found = keras.ops.convert_to_numpy(other(IDS))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_a_layer_computes_alike_while_it_is_saved():
    """Other threads may use it: its factors stay, and so does what programs know."""
    model = made()
    ks.training.enable_lora(model, rank=2, alpha=4)
    randomize(model, np.random.default_rng(0))
    (embedding,) = (x for x in model.layers if x.name == "embedding")

    class Store(dict):
        def __setitem__(self, name, value):
            assert embedding.lora_enabled
            super().__setitem__(name, np.array(keras.ops.convert_to_numpy(value)))

    store = Store()
    embedding.save_own_variables(store)
    assert {"lora_a", "lora_b", "lora_scale"} < set(store)
    store["lora_scale"] = np.float32(8.0)  # alpha is 16
    before = store["lora_b"]
    embedding.load_own_variables(store)
    assert embedding.lora_alpha == 4
    after = keras.ops.convert_to_numpy(embedding.lora_embeddings_b)
    np.testing.assert_allclose(after, 4 * before, rtol=1e-6)
    assert before.all()


@pytest.mark.backends("torch")
def test_the_scale_of_a_model_of_ones_own_is_kept(tmp_path):
    embedding = ks.layers.PositionalEmbedding(11, 8)
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, embedding(embedding(inputs), reverse=True))
    ks.training.enable_lora(model, rank=2, alpha=16)
    randomize(model, np.random.default_rng(0))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        loaded.predict(IDS, verbose=0), model.predict(IDS, verbose=0), rtol=1e-5
    )


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_tied_logits_have_the_factors_beside_a_quantized_table(tmp_path):
    model = made()
    ks.training.enable_lora(model, rank=2, alpha=4, targets=["embedding"])
    randomize(model, np.random.default_rng(1))
    expected = keras.ops.convert_to_numpy(model(IDS))
    model.quantize("int8")
    assert model.get_layer("embedding").quantization_mode == "int8"
    found = keras.ops.convert_to_numpy(model(IDS))
    assert 0.0 < np.abs(found - expected).mean() < 0.05 * np.abs(expected).mean()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded(IDS)), found)
    # Merged, they would be 0, after which no gradient reaches them.
    factors = [x.get_layer("embedding")._factors() for x in (model, loaded)]
    for kept, saved in zip(*factors, strict=True):
        assert np.abs(kept.numpy()).max() > 0
        np.testing.assert_array_equal(saved.numpy(), kept.numpy())
    model.save_weights(tmp_path / "model.weights.h5")
    plain = made()
    plain.quantize("int8")
    with pytest.raises(ValueError, match="`model` must have LoRA enabled"):
        plain.load_weights(tmp_path / "model.weights.h5")


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_the_factors_within_a_quantized_model_are_trained():
    """Through its tied logits, by about the step of the model in float32."""
    steps = []
    for mode in (None, "int8"):
        model = made()
        if mode is not None:
            model.quantize(mode)
        ks.training.enable_lora(model, rank=2, targets=["decoder"])
        randomize(model, np.random.default_rng(1))
        model.compile(
            keras.optimizers.SGD(1.0), ks.training.MaskedCrossentropy(), jit_compile=JIT
        )
        before = values(model)
        model.train_on_batch(IDS, IDS)
        after = values(model)
        paths = [weight.path for weight in model.trainable_weights]
        steps.append(np.concatenate([(after[x] - before[x]).ravel() for x in paths]))
    norm = np.linalg.norm
    assert norm(steps[1] - steps[0]) < 0.1 * norm(steps[0])


@pytest.mark.backends("torch")
def test_what_is_frozen_stays_so(tmp_path):
    model = made()
    model.get_layer("decoder_0").attention_residual.trainable = False
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert 0 < len(loaded.trainable_weights) == len(model.trainable_weights)
    assert len(model.trainable_weights) < len(model.weights)
    made(trainable=False).save(tmp_path / "frozen.keras")
    loaded = keras.saving.load_model(tmp_path / "frozen.keras")
    assert not loaded.trainable and loaded.trainable_weights == []
    ks.training.enable_lora(model, rank=2)
    model.trainable = False
    loaded = type(model).from_config(model.get_config())
    assert not loaded.trainable and loaded.trainable_weights == []


@pytest.mark.backends("torch")
@pytest.mark.parametrize("positions", ["learned", "relative"])
def test_which_parts_are_frozen_is_kept_whatever_was_made_before(tmp_path, positions):
    model = made(positions=positions, max_length=9, logits_bias=True)
    block = model.get_layer("decoder_0")
    block.trainable = False
    block.feed_forward_residual.trainable = True
    model.get_layer("embedding").trainable = False
    model.get_layer("embedding").bias_layer.trainable = True
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    paths = [weight.path for weight in model.trainable_weights]
    assert len(paths) == 9  # feed-forward 4, its norm 2, that of the stack 2, the bias
    assert [weight.path for weight in loaded.trainable_weights] == paths
    block.feed_forward_residual.norm_layer.trainable = False
    model.save(tmp_path / "norm.keras")
    loaded = keras.saving.load_model(tmp_path / "norm.keras")
    assert len(loaded.trainable_weights) == 7
    # Early versions did not name the norms, so that what they saved tells of others.
    config = model.get_config()
    config["frozen"].append("decoder/decoder_0/feed_forward_residual/layer_norm_1")
    loaded = type(model).from_config(config)
    assert len(loaded.trainable_weights) == 2


@pytest.mark.backends("torch")
def test_a_part_of_a_frozen_stack_is_trained():
    def parts(model):
        return {part.path: part for part in layers_of(model)[1:]}

    model = made()
    parts(model)["decoder"].trainable = False
    parts(model)["decoder/decoder_norm"].trainable = True
    loaded = type(model).from_config(model.get_config())
    assert parts(loaded)["decoder/decoder_norm"].trainable
    assert len(loaded.trainable_weights) == len(model.trainable_weights) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "`rank` must be a positive integer.*rank=0"),
        ({"rank": 2, "alpha": 0.0}, "`alpha` must be .*alpha=0.0"),
        ({"rank": 2, "targets": "query"}, "`targets` must be a list.*'query'"),
        ({"rank": 2, "targets": ["none"]}, "`targets` must match.*none"),
        ({"rank": 2, "targets": ["("]}, r"`targets` must be regular .*'\('"),
        ({"rank": 2, "train_norms": 1}, "`train_norms` must be .*train_norms=1"),
    ],
)
@pytest.mark.backends("torch")
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ks.training.enable_lora(made(), **arguments)


@pytest.mark.backends("torch")
def test_lora_is_enabled_once():
    model = made()
    ks.training.enable_lora(model, 2)
    with pytest.raises(ValueError, match="`model` must be without LoRA.*language"):
        ks.training.enable_lora(model, 2)


@pytest.mark.backends("torch")
def test_a_refused_constraint_leaves_the_model_as_it_was():
    model = made(attention={"kernel_constraint": "max_norm"})
    before = len(model.trainable_weights)
    with pytest.raises(ValueError, match="`targets` must match no layer.*attention"):
        ks.training.enable_lora(model, 2)
    assert len(model.trainable_weights) == before
    assert ks.training.enable_lora(model, 2, targets=["embedding"]) == 2 * (11 + 8)


def test_an_untied_embedding_keeps_its_factors_in_a_file(tmp_path):
    layer = ks.layers.PositionalEmbedding(9, 4, tie_weights=False)
    token_ids = keras.Input((None,), dtype="int32")
    model = keras.Model(token_ids, layer(layer(token_ids), reverse=True))
    ks.training.enable_lora(model, rank=2, alpha=3.0)
    layer.lora_embeddings_b.assign(keras.ops.ones((2, 4)))
    ids = np.array([[1, 5]])
    expected = keras.ops.convert_to_numpy(model(ids))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(loaded(ids)), expected, rtol=1e-5
    )
