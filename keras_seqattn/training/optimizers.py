"""Adam and Muon, whose average of the weights is useful from the first epoch.

Adam sums a token's gradients before it squares them, and can use a different learning
rate for each weight. Muon takes orthogonal steps for matrices.
"""

import collections
import math
import re
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.backend.ops import dense
from keras_seqattn.backend.processes import shares_of_sums

# Coefficients of the odd polynomial of a matrix that brings its singular values near 1.
# Jordan et al. 2024 chose them so that small singular values grow fast.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
# Most numbers in the matrices that are made orthogonal at once: enough that a step of a
# small model takes few products, and few enough for a core's cache.
MOST_AT_ONCE = 2**18


class Averaging(keras.optimizers.Optimizer):
    """Adds what Keras's average of the weights (`use_ema`) lacks to any optimizer.

    A model can be fit again on JAX. At the end of `fit` Keras gives each weight the
    very array of its average, and a JAX training step, to which these arrays are
    donated, refuses an array that it is given twice.

    Gradients are the same on every backend before they are clipped. On TensorFlow an
    embedding's gradient is a list of slices by token, which is summed here first, and
    so are the gradients of replicas.

    With `ema_warmup` the number of steps averaged over grows with the steps taken.
    """

    def __init__(
        self, learning_rate: Any, *args: Any, ema_warmup: bool, **kwargs: Any
    ) -> None:
        if not callable(learning_rate):
            rate = arguments.number("learning_rate", learning_rate, least=0)
            learning_rate = float(rate)  # Keras takes nothing else.
        ema_warmup = arguments.boolean("ema_warmup", ema_warmup)
        super().__init__(learning_rate, *args, **kwargs)
        self.ema_warmup: bool = ema_warmup

    @property
    def ema_momentum(self) -> float | Tensor:
        """The momentum of the moving average; with `ema_warmup`, of the next step."""
        if not self.ema_warmup or not self.built:
            return self._ema_momentum
        # Keras averages after each batch, but counts accumulated batches as one step.
        step = self.iterations * (self.gradient_accumulation_steps or 1)
        step = ops.cast(step, "float32")
        return ops.minimum(self._ema_momentum, (1 + step) / (10 + step))

    @ema_momentum.setter
    def ema_momentum(self, momentum: float) -> None:
        self._ema_momentum = momentum

    def apply(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates all weights, by gradients in which each token's terms are summed."""
        grads = [grad if grad is None else dense(grad) for grad in grads]
        if self.clipnorm or self.global_clipnorm or self.clipvalue:
            # Else Keras would clip those of each replica's rows, and add them up. The
            # shares are within the limit, so it leaves them as they are.
            known = [grad for grad in grads if grad is not None]
            shares = iter(shares_of_sums(self._within_limit, known))
            grads = [grad if grad is None else next(shares) for grad in grads]
        super().apply(grads, trainable_variables)

    def _within_limit(self, grads):
        """Clips gradients as Keras does, here before it divides them by the scale."""
        scale = self.loss_scale_factor or 1
        if self.clipvalue:
            most = scale * self.clipvalue
            return [ops.clip(x, -most, most) for x in grads]
        squares = [ops.sum(ops.square(x)) for x in grads]
        if self.global_clipnorm:
            squares = [sum(squares)] * len(grads)
        limit = scale * (self.clipnorm or self.global_clipnorm)
        norms = [ops.maximum(ops.sqrt(square), limit) for square in squares]
        return [x * (limit / norm) for x, norm in zip(grads, norms, strict=True)]

    def finalize_variable_values(self, var_list: list[keras.Variable]) -> None:
        """Copies the averages into the weights at the end of `fit`."""
        super().finalize_variable_values(var_list)
        if self.use_ema:
            for variable in var_list:
                variable.assign(ops.copy(variable))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = {"ema_warmup": self.ema_warmup, "ema_momentum": self._ema_momentum}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Adam(Averaging, keras.optimizers.Adam):
    """Updates weights as Keras's Adam does, in the same way on every backend.

    With `use_ema` a model can be fit again on JAX, which Keras's own Adam prevents.

    Arguments, state and saved files are those of Keras's own Adam. So are the updates,
    except on TensorFlow for an embedding that no other layer shares. A token's gradient
    is a sum over the positions of the token. Keras's own Adam adds up the squares of
    the terms there; this one squares the sum, as on JAX and torch.

    With `ema_warmup` the moving average of `use_ema` covers about the last ninth of the
    steps so far, until that is the time that `ema_momentum` stands for: at step n,
    counted from 0, its momentum is `min(ema_momentum, (1 + n) / (10 + n))`, except that
    the first step's average is its weights themselves, as in Keras. So the average can
    be validated from the beginning. With a constant momentum of 0.999 it would still
    contain the first weights after a thousand steps.

    Args:
        learning_rate: A number of at least 0, or a schedule.
        *args: Further arguments of `keras.optimizers.Adam`, `beta_1` first.
        ema_warmup: Whether the number of steps averaged over grows with the steps
            taken.
        learning_rate_factors: Dict from regular expressions to positive numbers: the
            first expression that is found in a weight's path gives the factor of its
            learning rate, not of its decay. None: all factors are 1. The models of this
            library have a method of this name, which returns such a dict for a
            `base_dim`.
        **kwargs: Other arguments of `keras.optimizers.Adam`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import keras
        >>> optimizer = Adam(learning_rate=0.5)
        >>> weight = keras.Variable([1.0])
        >>> optimizer.apply([keras.ops.array([2.0])], [weight])
        >>> round(float(keras.ops.convert_to_numpy(weight)[0]), 4)
        0.5

    Reference:
        Kingma and Ba 2015, before section 2.1. Differs: Keras's `epsilon` of 1e-7.
        `ema_warmup`: as `num_updates` of TensorFlow's
        `tf.train.ExponentialMovingAverage`, except for the first step.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        *args: Any,
        ema_warmup: bool = False,
        learning_rate_factors: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, *args, ema_warmup=ema_warmup, **kwargs)
        factors = learning_rate_factors
        arguments.instance("learning_rate_factors", factors, dict, "a dict", True)
        for pattern, factor in (factors or {}).items():
            if not _is_expression(pattern):
                wanted = "a dict by regular expressions"
                arguments.refuse("learning_rate_factors", factors, wanted)
            arguments.number(f"learning_rate_factors[{pattern!r}]", factor, above=0)
        self.learning_rate_factors = dict(factors or {})
        self._factors = {}  # by the id of a weight

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the moments, and finds the learning rate factor of each weight."""
        super().build(variables)
        for variable in variables:
            for pattern, factor in self.learning_rate_factors.items():
                if re.search(pattern, variable.path):
                    self._factors |= dict.fromkeys(_ids(variable), factor)
                    break

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Updates one weight and its moments."""
        factor = self._factors.get(id(variable))
        if factor is not None:
            learning_rate = learning_rate * ops.cast(factor, learning_rate.dtype)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = {"learning_rate_factors": self.learning_rate_factors}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Muon(Averaging):
    """Takes orthogonal steps for matrices, and steps of Adam for all other weights.

    The step of a kernel is a sum of its gradients so far. The momentum weights each
    `momentum` times as much as the next; Nesterov's form adds the newest gradient to
    `momentum` times that momentum. This sum is made orthogonal: its singular value
    decomposition `U S V^T` becomes about `U V^T`, so that directions in which gradients
    are small are learnt too. At the same learning rate the step is about as large as
    one of Adam's.

    A weight is a matrix if its name ends in "kernel" and it has two or three axes. A
    kernel of three axes, as in the projections of attention, is taken as a matrix of
    the first axis by the other two, or of the first two by the last, whichever is
    nearer to a square.

    Args:
        learning_rate: A number of at least 0, or a schedule.
        momentum: Decay of a matrix's momentum, in [0, 1).
        rms_rate: Root mean square of a matrix's step before it is multiplied by the
            learning rate, a positive number.
        exclude_layers: List of regular expressions: a kernel in whose path one of them
            is found is updated by Adam. The kernel of the logits should be:
            "^(output|classes)/" in models of this library whose logits are not tied.
        adam_beta_1: Decay of Adam's first moment, in [0, 1).
        adam_beta_2: Decay of Adam's second moment, in [0, 1).
        epsilon: Added to the denominator of Adam's steps, for numerical stability; a
            positive number.
        ns_steps: Number of Newton-Schulz iterations, matrix products that bring all
            singular values near 1; at least 1.
        ema_warmup: As in `Adam`.
        **kwargs: Other arguments of `keras.optimizers.Optimizer`.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import keras
        >>> optimizer = Muon(learning_rate=0.5, exclude_layers=["^output/"])
        >>> weight = keras.Variable([[3.0, 0.0], [0.0, 1.0]], name="kernel")
        >>> optimizer.apply([keras.ops.array([[0.4, 0.0], [0.0, 0.1]])], [weight])
        >>> keras.ops.convert_to_numpy(weight).diagonal().round(1)
        array([2.9, 0.9], dtype=float32)

    Reference:
        Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
        and, for the step's size, Liu et al. 2025, "Muon is Scalable for LLM Training".
        With `weight_decay=0` and `adam_weight_decay=0`, which it has at 0.004 unless
        they are given, `keras.optimizers.Muon` is the same for kernels of two axes.
        Differs: kernels of attention, which Keras leaves to Adam, are matrices too.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        momentum: float = 0.95,
        rms_rate: float = 0.2,
        exclude_layers: Sequence[str] = (),
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        epsilon: float = 1e-7,
        ns_steps: int = 5,
        ema_warmup: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, ema_warmup=ema_warmup, **kwargs)
        self.momentum = arguments.fraction("momentum", momentum)
        self.rms_rate = arguments.number("rms_rate", rms_rate, above=0)
        wanted = "a list of regular expressions"
        given = arguments.sequence("exclude_layers", exclude_layers, wanted)
        if not all(map(_is_expression, given)):
            arguments.refuse("exclude_layers", exclude_layers, wanted)
        self.exclude_layers = list(given)
        self.adam_beta_1 = arguments.fraction("adam_beta_1", adam_beta_1)
        self.adam_beta_2 = arguments.fraction("adam_beta_2", adam_beta_2)
        self.epsilon = arguments.number("epsilon", epsilon, above=0)
        self.ns_steps = arguments.positive_integer("ns_steps", ns_steps)
        # By a weight's id: its momentum, its velocity (None for a matrix), and the size
        # by which matrices are grouped (None if it is updated alone).
        self._slots = {}
        self._sizes, self._waiting = [], _Waiting()

    def build(self, variables: list[keras.Variable]) -> None:
        """Makes the momentum of all weights, and the velocity of those under Adam."""
        if self.built:
            return
        super().build(variables)
        make = self.add_variable_from_reference
        for variable in variables:
            momentum, velocity = make(variable, name="momentum"), None
            if not is_matrix(variable, self.exclude_layers):
                velocity = make(variable, name="velocity")
            size = self._size_together(variable)
            self._sizes.append(size)
            self._slots |= dict.fromkeys(_ids(variable), (momentum, velocity, size))

    def apply(
        self,
        grads: Sequence[Any],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates all weights, with matrices of the same size together."""
        grads, sizes = list(grads), self._sizes
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            sizes = map(self._size_together, trainable_variables)
        updated = zip(grads, sizes, strict=False)
        self._waiting = _Waiting(size for grad, size in updated if grad is not None)
        super().apply(grads, trainable_variables)

    def _size_together(self, variable):
        """Returns the size of a matrix; None for a weight that is updated alone.

        Matrices with replicas on TensorFlow are updated alone too.
        """
        if id(variable) in self._slots:
            return self._slots[id(variable)][2]
        is_one = is_matrix(variable, self.exclude_layers) and not _replicas(variable)
        return _size(variable) if is_one else None

    def update_step(
        self, gradient: Any, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Updates one weight and its moments.

        A matrix waits until `apply` has reached the other matrices of its size.
        """
        momentum, velocity, size = self._slots[id(variable)]
        gradient = ops.cast(gradient, variable.dtype)
        rate = ops.cast(learning_rate, variable.dtype)
        if velocity is not None:
            step = self._adam_step(gradient, momentum, velocity)
            self.assign_sub(variable, rate * step)
            return
        self.assign(momentum, self.momentum * momentum + gradient)
        moment = self.momentum * momentum + gradient
        together = [(variable, moment)]
        if size is not None:
            together = self._waiting.add(size, together[0])
        if together:
            variables, moments = zip(*together, strict=True)
            steps = self._orthogonal(moments)
            for each, step in zip(variables, steps, strict=True):
                self.assign_sub(each, rate * step)

    def _adam_step(self, gradient, momentum, velocity):
        """Updates the moments, and returns Adam's step at a learning rate of 1."""
        # The count is float32, since 0.999 rounds to 1 in bfloat16.
        count = ops.cast(self.iterations + 1, "float32")
        beta_1, beta_2 = self.adam_beta_1, self.adam_beta_2
        self.assign_add(momentum, (gradient - momentum) * (1 - beta_1))
        self.assign_add(velocity, (ops.square(gradient) - velocity) * (1 - beta_2))
        factor = ops.sqrt(1 - ops.power(beta_2, count)) / (1 - ops.power(beta_1, count))
        factor = ops.cast(factor, gradient.dtype)
        return factor * momentum / (ops.sqrt(velocity) + self.epsilon)

    def _orthogonal(self, kernels):
        """Returns the orthogonal steps of kernels of one size, scaled to `rms_rate`."""
        shapes = [matrix_shape(kernel.shape) for kernel in kernels]
        is_tall = [rows > columns for rows, columns in shapes]
        matrices = map(ops.reshape, kernels, shapes)
        matrices = ops.stack([*map(_transposed_if, matrices, is_tall)])
        # Division by the norm leaves no singular value above 1.
        norms = ops.norm(matrices, axis=(1, 2), keepdims=True)
        matrices = matrices / (norms + 1e-7)
        first, third, fifth = NEWTON_SCHULZ
        for _ in range(self.ns_steps):
            squares = matrices @ ops.transpose(matrices, (0, 2, 1))
            squares = third * squares + fifth * squares @ squares
            matrices = first * matrices + squares @ matrices
        size = self.rms_rate * math.sqrt(max(shapes[0]))
        steps = map(_transposed_if, ops.unstack(size * matrices), is_tall)
        return [*map(ops.reshape, steps, [kernel.shape for kernel in kernels])]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "rms_rate": self.rms_rate,
            "exclude_layers": self.exclude_layers,
            "adam_beta_1": self.adam_beta_1,
            "adam_beta_2": self.adam_beta_2,
            "epsilon": self.epsilon,
            "ns_steps": self.ns_steps,
        }


