"""Additive attention against the oracle: functions, long sequences, the layer."""

import functools
import itertools
import re

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.attention import additive
from tests import oracle
from tests.differentiate import values_and_gradients
from tests.evaluate import evaluated, examples, numpy
from tests.layers.largest import largest_tensor
from tests.pairs import each_case, every_pair

B, T, S, H, U, V = 2, 4, 5, 4, 6, 3
MODES = ["graph", "jit"] if keras.backend.backend() == "tensorflow" else ["eager"]
OPTIONS = {
    "mask": [None, "keys", "pairs", "heads"],
    "bias": [None, "heads"],
    "causal": [False, True],
    "window": [None, 2],
    "offset": [0, 1],
    "groups": [1, 2, 4],
    "long": [False, True],
}


def draw(rng, groups=H, mask=None, bias=None):
    """Draws query, key, value and vector, and a mask and bias of the kinds named."""
    shapes = (B, T, H, U), (B, S, groups, U), (B, S, groups, V), (H, U)
    tensors = [rng.normal(size=shape).astype("float32") for shape in shapes]
    masks = {"keys": (B, 1, 1, S), "pairs": (B, T, S), "heads": (B, H, T, S)}
    mask = None if mask is None else rng.random(masks[mask]) < 0.6
    bias = None if bias is None else rng.normal(size=(B, H, T, S)).astype("float32")
    return tensors, mask, bias


def check_case(rng, case, monkeypatch):
    case = dict(case)
    if case.pop("long"):
        # No more than a row of sums, or a column, for two queries or keys at once.
        monkeypatch.setattr(additive, "AT_ONCE", 2 * H * U * S)
    else:
        monkeypatch.undo()
    (query, key, value, vector), mask, bias = draw(
        rng, *(case.pop(name) for name in ("groups", "mask", "bias"))
    )
    options = {"mask": mask, "bias": bias, **case}

    def both(query, key, value, vector):
        output = layers.additive_attention(query, key, value, vector, **options)
        return output, layers.additive_scores(query, key, vector, **options)

    output, scores = evaluated(both)(query, key, value, vector)
    expected_scores = oracle.additive_scores(query, key, vector, **options)
    expected = oracle.weighted_sum(expected_scores, value)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    empty = expected_scores.sum(-1) == 0.0  # (B, H, T)
    assert not output[np.moveaxis(empty, 1, 2)].any(), "not exactly zero"
    assert not scores[empty].any(), "not exactly zero"


@each_case(every_pair(**OPTIONS))
def test_equals_the_oracle(rng, case, monkeypatch):
    check_case(rng, case, monkeypatch)


@pytest.mark.slow
def test_equals_the_oracle_in_the_full_product(rng, monkeypatch):
    for values in itertools.product(*OPTIONS.values()):
        check_case(rng, dict(zip(OPTIONS, values, strict=True)), monkeypatch)


@pytest.mark.parametrize("mode", MODES)
def test_in_blocks_it_has_the_gradients_of_all_at_once(rng, monkeypatch, mode):
    (query, key, value, vector), mask, bias = draw(rng, 2, "heads", "heads")

    def attend(*tensors):
        options = {"mask": mask, "bias": bias, "causal": True, "offset": 1}
        return layers.additive_attention(*tensors, **options)

    arrays = [query, key, value, vector]
    at_once = values_and_gradients(attend, arrays, mode)
    monkeypatch.setattr(additive, "AT_ONCE", 2 * H * U * S)
    in_blocks = values_and_gradients(attend, arrays, mode)
    np.testing.assert_allclose(in_blocks[0], at_once[0], atol=1e-6)
    for gradient, expected in zip(in_blocks[1], at_once[1], strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-5)


@pytest.mark.backends("jax", "torch")  # where all shapes are known
def test_long_sequences_never_have_the_sums_of_all_pairs(rng, monkeypatch):
    """Neither forward nor backward; all at once they are seen to have them."""
    length, units, most = 24, 8, 2**10
    query, key, value = rng.normal(size=(3, 1, length, 1, units)).astype("float32")
    arrays = query, key, value, rng.normal(size=(1, units)).astype("float32")
    assert largest_tensor(layers.additive_attention, arrays) >= length**2 * units
    monkeypatch.setattr(additive, "AT_ONCE", most)
    assert largest_tensor(layers.additive_attention, arrays) <= most


@examples(4)
@given(seed=st.integers(0, 99), position=st.integers(0, S - 1))
def test_no_future_key_affects_a_row(seed, position):
    (query, key, value, vector), _, _ = draw(np.random.default_rng(seed))
    before = numpy(layers.additive_attention(query, key, value, vector, causal=True))
    key[:, position:] += 3.0
    value[:, position:] -= 5.0
    after = numpy(layers.additive_attention(query, key, value, vector, causal=True))
    np.testing.assert_allclose(after[:, :position], before[:, :position], atol=1e-6)
    if position < T:
        assert not np.allclose(after[:, position:], before[:, position:])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keeps_the_dtype_and_empty_rows_zero(rng, dtype):
    tensors, mask, _ = draw(rng, mask="heads")
    mask[0, 1, 2] = False
    tensors = [ops.cast(x, dtype) for x in tensors]
    output = layers.additive_attention(*tensors, mask=mask)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert not numpy(output)[0, 2, 1].any()
    assert np.isfinite(numpy(output)).all()


