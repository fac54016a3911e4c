"""Learning rates that rise over a warm-up and fall as the inverse square root."""

import math
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor


@keras.saving.register_keras_serializable(package="keras_seqattn")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to `peak`, then falls as the inverse square root of the step.

    The rate is `peak * min(step / warmup_steps, sqrt(warmup_steps / step))`. Steps are
    counted from 0, as in Keras's optimizers: the rate is 0 at the first step, `peak` at
    step `warmup_steps`, and half of `peak` at step `4 * warmup_steps`. Keras counts a
    step for each batch, not for each update: multiply `warmup_steps` by the optimizer's
    `gradient_accumulation_steps`, if it has any.

    Args:
        peak: Largest learning rate, positive.
        warmup_steps: Step at which `peak` is reached, a positive integer.

    Call arguments:
        step: Integer scalar.

    Returns:
        Float32 scalar.

    Raises:
        ValueError: If `peak` is not a positive number or `warmup_steps` is not a
            positive integer.

    Example:
        >>> schedule = InverseSquareRoot(peak=0.5, warmup_steps=100)
        >>> [float(schedule(step)) for step in (0, 50, 100, 400)]
        [0.0, 0.25, 0.5, 0.25]

    Reference:
        Vaswani et al. 2017, section 5.3. Differs: the peak is given, not derived from
        the model's width, and steps count from 0, where theirs (and `Noam`'s) count
        from 1.
    """

    def __init__(self, peak: float, warmup_steps: int) -> None:
        self.peak = arguments.number("peak", peak, above=0)
        self.warmup_steps = arguments.positive_integer("warmup_steps", warmup_steps)

    def __call__(self, step: int | Tensor) -> Tensor:
        """Returns the learning rate of `step`."""
        step = ops.cast(step, "float32")
        fall = math.sqrt(self.warmup_steps) * ops.rsqrt(ops.maximum(step, 1.0))
        return self.peak * ops.minimum(step / self.warmup_steps, fall)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"peak": self.peak, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Noam(keras.optimizers.schedules.LearningRateSchedule):
    """Follows the schedule of the original Transformer.

    The rate is `scale * model_dim**-0.5 * min(n**-0.5, n * warmup_steps**-1.5)`, where
    `n = step + 1`: the paper counts steps from 1 and Keras from 0. The largest rate is
    `scale / sqrt(model_dim * warmup_steps)`, at `n = warmup_steps`. Keras counts a step
    for each batch, not for each update: multiply `warmup_steps` by the optimizer's
    `gradient_accumulation_steps`, if it has any, and `scale` by its square root.

    Args:
        model_dim: Width of the model, a positive integer.
        warmup_steps: Number of steps of the linear rise, a positive integer.
        scale: Positive factor of the learning rate.

    Call arguments:
        step: Integer scalar.

    Returns:
        Float32 scalar.

    Raises:
        ValueError: If `model_dim` or `warmup_steps` is not a positive integer or
            `scale` is not a positive number.

    Example:
        >>> schedule = Noam(model_dim=4, warmup_steps=4)
        >>> [float(schedule(step)) for step in (0, 3, 15)]
        [0.0625, 0.25, 0.125]

    Reference:
        Vaswani et al. 2017, equation 3. Differs: `scale`, 1 in the paper.
    """

    def __init__(self, model_dim: int, warmup_steps: int, scale: float = 1.0) -> None:
        self.model_dim = arguments.positive_integer("model_dim", model_dim)
        self.warmup_steps = arguments.positive_integer("warmup_steps", warmup_steps)
        self.scale = arguments.number("scale", scale, above=0)

    def __call__(self, step: int | Tensor) -> Tensor:
        """Returns the learning rate of `step`."""
        count = ops.cast(step, "float32") + 1.0
        rise = count * self.warmup_steps**-1.5
        factor = self.scale * self.model_dim**-0.5
        return factor * ops.minimum(ops.rsqrt(count), rise)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "model_dim": self.model_dim,
            "warmup_steps": self.warmup_steps,
            "scale": self.scale,
        }
