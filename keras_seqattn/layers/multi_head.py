"""Multi-head attention with the interface of `keras.layers.MultiHeadAttention`.

Shapes: B batch, T target length, S source length, D width of an input, H heads,
G key and value heads, K key_dim, V value_dim, W beams, L cache length.
"""

import keras
from keras import ops

from keras_seqattn.layers import arguments, attention, masks
from keras_seqattn.layers.axes import Folding
from keras_seqattn.layers.quantization import dtype_config


@keras.saving.register_keras_serializable(package="keras_seqattn")
class MultiHeadAttention(keras.layers.Layer):
    """Attends with several heads, each on its own projection of the inputs.

    output = concat_h(softmax(q_h . k_h^T * scale) . v_h) W_o with q_h = query W_q,h and
    so on. Takes the arguments of `keras.layers.MultiHeadAttention` with their meaning.
    Implicit Keras masks and the masks given are combined; a masked key weighs nothing,
    and for a query that is masked, or may attend to nothing, the heads give exactly
    zero. The output has the mask of `query`, and the inputs keep theirs.
    Shapes: B batch, T target length, S source length, D width of an input, H heads.

    Args:
        num_heads: Number of heads H, a positive integer.
        key_dim: Width of a head's queries and keys, a positive integer.
        value_dim: Width of a head's values; `key_dim` when None.
        dropout: Fraction of the weights dropped while training, in [0, 1).
        use_bias: Whether the projections add a bias.
        output_shape: Width of the output, or a tuple of widths; that of `query` when
            None.
        attention_axes: The axes attended over, of inputs `(B, ..., D)`; all between
            the first and the last when None.
        sliding_window: Positive integer: query i sees only keys |i - j| < window.
        flash_attention: True stands for `implementation="fused"`, False for
            "explicit".
        kernel_initializer: Initializer of the kernels.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the kernels.
        bias_regularizer: Regularizer of the biases.
        activity_regularizer: Regularizer of what each projection gives.
        kernel_constraint: Constraint of the kernels.
        bias_constraint: Constraint of the biases.
        use_gate: Whether sigmoid(query W_g) multiplies what the heads give.
        seed: Integer seed of the dropout, or None.
        num_key_value_heads: Number of key and value heads, a divisor of `num_heads`:
            1 is multi-query attention; `num_heads` when None.
        scale: Factor of the scores; None is 1 / sqrt(key_dim).
        implementation: "auto", "explicit" or "fused": see `dot_product_attention`.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: Float tensor `(B, T, D)`, or of higher rank with `attention_axes`.
        value: Float tensor `(B, S, D)`.
        key: Float tensor `(B, S, D)`; `value` when None.
        query_mask: Bool tensor `(B, T)`.
        value_mask: Bool tensor `(B, S)`.
        key_mask: Bool tensor `(B, S)`.
        attention_mask: Bool tensor `(B, T, S)` or `(B, H, T, S)`.
        return_attention_scores: Whether to return the weights too.
        training: Whether to drop weights.
        use_causal_mask: Whether query i sees only keys j <= i.

    Returns:
        Float tensor `(B, T, output_shape)` in the compute dtype; with
        `return_attention_scores` also the weights `(B, H, T, S)` before dropout.

    Raises:
        ValueError: If a size is not a positive integer, heads do not divide, or shapes
            do not fit.

    Example:
        >>> import numpy as np
        >>> layer = MultiHeadAttention(num_heads=2, key_dim=8)
        >>> x = np.zeros((2, 7, 16), "float32")
        >>> tuple(layer(x, x).shape)
        (2, 7, 16)

    Reference:
        Vaswani et al. 2017, section 3.2.2; grouped heads: Ainslie et al. 2023; gate:
        Qiu et al. 2025. Differs: empty rows are zero.
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        output_shape=None,
        attention_axes=None,
        sliding_window=None,
        flash_attention=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        use_gate=False,
        seed=None,
        *,
        num_key_value_heads=None,
        scale=None,
        implementation="auto",
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
        self.dropout = arguments.fraction("dropout", dropout)
        self.use_bias = use_bias
        self.use_gate = use_gate
        self.sliding_window = sliding_window
        self.flash_attention = flash_attention
        self.implementation = arguments.choice(
            "implementation", implementation, attention.IMPLEMENTATIONS
        )
        self.scale = scale
        self.seed = seed
        self.attention_axes = _axes(attention_axes)
        # Keras owns the name `output_shape` (`summary()` reads it).
        self._output_shape = _output_widths(output_shape)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Keras would apply its own `activity_regularizer` to the layer's output.
        self._activity_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None
        self.supports_masking = True
        self._check_options()

    def _check_options(self):
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                "`num_key_value_heads` must divide `num_heads`. Received: "
                f"num_key_value_heads={self.num_key_value_heads}, "
                f"num_heads={self.num_heads}."
            )
        if self.flash_attention and self.dropout > 0.0:
            raise ValueError(
                "Dropout is not supported when flash attention is enabled. "
                "Please set dropout to 0.0 to use flash attention. "
                f"Received: dropout={self.dropout!r}."
            )
        window = self.sliding_window
        if window is not None and (not isinstance(window, int) or window <= 0):
            raise ValueError(
                "`sliding_window` must be `None` or a positive integer. "
                f"Received: sliding_window={window!r}"
            )

    def build(self, query_shape, value_shape, key_shape=None):
        """Makes the projections for inputs of the given shapes.

        Their order, and the names they have as attributes, are Keras's: so the weights
        of a `keras.layers.MultiHeadAttention` fit.
        """
        key_shape = value_shape if key_shape is None else key_shape
        _check_lengths(value_shape, key_shape)
        rank = len(query_shape)
        axes = self.attention_axes or tuple(range(1, rank - 1))
        self._folding = Folding(rank, tuple(axis % rank for axis in axes))
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

    def _dense(self, name, input_shape, widths, bound=1, activation=None):
        """Makes the projection of the last `bound` axes to `widths`."""
        letters = "abcdefghijklmnopqrstuvwxyz"
        free, rank = len(input_shape) - bound, len(input_shape)
        inputs, outputs = letters[:rank], letters[rank : rank + len(widths)]
        dense = keras.layers.EinsumDense(
            f"{inputs},{inputs[free:]}{outputs}->{inputs[:free]}{outputs}",
            output_shape=(*[None] * (free - 1), *widths),
            bias_axes=outputs if self.use_bias else None,
            activation=activation,
            # A copy each: an initializer gives the same numbers when used again.
            kernel_initializer=_copy(self.kernel_initializer),
            bias_initializer=_copy(self.bias_initializer),
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

    def call(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        """Attends from each vector of `query` to those of `value`."""
        if self.flash_attention and return_attention_scores:
            raise ValueError(
                "Returning attention scores is not supported when flash "
                "attention is enabled. Please disable flash attention to access"
                " attention scores."
            )
        mask = masks.input_masks(query_mask, value_mask, key_mask, attention_mask)
        queries = self.query_dense(query)  # (B, T, H, K)
        keys = self.key_dense(value if key is None else key)  # (B, S, G, K)
        values = self.value_dense(value)  # (B, S, G, V)
        fold = self._folding
        output, scores = attention.attend(
            fold.inputs(queries),
            fold.inputs(keys),
            fold.inputs(values),
            mask=fold.mask(mask, queries, keys),
            scale=self.scale,
            causal=use_causal_mask,
            window=self.sliding_window,
            dropout=self.dropout if training else 0.0,
            seed=self.seed_generator,
            implementation=self._implementation(),
            return_scores=return_attention_scores,
        )
        output = self._project_output(query, fold.output(output, queries))
        if return_attention_scores:
            return output, fold.scores(scores, queries, keys)
        return output

    def _implementation(self):
        if self.flash_attention is None:
            return self.implementation
        return "fused" if self.flash_attention else "explicit"

    def _project_output(self, query, heads):
        if self.use_gate:
            heads = ops.multiply(heads, self._gate_dense(query))
        return self.output_dense(heads)

    def initial_cache(self, batch_size, width, max_length):
        """Makes the empty cache of `step`.

        Args:
            batch_size: Number of sentences B.
            width: Number of beams W a sentence.
            max_length: Number of steps L the cache has room for.

        Returns:
            A dict of "key" `(B, W, L, G, K)` and "value" `(B, W, L, G, V)`, zeros.
        """
        shape = (batch_size, width, max_length, self.num_key_value_heads)
        return {
            "key": ops.zeros((*shape, self.key_dim), self.compute_dtype),
            "value": ops.zeros((*shape, self.value_dim), self.compute_dtype),
        }

    def step(self, query, cache, index):
        """Attends from one new position to itself and those before it.

        Equals row `index` of a call with `use_causal_mask=True` on the whole sequence.

        Args:
            query: Float tensor `(B, W, D)`, the vector at `index` of each beam.
            cache: What `initial_cache` or the step before gave.
            index: The position, an integer or a scalar int32 tensor.

        Returns:
            Float tensor `(B, W, output_shape)`, and the cache with this position.
        """
        queries = self.query_dense(query)  # (B, W, H, K)
        entries = {"key": self.key_dense(query), "value": self.value_dense(query)}
        cache = {
            name: ops.slice_update(
                cache[name], (0, 0, index, 0, 0), ops.expand_dims(entry, 2)
            )
            for name, entry in entries.items()
        }
        heads = attention.dot_product_attention(
            ops.reshape(queries, (-1, 1, *queries.shape[2:])),
            ops.reshape(cache["key"], (-1, *cache["key"].shape[2:])),
            ops.reshape(cache["value"], (-1, *cache["value"].shape[2:])),
            scale=self.scale,
            causal=True,
            window=self.sliding_window,
            offset=index,
            implementation="explicit",
        )
        heads = ops.reshape(heads, (*query.shape[:2], *heads.shape[2:]))
        return self._project_output(query, heads), cache

    def project_memory(self, value, key=None):
        """Projects what `step_memory` attends to, once for all steps and beams.

        Args:
            value: Float tensor `(B, S, D)`.
            key: Float tensor `(B, S, D)`; `value` when None.

        Returns:
            A dict of "key" `(B, S, G, K)` and "value" `(B, S, G, V)`.
        """
        key = value if key is None else key
        return {"key": self.key_dense(key), "value": self.value_dense(value)}

    def step_memory(self, query, memory, mask=None):
        """Attends from one new position of each beam to a projected memory.

        Args:
            query: Float tensor `(B, W, D)`; the beams stand on the query axis and
                share the memory.
            memory: What `project_memory` gave.
            mask: Bool tensor `(B, S)`, True = may attend.

        Returns:
            Float tensor `(B, W, output_shape)`.
        """
        heads = attention.dot_product_attention(
            self.query_dense(query),
            memory["key"],
            memory["value"],
            mask=masks.input_masks(None, mask, None, None),
            scale=self.scale,
            implementation="explicit",
        )
        return self._project_output(query, heads)

    def compute_mask(self, query, mask=None):
        """Passes the mask of `query` on to the output, none to the weights."""
        return mask

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        """Gives the shape of the output without the weights."""
        _check_lengths(value_shape, value_shape if key_shape is None else key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def compute_output_spec(
        self,
        query,
        value,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
    ):
        """Gives the symbolic output, and the symbolic weights where asked for."""
        key_shape = None if key is None else key.shape
        shape = self.compute_output_shape(query.shape, value.shape, key_shape)
        output = keras.KerasTensor(shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        shape = self._folding.scores_shape(query.shape, value.shape, self.num_heads)
        return output, keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self):
        """Gives the constructor's arguments."""
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "output_shape": self._output_shape,
            "attention_axes": self.attention_axes,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "kernel_initializer": serialize(self.kernel_initializer),
            "bias_initializer": serialize(self.bias_initializer),
            "kernel_regularizer": serialize(self.kernel_regularizer),
            "bias_regularizer": serialize(self.bias_regularizer),
            "activity_regularizer": serialize(self._activity_regularizer),
            "kernel_constraint": serialize(self.kernel_constraint),
            "bias_constraint": serialize(self.bias_constraint),
            "use_gate": self.use_gate,
            "seed": self.seed,
            "num_key_value_heads": self.num_key_value_heads,
            "scale": self.scale,
            "implementation": self.implementation,
        }


