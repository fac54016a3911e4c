"""Computes the loss of a product on two devices, each its own rows, and on one.

Run by `test_distribute.py`, as JAX parts a processor before anything is computed.
"""

import jax
import keras
import numpy as np

from keras_seqattn.training.crossentropy import projected_crossentropy

random = np.random.default_rng(0)
hidden = random.normal(size=(4, 6, 8)).astype("float32")
kernel = random.normal(size=(8, 50)).astype("float32")
labels = random.integers(0, 50, 24).astype("int32")
weights = (random.random(24) * (labels > 10)).astype("float32")


def loss(hidden, kernel):
    return projected_crossentropy(hidden, kernel, labels, weights, 0.1)


def measure():
    """Returns the loss, each token's, and the gradients; and how they were computed."""
    function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    return jax.tree.leaves(function(hidden, kernel)), function.lower(hidden, kernel)


alone, _ = measure()
devices = keras.distribution.list_devices()
assert len(devices) == 2
keras.distribution.set_distribution(
    keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
)
shared, lowered = measure()
for value, expected in zip(shared, alone, strict=True):
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
# 24 rows of which each device has half; were they gathered, all 24 would be ordered.
assert "tensor<12xi32>" in lowered.as_text()
