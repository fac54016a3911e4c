"""Checks of the shapes of inputs, in one wording for all layers.

A size that is not known yet (None, or a tensor) fits.
"""

from typing import Any

import keras

from keras_seqattn import arguments

BEAMS = "(batch, beams, width)"


def check_built(layer: keras.layers.Layer) -> None:
    """Raises an error if a layer has no weights yet.

    Args:
        layer: A layer of which a method is called that no call of the layer precedes.

    Raises:
        ValueError: If the layer is not built.

    Example:
        >>> import keras
        >>> check_built(keras.layers.Dense(3))
        Traceback (most recent call last):
        ValueError: A layer must be called or built before it takes a step. Received:...
    """
    if not layer.built:
        raise ValueError(
            "A layer must be called or built before it takes a step. Received: "
            f"{type(layer).__name__} {layer.name!r}, not built."
        )


def check_rank(name: str, x: Any, layout: str) -> None:
    """Raises an error if an input has too few or too many axes.

    Args:
        name: Name of the argument.
        x: A tensor or its shape; None is an argument not given.
        layout: The axes, in words: "(batch, length, width)". One that begins with
            "..." asks for no fewer than the others.

    Raises:
        ValueError: If `x` has another rank.

    Example:
        >>> check_rank("x", (2, 8), "(batch, length, width)")
        Traceback (most recent call last):
        ValueError: `x` must have rank 3, (batch, length, width). Received:...
    """
    if x is None:
        return
    shape = _shape(x)
    wanted = len([axis for axis in layout.strip("()").split(",") if axis])
    if "..." in layout:
        wanted -= 1
        fits, bound = len(shape) >= wanted, "at least "
    else:
        fits, bound = len(shape) == wanted, ""
    if not fits:
        raise ValueError(
            f"`{name}` must have rank {bound}{wanted}, {layout}. "
            f"Received: {name}.shape={shape}."
        )


def check_tensor(
    name: str,
    x: Any,
    layout: str | None = None,
    width: int | None = None,
    integers: bool = False,
) -> None:
    """Raises an error if an argument of a method is not a tensor that fits.

    Args:
        name: Name of the argument.
        x: What the caller passed.
        layout: The axes, in words, as in `check_rank`; None for any.
        width: Size of the last axis that the layer was built for, or None for any.
        integers: Whether it must be of integers.

    Raises:
        ValueError: If `x` is no tensor, or has another rank, width or dtype.

    Example:
        >>> check_tensor("x", 3)
        Traceback (most recent call last):
        ValueError: `x` must be a tensor or an array. Received: x=3.
    """
    if not hasattr(x, "shape"):
        arguments.refuse(name, x, "a tensor or an array")
    arguments.tensor(name, x)
    if layout is not None:
        check_rank(name, x, layout)
    if width is not None:
        check_width(name, x, width)
    if integers and "int" not in str(x.dtype):
        raise ValueError(
            f"`{name}` must be of integers. Received: {name} of dtype {x.dtype}."
        )


def check_batch(**inputs: Any) -> None:
    """Raises an error if inputs differ in the first axis.

    Args:
        **inputs: Tensors or their shapes, by the names of the arguments; None is an
            argument not given.

    Raises:
        ValueError: If one has another batch size than the first.

    Example:
        >>> check_batch(query=(2, 5, 8), value=(None, 7, 8), key=None)
    """
    shapes = {name: _shape(x) for name, x in inputs.items() if x is not None}
    sizes = {shape[0] for shape in shapes.values() if isinstance(shape[0], int)}
    if len(sizes) > 1:
        first, *others = (f"`{name}`" for name in shapes)
        received = ", ".join(f"{name}.shape={shape}" for name, shape in shapes.items())
        raise ValueError(
            f"{first} must have the batch size of {' and '.join(others)}. "
            f"Received: {received}."
        )


def check_width(name: str, x: Any, width: int, when: str = "") -> None:
    """Raises an error if vectors are not of the width that a layer was built for.

    Args:
        name: Name of the argument.
        x: Tensor `(..., D)`.
        width: Number D.
        when: What the width holds for, in words, after a space.

    Raises:
        ValueError: If `x` is of another width.

    Example:
        >>> import numpy as np
        >>> check_width("x", np.ones((2, 3, 8)), 8)
    """
    if x.shape[-1] not in (None, width):
        raise ValueError(
            f"`{name}` must have the width {width}, which the layer was built "
            f"for{when}. Received: {name}.shape={_shape(x)}."
        )


def check_not_empty(name: str, x: Any) -> None:
    """Raises an error if a sequence has no position, which no recurrence can read.

    Args:
        name: Name of the argument.
        x: Tensor `(B, L, ...)`.

    Raises:
        ValueError: If L is 0.

    Example:
        >>> import numpy as np
        >>> check_not_empty("x", np.ones((0, 3, 8)))
    """
    if x.shape[1] == 0:
        raise ValueError(
            f"`{name}` must have at least one position. "
            f"Received: {name}.shape={_shape(x)}."
        )


def _shape(x):
    shape = getattr(x, "shape", x)
    return () if isinstance(shape, bool | int | float) else tuple(shape)


def check_kept(name: str, kept: Any, kind: type, maker: str) -> None:
    """Raises an error if an argument is not what a method of the layer made.

    Args:
        name: Name of the argument.
        kept: What the caller passed.
        kind: The class of what the method makes.
        maker: Name of the method.

    Raises:
        ValueError: If `kept` is no `kind`.

    Example:
        >>> check_kept("cache", (1, 2), tuple, "initial_cache")
    """
    if not isinstance(kept, kind):
        arguments.refuse(name, kept, f"what `{maker}` returned, a `{kind.__name__}`")
