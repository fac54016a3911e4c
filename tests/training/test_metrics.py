"""Metrics weighted by tokens, against a float64 loop over all batches at once."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_seqattn.backend.compile import CompiledFunction
from keras_seqattn.training import (
    MaskedAccuracy,
    MaskedCrossentropy,
    Perplexity,
    TokenCrossentropy,
)
from tests.evaluate import examples
from tests.training.numerics import reference

V = 7
METRICS = (TokenCrossentropy, Perplexity, MaskedAccuracy)


def batches(seed, pad_id=0, weighted=False):
    """Three batches with unlike shares of padding."""
    rng = np.random.default_rng(seed)
    for shape, share in (((2, 5), 0.9), ((2, 5), 0.2), ((1, 3), 0.0)):
        labels = rng.integers(0, V, shape).astype("int32")
        labels = np.where(rng.random(shape) < share, labels, pad_id).astype("int32")
        logits = rng.normal(0, 2, (*shape, V)).astype("float32")
        yield labels, logits, rng.random(shape).astype("float32") if weighted else None


def expected(seen, pad_id):
    """The crossentropy, perplexity and accuracy of all batches."""
    loss_sum = weight_sum = hits = 0.0
    for labels, logits, weights in seen:
        loss, weight, _ = reference(labels, logits, weights, pad_id=pad_id)
        loss_sum, weight_sum = loss_sum + loss, weight_sum + weight
        right = (logits.argmax(-1) == labels) & (labels != pad_id)
        hits += np.sum(right * (1.0 if weights is None else weights))
    mean = loss_sum / weight_sum if weight_sum else 0.0
    return mean, np.exp(mean), hits / weight_sum if weight_sum else 0.0


@examples(10)
@given(
    seed=st.integers(0, 99),
    pad_id=st.sampled_from([0, 4, -1]),
    weighted=st.booleans(),
)
@pytest.mark.slow_on("jax")
def test_each_token_counts_once_over_all_batches(seed, pad_id, weighted):
    seen = list(batches(seed, pad_id, weighted))
    results = []
    for metric in (cls(pad_id=pad_id) for cls in METRICS):
        for labels, logits, weights in seen:
            metric.update_state(labels, logits, sample_weight=weights)
        results.append(float(metric.result()))
    np.testing.assert_allclose(results, expected(seen, pad_id), rtol=1e-5)


@pytest.mark.parametrize("cls", METRICS)
def test_a_metric_without_a_name_gets_one(cls):
    assert cls(name=None).name


def test_a_row_weight_weighs_each_of_its_tokens():
    labels, logits, _ = next(batches(1))
    rows = np.array([2.0, 0.5], "float32")
    tokens = np.repeat(rows[:, None], 5, axis=1)
    values = expected([(labels, logits, tokens)], pad_id=0)
    for cls, value in zip(METRICS, values, strict=True):
        one, other = cls(), cls()
        one.update_state(labels, logits, rows)
        other.update_state(labels, logits, tokens)
        assert float(one.result()) == float(other.result())
        np.testing.assert_allclose(float(one.result()), value, rtol=1e-5)


@pytest.mark.parametrize(
    ("cls", "empty"), list(zip(METRICS, (0.0, 1.0, 0.0), strict=True))
)
@pytest.mark.slow_on("jax")
def test_padding_alone_counts_for_nothing(cls, empty):
    metric = cls()
    assert float(metric.result()) == empty
    metric.update_state(np.zeros((2, 3), "int32"), np.ones((2, 3, V), "float32"))
    assert float(metric.result()) == empty
    metric.update_state(np.ones((1, 1), "int32"), np.eye(V)[None, 1:2] * 9)
    assert float(metric.result()) != empty
    metric.reset_state()
    assert float(metric.result()) == empty


def test_of_equal_logits_one_token_is_chosen():
    found = []
    for label in range(4):
        metric = MaskedAccuracy(pad_id=-1)
        metric.update_state(np.full((1, 3), label, "int32"), np.zeros((1, 3, 4)))
        found.append(float(metric.result()))
    assert sorted(found) == [0.0, 0.0, 0.0, 1.0]


@pytest.mark.backends("tensorflow", "jax")
def test_in_a_compiled_program_a_label_out_of_range_is_wrong():
    metric = MaskedAccuracy()
    update = CompiledFunction(metric.stateless_update_state)
    variables = [variable.value for variable in metric.variables]
    logits = np.eye(V, dtype="float32")[[[1, V - 1, 0, 0]]]
    labels = np.array([[1, V, -7, 0]], "int32")  # the last is padding
    variables = update(variables, labels, logits)
    assert float(metric.stateless_result(variables)) == pytest.approx(1 / 3)


def test_perplexity_beyond_float32_is_infinite():
    logits = np.zeros((1, 1, V), "float32")
    logits[..., 0] = 100.0
    metric = Perplexity()
    metric.update_state(np.ones((1, 1), "int32"), logits)
    assert float(metric.result()) == float("inf")


def test_config_names_and_dtype():
    for cls, name in zip(
        METRICS, ("token_crossentropy", "perplexity", "accuracy"), strict=True
    ):
        assert cls().name == name
        metric = cls(pad_id=3, name="x", dtype="float16")
        config = {"pad_id": 3, "name": "x", "dtype": "float16"}
        assert metric.get_config() == config
        assert cls.from_config(config).get_config() == config
        assert {v.dtype for v in metric.variables} == {"float16"}


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_in_fit_beside_a_mask_and_weights(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(V, 4, mask_zero=True)(ids)
    model = keras.Model(ids, keras.layers.Dense(V)(hidden))
    model.compile(
        "sgd",
        MaskedCrossentropy(),
        metrics=[TokenCrossentropy(), Perplexity()],
        weighted_metrics=[MaskedAccuracy()],
    )
    labels = np.array([[1, 2, 0], [3, 4, 5], [6, 0, 0]], "int32")
    rows = np.array([1.0, 2.0, 3.0], "float32")
    options = {"batch_size": 2, "sample_weight": rows, "return_dict": True}
    logs = model.evaluate(labels, labels, verbose=0, **options)
    logits = model.predict(labels, verbose=0)
    tokens = np.repeat(rows[:, None], 3, axis=1)
    mean, perplexity, _ = expected([(labels, logits, None)], 0)
    _, _, accuracy = expected([(labels, logits, tokens)], 0)
    np.testing.assert_allclose(
        [logs["token_crossentropy"], logs["perplexity"], logs["accuracy"]],
        [mean, perplexity, accuracy],
        rtol=1e-5 if policy == "float32" else 1e-2,
    )
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(labels, labels, verbose=0, **options) == logs


def test_bad_input():
    with pytest.raises(ValueError, match=r"`pad_id` must be an integer.*pad_id='0'"):
        TokenCrossentropy(pad_id="0")
    with pytest.raises(ValueError, match=r"`y_true` must have shape.*\(2, 3\)"):
        MaskedAccuracy().update_state(np.ones((2, 3), "int32"), np.zeros((2, 2, V)))
    with pytest.raises(ValueError, match=r"`y_true` must hold token ids.*with 7"):
        Perplexity().update_state(np.full((1, 1), V), np.zeros((1, 1, V)))
