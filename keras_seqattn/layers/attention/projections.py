"""The projections of multi-head attention: vectors to heads, and heads back.

Shapes: D width of an input, H heads, G key and value heads, K key_dim, V value_dim.
"""

import math

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.backend.ops import sizes
from keras_seqattn.layers.shapes import check_built, check_tensor
from keras_seqattn.layers.weights.initializers import copied
from keras_seqattn.layers.weights.lora import KeepsLora
from keras_seqattn.layers.weights.quantization import (
    QuantizedAsParent,
    dtype_config,
    unquantized,
)


class HeadProjections(arguments.Checked, keras.layers.Layer):
    """Projects to heads and back, with the arguments and weights of Keras's layer.

    The order of the weights, and the names the parts have as attributes, are those of
    `keras.layers.MultiHeadAttention`: so its weights fit. What Keras has not (the norms
    of queries and keys) comes after.
    Shapes: D width of an input, H heads, G key and value heads, K key_dim, V value_dim.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        use_bias=True,
        output_shape=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        num_key_value_heads=None,
        qk_norm=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = _positive("num_heads", num_heads)
        self.key_dim = _positive("key_dim", key_dim)
        self.value_dim = _positive(
            "value_dim", key_dim if value_dim is None else value_dim
        )
        self.num_key_value_heads = _positive(
            "num_key_value_heads",
            num_heads if num_key_value_heads is None else num_key_value_heads,
        )
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. Received: "
                f"num_key_value_heads={self.num_key_value_heads}, "
                f"num_heads={self.num_heads}."
            )
        self.use_bias = arguments.boolean("use_bias", use_bias)
        self.use_gate = arguments.boolean("use_gate", use_gate)
        self.qk_norm = arguments.boolean("qk_norm", qk_norm)
        # Keras owns the name `output_shape` (`summary()` reads it).
        self._output_shape = _output_widths(output_shape)
        self.kernel_initializer = arguments.keras_object(
            "kernel_initializer", kernel_initializer
        )
        self.bias_initializer = arguments.keras_object(
            "bias_initializer", bias_initializer
        )
        self.kernel_regularizer = arguments.keras_object(
            "kernel_regularizer", kernel_regularizer
        )
        self.bias_regularizer = arguments.keras_object(
            "bias_regularizer", bias_regularizer
        )
        # Keras would apply its own `activity_regularizer` to the layer's output.
        self._activity_regularizer = arguments.keras_object(
            "activity_regularizer", activity_regularizer
        )
        self.kernel_constraint = arguments.keras_object(
            "kernel_constraint", kernel_constraint
        )
        self.bias_constraint = arguments.keras_object(
            "bias_constraint", bias_constraint
        )

    def build(self, query_shape, value_shape, key_shape=None):
        """Makes the projections for inputs of the given shapes."""
        key_shape = value_shape if key_shape is None else key_shape
        check_lengths(value_shape, key_shape)
        shapes = (query_shape, value_shape, key_shape)
        self._query_width, self._value_width, self._key_width = (x[-1] for x in shapes)
        heads, groups = self.num_heads, self.num_key_value_heads
        self.query_dense = self._dense("query", query_shape, (heads, self.key_dim))
        self.key_dense = self._dense("key", key_shape, (groups, self.key_dim))
        if self.use_gate:
            self._gate_dense = self._dense(
                "gate", query_shape, (heads, self.value_dim), activation="sigmoid"
            )
        self.value_dense = self._dense("value", value_shape, (groups, self.value_dim))
        self.output_dense = self._dense(
            "attention_output",
            (*query_shape[:-1], heads, self.value_dim),
            self._output_shape or (query_shape[-1],),
            bound=2,
        )
        self.query_norm = self._norm("query_norm") if self.qk_norm else None
        self.key_norm = self._norm("key_norm") if self.qk_norm else None

    def _dense(self, name, input_shape, widths, bound=1, activation=None):
        """Makes the projection of the last `bound` axes to `widths`."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        free, rank = len(input_shape) - bound, len(input_shape)
        inputs, outputs = letters[:rank], letters[rank : rank + len(widths)]
        dense = _Projection(
            f"{inputs},{inputs[free:]}{outputs}->{inputs[:free]}{outputs}",
            output_shape=(*[None] * (free - 1), *widths),
            bias_axes=outputs if self.use_bias else None,
            activation=activation,
            kernel_initializer=copied(self.kernel_initializer),
            bias_initializer=copied(self.bias_initializer),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            name=name,
            dtype=self.dtype_policy,
        )
        dense.build(input_shape)
        dense.supports_masking = True  # else Keras warns that the mask ends here
        return dense

    def _norm(self, name):
        """Makes a norm over the width of a head, one scale for all heads."""
        policy = unquantized(self.dtype_policy)
        norm = keras.layers.RMSNormalization(epsilon=1e-6, name=name, dtype=policy)
        norm.build((None, None, None, self.key_dim))
        norm.supports_masking = True
        return norm

    def project_query(self, query):
        """Returns the queries `(..., H, K)` of vectors `(..., D)`."""
        check_built(self)
        check_tensor("query", query, width=self._query_width)
        queries = self.query_dense(query)
        return self.query_norm(queries) if self.qk_norm else queries

    def project_key(self, key):
        """Returns the keys `(..., G, K)` of vectors `(..., D)`."""
        check_built(self)
        check_tensor("key", key, width=self._key_width)
        keys = self.key_dense(key)
        return self.key_norm(keys) if self.qk_norm else keys

    def project_value(self, value):
        """Returns the values `(..., G, V)` of vectors `(..., D)`."""
        check_built(self)
        check_tensor("value", value, width=self._value_width)
        return self.value_dense(value)

    def project_output(self, query, heads):
        """Gates what the heads gave, `(..., H, V)`, and projects it back."""
        check_built(self)
        check_tensor("query", query, width=self._query_width)
        check_tensor("heads", heads, "(batch, ..., heads, width)", self.value_dim)
        if self.use_gate:
            heads = ops.multiply(heads, self._gate_dense(query))
        return self.output_dense(heads)

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        """Returns the shape of the output without the weights."""
        check_lengths(value_shape, value_shape if key_shape is None else key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def get_config(self):
        """Returns the constructor's arguments."""
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "kernel_initializer": serialize(self.kernel_initializer),
            "bias_initializer": serialize(self.bias_initializer),
            "kernel_regularizer": serialize(self.kernel_regularizer),
            "bias_regularizer": serialize(self.bias_regularizer),
            "activity_regularizer": serialize(self._activity_regularizer),
            "kernel_constraint": serialize(self.kernel_constraint),
            "bias_constraint": serialize(self.bias_constraint),
            "use_gate": self.use_gate,
            "num_key_value_heads": self.num_key_value_heads,
            "qk_norm": self.qk_norm,
        }


