"""A trained model of transformers computes the same as ours made of it."""

import numpy as np
import pytest
import torch

import keras_seqattn as ks
from keras_seqattn.decoding import BeamSearch, Greedy
from tests.convert import families
from tests.evaluate import numpy

pytestmark = pytest.mark.backends("torch")

EVERY = {name: make for name, (make, _) in families.TRANSLATORS.items()}
EVERY.pop("marian_tag")
NUMBER, MAX_LENGTH = 30, 14


def logits_of(model, ids, target_ids):
    ids = torch.tensor(ids)
    mask = (ids != model.config.pad_token_id).long()
    target_ids = torch.tensor(target_ids)
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target_ids)
    return found.logits.numpy()


def targets_of(model, ids):
    """Returns targets `(N, T)`: a start, and the tokens of other sources."""
    config = model.config
    start = families.start_of(config)
    rows = np.roll(ids, 1, axis=0)[:, :-1]
    rows[rows == config.pad_token_id] = 5
    return np.concatenate([np.full((len(ids), 1), start), rows], axis=1)


@pytest.fixture(scope="module")
def pairs():
    made = {}

    def pair(name):
        if name not in made:
            theirs = EVERY[name]()
            made[name] = theirs, ks.convert.model_from_huggingface(theirs)
        return made[name]

    return pair


@pytest.mark.parametrize("name", EVERY)
def test_logits_are_equal(name, pairs):
    theirs, ours = pairs(name)
    ids = families.random_ids(theirs, NUMBER)
    target_ids = targets_of(theirs, ids)
    logits = numpy(ours({"source_ids": ids, "target_ids": target_ids}))
    expected = logits_of(theirs, ids, target_ids)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)
    assert np.abs(expected).max() > 1


def test_the_numbers_of_a_t5_are_those_of_its_configuration():
    positions = {"num_buckets": 8, "max_distance": 6}
    options = {f"relative_attention_{name}": x for name, x in positions.items()}
    options |= {"layer_norm_epsilon": 0.1, "num_decoder_layers": 1}
    theirs = families.t5(**options)
    ours = ks.convert.model_from_huggingface(theirs)
    ids = families.random_ids(theirs, NUMBER)
    target_ids = targets_of(theirs, ids)
    logits = numpy(ours({"source_ids": ids, "target_ids": target_ids}))
    expected = logits_of(theirs, ids, target_ids)
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}


