"""The chunked kernel: its numbers, its gradients, what it skips and what it holds."""

import functools
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.attention.kernels.chunked.kernel import chunked_attention
from keras_seqattn.layers.attention.kernels.chunked.pairs import Q_BLOCK, BlockPairs
from tests import oracle
from tests.differentiate import upstream_gradient, values_and_gradients
from tests.evaluate import examples, numpy
from tests.layers.largest import largest_tensor
from tests.pairs import each_case, each_variant, every_pair, named

B, T, S, H, K, V = 2, 7, 9, 4, 6, 3
OPTIONS = {
    "mask": [None, "keys", "heads"],
    "bias": [None, "keys", "heads", "distances", "shared distances"],
    "causal": [False, True],
    "window": [None, 3],
    "offset": [0, 2],
    "groups": [2, 4],
    "block_length": [3, 16],
}
EVERY_OPTION = {
    "mask": [None, "keys", "queries", "pairs", "heads"],
    "bias": [
        *(None, "keys", "shared", "heads", "row"),
        *("distances", "shared distances"),
    ],
    "causal": [False, True],
    "window": [None, 1, 3, 20],
    "offset": [0, 2, -3],
    "groups": [1, 2, 4],
    "block_length": [1, 3, 4, 16],
}
# What there is to compile with, beside what every case already does.
MODES = ["graph", "jit"] if keras.backend.backend() == "tensorflow" else ["eager"]
MASKS = {
    "keys": (B, 1, 1, S),
    "queries": (B, 1, T, 1),
    "pairs": (B, 1, T, S),
    "heads": (1, H, T, S),
}
BIASES = {
    "keys": (B, 1, 1, S),
    "shared": (1, 1, T, S),
    "heads": (B, H, T, S),
    "row": (S,),
    "distances": (H, T + S - 1),
    "shared distances": (1, T + S - 1),
}


def draw(rng, groups=H, mask=None, bias=None):
    """Draws query, key, value, and the mask and bias of the kinds named."""
    query = rng.normal(size=(B, T, H, K)).astype("float32")
    key = rng.normal(size=(B, S, groups, K)).astype("float32")
    value = rng.normal(size=(B, S, groups, V)).astype("float32")
    mask = None if mask is None else rng.random(MASKS[mask]) < 0.6
    bias = None if bias is None else rng.normal(size=BIASES[bias]).astype("float32")
    return query, key, value, mask, bias


def check_case(rng, case, mode="eager"):
    case = dict(case)
    block_length = case.pop("block_length")
    by_distance = case["bias"] in ("distances", "shared distances")
    query, key, value, mask, bias = draw(
        rng, *(case.pop(name) for name in ("groups", "mask", "bias"))
    )

    def attend(query, key, value, bias=None):
        tensor = None if mask is None else ops.convert_to_tensor(mask)
        bias = layers.DistanceBias(bias, T) if by_distance else bias
        options = {"mask": tensor, "bias": bias, "block_length": block_length, **case}
        return chunked_attention(query, key, value, **options)

    arrays = [x for x in (query, key, value, bias) if x is not None]
    output, gradients = values_and_gradients(attend, arrays, mode)
    if by_distance:
        places = np.arange(S) - np.arange(T)[:, None] + T - 1  # (T, S)
        bias = bias[None][..., places]  # (1, H, T, S)
    options = {"mask": mask, "bias": bias, "scale": 1.0, **case}
    expected, weights = oracle.attention(query, key, value, **options)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    empty = np.moveaxis(weights.sum(-1) == 0.0, 1, 2)  # (B, T, H)
    assert not output[empty].any(), "not exactly zero"
    assert not gradients[0][empty].any(), "not exactly zero"
    upstream = upstream_gradient(output.shape)
    expected = oracle.attention_gradients(query, key, value, upstream, **options)
    if by_distance:
        *expected, of_pairs = expected
        of_distance = [of_pairs[0][:, places == d].sum(-1) for d in range(T + S - 1)]
        expected = *expected, np.stack(of_distance, axis=1)
    for gradient, expected_gradient in zip(gradients, expected, strict=False):
        np.testing.assert_allclose(gradient, expected_gradient, atol=2e-5)


