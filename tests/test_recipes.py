"""Each preset describes a model and batches that can be made."""

import dataclasses
import json
import pathlib

import pytest

import keras_seqattn as ks
from keras_seqattn.recipes import RECIPES, Recipe
from tests.pairs import each_variant, named

pytestmark = pytest.mark.backends("tensorflow", "torch")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_is_feasible(recipe):
    assert recipe.corpus in ("phrases", "multi30k", "own")
    model = recipe.make_model()
    assert type(model).__name__ == recipe.architecture
    assert model.source_vocabulary_size == recipe.vocabulary_size
    assert list(recipe.bucket_lengths) == sorted(set(recipe.bucket_lengths))
    assert recipe.batch_tokens >= recipe.bucket_lengths[-1]
    ks.training.InverseSquareRoot(recipe.learning_rate, recipe.warmup_steps)
    ks.training.MaskedCrossentropy(label_smoothing=recipe.label_smoothing)
    assert 0 < recipe.ema_momentum < 1
    assert recipe.epochs > 0


def test_a_recipe_is_varied_by_replacing():
    recipe = dataclasses.replace(RECIPES["smoke"], epochs=3)
    assert (recipe.epochs, RECIPES["smoke"].epochs) == (3, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.epochs = 4


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_read_from_json_and_as_early_versions_wrote_it(name):
    recipe = RECIPES[name]
    written = json.loads(json.dumps(dataclasses.asdict(recipe)))
    assert Recipe.from_dict(written) == recipe
    path = pathlib.Path(__file__).parent / "golden" / "recipes-0.1.0.json"
    golden = json.loads(path.read_text())
    assert set(golden) <= set(RECIPES)
    if name not in golden:  # which is younger
        return
    early = Recipe.from_dict(golden[name])
    if name == "multi30k":  # which was another then
        model = {"positions": "sinusoidal", "dropout": 0.15}
        model = {**recipe.model.options(), **model}
        changes = {"batch_tokens": 2048, "learning_rate": 0.0035, "warmup_steps": 500}
        changes |= {"ema_momentum": 0.999, "ema_warmup": False}
        recipe = dataclasses.replace(recipe, model=model, **changes)
    assert early == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, "`config` must be a dict. Received: config=None"),
        ({"model": ...}, "`config` must be .* with model. Received: config={'learn"),
        ({"model": None, "vocabulary_size": 9}, "`model` must be a dict.*model=None"),
        ({"epoch": 3}, "`epoch` must be an argument of `Recipe`.*mean `epochs`"),
    ],
)
def test_a_recipe_says_what_its_dict_lacks(changes, message):
    config = {**dataclasses.asdict(RECIPES["smoke"]), **(changes or {})}
    config = {name: value for name, value in config.items() if value is not ...}
    with pytest.raises(ValueError, match=message):
        Recipe.from_dict(None if changes is None else config)


def test_a_recipe_says_all_that_its_dict_lacks():
    with pytest.raises(ValueError, match="with model, learning_rate, warmup_steps, co"):
        Recipe.from_dict({})


@pytest.mark.parametrize("lengths", [(), (8, 4), (8, 8), [8, 0]])
def test_lengths_increase(lengths):
    with pytest.raises(ValueError, match="must be increasing positive integers. Rec"):
        dataclasses.replace(RECIPES["smoke"], bucket_lengths=lengths)


def test_a_consistency_needs_copies():
    message = "`repeat_batch` must be at least 2 .*Received: repeat_batch=1"
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(RECIPES["smoke"], consistency=1.0)


AVERAGES = {
    "muon": {"optimizer": "muon"},
    "schedule_free": {"optimizer": "schedule_free", "ema_momentum": None},
    "checkpoints": {"average_epochs": 2, "ema_momentum": None},
    "none": {"ema_momentum": None},
}


@pytest.mark.backends("tensorflow", "jax", "torch")
@each_variant("name", named(*AVERAGES), on_jax=[], on_tensorflow=[], on_torch=["muon"])
def test_each_optimizer_and_average_trains(name):
    """The averaged weights are validated, scored and left in the model."""
    model = {"source_vocabulary_size": 260, "model_dim": 8, "intermediate_dim": 8}
    model |= {"encoder_layers": 1, "decoder_layers": 1, "num_heads": 2}
    model |= {"tie_embeddings": False, "dropout": 0.0}
    lines, tokenizer = [f"{i} red dogs" for i in range(32)], ks.text.ByteTokenizer()
    recipe = dataclasses.replace(
        RECIPES["smoke"], model=model, bucket_lengths=(16,), **AVERAGES[name]
    )
    batches = ks.text.translation_batches(
        lines, lines, tokenizer, **recipe.batch_options()
    )
    score = ks.training.TranslationScore(lines[:2], lines[:2], tokenizer)
    made = recipe.make_model()
    history = made.fit(
        batches,
        epochs=3,
        shuffle=False,
        validation_data=batches,
        callbacks=[*recipe.average_callbacks(), score],
        verbose=0,
    ).history
    assert history["loss"][-1] < history["loss"][0]
    left = made.evaluate(batches, verbose=0, return_dict=True)["loss"]
    assert left == pytest.approx(history["val_loss"][-1], rel=1e-4)
    assert ks.Translator(made, tokenizer)(lines[:2]) == score.translations


