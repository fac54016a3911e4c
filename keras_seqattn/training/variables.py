"""The variables that training changes: those of a model and of its optimizers."""

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from keras_seqattn.backend.processes import whole_array
from keras_seqattn.training.snapshot import array_of


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Lists the optimizers that a model holds, each once.

    They are that of `compile` and, in a model with a `train_step` of its own, others
    among its attributes.
    """
    held = {id(x): x for x in _optimizers_by_attribute(model).values()}
    return list(held.values())


def inner_optimizer(optimizer: Any) -> Any:
    """Returns an optimizer without a `LossScaleOptimizer` around it."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def parts_of(optimizer: Any) -> list[Any]:
    """Lists the parts of a `MultiOptimizer`; a different optimizer is its only part."""
    inner = inner_optimizer(optimizer)
    return getattr(inner, "optimizers", [inner])


@contextlib.contextmanager
def without_optimizers(model: keras.Model) -> Iterator[None]:
    """Lets a model's weights be saved and loaded without those of its optimizers."""
    held = _optimizers_by_attribute(model)
    for name in held:
        setattr(model, name, None)
    try:
        yield
    finally:
        for name, optimizer in held.items():
            setattr(model, name, optimizer)


def _optimizers_by_attribute(model):
    kind = keras.optimizers.Optimizer
    return {name: x for name, x in vars(model).items() if isinstance(x, kind)}


def check_built(model: keras.Model, use: str) -> None:
    """Raises an error if a model is not built before `fit`, as it must be for a use.

    On TensorFlow the first step would build it.
    """
    if not model.built:
        raise ValueError(
            f"`model` must be built before `fit` to be {use}: call it on a batch. "
            f"Received: an unbuilt model, {model.name!r}."
        )


def build_optimizers(model: keras.Model) -> None:
    """Makes the optimizers' variables now, where their first step would make them.

    So they can be saved before that step, and restored. An optimizer that is not built
    yet gets variables for all weights that the model trains.
    """
    for optimizer in optimizers_of(model):
        if not optimizer.built:
            optimizer.build(model.trainable_variables)


def slots_of(
    optimizer: keras.optimizers.Optimizer, weights: list[keras.Variable], name: str
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Lists the pairs of a weight and the variable that an optimizer keeps for it.

    Keras names the variable after the weight's path and `name`, such as "average".
    Where several weights have one path, both stand in the same order.
    """
    waiting = collections.defaultdict(list)
    for variable in reversed(optimizer.variables):
        waiting[variable.name].append(variable)
    named = [(x, waiting[f"{x.path.replace('/', '_')}_{name}"]) for x in weights]
    return [(weight, slots.pop()) for weight, slots in named if slots]


def begin_averages(model: keras.Model) -> None:
    """Sets moving averages to the weights where no step has made them yet.

    Keras begins with 0, which the first step replaces.
    """
    trained = model.trainable_variables
    for optimizer in optimizers_of(model):
        for each in parts_of(optimizer):
            if each.use_ema and each.built and not whole_array(each.iterations):
                for weight, average in slots_of(each, trained, "average"):
                    average.assign(array_of(weight))


def changed_variables(model: keras.Model) -> list[list[keras.Variable]]:
    """Lists the variables of a model, with its seeds, and those of each optimizer."""
    return [model.variables, *(x.variables for x in optimizers_of(model))]
