"""Every kernel and every option against the oracle, and the laws of attention."""

import functools
import itertools
import re

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from keras_seqattn.backend import attention, tracing
from keras_seqattn.layers.attention.kernels import explicit
from tests import oracle
from tests.differentiate import upstream_gradient, values_and_gradients
from tests.evaluate import JIT, evaluated, examples, numpy
from tests.pairs import each_case, each_variant, every_pair, named

B, T, S, H, K, V = 2, 4, 5, 4, 6, 3
KERNELS = ["explicit", "fused", "chunked", "auto"]
OPTIONS = {
    "mask": [None, "keys", "pairs", "heads"],
    "bias": [None, "shared", "heads"],
    "scale": [None, 1.0],
    "causal": [False, True],
    "window": [None, 2],
    "offset": [0, 1],
    "groups": [1, 2, 4],
    "value_dim": [K, V],
    "kernel": KERNELS,
}


def draw(rng, groups=H, value_dim=V, mask=None, bias=None):
    """Draws query, key, value, and the mask and bias of the kinds named."""
    query = rng.normal(size=(B, T, H, K)).astype("float32")
    key = rng.normal(size=(B, S, groups, K)).astype("float32")
    value = rng.normal(size=(B, S, groups, value_dim)).astype("float32")
    masks = {"keys": (B, 1, 1, S), "pairs": (B, T, S), "heads": (B, H, T, S)}
    biases = {"shared": (1, 1, T, S), "heads": (B, H, T, S)}
    mask = None if mask is None else rng.random(masks[mask]) < 0.6
    bias = None if bias is None else rng.normal(size=biases[bias]).astype("float32")
    return query, key, value, mask, bias


def check_case(rng, case):
    case = dict(case)
    kernel = case.pop("kernel")
    query, key, value, mask, bias = draw(
        rng, *(case.pop(name) for name in ("groups", "value_dim", "mask", "bias"))
    )
    options = {"mask": mask, "bias": bias, **case}

    def both(query, key, value):
        output = layers.dot_product_attention(
            query, key, value, implementation=kernel, **options
        )
        return output, layers.attention_scores(query, key, **options)

    output, scores = evaluated(both)(query, key, value)
    expected, expected_scores = oracle.attention(query, key, value, **options)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    empty = expected_scores.sum(-1) == 0.0  # (B, H, T)
    assert not output[np.moveaxis(empty, 1, 2)].any(), "not exactly zero"
    assert not scores[empty].any(), "not exactly zero"


@each_case(every_pair(**OPTIONS))
def test_equals_the_oracle(rng, case):
    check_case(rng, case)


@pytest.mark.slow
def test_equals_the_oracle_in_the_full_product(rng):
    for values in itertools.product(*OPTIONS.values()):
        check_case(rng, dict(zip(OPTIONS, values, strict=True)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_has_the_worked_numbers(kernel):
    """Scale 1/8, values as wide as keys."""
    key = np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]], "float32")
    value = np.array([[1, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]], "float32")
    query = np.array([[0, 10, 0], [0, 0, 10], [10, 10, 0]], "float32")
    output = layers.dot_product_attention(
        *(x[None, :, None] for x in (query, key, value)),
        scale=1 / 8,
        implementation=kernel,
    )
    expected = [
        [10.00399, 4.09927e-5, 0],
        [549.99797, 5.49998, 0],
        [5.502029, 2.04965e-5, 0],
    ]
    np.testing.assert_allclose(numpy(output)[0, :, 0], expected, rtol=1e-5)