class _Projection(KeepsLora, QuantizedAsParent, keras.layers.EinsumDense):
    """Projects the vectors of all places in one matrix product.

    Of an einsum that keeps an axis for the batch, TensorFlow computes the gradient of
    the kernel for each sentence, and then adds these up: a fifth of a training step.
    """

    def call(self, inputs, training=None):
        """Contracts the axes of `inputs` that the kernel begins with."""
        axes, kernel_axes = self.equation.partition("->")[0].split(",")
        bound = len(set(axes) & set(kernel_axes))
        kernel = self.kernel
        size = math.prod(kernel.shape[:bound])
        rows = ops.reshape(inputs, (-1, size))
        rows = ops.matmul(rows, ops.reshape(kernel, (size, -1)))
        if self.bias is not None:
            rows = ops.add(rows, ops.reshape(self.bias, (-1,)))
        places, widths = sizes(inputs)[:-bound], kernel.shape[bound:]
        outputs = ops.reshape(rows, (*places, *widths))
        return outputs if self.activation is None else self.activation(outputs)


def check_lengths(value_shape, key_shape):
    """Checks that values and keys agree in all but the width; in Keras's wording."""
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "All dimensions of `value` and `key`, except the last one, must be equal. "
            f"Received: value_shape={value_shape} and key_shape={key_shape}"
        )


def _positive(name, value):
    """Checks a size; the wording is that of Keras."""
    try:
        return arguments.positive_integer(name, value)
    except ValueError:
        raise ValueError(
            f"Received an invalid value for argument `{name}`, "
            f"expected a positive integer. Received: {name}={value!r}"
        ) from None


def _output_widths(output_shape):
    if isinstance(output_shape, int) and not isinstance(output_shape, bool):
        output_shape = (output_shape,)
    try:
        widths = arguments.sequence(
            "output_shape", output_shape, "", arguments.positive_integer, optional=True
        )
    except ValueError:
        raise ValueError(
            f"Invalid `output_shape`: {output_shape!r}. When specified, the "
            "`output_shape` should be of type tuple, list, or int."
        ) from None
    return tuple(widths or ()) or None
