import functools

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from tests.evaluate import evaluated, examples
from tests.layers import recurrent_oracle
from tests.layers.weights import randomize
from tests.pairs import each_case, each_variant, every_pair, named

D, U = 3, 4
# Real positions anywhere, a sequence without any among them.
MASK = np.array([[1, 1, 1, 1, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]], "bool")


def made(rng, **options):
    """An encoder of random weights, ready for vectors of width D."""
    encoder = layers.RecurrentEncoder(U, **options)
    encoder.build((None, None, D))
    randomize(encoder, rng)
    return encoder


def encode(encoder, x, mask=None):
    """Runs the encoder compiled: an eager loop takes JAX a compilation each."""
    mask = np.ones(x.shape[:2], "bool") if mask is None else mask
    return compiled(encoder).predict_on_batch([x, mask])


@functools.cache
def compiled(encoder):
    x, mask = keras.Input((None, D)), keras.Input((None,), dtype="bool")
    return keras.Model([x, mask], encoder(x, mask=mask))


def vectors(rng, batch=3, length=5, width=D):
    return rng.normal(size=(batch, length, width)).astype("float32")


# The cell.


def test_cell_worked_example():
    """h[t] = tanh(.5 x[t] + .1 h[t-1]) over x = (1, 1)."""
    rnn = keras.layers.RNN(layers.RecurrentCell(1), return_sequences=True)
    x = np.ones((1, 2, 1), "float32")
    rnn(x)
    rnn.set_weights([np.array([[0.5], [0.1]]), np.zeros(1)])
    hidden = ops.convert_to_numpy(rnn(x)).ravel()
    np.testing.assert_allclose(hidden, [0.46211716, 0.49767559], atol=1e-7)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_one_kernel_equals_one_each_for_input_and_state(rng, activation):
    cell = layers.RecurrentCell(U, activation=activation)
    x, h = rng.normal(size=(2, 6, D)), rng.normal(size=(6, U))
    x, h = x.astype("float32"), h.astype("float32")
    cell(x[0], [h])
    randomize(cell, rng)
    kernel, bias = recurrent_oracle.numpy_weights(cell)
    from_input, from_state = kernel[:D], kernel[D:]
    g = {"tanh": np.tanh, "relu": lambda a: np.maximum(a, 0)}[activation]
    for step in x:
        output, [state] = cell(step, [h])
        h = g(step @ from_input + h @ from_state + bias)
        np.testing.assert_allclose(ops.convert_to_numpy(output), h, atol=1e-5)
        np.testing.assert_array_equal(
            ops.convert_to_numpy(output), ops.convert_to_numpy(state)
        )
        h = h.astype("float32")


def test_cell_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"`units` must be .*units=0"):
        layers.RecurrentCell(0)


# The encoder.


@each_case(
    every_pair(
        cell=["gru", "simple"],
        bidirectional=[True, False],
        num_layers=[1, 2],
        masked=[False, True],
    )
)
def test_equals_the_oracle(rng, case):
    masked = case.pop("masked")
    encoder, x = made(rng, **case), vectors(rng)
    # The oracle takes the kind of cell from the weights.
    directions = 2 if case["bidirectional"] else 1
    size = {"gru": 3, "simple": 2}[case["cell"]]
    assert len(encoder.weights) == case["num_layers"] * directions * size
    mask = MASK if masked else None
    expected = recurrent_oracle.encoder(
        x, recurrent_oracle.encoder_weights(encoder), U, mask
    )
    run = evaluated(functools.partial(encoder, mask=mask), encoder)
    for output, wanted in zip(run(x), expected, strict=True):
        assert output.shape == wanted.shape
        np.testing.assert_allclose(output, wanted, atol=1e-5)


@pytest.fixture(scope="module")
def two_layers():
    return made(np.random.default_rng(0), num_layers=2)


@pytest.mark.slow_on("tensorflow")
@examples(15)
@given(places=st.permutations(range(6)), seed=st.integers(0, 9))
def test_what_is_masked_might_as_well_not_be_there(two_layers, places, seed):
    rng, mask = np.random.default_rng(seed), np.isin(np.arange(6), places[:4])
    x = vectors(rng, batch=2, length=6)
    x[1, mask] = x[0, mask]  # Other padding, the same tokens.
    hidden, final = encode(two_layers, x, np.stack([mask] * 2))
    np.testing.assert_array_equal(hidden[0], hidden[1])
    assert not hidden[:, ~mask].any()
    alone_hidden, alone_final = encode(two_layers, x[:, mask])
    np.testing.assert_allclose(hidden[:, mask], alone_hidden, atol=1e-6)
    np.testing.assert_allclose(final, alone_final, atol=1e-6)


