"""Each preset describes a model and batches that can be made."""

import dataclasses

import pytest

import keras_seqattn as ks
from keras_seqattn.recipes import RECIPES

pytestmark = pytest.mark.backends("tensorflow", "torch")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_is_feasible(recipe):
    assert recipe.corpus in ("phrases", "multi30k", "own")
    model = recipe.make_model()
    assert type(model).__name__ == recipe.architecture
    assert model.source_vocabulary_size == recipe.vocabulary_size
    assert list(recipe.bucket_lengths) == sorted(set(recipe.bucket_lengths))
    assert recipe.batch_tokens >= recipe.bucket_lengths[-1]
    ks.training.InverseSquareRoot(recipe.peak_learning_rate, recipe.warmup_steps)
    ks.training.MaskedCrossentropy(label_smoothing=recipe.label_smoothing)
    assert 0 < recipe.ema_momentum < 1
    assert recipe.epochs > 0


def test_a_recipe_is_varied_by_replacing():
    recipe = dataclasses.replace(RECIPES["smoke"], epochs=3)
    assert (recipe.epochs, RECIPES["smoke"].epochs) == (3, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.epochs = 4


def test_a_model_has_the_vocabulary_that_the_tokenizer_has():
    assert RECIPES["smoke"].make_model(290).target_vocabulary_size == 290


@pytest.mark.parametrize("preset", ["smoke", "default", "multi30k"])
def test_the_recurrent_counterpart_has_about_as_many_weights(preset):
    attentive, recurrent = RECIPES[preset], RECIPES[f"gru-{preset}"]
    assert recurrent.architecture == "TranslationRNN"
    assert recurrent.vocabulary_size == attentive.vocabulary_size
    sizes = [recipe.make_model().count_params() for recipe in (attentive, recurrent)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.03)
