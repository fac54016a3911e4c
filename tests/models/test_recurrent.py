import functools
import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_seqattn as ks
from keras_seqattn import decoding, models, training
from tests.evaluate import JIT
from tests.layers import recurrent_oracle
from tests.layers.weights import randomize
from tests.mirrored import learn, share_right
from tests.models.greedy import naive_greedy
from tests.models.test_transformer import SOURCE, START, TARGET, D, V, inputs, logits
from tests.pairs import each_variant, named

VARIANTS = {
    "two layers": {"encoder_layers": 2, "decoder_layers": 2},
    "plain cell, narrow attention": {"cell": "simple", "attention_units": 3},
    "untied, two vocabularies": {
        "tie_embeddings": False,
        "target_vocabulary_size": V + 4,
        "max_length": 6,
    },
}


def small(**options):
    return models.TranslationRNN(V, **{"model_dim": D, **options})


@pytest.fixture(scope="module")
def model():
    """One model for every test that changes none."""
    keras.utils.set_random_seed(0)
    model = small()
    randomize(model, np.random.default_rng(0))
    return model


def table(model, name):
    weights = recurrent_oracle.numpy_weights(model.get_layer(name))
    return weights[0]


@each_variant("options", VARIANTS, on_jax=["two layers"])
def test_equals_the_oracle(rng, options):
    model, tied = small(**options), options.get("tie_embeddings", True)
    randomize(model, rng)
    encoder, decoder = model.get_layer("encoder"), model.get_layer("decoder")
    # The oracle takes the kind of cell and the widths from the weights.
    assert encoder.cell == decoder.cell == options.get("cell", "gru")
    assert decoder.attention_units == options.get("attention_units")
    target_name = "source_embedding" if tied else "target_embedding"
    embed = {
        name: table(model, name) * np.sqrt(D)
        for name in ("source_embedding", target_name)
    }
    hidden, state = recurrent_oracle.encoder(
        embed["source_embedding"][SOURCE],
        recurrent_oracle.encoder_weights(encoder),
        D,
        SOURCE != 0,
    )
    output, scores = recurrent_oracle.decoder(
        embed[target_name][TARGET],
        hidden,
        state,
        recurrent_oracle.decoder_weights(decoder),
        D,
        source_mask=SOURCE != 0,
    )
    kernel = table(model, "source_embedding").T if tied else table(model, "output")
    np.testing.assert_allclose(logits(model), output @ kernel, atol=1e-4)
    found = ops.convert_to_numpy(model.attention_scores(SOURCE, TARGET))
    assert found.shape == (2, 1, 1, 4, 5)
    np.testing.assert_allclose(found[:, 0], scores, atol=1e-5)


@each_variant("options", VARIANTS, on_jax=[])
def test_steps_equal_one_pass(rng, options):
    """Two beams with targets of their own share one encoded sentence."""
    model = small(**options)
    randomize(model, rng)
    target = rng.integers(3, V, size=(2, 2, 4)).astype("int32")
    target[:, :, 0] = START
    expected = logits(model, np.repeat(SOURCE, 2, axis=0), target.reshape(4, 4))
    memory = model.encode(ops.convert_to_tensor(SOURCE, "int32"))
    assert tuple(memory["hidden"].shape) == (2, 5, 2 * D)
    assert tuple(memory["mask"].shape) == (2, 5)
    state = model.initial_state(memory, 8, width=2)
    assert all(
        tuple(tensor.shape[:2]) == (2, 2)
        for tensor in keras.tree.flatten(state["beam"])
    )
    assert all(tensor.shape[0] == 2 for tensor in keras.tree.flatten(state["sentence"]))
    for index in range(4):
        token_ids = ops.convert_to_tensor(target[:, :, index])
        output, state = model.step(token_ids, state, ops.convert_to_tensor(index))
        assert keras.backend.standardize_dtype(output.dtype) == "float32"
        np.testing.assert_allclose(
            ops.convert_to_numpy(output).reshape(4, -1), expected[:, index], atol=1e-5
        )


def test_no_later_token_affects_a_row(model):
    target = np.array([[1, 6, 4, 9], [1, 7, 8, 5]])
    changed = target.copy()
    changed[:, 2:] = 10
    before, after = (logits(model, SOURCE, ids) for ids in (target, changed))
    np.testing.assert_allclose(after[:, :2], before[:, :2], atol=1e-6)
    assert not np.allclose(after[:, 2:], before[:, 2:])


def test_padding_changes_nothing(model):
    alone = logits(model, SOURCE[:1, :4], TARGET[1:, :2])
    padded = logits(model, SOURCE, TARGET[::-1])[:1, :2]
    np.testing.assert_allclose(padded, alone, atol=1e-5)


def test_padding_may_be_another_token(model):
    """The same sentences under another padding give the same numbers."""
    other = small(pad_id=V - 1)
    other.set_weights(model.get_weights())
    source, target = (np.where(ids == 0, V - 1, ids) for ids in (SOURCE, TARGET))
    real = TARGET != 0
    np.testing.assert_allclose(
        logits(other, source, target)[real], logits(model)[real], atol=1e-5
    )


@pytest.mark.backends("torch")
def test_a_zero_token_has_no_vector(rng):
    model = small(zero_id=3)
    randomize(model, rng)
    vectors = ops.convert_to_numpy(model.get_layer("source_embedding")(SOURCE))
    np.testing.assert_array_equal((vectors == 0).all(-1), SOURCE == 3)


