"""Biases by distance: the same numbers as those of all pairs."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers import distances
from tests.differentiate import upstream_gradient, values_and_gradients


@pytest.mark.parametrize(
    ("rows", "columns"), [(0, 1), (0, 3), (1, 1), (1, 4), (5, 1), (3, 4), (6, 2)]
)
def test_each_pair_has_the_value_of_its_distance(rng, rows, columns):
    values = rng.normal(size=(2, rows + columns - 1)).astype("float32")
    pairs = ops.convert_to_numpy(
        distances.relative_shift(ops.convert_to_tensor(values), rows)
    )
    expected = [
        [[of_head[j - i + rows - 1] for j in range(columns)] for i in range(rows)]
        for of_head in values
    ]
    expected = np.reshape(expected, (2, rows, columns))
    np.testing.assert_array_equal(pairs, expected)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (5, 1), (3, 4), (6, 2)])
def test_relative_unshift_is_the_gradient_of_relative_shift(rng, rows, columns):
    values = rng.normal(size=(2, rows + columns - 1)).astype("float32")
    pairs, (gradient,) = values_and_gradients(
        lambda x: distances.relative_shift(x, rows), [values]
    )
    upstream = ops.convert_to_tensor(upstream_gradient(pairs.shape))
    sums = ops.convert_to_numpy(distances.relative_unshift(upstream))
    np.testing.assert_allclose(gradient, sums, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("implementation", ["explicit", "chunked", "fused"])
def test_every_implementation_takes_one(rng, implementation, heads):
    if keras.backend.backend() == "tensorflow" and implementation == "fused":
        pytest.skip("no kernel there")
    query, key = rng.normal(size=(2, 1, 5, 2, 4)).astype("float32")
    values = rng.normal(size=(heads, 7)).astype("float32")

    def attend(values, by_distance):
        bias = layers.DistanceBias(values, 5)
        bias = bias if by_distance else bias.pairs()
        return layers.dot_product_attention(
            query, key[:, :3], key[:, :3], bias=bias, implementation=implementation
        )

    output, (gradient,) = values_and_gradients(lambda x: attend(x, True), [values])
    expected = values_and_gradients(lambda x: attend(x, False), [values])
    np.testing.assert_allclose(output, expected[0], atol=1e-6)
    np.testing.assert_allclose(gradient, expected[1][0], atol=1e-6)


@pytest.mark.parametrize(
    ("columns", "heads", "length"), [(9, 2, 3), (5, 3, 3), (5, 2, 4)]
)
def test_a_bias_of_other_sizes_is_refused(columns, heads, length):
    x = np.ones((1, 3, 2, 4), "float32")
    bias = layers.DistanceBias(np.zeros((heads, columns), "float32"), length)
    message = r"`bias` must be a `DistanceBias` of values .* Received: bias\.values"
    for implementation in ("explicit", "chunked"):
        with pytest.raises(ValueError, match=message):
            layers.dot_product_attention(
                x, x, x, bias=bias, implementation=implementation
            )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (([[0.0, 1.0]], 1), r"`values` must be a tensor or an array.*0.0, 1.0"),
        ((np.zeros((1, 2)), "1"), "`target_length` must be an integer.*='1'"),
        ((np.zeros((1, 2)), 1, None), "`learned` must be True or False.*=None"),
    ],
)
def test_a_bias_of_other_kinds_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        layers.DistanceBias(*given)
