"""Adam with an update of one pass."""

import keras

from keras_seqattn import arguments
from keras_seqattn.backend.ops import adam_scalars, apply_adam, has_adam


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Adam(keras.optimizers.Adam):
    """Keras's Adam, which updates each weight in one pass on TensorFlow without XLA.

    There Keras's own makes eleven operations for each weight, each a pass over it: a
    twentieth of a step, and much of the time in which the first one is traced.
    Elsewhere, and with `amsgrad`, it is Keras's own. Arguments, state and saved files
    are the same, and so are the updates, except that of an embedding that no other
    layer shares: Keras's own adds up the squares of what each place of a token
    contributes on TensorFlow, where here, as on JAX and torch, it squares the sum.

    Args:
        learning_rate: A positive number, or a schedule.
        **kwargs: Other arguments of `keras.optimizers.Adam`.

    Example:
        >>> optimizer = Adam(learning_rate=0.5)
        >>> weight = keras.Variable([1.0])
        >>> optimizer.apply([keras.ops.array([2.0])], [weight])
        >>> round(float(keras.ops.convert_to_numpy(weight)[0]), 4)
        0.5

    Reference:
        Kingma and Ba 2015, before section 2.1. Differs: none.
    """

    def __init__(self, learning_rate=0.001, **kwargs):
        if not callable(learning_rate):
            arguments.number("learning_rate", learning_rate, least=0)
        super().__init__(learning_rate, **kwargs)
        self._scalars = {}  # by dtype: of one step, and of the program being traced

    def apply(self, grads, trainable_variables=None):
        """Updates all weights."""
        try:
            super().apply(grads, trainable_variables)
        finally:
            self._scalars.clear()

    def update_step(self, gradient, variable, learning_rate):
        """Updates one weight and its two moments."""
        if self.amsgrad or not has_adam(variable):
            super().update_step(gradient, variable, learning_rate)
            return
        index = self._get_variable_index(variable)
        if variable.dtype not in self._scalars:
            self._scalars[variable.dtype] = adam_scalars(
                variable.dtype,
                learning_rate,
                self.iterations + 1,
                self.beta_1,
                self.beta_2,
                self.epsilon,
            )
        apply_adam(
            variable,
            self._momentums[index].value,
            self._velocities[index].value,
            gradient,
            self._scalars[variable.dtype],
        )
