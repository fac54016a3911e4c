"""Checks of the shapes of inputs, in one wording for all layers.

A size that is not known yet (None, or a tensor) fits.
"""

from typing import Any

import keras

from keras_seqattn import arguments

BEAMS = "(batch, beams, width)"


def check_built(layer: keras.layers.Layer) -> None:
    """Raises an error if a layer has no weights yet."""
    if not layer.built:
        raise ValueError(
            "A layer must be called or built before it takes a step. Received: "
            f"{type(layer).__name__} {layer.name!r}, not built."
        )


def check_rank(name: str, x: Any, layout: str) -> None:
    """Raises an error if an input has too few or too many axes.

    The input is a tensor or a shape; None, for an input not given, passes. `layout`
    names the axes, such as "(batch, length, width)". With "..." in it, `x` may
    have more axes than the named ones.
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

    `layout` is as in `check_rank`, `width` the size of the last axis; None allows any.
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
    """Raises an error if inputs, tensors, shapes or None, differ in the first axis."""
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
    """Raises an error if vectors `(..., D)` are not of the width a layer was built for.

    `when`, which begins with a space, says in which case the width is required.
    """
    if x.shape[-1] not in (None, width):
        raise ValueError(
            f"`{name}` must have the width {width}, which the layer was built "
            f"for{when}. Received: {name}.shape={_shape(x)}."
        )


def check_not_empty(name: str, x: Any) -> None:
    """Raises an error if `(B, L, ...)` has no position for a recurrence to read."""
    if x.shape[1] == 0:
        raise ValueError(
            f"`{name}` must have at least one position. "
            f"Received: {name}.shape={_shape(x)}."
        )


def _shape(x):
    shape = getattr(x, "shape", x)
    return () if isinstance(shape, bool | int | float) else tuple(shape)


def check_kept(name: str, kept: Any, kind: type, maker: str) -> None:
    """Raises an error if an argument is not the `kind` that method `maker` returns."""
    if not isinstance(kept, kind):
        arguments.refuse(name, kept, f"what `{maker}` returned, a `{kind.__name__}`")
