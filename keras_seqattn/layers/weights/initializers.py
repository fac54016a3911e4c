"""Initializers of several weights that one argument stands for."""

from typing import Any

import keras


def copy_initializer(initializer: Any) -> Any:
    """Copies a Keras initializer, since one used twice draws the same numbers twice."""
    is_keras = isinstance(initializer, keras.initializers.Initializer)
    return initializer.clone() if is_keras else initializer