def _positive(name, value):
    """Checks a size; the wording is that of Keras."""
    if not isinstance(value, int) or value <= 0:
        raise ValueError(
            f"Received an invalid value for argument `{name}`, "
            f"expected a positive integer. Received: {name}={value!r}"
        )
    return value


def _axes(attention_axes):
    if attention_axes is None:
        return None
    if isinstance(attention_axes, int):
        return (attention_axes,)
    if not isinstance(attention_axes, (list, tuple)):
        raise ValueError(
            "`attention_axes` must be an int, list, or tuple. "
            f"Received: attention_axes={attention_axes!r}"
        )
    return tuple(attention_axes)


def _output_widths(output_shape):
    if not output_shape:
        return None
    if isinstance(output_shape, int):
        return (output_shape,)
    try:
        return tuple(output_shape)
    except TypeError:
        raise ValueError(
            f"Invalid `output_shape`: {output_shape!r}. When specified, the "
            "`output_shape` should be of type tuple, list, or int."
        ) from None


def _check_lengths(value_shape, key_shape):
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "All dimensions of `value` and `key`, except the last one, must be equal. "
            f"Received: value_shape={value_shape} and key_shape={key_shape}"
        )


def _copy(initializer):
    return initializer.__class__.from_config(initializer.get_config())
