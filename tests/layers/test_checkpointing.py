"""Gradient checkpointing changes the memory of training, and nothing else."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.transformer.checkpointing import checkpointed
from tests.evaluate import JIT

VOCABULARY, WIDTH = 20, 8
IDS = np.array([[3, 4, 5, 6, 0], [7, 8, 9, 0, 0], [4, 3, 9, 8, 7]])
OTHER_IDS = np.array([[9, 8, 7], [6, 5, 0], [4, 3, 2]])


def make_model(gradient_checkpointing, dtype="float32"):
    """An encoder block and a decoder block that drop all that they can drop."""
    keras.utils.set_random_seed(3)
    options = {
        "num_heads": 2,
        "intermediate_dim": 12,
        "dropout": 0.2,
        "attention_dropout": 0.2,
        "activation_dropout": 0.2,
        "stochastic_depth": 0.2,
        "gradient_checkpointing": gradient_checkpointing,
        "dtype": dtype,
    }
    source_ids, target_ids = (keras.Input((None,), dtype="int32") for _ in range(2))
    embedding = layers.PositionalEmbedding(VOCABULARY, WIDTH, dtype=dtype)
    source = layers.EncoderBlock(**options, name="encoder")(embedding(source_ids))
    decode = layers.DecoderBlock(**options, name="decoder")
    target = decode(embedding(target_ids), source)
    logits = keras.layers.Dense(VOCABULARY, dtype=dtype)(target)
    return keras.Model([source_ids, target_ids], logits)


def fitted(gradient_checkpointing, dtype="float32", jit_compile=JIT):
    """Three steps of training; returns the losses and the weights."""
    model = make_model(gradient_checkpointing, dtype)
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    history = model.fit([IDS, OTHER_IDS], OTHER_IDS, epochs=3, verbose=0)
    return history.history["loss"], model.get_weights()


@pytest.mark.parametrize(
    ("dtype", "jit_compile"),
    [
        pytest.param("float32", JIT, marks=pytest.mark.slow_on("tensorflow")),
        pytest.param(
            "mixed_bfloat16", JIT, marks=pytest.mark.slow_on("jax", "tensorflow")
        ),
        pytest.param(
            "float32",
            True,
            marks=[pytest.mark.slow, pytest.mark.backends("tensorflow")],
        ),
    ],
)
def test_a_training_is_the_same_dropout_included(dtype, jit_compile):
    losses, weights = fitted(True, dtype, jit_compile)
    expected_losses, expected = fitted(False, dtype, jit_compile)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
    assert losses[2] != losses[0]
    for x, y in zip(weights, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


@pytest.mark.backends("torch")
def test_nothing_changes_outside_of_training():
    layer = Noisy()
    x = keras.Variable(1.0)
    ops.sum(layer(x.value, training=False)).backward()
    assert len(layer.calls) == 1
    outputs = [
        ops.convert_to_numpy(make_model(checkpointed)([IDS, OTHER_IDS]))
        for checkpointed in (True, False)
    ]
    np.testing.assert_array_equal(*outputs)


def loss_of_blocks(gradient_checkpointing):
    """Gives a function of vectors that goes through two blocks."""
    blocks = []
    for _ in range(2):
        block = layers.EncoderBlock(
            2, 32, gradient_checkpointing=gradient_checkpointing
        )
        block.build((None, None, WIDTH))
        blocks.append(block)

    def loss(x, training=True):
        for block in blocks:
            x = block(x, training=training)
        return ops.sum(x * x)

    return loss


def bytes_kept(function, shape):
    """Counts the bytes that torch keeps for the backward pass of a call in training."""
    import torch

    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    x = torch.ones(shape, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(x, training=True)
    return sum(sizes)


@pytest.mark.backends("torch")  # It sees what torch keeps.
def test_little_is_kept_for_the_backward_pass():
    again, plain = (
        bytes_kept(loss_of_blocks(x), (4, 64, WIDTH)) for x in (True, False)
    )
    assert again < 0.1 * plain


@pytest.mark.backends("jax")  # It reads the program that JAX compiles.
def test_the_compiled_program_computes_again():
    import jax

    def flops(gradient_checkpointing):
        gradient = jax.jit(jax.grad(loss_of_blocks(gradient_checkpointing)))
        program = gradient.lower(ops.ones((4, 64, WIDTH))).compile()
        return program.cost_analysis()["flops"]

    assert flops(True) > 1.2 * flops(False)


class Noisy(keras.layers.Layer):
    """Draws twice from one generator, and remembers how it was called."""

    gradient_checkpointing = True

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(5)
        self.calls = []

    @checkpointed
    def call(self, x, training=None):
        noise = [
            keras.random.uniform((100,), seed=self.seed_generator) for _ in range(2)
        ]
        self.calls.append((training, noise))
        return x * noise[0] + noise[1]


@pytest.mark.backends("torch")
def test_it_is_called_again_in_training_with_other_and_the_same_draws():
    layer = Noisy()
    x = keras.Variable(1.0)
    total = ops.sum(layer(x.value, training=True))
    total.backward()
    (training, noise), (again, same) = layer.calls
    assert training is True and again is True
    np.testing.assert_array_equal(noise[0].detach(), same[0].detach())
    assert not np.allclose(noise[0].detach(), noise[1].detach())
    assert float(x.value.grad) == pytest.approx(float(ops.sum(noise[0])), rel=1e-5)
    layer(x.value, training=True)
    assert not np.allclose(layer.calls[2][1][0].detach(), noise[1].detach())


@pytest.mark.slow_on("jax")
def test_a_decoder_alone_in_a_stack_gives_the_same():
    x = layers.PositionalEmbedding(VOCABULARY, WIDTH)(IDS)
    outputs = []
    for gradient_checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        block = layers.DecoderBlock(
            2, 12, gradient_checkpointing=gradient_checkpointing
        )
        outputs.append(layers.TransformerStack([block])(x, training=True))
    real = np.asarray(IDS) != 0
    plain, again = (ops.convert_to_numpy(x)[real] for x in outputs)
    np.testing.assert_allclose(again, plain, atol=1e-5)


@pytest.mark.backends("torch")  # It sees what torch keeps.
@pytest.mark.parametrize("mask", [None, np.ones((4, 64), bool)], ids=["", "mask"])
def test_a_decoder_alone_in_a_stack_keeps_little(mask):
    """Also with a mask, with which a stack may leave out padding instead."""

    def kept_bytes(gradient_checkpointing):
        block = layers.DecoderBlock(
            2, 32, gradient_checkpointing=gradient_checkpointing
        )
        stack = functools.partial(layers.TransformerStack([block]), mask=mask)
        return bytes_kept(stack, (4, 64, WIDTH))

    assert kept_bytes(True) < 0.2 * kept_bytes(False)


@pytest.mark.slow_on("jax")
def test_the_mask_on_the_input_counts_beside_an_attention_mask():
    """Within what is computed twice JAX hands on other tensors, which have no mask."""
    x = layers.PositionalEmbedding(VOCABULARY, WIDTH)(IDS)
    attention_mask = np.ones((3, 5, 5), bool)
    outputs = []
    for gradient_checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        block = layers.EncoderBlock(
            2, 12, gradient_checkpointing=gradient_checkpointing
        )
        outputs.append(block(x, attention_mask=attention_mask, training=True))
    plain, again = map(ops.convert_to_numpy, outputs)
    np.testing.assert_allclose(again, plain, atol=1e-5)


@pytest.mark.slow_on("jax")
def test_a_regularizer_of_the_output_counts_once():
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    losses = []
    for gradient_checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        block = layers.EncoderBlock(
            2,
            12,
            gradient_checkpointing=gradient_checkpointing,
            activity_regularizer=keras.regularizers.L2(1.0),
        )
        inputs = keras.Input((5, 8))
        model = keras.Model(inputs, block(inputs))
        model.compile("sgd", "mse", jit_compile=JIT)
        losses.append(float(model.train_on_batch(x, x)))
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow_on("tensorflow")
def test_a_mask_may_be_of_ones_and_zeros():
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    mask = np.tril(np.ones((2, 5, 5), "float32"))
    outputs = []
    for gradient_checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        block = layers.EncoderBlock(
            2, 12, gradient_checkpointing=gradient_checkpointing
        )
        y = block(x, attention_mask=mask, training=True)
        outputs.append(ops.convert_to_numpy(y))
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-6)


class Doubled(layers.EncoderBlock):
    """Has a call of the user's own around that of the block."""

    def call(self, x, mask=None, training=None):
        return 2.0 * super().call(x, mask=mask, training=training)


@pytest.mark.slow_on("jax")
def test_a_call_of_ones_own_around_it_is_made_once():
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    outputs = []
    for gradient_checkpointing in (False, True):
        keras.utils.set_random_seed(0)
        block = Doubled(2, 12, gradient_checkpointing=gradient_checkpointing)
        outputs.append(ops.convert_to_numpy(block(x, training=True)))
    np.testing.assert_allclose(*outputs, rtol=1e-5)
