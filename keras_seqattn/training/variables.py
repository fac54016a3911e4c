"""The variables that training changes: those of a model and of its optimizers."""

import keras

from keras_seqattn.backend.processes import whole_array
from keras_seqattn.training.snapshot import array_of


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


def begin_averages(model: keras.Model) -> None:
    """Sets moving averages to the weights where no step has made them yet.

    Keras begins with 0, which the first step replaces.
    """
    # Keras names an average after its weight.
    weights = {
        f"{weight.path.replace('/', '_')}_average": weight
        for weight in model.trainable_variables
    }
    for optimizer in optimizers_of(model):
        inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a scaled loss
        for each in getattr(inner, "optimizers", [inner]):
            if each.use_ema and each.built and not whole_array(each.iterations):
                for variable in each.variables:
                    if variable.name in weights:
                        variable.assign(array_of(weights[variable.name]))


def changed_variables(model: keras.Model) -> list[list[keras.Variable]]:
    """Lists the variables of a model, with its seeds, and those of each optimizer."""
    return [model.variables, *(x.variables for x in optimizers_of(model))]
