"""Adam that squares the whole gradient of a token's vector."""

from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.backend.ops import dense


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Adam(keras.optimizers.Adam):
    """Keras's Adam, the same on every backend.

    Arguments, state and saved files are those of Keras's own, and so are the updates,
    except on TensorFlow that of an embedding that no other layer shares: there Keras's
    own adds up the squares of what each position of a token contributes to its
    gradient, where here, as on JAX and torch, the sum is squared.

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

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        **kwargs: Any,
    ) -> None:
        if not callable(learning_rate):
            arguments.number("learning_rate", learning_rate, least=0)
        super().__init__(learning_rate, **kwargs)

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Updates one weight and its moments."""
        super().update_step(dense(gradient), variable, learning_rate)
