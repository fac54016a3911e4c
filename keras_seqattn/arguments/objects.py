"""Checks of strings, paths, lists, tensors, functions and objects."""

import collections.abc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_seqattn.arguments.errors import refuse, shown
from keras_seqattn.arguments.scalars import positive_integer


def choice(
    name: str, value: Any, choices: Sequence[Any], optional: bool = False
) -> Any:
    """Returns `value` if it is one of `choices`, of the same type."""
    if value is None and optional:
        return None
    # Types first: an array compares element by element.
    if not any(type(value) is type(one) and value == one for one in choices):
        refuse(name, value, f"one of {choices}", optional)
    return value


def instance(
    name: str, value: Any, types: Any, wanted: str, optional: bool = False
) -> Any:
    """Returns `value` if it is an instance of `types`, a class or several."""
    if value is None and optional:
        return None
    if not isinstance(value, types):
        refuse(name, value, wanted, optional)
    return value


def text(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a string."""
    return instance(name, value, str, "a string", optional)


def sequence(
    name: str,
    value: Any,
    wanted: str,
    check: Callable[[str, Any], Any] | None = None,
    optional: bool = False,
) -> Any:
    """Returns `value` if it is a list or a tuple whose items all pass a check.

    What `listed` converts counts as a list. `check` is a function of `name` and an item
    that raises a `ValueError` or returns the item as plain Python.
    """
    if value is None and optional:
        return None
    value = listed(value)
    if not isinstance(value, list | tuple):
        refuse(name, value, wanted, optional)
    try:
        items = [item if check is None else check(name, item) for item in value]
    except ValueError:
        refuse(name, value, wanted, optional)
    return tuple(items) if isinstance(value, tuple) else items


def listed(value: Any) -> Any:
    """Returns an array of one axis, or a table's column, as a list; others as given."""
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        return value.tolist()
    return value


def increasing(name: str, value: Any) -> Any:
    """Returns `value` if it is a list or a tuple of increasing positive integers."""
    wanted = "increasing positive integers"
    sizes = sequence(name, value, wanted, positive_integer)
    if not sizes or list(sizes) != sorted(set(sizes)):
        refuse(name, value, wanted)
    return sizes


def ordered(name: str, value: Any, wanted: str, table: bool = False) -> Any:
    """Returns `value` if its items have an order, unlike a string, dict or set.

    Several axes are allowed only with `table`: a data frame's items are the names of
    its columns.
    """
    whole = str | bytes | collections.abc.Mapping | collections.abc.Set
    try:
        iter(value)
    except TypeError:  # A scalar tensor has `__iter__`, but calling it fails.
        refuse(name, value, wanted)
    is_table = len(getattr(value, "shape", None) or ()) > 1
    if isinstance(value, whole) or (is_table and not table):
        refuse(name, value, wanted)
    return value


def function(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it can be called."""
    return instance(name, value, Callable, "a function", optional)


def path(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a path: a path object, or a string that is not empty."""
    if value is None and optional:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        refuse(name, value, "a path", optional)
    return value


def tensor(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a tensor or converts to an array of numbers or bools."""
    if value is None and optional:
        return None
    known = hasattr(value, "shape") and hasattr(value, "dtype")
    if not known or isinstance(value, np.ndarray):
        try:
            kind = np.asarray(value).dtype.kind
        except (ValueError, TypeError):
            kind = None
        if kind in (None, "O", "U", "S", "M", "m"):
            refuse(name, value, "an array or a tensor of numbers", optional)
    return value


def keras_object(name: str, value: Any) -> Any:
    """Returns the Keras object that a name, a configuration or a function stands for.

    `name` ends in "initializer", "regularizer", "constraint" or "activation". None
    stays None, except as an activation, where it means the identity.
    """
    kind = name.rpartition("_")[2]
    get = getattr(keras, f"{kind}s").get
    article = "an" if kind[0] in "ai" else "a"
    return interpreted(name, value, get, f"{article} {kind}", kind != "activation")


def configuration(value: Any) -> dict[str, Any] | None:
    """Returns the configuration of a Keras object that other objects may hold too.

    What several hold is one object again in a model that is loaded. Keras marks the
    configurations of a shared object from the second on, and the first by changing it
    afterwards, which does not reach copies of it. So this one is a second one.
    """
    keras.saving.serialize_keras_object(value)
    return keras.saving.serialize_keras_object(value)


def offers(
    name: str,
    value: Any,
    attributes: Sequence[str],
    wanted: str,
    optional: bool = False,
) -> Any:
    """Returns `value` if it has all `attributes`, whatever its class.

    A class is refused, though it has the methods of its instances. The error says what
    is missing if `value` has some of them, or is a layer.
    """
    if value is None and optional:
        return None
    missing = [f"`{x}`" for x in attributes if not hasattr(value, x)]
    if 0 < len(missing) < len(attributes) or isinstance(value, keras.Layer):
        wanted += f", with {', '.join(missing)}"
    if missing or isinstance(value, type):
        refuse(name, value, wanted, optional)
    return value


def interpreted(
    name: str,
    value: Any,
    interpret: Callable[[Any], Any],
    wanted: str,
    optional: bool = False,
) -> Any:
    """Returns `interpret(value)`; raises an error if that fails or gives None.

    `interpret` is a function such as `keras.activations.get`.
    """
    if value is None and optional:
        return None
    try:
        found = interpret(value)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        found = None
    if found is None:
        refuse(name, value, wanted, optional)
    return found


def strings(name: str, lines: Iterable[Any], first: int = 0) -> Iterator[str]:
    """Yields the lines one by one, each a string that UTF-8 can encode.

    `first` is the number of the first line among all lines that the caller passed.
    """
    for number, line in enumerate(lines, first):
        wanted = None
        if isinstance(line, bytes):
            wanted = "strings only; decode bytes as UTF-8 first"
        elif not isinstance(line, str):
            wanted = "strings only"
        elif not is_unicode(line):
            wanted = "valid Unicode, without lone surrogates"
        if wanted:
            raise ValueError(
                f"`{name}` must hold {wanted}. "
                f"Received: {name}[{number}]={shown(line)}."
            )
        yield line


def is_unicode(line: str) -> bool:
    """Returns whether UTF-8 can encode a string: it has no lone surrogate."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True
