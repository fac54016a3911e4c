"""Functions of the active backend for which Keras has no public name."""

import os
import warnings

import keras

_chosen, _used = os.environ.get("KERAS_BACKEND"), keras.backend.backend()
if _chosen and _chosen != _used:
    warnings.warn(
        f"KERAS_BACKEND was set to {_chosen!r} after Keras had been imported, so Keras "
        f"computes with {_used}. Set it first; in a notebook restart the kernel.",
        stacklevel=2,
    )
