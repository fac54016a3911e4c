"""All of a space can be built, its weights counted before, and grown from smaller."""

import dataclasses
import itertools
from types import SimpleNamespace

import keras
import keras_tuner
import numpy as np
import pytest

from keras_seqattn import models, tuning
from keras_seqattn.models.transformer import TranslationConfig
from keras_seqattn.recipes import RECIPES
from keras_seqattn.tuning import records, warm
from keras_seqattn.tuning.space import declare

pytestmark = pytest.mark.backends("torch")

TINY = {
    "model_dim": 8,
    "num_heads": 2,
    "key_dim": 4,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "intermediate_dim": 16,
}


def draws(space, number, **options):
    """Draws as KerasTuner's oracles do, without a tuner."""
    oracle = keras_tuner.oracles.RandomSearchOracle(
        objective=keras_tuner.Objective("val_loss", "min"), max_trials=number, seed=1
    )
    hp = keras_tuner.HyperParameters()
    space.choose(hp, 50, **options)
    oracle.update_space(hp)
    for trial in range(number):
        hp = oracle.hyperparameters.copy()
        hp.values = oracle.populate_space(str(trial))["values"]
        yield hp


# Three rows that differ in every option: the sum is of independent parts.
OPTIONS = [
    dict(positions="sinusoidal", norm="layer", normalize_first=True),
    dict(
        positions="relative",
        norm="rms",
        normalize_first=False,
        gated=True,
        target_vocabulary_size=40,
        encoder_layers=2,
        num_heads=1,
    ),
    dict(
        positions="learned",
        max_length=12,
        tie_embeddings=False,
        key_dim=None,
        decoder_layers=3,
        share_layers=True,
    ),
]


@pytest.mark.parametrize("options", OPTIONS)
def test_weights_are_counted_without_building(options):
    options = {"source_vocabulary_size": 50, **TINY, **options}
    model = models.TranslationTransformer(**options)
    assert tuning.count_parameters(**options) == model.count_params()


def test_weights_that_cannot_be_counted_are_an_error():
    with pytest.raises(ValueError, match="`attention` must be None .*'qk_norm'"):
        tuning.count_parameters(source_vocabulary_size=9, attention={"qk_norm": True})


@pytest.mark.parametrize("name", ["attention", "decoder_attention"])
def test_what_attention_has_is_left_to_the_model_to_count(name):
    space = tuning.TranslationSpace(options={name: {"qk_norm": True}})
    chosen = space.choose(keras_tuner.HyperParameters(), 50)
    assert chosen.count_parameters() is None


def test_every_draw_can_be_built():
    space = tuning.TranslationSpace(
        model_dim=(4, 6),
        encoder_layers=(1, 2),
        decoder_layers=1,
        num_heads=(1, 3, 5),
        key_dim=(2, 4),
    )
    for hp in draws(space, 8):
        chosen = space.choose(hp, 50)
        model = chosen.make_model()
        assert model.count_params() == chosen.count_parameters()
        post_norm = not chosen.model.normalize_first
        assert ("post_norm_learning_rate" in hp.values) == post_norm
        assert ("learning_rate" in hp.values) != post_norm
        assert chosen.warmup_steps in ((800, 1600) if post_norm else (200, 400, 800))


def test_sizes_of_vocabularies_vary():
    space = tuning.TranslationSpace(vocabulary_size=(30, 60))
    assert {space.choose(hp).vocabulary_size for hp in draws(space, 8)} == {30, 60}
    with pytest.raises(ValueError, match="`vocabulary_size` must be given"):
        tuning.TranslationSpace().choose(keras_tuner.HyperParameters())


@pytest.mark.parametrize(
    "average",
    [{}, {"ema_momentum": None, "average_epochs": 2, "ema_warmup": False}],
)
def test_optimizers_vary(average):
    center = dataclasses.replace(RECIPES["smoke"], **average)
    names = ("muon", "schedule_free")
    space = tuning.TranslationSpace.around(center, optimizer=names)
    first = space.choose(keras_tuner.HyperParameters(), 50)
    assert first.optimizer == center.optimizer == "adam"
    seen = {}
    for hp in draws(space, 20):
        chosen = space.choose(hp, 50)
        seen[chosen.optimizer] = chosen.average_callbacks()[0].__class__.__name__
    averaged = "CheckpointAverage" if average else "SwapEMAWeights"
    others = {"adam": averaged, "muon": averaged}
    assert seen == {**others, "schedule_free": "ScheduleFreeAverage"}


