"""Positions inside attention, against hand-computed values and their formulas."""

import math

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from tests import oracle
from tests.evaluate import JIT, evaluated, examples, numpy
from tests.layers.multi_head_oracle import alibi_slopes, rotated, t5_bucket


def heads(rng, length=5, num_heads=4, key_dim=6):
    return rng.normal(size=(2, length, num_heads, key_dim)).astype("float32")


def built(layer, num_heads=4, key_dim=6):
    layer.build((None, None, num_heads, key_dim))
    return layer


# Rotary.


def test_rotary_turns_the_first_pair_by_one_radian_a_position():
    """Key width 4, base 100: the angles of position 2 are 2 and 0.2."""
    x = np.array([1.0, 0.0, 0.0, 3.0], "float32").reshape(1, 1, 1, 4)
    turned = numpy(layers.RotaryPositions(base=100.0)(x, start=2))[0, 0, 0]
    expected = [math.cos(2), -3 * math.sin(0.2), math.sin(2), 3 * math.cos(0.2)]
    np.testing.assert_allclose(turned, expected, atol=1e-6)


@pytest.mark.parametrize("start", [0, 3, 4000])
@pytest.mark.parametrize(("base", "scaling"), [(10000.0, 1.0), (100.0, 4.0)])
def test_rotary_equals_the_oracle(rng, start, base, scaling):
    x = heads(rng)
    layer = layers.RotaryPositions(base=base, scaling=scaling)
    expected = rotated(x, start, base, scaling)
    np.testing.assert_allclose(numpy(layer(x, start=start)), expected, atol=1e-3)
    if start < 10:
        np.testing.assert_allclose(numpy(layer(x, start=start)), expected, atol=1e-5)


def test_rotary_takes_a_position_that_is_a_tensor(rng):
    x = heads(rng)
    layer = layers.RotaryPositions()
    given_tensor = layer(x, start=ops.convert_to_tensor(7, "int32"))
    np.testing.assert_array_equal(numpy(given_tensor), numpy(layer(x, start=7)))


def test_scaling_interpolates_positions(rng):
    """Position 6 scaled by 2 is position 3."""
    x = heads(rng, length=1)
    scaled = layers.RotaryPositions(scaling=2.0)(x, start=6)
    np.testing.assert_allclose(
        numpy(scaled), numpy(layers.RotaryPositions()(x, start=3)), atol=1e-6
    )


@examples(10)
@given(
    start=st.integers(0, 500), distance=st.integers(-100, 100), seed=st.integers(0, 99)
)
def test_rotary_products_depend_on_the_distance_alone(start, distance, seed):
    query, key = (heads(np.random.default_rng(seed), length=1) for _ in range(2))
    layer = built(layers.RotaryPositions())

    def product(at):
        pair = layer.rotate(query, at), layer.rotate(key, at + distance)
        return np.sum(numpy(pair[0]) * numpy(pair[1]), axis=-1)

    np.testing.assert_allclose(product(start + 100), product(100), atol=1e-4)


def test_rotary_takes_the_position_of_each_vector(rng):
    x, layer = heads(rng), layers.RotaryPositions()
    positions = np.array([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]], "int32")
    turned = evaluated(lambda x, p: layer(x, positions=p))(x, positions)
    expected = [
        *(rotated(x[:1, part], 0, 10000.0, 1.0) for part in (slice(3), slice(3, 5))),
        rotated(x[1:], 7, 10000.0, 1.0),
    ]
    first = np.concatenate(expected[:2], axis=1)
    np.testing.assert_allclose(turned[:1], first, atol=1e-5)
    np.testing.assert_allclose(turned[1:], expected[2], atol=1e-5)
    for_all = evaluated(lambda x, p: layer(x, positions=p))(x, positions[1])
    np.testing.assert_allclose(for_all[1:], expected[2], atol=1e-5)


