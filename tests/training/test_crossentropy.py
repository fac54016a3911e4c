"""`projected_crossentropy` against a float64 loop, alone, in the loss and in `fit`."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.backend.compile import CompiledFunction
from keras_seqattn.layers import PositionalEmbedding, TokenLogits
from keras_seqattn.layers.embedding.logits import factors_of, keep_factors
from keras_seqattn.training import (
    MaskedCrossentropy,
    Perplexity,
    crossentropy,
    linear_crossentropy,
)
from keras_seqattn.training.crossentropy import projected_crossentropy
from tests.differentiate import value_and_gradient, values_and_gradients
from tests.training.numerics import reference

BACKEND = keras.backend.backend()
# Not on torch, whose logits carry no factors, nor on JAX, which compiles for seconds.
traced = pytest.mark.backends("tensorflow")
SHAPE, D, V = (3, 50), 6, 11  # 150 tokens are three blocks of 64 rows.
rng = np.random.default_rng(0)
HIDDEN = rng.normal(size=(*SHAPE, D)).astype("float32")
KERNEL = rng.normal(size=(D, V)).astype("float32")
LABELS = rng.integers(0, V, SHAPE).astype("int32")
WEIGHTS = rng.choice([0.0, 0.5, 1.0, 3.0], SHAPE).astype("float32")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("keras_seqattn.training.crossentropy.BLOCK_LOGITS", 1)


def projected(hidden, kernel, labels=LABELS, weights=WEIGHTS, label_smoothing=0.0):
    hidden = ops.reshape(hidden, (-1, D))
    kernel = ops.convert_to_tensor(kernel)
    labels, weights = labels.reshape(-1), weights.reshape(-1)
    weights = ops.convert_to_tensor(weights)
    return projected_crossentropy(
        hidden, kernel, ops.convert_to_tensor(labels), weights, label_smoothing
    )


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    "weights",
    [WEIGHTS, np.ones(SHAPE, "float32"), (WEIGHTS > 2).astype("float32")],
    ids=["some", "all", "few"],
)
def test_sum_and_both_gradients_are_the_float64_loop(label_smoothing, weights):
    logits = HIDDEN.astype("float64") @ KERNEL
    total, _, gradient = reference(LABELS, logits, weights, label_smoothing, pad_id=-1)
    value, hidden_gradient = value_and_gradient(
        lambda x: projected(x, KERNEL, LABELS, weights, label_smoothing)[0], HIDDEN
    )
    np.testing.assert_allclose(value, total, rtol=1e-5)
    np.testing.assert_allclose(hidden_gradient, gradient @ KERNEL.T, atol=1e-5)
    _, kernel_gradient = value_and_gradient(
        lambda x: projected(HIDDEN, x, LABELS, weights, label_smoothing)[0], KERNEL
    )
    np.testing.assert_allclose(
        kernel_gradient, np.einsum("btd,btv->dv", HIDDEN, gradient), atol=1e-4
    )


def test_each_token_comes_beside_the_sum_and_has_no_gradient():
    _, each = projected(HIDDEN, KERNEL, label_smoothing=0.1)
    for label, logits, weight, value in zip(
        LABELS.ravel(),
        (HIDDEN @ KERNEL).reshape(-1, 1, V),
        WEIGHTS.ravel(),
        ops.convert_to_numpy(each),
        strict=True,
    ):
        expected, *_ = reference(np.array([label]), logits, pad_id=-1)
        np.testing.assert_allclose(value, expected if weight else 0.0, rtol=1e-5)
    both = value_and_gradient(lambda x: sum(map(ops.sum, projected(x, KERNEL))), HIDDEN)
    alone = value_and_gradient(lambda x: projected(x, KERNEL)[0], HIDDEN)
    np.testing.assert_array_equal(both[1], alone[1])


def test_a_label_out_of_range_is_nan_without_gradient():
    labels, weights = LABELS.copy(), np.ones(SHAPE, "float32")
    labels[1, 3], labels[2, 4] = V, -7
    weights[2, 4] = 0.0
    value, gradient = value_and_gradient(
        lambda x: projected(x, KERNEL, labels, weights)[0], HIDDEN
    )
    assert np.isnan(value)
    assert np.isfinite(gradient).all()
    assert not gradient[1, 3].any()
    assert not gradient[2, 4].any()
    assert gradient[1, 2].all()


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_a_label_out_of_range_is_nan_even_of_weight_zero():
    """In a compiled program, by factors as by logits."""
    wrong, weights = LABELS.copy(), np.ones(SHAPE, "float32")
    wrong[1, 3], weights[1, 3] = V, 0.0

    def losses(labels):
        hidden, kernel = map(ops.convert_to_tensor, (HIDDEN, KERNEL))
        loss, logits = MaskedCrossentropy(0.1), ops.matmul(hidden, kernel)
        plain = loss(labels, logits, weights)
        factored = loss(labels, keep_factors(logits, hidden, kernel), weights)
        linear = linear_crossentropy(hidden, kernel, labels, sample_weight=weights)
        return ops.stack([plain, factored, linear])

    program = CompiledFunction(losses)
    assert np.isfinite(program(LABELS)).all()
    assert np.isnan(program(wrong)).all()


def test_nothing_but_padding_is_zero():
    loss = MaskedCrossentropy(0.1)
    labels = np.zeros(SHAPE, "int32")

    def function(hidden):
        logits = ops.matmul(hidden, KERNEL)
        return loss(labels, keep_factors(logits, hidden, KERNEL))

    value, gradient = value_and_gradient(function, HIDDEN)
    assert value == 0.0
    assert not gradient.any()


def test_a_single_token_that_a_compiled_program_knows():
    """XLA took the loop over its block for one that makes no step."""
    labels, zeros = np.array([[0, 3, 0]]), np.zeros((1, 3, D), "float32")
    program = CompiledFunction(lambda x: linear_crossentropy(x, KERNEL, labels))
    np.testing.assert_allclose(program(zeros), np.log(V), rtol=1e-6)


@pytest.mark.skipif(BACKEND == "torch", reason="logits carry no factors on torch")
@pytest.mark.parametrize("normalize_by", [None, 7.0])
@pytest.mark.parametrize("weights", [None, WEIGHTS, np.array([1.0, 2.0, 0.5])])
def test_loss_of_factors_is_the_loss_of_logits(normalize_by, weights):
    loss = MaskedCrossentropy(0.1, normalize_by=normalize_by)

    def function(hidden, projected):
        logits = ops.matmul(hidden, KERNEL)
        if projected:
            keep_factors(logits, hidden, ops.convert_to_tensor(KERNEL))
        return loss(LABELS, logits, weights)

    value, gradient = value_and_gradient(lambda x: function(x, True), HIDDEN)
    expected, expected_gradient = value_and_gradient(
        lambda x: function(x, False), HIDDEN
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


@pytest.mark.skipif(BACKEND == "torch", reason="logits carry no factors on torch")
def test_the_share_of_a_replica_is_by_its_weights_not_by_those_scaled(monkeypatch):
    """The largest, by which the loss of factors scales them, is each replica's own."""
    weighed = []

    def share_of_mean(mean, weight):
        weighed.append(float(weight))
        return mean

    monkeypatch.setattr("keras_seqattn.training.losses.share_of_mean", share_of_mean)
    logits = ops.matmul(HIDDEN, KERNEL)
    MaskedCrossentropy(pad_id=-1)(LABELS, logits, WEIGHTS)
    keep_factors(logits, HIDDEN, ops.convert_to_tensor(KERNEL))
    MaskedCrossentropy(pad_id=-1)(LABELS, logits, WEIGHTS)
    np.testing.assert_allclose(weighed, [WEIGHTS.sum()] * 2, rtol=1e-5)


