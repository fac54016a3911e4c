"""The projections of multi-head attention: vectors to heads, and heads back."""

import math
from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.backend.ops import sizes
from keras_seqattn.layers.weights.lora import KeepsLora
from keras_seqattn.layers.weights.quantization import QuantizedAsParent


class Projection(KeepsLora, QuantizedAsParent, keras.layers.EinsumDense):
    """Projects the vectors of all positions in one matrix product.

    For an einsum that keeps a batch axis, XLA computes the gradient of the kernel for
    each sentence and then adds these up. On JAX that takes an eighth of a training step
    at width 256; `benchmarks.paths` measures it in its row "projections".
    """

    @classmethod
    def of(
        cls,
        input_shape: Shape,
        widths: Sequence[int],
        use_bias: bool,
        bound: int = 1,
        **options: Any,
    ) -> Self:
        """Makes and builds a projection of the last `bound` axes to axes `widths`."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        free, rank = len(input_shape) - bound, len(input_shape)
        inputs, outputs = letters[:rank], letters[rank : rank + len(widths)]
        projection = cls(
            f"{inputs},{inputs[free:]}{outputs}->{inputs[:free]}{outputs}",
            output_shape=(*[None] * (free - 1), *widths),
            bias_axes=outputs if use_bias else None,
            **options,
        )
        projection.build(input_shape)
        projection.supports_masking = True  # else Keras warns that the mask ends here
        return projection

    def _axes(self):
        """Returns the axes of the kernel that are contracted, and its other axes."""
        inputs, kernel = self.equation.partition("->")[0].split(",")
        bound = len(set(inputs) & set(kernel))
        return list(range(bound)), list(range(bound, len(kernel)))

    def enable_lora(self, *args: Any, **kwargs: Any) -> None:
        """Adds LoRA factors, A with the size that He et al. give the contracted axes.

        Keras's own is smaller: it counts all axes but the last, heads too.
        """
        initializer = keras.initializers.HeUniform(None, *self._axes())
        super().enable_lora(*args, **{"a_initializer": initializer, **kwargs})

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Contracts the axes of `inputs` that the kernel begins with."""
        kernel, bound = self.kernel, len(self._axes()[0])
        size = math.prod(kernel.shape[:bound])
        rows = ops.reshape(inputs, (-1, size))
        rows = ops.matmul(rows, ops.reshape(kernel, (size, -1)))
        if self.bias is not None:
            rows = ops.add(rows, ops.reshape(self.bias, (-1,)))
        leading, widths = sizes(inputs)[:-bound], kernel.shape[bound:]
        return self.activation(ops.reshape(rows, (*leading, *widths)))