@pytest.mark.parametrize(
    ("sequence", "feature", "order"),
    [
        (2, -1, (0, 2, 1, 3)),  # (B, H, L, K)
        (-1, 1, (0, 3, 2, 1)),  # (B, K, H, L)
        (-2, 1, (0, 3, 1, 2)),  # (B, K, L, H)
    ],
)
def test_rotary_turns_along_any_axes(rng, sequence, feature, order):
    x = heads(rng)
    layer = layers.RotaryPositions(sequence_axis=sequence, feature_axis=feature)
    positions = np.array([[0, 1, 2, 0, 1], [7, 8, 9, 10, 11]], "int32")
    for options in ({"start": 3}, {"positions": positions}):
        expected = numpy(layers.RotaryPositions()(x, **options)).transpose(order)
        given = layer(x.transpose(order), **options)
        np.testing.assert_allclose(numpy(given), expected, atol=1e-6)
    flat = layers.RotaryPositions()(x[:, :, 0], start=3)
    expected = layers.RotaryPositions()(x, start=3)[:, :, 0]
    np.testing.assert_allclose(numpy(flat), numpy(expected), atol=1e-6)


def test_inside_attention_the_axes_of_rotary_positions_are_those_of_heads(rng):
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    outputs = []
    for axes in ({}, {"sequence_axis": 2, "feature_axis": 1}):
        keras.utils.set_random_seed(0)
        positions = layers.RotaryPositions(**axes)
        outputs.append(layers.MultiHeadAttention(2, 4, positions=positions)(x, x))
    np.testing.assert_array_equal(numpy(outputs[0]), numpy(outputs[1]))


def test_rotary_is_computed_in_float32():
    """In bfloat16 position 257 would be 256, and its sine off by 0.8."""
    layer = layers.RotaryPositions(dtype="mixed_bfloat16")
    x = np.array([1.0, 0.0], "float32").reshape(1, 1, 1, 2)
    turned = numpy(layer(x, start=257))[0, 0, 0]
    np.testing.assert_allclose(turned, [math.cos(257), math.sin(257)], atol=0.01)


def test_rotary_keeps_the_length_of_vectors_and_gives_no_bias(rng):
    x = heads(rng)
    layer = layers.RotaryPositions()
    np.testing.assert_allclose(
        np.linalg.norm(numpy(layer(x, start=9)), axis=-1),
        np.linalg.norm(x, axis=-1),
        rtol=1e-5,
    )
    assert layer.bias(3, 3) is None


LLAMA3 = {
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 3.0,
    "original_max_position_embeddings": 40 * math.pi,
}


def test_llama3_scaling_slows_what_turns_seldom():
    """In the original length the angles turn 20, 2 and 0.2 times."""
    layer = layers.RotaryPositions(base=1000.0, llama3_scaling=LLAMA3)
    x = np.array([1.0] * 3 + [0.0] * 3, "float32").reshape(1, 1, 1, 6)
    turned = numpy(layer(x, start=1))[0, 0, 0]
    np.testing.assert_allclose(
        turned[3:], np.sin([1.0, 0.1 * (0.5 / 4 + 0.5), 0.01 / 4]), atol=1e-7
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low_freq_factor": 3.0}, "the high above the low, or None. Received: llama3"),
        ({"factor": 0.0}, r"`llama3_scaling\['factor'\]` must be a number in \(0, inf"),
        ({"factor": None}, r"`llama3_scaling\['factor'\]` must be a number"),
    ],
)
def test_llama3_scaling_is_four_numbers(changes, message):
    with pytest.raises(ValueError, match=message):
        layers.RotaryPositions(llama3_scaling={**LLAMA3, **changes})
    with pytest.raises(ValueError, match="`llama3_scaling` must be a dict of the num"):
        layers.RotaryPositions(llama3_scaling={"factor": 4.0})


# The relative bias.

# Distance of the query behind the key -> bucket, worked out by hand from T5's formula:
# 8 + floor(log(n / 8) / log(16) * 8) behind, 16 more ahead, capped at 15.
BIDIRECTIONAL = {
    0: 0,
    1: 1,
    7: 7,
    8: 8,
    11: 8,
    12: 9,
    15: 9,
    16: 10,
    22: 10,
    23: 11,
    31: 11,
    32: 12,
    45: 12,
    46: 13,
    63: 13,
    64: 14,
    90: 14,
    91: 15,
    128: 15,
    5000: 15,
    -1: 17,
    -7: 23,
    -8: 24,
    -64: 30,
    -5000: 31,
}
# 16 + floor(log(n / 16) / log(8) * 16), capped at 31; the future is distance 0.
CAUSAL = {0: 0, 1: 1, 15: 15, 16: 16, 18: 16, 19: 17, 127: 31, 128: 31, -3: 0}