@pytest.mark.parametrize(
    "options",
    [
        {"rms_norm_eps": 0.1, "attention_bias": True},
        {"rope_parameters": LINEAR, "mlp_bias": True},
    ],
    ids=["attention's bias", "linear positions"],
)
def test_the_numbers_of_a_llama_are_those_of_its_configuration(options):
    theirs = families.llama(**options)
    ours = ks.convert.model_from_huggingface(theirs)
    ids = np.random.default_rng(0).integers(3, 60, (NUMBER, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(numpy(ours(ids)), expected, rtol=0, atol=1e-5)


def check_generated(theirs, ours, number, seed=0):
    ids = families.random_ids(theirs, number, seed)
    for search in (Greedy(), BeamSearch(4, patience=None)):
        expected = families.generated(
            theirs, ids, getattr(search, "width", 1), MAX_LENGTH
        )
        found = ours.generate(ids, search, max_length=MAX_LENGTH)
        for row, tokens in enumerate(expected):
            assert list(found.sequence(row)) == tokens, (search, row)


@pytest.mark.parametrize("name", EVERY)
def test_searches_find_the_same(name, pairs):
    check_generated(*pairs(name), NUMBER)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_searches_find_the_same_for_a_thousand_sentences(name, pairs):
    check_generated(*pairs(name), 1000, seed=1)


@pytest.mark.parametrize("name", families.LANGUAGE_MODELS)
def test_language_models_are_equal(name):
    theirs = families.LANGUAGE_MODELS[name]()
    ours = ks.convert.model_from_huggingface(theirs)
    assert isinstance(ours, ks.models.LanguageModel)
    ids = np.random.default_rng(0).integers(3, 60, (NUMBER, 9))
    with torch.no_grad():
        expected = theirs(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(numpy(ours(ids)), expected, rtol=0, atol=1e-5)
    theirs.config.decoder_start_token_id, theirs.config.pad_token_id = 1, 0
    for search in (Greedy(), BeamSearch(4, patience=None)):
        found = ours.generate(ids, search, max_length=MAX_LENGTH)
        expected = theirs.generate(
            torch.tensor(ids),
            attention_mask=torch.ones(ids.shape, dtype=torch.long),
            num_beams=getattr(search, "width", 1),
            do_sample=False,
            max_new_tokens=MAX_LENGTH,
            suppress_tokens=[0, 1],
            pad_token_id=0,
            early_stopping="never",
        )
        for row, tokens in enumerate(expected[:, ids.shape[1] :].tolist()):
            assert list(found.sequence(row)) == families.ended(tokens, theirs.config)


def test_the_angles_of_llama_3_are_those_of_transformers():
    """At the numbers of Llama 3.2: base, width of heads, factors and length."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    given = {"rope_type": "llama3", "rope_theta": 500000.0, **scaling}
    config = families.transformers.LlamaConfig(head_dim=64, rope_parameters=given)
    angles, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    layer = ks.layers.RotaryPositions(base=500000.0, llama3_scaling=scaling)
    # Theirs have an error of up to 13 * 6e-8, from powers in float32.
    np.testing.assert_allclose(layer._rates(32), angles, rtol=2e-6)


def test_a_language_model_that_was_saved_computes_the_same(tmp_path):
    import keras

    ours = ks.convert.model_from_huggingface(families.llama3())
    ours.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    ids = np.arange(3, 23)[None]
    np.testing.assert_array_equal(numpy(loaded(ids)), numpy(ours(ids)))


@pytest.mark.parametrize("name", ["marian", "t5_v11", "mt5"])
def test_a_folder_is_read_as_the_model(name, pairs, tmp_path):
    _, ours = pairs(name)
    EVERY[name](tmp_path)
    read = ks.convert.model_from_huggingface(tmp_path, dropout=0.25)
    np.testing.assert_equal(ours.get_weights(), read.get_weights())
    assert read.config.dropout == 0.25


@pytest.mark.parametrize("name", ["t5", "llama", "mistral"])
def test_options_of_an_attention_leave_its_others(name):
    """Such as its positions, its heads of keys and its window."""
    theirs = {**EVERY, **families.LANGUAGE_MODELS}[name]()
    given = {"attention": {"implementation": "chunked"}}
    models = [
        ks.convert.model_from_huggingface(theirs, **options) for options in ({}, given)
    ]
    assert models[1].config.attention["implementation"] == "chunked"
    ids = families.random_ids(theirs, 3) if name == "t5" else np.arange(3, 23)[None]
    inputs = {"source_ids": ids, "target_ids": ids} if name == "t5" else ids
    logits = [numpy(model(inputs)) for model in models]
    np.testing.assert_allclose(*logits, rtol=0, atol=1e-5)


def test_parts_of_weights_and_half_precision_are_read(pairs, tmp_path):
    theirs, ours = pairs("marian")
    theirs.save_pretrained(tmp_path, max_shard_size="5kB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    read = ks.convert.model_from_huggingface(tmp_path)
    np.testing.assert_equal(ours.get_weights(), read.get_weights())
    half = EVERY["t5"]().to(torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    read = ks.convert.model_from_huggingface(tmp_path / "half")
    table = read.get_layer("source_embedding").get_weights()[0]
    np.testing.assert_array_equal(table, half.shared.weight.detach().float().numpy())


def test_a_model_that_was_saved_computes_the_same(pairs, tmp_path):
    import keras

    for name in ("t5_v11", "mbart"):
        theirs, ours = pairs(name)
        ours.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        ids = families.random_ids(theirs, 3)
        inputs = {"source_ids": ids, "target_ids": targets_of(theirs, ids)}
        np.testing.assert_array_equal(numpy(loaded(inputs)), numpy(ours(inputs)))