COPIED = dataclasses.replace(
    RECIPES["smoke"],
    learning_rate=0.25,
    warmup_steps=7,
    label_smoothing=0.3,
    consistency=0.5,
    ema_momentum=0.75,
    ema_warmup=True,
    repeat_batch=2,
    cutoff=0.2,
    sampling=0.1,
    views=("plain", "sampled"),
    bidirectional_epochs=3,
)


def test_a_model_is_compiled_as_its_recipe_has_it():
    pieces = ["a", "b"]
    for optimizer in ("adam", "muon"):
        recipe = dataclasses.replace(COPIED, optimizer=optimizer)
        model = recipe.make_model(pieces=pieces)
        loss, options = model.loss.get_config(), model.optimizer.get_config()
        assert (loss["label_smoothing"], loss["consistency"]) == (0.3, 0.5)
        assert loss["pieces"] == pieces
        rate = {"peak": 0.25, "warmup_steps": 7}
        assert options["learning_rate"]["config"] == rate
        average = [options[f"ema_{name}"] for name in ("momentum", "warmup")]
        assert options["use_ema"] and average == [0.75, True]
    free = dataclasses.replace(COPIED, optimizer="schedule_free", ema_momentum=None)
    options = free.make_model().optimizer.get_config()
    assert options["learning_rate"] == pytest.approx(0.25)
    assert options["warmup_steps"] == 7


def test_batches_are_as_the_recipe_has_them():
    sizes = {"batch_tokens": 1024, "bucket_lengths": (8, 12, 16, 32)}
    assert COPIED.batch_options(training=False) == sizes
    copies = {"repeat_batch": 2, "cutoff": 0.2, "views": ("plain", "sampled")}
    drawn = {"sampling": 0.1, "bidirectional_epochs": 3}
    assert COPIED.batch_options() == {**sizes, **copies, **drawn}


def test_one_average_at_a_time():
    with pytest.raises(ValueError, match="must not be combined. .*average_epochs=2"):
        dataclasses.replace(RECIPES["smoke"], average_epochs=2)


def test_the_options_of_a_model_are_checked():
    model = {"source_vocabulary_size": 50, "model_dim": 8}
    given = ks.tuning.Configuration({**model, "dtype": "float16"}, 0.1, 10)
    assert (given.dtype, given.model.model_dim) == ("float16", 8)
    assert given.make_model().dtype_policy.name == "float16"
    with pytest.raises(ValueError, match="`dtype` must be None where `model` has a d"):
        dataclasses.replace(given, model={**model, "dtype": "float32"})
    for change, message in (
        ({"dropuot": 0.1}, "`dropuot` must be an argument of .*Did you mean `dropout`"),
        ({"dropout": 2.0}, "`dropout` must be .*dropout=2.0"),
        ({"source_vocabulary_size": None}, "`source_vocabulary_size` must be"),
        ({"cell": "gru"}, "`cell` must be an argument of `TranslationTransformer`"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(given, model={**model, **change})
    with pytest.raises(ValueError, match="`model` must be a dict"):
        dataclasses.replace(given, architecture="TranslationRNN")


def test_only_the_weights_of_a_transformer_are_counted():
    assert RECIPES["gru-smoke"].count_parameters() is None
    assert RECIPES["smoke"].count_parameters() > 0


def test_a_model_has_the_vocabulary_that_the_tokenizer_has():
    assert RECIPES["smoke"].make_model(290).target_vocabulary_size == 290


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("preset", ["smoke", "default", "multi30k"])
def test_the_recurrent_counterpart_has_about_as_many_weights(preset):
    attentive, recurrent = RECIPES[preset], RECIPES[f"gru-{preset}"]
    assert recurrent.architecture == "TranslationRNN"
    assert recurrent.vocabulary_size == attentive.vocabulary_size
    sizes = [recipe.make_model().count_params() for recipe in (attentive, recurrent)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.03)
