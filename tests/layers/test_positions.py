import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from tests import oracle
from tests.evaluate import evaluated, examples


@examples(10)
@given(
    length=st.integers(1, 5),
    dim=st.integers(1, 7),
    base=st.sampled_from([10000.0, 1000.0]),
    cosine_exponent=st.sampled_from(["even", "odd"]),
    start=st.integers(0, 300),
)
def test_table_equals_the_oracle(**arguments):
    table = ops.convert_to_numpy(layers.sinusoidal_table(**arguments))
    assert table.dtype == "float32"
    expected = oracle.sinusoidal_table(**arguments)
    np.testing.assert_allclose(table, expected, atol=1e-4)


def test_a_table_may_start_at_an_int64():
    start = ops.convert_to_tensor(2, "int64")
    rows = layers.sinusoidal_table(3, 4, start=start)
    np.testing.assert_allclose(
        *map(ops.convert_to_numpy, (rows, layers.sinusoidal_table(5, 4)[2:])), atol=1e-6
    )


def test_table_has_the_published_numbers():
    """The standard table, and the variant with base 1000 and its own exponents."""
    np.testing.assert_allclose(
        layers.sinusoidal_table(3, 4)[1:],
        [
            [0.84147098, 0.54030231, 0.00999983, 0.99995000],
            [0.90929743, -0.41614684, 0.01999867, 0.99980001],
        ],
        rtol=1e-6,
    )
    np.testing.assert_allclose(
        layers.sinusoidal_table(3, 4, base=1000.0, cosine_exponent="odd")[1:],
        [
            [0.84147098, 0.98423023, 0.03161751, 0.99998419],
            [0.90929743, 0.93741831, 0.06320340, 0.99993676],
        ],
        rtol=1e-6,
    )


@pytest.mark.parametrize("dim", [1, 4, 5])
def test_halves_are_all_sines_then_all_cosines(dim):
    table = ops.convert_to_numpy(layers.sinusoidal_table(3, dim))
    halves = ops.convert_to_numpy(layers.sinusoidal_table(3, dim, layout="halves"))
    expected = np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)
    np.testing.assert_array_equal(halves, expected)


def test_cosine_exponent_must_be_known():
    with pytest.raises(ValueError, match="`cosine_exponent`.*='neither'"):
        layers.sinusoidal_table(2, 4, cosine_exponent="neither")
    with pytest.raises(ValueError, match="`cosine_exponent`.*='neither'"):
        layers.SinusoidalPositions(cosine_exponent="neither")


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("tensor_start", [False, True])
def test_sinusoidal_positions_are_added(rng, start, tensor_start):
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    layer = layers.SinusoidalPositions(base=1000.0, cosine_exponent="odd")
    output = layer(x, start=ops.convert_to_tensor(start) if tensor_start else start)
    expected = x + oracle.sinusoidal_table(5, 6, 1000.0, "odd", start)
    np.testing.assert_allclose(ops.convert_to_numpy(output), expected, atol=1e-5)


@pytest.mark.parametrize("dim", [6, 7])
def test_halves_are_added_from_the_shifted_position(rng, dim):
    x = rng.normal(size=(2, 5, dim)).astype("float32")
    layer = layers.SinusoidalPositions(base=1000.0, layout="halves", shift=2)
    positions = np.arange(5)[:, None] + 2 + 3
    sines = positions * 1000.0 ** (-np.arange(0, dim, 2) / dim)
    cosines = sines[:, : dim // 2]
    expected = x + np.concatenate([np.sin(sines), np.cos(cosines)], axis=1)
    each = np.arange(3, 8, dtype="int32")
    for output in (layer(x, start=3), layer(x, positions=each)):
        output = ops.convert_to_numpy(output)
        np.testing.assert_allclose(output, expected, atol=1e-5)


def test_learned_positions_begin_as_told():
    layer = layers.LearnedPositions(4, initializer="ones")
    output = ops.convert_to_numpy(layer(np.zeros((1, 4, 2), "float32")))
    np.testing.assert_array_equal(output, np.ones((1, 4, 2)))


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("tensor_start", [False, True])
def test_learned_positions_are_added(rng, start, tensor_start):
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    layer = layers.LearnedPositions(8)
    output = layer(x, start=ops.convert_to_tensor(start) if tensor_start else start)
    table = ops.convert_to_numpy(layer.weights[0].value)
    np.testing.assert_allclose(
        ops.convert_to_numpy(output), x + table[start : start + 5], atol=1e-6
    )


PACKED = np.array([[0, 1, 2, 0, 1], [3, 4, 0, 1, 2]], "int32")


def with_positions(layer):
    """A layer's function of vectors and their positions; one program on JAX."""

    def compute(x, positions):
        return layer(x, positions=positions)

    return compute


@pytest.mark.parametrize("positions", [PACKED, PACKED[0], PACKED[:1]], ids=str)
@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_each_vector_takes_the_position_given_for_it(rng, name, positions):
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    layer = {
        "sinusoidal": layers.SinusoidalPositions,
        "learned": lambda: layers.LearnedPositions(8),
    }[name]()
    layer.build(x.shape)
    table = oracle.sinusoidal_table(8, 6)
    if name == "learned":
        table = ops.convert_to_numpy(layer.weights[0].value)
    output = evaluated(with_positions(layer), layer)(x, positions)
    np.testing.assert_allclose(output, x + table[positions], atol=1e-5)


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_packed_sequences_are_embedded_as_alone(name):
    """Two sequences in a row equal the two in rows of their own."""
    layer = layers.PositionalEmbedding(10, 6, positions=name, max_length=8)
    layer.build()
    alone = np.array([[4, 9, 1], [2, 7, 0]], "int32")
    packed = np.array([[4, 9, 1, 2, 7]], "int32")
    positions = np.array([[0, 1, 2, 0, 1]], "int32")
    expected = ops.convert_to_numpy(layer(alone))
    output = evaluated(with_positions(layer), layer)(packed, positions)
    expected = np.concatenate([expected[0], expected[1, :2]])
    np.testing.assert_allclose(output[0], expected, atol=1e-6)


def test_positions_stand_in_a_functional_model():
    ids = keras.Input((None,), dtype="int32", name="ids")
    positions = keras.Input((None,), dtype="int32", name="positions")
    layer = layers.PositionalEmbedding(10, 6, positions="learned", max_length=8)
    output = layer(ids, positions=positions)
    assert output.shape == (None, None, 6)
    model = keras.Model([ids, positions], output)
    given = model.predict_on_batch([PACKED + 1, PACKED])
    expected = layer(PACKED + 1, positions=PACKED)
    np.testing.assert_allclose(given, ops.convert_to_numpy(expected), atol=1e-6)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"positions": PACKED * 1.0}, "`positions` must be an integer.*float32"),
        ({"positions": PACKED[None]}, r"`positions` must be.*\(1, 2, 5\)"),
        ({"positions": PACKED[:, 1:]}, r"`positions` must have the length.*\(2, 4\)"),
        (
            {"positions": np.tile(PACKED, (2, 1))},
            r"`positions` must have the batch size.*\(4, 5\), x.shape=\(2, 5",
        ),
        ({"positions": PACKED, "start": 2}, "`start` must be 0.*start=2"),
    ],
)
@pytest.mark.parametrize("name", ["sinusoidal", "learned", "rotary"])
def test_says_which_positions_do_not_fit(name, arguments, message):
    layer, shape = {
        "sinusoidal": (layers.SinusoidalPositions(), (2, 5, 6)),
        "learned": (layers.LearnedPositions(8), (2, 5, 6)),
        "rotary": (layers.RotaryPositions(), (2, 5, 2, 6)),
    }[name]
    with pytest.raises(ValueError, match=message):
        layer(np.zeros(shape, "float32"), **arguments)


