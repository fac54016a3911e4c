import dataclasses
import functools
import json
from unittest import mock

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding, models, training
from keras_seqattn.scheduling import generation
from tests import oracle
from tests.evaluate import JIT, evaluated, numpy, outputs
from tests.layers.weights import block_weights, norm_weights, randomize
from tests.mirrored import learn, share_right
from tests.models.greedy import naive_greedy
from tests.pairs import each_variant, named

V, D = 11, 8
START = 1
SOURCE = np.array([[5, 9, 3, 2, 0], [4, 7, 8, 6, 2]])
TARGET = np.array([[1, 6, 4, 8], [1, 7, 0, 0]])
SMALL = {
    "source_vocabulary_size": V,
    "model_dim": D,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "intermediate_dim": 12,
}
VARIANTS = {
    "two layers": {"encoder_layers": 2, "decoder_layers": 2},
    "post-norm, gated": {
        "normalize_first": False,
        "norm": "rms",
        "gated": True,
        "activation": "silu",
    },
    "learned, untied, two vocabularies": {
        "positions": "learned",
        "max_length": 6,
        "tie_embeddings": False,
        "target_vocabulary_size": V + 4,
    },
    "grouped, windowed, wide": {
        "attention": {"num_key_value_heads": 1, "sliding_window": 3},
        "key_dim": 6,
        "positions": None,
        "target_vocabulary_size": V,
    },
    "rotary, normed": {"positions": "rotary", "attention": {"qk_norm": True}},
    "relative, shared": {
        "positions": None,
        "attention": {"positions": "relative", "score": "additive"},
        "encoder_layers": 2,
        "decoder_layers": 2,
        "share_layers": True,
    },
}


def small(**arguments):
    return models.TranslationTransformer(**{**SMALL, **arguments})


def inputs(source_ids=SOURCE, target_ids=TARGET):
    return {"source_ids": source_ids, "target_ids": target_ids}


def logits(model, source_ids=SOURCE, target_ids=TARGET):
    return outputs(model, inputs(source_ids, target_ids))


@pytest.fixture(scope="module")
def model():
    """One model for every test that changes none."""
    keras.utils.set_random_seed(0)
    model = small()
    randomize(model, np.random.default_rng(0))
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_layers": 2, "decoder_layers": 2},
        {
            "normalize_first": False,
            "norm": "rms",
            "gated": True,
            "activation": "silu",
            "key_dim": 3,
            "attention": {"num_key_value_heads": 1, "use_gate": True},
        },
    ],
    ids=["defaults", "options"],
)
def test_equals_the_oracle(rng, options):
    model = small(**options)
    randomize(model, rng)
    block_options = {
        "normalize_first": options.get("normalize_first", True),
        "activation": options.get("activation", "relu"),
        "epsilon": 1e-5,
    }
    by_name = {layer.name: layer for layer in model.layers}
    table = ops.convert_to_numpy(by_name["source_embedding"].embeddings.value)
    table = table.astype("float64")

    def embed(ids):
        return table[ids] * np.sqrt(D) + oracle.sinusoidal_table(ids.shape[1], D)

    def blocks(stack):
        names = (f"{stack}_{i}" for i in range(options.get(f"{stack}_layers", 1)))
        return [block_weights(by_name[name]) for name in names]

    def final(x, name):
        if not block_options["normalize_first"]:
            assert name not in by_name
            return x
        return oracle.normalize(x, norm_weights(by_name[name]), 1e-5)

    source_real, target_real = SOURCE != 0, TARGET != 0
    x = embed(SOURCE)
    mask = source_real[:, :, None] & source_real[:, None]
    for weights in blocks("encoder"):
        x = oracle.encoder_block(x, weights, mask, **block_options)
    memory = final(x, "encoder_norm")
    x = embed(TARGET)
    for weights in blocks("decoder"):
        x = oracle.decoder_block(
            x,
            memory,
            weights,
            target_mask=target_real[:, :, None] & target_real[:, None],
            source_mask=target_real[:, :, None] & source_real[:, None],
            **block_options,
        )
    expected = final(x, "decoder_norm") @ table.T
    np.testing.assert_allclose(
        logits(model)[target_real], expected[target_real], atol=2e-4
    )


