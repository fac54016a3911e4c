"""Padding that is skipped: the same numbers and gradients, of fewer vectors."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.transformer import packing
from keras_seqattn.models import TranslationTransformer
from keras_seqattn.training import MaskedCrossentropy
from tests.differentiate import upstream_gradient, value_and_gradient
from tests.pairs import every_pair

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
    monkeypatch.setattr(packing, "MULTIPLE", value)
    return value


with_multiples = pytest.mark.parametrize("multiple", [1, 3, 128], indirect=True)


@with_multiples
@pytest.mark.parametrize("lengths", LENGTHS)
def test_rows_are_the_real_places_and_as_few_others_as_make_them_round(
    lengths, multiple
):
    mask = mask_of(lengths)
    packed = packing.Packing(ops.convert_to_tensor(mask))
    rows = ops.convert_to_numpy(packed.pack(ops.convert_to_tensor(X)))[0]
    real = mask.sum()
    assert len(rows) == min(-(-max(real, 1) // multiple) * multiple, B * L)
    np.testing.assert_array_equal(rows[:real], X[mask])
    assert len(np.unique(ops.convert_to_numpy(packed.places))) == len(rows)


@with_multiples
@pytest.mark.parametrize("lengths", LENGTHS)
def test_there_and_back(lengths):
    mask = mask_of(lengths)
    packed = packing.Packing(ops.convert_to_tensor(mask))
    back = packed.unpack(packed.pack(ops.convert_to_tensor(X)), share=False)
    back = ops.convert_to_numpy(back)
    has_row = np.isin(np.arange(B * L), ops.convert_to_numpy(packed.places))
    has_row = has_row.reshape(B, L)
    assert has_row[mask].all()
    np.testing.assert_array_equal(back, np.where(has_row[..., None], X, 0.0))

    def function(x):
        y = packed.unpack(packed.pack(x, share=False), share=False)
        return ops.sum(y * ops.convert_to_tensor(upstream_gradient(X.shape)))

    _, slope = value_and_gradient(function, X)
    expected = np.where(has_row[..., None], upstream_gradient(X.shape), 0.0)
    np.testing.assert_array_equal(slope, expected)


def test_heads_go_to_their_places_and_back():
    mask = mask_of("some")
    packed = packing.Packing(ops.convert_to_tensor(mask))
    heads = X.reshape(B, L, 2, D // 2)
    rows = packed.pack(ops.convert_to_tensor(X))
    rows = ops.reshape(rows, (1, -1, 2, D // 2))
    placed = ops.convert_to_numpy(packed.inputs(rows))
    np.testing.assert_array_equal(placed[mask], heads[mask])
    back = ops.convert_to_numpy(packed.output(ops.convert_to_tensor(placed), None))
    np.testing.assert_array_equal(back, ops.convert_to_numpy(rows))


def test_a_neighbour_is_given_the_rows_and_a_stranger_is_not():
    mask = ops.convert_to_tensor(mask_of("some"))
    packed = packing.packing_of(mask)
    assert packing.packing_of(mask) is packed
    rows = packed.pack(ops.convert_to_tensor(X))
    x = packed.unpack(rows)
    assert packed.pack(x) is rows
    assert packed.pack(x, share=False) is not rows
    other = packing.packing_of(ops.convert_to_tensor(mask_of("gap")))
    assert other is not packed
    assert other.pack(x) is not rows


@with_multiples
def test_padding_alone_gives_numbers_and_no_gradient(multiple):
    mask = mask_of("none")
    value, slope = value_and_gradient(
        lambda x: ops.sum(encoded(x, mask, skip_padding=True)), X
    )
    assert value == 0.0
    assert not slope.any()


@pytest.mark.backends("tensorflow")
def test_what_is_made_inside_of_a_function_is_not_used_outside():
    import tensorflow as tf

    encode = layers.EncoderBlock(2, 6, skip_padding=True)
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


def encoded(x, mask, skip_padding, **options):
    """Gives an encoder's and a decoder's output while training, of real places."""
    keras.utils.set_random_seed(1)
    options = {"skip_padding": skip_padding, **options}
    encode = layers.EncoderBlock(2, 6, **options)
    decode = layers.DecoderBlock(2, 6, **options)
    for block in (encode, decode):
        block.build(X.shape) if block is encode else block.build(X.shape, X.shape)
    reverse = np.ascontiguousarray(mask[::-1])
    mask, reverse = (ops.convert_to_tensor(m) for m in (mask, reverse))
    y = encode(x, mask=mask, training=True)
    y = decode(x, y, target_mask=reverse, source_mask=mask, training=True)
    y = decode(y, x, target_mask=reverse, source_mask=mask, training=True)
    return ops.where(reverse[..., None], y, 0.0)


@pytest.mark.parametrize("options", every_pair(**OPTIONS))
def test_blocks_give_the_same_and_have_the_same_gradient(options):
    mask = mask_of("some")

    def function(x, skip_padding):
        y = encoded(x, mask, skip_padding, **options)
        return ops.sum(y * ops.convert_to_tensor(upstream_gradient(X.shape)))

    expected, expected_slope = value_and_gradient(lambda x: function(x, False), X)
    value, slope = value_and_gradient(lambda x: function(x, True), X)
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(slope, expected_slope, atol=1e-4)


@with_multiples
def test_what_stands_at_padding_is_not_read(multiple):
    mask = mask_of("some")
    mask = mask & mask[::-1]
    x = np.where(mask[..., None], X, np.nan)

    def function(x):
        return ops.sum(encoded(x, mask, skip_padding=True))

    value, slope = value_and_gradient(function, x.astype("float32"))
    assert np.isfinite(value) == (multiple == 1)
    if multiple == 1:
        np.testing.assert_array_equal(slope != 0.0, np.repeat(mask[..., None], D, 2))


def fitted(skip_padding, jit_compile, **options):
    """Trains a small model; returns the losses and the weights."""
    keras.utils.set_random_seed(2)
    model = TranslationTransformer(
        11,
        model_dim=D,
        num_heads=2,
        encoder_layers=2,
        decoder_layers=2,
        intermediate_dim=12,
        **options,
    )
    for block in model.layers:
        if hasattr(block, "skip_padding"):
            assert block.skip_padding
            block.skip_padding = skip_padding
    model.compile(
        keras.optimizers.SGD(0.3), MaskedCrossentropy(), jit_compile=jit_compile
    )
    ids = np.where(mask_of("some"), rng_ids(), 0)
    inputs = {"source_ids": ids[::-1], "target_ids": ids}
    history = model.fit(inputs, ids, epochs=3, batch_size=2, shuffle=False, verbose=0)
    return history.history["loss"], model.get_weights()


def rng_ids():
    return np.random.default_rng(5).integers(3, 11, (B, L))


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


def test_an_attention_of_another_class_is_given_all_places():
    class Plain(layers.MultiHeadAttention):
        def call(self, query, value, query_mask=None, value_mask=None, **options):
            assert query.shape[:2] == (B, L)
            return super().call(query, value, query_mask=query_mask)

    block = layers.EncoderBlock(2, 6, attention=Plain(2, 4), skip_padding=True)
    mask = ops.convert_to_tensor(mask_of("some"))
    output = block(ops.convert_to_tensor(X), mask=mask, training=True)
    assert tuple(output.shape) == X.shape