@pytest.mark.parametrize(
    ("bidirectional", "expected"), [(True, BIDIRECTIONAL), (False, CAUSAL)]
)
def test_buckets_are_those_of_t5(bidirectional, expected):
    layer = layers.RelativeBias(bidirectional=bidirectional)
    behind = np.array(list(expected), "int32")
    assert numpy(layer.buckets(behind)).tolist() == list(expected.values())


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "bidirectional"),
    [(32, 128, True), (32, 128, False), (8, 20, True), (5, 7, False), (64, 512, True)],
)
def test_buckets_equal_the_formula_in_floats(num_buckets, max_distance, bidirectional):
    layer = layers.RelativeBias(num_buckets, max_distance, bidirectional)
    behind = np.arange(-2 * max_distance, 2 * max_distance + 1)
    expected = [
        t5_bucket(-int(n), num_buckets, max_distance, bidirectional) for n in behind
    ]
    assert numpy(layer.buckets(behind.astype("int32"))).tolist() == expected


def test_buckets_are_int32_whatever_the_default_dtype_of_keras():
    keras.config.set_floatx("float64")  # with which Keras makes an `int` an int64
    buckets = layers.RelativeBias().buckets(ops.arange(-1, 2, dtype="int32"))
    assert keras.backend.standardize_dtype(buckets.dtype) == "int32"


@pytest.mark.parametrize("offset", [0, 2])
def test_relative_bias_is_the_table_at_the_buckets(rng, offset):
    layer = built(layers.RelativeBias(8, 6))
    layer.table.assign(rng.normal(size=(8, 4)))
    bias, table = numpy(layer.bias(3, 5, offset).pairs()), numpy(layer.table.value)
    assert bias.shape == (1, 4, 3, 5)
    for i in range(3):
        for j in range(5):
            row = table[t5_bucket(j - i - offset, 8, 6, True)]
            np.testing.assert_array_equal(bias[0, :, i, j], row)


def test_a_head_learns_its_own_bias(rng):
    """Each bucket that occurs gets a gradient; one that does not stays."""
    query = keras.Input((3, 2, 4))
    bias = layers.RelativeBias(8, 4, initializer="zeros")
    model = keras.Model(query, bias(query) + ops.sum(query) * 0.0)
    model.compile("sgd", "mse", jit_compile=JIT)
    x = heads(rng, length=3, num_heads=2, key_dim=4)[:1]
    model.train_on_batch(x, np.ones((1, 2, 3, 3)))
    used = {t5_bucket(j - i, 8, 4, True) for i in range(3) for j in range(3)}
    learned = np.flatnonzero(np.all(numpy(bias.table.value) > 0.0, axis=-1))
    assert set(learned.tolist()) == used


def test_a_head_learns_the_same_bias_whichever_kernel_runs(rng):
    x = rng.normal(size=(2, 5, 8)).astype("float32")
    learned = []
    for implementation in ("explicit", "fused", "chunked"):
        keras.utils.set_random_seed(0)
        bias = layers.RelativeBias(8, 4)
        attention = layers.MultiHeadAttention(
            2, 4, positions=bias, implementation=implementation
        )
        inputs = keras.Input((5, 8))
        model = keras.Model(inputs, attention(inputs, inputs))
        model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=JIT)
        before = numpy(bias.table.value).copy()
        model.train_on_batch(x, x)
        learned.append(numpy(bias.table.value) - before)
    assert np.abs(learned[0]).max() > 1e-3
    np.testing.assert_allclose(learned[1], learned[0], atol=1e-5)
    np.testing.assert_allclose(learned[2], learned[0], atol=1e-5)


# ALiBi.


