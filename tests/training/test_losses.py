"""`MaskedCrossentropy` against a float64 loop, and in `fit`."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from keras_seqattn.backend.compile import CompiledFunction
from keras_seqattn.training import MaskedCrossentropy, Perplexity, TokenCrossentropy
from keras_seqattn.training.crossentropy import token_crossentropy
from tests.differentiate import value_and_gradient
from tests.evaluate import examples
from tests.pairs import elsewhere
from tests.training.numerics import reference

V = 11
LABELS = np.array(
    [[5, 3, 9, 2, 0, 0], [4, 4, 1, 0, 0, 0], [7, 8, 9, 10, 1, 2]], "int32"
)
WEIGHTS = np.array([[1, 2, 0, 1, 5, 5], [0.5] * 6, [3, 1, 0, 2, 1, 1]], "float32")


def random_logits(labels, seed=0, scale=3.0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, scale, (*labels.shape, V)).astype("float32")


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("normalize_by", [None, 7])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_loss_and_gradient_are_the_float64_loop(label_smoothing, normalize_by, weights):
    loss = MaskedCrossentropy(label_smoothing, normalize_by=normalize_by)
    logits = random_logits(LABELS)
    total, count, expected = reference(LABELS, logits, weights, label_smoothing)
    divisor = normalize_by or count
    value, gradient = value_and_gradient(
        lambda x: loss(LABELS, x, sample_weight=weights), logits
    )
    np.testing.assert_allclose(value, total / divisor, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected / divisor, atol=1e-7)


def test_gradient_is_that_of_finite_differences():
    loss, logits, step = MaskedCrossentropy(0.2), random_logits(LABELS, scale=1.0), 1e-2
    _, gradient = value_and_gradient(lambda x: loss(LABELS, x), logits)
    for position in [(0, 0, 5), (0, 1, 0), (1, 2, 7), (2, 5, 2), (0, 5, 3)]:
        moved = [logits.copy(), logits.copy()]
        moved[0][position] += step
        moved[1][position] -= step
        up, down = (float(loss(LABELS, x)) for x in moved)
        np.testing.assert_allclose(
            gradient[position], (up - down) / (2 * step), atol=2e-5
        )


def test_a_row_weight_weighs_each_of_its_tokens():
    loss, logits = MaskedCrossentropy(0.1), random_logits(LABELS)
    weights = np.array([2.0, 0.5, 1.0], "float32")
    each = np.repeat(weights[:, None], 6, axis=1)
    assert float(loss(LABELS, logits, weights)) == float(loss(LABELS, logits, each))
    total, count, _ = reference(LABELS, logits, each, 0.1)
    np.testing.assert_allclose(
        float(loss(LABELS, logits, weights)), total / count, rtol=1e-6
    )


@examples(20)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    padding=st.sampled_from([0, 4]),
    label_smoothing=st.sampled_from([0.0, 0.1]),
    pad_id=st.sampled_from([0, 3, -1]),
    seed=st.integers(0, 99),
)
@pytest.mark.slow_on("jax")
def test_padding_changes_nothing(lengths, padding, label_smoothing, pad_id, seed):
    rng = np.random.default_rng(seed)
    tokens = [token for token in range(V) if token != pad_id]
    labels = np.full((3, 5), pad_id, "int32")
    for row, length in enumerate(lengths):
        labels[row, :length] = rng.choice(tokens, length)
    logits = random_logits(labels, seed)
    wider = np.pad(labels, ((0, 1), (0, padding)), constant_values=pad_id)
    wider_logits = random_logits(wider, seed + 1, scale=50.0)
    wider_logits[: labels.shape[0], : labels.shape[1]] = logits
    loss = MaskedCrossentropy(label_smoothing, pad_id=pad_id)
    value, gradient = value_and_gradient(lambda x: loss(labels, x), logits)
    other, other_gradient = value_and_gradient(lambda x: loss(wider, x), wider_logits)
    np.testing.assert_allclose(other, value, rtol=1e-5)
    inside = other_gradient[: labels.shape[0], : labels.shape[1]]
    np.testing.assert_allclose(inside, gradient, atol=1e-6)
    assert not other_gradient[wider == pad_id].any()
    total, count, _ = reference(labels, logits, None, label_smoothing, pad_id)
    np.testing.assert_allclose(value, total / max(count, 1), rtol=1e-5)


@pytest.mark.parametrize("normalize_by", [None, 8])
def test_padding_alone_is_zero_with_zero_gradient(normalize_by):
    labels, loss = (
        np.zeros_like(LABELS),
        MaskedCrossentropy(0.1, normalize_by=normalize_by),
    )
    value, gradient = value_and_gradient(
        lambda x: loss(labels, x), random_logits(labels)
    )
    assert value == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
@pytest.mark.parametrize("normalize_by", [None, 7])
def test_no_tokens_are_a_scalar_zero(shape, normalize_by):
    loss = MaskedCrossentropy(normalize_by=normalize_by)
    value = loss(np.zeros(shape, "int32"), np.zeros((*shape, V), "float32"))
    assert tuple(value.shape) == () and float(value) == 0


def test_huge_logits_stay_finite():
    labels = np.array([[1, 2]], "int32")
    logits = np.full((1, 2, V), -1e30, "float32")
    logits[0, :, 1] = 1e30
    loss = MaskedCrossentropy()
    value, gradient = value_and_gradient(lambda x: loss(labels, x), logits)
    assert value == np.float32(1e30)  # (0 + 2e30) / 2
    np.testing.assert_allclose(gradient[0, 1, 1:3], [0.5, -0.5])


def test_micro_batches_add_up_to_the_whole_when_normalized():
    loss, logits = MaskedCrossentropy(0.1, normalize_by=13), random_logits(LABELS)
    whole, gradient = value_and_gradient(lambda x: loss(LABELS, x), logits)
    parts = [
        value_and_gradient(lambda x, rows=rows: loss(LABELS[rows], x), logits[rows])
        for rows in (slice(0, 1), slice(1, 3))
    ]
    np.testing.assert_allclose(sum(value for value, _ in parts), whole, rtol=1e-6)
    np.testing.assert_allclose(
        np.concatenate([part for _, part in parts]), gradient, atol=1e-7
    )


@pytest.mark.parametrize(("dtype", "digits"), [("bfloat16", 2), ("float16", 3)])
def test_sixteen_bit_logits_are_computed_in_float32(dtype, digits):
    logits = ops.cast(random_logits(LABELS), dtype)
    exact = ops.convert_to_numpy(ops.cast(logits, "float32"))
    total, count, expected = reference(LABELS, exact, None, 0.1)
    loss = MaskedCrossentropy(0.1)
    # As `LossScaleOptimizer` does: without the scale, float16 would underflow.
    value, gradient = value_and_gradient(
        lambda x: loss(LABELS, x) * 2.0**10, ops.cast(logits, dtype)
    )
    np.testing.assert_allclose(value / 2**10, total / count, rtol=1e-6)
    np.testing.assert_allclose(
        gradient / 2**10, expected / count, rtol=10.0**-digits, atol=1e-6
    )


def masked_model():
    """Logits that carry the mask of their input."""
    ids = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(V, 8, mask_zero=True)(ids)
    return keras.Model(ids, keras.layers.Dense(V)(hidden))


def logits_of(model, ids):
    """Float32 NumPy logits, without a mask."""
    return ops.convert_to_numpy(ops.cast(model(ids), "float32"))


def test_an_implicit_mask_changes_nothing():
    inputs = np.where(np.arange(6) < 2, LABELS, 0)  # masks real labels too
    logits = masked_model()(inputs)
    assert logits._keras_mask is not None
    plain = ops.convert_to_numpy(logits)
    loss = MaskedCrossentropy(0.1)
    for weights in (None, WEIGHTS):
        expected = float(loss(LABELS, plain, weights))
        assert loss(LABELS, logits, weights) == expected
    metric = TokenCrossentropy()
    metric.update_state(LABELS, logits)
    total, count, _ = reference(LABELS, plain)
    np.testing.assert_allclose(float(metric.result()), total / count, rtol=1e-6)


@pytest.mark.parametrize(
    ("policy", "jit_compile"),
    [
        pytest.param("float32", True, marks=pytest.mark.slow_on("tensorflow")),
        pytest.param("float32", False, marks=elsewhere),
        pytest.param("mixed_bfloat16", False, marks=elsewhere),
        pytest.param("mixed_float16", True, marks=pytest.mark.slow_on("tensorflow")),
    ],
)
def test_fit_learns(policy, jit_compile, rng):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch.compile takes minutes; the library runs torch eagerly")
    keras.config.set_dtype_policy(policy)
    model = masked_model()
    model.compile(
        keras.optimizers.Adam(0.05), MaskedCrossentropy(0.1), jit_compile=jit_compile
    )
    model.optimizer.build(model.trainable_variables)
    data = (rng.integers(1, V, (16, 5)) * (np.arange(5) < 4)).astype("int32")
    before = model.evaluate(data, data, verbose=0)
    total, count, _ = reference(data, logits_of(model, data), None, 0.1)
    tolerance = 1e-5 if policy == "float32" else 1e-2
    np.testing.assert_allclose(before, total / count, rtol=tolerance)
    model.fit(data, data, batch_size=8, epochs=8, verbose=0, sample_weight=np.ones(16))
    assert model.evaluate(data, data, verbose=0) < 0.6 * before


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch.compile")
@pytest.mark.parametrize("blocks", [False, True])
def test_fit_under_torch_compile(blocks):
    model = masked_model()
    if blocks:
        ids = keras.Input((None,), dtype="int32")
        hidden = layers.PositionalEmbedding(V, 8)(ids)
        hidden = layers.EncoderBlock(2, 8)(hidden)
        model = keras.Model(ids, keras.layers.Dense(V)(hidden))
    model.compile("adam", MaskedCrossentropy(0.1), jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    before = float(MaskedCrossentropy(0.1)(LABELS, model(LABELS)))
    history = model.fit(LABELS, LABELS, batch_size=3, verbose=0).history
    np.testing.assert_allclose(history["loss"][0], before, rtol=1e-5)


def test_fit_accumulates_exactly_when_normalized():
    weights = []
    for steps, batch_size, tokens in ((None, 2, 8), (2, 1, 4)):
        keras.utils.set_random_seed(0)
        model = masked_model()
        model.compile(
            keras.optimizers.SGD(1.0, gradient_accumulation_steps=steps),
            MaskedCrossentropy(normalize_by=tokens),
        )
        model.optimizer.build(model.trainable_variables)
        model.fit(
            LABELS[:2], LABELS[:2], batch_size=batch_size, shuffle=False, verbose=0
        )
        weights.append(model.get_weights())
    for whole, accumulated in zip(*weights, strict=True):
        np.testing.assert_allclose(accumulated, whole, atol=1e-6)


def test_a_compiled_model_loads_with_its_loss(tmp_path):
    model = masked_model()
    model.compile("sgd", MaskedCrossentropy(0.1, normalize_by=9, pad_id=3))
    expected = model.evaluate(LABELS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.loss.get_config() == model.loss.get_config()
    assert loaded.evaluate(LABELS, LABELS, verbose=0) == expected


def test_a_label_out_of_range_is_an_error_or_nan():
    loss, logits = MaskedCrossentropy(0.1), random_logits(LABELS)
    for wrong in (V, -1, -100):
        labels = LABELS.copy()
        labels[1, 1] = wrong
        message = rf"`y_true` must hold token ids in \[0, 11\).*y_true with {wrong}"
        with pytest.raises(ValueError, match=message):
            loss(labels, logits)
        flat = (labels.reshape(-1), logits.reshape(-1, V))
        each = ops.convert_to_numpy(
            token_crossentropy(*map(ops.convert_to_tensor, flat))
        )
        assert np.isnan(each).tolist() == (flat[0] == wrong).tolist()
        _, gradient = value_and_gradient(
            lambda x, y=flat[0]: ops.sum(
                token_crossentropy(ops.convert_to_tensor(y), x)
            ),
            flat[1],
        )
        assert np.isfinite(gradient).all()
        assert not gradient[flat[0] == wrong].any()


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="torch runs eagerly")
def test_a_label_out_of_range_is_nan_in_a_compiled_program():
    loss = CompiledFunction(MaskedCrossentropy())
    assert np.isfinite(loss(LABELS, random_logits(LABELS)))
    assert np.isnan(loss(np.full_like(LABELS, V), random_logits(LABELS)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"label_smoothing": 1.0}, r"`label_smoothing` must be a number in \[0, 1\)."),
        ({"label_smoothing": "a"}, r"Received: label_smoothing='a'\."),
        ({"normalize_by": 0}, r"`normalize_by` must be .* or None.*normalize_by=0\."),
        ({"normalize_by": True}, r"Received: normalize_by=True\."),
        ({"pad_id": 1.5}, r"`pad_id` must be an integer. Received: pad_id=1.5\."),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskedCrossentropy(**arguments)


@pytest.mark.parametrize(
    ("labels", "logits", "weights", "message"),
    [
        ((3, 6), (3, V), None, r"`y_true` must have shape \(B, T\).*\(3, 11\)"),
        ((3, 5), (3, 6, V), None, r"y_true.shape=\(3, 5\), y_pred.shape=\(3, 6, 11\)"),
        ((3, 6, 1), (3, 6, V), None, r"y_true.shape=\(3, 6, 1\)"),
        ((3, 6), (3, 6, V), (6,), r"`sample_weight` must have.*shape=\(6,\)"),
        ((3, 6), (3, 6, V), (3, 6, 1), r"sample_weight.shape=\(3, 6, 1\)"),
    ],
)
def test_bad_shapes(labels, logits, weights, message):
    weights = None if weights is None else np.ones(weights)
    with pytest.raises(ValueError, match=message):
        MaskedCrossentropy()(np.ones(labels, "int32"), np.zeros(logits), weights)


def test_labels_that_are_no_integers():
    labels = np.full((1, 2), 1.5)
    with pytest.raises(ValueError, match=r"`y_true` must hold token ids.*with 1.5"):
        MaskedCrossentropy()(labels, np.zeros((1, 2, V)))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_one_model_takes_weights_of_rows_and_then_of_tokens(jit_compile):
    """One program of TensorFlow serves both: it knows the rank of neither."""
    model = keras.Sequential([keras.layers.Embedding(5, 5)])
    model.compile(
        loss=MaskedCrossentropy(),
        weighted_metrics=[Perplexity()],
        jit_compile=jit_compile and keras.backend.backend() != "torch",
    )
    ids = np.array([[1, 2, 3], [4, 2, 0]])
    of_rows, of_tokens = np.array([1.0, 2.0]), np.array([[1.0, 3, 2], [2, 1, 1]])
    logits = ops.convert_to_numpy(model(ids))
    for weights in (of_rows, of_tokens, of_rows):
        loss, perplexity = model.evaluate(ids, ids, sample_weight=weights, verbose=0)
        expected = float(MaskedCrossentropy()(ids, logits, weights))
        np.testing.assert_allclose([loss, np.log(perplexity)], expected, rtol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("normalize_by", [1, 1.0, 0.25])
def test_a_divisor_may_be_one_or_less(normalize_by):
    logits = random_logits(LABELS)
    total, *_ = reference(LABELS, logits, np.ones(LABELS.shape))
    value = MaskedCrossentropy(normalize_by=normalize_by)(LABELS, logits)
    np.testing.assert_allclose(float(value), total / normalize_by, rtol=1e-5)
