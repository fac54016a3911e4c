"""Dropout with random numbers that cost little.

A generator of random numbers is a separate call, and its numbers go through memory; in
an XLA program on a CPU this takes a fifth of a training step. A hash of each number's
place is plain arithmetic, which XLA fuses into the operation that uses the number.
`benchmarks.paths` measures this in its row "dropout".
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_seqattn.annotations import Seed, Tensor
from keras_seqattn.backend import random, tracing


def if_known(training: bool | None) -> dict[str, bool]:
    """Returns the argument `training` for the call of a part, unless it is None.

    In Keras, None would hide from the part the `training` of a call around it.
    """
    return {} if training is None else {"training": training}


def drop(x: Tensor, rate: float, seed: Seed) -> Tensor:
    """Sets a fraction in (0, 1) of the numbers to zero, and scales the others up.

    What is dropped depends only on the seed and the shape. In a program that XLA
    compiles for a CPU, a hash of each number's place and the seed decides; elsewhere
    the backend's generator does, which drops others.
    """
    has_generator = isinstance(seed, keras.random.SeedGenerator)
    if not (has_generator and tracing.is_compiled_by_xla(x)):
        return keras.random.dropout(x, rate, seed=seed)
    # Drawn once, not in the forms: JAX traces all of them, and drawing changes state.
    shape, seed = ops.shape(x), seed.next()

    def hashed() -> Tensor:
        numbers = hashes(shape, ops.cast(seed, "uint32"))
        return numbers >= np.uint32(min(round(rate * 2**32), 2**32 - 1))

    def drawn() -> Tensor:
        return random.computed_uniform(shape, (seed[0], seed[1]), "float32") >= rate

    kept = tracing.by_platform(x, default=drawn, cpu=hashed)
    scale = ops.cast(1.0 / (1.0 - rate), x.dtype)
    return ops.where(kept, x * scale, ops.cast(0.0, x.dtype))


def hashes(shape: Sequence[int | Tensor], seed: Tensor) -> Tensor:
    """Computes a uint32 hash, as good as random, of each position of a shape.

    The seed is a tensor of two uint32.

    Reference:
        "lowbias32" of https://nullprogram.com/blog/2018/07/31/, with the constants of
        its later search, twice, once for each half of the seed.
    """
    places = ops.reshape(ops.arange(math.prod(shape), dtype="int32"), shape)
    x = _mix_bits(ops.bitwise_xor(ops.cast(places, "uint32"), seed[0]))
    return _mix_bits(x + seed[1])


def _mix_bits(x):
    """Mixes uint32 numbers: changing any bit changes each bit in half of the cases."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0xD35A2D97)):
        x = ops.bitwise_xor(x, ops.right_shift(x, np.uint32(shift))) * np.uint32(factor)
    return ops.bitwise_xor(x, ops.right_shift(x, np.uint32(15)))


class Dropout(keras.layers.Dropout):
    """Dropout as a part of other layers: applies `drop`, ignores `noise_shape`."""

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Applies dropout while training."""
        if not training or self.rate == 0.0:
            return inputs
        return drop(inputs, self.rate, self.seed_generator)