@pytest.mark.parametrize(
    ("num_heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (8, [0.5, 0.25, 0.125, 0.0625, 2**-5, 2**-6, 2**-7, 2**-8]),
        (6, [0.25, 0.0625, 2**-6, 2**-8, 0.5, 0.125]),
        (
            12,
            [
                *(2.0 ** -(h + 1) for h in range(8)),
                *(2.0 ** -(h + 0.5) for h in range(4)),
            ],
        ),
    ],
)
def test_alibi_slopes(num_heads, slopes):
    bias = numpy(built(layers.AlibiBias(), num_heads).bias(1, 2, offset=0).pairs())
    np.testing.assert_allclose(-bias[0, :, 0, 1], slopes, rtol=1e-6)
    np.testing.assert_allclose(alibi_slopes(num_heads), slopes, rtol=1e-6)


def test_alibi_slopes_end_at_the_bound():
    """KerasHub's `alibi_bias_max`: the last of H slopes is 2 to the minus of it."""
    for num_heads, slopes in ((2, [2**-2, 2**-4]), (3, [2**-2, 2**-4, 2**-1])):
        layer = built(layers.AlibiBias(alibi_bias_max=4), num_heads)
        bias = numpy(layer.bias(1, 2, offset=0).pairs())
        np.testing.assert_allclose(-bias[0, :, 0, 1], slopes, rtol=1e-6)


@pytest.mark.parametrize("offset", [0, 3])
def test_alibi_takes_the_distance_times_the_slope(offset):
    bias = numpy(built(layers.AlibiBias(), 2).bias(4, 6, offset).pairs())
    for i in range(4):
        for j in range(6):
            distance = abs(i + offset - j)
            np.testing.assert_allclose(
                bias[0, :, i, j], [-distance * 2**-4, -distance * 2**-8], rtol=1e-6
            )


# Both biases, alone in a user's model.


@pytest.mark.parametrize("name", ["relative", "alibi"])
def test_a_bias_layer_serves_the_pure_function(rng, name):
    cls = {"relative": layers.RelativeBias, "alibi": layers.AlibiBias}[name]
    query, key = heads(rng, 3), heads(rng, 5)
    bias = cls()
    inputs = keras.Input((None, 4, 6)), keras.Input((None, 4, 6))
    given_bias = bias(*inputs)
    assert given_bias.shape == (1, 4, None, None)
    model = keras.Model(inputs, given_bias)
    eager = bias(query, key, offset=0)
    np.testing.assert_allclose(numpy(model([query, key])), numpy(eager), atol=1e-6)
    attended = numpy(layers.dot_product_attention(query, key, key, bias=eager))
    expected, _ = oracle.attention(query, key, key, bias=numpy(eager))
    np.testing.assert_allclose(attended, expected, atol=1e-5)
    plain, _ = oracle.attention(query, key, key)
    assert not np.allclose(attended, plain)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: layers.RotaryPositions(base=0.0),
            "`base` must be a number in .*base=0.0",
        ),
        (
            lambda: layers.RotaryPositions(sequence_axis=0)(np.zeros((1, 3, 4, 6))),
            "`sequence_axis` and .*sequence_axis=0, feature_axis=-1, x of rank 4",
        ),
        (
            lambda: layers.RotaryPositions(feature_axis=1)(np.zeros((1, 3, 4, 6))),
            "`sequence_axis` and .*sequence_axis=1, feature_axis=1, x of rank 4",
        ),
        (lambda: layers.AlibiBias(alibi_bias_max=0), "`alibi_bias_max` must.*=0"),
        (lambda: layers.RotaryPositions(scaling=-1), "`scaling` must be.*scaling=-1"),
        (
            lambda: built(layers.RotaryPositions(), key_dim=5),
            "`key_dim` must be even.*key_dim=5",
        ),
        (lambda: layers.RelativeBias(0), "`num_buckets` must be a positive.*=0"),
        (lambda: layers.RelativeBias(7), "`num_buckets` must be an even.*from 4.*=7"),
        (lambda: layers.RelativeBias(2), "`num_buckets` must be an even.*from 4.*=2"),
        (
            lambda: layers.RelativeBias(1, bidirectional=False),
            "`num_buckets` must be an integer from 2.*=1",
        ),
        (lambda: layers.RelativeBias(32, 8), "`max_distance` must be more than 8.*=8"),
        (
            lambda: built(layers.AlibiBias(), 2)(np.zeros((1, 3, 4, 6))),
            r"`query` must have the 2 heads.*\(1, 3, 4, 6\)",
        ),
    ],
)
def test_says_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()
