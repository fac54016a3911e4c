"""The hyperparameters of a trial: near those of the best, or regularizing more."""

import math
from random import Random

import keras_tuner
import pytest

from keras_seqattn import tuning
from keras_seqattn.recipes import RECIPES
from keras_seqattn.tuning import draws

pytestmark = pytest.mark.backends("jax")  # nothing is computed
SPACE = tuning.TranslationSpace.around(RECIPES["multi30k"])


def test_draws_stand_near_and_widen():
    hp = keras_tuner.HyperParameters()
    SPACE.choose(hp, 50)
    center = draws.defaults(hp)
    assert center["dropout"] == 0.2
    assert "post_norm_learning_rate" not in center

    def changes(failures):
        random = Random(0)
        drawn = [draws.perturb(center, hp, failures, random) for _ in range(300)]
        names = center.keys()
        counts = [sum(one.get(n) != center[n] for n in names) for one in drawn]
        rate = center["learning_rate"]
        logs = (abs(math.log(x.get("learning_rate", rate) / rate)) for x in drawn)
        moves = [log for log in logs if log > 0.0]
        assert min(counts) >= 1
        assert all(
            "post_norm_warmup_steps" in x for x in drawn if not x["normalize_first"]
        )
        return sum(counts) / 300, sum(moves) / len(moves)

    (few, near), (many, far) = changes(0), changes(60)
    assert few < 2.5 < many
    # A quarter of the range's width, of which the far ones turn back at its ends.
    assert near < 0.4 * math.log(8) and 1.3 * near < far


def test_whole_numbers_and_steps_are_drawn():
    """Of which KerasTuner has a generator, where it has a list of others."""
    hp = keras_tuner.HyperParameters()
    hp.Int("units", 8, 64)
    hp.Float("share", 0.0, 1.0, step=0.25)
    hp.Int("fixed", 3, 3)
    center = draws.defaults(hp)
    drawn = [draws.perturb(center, hp, 0, Random(seed)) for seed in range(40)]
    assert all(one != center for one in drawn)
    assert len({one["units"] for one in drawn}) > 5
    assert {one["share"] for one in drawn} <= {0.0, 0.25, 0.5, 0.75, 1.0}
    assert {one["fixed"] for one in drawn} == {3}


def test_the_first_trial_is_the_recipe():
    hp = keras_tuner.HyperParameters()
    recipe = RECIPES["multi30k"]
    SPACE.choose(hp, recipe.vocabulary_size)
    hp.values = draws.defaults(hp)
    chosen = SPACE.choose(hp, recipe.vocabulary_size)
    options = chosen.model.options() | {"key_dim": None}
    assert options == recipe.model.options()
    for name in ("learning_rate", "warmup_steps", "label_smoothing", "ema_momentum"):
        assert getattr(chosen, name) == getattr(recipe, name)


def test_what_regularizes_goes_half_way_to_the_most():
    hp = keras_tuner.HyperParameters()
    hp.Choice("dropout", [0.0, 0.1, 0.2, 0.3])
    hp.Choice("label_smoothing", [0.0, 0.1])
    hp.Choice("dropout_rate", [0.1, 0.5])
    hp.Float("weight_decay", 1e-6, 1e-2, sampling="log")
    hp.Choice("attention_dropout", ["none", "some"])
    hp.Int("units", 8, 64)
    values = {"dropout": 0.0, "label_smoothing": 0.1, "weight_decay": 1e-4}
    values |= {"dropout_rate": 0.1, "attention_dropout": "none", "units": 8}
    more = draws.regularize(values, hp)
    assert more.pop("weight_decay") == pytest.approx(1e-3)
    assert more == {
        **{"dropout": 0.2, "dropout_rate": 0.5, "label_smoothing": 0.1},
        **{"attention_dropout": "none", "units": 8},
    }
    most = draws.regularize({"dropout": 0.3}, hp)
    assert most == {"dropout": 0.3}


def test_samples_are_of_the_whole_space():
    hp = keras_tuner.HyperParameters()
    SPACE.choose(hp, 50)
    random = Random(0)
    drawn = [draws.sample(hp, random) for _ in range(300)]
    assert {one["num_heads"] for one in drawn} == set(SPACE.num_heads)
    assert {one["encoder_layers"] for one in drawn} == set(SPACE.encoder_layers)
    for one in drawn:
        assert ("learning_rate" in one) == one["normalize_first"]