def test_learned_positions_lie_in_the_table():
    layer = layers.LearnedPositions(4)
    x = np.zeros((2, 5, 6), "float32")
    with pytest.raises(ValueError, match=r"`positions` must be in \[0, 4\).*0 to 4"):
        layer(x, positions=PACKED)
    with pytest.raises(ValueError, match="Received: positions from -1 to 3"):
        layer(x, positions=PACKED - 1)
    with pytest.raises(ValueError, match=r"`x` must have the width 6.*2, 4, 1"):
        layer(x[:, :4, :1])


def test_positions_are_exact_far_out_in_half_precision():
    """Computed in bfloat16, position 300 would be off by 0.2."""
    x = np.zeros((1, 301, 8), "float32")
    output = layers.SinusoidalPositions(dtype="mixed_bfloat16")(x)
    output = ops.convert_to_numpy(ops.cast(output, "float32"))
    expected = oracle.sinusoidal_table(301, 8)
    np.testing.assert_allclose(output[0], expected, atol=0.005)


@pytest.mark.parametrize("max_length", [0, -1, 2.5, None])
def test_learned_positions_need_a_length(max_length):
    with pytest.raises(ValueError, match=f"`max_length`.*max_length={max_length!r}"):
        layers.LearnedPositions(max_length)


@pytest.mark.backends("tensorflow")
def test_learned_positions_end_where_no_length_is_known():
    import tensorflow as tf

    layer = layers.LearnedPositions(4)
    layer.build((None, None, 2))
    function = tf.function(layer, jit_compile=True, autograph=False)
    function = function.get_concrete_function(tf.TensorSpec((None, None, 2)))
    y = function(tf.zeros((1, 6, 2))).numpy()
    np.testing.assert_array_equal(y[0, :4], layer.table.numpy())
    assert np.isnan(y[0, 4:]).all()


def test_learned_positions_end():
    layer = layers.LearnedPositions(4)
    layer(np.zeros((1, 4, 2), "float32"))
    with pytest.raises(ValueError, match="max_length=4.*length 5, start=0"):
        layer(np.zeros((1, 5, 2), "float32"))
    with pytest.raises(ValueError, match="max_length=4.*length 2, start=3"):
        layer(np.zeros((1, 2, 2), "float32"), start=3)


@pytest.mark.parametrize("positions", ["rotary", "relative", "alibi", "sinusoidal"])
def test_an_offset_may_be_an_integer_of_numpy(rng, positions):
    """Keras makes a tensor of it, int64 on TensorFlow."""
    x = rng.normal(size=(1, 3, 8)).astype("float32")
    if positions == "sinusoidal":
        layer, options = layers.SinusoidalPositions(), "start"
    else:
        layer, options = layers.MultiHeadAttention(2, 4, positions=positions), "offset"
    inputs = (x,) if options == "start" else (x, x)
    for causal in (False, True) if len(inputs) > 1 else (None,):
        given = {} if causal is None else {"use_causal_mask": causal}
        expected = layer(*inputs, **{options: 2}, **given)
        output = layer(*inputs, **{options: np.int64(2)}, **given)
        np.testing.assert_allclose(
            *map(ops.convert_to_numpy, (output, expected)), atol=1e-6
        )