def test_weights_have_the_worked_numbers():
    """Scale 1/8, and keys along the axes; then scores 112 and 96 at d_k = 64."""
    key = np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]], "float32")
    query = np.array([[0, 10, 0], [0, 0, 10], [10, 10, 0]], "float32")
    scores = layers.attention_scores(
        query[None, :, None], key[None, :, None], scale=1 / 8
    )
    expected = [
        [3.72661e-6, 0.9999888, 3.72661e-6, 3.72661e-6],
        [1.86332e-6, 1.86332e-6, 0.4999981, 0.4999981],
        [0.4999981, 0.4999981, 1.86332e-6, 1.86332e-6],
    ]
    np.testing.assert_allclose(numpy(scores)[0, 0], expected, rtol=1e-5)

    query, key = np.ones((1, 1, 1, 64)), np.ones((1, 2, 1, 64))
    key[0, :, 0] *= np.array([[112], [96]]) / 64
    query, key = query.astype("float32"), key.astype("float32")
    for scale, expected in (
        (None, [0.88079708, 0.11920292]),
        (1.0, [0.99999989, 1.1253516e-7]),
    ):
        scores = layers.attention_scores(query, key, scale=scale)
        np.testing.assert_allclose(numpy(scores)[0, 0, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("scale", "weights"),
    [(1.0, [0.73105858, 0.26894142]), (None, [0.66976155, 0.33023845])],
)
def test_has_the_worked_numbers_with_and_without_scale(kernel, scale, weights):
    """Values of one-hot vectors make the output the weights."""
    query = np.array([1.0, 0.0], "float32").reshape(1, 1, 1, 2)
    key = np.eye(2, dtype="float32").reshape(1, 2, 1, 2)
    output = layers.dot_product_attention(
        query, key, key, scale=scale, implementation=kernel
    )
    np.testing.assert_allclose(numpy(output)[0, 0, 0], weights, rtol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@examples(8)
@given(
    position=st.integers(0, S - 1),
    offset=st.integers(0, 2),
    seed=st.integers(0, 99),
    dropped=st.booleans(),
)
def test_no_future_key_affects_a_row(kernel, position, offset, seed, dropped):
    query, key, value, _, _ = draw(np.random.default_rng(seed))
    dropped = dropped and kernel != "fused"
    options = {
        "causal": True,
        "offset": offset,
        "implementation": kernel,
        "dropout": 0.5 if dropped else 0.0,
        "seed": 7,
    }
    before = numpy(layers.dot_product_attention(query, key, value, **options))
    key[:, position:] += 3.0
    value[:, position:] -= 5.0
    after = numpy(layers.dot_product_attention(query, key, value, **options))
    past = max(0, position - offset)
    np.testing.assert_allclose(after[:, :past], before[:, :past], atol=1e-6)
    if past < T and not dropped:
        assert not np.allclose(after[:, past:], before[:, past:])


@pytest.mark.parametrize("kernel", KERNELS)
@examples(5)
@given(seed=st.integers(0, 99))
def test_a_masked_key_changes_nothing(kernel, seed):
    query, key, value, mask, _ = draw(np.random.default_rng(seed), mask="keys")
    hidden = ~mask[:, 0, 0]
    options = {"mask": mask, "implementation": kernel}
    before = layers.dot_product_attention(query, key, value, **options)
    key[hidden], value[hidden] = 1e3, -1e3
    after = layers.dot_product_attention(query, key, value, **options)
    np.testing.assert_allclose(numpy(after), numpy(before), atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@examples(5)
@given(seed=st.integers(0, 99))
def test_order_of_keys_is_unseen_and_order_of_queries_is_kept(kernel, seed):
    rng = np.random.default_rng(seed)
    query, key, value, mask, bias = draw(rng, mask="heads", bias="heads")
    keys, queries = rng.permutation(S), rng.permutation(T)
    options = {"implementation": kernel}
    output = layers.dot_product_attention(
        query, key, value, mask=mask, bias=bias, **options
    )
    permuted = layers.dot_product_attention(
        query[:, queries],
        key[:, keys],
        value[:, keys],
        mask=mask[:, :, queries][..., keys],
        bias=bias[:, :, queries][..., keys],
        **options,
    )
    np.testing.assert_allclose(numpy(permuted), numpy(output)[:, queries], atol=1e-5)


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_result_of_float64_is_float64(rng, kernel):
    query, key, value, mask, _ = draw(rng, mask="heads")
    query, key, value = (ops.cast(x, "float64") for x in (query, key, value))
    output = layers.dot_product_attention(
        query, key, value, mask=mask, implementation=kernel
    )
    assert keras.backend.standardize_dtype(output.dtype) == "float64"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@each_variant("bias", named(None, "heads"), on_jax=["heads"])
def test_an_empty_row_is_exactly_zero(rng, kernel, dtype, bias):
    query, key, value, mask, bias = draw(rng, mask="heads", bias=bias)
    mask[0, 1, 2] = False
    query, key, value = (ops.cast(x, dtype) for x in (query, key, value))
    options = {"mask": mask, "bias": bias}
    output = layers.dot_product_attention(
        query, key, value, implementation=kernel, **options
    )
    scores = layers.attention_scores(query, key, **options)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    assert keras.backend.standardize_dtype(scores.dtype) == dtype
    assert not numpy(output)[0, 2, 1].any()
    assert not numpy(scores)[0, 1, 2].any()
    assert np.isfinite(numpy(output)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("bias", [None, "heads"])
def test_the_backends_kernel_gets_no_empty_row(rng, monkeypatch, dtype, bias):
    """On a Hopper GPU the gradient of cuDNN's would be NaN there."""
    query, key, value, mask, bias = draw(rng, mask="heads", bias=bias)
    mask[0, 1, 2] = False
    query, key, value = (ops.cast(x, dtype) for x in (query, key, value))
    given = []

    def kernel(query, key, value, bias, mask, is_causal):
        given.append((bias, mask))
        return ops.zeros_like(query)

    monkeypatch.setattr(attention, "fused_attention", kernel)
    layers.dot_product_attention(
        query, key, value, mask=mask, bias=bias, implementation="fused"
    )
    ((bias, mask),) = given
    if mask is None:
        mask = numpy(bias) > explicit.MASKED_SCORE / 2
    assert numpy(mask).any(axis=-1).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_empty_row_leaves_the_gradients_finite(rng, kernel, dtype):
    """A zero made of a NaN by `where` would send the NaN back."""
    query, _, _, mask, bias = draw(rng, mask="heads", bias="heads")
    query, mask, bias = query[..., :1, :], mask[:, :1, :, :T], bias[:, :1, :, :T]
    mask[0, :, 2] = False

    class Biased(keras.layers.Layer):
        def build(self, x_shape):
            self.kernel = self.add_weight(shape=(K, K), name="kernel")

        def call(self, x):
            x = ops.matmul(x, self.kernel)
            return layers.dot_product_attention(
                x, x, x, mask=mask, bias=bias, implementation=kernel
            )

    inputs = keras.Input(query.shape[1:], batch_size=B)
    model = keras.Sequential([inputs, Biased(dtype=dtype)])
    model.compile(keras.optimizers.SGD(), "mse", jit_compile=JIT)
    model.optimizer.build(model.trainable_variables)
    (before,) = model.get_weights()
    model.train_on_batch(query, query)
    (after,) = model.get_weights()
    assert np.isfinite(after).all() and np.any(after != before)


@pytest.mark.parametrize("kernel", KERNELS)
def test_float16_does_not_overflow(kernel):
    """40 * 40 * 64 is past float16's 65,504; scaled first it is 12,800."""
    x = ops.cast(np.full((1, 3, 1, 64), 40.0), "float16")
    output = layers.dot_product_attention(x, x, x, implementation=kernel)
    np.testing.assert_allclose(numpy(output), 40.0, rtol=1e-3)
    scores = layers.attention_scores(x, x)
    np.testing.assert_allclose(numpy(scores), 1 / 3, rtol=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_large_numbers_at_masked_keys_reach_no_row_and_no_gradient(rng, kernel):
    """What is promised of masked places: any finite number, but neither NaN nor inf."""
    query, key, value, *_ = draw(rng)
    mask = np.arange(S).reshape(1, 1, 1, S) < S - 2

    def attend(*inputs):
        return layers.dot_product_attention(*inputs, mask=mask, implementation=kernel)

    expected, gradients = values_and_gradients(attend, (query, key, value))
    key, value = key.copy(), value.copy()
    key[:, -2:], value[:, -2:] = 1e12, -1e12
    given, given_gradients = values_and_gradients(attend, (query, key, value))
    np.testing.assert_allclose(given, expected, atol=1e-6)
    for x, y in zip(given_gradients, gradients, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


LARGE_BIASES = {
    "all keys": np.full((B, 1, T, S), -1e9),
    "most keys": np.where(np.arange(S) < 2, 0.0, -1e9).reshape(1, 1, 1, S),
    "one key": np.where(np.arange(S) == 2, 1e9, 0.0).reshape(1, 1, 1, S),
    "below the masked": np.where(np.arange(S) < 2, 0.0, -6e4).reshape(1, 1, 1, S),
}


@pytest.mark.parametrize("masked", [False, True], ids=["no mask", "mask"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_float16_takes_a_bias_beyond_its_range(rng, kernel, masked):
    """Keys 0 and 1 are masked, which have the largest of some biases."""
    query, key, value, *_ = draw(rng)
    mask = np.array([False, False, *[True] * (S - 2)]).reshape(1, 1, 1, S)
    mask = mask if masked else None

    def attend(*inputs):
        inputs = [ops.cast(x, "float16") for x in inputs]
        return tuple(
            layers.dot_product_attention(
                *inputs, bias=bias.astype("float32"), mask=mask, implementation=kernel
            )
            for bias in LARGE_BIASES.values()
        )

    outputs = evaluated(attend)(query, key, value)
    for output, (name, bias) in zip(outputs, LARGE_BIASES.items(), strict=True):
        assert output.dtype == "float16"
        assert np.isfinite(output).all(), name
        allowed = np.broadcast_to(bias, (B, 1, T, S))[..., 2 if masked else 0 :]
        if allowed.max() > -1e9:  # Which swallows the scores it is added to.
            expected, _ = oracle.attention(query, key, value, bias=bias, mask=mask)
            np.testing.assert_allclose(output, expected, atol=0.01, err_msg=name)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_bias_of_half_a_float_is_precise_far_from_0(rng, dtype):
    """In bfloat16 there is no number between -300 and -302."""
    query, key, value, mask, bias = draw(rng, mask="heads", bias="heads")
    bias = np.where(mask, bias - 300.0, 0.0).astype("float32")

    def attend(query, key, value):
        inputs = [ops.cast(x, dtype) for x in (query, key, value)]
        output = layers.dot_product_attention(
            *inputs, mask=mask, bias=bias, implementation="fused"
        )
        return ops.cast(output, "float32")

    output = evaluated(attend)(query, key, value)
    expected, _ = oracle.attention(query, key, value, mask=mask, bias=bias)
    np.testing.assert_allclose(output, expected, atol=0.05)


def test_the_largest_bias_of_a_row_has_its_whole_gradient_in_float16(rng):
    query, key, value, _, bias = draw(rng, bias="shared")

    def attend(bias):
        inputs = [ops.cast(x, "float16") for x in (query, key, value)]
        return layers.dot_product_attention(*inputs, bias=bias, implementation="fused")

    _, (gradient,) = values_and_gradients(attend, (bias,))
    upstream = upstream_gradient((B, T, H, V))
    *_, expected = oracle.attention_gradients(query, key, value, upstream, bias)
    np.testing.assert_allclose(gradient, expected, atol=0.02)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_beyond_float16_do_not_overflow(rng, kernel):
    """Of inputs of 300 and 3,000: the largest score takes all, and none is NaN."""
    signs = np.sign(rng.normal(size=(2, 1, 4, 1, 64)))
    value = rng.normal(size=(1, 4, 1, 3)).astype("float16")

    def attend(query, key, value):
        return layers.dot_product_attention(query, key, value, implementation=kernel)

    for size in (300.0, 3000.0):
        query, key = (signs * size).astype("float16")
        expected, _ = oracle.attention(query, key, value)
        output = evaluated(attend)(query, key, value)
        np.testing.assert_allclose(output, expected, atol=0.01)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_masked_key_weighs_nothing_in_float16_whatever_its_score(kernel):
    """Its score of 57,600 is further above the other than -0.7 of the range hides."""
    query, key = np.full((1, 1, 1, 1), 240.0), np.array([0.0, 240.0])
    key, value = key.reshape(1, 2, 1, 1), np.array([3.0, 5.0]).reshape(1, 2, 1, 1)
    inputs = [x.astype("float16") for x in (query, key, value)]
    output = layers.dot_product_attention(
        *inputs,
        mask=np.array([True, False]).reshape(1, 1, 1, 2),
        scale=1.0,
        implementation=kernel,
    )
    assert numpy(output).item() == 3.0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("place", ["query", "key", "bias"])
@pytest.mark.parametrize("length", [1, 3])
def test_nan_shows(kernel, place, length):
    """In each row that sees it: a model that has diverged does not look healthy."""
    query, key = (np.ones((1, n, 1, 2), "float32") for n in (2, length))
    bias = np.zeros((1, 1, 2, length), "float32")
    given = {"query": query, "key": key, "bias": bias}
    given[place] = given[place].copy()
    given[place][0, 0, 0, -1] = np.nan
    output = layers.dot_product_attention(**given, value=key, implementation=kernel)
    rows = np.isnan(numpy(output)).all((0, 2, 3))
    assert rows.tolist() == ([True, True] if place == "key" else [True, False])


def test_softmax_is_in_float32():
    """In float16 the scores, 1,000.8 and 1,001.4, would be 1,001 and 1,001.5."""
    query = np.array([40.03125], "float16").reshape(1, 1, 1, 1)
    key = np.array([25.0, 25.015625], "float16").reshape(1, 2, 1, 1)
    scores = numpy(layers.attention_scores(query, key))
    expected = oracle.attention_scores(query, key)
    np.testing.assert_allclose(scores, expected, rtol=1e-3)


def test_dropout_drops_weights_and_keeps_their_sum_on_average():
    query = np.zeros((1, 1, 1, 4), "float32")
    key = np.zeros((1, 4000, 1, 4), "float32")
    value = np.ones((1, 4000, 1, 4), "float32")
    output = layers.dot_product_attention(query, key, value, dropout=0.5, seed=1)
    assert 0.9 < numpy(output).mean() < 1.1
    assert numpy(output).std() == 0.0, "one draw serves the whole vector"
    assert numpy(output)[0, 0, 0, 0] != 1.0


@pytest.mark.parametrize("kernel", KERNELS)
def test_lengths_may_be_unknown_in_a_functional_model(rng, kernel):
    """Under jit and with dynamic batch and lengths it is the same function."""
    inputs = [keras.Input((None, K)), keras.Input((None, K))]
    layer = layers.ScaledDotProductAttention(implementation=kernel)
    outputs = layer(*inputs, use_causal_mask=True)
    model = keras.Model(inputs, outputs)
    query, key, _, _, _ = draw(rng)
    query, key = query[:, :, 0], key[:, :, 0]
    output = model.predict([query, key], verbose=0)
    expected, _ = oracle.attention(
        query[:, :, None], key[:, :, None], key[:, :, None], causal=True
    )
    np.testing.assert_allclose(output, expected[:, :, 0], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": (4, 6)}, r"`query` must have rank 4.*query.shape=(4, 6)"),
        ({"key": (2, 5, 4)}, r"`key` must have rank 4.*key.shape=(2, 5, 4)"),
        ({"value": (1, 2, 5, 4, 3)}, r"`value` must have rank 4.*(1, 2, 5, 4, 3)"),
        ({"key": (2, 5, 3, 6)}, r"`query` must have a multiple.*(2, 5, 3, 6)"),
        ({"value": (2, 5, 2, 3)}, r"`query` must have a multiple.*(2, 5, 2, 3)"),
        ({"key": (2, 5, 0, 6)}, r"`query` must have a multiple.*(2, 5, 0, 6)"),
        ({"key": (2, 5, 4, 7)}, r"`key` must have the width of `query`.*(2, 5, 4, 7)"),
        ({"value": (2, 6, 4, 3)}, r"`key` must.* length of `value`.*(2, 6, 4, 3)"),
    ],
)
def test_says_which_shape_does_not_fit(arguments, message):
    shapes = {"query": (2, 4, 4, 6), "key": (2, 5, 4, 6), "value": (2, 5, 4, 3)}
    inputs = {name: np.zeros(shape) for name, shape in (shapes | arguments).items()}
    message = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(ValueError, match=message):
        layers.dot_product_attention(**inputs)


@pytest.mark.parametrize("shape", [(S,), (T, T), (B, T, T), (B, 3, T, S), (3, T, S)])
def test_says_which_mask_does_not_fit(rng, shape):
    query, key, value, _, _ = draw(rng)
    mask = np.ones(shape, bool)
    message = re.escape(f"mask.shape={shape}")
    with pytest.raises(ValueError, match=f"`mask` must broadcast.*{message}"):
        layers.dot_product_attention(query, key, value, mask=mask)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_a_mask_is_bool(rng, dtype):
    query, key, value, _, _ = draw(rng)
    with pytest.raises(ValueError, match=f"`mask` must be bool.*'{dtype}'"):
        layers.dot_product_attention(query, key, value, mask=np.ones((T, S), dtype))
    with pytest.raises(ValueError, match=f"`mask` must be bool.*'{dtype}'"):
        layers.attention_scores(query, key, mask=np.ones((T, S), dtype))


def test_integers_are_no_query():
    x = np.ones((1, 2, 1, 4), "int32")
    for call in (layers.dot_product_attention, layers.ScaledDotProductAttention()):
        with pytest.raises(ValueError, match="`query` must be of floats.*'int32'"):
            call(x, x, x)


def test_says_which_option_does_not_fit(rng):
    inputs = draw(rng)[:3]
    with pytest.raises(ValueError, match="`implementation`.*'quick'"):
        layers.dot_product_attention(*inputs, implementation="quick")
    with pytest.raises(ValueError, match="`window` must be.*window=0"):
        layers.dot_product_attention(*inputs, window=0)
    with pytest.raises(ValueError, match="`dropout` must be 0.*dropout=0.5"):
        layers.dot_product_attention(*inputs, dropout=0.5, implementation="fused")


def test_short_auto_is_fused_where_the_backend_has_a_kernel():
    shapes = (B, T, H, K), (B, S, H, K), (B, S, H, V)
    fused = {
        "tensorflow": (False, False),
        "jax": (True, False),
        "torch": (True, True),
    }[keras.backend.backend()]
    same_width = layers.choose_implementation(*shapes[:2])
    other_width = layers.choose_implementation(*shapes)
    assert tuple(x == "fused" for x in (same_width, other_width)) == fused
    as_wide_as_heads = layers.choose_implementation(*shapes[:2], (B, S, H, H))
    assert (as_wide_as_heads == "fused") == (other_width == "fused")
    assert layers.choose_implementation(*shapes[:2], dropout=0.1) == "explicit"
    half = layers.choose_implementation(*shapes[:2], dtype="float16")
    assert (half == "fused") == (keras.backend.backend() == "torch")


@pytest.mark.parametrize(
    ("options", "thrifty"),
    [
        ({}, True),
        ({"mask": np.ones((1, 1, 1, 8192), bool)}, True),
        ({"causal": True}, True),
        ({"mask": np.ones((1, 8192, 8192), bool)}, False),
        ({"causal": True, "mask": np.ones((1, 1, 1, 8192), bool)}, False),
        ({"causal": True, "offset": 1}, False),
        ({"causal": True, "window": 64}, False),
        ({"window": 64}, False),
        ({"bias": np.ones((8192,))}, False),
        ({"dropout": 0.1}, False),
    ],
)
def test_long_auto_is_chunked_unless_a_kernel_is_as_thrifty(options, thrifty):
    shapes = [(1, 8192, H, K)] * 2
    backend = keras.backend.backend()
    choices = {
        (device, dtype): layers.choose_implementation(
            *shapes, device=device, dtype=dtype, **options
        )
        for device in ("cpu", "gpu")
        for dtype in ("bfloat16", "float32")
    }
    fused = {
        "tensorflow": [],
        "jax": [("gpu", "bfloat16")],
        "torch": list(choices),
    }[backend]
    for case, choice in choices.items():
        expected = "fused" if thrifty and case in fused else "chunked"
        assert choice == expected, case


def test_auto_counts_pairs():
    choose = layers.choose_implementation
    long, short, unknown = (1, 2**13, H, K), (1, 2**9, H, K), (1, None, H, K)
    assert choose(long, short, window=8) in ("explicit", "fused")
    assert choose(unknown, long, window=8) in ("explicit", "fused")
    assert choose(long, long, window=8) == "chunked"


@pytest.mark.backends("jax")  # where the device makes a difference
@pytest.mark.parametrize(("device", "choice"), [("cpu", "chunked"), ("gpu", "fused")])
def test_auto_looks_the_device_up(monkeypatch, device, choice):
    monkeypatch.setattr(tracing, "device_kind", lambda: device)
    long = (1, 2**13, H, K)
    assert layers.choose_implementation(long, long, dtype="bfloat16") == choice


# The layer.

LAYER_OPTIONS = {
    "rank": [3, 4],
    "query_mask": [False, True],
    "value_mask": [False, True],
    "key": [False, True],
    "attention_mask": [False, True],
    "use_causal_mask": [False, True],
    "return_attention_scores": [False, True],
    "dropout": [0.0, 0.5],
    "scale": [None, 1.0],
    "implementation": KERNELS,
}


@each_case(every_pair(**LAYER_OPTIONS))
def test_layer_equals_the_oracle(rng, case):
    query, key, value, _, _ = draw(rng, value_dim=K)
    if case["rank"] == 3:
        query, key, value = (x[:, :, 0] for x in (query, key, value))
    query_mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
    value_mask = np.array([[1, 1, 0, 1, 0], [0, 0, 1, 1, 1]], bool)
    attention_mask = rng.random((B, T, S)) < 0.7
    layer = layers.ScaledDotProductAttention(
        scale=case["scale"],
        dropout=0.0 if case["implementation"] == "fused" else case["dropout"],
        implementation=case["implementation"],
    )
    attend = functools.partial(
        layer,
        query_mask=query_mask if case["query_mask"] else None,
        value_mask=value_mask if case["value_mask"] else None,
        attention_mask=attention_mask if case["attention_mask"] else None,
        use_causal_mask=case["use_causal_mask"],
        return_attention_scores=case["return_attention_scores"],
        training=False,
    )
    inputs = (query, value, key) if case["key"] else (query, value)
    outputs = keras.tree.flatten(evaluated(attend, layer)(*inputs))
    mask = np.ones((B, T, S), bool)
    if case["query_mask"]:
        mask &= query_mask[:, :, None]
    if case["value_mask"]:
        mask &= value_mask[:, None]
    if case["attention_mask"]:
        mask &= attention_mask
    if case["rank"] == 3:
        query, key, value = (x[:, :, None] for x in (query, key, value))
    expected, expected_scores = oracle.attention(
        query,
        key if case["key"] else value,
        value,
        mask=mask,
        scale=case["scale"],
        causal=case["use_causal_mask"],
    )
    if case["rank"] == 3:
        expected, expected_scores = expected[:, :, 0], expected_scores[:, 0]
    assert len(outputs) == 1 + case["return_attention_scores"]
    for left, right in zip(outputs, (expected, expected_scores), strict=False):
        np.testing.assert_allclose(left, right, atol=1e-5)


def test_layer_drops_while_training_and_returns_the_whole_scores(rng):
    x = rng.normal(size=(2, 6, 8)).astype("float32")
    layer = layers.ScaledDotProductAttention(dropout=0.5, seed=3)
    quiet, scores = layer(x, x, return_attention_scores=True)
    dropped, training_scores = layer(x, x, return_attention_scores=True, training=True)
    np.testing.assert_allclose(numpy(training_scores), numpy(scores), atol=1e-6)
    assert not np.allclose(numpy(dropped), numpy(quiet))
    again = layers.ScaledDotProductAttention(dropout=0.5, seed=3)
    first = again(x, x, training=True)
    np.testing.assert_allclose(numpy(first), numpy(dropped), atol=1e-6)
    assert not np.allclose(numpy(first), numpy(again(x, x, training=True)))


def test_layer_takes_implicit_masks_and_passes_the_query_mask_on():
    embedding = keras.layers.Embedding(9, K, mask_zero=True)
    target_ids, source_ids = np.array([[1, 2, 0]]), np.array([[3, 0, 0, 0]])
    query, value = embedding(target_ids), embedding(source_ids)
    layer = layers.ScaledDotProductAttention()
    output, scores = layer(query, value, return_attention_scores=True)
    expected = (target_ids != 0)[:, :, None] & (source_ids != 0)[:, None]
    np.testing.assert_allclose(numpy(scores), expected, atol=1e-6)
    np.testing.assert_array_equal(output._keras_mask, target_ids != 0)
    np.testing.assert_array_equal(query._keras_mask, target_ids != 0)
    explicit = layer(
        ops.convert_to_numpy(query),
        ops.convert_to_numpy(value),
        query_mask=target_ids != 0,
        value_mask=source_ids != 0,
    )
    np.testing.assert_array_equal(numpy(explicit), numpy(output))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dropout": 1.0}, "`dropout` must be in .*dropout=1.0"),
        ({"dropout": -0.5}, "`dropout` must be in .*dropout=-0.5"),
        ({"implementation": "quick"}, "`implementation` must.*'quick'"),
    ],
)
def test_layer_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.ScaledDotProductAttention(**arguments)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lowest", [-np.inf, np.finfo("float32").min, -1e30])
def test_a_bias_that_hides_a_pair_is_a_mask(rng, kernel, lowest):
    query, key, value, *_ = draw(rng)
    bias = rng.normal(size=(1, H, T, S)).astype("float32")
    hidden = rng.random(bias.shape) < 0.4
    hidden[:, :, 1] = True  # a query that may attend to nothing
    hidden[:, :, 2, 1:] = True  # and one whose only key a mask hides
    mask = np.ones((B, 1, 1, S), bool)
    mask[..., 0] = False
    expected = layers.dot_product_attention(
        query, key, value, mask=mask & ~hidden, bias=bias, implementation=kernel
    )
    output = layers.dot_product_attention(
        *(query, key, value),
        mask=mask,
        bias=np.where(hidden, lowest, bias).astype("float32"),
        implementation=kernel,
    )
    np.testing.assert_array_equal(numpy(output), numpy(expected))
    assert not numpy(output)[:, 1:3].any()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_bias_without_the_first_axes_is_the_same_along_them(rng, kernel, rank):
    """Of rank 3 it is `(H, T, S)`, where a mask is `(B, T, S)`; B equals H here."""
    query, key, value, *_ = draw(rng)
    query, key, value = (x[:, :, :B] for x in (query, key, value))
    bias = rng.normal(size=(B, T, S)[3 - rank :]).astype("float32")
    bias[rng.random(bias.shape) < 0.3] = -np.inf
    every = np.broadcast_to(bias, (B, B, T, S))
    output, expected = (
        numpy(
            layers.dot_product_attention(
                query, key, value, bias=x, implementation=kernel
            )
        )
        for x in (bias, every)
    )
    np.testing.assert_allclose(output, expected, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_result_has_the_dtype_of_the_query(rng, kernel):
    query, key, value, *_ = draw(rng)
    output = layers.dot_product_attention(
        query.astype("float16"), key, value, implementation=kernel
    )
    assert keras.backend.standardize_dtype(output.dtype) == "float16"


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_default_dtype_of_keras_makes_no_difference(rng, kernel):
    query, key, value, mask, bias = draw(rng, mask="heads", bias="heads")
    mask[0, :, 1] = False  # a query that may attend to nothing
    options = {} if kernel == "fused" else {"dropout": 0.4, "seed": 1}

    def attend(*inputs):
        return layers.dot_product_attention(
            *inputs, mask=mask, bias=bias, implementation=kernel, **options
        )

    expected = values_and_gradients(attend, [query, key, value])
    keras.config.set_floatx("float16")
    output, gradients = values_and_gradients(attend, [query, key, value])
    for x, right in zip([output, *gradients], [expected[0], *expected[1]], strict=True):
        np.testing.assert_allclose(x, right, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_options_may_be_scalars_of_numpy(rng, kernel):
    query, key, value, _, bias = draw(rng, bias="heads")
    dropout = 0.0 if kernel == "fused" else 0.4

    def attend(bias, **options):
        return layers.dot_product_attention(
            query, key, value, bias=bias, seed=1, implementation=kernel, **options
        )

    def values(**options):
        return values_and_gradients(lambda x: attend(x, **options), [bias])

    output, gradients = values(window=np.int64(2), dropout=np.float64(dropout))
    expected = values(window=2, dropout=dropout)
    np.testing.assert_array_equal(output, expected[0])
    np.testing.assert_array_equal(gradients, expected[1])
    np.testing.assert_array_equal(
        numpy(attend(None, causal=np.False_)), numpy(attend(None))
    )
