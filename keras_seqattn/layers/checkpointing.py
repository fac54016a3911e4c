"""Gradient checkpointing: computed again in the backward pass, instead of kept.

Keras's own (`keras.remat`, `keras.RematScope`) computes a layer again as if it were
called for the first time: outside of training, and with other dropout.
"""

import contextlib

import keras
from keras import ops


def call_checkpointed(layer, **arguments):
    """Calls a layer so that of all it computes only the output is kept.

    In the backward pass the layer is called again, with the same dropout: the seeds
    of all its parts are drawn before.

    Args:
        layer: A built layer whose `call` takes `training`, called while training; in
            the calls made here `is_checkpointing(layer)` is True.
        **arguments: What it is called with. Gradients reach the float tensors.

    Returns:
        What the layer returns.

    Example:
        >>> class Double(keras.layers.Layer):
        ...     def call(self, x, training=None):
        ...         if training and not is_checkpointing(self):
        ...             return call_checkpointed(self, x=x)
        ...         return x * 2.0
        >>> float(Double()(ops.ones(()), training=True))
        2.0
    """
    floats = {name: x for name, x in arguments.items() if _is_float_tensor(x)}
    others = {name: x for name, x in arguments.items() if name not in floats}
    generators = [
        generator
        for part in layer._flatten_layers()
        for generator in part._seed_generators
    ]
    # Not among the arguments: TensorFlow adds zeros to these to order its program.
    seeds = [generator.next() for generator in generators]

    def compute(*tensors):
        given = dict(zip(floats, tensors, strict=True))
        with _checkpointing(layer), _drawn(generators, seeds):
            return layer(**given, **others, training=True)

    return keras.remat(compute)(*floats.values())


def is_checkpointing(layer):
    """Whether a layer is being called by `call_checkpointed`.

    Args:
        layer: A layer.

    Returns:
        A bool.

    Example:
        >>> is_checkpointing(keras.layers.Dense(2))
        False
    """
    return getattr(layer, "_is_checkpointing", False)


def _is_float_tensor(x):
    return hasattr(x, "dtype") and "float" in keras.backend.standardize_dtype(x.dtype)


@contextlib.contextmanager
def _checkpointing(layer):
    layer._is_checkpointing = True
    try:
        yield
    finally:
        layer._is_checkpointing = False


@contextlib.contextmanager
def _drawn(generators, seeds):
    """Has each generator give the seed drawn for it, and others that follow from it."""
    for generator, seed in zip(generators, seeds, strict=True):
        generator.next = _Seeds(seed)
    try:
        yield
    finally:
        for generator in generators:
            del generator.next


class _Seeds:
    """Gives one seed at the first call, and others, far from it, at the next ones."""

    def __init__(self, seed):
        self._seed, self._count = seed, 0

    def __call__(self, ordered=True):
        seed = self._seed + ops.cast([0, self._count * 65_537], self._seed.dtype)
        self._count += 1
        return seed