def is_matrix(variable: keras.Variable, exclude_layers: Sequence[str]) -> bool:
    """Returns whether Muon takes orthogonal steps for a weight."""
    if not variable.name.endswith("kernel") or len(variable.shape) not in (2, 3):
        return False
    return not any(re.search(each, variable.path) for each in exclude_layers)


def matrix_shape(shape: Shape) -> tuple[int, int]:
    """Returns the rows and columns of a kernel of two or three axes seen as a matrix.

    Example:
        >>> matrix_shape((128, 4, 32)), matrix_shape((4, 32, 128))
        ((128, 128), (128, 128))
    """
    cuts = range(1, len(shape))
    shapes = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in cuts]
    return min(shapes, key=lambda each: max(each) / min(each))


class _Waiting:
    """Matrices of one step, each of which waits for the last one of its size."""

    def __init__(self, sizes=()):
        """Takes the sizes of all matrices that will be added."""
        self._coming, self._here = collections.Counter(sizes), {}

    def add(self, size, matrix):
        """Adds a matrix, and returns those of its size to update now, if any."""
        here = self._here.setdefault(size, [])
        here.append(matrix)
        self._coming[size] -= 1
        rows, columns, _ = size
        is_full = (len(here) + 1) * rows * columns > MOST_AT_ONCE
        return self._here.pop(size) if is_full or self._coming[size] <= 0 else []


def _size(variable):
    """Returns a kernel's shorter and longer side as a matrix, and its dtype."""
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return (*sorted(matrix_shape(variable.shape)), dtype)


def _transposed_if(matrix, condition):
    return ops.transpose(matrix) if condition else matrix


def _is_expression(pattern):
    """Returns whether a pattern is a string and a valid regular expression."""
    if not isinstance(pattern, str):
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


def _ids(variable):
    """Returns the ids of the objects that `update_step` may receive for a weight.

    On TensorFlow it receives TensorFlow's variable, or that of a replica.
    """
    return map(id, (variable, variable.value, *_replicas(variable)))


def _replicas(variable):
    """Returns the variables of a weight's replicas on TensorFlow, () if none."""
    replicas = getattr(variable.value, "values", ())
    return replicas if isinstance(replicas, tuple) else ()
