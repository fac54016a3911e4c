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

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Contracts the axes of `inputs` that the kernel begins with."""
        axes, kernel_axes = self.equation.partition("->")[0].split(",")
        bound = len(set(axes) & set(kernel_axes))
        kernel = self.kernel
        size = math.prod(kernel.shape[:bound])
        rows = ops.reshape(inputs, (-1, size))
        rows = ops.matmul(rows, ops.reshape(kernel, (size, -1)))
        if self.bias is not None:
            rows = ops.add(rows, ops.reshape(self.bias, (-1,)))
        leading, widths = sizes(inputs)[:-bound], kernel.shape[bound:]
        return self.activation(ops.reshape(rows, (*leading, *widths)))
