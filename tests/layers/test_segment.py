import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.recurrent.segment_memory import next_memory
from tests.differentiate import value_and_gradient
from tests.evaluate import numpy

B, M, D = 2, 3, 2


def vectors(*numbers):
    """(B, T, D), all of a vector one number, the second row its negative."""
    row = np.repeat(np.array(numbers, "float32")[:, None], D, axis=1)
    return np.stack([row, -row])


def held(output):
    """What the first row holds, None where nothing is."""
    memory, mask = map(numpy, output)
    np.testing.assert_array_equal(memory[1], -memory[0])
    return [
        float(vector[0]) if real else None
        for vector, real in zip(memory[0], mask[0], strict=True)
    ]


def test_gives_what_it_was_given_before():
    layer = layers.SegmentMemory(M, B)
    assert held(layer(vectors(1, 2))) == [None] * 3
    assert held(layer(vectors(3, 4, 5, 6))) == [None, 1, 2]
    assert held(layer(vectors(7), training=True)) == [4, 5, 6]
    assert held(layer(vectors(8))) == [5, 6, 7]
    layer.reset()
    assert held(layer(vectors(9))) == [None] * 3
    assert held(layer(vectors(9))) == [None, None, 9]


def test_reset_before_the_first_call_is_no_error():
    layer = layers.SegmentMemory(M, B)
    layer.reset()
    assert held(layer(vectors(1))) == [None] * 3


def test_padding_is_not_held():
    layer = layers.SegmentMemory(M, B)
    mask = np.array([[True, True, False]] * 2)
    layer(vectors(1, 2, 7), mask=mask)
    assert held(layer(vectors(3))) == [1, 2, None]
    memory, _ = layer(vectors(4))
    assert not numpy(memory)[:, 1].any()


def test_takes_the_implicit_mask():
    layer = layers.SegmentMemory(M, B)
    ids = np.array([[1, 2, 0], [3, 0, 0]])
    layer(keras.layers.Embedding(5, D, mask_zero=True)(ids))
    _, mask = layer(vectors(1))
    np.testing.assert_array_equal(numpy(mask), ids != 0)


def test_rows_restart_one_by_one():
    layer = layers.SegmentMemory(M, B)
    layer(vectors(1, 2, 3))
    _, mask = layer(vectors(4), restart=np.array([True, False]))
    np.testing.assert_array_equal(numpy(mask), [[False] * 3, [True] * 3])
    _, mask = layer(vectors(5))
    np.testing.assert_array_equal(numpy(mask), [[False, False, True], [True] * 3])


def test_no_gradient_passes():
    layer = layers.SegmentMemory(M, B)

    def loss(x):
        layer(x)
        memory, _ = layer(x)
        return ops.sum(memory**2) + ops.sum(next_memory(x, x)) + 0.0 * ops.sum(x)

    if keras.backend.backend() == "jax":  # Variables are assigned in `fit` alone.

        def loss(x):
            return ops.sum(next_memory(x, x)) + 0.0 * ops.sum(x)

    _, gradient = value_and_gradient(loss, vectors(1, 2, 3))
    assert not gradient.any()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_is_carried_through_fit_and_predict(jit_compile):
    """The loss of a batch is the sum of what was held, all of it known."""
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("Keras runs torch eagerly")
    x = keras.Input((None, D), batch_size=B)
    memory, mask = layers.SegmentMemory(M, B)(x)
    total = ops.sum(memory * ops.cast(mask, "float32")[..., None], axis=(1, 2))
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Model(x, dense(total[:, None]))
    model.compile("sgd", lambda y, z: ops.sum(z), jit_compile=jit_compile)
    model.optimizer.build(model.trainable_variables)
    batches = np.concatenate([vectors(n) for n in (1, 2, 3, 4)])
    given = model.predict(batches, batch_size=B, verbose=0)
    np.testing.assert_allclose(given[::2, 0], [0, 2, 6, 12])
    np.testing.assert_allclose(given[1::2, 0], [0, -2, -6, -12])
    model.compile("sgd", lambda y, z: ops.mean(z[:1]), jit_compile=jit_compile)
    model.optimizer.build(model.trainable_variables)
    model.optimizer.learning_rate = 0.0
    losses = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: losses.append(logs["loss"] * (step + 1))
    )
    model.fit(
        batches,
        np.zeros((8, 1)),
        batch_size=B,
        shuffle=False,
        verbose=0,
        callbacks=[callback],
    )
    # What predict left, then what fit gave; the logs are running means.
    np.testing.assert_allclose(np.diff([0.0, *losses]), [18, 16, 14, 12], rtol=1e-5)


def test_mixed_precision_holds_the_compute_dtype():
    layer = layers.SegmentMemory(M, B, dtype="mixed_bfloat16")
    memory, mask = layer(vectors(1))
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in (memory, mask)]
    assert dtypes == ["bfloat16", "bool"]
    memory, _ = layer(vectors(1))
    np.testing.assert_array_equal(numpy(memory)[0, 2], 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 2), "`memory_length` must.*memory_length=0"),
        ((2, None), "`batch_size` must.*batch_size=None"),
    ],
    ids=str,
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.SegmentMemory(*arguments)


@pytest.mark.parametrize("restart", [None, np.array([False, False])])
def test_the_mask_on_the_segment_is_held(restart):
    inputs = keras.layers.Masking()(vectors(1, 2, 0))
    layer = layers.SegmentMemory(M, B)
    layer(inputs, restart=restart)
    _, mask = layer(vectors(4))
    np.testing.assert_array_equal(numpy(mask), [[True, True, False]] * B)


def test_a_mask_may_have_one_row_for_all():
    layer = layers.SegmentMemory(M, B)
    layer(vectors(1, 2, 7), mask=np.array([[True, True, False]]))
    assert held(layer(vectors(3))) == [1, 2, None]


def test_vectors_have_the_width_that_is_held():
    layer = layers.SegmentMemory(M, B)
    layer(vectors(1))
    with pytest.raises(ValueError, match=r"`x` must have the width 2.*\(2, 1, 1\)"):
        layer(vectors(1)[..., :1])