def test_a_momentum_varies_wherever_the_optimizer_averages_by_it():
    center = dataclasses.replace(
        RECIPES["smoke"], optimizer="schedule_free", ema_momentum=None
    )
    names, momenta = ("adam", "schedule_free"), (0.9, 0.99)
    for first in (center, RECIPES["smoke"]):
        space = tuning.TranslationSpace(
            center=first, optimizer=names, ema_momentum=momenta
        )
        seen = set()
        for hp in draws(space, 20):
            chosen = space.choose(hp, 50)
            seen.add((chosen.optimizer, chosen.ema_momentum))
            assert ("ema_momentum" in hp.values) == (chosen.optimizer == "adam")
        assert seen == {("adam", 0.9), ("adam", 0.99), ("schedule_free", None)}


def test_the_optimizer_is_the_centers_unless_it_varies():
    center = dataclasses.replace(RECIPES["multi30k"], optimizer="muon")
    hp = keras_tuner.HyperParameters()
    chosen = tuning.TranslationSpace.around(center).choose(hp, 50)
    assert chosen.optimizer == center.optimizer == "muon"
    assert "optimizer" not in hp.values
    with pytest.raises(ValueError, match="`optimizer` must be one of .*'sgd'"):
        tuning.TranslationSpace(optimizer=("adam", "sgd"))


def test_base_dim_wants_adam():
    model = dataclasses.replace(RECIPES["smoke"].model, base_dim=32)
    center = dataclasses.replace(RECIPES["smoke"], model=model)
    tuning.TranslationSpace(center=center, optimizer=("adam",))
    with pytest.raises(ValueError, match="`base_dim` must be None with.*32.*'muon'"):
        tuning.TranslationSpace(center=center, optimizer=("adam", "muon"))
    options = {"base_dim": 64}
    with pytest.raises(ValueError, match="`base_dim` must be None with .*64.*'muon'"):
        tuning.TranslationSpace(options=options, optimizer="muon")


def test_one_choice_of_two_is_a_choice_too():
    space = tuning.TranslationSpace(normalize_first=(True,), tie_embeddings=(False,))
    model = space.choose(keras_tuner.HyperParameters(), 50).model
    assert (model.normalize_first, model.tie_embeddings) == (True, False)


def test_choices_may_mix_integers_and_floats():
    wide = {"intermediate_dim": 320, "model_dim": 128}
    model = dataclasses.replace(RECIPES["smoke"].model, **wide)
    center = dataclasses.replace(RECIPES["smoke"], model=model)
    space = tuning.TranslationSpace.around(center, dropout=(0, 0.1))
    assert space.feed_forward_ratio == (1, 2, 2.5, 4)
    hp = keras_tuner.HyperParameters()
    chosen = space.choose(hp, 50)
    assert chosen.model.intermediate_dim == 320
    (dropout,) = (one for one in hp.space if one.name == "dropout")
    assert {0.0, 0.1} <= set(dropout.values)


def test_choices_are_exact_in_every_process():
    hp = keras_tuner.HyperParameters()
    assert declare(hp, "momentum", (0.9999999, 0.9)) == 0.9999999
    sent = keras_tuner.HyperParameters.from_proto(hp.to_proto())
    assert declare(sent, "momentum", (0.9999999, 0.9)) == 0.9999999


def test_a_space_around_a_recipe_begins_with_all_of_its_values():
    center = dataclasses.replace(
        RECIPES["multi30k"], learning_rate=0.002, warmup_steps=4000, ema_momentum=0.99
    )
    model = dataclasses.replace(
        center.model, normalize_first=False, tie_embeddings=False
    )
    center = dataclasses.replace(center, model=model)
    space = tuning.TranslationSpace.around(center)
    chosen = space.choose(keras_tuner.HyperParameters(), 50)
    for name in ("learning_rate", "warmup_steps", "ema_momentum", "label_smoothing"):
        assert getattr(chosen, name) == getattr(center, name)
    assert chosen.model.tie_embeddings is False
    assert tuning.TranslationSpace.around(center, ema_momentum=0.5).ema_momentum == 0.5


def test_the_target_may_have_a_vocabulary_of_its_own():
    space = tuning.TranslationSpace(model_dim=8, num_heads=1, key_dim=4)
    hypermodel = tuning.TranslationHyperModel(30, 40, space)
    model = hypermodel.build(keras_tuner.HyperParameters())
    assert (model.source_vocabulary_size, model.target_vocabulary_size) == (30, 40)


