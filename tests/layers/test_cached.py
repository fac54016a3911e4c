"""Attention one position at a time equals attention to the whole."""

import functools

import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests.evaluate import evaluated
from tests.layers.test_multi_head_options import BUCKETS, OPTIONS
from tests.layers.weights import randomize
from tests.pairs import each_case, every_pair

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


def built(case, **more):
    arguments = {**case, **more}
    if arguments.get("positions") == "relative":
        arguments["positions"] = layers.RelativeBias(*BUCKETS)
    layer = layers.MultiHeadAttention(4, 6, **arguments)
    layer.build((B, T, D), (B, T, D))
    randomize(layer, np.random.default_rng(0))
    return layer


def steps(layer, x, cache, start=0, mask=None):
    """Takes the vectors `(B, W, T, D)` one after the other; gives the rows."""

    length = cache.key.shape[3] // W

    def step(query, cache, index):
        ancestry = layers.initial_ancestry(B, W, length)
        return layer.step(query, cache, index, mask, ancestry)

    take, rows = evaluated(step, layer), []
    for t in range(x.shape[2]):
        row, cache = take(x[:, :, t], cache, np.int32(start + t))
        rows.append(row)
    return np.stack(rows, axis=2).astype("float32")


def causal_pass(layer, x, mask=None):
    """Gives what the layer's call makes of each beam `(B, W, T, D)`."""
    attend = functools.partial(layer, use_causal_mask=True, value_mask=mask)
    run = evaluated(lambda rows: attend(rows, rows), layer)
    return np.stack([run(x[:, w]).astype("float32") for w in range(x.shape[1])], axis=1)


def beams(rng, length=T):
    return rng.normal(size=(B, W, length, D)).astype("float32")


@each_case(CASES)
def test_steps_equal_one_causal_pass(rng, case):
    """The cache is longer than the sequence."""
    layer = built(case)
    x = beams(rng)
    output = steps(layer, x, layer.initial_cache(B, W, T + 3))
    np.testing.assert_allclose(output, causal_pass(layer, x), atol=1e-5)


@pytest.mark.parametrize("positions", OPTIONS["positions"])
def test_a_full_cache_forgets_what_is_oldest(rng, positions):
    """With room for three positions each sees itself and two before it."""
    x = beams(rng, length=8)
    layer = built({"positions": positions, "num_key_value_heads": 2})
    output = steps(layer, x, layer.initial_cache(B, W, 3))
    windowed = built(
        {"positions": positions, "num_key_value_heads": 2}, sliding_window=3
    )
    np.testing.assert_allclose(output, causal_pass(windowed, x), atol=1e-5)


def test_a_cache_that_wraps_is_windowed_and_masked(rng):
    """The window counts positions, and the mask the slots that they stand in."""
    x, room = beams(rng, length=8), 5
    layer = built({"sliding_window": 3})
    output = steps(layer, x, layer.initial_cache(B, W, room))
    np.testing.assert_allclose(output, causal_pass(layer, x), atol=1e-5)
    mask = ops.convert_to_tensor(np.array([[0, 1, 1, 1, 1]] * B, bool))  # slot of 0, 5
    hidden = steps(layer, x, layer.initial_cache(B, W, room), mask=mask)
    expected = causal_pass(layer, x, np.array([[0, 1, 1, 1, 1, 0, 1, 1]] * B, bool))
    np.testing.assert_allclose(hidden[:, :, 6:], expected[:, :, 6:], atol=1e-5)


@each_case(CASES)
def test_steps_to_a_memory_equal_one_pass(rng, case):
    """Row t of the call is what the beams at position t give."""
    layer = built(case)
    x = beams(rng)
    value = rng.normal(size=(B, S, D)).astype("float32")
    attend = evaluated(functools.partial(layer, value_mask=VALUE_MASK), layer)
    whole = np.stack([attend(x[:, w], value) for w in range(W)], axis=1)

    def step(query, value, index):
        memory = layer.project_memory(value)
        return layer.step_memory(query, memory, VALUE_MASK, index=index)

    take = evaluated(step, layer)
    for t in range(T):
        output = take(x[:, :, t], value, np.int32(t))
        np.testing.assert_allclose(output, whole[:, :, t], atol=1e-5)


def test_a_memory_may_have_keys_of_its_own(rng):
    layer = layers.MultiHeadAttention(4, 6, positions="rotary")
    shapes = (B, T, D), (B, S, D), (B, S, 3)
    layer.build(*shapes)
    x, value, key = (rng.normal(size=shape).astype("float32") for shape in shapes)

    def both_ways(x, value, key):
        memory = layer.project_memory(value, key)
        return layer.step_memory(x[:, 2:3], memory, index=2), layer(x, value, key)

    output, whole = evaluated(both_ways, layer)(x, value, key)
    np.testing.assert_allclose(output, whole[:, 2:3], atol=1e-5)


