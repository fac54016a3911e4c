"""Attention one position at a time equals attention to the whole."""

import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests.layers.test_multi_head_options import BUCKETS, OPTIONS, numpy
from tests.layers.weights import randomize
from tests.pairs import case_id, every_pair

B, W, T, S, D = 2, 2, 4, 5, 8
VALUE_MASK = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 1, 1]], bool)

CASES = every_pair(
    score=OPTIONS["score"],
    positions=OPTIONS["positions"],
    num_key_value_heads=[4, 2],
    sliding_window=[None, 2],
    qk_norm=[False, True],
    use_gate=[False, True],
    value_dim=[None, 5],
)
each_case = pytest.mark.parametrize("case", CASES, ids=case_id)


def built(case, shape=(B, T, D), **more):
    arguments = {**case, **more}
    if arguments.get("positions") == "relative":
        arguments["positions"] = layers.RelativeBias(*BUCKETS)
    layer = layers.MultiHeadAttention(4, 6, **arguments)
    layer.build(shape, shape)
    randomize(layer, np.random.default_rng(0))
    return layer


def steps(layer, x, cache, start=0, mask=None):
    """Takes the vectors `(B, W, T, D)` one after the other; gives the rows."""
    rows = []
    for t in range(x.shape[2]):
        query, index = (ops.convert_to_tensor(y) for y in (x[:, :, t], start + t))
        row, cache = layer.step(query, cache, index, mask)
        rows.append(numpy(row))
    return np.stack(rows, axis=2)


def beams(rng, length=T):
    return rng.normal(size=(B, W, length, D)).astype("float32")


@each_case
def test_steps_equal_one_causal_pass(rng, case):
    """Two beams of a sentence are two rows of the pass; the cache is longer."""
    layer = built(case)
    x = beams(rng)
    rows = x.reshape(B * W, T, D)
    expected = numpy(layer(rows, rows, use_causal_mask=True)).reshape(x.shape)
    output = steps(layer, x, layer.initial_cache(B, W, T + 3))
    np.testing.assert_allclose(output, expected, atol=1e-5)


@each_case
def test_steps_to_a_memory_equal_one_pass(rng, case):
    """Row t of the call is what the beams at position t give."""
    layer = built(case)
    x = beams(rng)
    value = rng.normal(size=(B, S, D)).astype("float32")
    memory = layer.project_memory(ops.convert_to_tensor(value))
    whole = [numpy(layer(x[:, w], value, value_mask=VALUE_MASK)) for w in range(W)]
    for t in range(T):
        query, index = (ops.convert_to_tensor(y) for y in (x[:, :, t], t))
        output = numpy(layer.step_memory(query, memory, VALUE_MASK, index=index))
        for beam in range(W):
            np.testing.assert_allclose(output[:, beam], whole[beam][:, t], atol=1e-5)


@pytest.mark.parametrize("positions", OPTIONS["positions"])
def test_a_filled_cache_goes_on_where_steps_would(rng, positions):
    """Prompts of two lengths stand at the right, their padding masked."""
    layer = built({"positions": positions, "num_key_value_heads": 2})
    prompt = rng.normal(size=(B, 3, D)).astype("float32")
    x = beams(rng)
    real = np.array([[1, 1, 1], [0, 1, 1]], bool)
    mask = np.concatenate([real, np.ones((B, T + 1), bool)], axis=1)
    cache = layer.fill_cache(
        ops.convert_to_tensor(prompt), layer.initial_cache(B, W, 3 + T + 1)
    )
    output = steps(layer, x, cache, start=3, mask=ops.convert_to_tensor(mask))
    for beam in range(W):
        whole = np.concatenate([prompt, x[:, beam]], axis=1)
        expected = layer(
            whole, whole, value_mask=mask[:, : 3 + T], use_causal_mask=True
        )
        np.testing.assert_allclose(output[:, beam], numpy(expected)[:, 3:], atol=1e-5)


@pytest.mark.parametrize("start", [0, 2])
def test_a_cache_is_filled_in_parts(rng, start):
    layer = built({"positions": "rotary"})
    value = ops.convert_to_tensor(rng.normal(size=(B, T, D)), "float32")
    whole = layer.fill_cache(value, layer.initial_cache(B, W, T))
    parts = layer.fill_cache(value[:, :start], layer.initial_cache(B, W, T))
    parts = layer.fill_cache(value[:, start:], parts, index=start)
    for name in ("key", "value"):
        np.testing.assert_allclose(numpy(parts[name]), numpy(whole[name]), atol=1e-6)


def test_a_position_may_be_a_tensor(rng):
    layer = built({"positions": "rotary", "sliding_window": 2})
    x = ops.convert_to_tensor(beams(rng)[:, :, 0])
    cache = layer.initial_cache(B, W, T)
    index = ops.convert_to_tensor(2, "int32")
    (left, _), (right, _) = layer.step(x, cache, index), layer.step(x, cache, 2)
    np.testing.assert_array_equal(numpy(left), numpy(right))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_steps_equal_the_pass_in_mixed_precision(rng, policy):
    """The learned bias is float32 in a layer's call too; 257 is none in bfloat16."""
    layer = built({"positions": "relative", "score": "additive"}, dtype=policy)
    layer.positions.table.assign(layer.positions.table.value + 256.0)
    x = beams(rng)
    rows = x.reshape(B * W, T, D)
    expected = numpy(layer(rows, rows, use_causal_mask=True)).reshape(x.shape)
    output = steps(layer, x, layer.initial_cache(B, W, T))
    np.testing.assert_allclose(output, expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("option", [{"positions": "alibi"}, {"sliding_window": 2}])
def test_a_memory_with_positions_wants_the_index(rng, option):
    layer = built(option)
    value = ops.convert_to_tensor(rng.normal(size=(B, S, D)), "float32")
    memory = layer.project_memory(value)
    with pytest.raises(ValueError, match="`index` must be given.*index=None"):
        layer.step_memory(value[:, :W], memory)
