"""Checks of `MultiHeadAttention`, with Keras's messages for what Keras refuses too."""

import inspect
import numbers
from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.layers.shapes import check_batch, check_rank

SCORES = ("scaled_dot", "dot", "additive")


def refuse_hooks(subclass: type, base: type) -> None:
    """Refuses a subclass that overrides a method of Keras's that is never called."""
    theirs = vars(keras.layers.MultiHeadAttention)
    added = set(dir(subclass)) - set(dir(base))
    for hook in sorted(added & set(theirs)):
        if inspect.isfunction(theirs[hook]):
            raise ValueError(
                f"`{hook}` must not be overridden: no method of this class calls "
                "it. Override `call`, give `score`, `scale` or `positions`, or "
                "subclass `keras.layers.MultiHeadAttention`. "
                f"Received: {subclass.__name__}.{hook}."
            )


def positive_size(name: str, value: Any) -> int:
    """Returns a size if it is a positive integer; refuses others in Keras's words."""
    try:
        return arguments.positive_integer(name, value)
    except ValueError:
        raise ValueError(
            f"Received an invalid value for argument `{name}`, "
            f"expected a positive integer. Received: {name}={value!r}"
        ) from None


def output_widths(output_shape: Any) -> tuple[int, ...] | None:
    """Returns the widths of the output as a tuple; None for those of the query."""
    is_one = isinstance(output_shape, numbers.Integral)
    widths = (output_shape,) if is_one else output_shape
    try:
        widths = arguments.sequence(
            "output_shape", widths, "", arguments.positive_integer, optional=True
        )
    except ValueError:
        raise ValueError(
            f"Invalid `output_shape`: {output_shape!r}. When specified, the "
            "`output_shape` should be of type tuple, list, or int, and positive."
        ) from None
    return tuple(widths or ()) or None


def axes_attended(attention_axes: Any) -> tuple[int, ...] | None:
    """Returns the axes as a tuple; None for all between the first and the last."""
    if attention_axes is None:
        return None
    is_one = isinstance(attention_axes, numbers.Integral)
    axes = (attention_axes,) if is_one else attention_axes
    wanted = "an int, list, or tuple of axes"
    axes = arguments.sequence("attention_axes", axes, wanted, arguments.integer)
    return tuple(axes) or arguments.refuse("attention_axes", attention_axes, wanted)


def axes_of_inputs(axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Returns the axes counted from the first, if inputs of a rank have them."""
    found = tuple(axis % rank for axis in axes if -rank <= axis < rank)
    if len(set(found)) < len(axes) or rank - 1 in found:
        wanted = f"different axes of inputs of rank {rank}, not the last"
        arguments.refuse("attention_axes", axes, wanted)
    return found


def check_options(layer: Any, implementation: str) -> None:
    """Refuses options of a layer, run by `implementation`, that exclude each other."""
    if layer.num_heads % layer.num_key_value_heads:
        raise ValueError(
            "`num_key_value_heads` must divide `num_heads`. Received: "
            f"num_key_value_heads={layer.num_key_value_heads}, "
            f"num_heads={layer.num_heads}."
        )
    if layer.flash_attention and layer.dropout > 0.0:
        raise ValueError(
            "Dropout is not supported when flash attention is enabled. "
            "Please set dropout to 0.0 to use flash attention. "
            f"Received: dropout={layer.dropout!r}."
        )
    if layer.scale is not None and layer.score != "scaled_dot":
        raise ValueError(
            "`scale` must be None unless the score is 'scaled_dot'. "
            f"Received: scale={layer.scale!r}, score={layer.score!r}."
        )
    if layer.score == "additive" and implementation not in ("auto", "explicit"):
        raise ValueError(
            "`implementation` must be 'auto' or 'explicit', and `flash_attention` not "
            "True, for an additive score, which no kernel computes. "
            f"Received: implementation={layer.implementation!r}, "
            f"flash_attention={layer.flash_attention!r}."
        )


def check_scores_wanted(flash_attention: bool | None, return_scores: bool) -> None:
    """Refuses to return weights that a kernel does not compute."""
    if flash_attention and return_scores:
        raise ValueError(
            "Returning attention scores is not supported when flash "
            "attention is enabled. Please disable flash attention to access"
            " attention scores."
        )


def check_inputs(query: Tensor, value: Tensor, key: Tensor | None) -> None:
    """Refuses inputs without a length axis, or of different batch sizes."""
    check_ranks(query.shape, value.shape)
    check_batch(query=query, value=value, key=key)


def check_ranks(query_shape: Shape, value_shape: Shape) -> None:
    """Refuses queries without a length axis, and values of a different rank."""
    check_rank("query", query_shape, "(batch, ..., length, width)")
    axes = ", ".join(["length"] * (len(query_shape) - 2))
    check_rank("value", value_shape, f"(batch, {axes}, width)")


def check_key_shape(value_shape: Shape, key_shape: Shape | None) -> None:
    """Refuses values and keys that differ in more than the width."""
    if key_shape is not None and tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "All dimensions of `value` and `key`, except the last one, must be equal. "
            f"Received: value_shape={value_shape} and key_shape={key_shape}"
        )


def check_index(layer: Any, index: Any) -> None:
    """Refuses an `index` that is no position, or missing where a layer counts them."""
    if index is not None:
        arguments.index("index", index, 0)
    elif layer.positions is not None or layer.sliding_window is not None:
        raise ValueError(
            "`index` must be given where the layer has `positions` or "
            "`sliding_window`. Received: index=None."
        )
