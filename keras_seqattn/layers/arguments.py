"""Checks of constructor arguments, one wording for all layers and models."""


def positive_integer(name, value):
    """Gives `value` back when it is a positive integer.

    Args:
        name: Name of the argument, for the error.
        value: What the user gave.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is not a positive integer.

    Example:
        >>> positive_integer("num_heads", 8)
        8
    """
    if not isinstance(value, int) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}."
        )
    return value


def fraction(name, value):
    """Gives `value` back when it is in [0, 1).

    Args:
        name: Name of the argument, for the error.
        value: What the user gave.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is not in [0, 1).

    Example:
        >>> fraction("dropout", 0.1)
        0.1
    """
    if not 0.0 <= value < 1.0:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={value!r}.")
    return value


def choice(name, value, choices):
    """Gives `value` back when it is one of `choices`.

    Args:
        name: Name of the argument, for the error.
        value: What the user gave.
        choices: The values allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is none of `choices`.

    Example:
        >>> choice("norm", "rms", ("layer", "rms"))
        'rms'
    """
    if value not in choices:
        raise ValueError(
            f"`{name}` must be one of {choices}. Received: {name}={value!r}."
        )
    return value
