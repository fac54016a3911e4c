"""Gradient checkpointing: recomputes activations in the backward pass.

Keras's own (`keras.remat`, `keras.RematScope`) recomputes a layer as if it were called
for the first time: not in training, and with different dropout.
"""

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_seqattn.backend.parts import seed_generators_of


def checkpointed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a layer keep only the output of its `call`, not what leads to it.

    While training, if the layer's `gradient_checkpointing` is True, the call is made
    again in the backward pass, with the same dropout: the seeds of all its parts are
    drawn beforehand. `call` must have an argument `training`; gradients reach those of
    its other arguments that are float tensors.
    """
    signature = inspect.signature(call)

    @functools.wraps(call)
    def checkpointed_call(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs).arguments
        if not (given.get("training") and self.gradient_checkpointing):
            return call(self, *args, **kwargs)
        del given["self"], given["training"]
        return _call_twice(call, self, given)

    return checkpointed_call


def _call_twice(call, layer, arguments):
    """Makes a `call` of a built layer while training, and again in the backward pass.

    It is not a call of the layer: a subclass may have a `call` around this one.
    """
    # Not masks of floats: JAX hands on what is differentiated without its values.
    floats = {
        name: x
        for name, x in arguments.items()
        if _is_float_tensor(x) and not name.endswith("mask")
    }
    others = {name: x for name, x in arguments.items() if name not in floats}
    generators = seed_generators_of(layer)
    # Not arguments of `compute`: TensorFlow adds zeros to those to order its program.
    seeds = [generator.next() for generator in generators]

    def compute(*tensors):
        given = dict(zip(floats, tensors, strict=True))
        with _with_seeds(generators, seeds):
            return call(layer, **given, **others, training=True)

    return keras.remat(compute)(*floats.values())


def _is_float_tensor(x):
    return hasattr(x, "dtype") and "float" in keras.backend.standardize_dtype(x.dtype)


@contextlib.contextmanager
def _with_seeds(generators, seeds):
    """Makes each generator return its drawn seed, and others that follow from it."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator.next = _seeds_from(seed)
    try:
        yield
    finally:
        for generator in generators:
            del generator.next


def _seeds_from(seed):
    """Returns a function that returns the drawn seed, and others at later calls.

    Each draw of one generator within the call needs its own seed. These are 65,537
    apart, so that they do not meet the seeds that the generator draws next.
    """
    later = itertools.count(step=65_537)
    return lambda ordered=True: seed + ops.cast([0, next(later)], seed.dtype)
