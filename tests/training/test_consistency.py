"""The divergence of pairs in the loss, against float64 loops and their slopes."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.layers.embedding.logits import TokenLogits, keep_factors
from keras_seqattn.text import ByteTokenizer, translation_batches
from keras_seqattn.training import MaskedCrossentropy
from tests.differentiate import values_and_gradients
from tests.training.numerics import reference

T, D, V = 24, 3, 5
rng = np.random.default_rng(0)
FIRST, SECOND = rng.integers(1, V, (2, T))
FIRST[20:] = 0
# Rows 0 and 1 are copies; 2 and 3 differ in a token; 4 has none beside it.
LABELS = np.stack([FIRST, FIRST, SECOND, SECOND, SECOND]).astype("int32")
LABELS[3, 5] = LABELS[3, 5] % (V - 1) + 1
# Of these 88 tokens are paired: more than a block of 64 rows.
COPIES = np.stack([FIRST, FIRST, SECOND, SECOND]).astype("int32")
WEIGHTS = rng.choice([0.0, 0.5, 2.0, 3.0], LABELS.shape, p=[0.1, 0.3, 0.3, 0.3]).astype(
    "float32"
)
HIDDEN = rng.normal(size=(*LABELS.shape, D)).astype("float32")
KERNEL = rng.normal(size=(D, V)).astype("float32")
ALPHA, SMOOTHING = 0.7, 0.1
MODES = ["eager", "jit"] if keras.backend.backend() == "tensorflow" else ["eager"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("keras_seqattn.training.crossentropy.BLOCK_LOGITS", 1)


def divergence(logits):
    """Of the two rows of logits of a pair, float64."""
    p, q = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return (np.sum(p * np.log(p / q)) + np.sum(q * np.log(q / p))) / 2


def expected(labels, weights):
    """The loss, and its slope for each logit: of the divergence by differences."""
    logits = HIDDEN[: len(labels)].astype("float64") @ KERNEL
    loss, total, slope = reference(labels, logits, weights, SMOOTHING)
    for row in range(0, len(labels) - 1, 2):
        if (labels[row] != labels[row + 1]).any():
            continue
        for t in np.flatnonzero(labels[row]):
            weight = ALPHA * min(weights[row, t], weights[row + 1, t])
            pair = logits[row : row + 2, t]
            loss += weight * divergence(pair)
            for i, v in np.ndindex(*pair.shape):
                step = np.zeros_like(pair)
                step[i, v] = 1e-5
                rise = divergence(pair + step) - divergence(pair - step)
                slope[row + i, t, v] += weight * rise / 2e-5
    return loss / total, slope / total


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("labels", [LABELS, COPIES], ids=["some", "all"])
def test_loss_and_gradients_are_the_float64_loop(labels, mode):
    weights = WEIGHTS[: len(labels)]
    loss = MaskedCrossentropy(SMOOTHING, consistency=ALPHA)
    hidden = HIDDEN[: len(labels)]

    def of_logits(logits):
        return loss(labels, logits, weights)

    def of_factors(hidden, kernel):
        logits = ops.matmul(hidden, kernel)
        return of_logits(keep_factors(logits, hidden, kernel))

    value, slope = expected(labels, weights)
    got, (gradient,) = values_and_gradients(of_logits, [hidden @ KERNEL], mode)
    np.testing.assert_allclose(got, value, rtol=1e-5)
    np.testing.assert_allclose(gradient, slope, atol=1e-6)
    got, gradients = values_and_gradients(of_factors, [hidden, KERNEL], mode)
    np.testing.assert_allclose(got, value, rtol=1e-5)
    np.testing.assert_allclose(gradients[0], slope @ KERNEL.T, atol=1e-6)
    np.testing.assert_allclose(
        gradients[1], np.einsum("btd,btv->dv", hidden, slope), atol=1e-5
    )


@pytest.mark.parametrize("rows", [1, 4], ids=["one row", "no copies"])
@pytest.mark.slow_on("jax")
def test_what_is_no_copy_adds_exactly_nothing(rows):
    labels = rng.integers(0, V, (rows, T)).astype("int32")
    logits = rng.normal(size=(rows, T, V)).astype("float32")
    plain, drawn = MaskedCrossentropy(0.1), MaskedCrossentropy(0.1, consistency=5.0)
    assert float(drawn(labels, logits)) == float(plain(labels, logits))


def test_extreme_logits_stay_finite():
    logits = np.zeros((2, 1, V), "float32")
    logits[0, 0, 0], logits[1, 0, 1] = 1e4, 1e4
    loss = MaskedCrossentropy(consistency=1.0)
    value, (gradient,) = values_and_gradients(
        lambda x: loss(np.full((2, 1), 1, "int32"), x), [logits]
    )
    # The divergence is 1e4, the crossentropies 1e4 and 0, the tokens two.
    np.testing.assert_allclose(value, 1e4, rtol=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.backends("tensorflow", "torch")  # JAX has no shapes that are not known.
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.slow_on("tensorflow")
def test_copies_are_drawn_together_in_fit(jit_compile):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch compiles nothing")
    tokenizer, lines = ByteTokenizer(), ["red", "a dog"]
    data = translation_batches(
        lines, lines, tokenizer, batch_tokens=32, bucket_lengths=(8,), repeat_batch=2
    )
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("source_ids", "target_ids")
    }
    wide = keras.initializers.RandomNormal(stddev=2.0, seed=0)
    x = keras.layers.Embedding(tokenizer.vocabulary_size, 4, wide)(inputs["target_ids"])
    x = keras.layers.Dropout(0.5, seed=1)(x)
    model = keras.Model(inputs, TokenLogits(tokenizer.vocabulary_size)(x))
    weights, losses = model.get_weights(), []
    for consistency in (0.0, 10.0):
        model.set_weights(weights)
        (seed,) = (v for v in model.variables if "seed" in v.path)
        seed.assign(np.array([1, 0]))
        model.compile(
            keras.optimizers.SGD(0.0),
            MaskedCrossentropy(consistency=consistency),
            jit_compile=jit_compile,
        )
        model.optimizer.build(model.trainable_variables)
        history = model.fit(data, shuffle=False, verbose=0)
        losses.append([history.history["loss"][0], model.evaluate(data, verbose=0)])
    (loss, val_loss), (drawn, val_drawn) = losses
    assert drawn > loss + 1e-3
    np.testing.assert_allclose(val_drawn, val_loss, rtol=1e-6)


@pytest.mark.parametrize("consistency", [-0.1, float("inf"), "1", True])
def test_consistency_is_checked(consistency):
    with pytest.raises(ValueError, match=f"Received: consistency={consistency!r}"):
        MaskedCrossentropy(consistency=consistency)