@pytest.mark.skipif(BACKEND == "torch", reason="logits carry no factors on torch")
@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_of_factors_has_the_bias(tied):
    layer, kernel, options = TokenLogits(V, use_bias=True), KERNEL, {}
    if tied:
        layer = PositionalEmbedding(V, D, positions=None, logits_bias=True)
        kernel, options = KERNEL.T, {"reverse": True}
    layer.build((None, None, D))
    bias = np.random.default_rng(1).normal(size=V).astype("float32")

    def computed(training):
        def function(hidden, *weights):
            logits, _ = layer.stateless_call(
                weights, [], hidden, training=training, **options
            )
            assert (factors_of(logits) is not None) == training
            return MaskedCrossentropy(0.1)(LABELS, logits, WEIGHTS)

        return values_and_gradients(function, [HIDDEN, kernel, bias])

    (value, gradients), (expected, others) = map(computed, (True, False))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for gradient, other in zip(gradients, others, strict=True):
        assert np.abs(other).max() > 1e-3
        np.testing.assert_allclose(gradient, other, atol=1e-6)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_size_of_weights_does_not_matter_in_float16(factor):
    hidden, kernel = (ops.cast(x, "float16") for x in (HIDDEN, KERNEL))

    def computed(weights):
        return value_and_gradient(
            lambda x: linear_crossentropy(x, kernel, LABELS, sample_weight=weights),
            hidden,
        )

    weights = np.linspace(0.5, 1.0, LABELS.size).reshape(LABELS.shape)
    value, gradient = computed(weights * factor)
    expected, exact = computed(weights)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, exact, rtol=2e-3, atol=1e-5)