@each_case(every_pair(**OPTIONS))
def test_equals_the_oracle_forward_and_backward(rng, case):
    check_case(rng, case)


@pytest.mark.parametrize("mode", MODES)
def test_equals_the_oracle_compiled(rng, mode):
    """With all options at once, and with none."""
    case = {"mask": "heads", "bias": "distances", "causal": True, "window": 3}
    check_case(rng, {**case, "offset": 2, "groups": 2, "block_length": 3}, mode)
    case = dict.fromkeys(("mask", "bias", "window")) | {"causal": False, "offset": 0}
    check_case(rng, {**case, "groups": 4, "block_length": 3}, mode)


@pytest.mark.slow
def test_equals_the_oracle_in_the_full_product(rng):
    for values in itertools.product(*EVERY_OPTION.values()):
        check_case(rng, dict(zip(EVERY_OPTION, values, strict=True)))


@examples(200)
@given(
    target=st.integers(1, 40),
    source=st.integers(1, 40),
    causal=st.booleans(),
    window=st.none() | st.integers(1, 50),
    offset=st.integers(-45, 45),
    block_length=st.integers(1, 45),
)
def test_visits_the_blocks_that_hold_a_visible_pair_and_no_others(
    target, source, causal, window, offset, block_length
):
    query, key = (ops.zeros((1, length, 1, 1)) for length in (target, source))
    blocks = BlockPairs(
        query,
        key,
        causal=causal,
        window=window,
        offset=offset,
        block_length=block_length,
    )
    # The queries that fill up the last block see keys like any other.
    height, width = blocks.q.length * blocks.q.count, blocks.kv.length * blocks.kv.count
    visible = np.array(
        [
            [oracle.may_attend(i, j, causal, window, offset) for j in range(width)]
            for i in range(height)
        ]
    )
    tiles = visible.reshape(
        blocks.q.count, blocks.q.length, blocks.kv.count, blocks.kv.length
    ).any((1, 3))
    for row in range(blocks.q.count):
        visited = np.zeros(blocks.kv.count, bool)
        visited[slice(*map(int, blocks.kv_range(row)))] = True
        np.testing.assert_array_equal(visited, tiles[row])
    for column in range(blocks.kv.count):
        visited = np.zeros(blocks.q.count, bool)
        visited[slice(*map(int, blocks.q_range(column)))] = True
        np.testing.assert_array_equal(visited, tiles[:, column])


def test_work_in_a_window_grows_with_the_length_alone():
    def visited(length):
        x = ops.zeros((1, length, 1, 1))
        blocks = BlockPairs(x, x, window=256, causal=True)
        edges = [blocks.kv_range(row) for row in range(blocks.q.count)]
        pairs = blocks.q.length * blocks.kv.length
        return pairs * sum(int(end) - int(first) for first, end in edges)

    assert visited(4096) <= 3 * 256 * 4096
    assert visited(16384) <= 4.2 * visited(4096)


@pytest.mark.parametrize("causal", [False, True])
def test_a_block_out_of_sight_is_not_read(rng, causal):
    """A weight of zero times NaN would be NaN: those keys meet no query at all."""
    length = 24
    query, key, value = rng.normal(size=(3, 1, length, 1, 4)).astype("float32")
    key[:, :8], value[:, :8] = np.nan, np.nan

    def attend(query, key, value):
        options = {"causal": causal, "window": 4, "block_length": 4}
        # Those of keys 12 to 23, and nearer than 4: no block before 8 is seen.
        return chunked_attention(query[:, 12:], key, value, offset=12, **options)

    output, gradients = values_and_gradients(attend, [query, key, value])
    assert np.isfinite(output).all()
    assert np.isfinite(gradients[0]).all()
    for gradient in gradients[1:]:
        assert np.isfinite(gradient[:, 8:]).all()
        assert not np.nan_to_num(gradient[:, :8]).any()