@pytest.mark.parametrize("positions", OPTIONS["positions"])
def test_a_filled_cache_goes_on_where_steps_would(rng, positions):
    """Prompts of two lengths stand at the right, their padding masked."""
    layer = built({"positions": positions, "num_key_value_heads": 2})
    prompt = rng.normal(size=(B, 3, D)).astype("float32")
    x = beams(rng)
    real = np.array([[1, 1, 1], [0, 1, 1]], bool)
    mask = np.concatenate([real, np.ones((B, T + 1), bool)], axis=1)
    fill = evaluated(lambda *args: layer.fill_cache(*args, width=W), layer)
    cache = fill(prompt, layer.initial_cache(B, W, 3 + T + 1))
    output = steps(layer, x, cache, start=3, mask=ops.convert_to_tensor(mask))
    whole = np.concatenate([np.repeat(prompt[:, None], W, axis=1), x], axis=2)
    expected = causal_pass(layer, whole, mask[:, : 3 + T])
    np.testing.assert_allclose(output, expected[:, :, 3:], atol=1e-5)


@pytest.mark.parametrize("start", [0, 2])
def test_a_cache_is_filled_in_parts(rng, start):
    layer = built({"positions": "rotary"})
    value = rng.normal(size=(B, T, D)).astype("float32")

    def both_ways(value):
        empty = layer.initial_cache(B, W, T)
        parts = layer.fill_cache(value[:, :start], empty, width=W)
        parts = layer.fill_cache(value[:, start:], parts, index=start, width=W)
        return layer.fill_cache(value, empty, width=W), parts

    whole, parts = evaluated(both_ways, layer)(value)
    for name in ("key", "value"):
        np.testing.assert_allclose(
            getattr(parts, name), getattr(whole, name), atol=1e-6
        )


@pytest.mark.parametrize(("index", "length"), [(2, 3), (np.int64(2), 3), (0, 5)])
def test_a_cache_that_ends_before_what_fills_it_is_refused(rng, index, length):
    """XLA would write it earlier, over what the cache holds."""
    layer = built({})
    value = rng.normal(size=(B, length, D)).astype("float32")
    message = f"`cache` must have a place for each .* 4 places, for {length} .*={index}"
    with pytest.raises(ValueError, match=message):
        layer.fill_cache(value, layer.initial_cache(B, W, 4), index=index, width=W)
    layer.fill_cache(value[:, :2], layer.initial_cache(B, W, 4), index=2, width=W)


def test_a_position_may_be_a_tensor(rng):
    layer = built({"positions": "rotary", "sliding_window": 2})

    def both_ways(x, index):
        cache = layer.initial_cache(B, W, T)
        own = layers.initial_ancestry(B, W, T)
        return [
            layer.step(x, cache, position, ancestry=own)[0] for position in (index, 2)
        ]

    left, right = evaluated(both_ways, layer)(beams(rng)[:, :, 0], np.int32(2))
    np.testing.assert_allclose(left, right, atol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_steps_equal_the_pass_in_mixed_precision(rng, policy):
    """The learned bias is float32 in a layer's call too; 257 is none in bfloat16."""
    layer = built({"positions": "relative", "score": "additive"}, dtype=policy)
    layer.positions.table.assign(layer.positions.table.value + 256.0)
    x = beams(rng)
    expected = causal_pass(layer, x)
    output = steps(layer, x, layer.initial_cache(B, W, T))
    np.testing.assert_allclose(output, expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("option", [{"positions": "alibi"}, {"sliding_window": 2}])
def test_a_memory_with_positions_wants_the_index(rng, option):
    layer = built(option)
    value = ops.convert_to_tensor(rng.normal(size=(B, S, D)), "float32")
    memory = layer.project_memory(value)
    with pytest.raises(ValueError, match="`index` must be given.*index=None"):
        layer.step_memory(value[:, :W], memory)


def test_several_beams_want_their_ancestry(rng):
    """Without it a search that reorders them would be scored wrongly in silence."""
    layer, x = built({}), beams(rng)[:, :, 0]
    cache = layer.initial_cache(B, W, T)
    with pytest.raises(ValueError, match="`ancestry` must be given.*with 2 beams"):
        layer.step(x, cache, 0)
    layer.step(x[:, :1], layer.initial_cache(B, 1, T), 0)


def test_a_cache_of_other_beams_is_refused(rng):
    layer = built({})
    cache = layer.initial_cache(1, width=3, max_length=4)
    query = rng.normal(size=(1, 5, D)).astype("float32")
    ancestry = layers.initial_ancestry(1, 5, 4)
    with pytest.raises(ValueError, match="`cache` must be .* 12 slots, with 5 beams"):
        layer.step(query, cache, 0, ancestry=ancestry)
