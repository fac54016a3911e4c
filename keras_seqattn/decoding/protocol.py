"""The decoding protocol: what a model offers, and whether its shapes are right.

Shapes are checked without values, before a search is compiled.
Shapes: B sentences, W beams, V vocabulary, S source length.
"""

import contextlib
import inspect
import threading
import weakref
from collections.abc import Callable
from typing import Any

import keras
from keras import tree

from keras_seqattn import arguments
from keras_seqattn.annotations import DecodingModel, Shape, State

SPECIAL_IDS = ("start_id", "end_id", "pad_id")


class ByModel:
    """Keeps a value for each model as long as the model lives.

    Models are told apart by identity. So two that compare equal have values of their
    own, and a model need not be hashable: an instance of a dataclass is not.
    """

    def __init__(self) -> None:
        self._values = {}

    def get(self, model: Any, default: Any) -> Any:
        """Returns the value of a model, or `default` if it has none."""
        return self._values.get(id(model), default)

    def setdefault(self, model: Any, default: Any) -> Any:
        """Returns the value of a model, which is `default` if it had none."""
        if id(model) not in self._values:
            self._values[id(model)] = default
            weakref.finalize(model, self._values.pop, id(model)).atexit = False
        return self._values[id(model)]


# By model: the widths that were checked already, each with or without coverage, and the
# size of the vocabulary that was found, None if unknown.
_CHECKED = ByModel()
_CHECKING = threading.Lock()


def check_parts(model: Any) -> None:
    """Raises an error if a model lacks a part of the protocol that a search needs."""
    methods = ("encode", "initial_state", "step")
    names = (*methods, *SPECIAL_IDS, "variables")
    wanted = "a model with the decoding protocol"
    arguments.offers("model", model, names, wanted)
    for name in methods:
        arguments.function(f"model.{name}", getattr(model, name))


def check_vocabulary(
    name: str, tokenizer: Any, model: DecodingModel, side: str | None = None
) -> None:
    """Raises an error if a tokenizer's ids are not those that a model is trained with.

    The size of the vocabulary and the special ids are compared, those that both have.
    In a translation model, `side` is "source" or "target".
    """
    size = "vocabulary_size" if side is None else f"{side}_vocabulary_size"
    own = getattr(tokenizer, "vocabulary_size", None)
    wanted = getattr(model, size, None)
    if None not in (own, wanted) and own != wanted:
        raise ValueError(
            f"`{name}` must be the one the model is trained with, of {wanted} entries. "
            f"Received: {name}.vocabulary_size={own}."
        )
    for attribute in SPECIAL_IDS:
        own, wanted = getattr(tokenizer, attribute, None), getattr(model, attribute)
        is_needed = side != "source" or attribute != "start_id"  # none before a source
        if is_needed and own is not None and own != wanted:
            raise ValueError(
                f"`{name}` must have the model's `{attribute}`, {wanted}. "
                f"Received: {name}.{attribute}={own}. Build and train the model with "
                "the `start_id`, `end_id` and `pad_id` of its tokenizer."
            )


def abilities(model: DecodingModel) -> frozenset[str]:
    """Returns which optional parts of the protocol a model has.

    "grow" means that it has a method `grow_state`, and "start" that its `step` takes
    `start`: with both, a sentence can begin while others go on. "coverage" means that
    its `initial_state` takes `coverage`. A model's own `abilities`, if any, are
    returned instead.
    """
    if hasattr(model, "abilities"):
        return frozenset(model.abilities)
    has = {
        "grow": hasattr(model, "grow_state"),
        "start": "start" in inspect.signature(model.step).parameters,
        "coverage": "coverage" in inspect.signature(model.initial_state).parameters,
    }
    return frozenset(name for name in has if has[name])


def is_language_model(model: DecodingModel) -> bool:
    """Returns whether a model continues prompts: a `LanguageModel` or several."""
    return hasattr(model, "most_generated") and hasattr(model, "vocabulary_size")


def length_limit(model: DecodingModel) -> int | None:
    """Returns a model's `max_length`, or None if it has none."""
    return getattr(model, "max_length", None)


def max_new_tokens(model: DecodingModel, source_length: int) -> int | None:
    """Returns how many tokens a model can generate; None for no limit.

    A model with a method `most_generated` decides: a language model's limit includes
    the prompt.
    """
    if hasattr(model, "most_generated"):
        return model.most_generated(source_length)
    return length_limit(model)


