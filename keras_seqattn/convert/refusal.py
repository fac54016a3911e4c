"""Why a model cannot be converted, and which argument the error names."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn


class NotConvertible(Exception):
    """Raised for a model that is refused, with what it must be and what it is."""


def refuse(requirement: str, received: str) -> NoReturn:
    """Raises the error of a model that cannot be converted."""
    raise NotConvertible(requirement, received)


@contextlib.contextmanager
def naming(argument: str) -> Iterator[None]:
    """Turns `NotConvertible` into a `ValueError` that names the given argument."""
    try:
        yield
    except NotConvertible as error:
        requirement, received = error.args
        message = f"`{argument}` must {requirement}. Received: {received}."
        raise ValueError(message) from error.__cause__


@contextlib.contextmanager
def valid(what: str) -> Iterator[None]:
    """Refuses a model if reading `what` fails on a value of a wrong kind."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise NotConvertible(f"have a valid {what}", found) from error
