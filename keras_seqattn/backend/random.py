"""The backend's own random state."""

import contextlib

import keras


@contextlib.contextmanager
def repeated_randomness(seed=0):
    """Starts the backend's own random numbers from `seed`, and restores them after.

    On torch, `keras.random.dropout` without a seed of the user's draws from them, and
    not from its `SeedGenerator`. TensorFlow and JAX have no such state for Keras.

    Args:
        seed: Integer.

    Example:
        >>> import numpy as np
        >>> with repeated_randomness():
        ...     x = keras.layers.Dropout(0.5)(np.ones(3), training=True)
    """
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
