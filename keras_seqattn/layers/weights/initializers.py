"""Initializers of several weights that one argument stands for."""

from typing import Any

import keras


def copy_initializer(initializer: Any) -> Any:
    """Returns an initializer of the same configuration.

    Keras's initializers draw the same numbers when they are used again.

    Args:
        initializer: What `keras.initializers.get` returned.

    Returns:
        A copy; what is no `keras.initializers.Initializer` stands for itself.

    Example:
        >>> copy_initializer(keras.initializers.get("zeros")).__class__.__name__
        'Zeros'
    """
    is_keras = isinstance(initializer, keras.initializers.Initializer)
    return initializer.clone() if is_keras else initializer
