"""The errors of arguments, and the names that a function takes."""

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn


def refuse(name: str, value: Any, wanted: str, optional: bool = False) -> NoReturn:
    """Raises the error of an argument that is not what it must be.

    Args:
        name: Name of the argument.
        value: What the caller passed.
        wanted: What the argument must be, in words, with its article.
        optional: Whether it may be None too.

    Raises:
        ValueError: Always.

    Example:
        >>> refuse("width", 0, "a positive integer")
        Traceback (most recent call last):
        ValueError: `width` must be a positive integer. Received: width=0.
    """
    wanted += " or None" if optional else ""
    raise ValueError(f"`{name}` must be {wanted}. Received: {name}={value!r}.")


def known(given: Iterable[str], names: Iterable[str], owner: str) -> None:
    """Raises an error that suggests a name if a keyword argument is unknown.

    Args:
        given: Keyword arguments that the caller passed, a dict or their names.
        names: Names that are allowed.
        owner: Name of the class or function that takes them.

    Raises:
        ValueError: If one of `given` is not in `names`.

    Example:
        >>> known({"dropout": 0.1}, ("dropout", "name"), "EncoderBlock")
    """
    for name in given:
        if name not in names:
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
            value = f"{name}={given[name]!r}" if isinstance(given, dict) else name
            raise ValueError(
                f"`{name}` must be an argument of `{owner}`. Received: {value}.{hint}"
            )


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the arguments that a function takes.

    Args:
        function: A function, or a class, for its constructor's.

    Returns:
        Tuple of strings, without those of `*args` and `**kwargs`.

    Example:
        >>> names_of(known)
        ('given', 'names', 'owner')
    """
    return tuple(
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )
