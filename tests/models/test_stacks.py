"""Tests of what all models share: `models/stacks.py`."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers, models, recipes, training
from keras_seqattn.backend.parts import layers_of
from keras_seqattn.models.parameters import count_parameters
from tests.pairs import slow
from tests.small import translation_model


class Counted(models.EncoderModel):
    """A model that counts how often its training step is traced."""

    traced = 0

    def train_step(self, *args, **kwargs):
        self.traced += 1
        return super().train_step(*args, **kwargs)


@pytest.mark.backends("tensorflow")
def test_a_step_is_traced_once():
    """Twice, where the optimizer makes its variables while it is traced."""
    model = Counted(11, model_dim=8, num_heads=2, num_layers=1, intermediate_dim=8)
    model.compile(keras.optimizers.Adam(), training.MaskedCrossentropy())
    token_ids = np.ones((4, 3), "int32")
    model.fit(token_ids, token_ids, batch_size=2, epochs=2, verbose=0)
    assert model.traced == 1
    assert int(model.optimizer.iterations) == 4


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("name", ["transformer", "rnn", "language", "encoder"])
def test_a_checkpoint_of_tensorflow_holds_all_weights(name, tmp_path):
    """It looks into no list of layers of Keras 3, and says nothing."""
    import tensorflow as tf

    sizes = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    depths = {"encoder_layers": 2, "decoder_layers": 2}
    model = {
        "transformer": lambda: models.TranslationTransformer(11, **sizes, **depths),
        "rnn": lambda: models.TranslationRNN(11, model_dim=8, **depths),
        "language": lambda: models.LanguageModel(11, num_layers=2, **sizes),
        "encoder": lambda: models.EncoderModel(11, num_layers=2, **sizes),
    }[name]()
    saved = model.get_weights()
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    model.set_weights([np.full_like(weight, 7.0) for weight in saved])
    tf.train.Checkpoint(model=model).restore(path).assert_consumed()
    for weight, expected in zip(model.weights, saved, strict=True):
        np.testing.assert_array_equal(weight.numpy(), expected, weight.path)


SIZES = {"num_layers": 1, "key_dim": 8, "dropout": 0.0}
MODELS = {
    "translation": lambda **options: models.TranslationTransformer(
        30, encoder_layers=1, decoder_layers=1, key_dim=8, dropout=0.0, **options
    ),
    "language": lambda **options: models.LanguageModel(30, **SIZES, **options),
    "tokens": lambda **options: models.EncoderModel(30, **SIZES, **options),
    "classes": lambda **options: models.EncoderModel(
        30, num_classes=4, **SIZES, **options
    ),
}


def change_of_logits(make, width, base_dim, tie_embeddings):
    """Returns how far some steps of Adam move the logits, a mean."""
    keras.utils.set_random_seed(0)
    model = make(
        model_dim=width,
        num_heads=width // 8,
        intermediate_dim=2 * width,
        base_dim=base_dim,
        tie_embeddings=tie_embeddings,
    )
    factors = model.learning_rate_factors()
    assert (factors == {}) == (base_dim in (None, width))
    ids = np.random.default_rng(0).integers(3, 30, (8, 6)).astype("int32")
    inputs = ids
    if isinstance(model, models.TranslationTransformer):
        inputs = {"source_ids": ids, "target_ids": ids}
    before = ops.convert_to_numpy(model(inputs))
    labels = ids[:, 0] % 4 if before.ndim == 2 else np.roll(ids, -1, axis=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = training.Adam(0.01, learning_rate_factors=factors)
    model.compile(optimizer, loss, jit_compile=False)
    for _ in range(4):
        model.train_on_batch(inputs, labels)
    return np.abs(ops.convert_to_numpy(model(inputs)) - before).mean()


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("tie_embeddings", [True, *slow(False)])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_step_moves_the_logits_no_further_where_the_width_grows(make, tie_embeddings):
    """With `base_dim`. Without, further with each doubling (Yang et al. 2022, fig. 5).

    At its own width `base_dim` changes nothing.
    """
    narrow, wide = 32, 256
    standard = [change_of_logits(make, w, None, tie_embeddings) for w in (narrow, wide)]
    scaled = [change_of_logits(make, w, narrow, tie_embeddings) for w in (narrow, wide)]
    assert scaled[0] == pytest.approx(standard[0], rel=1e-5)
    assert 0.3 < scaled[1] / scaled[0] < 1.3
    assert standard[1] / standard[0] > 2.0


def embedded(model, **call):
    """Embeds a batch by the first embedding of a model, whatever its name."""
    found = [x for x in layers_of(model) if isinstance(x, layers.PositionalEmbedding)]
    return found[0], ops.convert_to_numpy(found[0](np.full((20, 9), 5), **call))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_an_embedding_has_the_entries_and_scale_of_its_base_dim(make):
    """As it would have at that width (Yang et al. 2022, table 8)."""
    sizes = {"model_dim": 64, "positions": None}
    for options, width, scale in (
        ({}, 64, 8.0),
        ({"base_dim": 16}, 16, 4.0),
        ({"embedding_scale": 0.5}, 64, 0.5),
        ({"base_dim": 16, "embedding_scale": 0.5}, 16, 0.5),
    ):
        embedding, vectors = embedded(make(**sizes, **options))
        table = ops.convert_to_numpy(embedding.embeddings)
        assert table.std() == pytest.approx(width**-0.5, rel=0.1)
        np.testing.assert_allclose(vectors[0, 0], scale * table[5], rtol=1e-5)


DROPPING = {
    "translation": lambda **options: translation_model(30, **options),
    "recurrent": lambda **options: models.TranslationRNN(30, model_dim=8, **options),
    "language": lambda **options: models.LanguageModel(30, model_dim=8, **options),
    "encoder": lambda **options: models.EncoderModel(30, model_dim=8, **options),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("make", DROPPING.values(), ids=DROPPING)
def test_embeddings_drop_while_training(make):
    _, vectors = embedded(make(dropout=0.4), training=True)
    assert 0.35 < (vectors == 0).mean() < 0.45
    _, vectors = embedded(make(dropout=0.0), training=True)
    assert vectors.all()


@pytest.mark.backends("torch")
def test_recurrences_drop_while_training(rng):
    model = DROPPING["recurrent"](dropout=0.4)
    x, state = rng.normal(size=(20, 9, 8)), rng.normal(size=(20, 16))
    source = rng.normal(size=(20, 9, 16))
    encoded, _ = model.get_layer("encoder")(x, training=True)
    decoded = model.get_layer("decoder")(x, source, state, training=True)
    for output in (encoded, decoded):
        assert 0.35 < (ops.convert_to_numpy(output) == 0).mean() < 0.45


@pytest.mark.backends("torch")
@pytest.mark.parametrize("make", ["translation", "language", "encoder"])
def test_all_norms_have_the_epsilon(make):
    model = DROPPING[make](epsilon=0.25, embedding_norm=True)
    norms = [part for part in layers_of(model) if hasattr(part, "epsilon")]
    assert len(norms) > 4
    assert {part.epsilon for part in norms} == {0.25}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("make", ["translation", "language", "encoder"])
def test_all_blocks_drop_what_the_model_says(make):
    rates = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    kinds = layers.EncoderBlock | layers.DecoderBlock
    parts = layers_of(DROPPING[make](**rates))
    blocks = [part for part in parts if isinstance(part, kinds)]
    assert blocks
    for block in blocks:
        assert {name: getattr(block, name) for name in rates} == rates


def test_a_recipe_hands_its_model_s_factors_to_its_optimizer():
    options = {**recipes.RECIPES["smoke"].model.options(), "base_dim": 16}
    configuration = recipes.Configuration(options, 0.001, 100)
    model = configuration.make_model()
    factors = model.optimizer.learning_rate_factors
    assert factors == model.learning_rate_factors() == {"coder_[0-9]+/.*kernel$": 0.25}
    with pytest.raises(ValueError, match="`base_dim` must be None .*optimizer='muon'"):
        recipes.Configuration(options, 0.001, 100, optimizer="muon")


@pytest.mark.backends("torch")
def test_positions_inside_attention_may_be_a_layer(tmp_path):
    ids = np.array([[5, 6, 2], [7, 2, 0]], "int32")
    inputs = {"source_ids": ids, "target_ids": ids}
    made = []
    for positions in ("rotary", layers.RotaryPositions()):
        keras.utils.set_random_seed(0)
        model = translation_model(30, positions=positions, dropout=0.0)
        made.append(model.predict(inputs, verbose=0))
    np.testing.assert_allclose(*made, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(inputs, verbose=0), made[1], atol=1e-6)


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("target", [None, 40])
def test_embeddings_share_positions_that_are_a_layer(target, tmp_path):
    positions = layers.LearnedPositions(16)
    model = translation_model(
        30, target_vocabulary_size=target, positions=positions, dropout=0.0
    )
    ids = np.array([[5, 6, 2], [7, 2, 0]], "int32")
    inputs = {"source_ids": ids, "target_ids": ids}
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(inputs, verbose=0), expected, atol=1e-6)
    shape = 16, model.config.model_dim
    for each in (model, loaded):
        tables = [w for w in each.weights if tuple(w.shape) == shape]
        assert len(tables) == 1


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "options",
    [
        {"use_bias": False, "gated": True},
        {"logits_bias": True, "target_vocabulary_size": 40},
        {"logits_bias": True, "tie_embeddings": False},
        {"embedding_norm": True, "tie_embeddings": False, "norm": "rms"},
        {"embedding_norm": True},
    ],
)
def test_all_weights_are_counted(options):
    given = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8, **options}
    given |= {"encoder_layers": 1, "decoder_layers": 2}
    model = models.TranslationTransformer(30, **given)
    count = count_parameters(source_vocabulary_size=30, **given)
    assert count == model.count_params()


@pytest.mark.backends("torch")
def test_options_whose_weights_are_not_counted_are_refused():
    with pytest.raises(ValueError, match="`decoder_attention` must be None .*qk_norm"):
        count_parameters(source_vocabulary_size=9, decoder_attention={"qk_norm": True})
    with pytest.raises(ValueError, match="`max_length` must be given for learned posi"):
        count_parameters(source_vocabulary_size=9, positions="learned")


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "`num_heads` must divide .*num_heads=3 for width 8"),
        ({"positions": "rotary", "key_dim": 3}, "`key_dim` must be even .*key_dim=3"),
        ({"positions": "rotary", "num_heads": 8}, "`key_dim` must be even .*key_dim=1"),
    ],
)
def test_what_the_model_refuses_is_not_counted(options, message):
    given = {"source_vocabulary_size": 9, "model_dim": 8, **options}
    for call in (models.TranslationTransformer, count_parameters):
        with pytest.raises(ValueError, match=message):
            call(**given)


@pytest.mark.backends("torch")
def test_a_model_with_a_training_step_of_its_own_needs_no_optimizer():
    class Own(models.EncoderModel):
        def train_step(self, data):
            return {"loss": ops.mean(self(data[0], training=True))}

    model = Own(9, model_dim=8, num_heads=2, num_layers=1, intermediate_dim=8)
    model.compile(optimizer=None)
    history = model.fit(np.ones((4, 3), "int32"), np.ones((4, 3)), verbose=0)
    assert np.isfinite(history.history["loss"][0])


@pytest.mark.backends("torch")
def test_the_summary_of_a_nested_model_lists_its_parts():
    model = models.LanguageModel(50, model_dim=8, num_heads=2, num_layers=1)
    outer = keras.Sequential([keras.Input((None,), dtype="int32"), model])
    lines = []
    outer.summary(expand_nested=True, print_fn=lines.append)
    assert "decoder_0" in "\n".join(lines)


@pytest.mark.backends("torch")
def test_an_encoder_s_vectors_are_the_output_of_its_layer():
    model = models.EncoderModel(9, model_dim=8, num_heads=2, num_layers=1)
    encoder = model.get_layer("encoder")
    assert encoder.blocks[0] is model.get_layer("encoder_0")
    vectors = keras.Model(model.input, encoder.output)(np.ones((2, 3), "int32"))
    assert tuple(vectors.shape) == (2, 3, 8)
    with pytest.raises(ValueError, match="No such layer: decoder"):
        model.get_layer("decoder")