def test_final_states_are_those_that_have_read_all(two_layers, rng):
    hidden, final = encode(two_layers, vectors(rng))
    np.testing.assert_allclose(final[:, :U], hidden[:, -1, :U], atol=1e-6)
    np.testing.assert_allclose(final[:, U:], hidden[:, 0, U:], atol=1e-6)


@pytest.mark.backends("tensorflow", "torch")
def test_implicit_mask_equals_explicit_mask(rng):
    embedding = keras.layers.Embedding(9, D, mask_zero=True)
    encoder = made(rng)
    ids = np.array([[5, 3, 7, 0, 0], [2, 8, 0, 0, 0]])
    embedded = embedding(ids)
    hidden, final = encoder(embedded)
    expected = encode(encoder, ops.convert_to_numpy(embedded), ids != 0)
    np.testing.assert_allclose(ops.convert_to_numpy(hidden), expected[0], atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(final), expected[1], atol=1e-6)
    np.testing.assert_array_equal(ops.convert_to_numpy(hidden._keras_mask), ids != 0)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_position_depends_on_what_was_read_before_it(rng, bidirectional):
    encoder, x = made(rng, bidirectional=bidirectional), vectors(rng, batch=1)
    changed = x.copy()
    changed[:, 3] += 1.0
    before, after = encode(encoder, x)[0], encode(encoder, changed)[0]
    differs = (before != after).any(axis=-1)[0]
    assert differs.tolist() == [bidirectional] * 3 + [True] * 2


def test_dropout_falls_on_outputs_in_training_alone(rng):
    encoder, x = made(rng, dropout=0.5), vectors(rng, batch=8, length=9)
    train = functools.partial(encoder, training=True)
    hidden, final = evaluated(train, encoder)(x)
    still_hidden, still_final = encode(encoder, x)
    dropped = hidden == 0.0
    assert 0.3 < dropped.mean() < 0.7
    np.testing.assert_allclose(
        hidden[~dropped], 2.0 * still_hidden[~dropped], atol=1e-5
    )
    np.testing.assert_allclose(final, still_final, atol=1e-6)
    assert (still_hidden != 0.0).all()


def test_the_stack_feeds_each_layer_from_the_one_below(rng):
    encoder = made(rng, num_layers=2, bidirectional=False)
    lower, upper = encoder.recurrences
    x = vectors(rng)
    expected, state = upper(lower(x)[0])
    hidden, final = encode(encoder, x)
    np.testing.assert_allclose(hidden, ops.convert_to_numpy(expected), atol=1e-6)
    np.testing.assert_allclose(final, ops.convert_to_numpy(state), atol=1e-6)


@each_variant(
    "policy",
    named("mixed_bfloat16", "mixed_float16"),
    on_jax=["mixed_bfloat16"],
    on_tensorflow=["mixed_float16"],
)
def test_mixed_precision(rng, policy):
    encoder, x = made(rng, num_layers=2), vectors(rng)
    mixed = layers.RecurrentEncoder(U, num_layers=2, dtype=policy)
    mixed.build((None, None, D))
    mixed.set_weights(encoder.get_weights())
    expected = encode(encoder, x, MASK)
    outputs = evaluated(functools.partial(mixed, mask=MASK), mixed)(x)
    for output, wanted in zip(outputs, expected, strict=True):
        assert output.dtype.name == policy[6:]
        np.testing.assert_allclose(output.astype("float32"), wanted, atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": 0}, "`units` must be a positive integer.*units=0"),
        ({"num_layers": 0}, "`num_layers` must be .*num_layers=0"),
        ({"cell": "lstm"}, r"`cell` must be one of \('gru', 'simple'\).*cell='lstm'"),
        ({"dropout": 1.0}, "`dropout` must be in .*dropout=1.0"),
    ],
    ids=str,
)
def test_says_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        layers.RecurrentEncoder(**{"units": U, **options})


def test_output_shapes_are_known_from_those_of_the_inputs():
    encoder = layers.RecurrentEncoder(4, num_layers=2)
    assert encoder.compute_output_shape((2, None, 3)) == ((2, None, 8), (2, 8))
    decoder = layers.AttentiveRecurrentDecoder(4)
    shapes = (2, None, 3), (2, 7, 6), (2, 6)
    assert decoder.compute_output_shape(*shapes) == (2, None, 4)


def test_vectors_have_the_width_that_the_layer_was_built_for(rng):
    encoder = layers.RecurrentEncoder(4)
    encoder.build((None, None, 3))
    with pytest.raises(ValueError, match=r"`x` must have the width 3.*\(3, 5, 2\)"):
        encoder(vectors(rng, width=2))