@pytest.mark.slow_on("tensorflow")
def test_generate_equals_a_naive_loop(model):
    found = model.generate(SOURCE, max_length=7)
    for b, sentence in enumerate(SOURCE):
        tokens, score = naive_greedy(model, sentence, 7)
        assert found.sequence(b) == tokens
        np.testing.assert_allclose(found.scores[b, 0], score, rtol=1e-4)
    assert sum(p.num_programs for p in decoding.programs(model)) == 1


@each_variant(
    "policy", named("mixed_bfloat16", "mixed_float16"), on_jax=["mixed_bfloat16"]
)
def test_mixed_precision(model, policy):
    mixed = small(dtype=policy)
    mixed.set_weights(model.get_weights())
    expected = logits(model)
    np.testing.assert_allclose(
        logits(mixed), expected, atol=0.05 * np.abs(expected).max()
    )
    assert models.TranslationRNN.from_config(mixed.get_config()).dtype_policy.name == (
        policy
    )


@pytest.mark.slow_on("tensorflow", "jax")
def test_generate_in_mixed_precision():
    found = small(dtype="mixed_bfloat16").generate(SOURCE, max_length=4)
    assert np.isfinite(found.scores).all()


@pytest.mark.parametrize(
    ("options", "tables"),
    [
        ({}, 1),
        ({"tie_embeddings": False}, 3),
        ({"target_vocabulary_size": V + 1}, 2),
        ({"target_vocabulary_size": V + 1, "tie_embeddings": False}, 3),
    ],
    ids=str,
)
def test_tables_are_shared_as_asked_for(options, tables):
    model = small(**options)
    sizes = (model.source_vocabulary_size, model.target_vocabulary_size)
    shapes = [tuple(sorted(w.shape)) for w in model.trainable_weights]
    assert sum(shape in {(D, size) for size in sizes} for shape in shapes) == tables
    assert model.output.shape[-1] == model.target_vocabulary_size


def test_config_is_the_constructor_s_arguments(model):
    config = json.loads(json.dumps(model.get_config()))
    assert {**config, "source_vocabulary_size": V, "model_dim": D} == config
    again = models.TranslationRNN.from_config(config)
    assert again.get_config() == model.get_config()
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(logits(again), logits(model))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source_vocabulary_size": 0}, "`source_vocabulary_size` must.*size=0"),
        ({"target_vocabulary_size": 0}, "`target_vocabulary_size` must.*size=0"),
        ({"model_dim": 0}, "`model_dim` must.*model_dim=0"),
        ({"encoder_layers": 0}, "`encoder_layers` must.*encoder_layers=0"),
        ({"decoder_layers": 1.0}, "`decoder_layers` must.*decoder_layers=1.0"),
        ({"dropout": 1.0}, "`dropout` must be in .*dropout=1.0"),
        ({"cell": "lstm"}, "`cell` must be one of .*cell='lstm'"),
        ({"attention_units": 0}, "`attention_units` must.*attention_units=0"),
        ({"max_length": 0}, "`max_length` must.*max_length=0"),
        ({"end_id": V}, "`end_id` must.*end_id=11"),
    ],
    ids=str,
)
def test_says_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        models.TranslationRNN(
            **{"source_vocabulary_size": V, "model_dim": D, **options}
        )


# Training and translating.


@pytest.mark.slow_on("tensorflow", "jax")
def test_one_step_changes_every_weight(rng):
    model = small(dropout=0.0)
    randomize(model, rng)
    model.compile("sgd", training.MaskedCrossentropy(), jit_compile=JIT)
    before = model.get_weights()
    assert np.isfinite(model.train_on_batch(inputs(), TARGET))
    assert all(np.any(a != b) for a, b in zip(model.get_weights(), before, strict=True))


# "auto": graph mode on TensorFlow, eager on torch, which takes more than a minute.
EAGER = [pytest.mark.slow] if keras.backend.backend() == "torch" else []


@pytest.mark.parametrize(
    "jit_compile",
    [pytest.param("auto", marks=EAGER), pytest.param(True, marks=pytest.mark.slow)],
)
@pytest.mark.slow_on("jax")
def test_translates_lines_it_has_not_seen(jit_compile, rng, tmp_path):
    """The recurrent system, from lines to lines (worked example J)."""
    translator, sources, targets = learn(
        functools.partial(models.TranslationRNN, model_dim=48, dropout=0.0),
        rng,
        epochs=1,
        jit_compile=jit_compile,
    )
    translations = translator(sources)
    assert share_right(translations, targets) > 0.5
    # Most letters look at their mirror image in the source, where chance is a sixth.
    mirrored_letters = []
    for source, target in zip(sources[-10:], targets[-10:], strict=True):
        letters = translator.attention(source, target).weights[0, 0][:-1]
        mirror_image = np.arange(len(letters))[::-1]
        mirrored_letters += (letters.argmax(-1) == mirror_image).tolist()
    assert np.mean(mirrored_letters) > 0.6

    translator.save(tmp_path / "translator.keras")
    loaded = ks.Translator.load(tmp_path / "translator.keras")
    assert isinstance(loaded.model, models.TranslationRNN)
    assert loaded(sources[:10]) == translations[:10]
    tied = loaded.model.get_layer("source_embedding").embeddings
    tied.assign(np.zeros(tied.shape))
    assert not logits(loaded.model).any(), "the logits come from another table"