def test_the_default_dtype_of_keras_makes_no_difference():
    def computed():
        return value_and_gradient(
            lambda x: linear_crossentropy(x, KERNEL, LABELS, sample_weight=WEIGHTS),
            HIDDEN,
        )

    expected, exact = computed()
    keras.config.set_floatx("float16")
    value, gradient = computed()
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(gradient, exact)


@pytest.mark.parametrize("weights", [None, WEIGHTS, np.array([1.0, 2.0, 0.5])])
def test_linear_crossentropy_is_the_loss_of_logits(weights):
    def linear(hidden):
        return linear_crossentropy(
            hidden, KERNEL, LABELS, sample_weight=weights, label_smoothing=0.1
        )

    def plain(hidden):
        return MaskedCrossentropy(0.1)(LABELS, ops.matmul(hidden, KERNEL), weights)

    value, gradient = value_and_gradient(linear, HIDDEN)
    expected, expected_gradient = value_and_gradient(plain, HIDDEN)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)
    assert not ops.convert_to_numpy(linear_crossentropy(HIDDEN, KERNEL, 0 * LABELS))


@pytest.mark.parametrize("pad_id", [-1, 4])
def test_linear_crossentropy_leaves_out_the_padding_that_it_is_told(pad_id):
    labels = LABELS.copy()
    labels[:, 30:] = pad_id
    expected = MaskedCrossentropy(pad_id=pad_id)(labels, HIDDEN @ KERNEL)
    found = linear_crossentropy(HIDDEN, KERNEL, labels, pad_id=pad_id)
    np.testing.assert_allclose(float(found), float(expected), rtol=1e-5)


@pytest.mark.parametrize("part", [np.s_[:0], np.s_[:, :0]], ids=["rows", "tokens"])
def test_linear_crossentropy_of_nothing_is_zero(part):
    def computed(hidden, kernel):
        return linear_crossentropy(hidden, kernel, LABELS[part])

    value, gradients = values_and_gradients(computed, [HIDDEN[part], KERNEL])
    assert value == 0.0
    assert not gradients[1].any()


def test_linear_crossentropy_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"`kernel` \(D, V\).*kernel.shape=\(2, "):
        linear_crossentropy(HIDDEN, KERNEL[:2], LABELS)
    with pytest.raises(ValueError, match="`labels` must hold .*labels with 99"):
        linear_crossentropy(HIDDEN, KERNEL, LABELS * 0 + 99)


@pytest.mark.parametrize(
    ("hidden", "kernel"),
    [("bfloat16", "float32"), ("float32", "float16"), ("int32", "int32")],
)
def test_linear_crossentropy_refuses_dtypes_that_do_not_fit(hidden, kernel):
    message = rf"`kernel` must be of.*hidden.dtype={hidden}, kernel.dtype={kernel}\."
    with pytest.raises(ValueError, match=message):
        linear_crossentropy(ops.cast(HIDDEN, hidden), ops.cast(KERNEL, kernel), LABELS)


def tied_layer():
    layer = PositionalEmbedding(V, D, positions=None)
    layer.build((None, None))
    return layer, lambda x, **options: layer(x, reverse=True, **options)


def untied_layer():
    layer = TokenLogits(V)
    layer.build((None, None, D))
    return layer, layer


@pytest.mark.skipif(BACKEND == "torch", reason="logits carry no factors on torch")
@pytest.mark.parametrize("make", [tied_layer, untied_layer])
def test_logits_carry_their_factors_while_training(make):
    _, logits_of = make()
    assert factors_of(logits_of(HIDDEN)) is None
    assert factors_of(logits_of(HIDDEN, training=False)) is None
    logits = logits_of(HIDDEN, training=True)
    product = ops.matmul(factors_of(logits).hidden, factors_of(logits).kernel)
    np.testing.assert_allclose(logits, product, atol=1e-5)