def default_max_length(source_length: int) -> int:
    """Returns the default for the largest number of generated tokens."""
    return 2 * source_length + 10


def initial_state(
    model: DecodingModel, memory: State, max_length: int, width: int, coverage: bool
) -> State:
    """Returns a model's state before the first step.

    Only a search with a coverage penalty passes `coverage` on; other searches also work
    with models that do not take it.
    """
    options = {"coverage": True} if coverage else {}
    return model.initial_state(memory, max_length, width=width, **options)


def check_model(
    model: DecodingModel,
    source_shape: Shape,
    max_length: int,
    width: int,
    coverage: bool = False,
) -> int | None:
    """Checks what a model's methods return without computing it.

    Each width is checked once, and once more with `coverage`. The logits and the state
    must have the protocol's shapes, and `step` must keep the state's structure, shapes
    and dtypes. So must `grow_state`, if the model has it, except that the lengths of
    axes may differ. `max_length` is the number of generated tokens that the state has
    memory for. Returns the size of the vocabulary, if known.
    """
    shape, seen = (source_shape[0], width), {}

    def first_step(source_ids, token_ids, index):
        memory = model.encode(source_ids)
        state = initial_state(model, memory, max_length, width, coverage)
        seen["given"] = _describe(state)
        seen["returned"] = _describe(model.step(token_ids, state, index))
        if "grow" in abilities(model):
            # From one step, since no more than `max_length` need be possible.
            state = initial_state(model, memory, 1, width, coverage)
            seen["grown"] = _describe(model.grow_state(state, max_length, index))
        return token_ids

    with _CHECKING:
        checked = _CHECKED.setdefault(model, {})
        if (width, coverage) not in checked:
            _trace(first_step, keras.KerasTensor(source_shape, "int32"), shape)
            size, given = None, seen.get("given")
            if "given" in seen:
                must = "`model.initial_state` must return"
                _check_state(must, given, shape, coverage)
            if "returned" in seen:
                size = _check_returned("model.step", given, seen["returned"], shape)
            if "grown" in seen:
                _check_grown(given, seen["grown"], shape, coverage)
            checked[width, coverage] = size
        return checked[width, coverage]


def check_step(
    step: Callable[..., Any],
    state: State,
    batch_size: int,
    width: int,
    coverage: bool = False,
) -> int | None:
    """Checks a state of tensors and what `step` returns, as `check_model` does."""
    shape, seen = (batch_size, width), {}
    given = _describe(state)
    _check_state("`state` must have", given, shape, coverage)

    def first_step(state, token_ids, index):
        seen["returned"] = _describe(step(token_ids, state, index))
        return token_ids

    _trace(first_step, given, shape)
    if "returned" not in seen:
        return None
    return _check_returned("step", given, seen["returned"], shape)


def check_leaves(must: str, state: State) -> None:
    """Raises an error if a state holds anything but tensors, arrays and numbers.

    `must` begins the error's message.
    """
    for path, x in _leaves(state).items():
        # `_describe` makes strings of tensors that it cannot describe.
        if not hasattr(x, "shape") and not isinstance(x, int | float | str):
            raise ValueError(
                f"{must} tensors alone. Received: state{_brackets(path)}={x!r}."
            )


class _Function(keras.Operation):
    """Wraps a function as an operation whose shapes Keras can trace."""

    def __init__(self, function):
        super().__init__()
        self.call = function


def _trace(function, given, shape):
    """Traces a function of `given`, token ids and an index, on tensors without values.

    An error that the function raises is ignored here: the search raises it unchanged.
    """
    token_ids, index = (keras.KerasTensor(x, "int32") for x in (shape, ()))
    with contextlib.suppress(Exception):
        _Function(function).compute_output_spec(given, token_ids, index)


def _describe(tensors):
    """Replaces each tensor by its shape and dtype, or its class's name if not known."""

    def one(x):
        if not hasattr(x, "shape"):
            return x
        try:
            return keras.KerasTensor(x.shape, keras.backend.standardize_dtype(x.dtype))
        except (AttributeError, TypeError, ValueError):  # or a tensor of unknown rank
            return type(x).__name__

    return tree.map_structure(one, tensors)


