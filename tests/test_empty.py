"""Batches and sequences without elements: a result of the right shape, or an error."""

import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers, training
from tests.evaluate import evaluated

SIZES = [(0, 4, 5), (2, 0, 5), (2, 4, 0), (2, 0, 0), (0, 0, 0)]
every_size = pytest.mark.parametrize(("batch", "target", "source"), SIZES)


def zeros(*shape):
    return np.zeros(shape, "float32")


def ones(*shape):
    return np.ones(shape, "float32")


@every_size
def test_every_kernel_gives_zeros_of_the_right_shape(batch, target, source):
    kernels = ("explicit", "fused", "chunked", "auto")
    mask = np.ones((batch, 1, target, source), bool)

    def attend(query, key, value, bias):
        outputs = [layers.attention_scores(query, key)]
        outputs += [layers.additive_attention(query, key, value, ones(4, 6))]
        for kernel in kernels:
            for options in ({}, {"mask": mask, "bias": bias, "causal": True}):
                outputs += [
                    layers.dot_product_attention(
                        query, key, value, implementation=kernel, **options
                    )
                ]
        return tuple(outputs)

    scores, *outputs = evaluated(attend)(
        ones(batch, target, 4, 6),
        ones(batch, source, 2, 6),
        ones(batch, source, 2, 3),
        zeros(1, 1, target, source),
    )
    assert scores.shape == (batch, 4, target, source)
    for output in outputs:
        assert output.shape == (batch, target, 4, 3)
        assert not output.any()


@pytest.mark.slow_on("tensorflow", "jax")
@every_size
def test_layers_take_what_is_empty(batch, target, source):
    made = [
        *(
            layers.MultiHeadAttention(2, 4, positions=positions)
            for positions in (None, "rotary", "alibi", "relative")
        ),
        layers.ScaledDotProductAttention(),
        layers.AdditiveAttention(6),
        layers.TransformerStack([layers.DecoderBlock(2, 12, dropout=0.1)]),
    ]
    for layer in made:
        layer(ones(2, 4, 8), ones(2, 5, 8))

    def call(x, y):
        masks = np.ones((batch, target), bool), np.ones((batch, source), bool)
        names = ("query_mask", "value_mask"), ("x_mask", "memory_mask")
        return tuple(
            layer(
                x,
                y,
                training=True,
                **dict(zip(names[layer is made[-1]], masks, strict=True)),
            )
            for layer in made
        )

    outputs = evaluated(call, *made, compiles=False)(
        ones(batch, target, 8), ones(batch, source, 8)
    )
    for output in outputs:
        assert output.shape == (batch, target, 8)
        assert np.isfinite(output).all()


@pytest.mark.backends("tensorflow")
@pytest.mark.parametrize("kernel", ["explicit", "chunked"])
def test_what_is_empty_may_be_known_only_to_the_running_program(kernel):
    import tensorflow as tf

    layer = layers.MultiHeadAttention(2, 4, positions="relative", implementation=kernel)
    layer(ones(2, 4, 8), ones(2, 5, 8))

    @tf.function(input_signature=[tf.TensorSpec((None, None, 8))] * 2)
    def differentiate(x, y):
        with tf.GradientTape() as tape:
            tape.watch((x, y))
            output = layer(x, y)
        return output, tape.gradient(output, (x, y, layer.positions.weights[0].value))

    for batch, target, source in [*SIZES, (2, 0, 1), (2, 1, 0)]:
        x, y = ones(batch, target, 8), ones(batch, source, 8)
        output, gradients = differentiate(x, y)
        assert output.shape == x.shape
        assert all(np.isfinite(tf.convert_to_tensor(d)).all() for d in gradients)


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("shape", [(2, 0, 4, 8), (2, 3, 0, 8), (0, 3, 4, 8)])
@pytest.mark.parametrize("axes", [None, (1,)])
def test_attention_over_axes_takes_what_is_empty(shape, axes):
    layer = layers.MultiHeadAttention(2, 4, attention_axes=axes)
    x = ones(*shape)
    layer(ones(2, 3, 4, 8), ones(2, 3, 4, 8))
    mask = np.ones(shape[:-1], bool)
    pairs = np.ones((1,) * (5 if axes is None else 3), bool)
    output = layer(x, x, attention_mask=pairs, query_mask=mask, value_mask=mask)
    assert output.shape == shape


EMPTY = [(0, 4), (2, 0), (0, 0)]


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("batch", "length"), EMPTY)
def test_embeddings_and_logits_take_what_is_empty(batch, length):
    ids, x = np.zeros((batch, length), "int32"), ones(batch, length, 8)
    for positions in ("sinusoidal", "learned", None):
        layer = layers.PositionalEmbedding(11, 8, positions, max_length=9)
        assert tuple(layer(ids).shape) == (batch, length, 8)
        assert tuple(layer(x, reverse=True).shape) == (batch, length, 11)
    assert tuple(layers.FeedForward(12)(x).shape) == x.shape
    assert tuple(layers.EncoderBlock(2, 12)(x).shape) == x.shape
    assert tuple(layers.TokenLogits(11)(x).shape) == (batch, length, 11)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize(("batch", "length"), EMPTY)
def test_losses_and_metrics_of_no_tokens_are_finite(batch, length):
    labels, logits = np.zeros((batch, length), "int32"), zeros(batch, length, 11)
    factored = layers.TokenLogits(11)(ones(batch, length, 8), training=True)
    assert not ops.convert_to_numpy(
        training.MaskedCrossentropy()(labels, factored)
    ).any()
    for options in (
        {},
        {"label_smoothing": 0.1},
        {"consistency": 1.0},
        {"normalize_by": 7.0},
    ):
        loss = training.MaskedCrossentropy(**options)(labels, logits)
        assert not ops.convert_to_numpy(loss).any()
    for make in (
        training.TokenCrossentropy,
        training.Perplexity,
        training.MaskedAccuracy,
    ):
        metric = make()
        metric.update_state(labels, logits)
        assert np.isfinite(float(metric.result()))


@pytest.mark.slow_on("jax")
def test_a_recurrence_takes_no_sequence_without_positions():
    encoder, decoder = layers.RecurrentEncoder(4), layers.AttentiveRecurrentDecoder(4)
    message = r"`x` must have at least one position.*\(2, 0, 8\)"
    with pytest.raises(ValueError, match=message):
        encoder(ones(2, 0, 8))
    message = r"`target` must have at least one position.*\(2, 0, 8\)"
    with pytest.raises(ValueError, match=message):
        decoder(ones(2, 0, 8), ones(2, 5, 8), ones(2, 8))
    assert tuple(encoder(ones(0, 4, 8))[0].shape) == (0, 4, 8)
    output = decoder(ones(2, 4, 8), ones(2, 0, 8), ones(2, 8))
    assert np.isfinite(ops.convert_to_numpy(output)).all()