def test_has_the_worked_numbers():
    """Identity projections and a vector of ones."""
    query, key = np.array([[1.0, 0.0]]), np.eye(2)
    layer = layers.AdditiveAttention(2)
    layer.build((1, 1, 2), (1, 2, 2))
    layer.query_dense.kernel.assign(np.eye(2))
    layer.key_dense.kernel.assign(np.eye(2))
    layer.vector.assign(np.ones(2))
    projected = (
        layer.query_dense(query)[None, :, None],
        layer.key_dense(key)[None, :, None],
    )
    scores = additive._scores_at_once(*projected, layer.vector[None])
    np.testing.assert_allclose(
        numpy(scores)[0, 0, 0], [0.96402758, 1.52318831], rtol=1e-6
    )
    _, weights = layer(query[None], key[None], return_attention_scores=True)
    weights = numpy(weights)[0, 0]
    np.testing.assert_allclose(weights, [0.36374167, 0.63625833], rtol=1e-6)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("use_bias", [False, True])
def test_layer_equals_the_oracle(rng, rank, use_bias):
    query = rng.normal(size=(B, T, 2, 7)).astype("float32")
    key = rng.normal(size=(B, S, 2, 5)).astype("float32")
    value = rng.normal(size=(B, S, 2, V)).astype("float32")
    if rank == 3:
        query, key, value = (x[:, :, 0] for x in (query, key, value))
    query_mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
    value_mask = np.array([[1, 1, 0, 1, 0], [0, 0, 1, 1, 1]], bool)
    layer = layers.AdditiveAttention(U, dropout=0.5, use_bias=use_bias)
    layer.build(query.shape, value.shape, key.shape)
    for weight in layer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape))
    attend = functools.partial(
        layer,
        query_mask=query_mask,
        value_mask=value_mask,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    output, scores = evaluated(attend, layer)(query, value, key)
    if rank == 3:
        query, key, value = (x[:, :, None] for x in (query, key, value))
    dense = {
        weight.path.partition("/")[2]: numpy(weight.value)
        for weight in layer.trainable_weights
    }
    expected_scores = oracle.additive_scores(
        query @ dense["query/kernel"] + dense.get("query/bias", 0.0),
        key @ dense["key/kernel"],
        np.stack([dense["vector"]] * query.shape[2]),
        mask=query_mask[:, :, None] & value_mask[:, None],
        causal=True,
    )
    expected = oracle.weighted_sum(expected_scores, value)
    if rank == 3:
        expected, expected_scores = expected[:, :, 0], expected_scores[:, 0]
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.slow_on("jax")
def test_layer_drops_while_training_and_returns_the_whole_scores(rng):
    x = rng.normal(size=(2, 6, 8)).astype("float32")
    layer = layers.AdditiveAttention(U, dropout=0.5, seed=3)
    quiet, scores = layer(x, x, return_attention_scores=True)
    dropped, training_scores = layer(x, x, return_attention_scores=True, training=True)
    np.testing.assert_allclose(numpy(training_scores), numpy(scores), atol=1e-6)
    assert not np.allclose(numpy(dropped), numpy(quiet))
    again = layers.AdditiveAttention(U, dropout=0.5, seed=3)
    again.build(x.shape, x.shape)
    again.set_weights(layer.get_weights()[:3])
    first = again(x, x, training=True)
    np.testing.assert_allclose(numpy(first), numpy(dropped), atol=1e-6)


@pytest.mark.slow_on("jax")
def test_lengths_may_be_unknown_in_a_functional_model(rng):
    """Then the sums are made all at once."""
    inputs = [keras.Input((None, U)), keras.Input((None, V))]
    layer = layers.AdditiveAttention(U)
    model = keras.Model(inputs, layer(*inputs, use_causal_mask=True))
    query = rng.normal(size=(B, T, U)).astype("float32")
    value = rng.normal(size=(B, S, V)).astype("float32")
    output = model.predict([query, value], verbose=0)
    np.testing.assert_allclose(
        output, numpy(layer(query, value, use_causal_mask=True)), atol=1e-6
    )


def test_says_what_does_not_fit(rng):
    (query, key, value, _), _, _ = draw(rng)
    vector = np.ones((H, U + 1), "float32")
    message = re.escape(f"vector.shape={vector.shape}, query.shape={query.shape}")
    with pytest.raises(ValueError, match=f"`vector` must have the heads.*{message}"):
        layers.additive_attention(query, key, value, vector)
    with pytest.raises(ValueError, match="`units` must be a positive.*units=0"):
        layers.AdditiveAttention(0)
    with pytest.raises(ValueError, match="`dropout` must be in .*dropout=1.0"):
        layers.AdditiveAttention(4, dropout=1.0)
