"""Checks of public arguments, in one wording for the whole library.

Every check returns the value as plain Python (NumPy's numbers become Python's, so that
configurations are JSON) and raises a `ValueError` that names the argument, says what it
must be and what it was. A bool is never a number. With `optional=True` None is allowed.
"""

import difflib
import inspect
import math
import numbers
import os

import keras
import numpy as np

INFINITY = float("inf")
LARGEST = 2**63


def integer(name, value, least=None, most=None, optional=False):
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


def positive_integer(name, value, optional=False):
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


def number(name, value, least=None, above=None, most=None, below=None, optional=False):
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


def fraction(name, value, optional=False):
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


def boolean(name, value, optional=False):
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


def choice(name, value, choices, optional=False):
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


def instance(name, value, types, wanted, optional=False):
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


def text(name, value, optional=False):
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


def sequence(name, value, wanted, check=None, optional=False):
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
        >>> sequence("bucket_lengths", [8, 16], "a list of lengths", positive_integer)
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


def function(name, value, optional=False):
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


def path(name, value, optional=False):
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


def tensor(name, value, optional=False):
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


def index(name, value, least=None):
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


def scalar(name, value, optional=False):
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


def seed(name, value):
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


def keras_object(name, value):
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


def offers(name, value, attributes, wanted, optional=False):
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
    if not all(hasattr(value, attribute) for attribute in attributes):
        refuse(name, value, wanted, optional)
    return value


def interpreted(name, value, interpret, wanted, optional=False):
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


def names_of(function):
    """Returns the names of the arguments that a function takes.

    Args:
        function: A function, or a class, for its constructor's.

    Returns:
        Tuple of strings, without those of `*args` and `**kwargs`.

    Example:
        >>> names_of(path)
        ('name', 'value', 'optional')
    """
    return tuple(
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )


def strings(name, lines, first=0):
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
        if not isinstance(line, str):
            wanted = "strings only; decode bytes as UTF-8 first"
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


def known(given, names, owner):
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


def refuse(name, value, wanted, optional=False):
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