def test_what_no_field_varies_is_the_center_s():
    """In every trial, unless the space's `options` say otherwise."""
    model = {"activation": "gelu", "norm": "rms", "attention_dropout": 0.1}
    model = dataclasses.replace(RECIPES["smoke"].model, **model)
    center = dataclasses.replace(RECIPES["smoke"], model=model, dtype="mixed_bfloat16")
    space = tuning.TranslationSpace.around(center, options={"norm": "layer"})
    for hp in draws(space, 3):
        chosen = space.choose(hp, 50)
        assert (chosen.model.activation, chosen.model.norm) == ("gelu", "layer")
        assert chosen.model.attention_dropout == 0.1
        assert chosen.dtype == "mixed_bfloat16"


@pytest.mark.parametrize("rate", [1e-5, 0.5])
def test_a_range_around_a_recipe_reaches_to_its_value(rate):
    center = dataclasses.replace(RECIPES["smoke"], learning_rate=rate)
    space = tuning.TranslationSpace.around(center)
    usual, wider = tuning.TranslationSpace().learning_rate, space.learning_rate
    assert wider.low == min(rate, usual.low) and wider.high == max(rate, usual.high)
    assert wider.log
    chosen = space.choose(keras_tuner.HyperParameters(), 50)
    assert chosen.learning_rate == rate


@pytest.mark.parametrize(
    ("low", "high", "first"), [(0.1, 0.2, 0.1), (1e-9, 1e-8, 1e-8)]
)
def test_a_search_begins_within_a_range_that_lacks_the_center_s_value(low, high, first):
    space = tuning.TranslationSpace(learning_rate=tuning.Range(low, high, log=True))
    hp = keras_tuner.HyperParameters()
    assert space.choose(hp, 50).learning_rate == first
    assert hp.values["learning_rate"] == first


def test_averages_that_vary_are_warmed_up_whatever_the_center_does():
    center = dataclasses.replace(RECIPES["smoke"], ema_warmup=False)
    for momentum in (0.9, (0.99, 0.999)):
        space = tuning.TranslationSpace.around(center, ema_momentum=momentum)
        assert space.choose(keras_tuner.HyperParameters(), 50).ema_warmup
    space = tuning.TranslationSpace(center=center, ema_momentum=None)
    chosen = space.choose(keras_tuner.HyperParameters(), 50)
    assert (chosen.ema_momentum, chosen.ema_warmup) == (None, False)


def test_views_that_differ_are_compared_by_their_pieces():
    made = []
    for pieces in (None, lambda size: ["x"] * size):
        center = dataclasses.replace(
            RECIPES["multi30k"].with_vocabulary(30), consistency=3.0, repeat_batch=2
        )
        space = tuning.TranslationSpace.around(center)
        hypermodel = tuning.TranslationHyperModel(30, space=space, pieces=pieces)
        made.append(hypermodel.build(keras_tuner.HyperParameters()).loss.pieces)
    assert made[0] is None and len(made[1]) == 30


def test_no_choice_holds_none():
    with pytest.raises(ValueError, match=r"`ema_momentum` must be .*\(None, 0.999\)"):
        tuning.TranslationSpace(ema_momentum=(None, 0.999))
    center = dataclasses.replace(RECIPES["smoke"], ema_momentum=None, ema_warmup=False)
    space = tuning.TranslationSpace.around(center, ema_momentum=(0.99, 0.999))
    assert space.ema_momentum == (0.99, 0.999)


def test_attention_choices_for_any_model():
    seen = set()
    for seed in range(20):
        hp = keras_tuner.HyperParameters()
        tuning.attention_choices(hp, 12, num_heads=(2, 3, 5), key_dim=None)
        for one in hp.space:
            hp.values[one.name] = one.random_sample(seed)
        chosen = tuning.attention_choices(hp, 12, num_heads=(2, 3, 5), key_dim=None)
        assert chosen.num_heads * chosen.key_dim == 12
        seen.add(chosen.num_heads)
    assert seen == {2, 3}
    with pytest.raises(ValueError, match=r"divisor of `model_dim`, 12.*\(5, 7\)"):
        tuning.attention_choices(hp, 12, num_heads=(5, 7), key_dim=None)


def test_stacks_of_one_model_are_chosen_apart():
    hp = keras_tuner.HyperParameters()
    wanted = {}
    for number, stack in enumerate(("encoder_", "decoder_")):
        tuning.attention_choices(hp, 8, prefix=stack)
        values = (2, 4)[number], (16, 64)[number], (1, 3)[number]
        wanted[stack] = values
        names = ("num_heads", "key_dim", "num_layers")
        hp.values |= {f"{stack}{n}": x for n, x in zip(names, values, strict=True)}
    assert len(hp.space) == 6
    for stack, values in wanted.items():
        assert tuning.attention_choices(hp, 8, prefix=stack) == values


