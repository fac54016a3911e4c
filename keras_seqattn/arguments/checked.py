"""The checks that every layer makes before Keras processes its arguments."""

import functools
import inspect
from typing import Any

import keras
import numpy as np

from keras_seqattn.arguments.errors import known, names_of, refuse
from keras_seqattn.arguments.objects import tensor
from keras_seqattn.arguments.scalars import index, may_broadcast

# Arguments of `call` that are not tensors: flags, and positions in a sequence.
FLAGS = ("return_attention_scores", "use_causal_mask", "reverse", "training")
PLACES = ("start", "offset", "index")
# Arguments that may be lists of numbers in place of tensors; so may every mask.
LISTED = ("positions", "restart")
# Arguments that may be lists of tensors; so may those above.
SEVERAL = ("states",)
# Arguments that Keras's layers take although they are not in their signatures.
OF_KERAS = ("input_shape", "input_dim")


class Checked:
    """Checks the arguments of a layer's constructor and call.

    A mixin that stands before Keras's class in the list of bases. If no class knows a
    keyword argument of the constructor, the error suggests the nearest name. If an
    argument of a call should be a tensor, a flag or a position and is something else,
    the error names it, before Keras reads its shape.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        classes = type(self).__mro__
        names = [name for cls in classes for name in names_of(cls.__init__)]
        of_call, _ = _call_names(type(self).call)
        known(kwargs, (*names, *OF_KERAS), type(self).__name__, of_call)
        super().__init__(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Checks the arguments, and calls the layer."""
        names, required = _call_names(type(self).call)
        given = dict(zip(names, args, strict=False))
        given |= {name: kwargs[name] for name in kwargs if name in names}
        # A user's own `call` may take lists.
        is_ours = type(self).call.__module__.startswith("keras_seqattn.")
        for name, value in given.items():
            _check(name, value, name in required, is_ours)
        if any(name.endswith("mask") for name in given):
            _check_masks(names, given)
        return super().__call__(*args, **kwargs)


@functools.cache
def _call_names(call):
    """Returns the names of a call's arguments, and of those without a default."""
    names = names_of(call)[1:]
    parameters = inspect.signature(call).parameters
    empty = inspect.Parameter.empty
    return names, {name for name in names if parameters[name].default is empty}


def _check(name, value, required, is_ours):
    """Raises an error if an argument of a call is of the wrong kind."""
    if name in FLAGS:
        check_flag(name, value, optional=name == "training")
    elif name in PLACES:
        index(name, value)
    else:
        is_list = isinstance(value, list | tuple)
        listed = name.endswith("mask") or name in LISTED
        if _is_tensors(value):
            if is_ours and is_list and not (listed or name in SEVERAL):
                raise ValueError(
                    f"`{name}` must be one tensor or array, not a list of them: pass "
                    "each as an argument of its own. "
                    f"Received: {name} of {len(value)} tensors."
                )
            return
        may_convert = listed and (is_list or isinstance(value, np.ndarray))
        allowed = not required if value is None else may_convert
        if not allowed:
            refuse(name, value, "a tensor or an array", optional=not required)
        tensor(name, value, optional=True)


def _is_tensors(value):
    """Returns whether a value is a tensor, an array of numbers, or a list of these."""
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_tensors, value))
    of_numbers = not isinstance(value, np.ndarray) or value.dtype.kind in "biufcV"
    return of_numbers and hasattr(value, "shape")


def _check_masks(names, given):
    """Raises an error if a mask does not fit its sequences `(B, L, D)`, or has none."""
    target = given.get(names[0])
    source = given.get("value", target)
    key = given.get("key")
    owners = {"mask": target, "key_mask": source if key is None else key}
    for name, mask in given.items():
        if mask is None or not name.endswith("mask"):
            continue
        if isinstance(mask, keras.KerasTensor):
            check_unseen_mask(name, mask)
        owner = name.removesuffix("_mask")
        if name not in owners and owner in names and given.get(owner) is None:
            refuse(name, mask, f"None without a `{owner}`")
        if name == "attention_mask":
            queries, keys = _sizes(target), _sizes(source)
            # Of other ranks the layer says what is wrong.
            sizes = queries + keys[1:] if queries and keys else ()
            ranks, layout = (2, 3, 4), "(..., target, source)"
        else:
            sizes = _sizes(owners.get(name, given.get(owner)))
            ranks, layout = (2,), "(batch, length)"
        if sizes:
            _check_fits(name, mask, sizes, ranks, layout)


def _sizes(x):
    """Returns the batch size and length of vectors `(B, L, D)`; () for other shapes."""
    shape = getattr(x, "shape", ())
    return tuple(shape[:2]) if len(shape) == 3 else ()


def _check_fits(name, mask, sizes, ranks, layout):
    shape = tuple(np.shape(mask) if isinstance(mask, list | tuple) else mask.shape)
    # A mask of shape (target, source) serves all sequences and heads.
    wanted = sizes if len(shape) > 2 or len(ranks) == 1 else sizes[-len(shape) :]
    have = (shape[0], *shape[-2:]) if len(shape) > 2 else shape
    if len(shape) not in ranks or not may_broadcast(have, wanted):
        raise ValueError(
            f"`{name}` must be {layout} of the inputs, which are {sizes}. "
            f"Received: {name}.shape={shape}."
        )


def check_unseen_mask(name: str, mask: Any) -> None:
    """Raises an error if a mask whose values cannot be seen is one of floats."""
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if "float" in dtype:
        raise ValueError(
            f"`{name}` must be bool, True = may attend, where its values cannot be "
            "seen: in a compiled program or a functional model. Pass "
            f"`keras.ops.cast({name}, 'bool')` if it is of ones and zeros, and "
            f"{of_added_mask(name)} Received: {name} of dtype {dtype!r}."
        )


def of_added_mask(name: str) -> str:
    """Returns what to pass in place of a mask that is added to scores."""
    return (
        f"`{name} == 0` if it is added to scores, 0 = may attend; numbers to be added "
        "are the `bias` of `dot_product_attention`."
    )


def check_flag(name: str, value: Any, optional: bool = False) -> None:
    """Raises an error if a value is not True, False, 1, 0 or a scalar tensor."""
    is_scalar = hasattr(value, "dtype") and getattr(value, "shape", None) == ()
    is_none = optional and value is None
    if not (is_none or is_scalar or (isinstance(value, int) and value in (0, 1))):
        refuse(name, value, "True or False", optional)