@each_variant(
    "options",
    VARIANTS,
    on_jax=["post-norm, gated"],
    on_tensorflow=["two layers", "relative, shared"],
)
def test_steps_equal_one_pass(rng, options):
    """Two beams with targets of their own share one encoded sentence."""
    model = small(**options)
    randomize(model, rng)
    target = rng.integers(3, V, size=(2, 2, 4)).astype("int32")
    target[:, :, 0] = START

    def steps(source_ids, target_ids):
        state = model.initial_state(model.encode(source_ids), 8, width=2)
        flat = keras.tree.flatten
        assert all(tuple(each.shape[:2]) == (2, 2) for each in flat(state["beam"]))
        assert all(each.shape[0] == 2 for each in flat(state["sentence"]))
        rows = []
        for index in range(4):
            position = ops.convert_to_tensor(index, "int32")
            row, state = model.step(target_ids[:, :, index], state, position)
            assert keras.backend.standardize_dtype(row.dtype) == "float32"
            rows.append(row)
        return ops.stack(rows, axis=2)  # (B, W, T, V)

    given = evaluated(steps, model)(SOURCE.astype("int32"), target)
    expected = logits(model, np.repeat(SOURCE, 2, axis=0), target.reshape(4, 4))
    np.testing.assert_allclose(given.reshape(expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("position", [1, 2, 3])
def test_no_later_token_affects_a_row(model, position):
    target = np.array([[1, 6, 4, 9], [1, 7, 8, 5]])
    changed = target.copy()
    changed[:, position:] = 10
    before, after = (logits(model, SOURCE, ids) for ids in (target, changed))
    np.testing.assert_allclose(after[:, :position], before[:, :position], atol=1e-6)
    assert not np.allclose(after[:, position:], before[:, position:])


def test_padding_changes_nothing(model):
    alone = logits(model, SOURCE[:1, :4], TARGET[1:, :2])
    padded = logits(model, SOURCE, TARGET[::-1])[:1, :2]
    np.testing.assert_allclose(padded, alone, atol=1e-5)


@pytest.mark.slow_on("jax")
def test_a_zero_token_says_nothing_and_is_attended_to(rng):
    model = small(zero_id=3)
    randomize(model, rng)
    plain = numpy(model(inputs()))  # A 3 is among the source's tokens.
    table = model.get_layer("source_embedding").embeddings
    values = numpy(table).copy()
    values[3] += 1.0
    table.assign(values)
    changed = numpy(model(inputs()))
    others = np.arange(V) != 3  # The row has its logit.
    np.testing.assert_array_equal(changed[..., others], plain[..., others])
    assert np.abs(changed[..., 3] - plain[..., 3]).max() > 1e-3
    padded = numpy(model(inputs(np.where(SOURCE == 3, 0, SOURCE))))
    assert np.abs(padded - changed)[0].max() > 1e-3


def test_padding_may_be_another_token(model):
    """The same sentences under another padding give the same numbers."""
    other = small(pad_id=V - 1)
    other.set_weights(model.get_weights())
    source, target = (np.where(ids == 0, V - 1, ids) for ids in (SOURCE, TARGET))
    real = TARGET != 0
    np.testing.assert_allclose(
        logits(other, source, target)[real], logits(model)[real], atol=1e-5
    )


@pytest.mark.slow_on("tensorflow", "jax")
def test_generate_equals_a_naive_loop(rng):
    """One program serves the weights before and after they change."""
    model, max_length = small(), 7
    for _ in range(2):
        randomize(model, rng)
        found = model.generate(SOURCE, decoding.Greedy(), max_length=max_length)
        assert found.token_ids.shape == (2, 1, max_length)
        for b, sentence in enumerate(SOURCE):
            tokens, score = naive_greedy(model, sentence, max_length)
            assert found.sequence(b) == tokens
            np.testing.assert_allclose(found.scores[b, 0], score, rtol=1e-4)
    assert sum(p.num_programs for p in decoding.programs(model)) == 1


@each_variant(
    "search",
    {"greedy": decoding.Greedy(), "beam": decoding.BeamSearch(2)},
    on_jax=[],
    on_tensorflow=[],
)
def test_a_search_goes_on_past_its_first_capacity(rng, search):
    """Of 12 sentences none ends by itself: they outgrow 24 steps, and go on to 34.

    A batch of 32 begins with less capacity, and goes on in parts; one of 16 has all.
    """
    model = small(positions="relative")
    randomize(model, rng)
    source_ids = rng.integers(4, V, size=(12, 12)).astype("int32")
    search = dataclasses.replace(search, min_length=30)
    results = []
    for size in (32, 16):
        plan = generation.Plan(size, False)
        with mock.patch.object(generation, "make_plan", return_value=plan) as made:
            results.append(generation.decode(model, source_ids, search))
        made.assert_called_once()
    found, expected = results
    assert found.lengths.min() >= 30
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


@pytest.mark.backends("torch")
def test_generate_works_where_the_model_has_a_length():
    model = small(positions="learned", max_length=20)
    found = model.generate(np.full((1, 18), 5))
    assert found.token_ids.shape == (1, 1, 20)
    with pytest.raises(ValueError, match="no longer than 20, the model.*length 21"):
        model.generate(np.full((1, 21), 5))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(model, policy):
    mixed = models.TranslationTransformer.from_config(small(dtype=policy).get_config())
    assert mixed.dtype_policy.name == policy
    mixed.set_weights(model.get_weights())
    real, expected = TARGET != 0, logits(model)
    np.testing.assert_allclose(
        logits(mixed)[real],
        expected[real],
        atol=0.05 * np.abs(expected).max(),
    )


@pytest.mark.slow_on("tensorflow")
def test_generate_in_mixed_precision():
    model = small(dtype="mixed_bfloat16")
    found = model.generate(SOURCE, max_length=4)
    assert np.isfinite(found.scores).all() and found.scores.dtype == "float32"


@pytest.mark.parametrize(
    ("arguments", "tables"),
    [
        ({}, 1),
        ({"target_vocabulary_size": V + 4}, 2),
        ({"tie_embeddings": False}, 3),
        ({"tie_embeddings": False, "target_vocabulary_size": V + 4}, 3),
    ],
    ids=str,
)
def test_tables_are_shared_as_said(arguments, tables):
    model = small(**arguments)
    sizes = V, model.target_vocabulary_size
    shapes = [tuple(weight.shape) for weight in model.trainable_weights]
    assert (
        sum(D in shape and bool(set(shape) & set(sizes)) for shape in shapes) == tables
    )
    assert model.output.shape[-1] == model.target_vocabulary_size


@pytest.mark.slow_on("tensorflow", "jax")
def test_shared_layers_are_one(rng):
    """Two depths of one block are two equal blocks; the weights are those of one."""
    shared = small(encoder_layers=2, decoder_layers=2, share_layers=True)
    randomize(shared, rng)
    assert shared.count_params() == small().count_params()
    apart = small(encoder_layers=2, decoder_layers=2)
    by_name = {layer.name: layer for layer in shared.layers}
    for layer in apart.layers:
        layer.set_weights(by_name[layer.name.replace("_1", "_0")].get_weights())
    np.testing.assert_allclose(logits(shared), logits(apart), atol=1e-5)
    assert shared.get_config()["share_layers"] is True
    memory = shared.encode(ops.convert_to_tensor(SOURCE, "int32"))
    sentence = shared.initial_state(memory, 4)["sentence"]
    assert len(sentence["memory"]) == 1, "projected once"


@each_variant(
    "positions",
    named("rotary", "alibi", "relative"),
    on_jax=[],
    on_tensorflow=["rotary"],
)
def test_positions_in_attention_go_with_the_order_of_the_source(rng, positions):
    """Without them the encoder does not see it; cross-attention never has them."""
    model = small(positions=positions, attention={"sliding_window": 9})
    without = small(positions=None)
    for each in (model, without):
        randomize(each, rng)
    order = [3, 0, 4, 1, 2]
    memories = [numpy(m.encode(SOURCE[1:])["hidden"]) for m in (model, without)]
    others = [numpy(m.encode(SOURCE[1:, order])["hidden"]) for m in (model, without)]
    np.testing.assert_allclose(others[1], memories[1][:, order], atol=1e-5)
    assert not np.allclose(others[0], memories[0][:, order], atol=1e-3)
    block = next(layer for layer in model.layers if layer.name == "decoder_0")
    cross, own = (
        residual.sublayer
        for residual in (block.cross_residual, block.attention_residual)
    )
    assert (cross.positions, cross.sliding_window) == (None, None)
    assert own.positions is not None and own.sliding_window == 9


@pytest.mark.backends("torch")
def test_an_attention_of_the_decoder_is_that_of_its_self_attention_alone():
    model = small(attention={"scale": 0.3}, decoder_attention={"scale": 0.7})
    scales = {
        (name, kind): residual.sublayer.scale
        for name in ("encoder_0", "decoder_0")
        for kind in ("attention", "cross")
        if (residual := getattr(model.get_layer(name), f"{kind}_residual")) is not None
    }
    assert scales == {
        ("encoder_0", "attention"): 0.3,
        ("decoder_0", "attention"): 0.7,
        ("decoder_0", "cross"): 0.3,
    }


@pytest.mark.slow_on("tensorflow", "jax")
def test_stochastic_depth_rises_to_the_last_block():
    model = small(
        encoder_layers=4, stochastic_depth=0.2, activation_dropout=0.1, dropout=0.0
    )
    by_name = {layer.name: layer for layer in model.layers}
    rates = [by_name[f"encoder_{i}"].stochastic_depth for i in range(4)]
    np.testing.assert_allclose(rates, [0.05, 0.1, 0.15, 0.2])
    assert by_name["decoder_0"].stochastic_depth == 0.2
    assert by_name["decoder_0"].activation_dropout == 0.1
    shared = small(encoder_layers=2, stochastic_depth=0.2, share_layers=True)
    assert shared.get_layer("encoder_0").stochastic_depth == 0.2
    deep = small(encoder_layers=4, stochastic_depth=0.5, dropout=0.0)
    one, other = (numpy(deep(inputs(), training=True)) for _ in range(2))
    assert not np.allclose(one, other)


@pytest.mark.slow_on("tensorflow", "jax")
def test_tables_stay_tied_after_fit_saving_and_loading(tmp_path):
    model = small(dropout=0.0)
    model.compile(
        keras.optimizers.SGD(0.1), training.MaskedCrossentropy(), jit_compile=JIT
    )
    labels = np.pad(TARGET[:, 1:], ((0, 0), (0, 1)))
    history = model.fit(inputs(), labels, epochs=8, batch_size=2, verbose=0)
    assert history.history["loss"][-1] < 0.7 * history.history["loss"][0]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(logits(loaded), logits(model), atol=1e-6)
    assert isinstance(loaded, models.TranslationTransformer)
    assert len(loaded.trainable_weights) == len(model.trainable_weights)
    table = loaded.get_layer("source_embedding").embeddings
    table.assign(np.zeros(table.shape))
    assert not logits(loaded).any(), "the logits come from another table"


@pytest.mark.slow_on("jax")
def test_config_is_the_constructor_s_arguments():
    arguments = {**SMALL, **VARIANTS["learned, untied, two vocabularies"]}
    model = models.TranslationTransformer(**arguments, name="t")
    config = json.loads(json.dumps(model.get_config()))
    assert {**config, **arguments} == config
    again = models.TranslationTransformer.from_config(config)
    assert again.get_config() == model.get_config()
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(logits(again), logits(model))


@pytest.mark.slow_on("jax")
def test_attention_scores_are_those_of_each_block(rng):
    """In their order, called one by one."""
    model = small(encoder_layers=2, decoder_layers=2)
    randomize(model, rng)
    expected = {"encoder": [], "decoder": [], "cross": []}
    embed, masks = model.get_layer("source_embedding"), (SOURCE != 0, TARGET != 0)
    x = embed(SOURCE)
    for name in ("encoder_0", "encoder_1"):
        block = model.get_layer(name)
        x, own = block(x, mask=masks[0], return_attention_scores=True)
        expected["encoder"].append(own)
    memory, x = model.get_layer("encoder_norm")(x), embed(TARGET)
    options = {"source_mask": masks[0], "target_mask": masks[1]}
    for name in ("decoder_0", "decoder_1"):
        block = model.get_layer(name)
        x, own, cross = block(x, memory, **options, return_attention_scores=True)
        expected["decoder"].append(own)
        expected["cross"].append(cross)
    for kind, scores in expected.items():
        found = numpy(model.attention_scores(SOURCE, TARGET, kind))
        wanted = np.stack([numpy(each) for each in scores], axis=1)
        np.testing.assert_allclose(found, wanted, atol=1e-5, err_msg=kind)


@pytest.mark.backends("torch")
def test_attention_scores_are_of_pairs_of_sentences(model):
    message = r"`source_ids` must have the batch size of `target_ids`. .*\(1, 5\)"
    with pytest.raises(ValueError, match=message):
        model.attention_scores(SOURCE[:1], TARGET)


@pytest.mark.backends("torch")
def test_steps_count_the_attention_of_all_layers_and_heads(rng):
    """What each source position got from the tokens of a beam so far."""
    model = small(decoder_layers=2)
    randomize(model, rng)
    state = model.initial_state(model.encode(SOURCE), 4, width=2, coverage=True)
    target = np.array([[1, 6, 4, 8], [1, 7, 3, 5]])
    beams = [target, target[::-1]]
    for index in range(4):
        token_ids = np.stack([ids[:, index] for ids in beams], axis=1)
        _, state = model.step(token_ids, state, index)
    found = numpy(state["beam"]["coverage"])
    for w, ids in enumerate(beams):
        scores = numpy(model.attention_scores(SOURCE, ids))
        expected = scores.mean(axis=(1, 2)).sum(1)  # (B, S)
        np.testing.assert_allclose(found[:, w], expected, atol=1e-5)


def test_attention_scores_show_the_source(model):
    scores = numpy(model.attention_scores(SOURCE, TARGET))
    assert scores.shape == (2, 1, 2, 4, 5)
    real = np.moveaxis(scores, 3, 1)[TARGET != 0]
    np.testing.assert_allclose(real.sum(-1), 1.0, atol=1e-5)
    assert not np.moveaxis(scores, 4, 1)[SOURCE == 0].any()


@pytest.mark.slow_on("torch", "jax")
def test_translates_lines_it_has_not_seen(rng):
    """From lines to lines (worked example J)."""
    make_model = functools.partial(
        models.TranslationTransformer,
        model_dim=64,
        encoder_layers=1,
        decoder_layers=1,
        intermediate_dim=128,
        dropout=0.0,
    )
    translator, sources, targets = learn(make_model, rng, 5, learning_rate=0.003)
    assert share_right(translator(sources), targets) > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source_vocabulary_size": 0}, "`source_vocabulary_size` must.*size=0"),
        ({"target_vocabulary_size": 0}, "`target_vocabulary_size` must.*size=0"),
        ({"model_dim": 0}, "`model_dim` must.*model_dim=0"),
        ({"num_heads": 3}, "`num_heads` must divide.*num_heads=3 for width 8"),
        ({"num_heads": 0}, "`num_heads` must.*num_heads=0"),
        ({"encoder_layers": 0}, "`encoder_layers` must.*encoder_layers=0"),
        ({"decoder_layers": 1.0}, "`decoder_layers` must.*decoder_layers=1.0"),
        ({"intermediate_dim": -2}, "`intermediate_dim` must.*intermediate_dim=-2"),
        ({"dropout": 1.0}, "`dropout` must be in .*dropout=1.0"),
        ({"stochastic_depth": -1.0}, "`stochastic_depth` must be in .*=-1.0"),
        ({"positions": "rotating"}, "`positions` must.*'alibi'.*a layer or None.*ing'"),
        ({"positions": "learned"}, "`max_length` must.*max_length=None"),
        ({"norm": "batch"}, "`norm` must.*'batch'"),
        ({"max_length": 0}, "`max_length` must.*max_length=0"),
        ({"start_id": V}, "`start_id` must.*start_id=11"),
        ({"zero_id": V}, "`zero_id` must be an integer in .*zero_id=11"),
        ({"zero_id": 0}, "`zero_id` must be a token other than padding.*zero_id=0"),
        ({"pad_id": 2}, "`pad_id` must be a token other than the end.*pad_id=2"),
    ],
    ids=str,
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        small(**arguments)


def test_generate_says_what_is_wrong(model):
    with pytest.raises(ValueError, match=r"`source_ids` must have rank 2.*\(5,\)"):
        model.generate(SOURCE[0])
    with pytest.raises(ValueError, match=r"`source_ids` must be in \[0, 11\).*to 11"):
        model.generate(np.array([[3, 11]]))
