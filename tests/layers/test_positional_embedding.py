import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests import oracle
from tests.evaluate import JIT, evaluated


def numpy_mask(tensor):
    """The mask Keras keeps with a tensor, as NumPy, or None."""
    mask = getattr(tensor, "_keras_mask", None)
    return None if mask is None else ops.convert_to_numpy(mask)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", None])
def test_embedding_is_scaled_and_positioned(positions):
    layer = layers.PositionalEmbedding(10, 6, positions=positions, max_length=8)
    token_ids = np.array([[4, 9, 1, 0], [2, 0, 0, 0]], "int32")
    output = ops.convert_to_numpy(layer(token_ids, start=2))
    weights = {
        w.path.split("/")[-1]: ops.convert_to_numpy(w.value) for w in layer.weights
    }
    expected = weights["embeddings"][token_ids] * np.sqrt(6.0)
    if positions == "sinusoidal":
        expected += oracle.sinusoidal_table(4, 6, start=2)
    if positions == "learned":
        expected += weights["table"][2:6]
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 257), ("float16", 2049)])
def test_ids_that_a_dtype_rounds_are_an_error(dtype, most):
    """`keras.Sequential` makes floats of the first layer's compute dtype of them."""
    ids = np.array([[5, most - 1]])

    def embedded(size, *first):
        layer = layers.PositionalEmbedding(size, 6, dtype=f"mixed_{dtype}")
        return keras.Sequential([*first, layer])(ids), layer(ids)

    for first in ((), (keras.Input((None,), dtype="int32"),)):
        found, expected = map(ops.convert_to_numpy, embedded(most, *first))
        np.testing.assert_array_equal(found, expected)
    embedded(most + 1, keras.Input((None,), dtype="int32"))
    with pytest.raises(ValueError, match=f"`inputs` must be integers.*'{dtype}'"):
        embedded(most + 1)


def test_the_scale_may_be_given():
    layer = layers.PositionalEmbedding(10, 6, positions=None, embedding_scale=0.5)
    output = ops.convert_to_numpy(layer(np.array([[4, 9]], "int32")))
    expected = ops.convert_to_numpy(layer.embeddings)[[4, 9]] * 0.5
    np.testing.assert_allclose(output[0], expected, rtol=1e-6)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", None])
def test_a_token_may_have_the_vector_zero(positions, quantized):
    given = {"positions": positions, "max_length": 8, "mask_zero": True}
    layer = layers.PositionalEmbedding(10, 6, zero_id=3, name="embedding", **given)
    layer.build()
    if quantized:
        layer.quantize("int8")
    token_ids = np.array([[4, 3, 1, 0], [3, 3, 5, 0]], "int32")
    x = layer(token_ids, start=2)
    np.testing.assert_array_equal(numpy_mask(x), token_ids != 0)  # It is no padding.
    added = np.zeros((4, 6))
    if positions == "sinusoidal":
        added = oracle.sinusoidal_table(4, 6, start=2)
    if positions == "learned":
        added = ops.convert_to_numpy(layer.positions.table)[2:6]
    x, is_zero = ops.convert_to_numpy(x), token_ids == 3
    expected = np.broadcast_to(added, x.shape)
    np.testing.assert_allclose(x[is_zero], expected[is_zero], atol=1e-6)
    assert np.abs(x[~is_zero] - expected[~is_zero]).min(axis=1).max() > 1e-3
    layer.zero_id = None
    other = ops.convert_to_numpy(layer(token_ids, start=2))
    np.testing.assert_array_equal(x[~is_zero], other[~is_zero])


