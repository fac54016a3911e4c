"""The variables that training changes: those of a model and of its optimizers."""

import keras


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Lists the optimizers that a model holds, each once.

    They are that of `compile` and, in a model with a `train_step` of its own, others
    among its attributes.
    """
    kind = keras.optimizers.Optimizer
    held = {id(x): x for x in vars(model).values() if isinstance(x, kind)}
    return list(held.values())


def build_optimizers(model: keras.Model) -> None:
    """Makes the optimizers' variables now, where their first step would make them.

    So they can be saved before that step, and restored. An optimizer that is not built
    yet gets variables for all weights that the model trains.
    """
    for optimizer in optimizers_of(model):
        if not optimizer.built:
            optimizer.build(model.trainable_variables)


def changed_variables(model: keras.Model) -> list[list[keras.Variable]]:
    """Lists the variables of a model, with its seeds, and those of each optimizer."""
    return [model.variables, *(x.variables for x in optimizers_of(model))]
