"""Tests of what the models are configured by: `models/config.py`."""

import dataclasses
import inspect

import numpy as np
import pytest

from keras_seqattn import layers, models
from keras_seqattn.models.config import TransformerConfig
from keras_seqattn.models.decoder import LanguageConfig
from keras_seqattn.models.encoder import EncoderConfig
from keras_seqattn.models.recurrent import RecurrentConfig
from keras_seqattn.models.transformer import TranslationConfig

CONFIGS = {
    models.EncoderModel: EncoderConfig,
    models.LanguageModel: LanguageConfig,
    models.TranslationRNN: RecurrentConfig,
    models.TranslationTransformer: TranslationConfig,
}
by_model = pytest.mark.parametrize(
    ("model", "config"), CONFIGS.items(), ids=lambda one: one.__name__
)


@by_model
def test_a_constructor_has_the_options_and_defaults_of_its_configuration(model, config):
    parameters = dict(inspect.signature(model).parameters)
    parameters.pop("kwargs")
    missing = {dataclasses.MISSING: inspect.Parameter.empty}
    assert {name: one.default for name, one in parameters.items()} == {
        field.name: missing.get(field.default, field.default)
        for field in dataclasses.fields(config)
    }


@pytest.mark.slow_on("tensorflow", "jax")
@by_model
def test_a_model_keeps_its_configuration(model, config):
    sizes = {"model_dim": 8, "dropout": 0.5}
    made = model(11, **sizes)
    assert type(made.config) is config
    assert made.get_config().items() >= sizes.items()
    assert made.config == model.from_config(made.get_config()).config


@pytest.mark.backends("torch")
@by_model
def test_a_frozen_model_stays_frozen_as_a_part_of_another(model, config):
    frozen = model(11, model_dim=8)
    frozen.trainable = False
    for made in (
        model(11, model_dim=8, trainable=False),
        model.from_config(frozen.get_config()),
    ):
        assert not any(variable.trainable for variable in made.variables)


def test_options_are_plain_python_and_frozen():
    config = TransformerConfig(model_dim=np.int64(8))
    assert type(config.model_dim) is int
    names = ("start_id", "end_id", "pad_id", "memory_length")
    given = {name: np.int64(i) for i, name in enumerate(names)}
    options = LanguageConfig(vocabulary_size=np.int64(9), **given).options()
    assert {type(options[name]) for name in given} == {int}
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.model_dim = 16


@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative"])
def test_positions_are_applied_in_one_place(positions):
    config = TransformerConfig(positions=positions, attention={"scale": 1.0})
    assert config.embedding_positions is None
    inside = {"positions": positions, "scale": 1.0}
    assert config.block_options()["attention"] == inside


def test_ids_are_within_the_smaller_vocabulary():
    sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 5}
    with pytest.raises(ValueError, match=r"`end_id` must .* Received: end_id=5"):
        TranslationConfig(**sizes, end_id=5)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "rotary", "attention": {"score": "additive"}},
        {"attention": {"score": "additive", "positions": "rotary"}},
        {
            "decoder_attention": {
                "score": "additive",
                "positions": layers.RotaryPositions(),
            }
        },
    ],
)
def test_additive_scores_of_rotated_vectors_are_refused(options):
    """They depend on the positions, of which a search has others than a full pass."""
    with pytest.raises(ValueError, match="`positions` must not be rotary.*additive"):
        models.TranslationTransformer(20, model_dim=8, num_heads=2, **options)
