"""Multi-head attention with the interface of `keras.layers.MultiHeadAttention`.

Shapes: B batch, T target length, S source length, D width of an input, H heads,
G key and value heads, K key_dim, V value_dim, W beams, L cache length.
"""

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.layers.attention import additive, conversion, functional, masks
from keras_seqattn.layers.attention.axes import Folding
from keras_seqattn.layers.attention.distances import count_heads
from keras_seqattn.layers.attention.kv_cache import CachedSteps
from keras_seqattn.layers.attention.projections import HeadProjections
from keras_seqattn.layers.embedding.relative import positions_in_attention
from keras_seqattn.layers.shapes import check_batch, check_rank
from keras_seqattn.layers.weights.initializers import copied

# What Keras's layer calls, and lets subclasses override.
KERAS_HOOKS = (
    "_build_attention",
    "_compute_attention",
    "_compute_attention_mask",
    "_masked_softmax",
)
SCORES = ("scaled_dot", "dot", "additive")


@keras.saving.register_keras_serializable(package="keras_seqattn")
class MultiHeadAttention(CachedSteps, HeadProjections):
    """Attends with several heads, each on its own projection of the inputs.

    output = concat_h(softmax(score(q_h, k_h)) . v_h) W_o with q_h = query W_q,h and so
    on. Takes the arguments of `keras.layers.MultiHeadAttention` with their meaning.
    Implicit Keras masks and the masks given are combined; a masked key weighs nothing,
    and for a query that is masked, or may attend to nothing, the heads give exactly
    zero. The output has the mask of `query`, and the inputs keep theirs.

    The causal mask, the window and `positions` count alike: query i stands at
    i + offset and key j at j, in cross-attention too, where that is a statement about
    the two sequences. Every option also holds in `step`, with keys kept from before.
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
        score: "scaled_dot": q . k * scale; "dot": q . k; "additive":
            v_h . tanh(q + k) with a learned vector v_h a head.
        scale: Factor of the scaled dot product; None is 1 / sqrt(key_dim).
        positions: "rotary", "relative", "alibi", a layer such as `RotaryPositions`,
            `RelativeBias` or `AlibiBias`, or None. Only distances count with each of
            them, except for rotary positions with an additive score. Several layers may
            share one, but not in a `.keras` file, where Keras forgets that they do.
        qk_norm: Whether an RMS norm with a learned scale of `key_dim` numbers stands
            behind the projections of queries and keys, before they are rotated.
        implementation: "auto", "explicit", "fused" or "chunked": see
            `dot_product_attention`. An additive score is explicit.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: Float tensor `(B, T, D)`, or of higher rank with `attention_axes`.
        value: Float tensor `(B, S, D)`.
        key: Float tensor `(B, S, D)`; `value` when None.
        query_mask: Bool tensor `(B, T)`.
        value_mask: Bool tensor `(B, S)`.
        key_mask: Bool tensor `(B, S)`.
        attention_mask: Bool tensor `(B, T, S)` or `(B, H, T, S)`. Ones and zeros will
            do for any mask; a negative number is an error, and so are floats where
            their values cannot be seen: in a compiled program or a functional model.
        return_attention_scores: Whether to return the weights too.
        training: Whether to drop weights.
        use_causal_mask: Whether query i sees only keys j <= i + offset.
        offset: Position of the first query among the keys, an integer or a scalar
            tensor; the length of the memory where `value` is a memory and then `query`.

    Returns:
        Float tensor `(B, T, output_shape)` in the compute dtype; with
        `return_attention_scores` also the weights `(B, H, T, S)` before dropout.

    Raises:
        ValueError: If a size is not a positive integer, heads do not divide, options
            exclude each other, or shapes do not fit; if a subclass overrides what only
            Keras's class calls, such as `_compute_attention`.

    Example:
        >>> import numpy as np
        >>> layer = MultiHeadAttention(num_heads=2, key_dim=8)
        >>> x = np.zeros((2, 7, 16), "float32")
        >>> tuple(layer(x, x).shape)
        (2, 7, 16)

    Reference:
        Vaswani et al. 2017, section 3.2.2; additive: Bahdanau et al. 2015; grouped
        heads: Ainslie et al. 2023; norms: Henry et al. 2020, Dehghani et al. 2023;
        gate: Qiu et al. 2025. Differs: empty rows are zero, those of masked queries
        too, and an input keeps its implicit mask, which Keras's layer removes from it.
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
        score="scaled_dot",
        scale=None,
        positions=None,
        qk_norm=False,
        implementation="auto",
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            value_dim=value_dim,
            use_bias=use_bias,
            output_shape=output_shape,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint,
            bias_constraint=bias_constraint,
            use_gate=use_gate,
            num_key_value_heads=num_key_value_heads,
            qk_norm=qk_norm,
            **kwargs,
        )
        self._refuse_hooks()
        self.dropout = arguments.fraction("dropout", dropout)
        self.attention_axes = _axes(attention_axes)
        self.sliding_window = arguments.positive_integer(
            "sliding_window", sliding_window, optional=True
        )
        self.flash_attention = arguments.boolean(
            "flash_attention", flash_attention, optional=True
        )
        self.seed = arguments.integer("seed", seed, optional=True)
        self.score = arguments.choice("score", score, SCORES)
        self.scale = arguments.number("scale", scale, optional=True)
        self.positions = positions_in_attention(positions, self.dtype_policy)
        self.implementation = implementation
        self.seed_generator = keras.random.SeedGenerator(seed) if dropout else None
        self.supports_masking = True
        self._check_options()

    def _refuse_hooks(self):
        """Refuses what a subclass overrides of Keras's class and nothing here calls."""
        for hook in KERAS_HOOKS:
            if hasattr(type(self), hook):
                raise ValueError(
                    f"`{hook}` must not be overridden: no method of this class calls "
                    "it. Override `call`, give `score`, `scale` or `positions`, or "
                    "subclass `keras.layers.MultiHeadAttention`. "
                    f"Received: {type(self).__name__}.{hook}."
                )

    def _check_options(self):
        arguments.choice(
            "implementation", self.implementation, functional.IMPLEMENTATIONS
        )
        if self.flash_attention and self.dropout > 0.0:
            raise ValueError(
                "Dropout is not supported when flash attention is enabled. "
                "Please set dropout to 0.0 to use flash attention. "
                f"Received: dropout={self.dropout!r}."
            )
        if self.scale is not None and self.score != "scaled_dot":
            raise ValueError(
                "`scale` must be None unless the score is 'scaled_dot'. "
                f"Received: scale={self.scale!r}, score={self.score!r}."
            )
        implementation = self._implementation()
        if self.score == "additive" and implementation not in ("auto", "explicit"):
            raise ValueError(
                "`implementation` must be 'auto' or 'explicit' for an additive score, "
                "which no kernel computes. "
                f"Received: implementation={implementation!r}."
            )

    @classmethod
    def from_keras(cls, layer, **options):
        """Makes a layer that computes what one of Keras's does, with its weights.

        It differs from Keras's in two ways: a query that is masked, or sees no key,
        gets zeros from its heads, where Keras averages all values; and an input keeps
        its implicit mask, which Keras's layer removes from its own inputs, so that a
        second use of the same tensor there sees its padding.

        Args:
            layer: A `keras.layers.MultiHeadAttention` or
                `keras.layers.GroupQueryAttention`, built or not, neither quantized nor
                with LoRA enabled.
            **options: Further arguments, such as `implementation`, or others than the
                layer has.

        Returns:
            A `MultiHeadAttention`, built if `layer` is.

        Raises:
            ValueError: If `layer` is of another class, or has weights of another kind.

        Example:
            >>> theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=8)
            >>> MultiHeadAttention.from_keras(theirs, sliding_window=4).key_dim
            8
        """
        ours = cls(**{**conversion.options_of(layer), **options})
        conversion.take_weights(ours, layer)
        return ours

    def build(self, query_shape, value_shape, key_shape=None):
        """Makes the projections, and what the score and the positions learn."""
        _check_ranks(query_shape, value_shape)
        super().build(query_shape, value_shape, key_shape)
        rank = len(query_shape)
        axes = self.attention_axes or tuple(range(1, rank - 1))
        self._folding = Folding(rank, tuple(axis % rank for axis in axes))
        if self.score == "additive":
            self.score_vector = self.add_weight(
                name="score_vector",
                shape=(self.num_heads, self.key_dim),
                initializer=copied(self.kernel_initializer),
                regularizer=self.kernel_regularizer,
                constraint=self.kernel_constraint,
            )
        if self.positions is not None:
            self._build_positions(axes)

    def _build_positions(self, axes):
        if len(axes) > 1:
            raise ValueError(
                "`attention_axes` must be one axis for `positions`, which count along "
                f"it. Received: attention_axes={axes!r}."
            )
        if not self.positions.built:
            self.positions.build((None, None, self.num_heads, self.key_dim))

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
        offset=0,
    ):
        """Attends from each vector of `query` to those of `value`."""
        self._check_scores_wanted(return_attention_scores)
        _check_shapes(query, value, key)
        output, scores = self._attend_by(
            (self._folding, self._folding),
            query,
            value,
            key,
            mask=masks.input_masks(query_mask, value_mask, key_mask, attention_mask),
            causal=masks.is_causal(use_causal_mask),
            offset=offset,
            dropout=self.dropout if training else 0.0,
            return_scores=return_attention_scores,
        )
        return (output, scores) if return_attention_scores else output

    def call_unpadded(
        self, query, value, unpadding, value_unpadding, mask=None, use_causal_mask=False
    ):
        """Does what a call does while training, on the tokens of a batch alone.

        Args:
            query: Float tensor `(1, M, D)`, the tokens that `unpadding` takes.
            value: Float tensor `(1, N, D)`, those that `value_unpadding` takes; or
                `(B, S, D)`.
            unpadding: An `Unpadding`.
            value_unpadding: An `Unpadding`; None for a `value` with its padding.
            mask: Bool tensor `(B, T, S)`, as `masks.input_masks` makes it, or None.
            use_causal_mask: Whether query i sees only keys j <= i.

        Returns:
            Float tensor `(1, M, output_shape)`.
        """
        output, _ = self._attend_by(
            (unpadding, value_unpadding or self._folding),
            query,
            value,
            mask=mask,
            causal=masks.is_causal(use_causal_mask),
            dropout=self.dropout,
        )
        return output

    def _attend_by(
        self,
        foldings,
        query,
        value,
        key=None,
        mask=None,
        causal=False,
        offset=0,
        dropout=0.0,
        return_scores=False,
    ):
        """Projects, attends and projects back; returns the output and weights or None.

        `foldings` are the `Folding` or `Unpadding` of `query`, and that of `value`: how
        their projections become `(B, L, H, K)`.
        """
        fold, value_fold = foldings
        queries = self.project_query(query)  # (B, T, H, K)
        keys = self.project_key(value if key is None else key)  # (B, S, G, K)
        values = self.project_value(value)  # (B, S, G, V)
        folded = fold.inputs(queries), value_fold.inputs(keys)
        output, scores = self._attend(
            self._placed(folded[0], offset),
            self._placed(folded[1], 0),
            value_fold.inputs(values),
            mask=fold.mask(mask, queries, keys),
            bias=self._bias(*(ops.shape(x)[1] for x in folded), offset),
            causal=causal,
            window=self.sliding_window,
            offset=offset,
            dropout=dropout,
            seed=self.seed_generator,
            return_scores=return_scores,
        )
        output = self.project_output(query, fold.output(output, queries))
        return output, fold.scores(scores, queries, keys) if return_scores else None

    def _check_scores_wanted(self, return_attention_scores):
        if self.flash_attention and return_attention_scores:
            raise ValueError(
                "Returning attention scores is not supported when flash "
                "attention is enabled. Please disable flash attention to access"
                " attention scores."
            )

    def _placed(self, heads, start):
        """Rotates heads `(B, L, H, K)` that stand at `start`, `start + 1`, ..."""
        return heads if self.positions is None else self.positions.rotate(heads, start)

    def _bias(self, target_length, source_length, offset):
        """Computes the bias of the positions: of all pairs, by distance, or None."""
        if self.positions is None:
            return None
        bias = self.positions.bias(target_length, source_length, offset)
        heads = 1 if bias is None else count_heads(bias)
        if heads not in (1, self.num_heads):
            raise ValueError(
                f"`positions` must give a bias for {self.num_heads} heads, or one for "
                f"all. Received: a bias for {heads} heads."
            )
        return bias

    def _attend(
        self, query, key, value, *, return_scores=False, implementation=None, **options
    ):
        """Attends by the layer's score; gives the weights where asked for."""
        options["return_scores"] = return_scores
        if self.score == "additive":
            vector = ops.cast(self.score_vector, query.dtype)
            return additive.attend(query, key, value, vector, **options)
        return functional.attend(
            query,
            key,
            value,
            scale=1.0 if self.score == "dot" else self.scale,
            implementation=implementation or self._implementation(),
            **options,
        )

    def _implementation(self):
        if self.flash_attention is None:
            return self.implementation
        return "fused" if self.flash_attention else "explicit"

    def compute_mask(self, query, mask=None):
        """Passes the mask of `query` on to the output, none to the weights."""
        return mask

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
        offset=0,
    ):
        """Returns the symbolic output, and the symbolic weights where asked for."""
        _check_shapes(query, value, key)
        key_shape = None if key is None else key.shape
        shape = self.compute_output_shape(query.shape, value.shape, key_shape)
        output = keras.KerasTensor(shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        shape = self._folding.scores_shape(query.shape, value.shape, self.num_heads)
        return output, keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self):
        """Returns the constructor's arguments."""
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "attention_axes": self.attention_axes,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "seed": self.seed,
            "score": self.score,
            "scale": self.scale,
            "positions": self.positions and serialize(self.positions),
            "implementation": self.implementation,
        }


def _check_shapes(query, value, key):
    """Checks that tensors have a length each, and one batch size."""
    _check_ranks(query.shape, value.shape)
    check_batch(query=query, value=value, key=key)


def _check_ranks(query_shape, value_shape):
    """Checks that values have the rank of queries; `check_lengths` sees to the keys."""
    check_rank("query", query_shape, "(batch, ..., length, width)")
    axes = ", ".join(["length"] * (len(query_shape) - 2))
    check_rank("value", value_shape, f"(batch, {axes}, width)")


def _axes(attention_axes):
    if attention_axes is None:
        return None
    axes = attention_axes
    if isinstance(axes, int):
        axes = (axes,)
    wanted = "an int, list, or tuple of axes"
    axes = arguments.sequence("attention_axes", axes, wanted, arguments.integer)
    return tuple(axes) or arguments.refuse("attention_axes", attention_axes, wanted)
