"""Checks of numbers, of bools, and of what stands for one number."""

import math
import numbers
from typing import Any

import keras
import numpy as np

from keras_seqattn.arguments.errors import refuse

INFINITY = float("inf")
LARGEST = 2**63


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    optional: bool = False,
) -> Any:
    """Returns `value` as an `int` if it is an integer in range.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        least: Smallest integer allowed; None for no bound.
        most: Largest integer allowed; None for no bound.
        optional: Whether None is allowed.

    Returns:
        `value` as an `int`, or None.

    Raises:
        ValueError: If `value` is not an integer in [least, most].

    Example:
        >>> integer("offset", np.int32(-3)), integer("seed", None, optional=True)
        (-3, None)
    """
    if value is None and optional:
        return None
    low = -INFINITY if least is None else least
    high = INFINITY if most is None else most
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if whole and abs(value) >= LARGEST:
        refuse(name, value, "an integer of 64 bits", optional)
    if not whole or not low <= value <= high:
        if (least, most) == (1, None):
            wanted = "a positive integer"
        elif most is not None:
            wanted = f"an integer in [{low}, {most}]"
        else:
            wanted = "an integer" + ("" if least is None else f" of at least {least}")
        refuse(name, value, wanted, optional)
    return int(value)


def positive_integer(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` as an `int` if it is an integer of at least 1.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value` as an `int`, or None.

    Raises:
        ValueError: If `value` is not a positive integer.

    Example:
        >>> positive_integer("num_heads", 8)
        8
    """
    return integer(name, value, least=1, optional=optional)


def number(
    name: str,
    value: Any,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    optional: bool = False,
) -> Any:
    """Returns `value` if it is a finite real number in range.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        least: Smallest number allowed; None for no bound.
        above: Number that `value` must exceed, in place of `least`.
        most: Largest number allowed; None for no bound.
        below: Number that `value` must stay below, in place of `most`.
        optional: Whether None is allowed.

    Returns:
        `value` as an `int` or a `float`, or None.

    Raises:
        ValueError: If `value` is not a finite number in the range.

    Example:
        >>> number("temperature", 0.5, above=0.0)
        0.5
    """
    if value is None and optional:
        return None
    allowed = (
        _is_number(value)
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    )
    if not allowed:
        refuse(name, value, _wanted_number(least, above, most, below), optional)
    return value.item() if isinstance(value, np.generic) else value


def _is_number(value):
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)


def _wanted_number(least, above, most, below):
    if {least, above, most, below} == {None}:
        return "a finite number"
    low = (-INFINITY if least is None else least) if above is None else above
    high = (INFINITY if most is None else most) if below is None else below
    opening = "(" if least is None else "["
    closing = ")" if most is None else "]"
    return f"a number in {opening}{low:g}, {high:g}{closing}"


def fraction(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a number in [0, 1).

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is not a number in [0, 1).

    Example:
        >>> fraction("dropout", 0.1)
        0.1
    """
    if value is None and optional:
        return None
    if not _is_number(value) or not 0.0 <= value < 1.0:
        refuse(name, value, "in [0, 1)", optional)
    return value.item() if isinstance(value, np.generic) else value


def boolean(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` as a `bool` if it is True or False.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value` as a `bool`, or None.

    Raises:
        ValueError: If `value` is neither True nor False.

    Example:
        >>> boolean("gated", False)
        False
    """
    if value is None and optional:
        return None
    if not isinstance(value, bool | np.bool_):
        refuse(name, value, "True or False", optional)
    return bool(value)


def index(name: str, value: Any, least: int | None = None) -> Any:
    """Returns `value` if it is an integer, or a tensor of integers.

    Lengths and positions are tensors in a compiled program.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        least: Smallest integer allowed; None for no bound. It holds for what is known
            before the program runs.

    Returns:
        `value`, an integer as an `int`.

    Raises:
        ValueError: If `value` is neither.

    Example:
        >>> index("offset", np.int32(3)), index("offset", np.array([1, 2])).shape
        (3, (2,))
    """
    if isinstance(value, numbers.Integral):
        return integer(name, value, least)
    # JAX's symbolic lengths are integers of which only the program knows the value.
    symbolic = hasattr(type(value), "__jax_array__")
    tensor = "int" in str(getattr(value, "dtype", None)) and hasattr(value, "shape")
    return value if symbolic or tensor else integer(name, value, least)


def scalar(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a finite number, or a tensor of one.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is neither.

    Example:
        >>> scalar("scale", 0.5)
        0.5
    """
    if hasattr(value, "dtype") and len(getattr(value, "shape", (1,))) == 0:
        return value
    return number(name, value, optional=optional)


def seed(name: str, value: Any) -> Any:
    """Returns `value` if randomness can come from it.

    Args:
        name: Name of the argument, for the error.
        value: An integer, a `keras.random.SeedGenerator` or None.

    Returns:
        `value`, an integer as an `int`.

    Raises:
        ValueError: If `value` is none of these.

    Example:
        >>> seed("seed", 3)
        3
    """
    if isinstance(value, keras.random.SeedGenerator):
        return value
    return integer(name, value, optional=True)