@pytest.mark.skipif(BACKEND == "torch", reason="logits carry no factors on torch")
def test_logits_that_are_no_product_carry_none():
    layer = PositionalEmbedding(V, D, positions=None, logit_soft_cap=3.0)
    layer.build((None, None))
    assert factors_of(layer(HIDDEN, reverse=True, training=True)) is None
    activated = TokenLogits(V, activation="tanh")
    assert factors_of(activated(HIDDEN, training=True)) is None


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(
    ("make", "policy", "jit_compile"),
    [  # every pair of these options
        pytest.param(tied_layer, "float32", False, marks=traced),
        pytest.param(
            tied_layer, "mixed_bfloat16", True, marks=pytest.mark.slow_on("tensorflow")
        ),
        pytest.param(tied_layer, "mixed_float16", False, marks=traced),
        pytest.param(
            untied_layer, "float32", True, marks=pytest.mark.slow_on("tensorflow")
        ),
        pytest.param(untied_layer, "mixed_bfloat16", False, marks=traced),
        (untied_layer, "mixed_float16", True),
    ],
)
def test_fit_learns_as_it_does_from_logits(make, policy, jit_compile, monkeypatch):
    if BACKEND == "torch" and jit_compile:
        pytest.skip("torch.compile takes minutes; the library runs torch eagerly")

    def losses(factored):
        with monkeypatch.context() as patch:
            if not factored:
                patch.setattr("keras_seqattn.training.losses.factors_of", _none)
            keras.utils.set_random_seed(3)
            keras.config.set_dtype_policy(policy)
            try:
                inputs = keras.Input((None, D))
                _, logits_of = make()
                hidden = keras.layers.Dense(D)(inputs)
                model = keras.Model(inputs, logits_of(hidden))
            finally:
                keras.config.set_dtype_policy("float32")
            model.compile(
                keras.optimizers.SGD(0.1),
                MaskedCrossentropy(0.1),
                metrics=[Perplexity()],
                jit_compile=jit_compile,
            )
            model.optimizer.build(model.trainable_variables)
            history = model.fit(HIDDEN, LABELS, batch_size=3, epochs=3, verbose=0)
            return history.history

    ours, expected = losses(True), losses(False)
    tolerance = 1e-5 if policy == "float32" else 0.02
    for name in ("loss", "perplexity"):
        np.testing.assert_allclose(ours[name], expected[name], rtol=tolerance)
    assert ours["loss"][2] < ours["loss"][0]


def _none(logits):
    return None


@pytest.mark.skipif(BACKEND == "torch", reason="logits carry no factors on torch")
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_a_metric_takes_what_the_loss_has_computed(weights, monkeypatch):
    computed = []

    def token_crossentropy(*args):
        computed.append(args)
        return crossentropy.token_crossentropy(*args)

    monkeypatch.setattr(
        "keras_seqattn.training.metrics.token_crossentropy", token_crossentropy
    )
    _, logits_of = untied_layer()
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, logits_of(inputs))
    model.compile("sgd", MaskedCrossentropy(0.1), metrics=[Perplexity()])
    if BACKEND == "jax":  # Keras builds the metrics by a call of its own.
        model.evaluate(HIDDEN, LABELS, verbose=0)
        computed.clear()
    model.fit(HIDDEN, LABELS, sample_weight=weights, verbose=0)
    # The loss of weighted tokens passes over those that the metric counts.
    assert len(computed) == (0 if weights is None else 1)


@pytest.mark.skipif(BACKEND != "jax", reason="reads the program that JAX compiles")
def test_compiled_program_has_no_logits():
    import jax

    layer, _ = untied_layer()
    loss = MaskedCrossentropy()

    def program(hidden, training):
        return loss(LABELS, layer(hidden, training=training))

    def text(training):
        gradient = jax.jit(jax.grad(lambda x: program(x, training)))
        return gradient.lower(HIDDEN).compile().as_text()

    assert f"[{LABELS.size},{V}]" in text(False)
    assert f"[{LABELS.size},{V}]" not in text(True)
    assert f"[{SHAPE[0]},{SHAPE[1]},{V}]" not in text(True)


@pytest.mark.backends("tensorflow")
def test_a_size_that_is_not_known_fits_one_that_is():
    import tensorflow as tf

    specs = tf.TensorSpec((None, 6), "int32"), tf.TensorSpec((4, None, 11))
    loss = tf.function(MaskedCrossentropy(), input_signature=specs)
    labels, logits = np.ones((4, 6), "int32"), np.zeros((4, 6, 11), "float32")
    assert float(loss(labels, logits)) == pytest.approx(np.log(11))


@pytest.mark.parametrize("tokens", [3, 64, 1000])
def test_blocks_are_not_larger_than_what_they_hold(monkeypatch, tokens):
    """A small vocabulary would allow blocks of far more vectors than there are."""
    monkeypatch.setattr("keras_seqattn.training.crossentropy.BLOCK_LOGITS", 2**20)
    ones = ops.ones((tokens,))
    blocks = crossentropy._TokenBlocks(ones, ones, (512, 8), 0.0, None, 0.0)
    assert blocks.size == tokens + tokens % 2
    assert crossentropy.block_rows(8, 512) == 2**11


@traced
def test_a_replica_may_have_no_tokens():
    import tensorflow as tf

    @tf.function
    def total(hidden, labels):
        weights = ops.ones_like(labels, dtype="float32")
        return projected_crossentropy(
            hidden, ops.convert_to_tensor(KERNEL), labels, weights
        )[0]

    spec = tf.TensorSpec([None, D]), tf.TensorSpec([None], "int32")
    compiled = total.get_concrete_function(*spec)
    assert compiled(tf.zeros((0, D)), tf.zeros((0,), "int32")) == 0.0
    assert compiled(tf.zeros((2, D)), tf.zeros((2,), "int32")) > 0.0
