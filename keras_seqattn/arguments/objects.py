"""Checks of strings, paths, lists, tensors, functions and objects."""

import collections.abc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_seqattn.arguments.errors import refuse


def choice(
    name: str, value: Any, choices: Sequence[Any], optional: bool = False
) -> Any:
    """Returns `value` if it is one of `choices`, of the same type.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        choices: Tuple of the values allowed.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is none of `choices`.

    Example:
        >>> choice("norm", "rms", ("layer", "rms"))
        'rms'
    """
    if value is None and optional:
        return None
    # Types first: an array compares element by element.
    if not any(type(value) is type(one) and value == one for one in choices):
        refuse(name, value, f"one of {choices}", optional)
    return value


def instance(
    name: str, value: Any, types: Any, wanted: str, optional: bool = False
) -> Any:
    """Returns `value` if it is an instance of a class.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        types: A class, or a tuple of classes.
        wanted: What the argument must be, in words, with its article.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is not an instance of `types`.

    Example:
        >>> instance("name", "encoder", str, "a string")
        'encoder'
    """
    if value is None and optional:
        return None
    if not isinstance(value, types):
        refuse(name, value, wanted, optional)
    return value


def text(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a string.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is not a string.

    Example:
        >>> text("monitor", "val_loss")
        'val_loss'
    """
    return instance(name, value, str, "a string", optional)


def sequence(
    name: str,
    value: Any,
    wanted: str,
    check: Callable[[str, Any], Any] | None = None,
    optional: bool = False,
) -> Any:
    """Returns `value` if it is a list or a tuple, each of whose items passes a check.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed; an array of one axis stands for its list.
        wanted: What the argument must be, in words, with its article.
        check: Function of `name` and an item, which raises a `ValueError` or returns
            the item as plain Python; None for items of any kind.
        optional: Whether None is allowed.

    Returns:
        `value`, a list or a tuple as it was given, its items as `check` returns them.

    Raises:
        ValueError: If `value` is neither a list nor a tuple, or an item fails.

    Example:
        >>> sequence("bucket_lengths", [8, 16], "a list of lengths")
        [8, 16]
    """
    if value is None and optional:
        return None
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if not isinstance(value, list | tuple):
        refuse(name, value, wanted, optional)
    try:
        items = [item if check is None else check(name, item) for item in value]
    except ValueError:
        refuse(name, value, wanted, optional)
    return tuple(items) if isinstance(value, tuple) else items


def ordered(name: str, value: Any, wanted: str) -> Any:
    """Returns `value` if its items can be read one after another, in an order.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        wanted: What the argument must be, in words, with its article.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` cannot be iterated over, is a string, or is a dict or a
            set.

    Example:
        >>> next(iter(ordered("lines", ["one"], "a list of strings")))
        'one'
    """
    whole = str | bytes | collections.abc.Mapping | collections.abc.Set
    try:
        iter(value)
    except TypeError:  # A scalar tensor has `__iter__`, and fails when it is called.
        refuse(name, value, wanted)
    if isinstance(value, whole):
        refuse(name, value, wanted)
    return value


def function(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it can be called.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` cannot be called.

    Example:
        >>> function("step", len) is len
        True
    """
    if not callable(value) and not (optional and value is None):
        refuse(name, value, "a function", optional)
    return value


def path(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is the path of a file or a folder.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is neither a string that is not empty nor a path.

    Example:
        >>> path("folder", "studies/first")
        'studies/first'
    """
    if value is None and optional:
        return None
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        refuse(name, value, "a path", optional)
    return value


def tensor(name: str, value: Any, optional: bool = False) -> Any:
    """Returns `value` if it is a tensor, or an array can be made of it.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` is neither a tensor nor an array of numbers or bools.

    Example:
        >>> tensor("query", np.ones((1, 2, 3))).shape
        (1, 2, 3)
    """
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

    Args:
        name: Name of the argument, which ends in "initializer", "regularizer",
            "constraint" or "activation".
        value: What the caller passed.

    Returns:
        Such an object; None for None, or the identity as an activation.

    Raises:
        ValueError: If `value` stands for none.

    Example:
        >>> type(keras_object("kernel_initializer", "zeros")).__name__
        'Zeros'
    """
    kind = name.rpartition("_")[2]
    get = getattr(keras, f"{kind}s").get
    article = "an" if kind[0] in "ai" else "a"
    return interpreted(name, value, get, f"{article} {kind}", kind != "activation")


def offers(
    name: str,
    value: Any,
    attributes: Sequence[str],
    wanted: str,
    optional: bool = False,
) -> Any:
    """Returns `value` if it has attributes, whatever its class.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        attributes: Names that `value` must have.
        wanted: What the argument must be, in words, with its article.
        optional: Whether None is allowed.

    Returns:
        `value`.

    Raises:
        ValueError: If `value` lacks one of `attributes`.

    Example:
        >>> offers("lines", "one", ("split",), "a string")
        'one'
    """
    if value is None and optional:
        return None
    missing = [f"`{x}`" for x in attributes if not hasattr(value, x)]
    if 0 < len(missing) < len(attributes) or isinstance(value, keras.Layer):
        wanted += f", with {', '.join(missing)}"
    if missing:
        refuse(name, value, wanted, optional)
    return value


def interpreted(
    name: str,
    value: Any,
    interpret: Callable[[Any], Any],
    wanted: str,
    optional: bool = False,
) -> Any:
    """Returns what Keras makes of a name, a configuration, a function or an object.

    Args:
        name: Name of the argument, for the error.
        value: What the caller passed.
        interpret: Function of `value`, such as `keras.activations.get`.
        wanted: What the argument must be, in words, with its article.
        optional: Whether None is allowed.

    Returns:
        What `interpret` returns; None for None.

    Raises:
        ValueError: If `interpret` fails, or returns nothing.

    Example:
        >>> interpreted("rounding", "7", int, "a number in digits")
        7
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

    Args:
        name: Name of the argument, for the error.
        lines: Iterable of what the caller passed.
        first: Number of the first line in all that the caller passed.

    Yields:
        Strings.

    Raises:
        ValueError: If one of them is not a string, or no valid Unicode.

    Example:
        >>> list(strings("lines", ["a dog", ""]))
        ['a dog', '']
    """
    for number, line in enumerate(lines, first):
        wanted = None
        if isinstance(line, bytes):
            wanted = "strings only; decode bytes as UTF-8 first"
        elif not isinstance(line, str):
            wanted = "strings only"
        elif not _is_unicode(line):
            wanted = "valid Unicode, without lone surrogates"
        if wanted:
            raise ValueError(
                f"`{name}` must hold {wanted}. Received: {name}[{number}]={line!r}."
            )
        yield line


def _is_unicode(line):
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True
