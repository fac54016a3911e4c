"""Initializers, where one argument sets those of several weights."""

from typing import Any

import keras


def copy_initializer(initializer: Any) -> Any:
    """Copies a Keras initializer: one used twice would draw the same numbers twice."""
    is_keras = isinstance(initializer, keras.initializers.Initializer)
    return initializer.clone() if is_keras else initializer
