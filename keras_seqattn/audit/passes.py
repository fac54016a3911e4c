"""Passes of a model that can be repeated and compared; every audit is based on them.

Shapes: B batch, L length of an input.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
from keras import ops, tree

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import random
from keras_seqattn.backend.parts import layers_of

MODES = {False: "in inference", True: "in training"}
# TOLERANCE is relative to the larger (or typical) output, and is multiplied by
# OTHER_LENGTH where a length changes; see the docstring of `keras_seqattn.audit`.
TOLERANCE = 1e-5
OTHER_LENGTH = 10


class AuditReport(NamedTuple):
    """What an audit found.

    Attributes:
        ok: Whether nothing leaked.
        position: The first output position that something leaks into; None where
            nothing does, or where the output has no positions.
        input: Name of the input that it leaks from, or None.
        message: What was found, or what was compared, in a sentence.

    Example:
        >>> AuditReport(True, None, None, "Nothing leaked.").raise_if_failed().ok
        True
    """

    ok: bool
    position: int | None
    input: str | None
    message: str

    def raise_if_failed(self) -> Self:
        """Returns the report.

        Raises:
            AssertionError: If something leaked, with the message.
        """
        if not self.ok:
            raise AssertionError(self.message)
        return self


class Passes:
    """Runs a model over changed inputs, always from the same state.

    A pass runs within a `keras.StatelessScope`: what it assigns (seeds, moving
    statistics, metrics) is discarded after it. So each pass has the same dropout, and
    leaves no trace. The backend's own random state is also restored.
    """

    def __init__(
        self,
        model: keras.layers.Layer,
        inputs: Any,
        select: Callable[[Any], Any] | None,
        tolerance: float | None,
    ) -> None:
        wanted = "a Keras model or layer"
        self.model = arguments.instance("model", model, keras.layers.Layer, wanted)
        self._select = arguments.function("select", select, optional=True)
        arguments.number("tolerance", tolerance, least=0, optional=True)
        self._structure = inputs
        self.arrays = _named_arrays(model, inputs)
        self.tolerance = _default_tolerance(model) if tolerance is None else tolerance
        if not model.built:
            model(self._pack(self.arrays), training=False)

    def __call__(self, arrays: dict[str, Any], training: bool) -> list[np.ndarray]:
        """Returns the outputs for `arrays`, flat, as NumPy arrays."""
        return [_numpy(output) for output in self.tensors(arrays, training)]

    def tensors(self, arrays: dict[str, Any], training: bool) -> list[Tensor]:
        """Returns the outputs for `arrays`, flat, as tensors."""
        with _repeatable(self.model):
            outputs = self.model(self._pack(arrays), training=training)
            return tree.flatten(self._select(outputs) if self._select else outputs)

    def repeatable(self, training: bool) -> list[np.ndarray]:
        """Returns the outputs for the inputs; raises an error if two passes differ."""
        first, second = (self(self.arrays, training) for _ in range(2))
        if self._differ(first, second):
            raise ValueError(
                "`model` must give equal outputs for equal inputs and seeds, which "
                "takes randomness from `keras.random` alone. Received: "
                f"model={self.model.name!r}, of which two passes {MODES[training]} "
                "differ."
            )
        return first

    def is_random(self) -> bool:
        """Returns whether passes in training depend on random draws."""
        inputs = self._pack(self.arrays)
        # Within one scope, the second pass draws different numbers.
        with _repeatable(self.model):
            first, second = (
                [_numpy(x) for x in tree.flatten(self.model(inputs, training=True))]
                for _ in range(2)
            )
        return self._differ(first, second)

    def names(self, which: str | Sequence[str] | None) -> list[str]:
        """Returns the list of names that `which`, a name or a list, stands for."""
        wanted = "the name of an input, or a list of names"
        if which is None and len(self.arrays) == 1:
            return list(self.arrays)
        names = [which] if isinstance(which, str) else which
        names = list(arguments.sequence("which", names, wanted, arguments.text))
        if not names:
            arguments.refuse("which", which, wanted)
        # The only input is meant whatever `which` says: its default is a name, too.
        if len(self.arrays) == 1:
            return list(self.arrays)
        for name in names:
            self.check_name("which", name)
        return names

    def check_name(self, argument: str, name: str) -> None:
        """Raises an error about `argument` if no input is called `name`."""
        if not isinstance(name, str) or name not in self.arrays:
            raise ValueError(
                f"`{argument}` must name an input, one of {sorted(self.arrays)}. "
                f"Received: {argument}={name!r}."
            )

    def vocabulary_size(self, name: str, given: int | None) -> int | None:
        """Returns how many ids an input may hold, None for one of floats."""
        array = self.arrays[name]
        if is_float(array):
            return None
        if array.dtype == bool:
            return 2
        largest = int(array.max(initial=0))
        tables = [
            layer.input_dim
            for layer in layers_of(self.model)
            if isinstance(layer, keras.layers.Embedding)
        ]
        # The input's own table is among those that hold its largest id. The smallest
        # of them may be another input's, but all of its ids are then valid here too.
        size = given or min((n for n in tables if n > largest), default=None)
        if size is None or size <= max(largest, 1):
            raise ValueError(
                "`vocabulary_size` must be given, at least 2 and more than the ids of "
                f"{name!r}, of which the largest is {largest}, where no `Embedding` of "
                f"the model says it. Received: vocabulary_size={given!r}."
            )
        return size

    def _differ(self, first, second):
        return any(
            differs(left, right, self.tolerance).any()
            for left, right in zip(first, second, strict=True)
        )

    def _pack(self, arrays):
        # A functional model takes no list of which only some are tensors.
        tensors = list(map(ops.convert_to_tensor, arrays.values()))
        packed = tree.pack_sequence_as(self._structure, tensors)
        declared = [x.name for x in getattr(self.model, "inputs", None) or ()]
        if not isinstance(packed, dict) or not declared or set(declared) - set(packed):
            return packed
        # A functional model of one tensor, or of a list, warns if it is given a dict.
        return tree.map_structure(lambda tensor: packed[tensor.name], self.model.input)


@contextlib.contextmanager
def _repeatable(model):
    """Makes all passes draw with the same seeds, for the same places.

    Stacks compute padding too, or what is dropped would depend on it.
    """
    layers = layers_of(model)
    stacks = [layer for layer in layers if getattr(layer, "unpad", None) is True]
    for stack in stacks:
        stack.unpad = False
    try:
        with random.repeated_randomness(), keras.StatelessScope():
            yield
    finally:
        for stack in stacks:
            stack.unpad = True


def modes(training: bool | None) -> tuple[bool, ...]:
    """Returns the modes that an argument `training` stands for."""
    return (False, True) if training is None else (bool(training),)


def is_float(array: Tensor) -> bool:
    """Returns whether an array or tensor holds floats, also of 16 bits."""
    return "float" in keras.backend.standardize_dtype(array.dtype)


def padding_id(model: keras.layers.Layer, given: int | None) -> int:
    """Returns the id of padding."""
    return getattr(model, "pad_id", 0) if given is None else given


def random_content(
    array: np.ndarray, vocabulary_size: int | None, rng: np.random.Generator
) -> np.ndarray:
    """Returns an array like `array` that differs from it everywhere."""
    if is_float(array):
        scale = np.std(array.astype("float32")) or 1.0
        return array + (scale * rng.normal(size=array.shape)).astype(array.dtype)
    steps = rng.integers(1, vocabulary_size, array.shape)
    return ((array + steps) % vocabulary_size).astype(array.dtype)


def differs(left: np.ndarray, right: np.ndarray, tolerance: float) -> np.ndarray:
    """Returns where two arrays of one shape differ, as a bool array of that shape."""
    if not is_float(left):
        return left != right
    left, right = left.astype("float64"), right.astype("float64")
    equal = (left == right) | (np.isnan(left) & np.isnan(right))
    finite = np.abs(left[np.isfinite(left) & (left != 0)])
    typical = np.median(finite) if finite.size else 0.0
    # Not relative to the largest: it may be -1e9, the logit of a banned token.
    size = np.maximum(np.maximum(np.abs(left), np.abs(right)), typical)
    with np.errstate(invalid="ignore"):
        close = np.abs(left - right) <= tolerance * np.where(np.isfinite(size), size, 0)
    return ~(equal | close)


def by_position(changed: np.ndarray) -> np.ndarray:
    """Returns for each index along axis 1 whether it holds a True."""
    return changed.any(axis=tuple(axis for axis in range(changed.ndim) if axis != 1))


def _default_tolerance(model):
    dtypes = {layer.compute_dtype for layer in layers_of(model)}
    units = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
    return max([TOLERANCE, *(2 * units.get(dtype, 0.0) for dtype in dtypes)])


def _named_arrays(model, inputs):
    """Returns a dict from the name of each input to its array."""
    leaves = tree.flatten_with_path(inputs)
    names = ["/".join(map(str, path)) or "inputs" for path, _ in leaves]
    declared = [tensor.name for tensor in getattr(model, "inputs", None) or ()]
    if not isinstance(inputs, dict) and len(declared) == len(names):
        names = declared
    if not leaves or len(leaves) < len(declared):
        raise ValueError(
            f"`inputs` must hold an array for each input of the model, "
            f"{declared or 1}. Received: inputs with {names}."
        )
    for _, leaf in leaves:
        arguments.tensor("inputs", leaf)
    arrays = [ops.convert_to_numpy(leaf) for _, leaf in leaves]
    for name, array in zip(names, arrays, strict=True):
        if array.ndim < 2 or 0 in array.shape:
            raise ValueError(
                "`inputs` must hold arrays (batch, length, ...), none of them empty, "
                "where a list holds one for each input. "
                f"Received: {name!r} of shape {array.shape}."
            )
    return dict(zip(names, arrays, strict=True))


def _numpy(output):
    if is_float(output) and keras.backend.standardize_dtype(output.dtype) != "float64":
        output = ops.cast(output, "float32")
    return ops.convert_to_numpy(output)
