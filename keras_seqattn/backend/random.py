"""Random numbers: by a seed that a program computes, and the backend's own state."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn.annotations import Tensor


def computed_uniform(
    shape: Sequence[int | Tensor], seed: tuple[Tensor, Tensor], dtype: Any
) -> Tensor:
    """Draws from [0, 1) by a seed, two scalar integers, that the program computes."""
    return keras.random.uniform(shape, seed=_ComputedSeed(seed), dtype=dtype)


class _ComputedSeed(keras.random.SeedGenerator):
    """Hands `keras.random` a tensor for a seed, which it does not take as such."""

    def __init__(self, seed):
        seed = ops.stack([ops.cast(number, "int32") for number in seed])
        is_jax = keras.backend.backend() == "jax"
        self._seed = ops.cast(seed, "uint32" if is_jax else "int32")

    def next(self, ordered=True):
        """Returns the seed: there is no state."""
        return self._seed


def start_randomness(seed: int) -> None:
    """Starts the random numbers of Python, NumPy and the backend, except TensorFlow's.

    TensorFlow's own seeding makes it prepare anew all that it has compiled, which took
    a tenth of each epoch in a training run. `seed` is in [0, 2^32).
    """
    if keras.backend.backend() != "tensorflow":
        keras.utils.set_random_seed(seed)
        return
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def repeated_randomness(seed: int = 0) -> Iterator[None]:
    """Starts the backend's own random numbers from `seed`, and restores them after.

    On torch, `keras.random.dropout` without a seed of the user's draws from them, and
    not from its `SeedGenerator`. TensorFlow and JAX have no such state for Keras.
    """
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