def test_the_hypermodel_serves_any_tuner(tmp_path):
    """KerasTuner's own tuner explores the space, builds and trains."""
    space = tuning.TranslationSpace(
        model_dim=4, key_dim=2, num_heads=(1, 2), encoder_layers=1, decoder_layers=1
    )
    tuner = keras_tuner.RandomSearch(
        tuning.TranslationHyperModel(20, space=space),
        objective=keras_tuner.Objective("val_token_crossentropy", "min"),
        max_trials=1,
        directory=tmp_path,
    )
    ids = np.ones((2, 3), "int32")
    data = {"source_ids": ids, "target_ids": ids}, ids
    tuner.search(*data, validation_data=data, verbose=0)
    assert tuner.get_best_hyperparameters()[0]["key_dim"] == 2


def test_a_range_is_kept_and_checked_as_its_field_is():
    space = tuning.TranslationSpace(ema_momentum=tuning.Range(0.99, 0.9999))
    hp = keras_tuner.HyperParameters()
    hp.values = {"ema_momentum": 0.99985}  # 1.0 to three digits
    assert space.choose(hp, 50).ema_momentum == 0.9999
    for name, low, high, message in (
        ("dropout", 0.1, 1.5, "`dropout` must be .*Received: dropout=1.5"),
        ("warmup_steps", 200, 800, "`warmup_steps` must be one integer.*Range"),
        ("positions", 0.1, 0.2, "`positions` must be .*0.1"),
    ):
        with pytest.raises(ValueError, match=message):
            tuning.TranslationSpace(**{name: tuning.Range(low, high)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tuning.Range(2, 1), "`low` must be at most .*low=2, high=1"),
        (lambda: tuning.Range(0, 1, log=True), "`low` must be .*low=0"),
        (lambda: choose(num_heads=None), "`num_heads` must be .*num_heads=None"),
        (lambda: choose(num_layers=None), "`num_layers` must be .*num_layers=None"),
        (lambda: choose(key_dim=np.array([2, 4])), "`key_dim` must be a positive"),
        (
            lambda: tuning.TranslationSpace(center=RECIPES["gru-default"]),
            "`center` must be a `Configuration` of a `TranslationTransformer`",
        ),
        (lambda: choose(num_heads=()), r"`num_heads` must be one value, or .*=\(\)"),
        (
            lambda: tuning.TranslationSpace(feed_forward_ratio=None),
            "`feed_forward_ratio` must be .*=None",
        ),
        (
            lambda: tuning.TranslationSpace(normalize_first=None),
            "`normalize_first` must be .*=None",
        ),
        (
            lambda: tuning.TranslationSpace(positions=("sinusoidal", "foo")),
            "`positions` must be one of .*positions='foo'",
        ),
        (
            lambda: tuning.TranslationSpace(key_dim=(4, 5)),
            r"`key_dim` must be even .*key_dim=\(4, 5\), positions=.*'rotary'",
        ),
        (
            lambda: tuning.TranslationSpace(options={"gated": True, "dropout": 0.1}),
            "`options` must be a dict without fields of the space.*'dropout': 0.1",
        ),
        (
            lambda: tuning.TranslationSpace(options={"intermediate_dim": 64}),
            "`options` must .*without `intermediate_dim`.*'intermediate_dim': 64",
        ),
        (
            lambda: tuning.TranslationSpace(options={"target_vocabulary_size": 64}),
            "`options` must .*sizes of vocabularies.*'target_vocabulary_size': 64",
        ),
    ],
)
def test_what_no_model_can_have_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("key_dim", [None, 4, (2, 4)])
def test_an_inactive_scope_chooses_nothing(key_dim):
    hp = keras_tuner.HyperParameters()
    hp.Boolean("attends")
    with hp.conditional_scope("attends", [True]):
        chosen = tuning.attention_choices(hp, 8, key_dim=key_dim)
    assert chosen == (None, None, None)


def choose(**options):
    return tuning.attention_choices(keras_tuner.HyperParameters(), 8, **options)


def test_numbers_of_numpy_are_kept_as_plain_ones():
    space = tuning.TranslationSpace(
        model_dim=np.int64(8),
        dropout=(0, np.float32(0.5)),
        normalize_first=[np.bool_(True)],
        positions=None,
    )
    assert (type(space.model_dim), type(space.dropout[1])) == (int, float)
    assert (space.dropout, space.normalize_first) == ((0, 0.5), [True])
    assert space.choose(keras_tuner.HyperParameters(), 50).model.positions is None
    assert choose(num_heads=np.arange(1, 3).tolist()).num_heads == 1
    assert type(tuning.Range(np.float32(1), 2).low) is float


