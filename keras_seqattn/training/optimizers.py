"""Adam: a token's whole gradient, averages from the first step, rates by weight."""

import re
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.backend.ops import dense


class Refittable(keras.optimizers.Optimizer):
    """Lets a model whose weights are averaged (`use_ema`) be fit again on JAX.

    Keras gives each weight the array of its average at the end of `fit`. A training
    step on JAX takes the arrays of all that it updates, and so refuses one that is two.
    """

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        """Applies the averages to the weights at the end of `fit`, as copies."""
        super().finalize_variable_values(var_list)
        if self.use_ema:
            for variable in var_list:
                variable.assign(ops.copy(variable))


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Muon(Refittable, keras.optimizers.Muon):
    """Keras's Muon, whose model can be fit again."""


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Adam(Refittable, keras.optimizers.Adam):
    """Keras's Adam, the same on every backend.

    With `use_ema` a model can be fit again on JAX, as it cannot with Keras's own.

    Arguments, state and saved files are those of Keras's own, and so are the updates,
    except on TensorFlow that of an embedding that no other layer shares: there Keras's
    own adds up the squares of what each position of a token contributes to its
    gradient, where here, as on JAX and torch, the sum is squared.

    With `ema_warmup` the moving average of `use_ema` is one of the weights of about the
    last ninth of the steps so far, until that is the time `ema_momentum` stands for:
    at step n, counted from 0, its momentum is `min(ema_momentum, (1 + n) / (10 + n))`.
    So it is worth validating from the beginning, where a momentum of 0.999 still has
    the first weights in it after a thousand steps.

    Args:
        learning_rate: A positive number, or a schedule.
        ema_warmup: Whether the time averaged over grows with the steps taken.
        learning_rate_factors: Dict of positive numbers by regular expressions: a weight
            whose path has the first of them in it learns at so many times the rate.
            None: all learn at the rate itself. A model with `base_dim` has a method of
            this name that returns such a dict.
        **kwargs: Other arguments of `keras.optimizers.Adam`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> optimizer = Adam(learning_rate=0.5)
        >>> weight = keras.Variable([1.0])
        >>> optimizer.apply([keras.ops.array([2.0])], [weight])
        >>> round(float(keras.ops.convert_to_numpy(weight)[0]), 4)
        0.5

    Reference:
        Kingma and Ba 2015, before section 2.1. Differs: none. `ema_warmup`: as
        `num_updates` of TensorFlow's `tf.train.ExponentialMovingAverage`.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        ema_warmup: bool = False,
        learning_rate_factors: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not callable(learning_rate):
            arguments.number("learning_rate", learning_rate, least=0)
        arguments.boolean("ema_warmup", ema_warmup)
        factors = learning_rate_factors
        arguments.instance("learning_rate_factors", factors, dict, "a dict", True)
        for pattern, factor in (factors or {}).items():
            try:
                re.compile(pattern)
            except (re.error, TypeError):
                wanted = "a dict by regular expressions"
                arguments.refuse("learning_rate_factors", factors, wanted)
            arguments.number(f"learning_rate_factors[{pattern!r}]", factor, above=0)
        super().__init__(learning_rate, **kwargs)
        self.ema_warmup = ema_warmup
        self.learning_rate_factors = dict(factors or {})
        self._factors = {}  # by the id of a weight

    @property
    def ema_momentum(self) -> float | Tensor:
        """Momentum of the moving average: with `ema_warmup` that of the next step."""
        if not self.ema_warmup or not self.built:
            return self._ema_momentum
        step = ops.cast(self.iterations, "float32")
        return ops.minimum(self._ema_momentum, (1 + step) / (10 + step))

    @ema_momentum.setter
    def ema_momentum(self, momentum: float) -> None:
        self._ema_momentum = momentum

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the moments, and learns which weights have a rate of their own."""
        super().build(variables)
        for variable in variables:
            for pattern, factor in self.learning_rate_factors.items():
                if re.search(pattern, variable.path):
                    # TensorFlow hands `update_step` its own variable, or a replica's.
                    value = variable.value
                    replicas = getattr(value, "values", ())
                    replicas = replicas if isinstance(replicas, tuple) else ()
                    ids = map(id, (variable, value, *replicas))
                    self._factors |= dict.fromkeys(ids, factor)
                    break

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Updates one weight and its moments."""
        factor = self._factors.get(id(variable))
        if factor is not None:
            learning_rate = learning_rate * ops.cast(factor, learning_rate.dtype)
        super().update_step(dense(gradient), variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "ema_warmup": self.ema_warmup,
            "ema_momentum": self._ema_momentum,
            "learning_rate_factors": self.learning_rate_factors,
        }
