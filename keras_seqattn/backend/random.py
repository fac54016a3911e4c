"""Random numbers from a seed that a program computes, and the backend's own state."""

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
    """Draws numbers in [0, 1); the seed is two integers that the program computes."""
    return keras.random.uniform(shape, seed=_ComputedSeed(seed), dtype=dtype)


class _ComputedSeed(keras.random.SeedGenerator):
    """Wraps a tensor as a seed, since `keras.random` does not take a plain tensor."""

    def __init__(self, seed):
        seed = ops.stack([ops.cast(number, "int32") for number in seed])
        is_jax = keras.backend.backend() == "jax"
        self._seed = ops.cast(seed, "uint32" if is_jax else "int32")

    def next(self, ordered=True):
        """Returns the seed, always the same, since there is no state."""
        return self._seed


def start_randomness(seed: int) -> None:
    """Seeds the random numbers of Python, NumPy and the backend, except TensorFlow's.

    Seeding TensorFlow makes it prepare again everything that it has compiled, which
    took a tenth of each epoch in a training run, and seconds of a first step
    (benchmarks/results/2026-11-28.md). `seed` is in [0, 2^32).
    """
    if keras.backend.backend() != "tensorflow":
        keras.utils.set_random_seed(seed)
        return
    random.seed(seed)
    np.random.seed(seed)


@contextlib.contextmanager
def repeated_randomness() -> Iterator[None]:
    """Seeds the backend's own random numbers, and restores their state afterwards.

    On torch, `keras.random.dropout` draws from them, not from its `SeedGenerator`,
    unless the user gave a seed. TensorFlow and JAX have no such state for Keras.
    """
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