GROWTHS = [
    {"encoder_layers": 3, "decoder_layers": 2},
    {"num_heads": 3, "intermediate_dim": 24},
    {"gated": True, "encoder_layers": 2, "intermediate_dim": 24},
    {"positions": "relative", "num_heads": 4, "decoder_layers": 2},
]


@pytest.mark.parametrize("growth", GROWTHS)
def test_a_grown_model_computes_what_the_smaller_one_does(growth):
    options = {"source_vocabulary_size": 20, **TINY}
    same = {k: v for k, v in growth.items() if k not in warm.GROWING}
    smaller = models.TranslationTransformer(**options | same)
    larger = models.TranslationTransformer(**options | growth)
    assert warm.can_grow(smaller.config, larger.config)
    ids = np.array([[5, 7, 2, 0], [3, 4, 6, 2]])
    inputs = {"source_ids": ids, "target_ids": ids}
    for weight in smaller.weights:  # biases too
        weight.assign(weight + keras.random.uniform(weight.shape, -0.3, 0.3, seed=3))
    expected = computed(smaller, inputs)
    assert not np.allclose(computed(larger, inputs), expected, atol=1e-3)
    warm.grow(smaller, larger)
    np.testing.assert_allclose(computed(larger, inputs), expected, atol=1e-5)


def computed(model, inputs):
    return keras.ops.convert_to_numpy(model(inputs))


def can_grow(smaller, larger):
    """Whether it can, of two dicts of options."""
    size = {"source_vocabulary_size": 50}
    return warm.can_grow(
        *(TranslationConfig(**size, **options) for options in (smaller, larger))
    )


def test_what_cannot_grow():
    base = {**TINY, "normalize_first": True, "positions": "sinusoidal"}
    for change in ({"model_dim": 16}, {"key_dim": 8}, {"positions": "rotary"}):
        assert not can_grow(base, base | change)
    post_norm = base | {"normalize_first": False}
    assert not can_grow(post_norm, post_norm | {"encoder_layers": 2})
    assert can_grow(post_norm, post_norm | {"num_heads": 4})
    alibi = base | {"positions": "alibi"}
    assert not can_grow(alibi, alibi | {"num_heads": 4})
    for options, grows in (
        ({"num_key_value_heads": 2}, False),
        ({"positions": "alibi"}, False),
        ({"num_key_value_heads": 1}, True),
    ):
        for name in ("attention", "decoder_attention"):
            own = base | {name: options}
            assert can_grow(own, own | {"num_heads": 4}) == grows
    assert not can_grow(base | {"encoder_layers": 2}, base)
    of_width = base | {"key_dim": None}  # Heads of another width for each number.
    assert not can_grow(of_width, of_width | {"num_heads": 4})
    assert can_grow(base | {"dropout": 0.1}, base | {"dropout": 0.3})
    pairs = itertools.product([{"num_heads": 4}, {"encoder_layers": 3}], repeat=2)
    assert all(can_grow(base, base | one | other) for one, other in pairs)


def test_a_warm_start_counts_all_that_its_source_builds_on(tmp_path, monkeypatch):
    made = SimpleNamespace(model=None, make_model=lambda weights: None)
    each = {"configuration": made, "path": tmp_path}
    warm_one = records.TrialRecord(
        "1",
        "paused",
        epochs=[{"seconds": 2.0}],
        best_epoch=1,
        score=1.0,
        seconds=2.0,
        warm_started_from="0",
        inherited_seconds=10.0,
        **each,
    )
    longer = records.TrialRecord(
        "2",
        "completed",
        epochs=[{"seconds": 2.0}, {"seconds": 3.0}],
        best_epoch=2,
        score=0.5,
        seconds=3.0,
        continued_from="1",
        inherited_epochs=1,
        inherited_seconds=12.0,
        **each,
    )
    monkeypatch.setattr(warm, "can_grow", lambda *configs: True)
    monkeypatch.setattr(warm, "grow", lambda *models: None)
    objective = SimpleNamespace(direction="min")
    study = SimpleNamespace(directory=tmp_path, objective=objective)
    for known, seconds in (([warm_one], 12.0), ([warm_one, longer], 15.0)):
        monkeypatch.setattr(records, "load_records", lambda _, known=known: known)
        record = records.TrialRecord("3", **each)
        warm.start(None, record, study)
        assert record.warm_started_from == known[-1].trial_id
        assert record.inherited_seconds == seconds