def _check_state(must, state, shape, coverage):
    """Checks the parts of a state, and the first axes of their tensors."""
    if not isinstance(state, dict) or (shape[1] > 1 and "beam" not in state):
        raise ValueError(f"{must} a part 'beam', in a dict. Received: {state!r}.")
    check_leaves(must, state)
    for part, axes in (("beam", "B, W"), ("sentence", "B")):
        first = shape[: axes.count(",") + 1]
        for path, x in _leaves(state.get(part, {})).items():
            is_known = isinstance(x, keras.KerasTensor)
            if is_known and not _agree(x.shape[: len(first)], first):
                sizes = ", ".join(map(str, first))
                raise ValueError(
                    f"{must} tensors of shape ({axes}, ...), here ({sizes}, ...), "
                    f"under {part!r}. "
                    f"Received: state{_brackets((part, *path))}.shape={x.shape}."
                )
    if coverage:
        _check_coverage(must, state, shape)


def _check_coverage(must, state, shape):
    """Checks the tensors from which a coverage penalty is computed."""
    leaves = _leaves(state)
    paths = ("beam", "coverage"), ("sentence", "mask")
    shapes = [getattr(leaves.get(path), "shape", None) for path in paths]
    coverage, mask = shapes
    has_both = None not in shapes and len(coverage) == 3
    if not has_both or not _agree(mask, (shape[0], coverage[2])):
        names = [f"state{_brackets(path)}" for path in paths]
        received = [f"{name}.shape={x}" for name, x in zip(names, shapes, strict=True)]
        raise ValueError(
            f"{must} {names[0]} of shape (B, W, S) and {names[1]} of shape (B, S) for "
            f"a search with a `coverage_penalty`. Received: {' and '.join(received)}."
        )


def _check_returned(name, given, returned, shape):
    """Checks what a step returned against the state that it was given.

    Returns the size of the vocabulary, if known.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise ValueError(
            f"`{name}` must return a pair, (logits, state). Received: {returned!r}."
        )
    logits, state = returned
    logits_shape = getattr(logits, "shape", None)
    if logits_shape is None or not _agree(logits_shape, (*shape, None)):
        raise ValueError(
            f"`{name}` must return logits of shape (B, W, V), here ({shape[0]}, "
            f"{shape[1]}, V). Received: logits.shape={logits_shape}."
        )
    check_leaves(f"`{name}` must return", state)
    if difference := _difference(given, state):
        raise ValueError(
            f"`{name}` must return a state of the structure, shapes and dtypes that it "
            f"is given. Received: {difference}."
        )
    return logits_shape[-1]


def _check_grown(given, grown, shape, coverage):
    """Checks what `grow_state` returned against a state like that it was given."""
    _check_state("`model.grow_state` must return", grown, shape, coverage)
    if difference := _difference(given, grown, with_shapes=False):
        raise ValueError(
            "`model.grow_state` must return a state of the structure and dtypes that "
            f"it is given. Received: {difference}."
        )


def _difference(given, returned, with_shapes=True):
    """Returns a description of how a state differs from the one given, or None."""
    before, after = _leaves(given), _leaves(returned)
    for path in [*before, *after]:
        place = f"state{_brackets(path)}"
        if path not in after:
            return f"a state without {place}"
        if path not in before:
            return f"a state with {place}, which is new"
        x, y = before[path], after[path]
        if not all(isinstance(one, keras.KerasTensor) for one in (x, y)):
            continue
        if with_shapes and not _agree(x.shape, y.shape):
            return f"{place}.shape={y.shape}, given {x.shape}"
        if x.dtype != y.dtype:
            return f"{place}.dtype={y.dtype!r}, given {x.dtype!r}"
    try:
        tree.assert_same_structure(given, returned)
    except (TypeError, ValueError):
        return "a state of other containers, such as a list for a tuple"
    return None


def _leaves(tensors):
    return dict(tree.flatten_with_path(tensors))


def _brackets(path):
    return "".join(f"[{key!r}]" for key in path)


def _agree(shape, other):
    """Returns whether two shapes may be the same, where None is any size."""
    return len(shape) == len(other) and all(
        None in sizes or sizes[0] == sizes[1]
        for sizes in zip(shape, other, strict=True)
    )