def test_reverse_gives_logits_of_the_same_table(rng):
    layer = layers.PositionalEmbedding(10, 6)
    layer(np.array([[1]]))
    assert len(layer.weights) == 1
    x = rng.normal(size=(2, 3, 6)).astype("float32")
    expected = x @ ops.convert_to_numpy(layer.weights[0].value).T
    reverse = ops.convert_to_numpy(layer(x, reverse=True))
    np.testing.assert_allclose(reverse, expected, atol=1e-5)
    np.testing.assert_array_equal(ops.convert_to_numpy(layer.logits(x)), reverse)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_table_turned_once_gives_the_same_logits(policy, rng):
    layer = layers.PositionalEmbedding(7, 4, dtype=policy)
    layer.build()
    x = ops.cast(rng.normal(size=(2, 3, 4)).astype("float32"), layer.compute_dtype)
    kernel = layer.logits_kernel()
    assert tuple(kernel.shape) == (4, 7)
    logits = layer.logits(x, kernel)
    assert keras.backend.standardize_dtype(logits.dtype) == layer.compute_dtype
    np.testing.assert_allclose(
        *(
            ops.convert_to_numpy(ops.cast(y, "float32"))
            for y in (logits, layer.logits(x))
        ),
        rtol=1e-2 if layer.compute_dtype == "bfloat16" else 1e-5,
    )


@pytest.mark.parametrize("option", [{"logit_soft_cap": 5.0}, {"tie_weights": False}])
def test_no_table_is_turned_where_logits_are_another_s(option):
    layer = layers.PositionalEmbedding(7, 4, **option)
    layer.build()
    assert layer.logits_kernel() is None


def test_no_table_is_turned_where_it_is_quantized():
    layer = layers.PositionalEmbedding(8, 4)
    layer.build()
    layer.quantize("int8")
    assert layer.logits_kernel() is None


def test_mask_goes_with_the_vectors_and_the_logits():
    layer = layers.PositionalEmbedding(10, 6)
    token_ids = np.array([[4, 9, 0], [2, 0, 0]], "int32")
    x = layer(token_ids)
    np.testing.assert_array_equal(numpy_mask(x), token_ids != 0)
    np.testing.assert_array_equal(numpy_mask(layer.logits(x)), token_ids != 0)


def test_no_mask_where_zero_is_a_token():
    layer = layers.PositionalEmbedding(10, 6, mask_zero=False)
    assert numpy_mask(layer(np.array([[4, 0]]))) is None


@pytest.mark.parametrize("model_dim", [6, 3])
def test_float_token_ids_are_masked_too(model_dim):
    """`keras.Input(shape)` is float32 unless told otherwise."""
    layer = layers.PositionalEmbedding(10, model_dim)
    x = layer(np.array([[4.0, 9.0, 0.0]], "float32"))
    np.testing.assert_array_equal(numpy_mask(x), [[True, True, False]])


def test_nothing_trains_the_row_of_a_zero_token_but_its_logits():
    layer = layers.PositionalEmbedding(7, 4, positions=None, zero_id=3)
    inputs = keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(keras.optimizers.SGD(1.0), "mse", jit_compile=JIT)
    before = ops.convert_to_numpy(layer.embeddings).copy()
    model.train_on_batch(np.array([[3, 2, 5]]), np.ones((1, 3, 1)))
    changed = np.any(ops.convert_to_numpy(layer.embeddings) != before, axis=1)
    assert np.flatnonzero(changed).tolist() == [2, 5]


