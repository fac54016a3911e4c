"""Checks of numbers, bools, seeds, and scalar tensors."""

import math
import numbers
from typing import Any

import keras
import numpy as np

from keras_seqattn.arguments.errors import refuse

LARGEST = 2**63


def integer(
    name: str,
    value: Any,
    least: int | None = None,
    most: int | None = None,
    optional: bool = False,
) -> Any:
    """Returns `value` as an `int` if it is a 64-bit integer in [least, most]."""
    if value is None and optional:
        return None
    low = -math.inf if least is None else least
    high = math.inf if most is None else most
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
    """Returns `value` as an `int` if it is an integer of at least 1."""
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
    """Returns `value` as an `int` or a `float` if it is finite and in range.

    The bounds `least` and `most` are included in the range, `above` and `below` not.
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
    return _plain(value)


def _is_number(value):
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        return real and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def _plain(value):
    """Returns a number as Python's own, a fraction for example as a `float`."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, int) else float(value)


def _wanted_number(least, above, most, below):
    if {least, above, most, below} == {None}:
        return "a finite number"
    low = (-math.inf if least is None else least) if above is None else above
    high = (math.inf if most is None else most) if below is None else below
    opening = "(" if least is None else "["
    closing = ")" if most is None else "]"
    return f"a number in {opening}{low:g}, {high:g}{closing}"


def fraction(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a number in [0, 1)."""
    if value is None and optional:
        return None
    if not _is_number(value) or not 0.0 <= value < 1.0:
        refuse(name, value, "in [0, 1)", optional)
    return _plain(value)


def boolean(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` as a `bool` if it is True or False."""
    if value is None and optional:
        return None
    if not isinstance(value, bool | np.bool_):
        refuse(name, value, "True or False", optional)
    return bool(value)


def index(name: str, value: Any, least: int | None = None) -> Any:
    """Returns `value` if it is an integer of at least `least`, or a tensor of integers.

    In a compiled program lengths and positions are tensors, whose values are unchecked.
    """
    if isinstance(value, numbers.Integral):
        return integer(name, value, least)
    # JAX's symbolic lengths are integers whose values only the program knows.
    symbolic = hasattr(type(value), "__jax_array__")
    tensor = "int" in str(getattr(value, "dtype", None)) and hasattr(value, "shape")
    return value if symbolic or tensor else integer(name, value, least)


def scalar(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a finite number or a scalar tensor."""
    if hasattr(value, "dtype") and len(getattr(value, "shape", (1,))) == 0:
        return value
    return number(name, value, optional=optional)


def seed(name: str, value: Any) -> Any:
    """Returns `value` if it is an integer, a `keras.random.SeedGenerator` or None."""
    if isinstance(value, keras.random.SeedGenerator):
        return value
    return integer(name, value, optional=True)


def may_be(size: Any, *wanted: Any) -> bool:
    """Returns whether a size equals one of `wanted`, or may: if any is unknown.

    An unknown size is None or a tensor.
    """
    are_known = all(isinstance(each, int) for each in (size, *wanted))
    # In a program of torch's compiler `size in wanted` misses sizes that are symbols.
    return not are_known or any(size == each for each in wanted)


def may_broadcast(shape: Any, sizes: Any) -> bool:
    """Returns whether a shape has as many axes as `sizes`, and each fits or is 1."""
    return len(shape) == len(sizes) and all(
        may_be(have, 1, want) for have, want in zip(shape, sizes, strict=True)
    )
