"""Layer normalization with a gradient of its own.

Shapes: N vectors, D their width.
"""

import keras
from keras import ops

from keras_seqattn.backend import autodiff, tracing
from keras_seqattn.backend.ops import sizes


@keras.saving.register_keras_serializable(package="keras_seqattn")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer, over the last axis; part of other layers, and saved with them.

    Without XLA TensorFlow makes a pass over all vectors for each operation, and Keras's
    formula, differentiated by TensorFlow, takes twice as long as what stands here.
    """

    def call(self, inputs):
        """Normalizes each vector, then scales and shifts it."""
        if tracing.cpu_program(inputs) != "tensorflow":
            return super().call(inputs)
        dtype = keras.backend.result_type(inputs.dtype, "float32")
        given = (ops.cast(x, dtype) for x in (inputs, self.gamma, self.beta))
        return ops.cast(_normalized(*given, self.epsilon), self.compute_dtype)


def _normalized(x, gamma, beta, epsilon):
    """Normalizes `(..., D)`, with `gamma` and `beta` `(D,)`."""
    width = x.shape[-1]
    mean_of = ops.full((width, 1), 1 / width, x.dtype)

    @autodiff.custom_gradient
    def normalized(x, gamma, beta):
        shape = sizes(x)
        x = ops.reshape(x, (-1, width))  # (N, D)
        # Means are products with a column: a sum along rows takes longer.
        centered = x - ops.matmul(x, mean_of)
        variance = ops.matmul(ops.square(centered), mean_of)  # (N, 1)
        inverse = ops.rsqrt(variance + epsilon)
        normal = centered * inverse

        def gradient(upstream):
            slope = ops.reshape(upstream, (-1, width))
            along = slope * normal
            scaled_mean = gamma[:, None] * mean_of
            x_slope = slope * gamma - ops.matmul(slope, scaled_mean)
            x_slope = (x_slope - normal * ops.matmul(along, scaled_mean)) * inverse
            sums = ops.sum(along, axis=0), ops.sum(slope, axis=0)
            return ops.reshape(x_slope, shape), *sums

        return ops.reshape(normal * gamma + beta, shape), gradient

    return normalized(x, gamma, beta)
