"""Each preset describes a model and batches that can be made."""

import dataclasses

import pytest

import keras_seqattn as ks
from keras_seqattn.recipes import RECIPES


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_recipe_is_feasible(recipe):
    assert recipe.corpus in ("phrases", "multi30k")
    model = ks.models.TranslationTransformer(recipe.vocabulary_size, **recipe.model)
    assert model.source_vocabulary_size == recipe.vocabulary_size
    assert list(recipe.bucket_lengths) == sorted(set(recipe.bucket_lengths))
    assert recipe.batch_tokens >= recipe.bucket_lengths[-1]
    ks.training.InverseSquareRoot(recipe.peak_learning_rate, recipe.warmup_steps)
    ks.training.MaskedCrossentropy(label_smoothing=recipe.label_smoothing)
    assert 0 < recipe.ema_momentum < 1
    assert recipe.epochs > 0


def test_a_recipe_is_varied_by_replacing():
    recipe = dataclasses.replace(RECIPES["smoke"], epochs=3)
    assert (recipe.epochs, RECIPES["smoke"].epochs) == (3, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.epochs = 4