def test_never_has_all_scores_nor_all_of_a_mask_or_bias(rng):
    """Neither forward nor backward; the explicit kernel is seen to have them."""
    length, block = 96, 8
    tensors = rng.normal(size=(3, 1, length, 1, 4)).astype("float32")
    mask = rng.random((1, 1, 1, length)) < 0.8

    def attend(*tensors, kernel):
        options = {"mask": ops.convert_to_tensor(mask), "causal": True, "window": 50}
        if kernel == "explicit":
            options["implementation"] = kernel
            return layers.dot_product_attention(*tensors, **options)
        return chunked_attention(*tensors, block_length=block, **options)

    largest = {
        kernel: largest_tensor(functools.partial(attend, kernel=kernel), tensors)
        for kernel in ("explicit", "chunked")
    }
    assert largest["explicit"] >= length * length
    assert largest["chunked"] <= length * block


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("positions", ["relative", "alibi"])
def test_never_has_the_bias_of_all_pairs(rng, positions):
    length = 2 * Q_BLOCK
    layer = layers.MultiHeadAttention(
        1, 4, positions=positions, implementation="chunked"
    )
    x = rng.normal(size=(1, length, 4)).astype("float32")
    layer(x, x)
    largest = largest_tensor(lambda x: layer(x, x, use_causal_mask=True), [x])
    assert largest < length * length


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_sums_are_kept_in_float32(rng, dtype):
    """Weights not yet divided, times values of 300, would overflow float16."""
    query, key, value, mask, _ = draw(rng, mask="keys")
    value = 300.0 + value
    query, key = query * 0.01, np.repeat(key, 40, axis=1)
    value, mask = np.repeat(value, 40, axis=1), np.repeat(mask, 40, axis=3)
    mask[0] = False

    def attend(query, key, value):
        tensor = ops.convert_to_tensor(mask)
        return chunked_attention(query, key, value, mask=tensor)

    arrays = [query, key, value]
    output, gradients = values_and_gradients(attend, arrays, dtype=dtype)
    expected, _ = oracle.attention(*arrays, mask=mask, scale=1.0)
    np.testing.assert_allclose(output, expected, rtol=2e-2)
    assert not output[0].any() and not gradients[0][0].any()
    assert all(np.isfinite(x).all() for x in gradients)


def test_dropout_is_drawn_again_in_the_backward_pass():
    """Weights are uniform and values one-hot, so the output shows what was dropped."""
    length, rate = 12, 0.25
    query, key = np.zeros((2, 1, length, 2, 4), "float32")
    value = np.broadcast_to(np.eye(length, dtype="float32")[:, None], (length, 2, 12))

    def attend(query, key, value):
        options = {"dropout": rate, "seed": 3, "block_length": 5}
        return chunked_attention(query, key, value, **options)

    output, gradients = values_and_gradients(attend, [query, key, value[None]])
    weights = np.moveaxis(output, 1, 2) * length  # (1, H, T, S)
    dropped = weights == 0.0
    np.testing.assert_allclose(weights[~dropped], 1 / (1 - rate), rtol=1e-5)
    assert 0.1 < dropped.mean() < 0.4
    assert not np.array_equal(dropped[0, 0], dropped[0, 1])
    blocks = dropped[0, 0].reshape(3, 4, 3, 4).swapaxes(1, 2).reshape(9, 16)
    assert len(np.unique(blocks, axis=0)) == 9, "each block has its own draw"
    upstream = np.moveaxis(upstream_gradient(output.shape), 1, 2)
    d_value = np.einsum("bhts,bhtv->bshv", weights / length, upstream)
    np.testing.assert_allclose(gradients[2], d_value, atol=1e-5)


