"""Stacks that leave out padding: the same numbers and gradients, of fewer vectors."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.attention import unpadding
from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.training import MaskedCrossentropy
from tests.differentiate import upstream_gradient, value_and_gradient
from tests.pairs import every_pair
from tests.small import translation_model

pytestmark = pytest.mark.backends("tensorflow", "torch")
B, L, D = 4, 5, 8
LENGTHS = {"some": [3, 5, 1, 4], "all": [5] * B, "none": [0] * B, "gap": [0, 5, 0, 2]}
rng = np.random.default_rng(0)
X = rng.normal(size=(B, L, D)).astype("float32")


def mask_of(lengths):
    return np.arange(L) < np.array(LENGTHS[lengths])[:, None]


@pytest.fixture(autouse=True)
def multiple(request, monkeypatch):
    value = getattr(request, "param", 3)
    monkeypatch.setattr(unpadding, "MULTIPLE", value)
    return value


with_multiples = pytest.mark.parametrize("multiple", [1, 3, 128], indirect=True)


@with_multiples
@pytest.mark.parametrize("lengths", LENGTHS)
def test_tokens_are_real_and_as_few_others_as_make_their_number_round(
    lengths, multiple
):
    mask = mask_of(lengths)
    tokens = Unpadding(ops.convert_to_tensor(mask))
    vectors = ops.convert_to_numpy(tokens.unpad(ops.convert_to_tensor(X)))[0]
    real = mask.sum()
    assert len(vectors) == min(-(-max(real, 1) // multiple) * multiple, B * L)
    np.testing.assert_array_equal(vectors[:real], X[mask])
    assert len(np.unique(ops.convert_to_numpy(tokens.positions))) == len(vectors)


@with_multiples
@pytest.mark.parametrize("lengths", LENGTHS)
def test_there_and_back(lengths):
    mask = mask_of(lengths)
    tokens = Unpadding(ops.convert_to_tensor(mask))
    back = ops.convert_to_numpy(tokens.pad(tokens.unpad(ops.convert_to_tensor(X))))
    taken = np.isin(np.arange(B * L), ops.convert_to_numpy(tokens.positions))
    taken = taken.reshape(B, L)
    assert taken[mask].all()
    np.testing.assert_array_equal(back, np.where(taken[..., None], X, 0.0))

    def function(x):
        y = tokens.pad(tokens.unpad(x))
        return ops.sum(y * ops.convert_to_tensor(upstream_gradient(X.shape)))

    _, gradient = value_and_gradient(function, X)
    expected = np.where(taken[..., None], upstream_gradient(X.shape), 0.0)
    np.testing.assert_array_equal(gradient, expected)


def test_heads_go_to_their_positions_and_back():
    mask = mask_of("some")
    tokens = Unpadding(ops.convert_to_tensor(mask))
    heads = X.reshape(B, L, 2, D // 2)
    vectors = tokens.unpad(ops.convert_to_tensor(X))
    vectors = ops.reshape(vectors, (1, -1, 2, D // 2))
    placed = ops.convert_to_numpy(tokens.inputs(vectors))
    np.testing.assert_array_equal(placed[mask], heads[mask])
    back = ops.convert_to_numpy(tokens.output(ops.convert_to_tensor(placed), None))
    np.testing.assert_array_equal(back, ops.convert_to_numpy(vectors))


@with_multiples
def test_padding_alone_gives_numbers_and_no_gradient(multiple):
    mask = mask_of("none")
    _, gradient = value_and_gradient(lambda x: ops.sum(encoded(x, mask)), X)
    assert not gradient.any()
    stack = layers.TransformerStack([layers.EncoderBlock(2, 6)])
    assert np.isfinite(ops.convert_to_numpy(stack(X, mask=mask, training=True))).all()


@pytest.mark.backends("tensorflow")
def test_stacks_work_in_branches_of_a_function():
    import tensorflow as tf

    encode = layers.TransformerStack([layers.EncoderBlock(2, 6)])
    encode.build(X.shape)

    @tf.function(autograph=False)
    def function(x, mask):
        def call():
            return encode(x, mask=mask, training=True)

        return tf.cond(tf.reduce_any(mask), call, lambda: x) + call()

    mask = mask_of("some")
    y = function(tf.constant(X), tf.constant(mask))
    expected = 2 * encode(tf.constant(X), mask=tf.constant(mask))
    np.testing.assert_allclose(y.numpy()[mask], expected.numpy()[mask], atol=1e-5)


OPTIONS = {
    "normalize_first": [True, False],
    "norm": ["layer", "rms"],
    "attention": [
        {"num_key_value_heads": 1, "positions": "rotary"},
        {"positions": "relative", "use_gate": True},
        {"implementation": "chunked", "qk_norm": True},
        {"score": "additive"},
        {"key_dim": 3, "value_dim": 5, "implementation": "fused"},
    ],
    "gated": [True, False],
    "gradient_checkpointing": [False, True],
}


def encoded(x, mask, unpad=True, **options):
    """Returns the output of an encoder and a decoder, of real positions."""
    keras.utils.set_random_seed(1)
    encode = layers.TransformerStack(
        [layers.EncoderBlock(2, 6, **options)], unpad=unpad
    )
    block = layers.DecoderBlock(2, 6, **options)
    norm = keras.layers.LayerNormalization()
    decode = layers.TransformerStack([block, block], norm, unpad=unpad)
    encode.build(X.shape), decode.build(X.shape, X.shape)
    reverse = np.ascontiguousarray(mask[::-1])
    mask, reverse = (ops.convert_to_tensor(m) for m in (mask, reverse))
    y = encode(x, mask=mask, training=True)
    y = decode(x, y, x_mask=reverse, memory_mask=mask, training=True)
    return ops.where(reverse[..., None], y, 0.0)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("options", every_pair(**OPTIONS))
def test_stacks_return_the_same_and_have_the_same_gradient(options):
    mask = mask_of("some")

    def function(x, unpad):
        y = encoded(x, mask, unpad, **options)
        return ops.sum(y * ops.convert_to_tensor(upstream_gradient(X.shape)))

    expected, expected_gradient = value_and_gradient(lambda x: function(x, False), X)
    value, gradient = value_and_gradient(lambda x: function(x, True), X)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-4)


@with_multiples
def test_what_stands_at_padding_is_not_read(multiple):
    """Only the padding that fills up a multiple of tokens is: none where it is 1."""
    mask = mask_of("some")
    mask = mask & mask[::-1]
    x = np.where(mask[..., None], X, np.nan)

    def function(x):
        upstream = ops.convert_to_tensor(upstream_gradient(X.shape))
        return ops.sum(encoded(x, mask) * upstream)

    value, gradient = value_and_gradient(function, x.astype("float32"))
    assert np.isfinite(value) == (multiple == 1)
    if multiple == 1:
        np.testing.assert_array_equal(gradient != 0.0, np.repeat(mask[..., None], D, 2))


def fitted(unpad, jit_compile, **options):
    """Trains a small model; returns the losses and the weights."""
    keras.utils.set_random_seed(2)
    model = translation_model(
        11, encoder_layers=2, decoder_layers=2, intermediate_dim=12, **options
    )
    for layer in model.operations:
        if isinstance(layer, layers.TransformerStack):
            assert layer.unpad
            layer.unpad = unpad
    model.compile(
        keras.optimizers.SGD(0.3), MaskedCrossentropy(), jit_compile=jit_compile
    )
    ids = np.where(mask_of("some"), rng_ids(), 0)
    inputs = {"source_ids": ids[::-1], "target_ids": ids}
    history = model.fit(inputs, ids, epochs=3, batch_size=2, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def rng_ids():
    return np.random.default_rng(5).integers(3, 11, (B, L))


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(
    "jit_compile",
    [
        False,
        pytest.param(
            True, marks=[pytest.mark.slow, pytest.mark.backends("tensorflow")]
        ),
    ],
)
def test_a_model_learns_the_same(jit_compile):
    options = {"dropout": 0.0, "jit_compile": jit_compile}
    losses, weights = fitted(True, **options)
    expected_losses, expected = fitted(False, **options)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for x, y in zip(weights, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("blocks", ["encoder", "decoder"])
def test_attention_drops_the_same_weights(blocks):
    """Those of all positions are drawn, whether padding is left out or not."""
    mask = mask_of("some")
    memory = {"memory": X, "memory_mask": mask[::-1]} if blocks == "decoder" else {}

    def output(unpad, training=True):
        keras.utils.set_random_seed(0)
        options = {"attention_dropout": 0.5, "attention": {"seed": 5}}
        if memory:
            options["cross_attention"] = {"seed": 6}
        kind = layers.DecoderBlock if memory else layers.EncoderBlock
        stack = layers.TransformerStack([kind(2, 6, **options)], unpad=unpad)
        y = stack(X, mask=mask, training=training, **memory)
        return ops.convert_to_numpy(y)[mask]

    dropped = output(True)
    np.testing.assert_allclose(dropped, output(False), atol=1e-5)
    assert not np.allclose(dropped, output(True, training=False), atol=1e-2)


def test_samples_skip_a_sublayer_one_by_one_in_a_stack_too():
    rows = 32
    x, mask = np.tile(X, (rows // B, 1, 1)), np.tile(mask_of("some"), (rows // B, 1))
    block = layers.EncoderBlock(2, 6, stochastic_depth=0.5)
    y = layers.TransformerStack([block])(x, mask=mask, training=True)
    skipped = [
        np.allclose(before[real], after[real], atol=1e-6)
        for before, after, real in zip(x, ops.convert_to_numpy(y), mask, strict=True)
    ]
    assert 1 < sum(skipped) < rows / 2  # a quarter skips both sublayers


def test_a_memory_may_have_no_mask():
    stack = layers.TransformerStack([layers.DecoderBlock(2, 6)])
    mask, memory = mask_of("some"), X[:, :4] + 1.0
    whole, output = (
        ops.convert_to_numpy(stack(X, memory=memory, mask=mask, training=training))
        for training in (False, True)
    )
    np.testing.assert_allclose(output[mask], whole[mask], atol=1e-5)
    assert (output[~mask] == 0.0).all(axis=-1).any()  # padding was left out


def test_an_attention_of_another_class_is_given_all_positions():
    sizes = []

    class Plain(layers.MultiHeadAttention):
        def call(self, query, value, query_mask=None, value_mask=None, **options):
            sizes.append(tuple(query.shape[:2]))
            return super().call(query, value, query_mask=query_mask)

    block = layers.EncoderBlock(2, 6, attention=Plain(2, 4))
    mask = ops.convert_to_tensor(mask_of("some"))
    output = layers.TransformerStack([block])(
        ops.convert_to_tensor(X), mask=mask, training=True
    )
    assert tuple(output.shape) == X.shape
    assert set(sizes) == {(B, L)}


def test_projections_of_ones_own_get_each_sequence_by_itself():
    class Convolved(layers.MultiHeadAttention):
        def build(self, query_shape, value_shape, key_shape=None):
            super().build(query_shape, value_shape)
            self.convolution = keras.layers.Conv1D(D, 2, padding="causal")
            self.convolution.build(value_shape)

        def project_key(self, key):
            return super().project_key(self.convolution(key))

    stack = layers.TransformerStack(
        [layers.EncoderBlock(2, 6, attention=Convolved(2, 4))]
    )
    mask = ops.convert_to_tensor(mask_of("some"))
    found = []
    for training in (True, False):
        output = stack(ops.convert_to_tensor(X), mask=mask, training=training)
        found.append(ops.convert_to_numpy(output)[mask_of("some")])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)


def test_the_losses_of_an_attention_are_those_without_unpadding():
    """Keras divides them by the batch size, which unpadded tokens do not have."""

    def losses(unpad):
        keras.utils.set_random_seed(0)
        regularizer = keras.regularizers.L2(0.1)
        block = layers.EncoderBlock(
            2, 6, attention={"activity_regularizer": regularizer}
        )
        stack = layers.TransformerStack([block], unpad=unpad)
        stack(X, mask=mask_of("some"), training=True)
        return [float(loss) for loss in stack.losses]

    assert losses(False)
    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


def test_the_losses_of_a_stack_are_those_without_unpadding():
    """They are of what stands at padding, too."""

    def losses(unpad):
        keras.utils.set_random_seed(0)
        norm = keras.layers.LayerNormalization(beta_initializer="ones")
        stack = layers.TransformerStack(
            [layers.EncoderBlock(2, 6)], norm, unpad, activity_regularizer="l2"
        )
        stack(X, mask=mask_of("some"), training=True)
        return [float(loss) for loss in stack.losses]

    assert losses(False)
    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-5)


@pytest.mark.parametrize(
    "norm",
    [
        keras.layers.BatchNormalization(),
        keras.layers.LayerNormalization(axis=[1, 2]),
        keras.layers.RMSNormalization(activity_regularizer="l2"),
    ],
    ids=["batch", "axes", "regularizer"],
)
def test_a_norm_of_more_than_each_vector_gets_the_padding_too(norm):
    def called(unpad):
        keras.utils.set_random_seed(0)
        own = norm.from_config(norm.get_config())
        stack = layers.TransformerStack([layers.EncoderBlock(2, 6)], own, unpad=unpad)
        y = stack(X, mask=mask_of("some"), training=True)
        found = [y[mask_of("some")], *own.weights, *stack.losses]
        return [ops.convert_to_numpy(x) for x in found]

    for output, expected in zip(called(True), called(False), strict=True):
        np.testing.assert_allclose(output, expected, atol=1e-5)


def test_a_block_of_ones_own_gets_the_padding_too():
    class Doubled(keras.layers.Layer):
        def call(self, x, mask=None):
            return 2 * x

    stack = layers.TransformerStack([Doubled()])
    output = stack(X, mask=mask_of("some"), training=True)
    np.testing.assert_array_equal(ops.convert_to_numpy(output), 2 * X)


@pytest.mark.parametrize("blocks", ["encoder", "decoder"])
def test_one_mask_may_serve_all_rows(blocks):
    options = {"num_heads": 2, "intermediate_dim": 8}
    memory = {}
    if blocks == "encoder":
        block = layers.EncoderBlock(**options)
    else:
        block = layers.DecoderBlock(**options)
        memory = {
            "memory": X[:, :4],
            "memory_mask": np.array([[True, True, True, False]]),
        }
    stack = layers.TransformerStack([block])
    mask = np.array([[True, True, True, False, False]])
    expected, output = (
        ops.convert_to_numpy(stack(X, mask=mask, training=training, **memory))
        for training in (False, True)
    )
    assert output.shape == X.shape
    np.testing.assert_allclose(output[:, :3], expected[:, :3], atol=1e-5)


class DoublingBlock(layers.EncoderBlock):
    def call(self, x, mask=None):
        return 2 * x


@pytest.mark.parametrize(
    "block",
    [
        DoublingBlock(2, 8),
        layers.EncoderBlock(2, 8, activity_regularizer=keras.regularizers.L2(1.0)),
    ],
    ids=["call", "regularizer"],
)
def test_what_a_block_adds_to_a_call_is_not_left_out(block):
    stack = layers.TransformerStack([block])
    expected, output = (
        ops.convert_to_numpy(stack(X, mask=mask_of("some"), training=training))
        for training in (False, True)
    )
    np.testing.assert_array_equal(output, expected)
    if block.activity_regularizer is not None:
        assert len(stack.losses) == 1


def test_blocks_may_have_another_precision_than_their_stack():
    block = layers.EncoderBlock(2, 16, dropout=0.0, dtype="mixed_bfloat16")
    stack = layers.TransformerStack([block])
    real = mask_of("some")
    x, mask = ops.convert_to_tensor(X), ops.convert_to_tensor(real)
    # Without the rows of padding, and with them.
    outputs = [stack(x, mask=mask, training=training) for training in (True, False)]
    trained, called = (ops.convert_to_numpy(ops.cast(y, "float32")) for y in outputs)
    np.testing.assert_allclose(trained[real], called[real], atol=0.05)