def test_gradient_reaches_the_table_from_both_ends():
    layer = layers.PositionalEmbedding(7, 4, positions=None)
    inputs = keras.Input((3,), dtype="int32")
    model = keras.Model(inputs, layer.logits(layer(inputs)))
    model.compile(
        optimizer=keras.optimizers.SGD(1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=JIT,
    )
    ids, labels = np.array([1, 2, 3]), np.array([2, 3, 1])
    before = ops.convert_to_numpy(layer.weights[0].value).copy()
    model.train_on_batch(ids[None], labels[None])
    x = 2.0 * before[ids]  # by the square root of the width
    upstream = np.exp(x @ before.T)
    upstream /= upstream.sum(axis=1, keepdims=True)
    upstream[np.arange(3), labels] -= 1.0
    upstream /= 3.0
    gradient = upstream.T @ x  # Rows 0 and 4 to 6 have no other.
    gradient[ids] += 2.0 * upstream @ before
    change = before - ops.convert_to_numpy(layer.weights[0].value)
    np.testing.assert_allclose(change, gradient, atol=1e-5)


@pytest.mark.parametrize("rank", [2, 3])
def test_logits_of_any_rank_are_trained_by_a_loss_of_keras(rank):
    inputs = keras.Input((3,), dtype="int32")
    layer = layers.PositionalEmbedding(7, 4)
    hidden = layers.EncoderBlock(2, 8)(layer(inputs))
    x = hidden if rank == 3 else hidden[:, 0]
    model = keras.Model(inputs, layer(x, reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=JIT)
    ids = np.array([[1, 2, 3], [4, 5, 0]])
    labels = ids if rank == 3 else ids[:, 0]
    history = model.fit(ids, labels, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    logits = layer(ops.convert_to_tensor(np.ones((2, 4), "float32")), reverse=True)
    assert numpy_mask(logits) is None


@pytest.mark.slow_on("jax")
def test_dropout_falls_while_training_only():
    layer = layers.PositionalEmbedding(10, 64, dropout=0.5)
    token_ids = np.array([[4, 9, 1]])
    assert not np.any(ops.convert_to_numpy(layer(token_ids)) == 0.0)
    dropped = ops.convert_to_numpy(layer(token_ids, training=True)) == 0.0
    assert 0.3 < dropped.mean() < 0.7


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", None])
@pytest.mark.parametrize("index", [3, np.array([3, 1], "int32")], ids=str)
def test_all_beams_of_a_step_stand_at_one_position(positions, index):
    """Row w of a step is column `index` of a call on the beam's whole sequence."""
    layer = layers.PositionalEmbedding(10, 6, positions=positions, max_length=5)
    layer.build()
    token_ids = np.array([[4, 9, 2], [7, 7, 0]], "int32")  # (B, W)
    stepped = evaluated(layer.step, layer)(token_ids, np.asarray(index, "int32"))
    np.testing.assert_array_equal(stepped.shape, (2, 3, 6))
    columns = np.broadcast_to(index, 2)
    for w in range(3):
        whole = np.repeat(token_ids[:, w, None], 5, axis=1)
        expected = ops.convert_to_numpy(layer(whole))[np.arange(2), columns]
        np.testing.assert_allclose(stepped[:, w], expected, atol=1e-6)


@pytest.mark.backends("tensorflow")
def test_strings_and_ragged_ids_are_refused():
    import tensorflow as tf

    embedding = layers.PositionalEmbedding(20, 8)
    for inputs, what in [
        (tf.constant([["one"]]), "EagerTensor of dtype 'string'"),
        (tf.ragged.constant([[1, 2], [3]]), "RaggedTensor of dtype 'int32'"),
    ]:
        message = rf"pad ragged ids with `.to_tensor\(\)`. Received: inputs={what}"
        with pytest.raises(ValueError, match=message):
            embedding(inputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary_size": 0, "model_dim": 4}, "vocabulary_size=0"),
        ({"vocabulary_size": 9, "model_dim": 4.0}, "model_dim=4.0"),
        ({"vocabulary_size": 9, "model_dim": 4, "positions": "up"}, "positions='up'"),
        (
            {"vocabulary_size": 9, "model_dim": 4, "positions": "learned"},
            "`max_length` must .*max_length=None",
        ),
        ({"vocabulary_size": 9, "model_dim": 4, "zero_id": 9}, "`zero_id` .*zero_id=9"),
    ],
)
def test_embedding_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.PositionalEmbedding(**arguments)


@pytest.mark.parametrize("ids", [[[-1]], [[9]], [[1.5]]], ids=str)
def test_ids_that_are_seen_to_be_outside_are_refused(ids):
    layer = layers.PositionalEmbedding(9, 4)
    received = f"{ids[0][0]} to {ids[0][0]}"
    message = (
        rf"`inputs` must be integers in \[0, 9\).*Received: inputs from {received}"
    )
    with pytest.raises(ValueError, match=message):
        layer(np.array(ids))
    assert layer(np.array([[0.0, 8.0]])).shape == (1, 2, 4)  # as of `Sequential`
    wrong = (
        "`inputs` must have the width 4, which the layer was built for with `reverse`"
    )
    with pytest.raises(ValueError, match=wrong):
        layer(np.ones((1, 2, 3), "float32"), reverse=True)


@pytest.mark.parametrize("training", [False, True])
def test_logits_may_have_a_bias(rng, training):
    layer = layers.PositionalEmbedding(10, 6, logits_bias=True)
    layer.build()
    bias = rng.normal(size=10).astype("float32")
    layer.bias_layer.bias.assign(bias)
    x = rng.normal(size=(2, 3, 6)).astype("float32")
    expected = x @ ops.convert_to_numpy(layer.embeddings).T + bias
    for logits in (
        layer(x, reverse=True, training=training),
        layer.logits(x),
        layer.logits(x, layer.logits_kernel()),
    ):
        logits = ops.convert_to_numpy(logits)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_logits_of_vectors_without_a_length_have_no_mask(rng):
    layer = layers.PositionalEmbedding(10, 6)
    layer.build((None, None))
    logits = layer.logits(ops.convert_to_tensor(rng.normal(size=(3, 6)), "float32"))
    assert tuple(logits.shape) == (3, 10)
    assert numpy_mask(logits) is None


@pytest.mark.parametrize("given", ["float32", "bfloat16"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_logits_are_in_the_compute_dtype(given, policy, rng):
    """Keras's layer casts nothing, as token ids are not to be cast."""
    layer = layers.PositionalEmbedding(7, 4, dtype=policy)
    layer.build()
    x = ops.cast(rng.normal(size=(2, 3, 4)), given)
    for training in (False, True):
        logits = layer(x, reverse=True, training=training)
        assert keras.backend.standardize_dtype(logits.dtype) == layer.compute_dtype


def test_logits_are_in_the_reverse_dtype(rng):
    """In half precision the bias would be rounded, and the logits with it."""
    layer = layers.PositionalEmbedding(
        7, 4, dtype="mixed_float16", reverse_dtype="float32", logits_bias=True
    )
    layer.build()
    bias = rng.normal(size=7).astype("float32")
    layer.bias_layer.bias.assign(bias)
    logits = layer(np.zeros((1, 1, 4), "float32"), reverse=True)
    np.testing.assert_array_equal(ops.convert_to_numpy(logits)[0, 0], bias)
    x = keras.Input((None, 4))
    assert layer(x, reverse=True).dtype == "float32"


@pytest.mark.parametrize("mode", [None, "int8"])
@pytest.mark.parametrize(
    "options",
    [
        {"tie_weights": False},
        {"logit_soft_cap": 5.0},
        {"tie_weights": False, "reverse_dtype": "float32"},
    ],
)
def test_logits_are_in_the_dtype_that_is_said(options, mode):
    """Of inputs in float32, as of those in the compute dtype."""
    layer = layers.PositionalEmbedding(7, 4, dtype="mixed_bfloat16", **options)
    x = np.ones((1, 2, 4), "float32")
    layer.build()
    if mode is not None:
        layer.quantize(mode)
    said = layer.compute_output_spec(ops.convert_to_tensor(x), reverse=True).dtype
    logits = layer(x, reverse=True)
    assert said == options.get("reverse_dtype", "bfloat16")
    assert keras.backend.standardize_dtype(logits.dtype) == said


@pytest.mark.backends("torch")
def test_a_layer_that_takes_no_positions_is_told_where_it_needs_them():
    class FromTheFirst(keras.layers.Layer):
        def call(self, x, start=0):
            return x

    layer = layers.PositionalEmbedding(7, 4, positions=FromTheFirst())
    ids = ops.convert_to_tensor([[3], [5]])
    assert tuple(layer.step(ids, 2).shape) == (2, 1, 4)
    with pytest.raises(ValueError, match="`positions` must be a layer that takes `pos"):
        layer.step(ids, ops.convert_to_tensor([2, 4]))


@pytest.mark.parametrize(("start", "message"), [(5, "start=5"), (-1, "start=-1")])
def test_a_start_of_numpy_is_checked_too(start, message):
    layer = layers.PositionalEmbedding(9, 4, positions="learned", max_length=6)
    with pytest.raises(ValueError, match=message):
        layer(np.array([[1, 2]]), start=np.int64(start))