@each_variant("window", named(None, 4), on_jax=["4"])
def test_gradients_with_dropout_are_those_of_the_weights_it_leaves(rng, window):
    """Values are one-hot, so the output shows these weights."""
    query = rng.normal(size=(1, T, 2, K)).astype("float32")
    key = rng.normal(size=(1, S, 1, K)).astype("float32")
    value = np.eye(S, dtype="float32")[None, :, None]
    bias = rng.normal(size=(1, 2, T, S)).astype("float32")

    def attend(query, key, value, bias):
        options = {"dropout": 0.4, "seed": 3, "block_length": 4, "window": window}
        return chunked_attention(query, key, value, bias=bias, **options)

    output, gradients = values_and_gradients(attend, [query, key, value, bias])
    left = np.moveaxis(output, 2, 1)  # (1, H, T, S)
    options = {"bias": bias, "scale": 1.0, "window": window}
    weights = oracle.attention_scores(query, key, **options)
    factors = np.divide(left, weights, out=0.0 * weights, where=weights > 0.0)
    assert {round(x, 3) for x in np.unique(factors)} == {0.0, round(1 / 0.6, 3)}
    upstream = np.moveaxis(upstream_gradient(output.shape), 2, 1)
    d_weights = factors * upstream
    d_scores = weights * (d_weights - np.sum(weights * d_weights, -1, keepdims=True))
    expected = (
        np.einsum("bhts,bsgk->bthk", d_scores, key),
        np.einsum("bhts,bthk->bsk", d_scores, query)[:, :, None],
        np.einsum("bhts,bhtv->bsv", left, upstream)[:, :, None],
        d_scores,
    )
    for gradient, right in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, right, atol=1e-5)


def test_dropout_has_the_mean_of_none_and_another_draw_each_time(rng):
    query, key = rng.normal(size=(2, 1, 3, 1, 4)).astype("float32")
    key = np.repeat(key, 1000, axis=1)
    options = {"dropout": 0.5, "implementation": "chunked"}
    seed = keras.random.SeedGenerator(1)
    first, second = (
        numpy(layers.dot_product_attention(query, key, key, seed=seed, **options))
        for _ in range(2)
    )
    expected, _ = oracle.attention(query, key, key)
    np.testing.assert_allclose(first, expected, atol=0.2)
    assert not np.allclose(first, second)
    again = numpy(layers.dot_product_attention(query, key, key, seed=7, **options))
    same = numpy(layers.dot_product_attention(query, key, key, seed=7, **options))
    np.testing.assert_array_equal(again, same)


def test_lengths_may_be_unknown_and_masks_of_unknown_shape(rng):
    inputs = [
        keras.Input((None, K)),
        keras.Input((None, K)),
        keras.Input((None, None), dtype="bool"),
    ]
    layer = layers.ScaledDotProductAttention(implementation="chunked")
    query, value, mask = inputs
    outputs = layer(query, value, attention_mask=mask, use_causal_mask=True)
    model = keras.Model(inputs, outputs)
    query, value = (rng.normal(size=(B, x, K)).astype("float32") for x in (T, S))
    for shape in ((B, T, S), (B, 1, S)):
        mask = rng.random(shape) < 0.6
        output = model.predict([query, value, mask], verbose=0)
        expected, _ = oracle.attention(
            *(x[:, :, None] for x in (query, value, value)), mask=mask, causal=True
        )
        np.testing.assert_allclose(output, expected[:, :, 0], atol=1e-5)


@pytest.mark.backends("tensorflow")
def test_a_length_that_only_the_running_program_knows(rng):
    import tensorflow as tf

    def attend(query, key, mask):
        with tf.GradientTape() as tape:
            tape.watch((query, key))
            output = chunked_attention(
                query, key, key, mask=mask, causal=True, block_length=3
            )
            total = tf.reduce_sum(output**2)
        return output, *tape.gradient(total, (query, key))

    vectors = tf.TensorSpec((B, None, H, K))
    specs = vectors, vectors, tf.TensorSpec((B, 1, 1, None), "bool")
    program = tf.function(attend, input_signature=specs)
    query, key = (
        tf.constant(rng.normal(size=(B, length, H, K)), "float32") for length in (T, S)
    )
    given = query, key, tf.constant(rng.random((B, 1, 1, S)) < 0.6)
    for found, expected in zip(program(*given), attend(*given), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
