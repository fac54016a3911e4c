"""Multi-head attention with the interface of `keras.layers.MultiHeadAttention`.

The methods are in this order: the constructor, `build`, a call, the projections, the
steps on cached keys and values, the configuration.

Shapes: B batch, T target length, S source length, D width of an input, H heads,
G key and value heads, K key_dim, V value_dim, W beams, L places of a cache.
"""

from collections.abc import Sequence
from typing import Any, Literal, Self

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import (
    Constraint,
    Implementation,
    Initializer,
    PositionsInAttention,
    Regularizer,
    Shape,
    Tensor,
)
from keras_seqattn.layers.attention import (
    additive,
    checks,
    conversion,
    functional,
    masks,
)
from keras_seqattn.layers.attention.axes import Folding
from keras_seqattn.layers.attention.kv_cache import (
    KVCache,
    check_ancestry,
    check_cache_sizes,
    check_capacity,
    held_positions,
    visible_slots,
)
from keras_seqattn.layers.attention.masks import checked_mask
from keras_seqattn.layers.attention.projections import Projection
from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.layers.distances import count_heads, of_pairs
from keras_seqattn.layers.embedding.relative import positions_in_attention
from keras_seqattn.layers.norms import make_norm
from keras_seqattn.layers.shapes import BEAMS, check_built, check_kept, check_tensor
from keras_seqattn.layers.weights.frozen import keep_frozen
from keras_seqattn.layers.weights.initializers import copy_initializer
from keras_seqattn.layers.weights.quantization import dtype_config, unquantized


@keras.saving.register_keras_serializable(package="keras_seqattn")
class MultiHeadAttention(arguments.Checked, keras.layers.Layer):
    """Attends with several heads, each on its own projection of the inputs.

    output = concat_h(softmax(score(q_h, k_h)) . v_h) W_o with q_h = query W_q,h and so
    on. Takes the arguments of `keras.layers.MultiHeadAttention` with their meaning.
    `attention_mask` and the padding masks, those given or else Keras's implicit ones,
    are combined; a masked key has weight zero, and for a query that is masked, or may
    attend to nothing, the heads return exactly zero. The output has the mask of
    `query`, and the inputs keep theirs.

    The causal mask, the window and `positions` count positions in the same way: query i
    is at i + offset and key j at j. This holds in cross-attention too, where it relates
    positions of two sequences. Scores, heads, positions, window, norms and gate also
    apply in `step`, to cached keys; `implementation`, `attention_axes` and `dropout` do
    not.
    Shapes: B batch, T target length, S source length, D width of an input, H heads,
    G key and value heads, K key_dim, V value_dim, W beams, L cache length.

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
        sliding_window: Positive integer: query i sees only keys
            |i + offset - j| < window.
        flash_attention: True stands for `implementation="fused"`, False for
            "explicit". None: `implementation`; its "auto" stands for "explicit" in a
            layer made after `keras.config.disable_flash_attention()`.
        kernel_initializer: Initializer of the kernels.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the kernels.
        bias_regularizer: Regularizer of the biases.
        activity_regularizer: Regularizer of the output of each projection.
        kernel_constraint: Constraint of the kernels.
        bias_constraint: Constraint of the biases.
        use_gate: Whether sigmoid(query W_g) multiplies the outputs of the heads.
        seed: Integer seed of the dropout, or None.
        num_key_value_heads: Number of key and value heads, a divisor of `num_heads`:
            1 is multi-query attention; `num_heads` when None.
        score: "scaled_dot": q . k * scale; "dot": q . k; "additive":
            v_h . tanh(q + k) with a learned vector v_h per head.
        scale: Factor of the scaled dot product; None is 1 / sqrt(key_dim).
        positions: "rotary", "relative", "alibi", a layer such as `RotaryPositions`,
            `RelativeBias` or `AlibiBias`, or None. Only distances count with each of
            them, except for rotary positions with an additive score. Several layers may
            share one. `keras.models.clone_model` gives each its own: to copy a model in
            which they share one, save and load it.
        qk_norm: Whether an RMS norm (epsilon 1e-6) with a learned scale of `key_dim`
            numbers follows the projections of queries and keys, before they are
            rotated.
        implementation: "auto", "explicit", "fused" or "chunked": see
            `dot_product_attention`. An additive score takes "auto" or "explicit".
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: Float tensor `(B, T, D)`, or of higher rank with `attention_axes`.
        value: Float tensor `(B, S, D)`.
        key: Float tensor `(B, S, D)`; `value` when None.
        query_mask: Bool tensor `(B, T)`; of inputs of higher rank `(B, ...)`, all
            axes but the last, as their implicit masks have.
        value_mask: Bool tensor `(B, S)`.
        key_mask: Bool tensor `(B, S)`.
        attention_mask: Bool tensor `(B, T, S)` or `(B, H, T, S)`. Any mask may also be
            of ones and zeros. Negative numbers are an error, and so are floats whose
            values cannot be seen: in a compiled program or a functional model.
        return_attention_scores: Whether to return the weights too, which are then
            computed explicitly, in O(T S) memory; an error with `flash_attention=True`.
        training: Whether to drop weights.
        use_causal_mask: Whether query i sees only keys j <= i + offset.
        offset: Position of the first query among the keys, an integer or a scalar
            tensor. If `value` is a memory followed by `query`, the memory's length.

    Returns:
        Float tensor `(B, T, output_shape)` in the compute dtype; with
        `return_attention_scores` also the weights `(B, H, T, S)` before dropout.

    Raises:
        ValueError: If a size is not a positive integer, `num_key_value_heads` does not
            divide `num_heads`, options exclude each other, or shapes do not fit; if a
            subclass overrides a method that only Keras's class calls, such as
            `_compute_attention`.

    Example:
        >>> import numpy as np
        >>> layer = MultiHeadAttention(num_heads=2, key_dim=8)
        >>> x = np.zeros((2, 7, 16), "float32")
        >>> tuple(layer(x, x).shape)
        (2, 7, 16)

    Reference:
        Vaswani et al. 2017, section 3.2.2; additive: Bahdanau et al. 2015; grouped
        heads: Ainslie et al. 2023; norms: Henry et al. 2020, Dehghani et al. 2023;
        gate: Qiu et al. 2025. Differs: the projections have biases, as in Keras; empty
        rows are zero, those of masked queries too; an input keeps its implicit mask,
        which Keras's layer removes from it; `qk_norm` is an RMS norm, where Henry et
        al. divide by the L2 norm and have one learned factor in place of the scale, and
        Dehghani et al. have a layer norm.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        attention_axes: int | Sequence[int] | None = None,
        sliding_window: int | None = None,
        flash_attention: bool | None = None,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        use_gate: bool = False,
        seed: int | None = None,
        *,
        num_key_value_heads: int | None = None,
        score: Literal["scaled_dot", "dot", "additive"] = "scaled_dot",
        scale: float | None = None,
        positions: PositionsInAttention | None = None,
        qk_norm: bool = False,
        implementation: Implementation = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        checks.refuse_hooks(type(self), MultiHeadAttention)
        keras_object = arguments.keras_object
        self.num_heads = checks.positive_size("num_heads", num_heads)
        self.key_dim = checks.positive_size("key_dim", key_dim)
        self.value_dim = checks.positive_size(
            "value_dim", key_dim if value_dim is None else value_dim
        )
        self.num_key_value_heads = checks.positive_size(
            "num_key_value_heads",
            num_heads if num_key_value_heads is None else num_key_value_heads,
        )
        self.use_bias = arguments.boolean("use_bias", use_bias)
        self.use_gate = arguments.boolean("use_gate", use_gate)
        self.qk_norm = arguments.boolean("qk_norm", qk_norm)
        # Keras owns the name `output_shape` (`summary()` reads it).
        self._output_shape = checks.output_widths(output_shape)
        self.kernel_initializer = keras_object("kernel_initializer", kernel_initializer)
        self.bias_initializer = keras_object("bias_initializer", bias_initializer)
        self.kernel_regularizer = keras_object("kernel_regularizer", kernel_regularizer)
        self.bias_regularizer = keras_object("bias_regularizer", bias_regularizer)
        # Keras would apply its own `activity_regularizer` to the layer's output.
        self._activity_regularizer = keras_object(
            "activity_regularizer", activity_regularizer
        )
        self.kernel_constraint = keras_object("kernel_constraint", kernel_constraint)
        self.bias_constraint = keras_object("bias_constraint", bias_constraint)
        self.dropout = arguments.fraction("dropout", dropout)
        self.attention_axes = checks.axes_attended(attention_axes)
        self.sliding_window = arguments.positive_integer(
            "sliding_window", sliding_window, optional=True
        )
        self.flash_attention = arguments.boolean(
            "flash_attention", flash_attention, optional=True
        )
        self.seed = arguments.integer("seed", seed, optional=True)
        self.score = arguments.choice("score", score, checks.SCORES)
        self.scale = arguments.number("scale", scale, optional=True)
        self.positions = positions_in_attention(positions, self.dtype_policy)
        self.implementation = arguments.choice(
            "implementation", implementation, functional.IMPLEMENTATIONS
        )
        # Like Keras's layer, it asks when it is made. Its answer is None or False.
        self._is_without_flash = keras.config.is_flash_attention_enabled() is False
        self.seed_generator = keras.random.SeedGenerator(self.seed) if dropout else None
        self.supports_masking = True
        checks.check_options(self, self._implementation())

    @classmethod
    def from_keras(cls, layer: keras.layers.Layer, **options: Any) -> Self:
        """Makes a layer that computes what one of Keras's does, with its weights.

        It differs from Keras's layers in two ways. A query that is masked, or sees no
        key, gets zeros from its heads, where Keras averages all values. And a mask that
        would be added to the scores is refused: see `attention_mask`. In two more it
        differs from `keras.layers.MultiHeadAttention` alone, which reads no
        `query_mask` but the implicit one, and removes the implicit masks of its inputs,
        so that the next layer to use the same tensor sees its padding.

        Args:
            layer: A `keras.layers.MultiHeadAttention` or
                `keras.layers.GroupQueryAttention`, built or not, neither quantized nor
                with LoRA enabled.
            **options: Further arguments, or arguments to replace those of the layer;
                `implementation` also replaces its `flash_attention`.

        Returns:
            A `MultiHeadAttention`, built if `layer` is.

        Raises:
            ValueError: If `layer` is of a different class, or of a subclass that
                overrides a method such as `call`, or its weights do not fit.

        Example:
            >>> import keras
            >>> theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=8)
            >>> MultiHeadAttention.from_keras(theirs, sliding_window=4).key_dim
            8
        """
        given = conversion.options_of(layer)
        if "implementation" in options:
            given.pop("flash_attention")
        ours = cls(**{**given, **options})
        conversion.take_weights(ours, layer)
        return ours

    def build(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> None:
        """Makes the projections, and the weights of the score and of the positions."""
        key_shape = value_shape if key_shape is None else key_shape
        checks.check_ranks(query_shape, value_shape)
        checks.check_key_shape(value_shape, key_shape)
        self._build_projections(query_shape, value_shape, key_shape)
        self._folding = self._folding_of(len(query_shape))
        axes = self.attention_axes = self._folding.axes
        if self.score == "additive":
            self.score_vector = self.add_weight(
                name="score_vector",
                shape=(self.num_heads, self.key_dim),
                initializer=copy_initializer(self.kernel_initializer),
                regularizer=self.kernel_regularizer,
                constraint=self.kernel_constraint,
            )
        if self.positions is not None:
            self._build_positions(axes)
        keep_frozen(self)

    def _folding_of(self, rank):
        axes = self.attention_axes or tuple(range(1, rank - 1))
        return Folding(rank, checks.axes_of_inputs(axes, rank))

    # The order of the weights and the names of the attributes are those of
    # `keras.layers.MultiHeadAttention`, so that its weights fit. The norms of queries
    # and keys, which it lacks, come last.
    def _build_projections(self, query_shape, value_shape, key_shape):
        shapes = query_shape, value_shape, key_shape
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

    def _dense(self, name, input_shape, widths, **options):
        """Makes a projection with the layer's initializers, regularizers and so on."""
        return Projection.of(
            input_shape,
            widths,
            use_bias=self.use_bias,
            kernel_initializer=copy_initializer(self.kernel_initializer),
            bias_initializer=copy_initializer(self.bias_initializer),
            kernel_regularizer=self.kernel_regularizer,
            bias_regularizer=self.bias_regularizer,
            activity_regularizer=self._activity_regularizer,
            kernel_constraint=self.kernel_constraint,
            bias_constraint=self.bias_constraint,
            name=name,
            dtype=self.dtype_policy,
            **options,
        )

    def _norm(self, name):
        """Makes a norm over the width of a head, one scale for all heads."""
        norm = make_norm("rms", 1e-6, name=name, dtype=unquantized(self.dtype_policy))
        norm.build((None, None, None, self.key_dim))
        return norm

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
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        offset: int | Tensor = 0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attends from each vector of `query` to those of `value`."""
        checks.check_scores_wanted(self.flash_attention, return_attention_scores)
        checks.check_inputs(query, value, key)
        fold = self._folding
        mask = masks.input_masks(
            fold.sequence_mask("query_mask", query_mask, query),
            fold.sequence_mask("value_mask", value_mask, value),
            fold.sequence_mask("key_mask", key_mask, value),
            fold.pair_mask(attention_mask, query, value),
        )
        output, scores = self._attend_by(
            fold,
            fold,
            query,
            value,
            key,
            mask=mask,
            causal=masks.is_causal(use_causal_mask),
            offset=offset,
            dropout=self.dropout if training else 0.0,
            return_scores=return_attention_scores,
        )
        if not return_attention_scores:
            return output
        return output, fold.scores(scores, query, value)

    def call_unpadded(
        self,
        query: Tensor,
        value: Tensor,
        unpadding: Unpadding,
        value_unpadding: Unpadding | None,
        mask: Tensor | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor:
        """Does what a call does while training, on only the tokens of a batch.

        Args:
            query: Float tensor `(1, M, D)`, the tokens that `unpadding` takes.
            value: Float tensor `(1, N, D)`, the tokens that `value_unpadding` takes; or
                `(B, S, D)`.
            unpadding: An `Unpadding`.
            value_unpadding: An `Unpadding`; None for a `value` with its padding.
            mask: Bool tensor `(B, T, S)`, as `masks.input_masks` makes it, or None.
            use_causal_mask: Whether query i sees only keys j <= i.

        Returns:
            Float tensor `(1, M, output_shape)`.
        """
        output, _ = self._attend_by(
            unpadding,
            value_unpadding or self._folding,
            query,
            value,
            mask=mask,
            causal=masks.is_causal(use_causal_mask),
            dropout=self.dropout,
        )
        return output

    def _attend_by(
        self,
        fold,
        value_fold,
        query,
        value,
        key=None,
        *,
        mask,
        causal,
        dropout,
        offset=0,
        return_scores=False,
    ):
        """Projects, attends and projects back; returns the output and the weights.

        `fold` of the query and `value_fold` of key and value, each a `Folding` or
        `Unpadding`, bring the projections to `(B, L, H, K)`. The weights are
        `(B, H, T, S)`; if not wanted, they may be None.
        """
        queries = fold.inputs(self.project_query(query))  # (B, T, H, K)
        keys = self.project_key(value if key is None else key)
        keys = value_fold.inputs(keys)  # (B, S, G, K)
        output, scores = self._attend(
            self._rotate(queries, offset),
            self._rotate(keys, 0),
            value_fold.inputs(self.project_value(value)),  # (B, S, G, V)
            mask=mask,
            bias=self._bias(ops.shape(queries)[1], ops.shape(keys)[1], offset),
            causal=causal,
            window=self.sliding_window,
            offset=offset,
            dropout=dropout,
            seed=self.seed_generator,
            return_scores=return_scores,
        )
        return self.project_output(query, fold.output(output, query)), scores

    def _rotate(self, heads, first):
        """Rotates heads `(B, L, H, K)` at positions `first`, `first + 1`, ..."""
        return heads if self.positions is None else self.positions.rotate(heads, first)

    def _bias(self, target_length, source_length, offset):
        """Computes the bias of the positions: a tensor, a `DistanceBias`, or None."""
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
        self, query, key, value, *, return_scores, implementation=None, **options
    ):
        """Attends with the layer's score; returns the output, and weights if wanted."""
        if self.score == "additive":
            vector = ops.cast(self.score_vector, query.dtype)
            return additive.attend(query, key, value, vector, **options)
        return functional.attend(
            query,
            key,
            value,
            scale=1.0 if self.score == "dot" else self.scale,
            return_scores=return_scores,
            implementation=implementation or self._implementation(),
            **options,
        )

    def _implementation(self):
        if self.flash_attention is None:
            is_off = self.implementation == "auto" and self._is_without_flash
            return "explicit" if is_off else self.implementation
        return "fused" if self.flash_attention else "explicit"

    def project_query(self, query: Tensor) -> Tensor:
        """Returns the queries `(..., H, K)` of vectors `(..., D)`."""
        check_built(self)
        check_tensor("query", query, width=self._query_width)
        queries = self.query_dense(query)
        return self.query_norm(queries) if self.qk_norm else queries

    def project_key(self, key: Tensor) -> Tensor:
        """Returns the keys `(..., G, K)` of vectors `(..., D)`."""
        check_built(self)
        check_tensor("key", key, width=self._key_width)
        keys = self.key_dense(key)
        return self.key_norm(keys) if self.qk_norm else keys

    def project_value(self, value: Tensor) -> Tensor:
        """Returns the values `(..., G, V)` of vectors `(..., D)`."""
        check_built(self)
        check_tensor("value", value, width=self._value_width)
        return self.value_dense(value)

    def project_output(self, query: Tensor, heads: Tensor) -> Tensor:
        """Gates the heads' outputs `(..., H, V)` if `use_gate`, and projects them."""
        check_built(self)
        check_tensor("query", query, width=self._query_width)
        check_tensor("heads", heads, "(batch, ..., heads, width)", self.value_dim)
        if self.use_gate:
            heads = ops.multiply(heads, self._gate_dense(query))
        return self.output_dense(heads)

    def initial_cache(
        self, batch_size: int | Tensor, width: int, max_length: int
    ) -> KVCache:
        """Makes the empty cache of `step`.

        Args:
            batch_size: Number of sentences B.
            width: Number of beams W per sentence.
            max_length: Number of steps L the cache has capacity for.

        Returns:
            A `KVCache`: "key" `(B, G, K, L W)` and "value" `(B, G, L W, V)`, zeros.

        Raises:
            ValueError: If a size is not an integer or a scalar tensor.
        """
        check_cache_sizes(batch_size, width, max_length)
        heads, slots = (batch_size, self.num_key_value_heads), max_length * width
        return KVCache(
            ops.zeros((*heads, self.key_dim, slots), self.compute_dtype),
            ops.zeros((*heads, slots, self.value_dim), self.compute_dtype),
        )

    def fill_cache(
        self, value: Tensor, cache: KVCache, index: int | Tensor = 0, width: int = 1
    ) -> KVCache:
        """Writes the keys and values of a whole sequence, the same for all beams.

        A `step` at `index + T` continues from there.

        Args:
            value: Float tensor `(B, T, D)`, the vectors at `index`, `index + 1`, ...
            cache: What `initial_cache` or another call returned.
            index: Position of the first vector, an integer or a scalar int32 tensor;
                `index + T` is at most L.
            width: Number of beams W per sentence.

        Returns:
            The cache with these positions.

        Raises:
            ValueError: If the layer is not built, or an argument does not fit.
        """
        check_built(self)
        check_kept("cache", cache, KVCache, "initial_cache")
        arguments.index("index", index, 0)
        arguments.index("width", width, 1)
        # These positions are projected as those of a memory are.
        entries = self.project_memory(value, start=index)
        check_capacity(entries, cache, index, width)
        return cache.write(entries.repeat(width), index * width)

    def step(
        self,
        query: Tensor,
        cache: KVCache,
        index: int | Tensor,
        mask: Tensor | None = None,
        ancestry: Tensor | None = None,
    ) -> tuple[Tensor, KVCache]:
        """Attends from one new position to itself and to the positions before it.

        Equals row `index` of a call with `use_causal_mask=True` on the whole sequence;
        from `index` = L on, the last row of such a call on the last L positions.

        Args:
            query: Float tensor `(B, W, D)`, the vector at `index` of each beam.
            cache: What `initial_cache` or the step before returned.
            index: The position, an integer or a scalar int32 tensor. If sentences began
                at different steps, this is the step: only distances count.
            mask: Bool tensor `(B, L)` over the places of the cache (position p is at
                p % L), True = may attend; False hides the padding before a short
                prompt, or an earlier sentence of the row.
            ancestry: Int32 tensor `(B, W, L)`, the beam that wrote each position of a
                beam's history, as `mark_ancestry` returns it for `index`; None for a
                single beam.

        Returns:
            Float tensor `(B, W, output_shape)`, and the cache with this position.

        Raises:
            ValueError: If `ancestry` is None and there are several beams, or `cache`
                does not fit the number of beams.
        """
        check_built(self)
        check_tensor("query", query, BEAMS)
        check_kept("cache", cache, KVCache, "initial_cache")
        arguments.index("index", index, 0)
        width = query.shape[1]
        check_ancestry(ancestry, width)
        length = cache.count_places(width)
        mask = checked_mask("mask", mask, length)
        keys = self._rotate_beams(self.project_key(query), index)  # (B, W, G, K)
        # The beams stand in the place of a sequence: W slots, all at position `index`.
        entries = KVCache.of(keys, self.project_value(query))
        cache = cache.write(entries, (index % length) * width)
        heads, _ = self._attend_beams(
            query,
            cache,
            index,
            visible_slots(width, length, index, self.sliding_window, mask, ancestry),
            self._bias_of_slots(width, length, index),
        )
        return self.project_output(query, heads), cache

    def _bias_of_slots(self, width, length, index):
        """Computes the bias `(1, H, 1, L W)` of what the slots hold, or None."""
        bias = self._bias(1, length, length - 1)
        if bias is None:
            return None
        # The bias is that of a query at L - 1: distance d is in column L - 1 - d.
        column = held_positions(length, index) - index + length - 1
        bias = ops.take(of_pairs(bias), column, axis=-1)
        return ops.repeat(bias, width, axis=-1)

    def project_memory(
        self, value: Tensor, key: Tensor | None = None, start: int | Tensor = 0
    ) -> KVCache:
        """Projects what `step_memory` attends to, once for all steps and beams.

        Args:
            value: Float tensor `(B, S, D)`.
            key: Float tensor `(B, S, D)`; `value` when None.
            start: Position at which the first key is rotated, an integer or a scalar
                tensor; 0 for `step_memory`, whose bias and window count from 0.

        Returns:
            A `KVCache` of S slots: "key" `(B, G, K, S)` and "value" `(B, G, S, V)`.

        Raises:
            ValueError: If the layer is not built, or an argument does not fit.
        """
        check_built(self)
        check_tensor("value", value, "(batch, length, width)")
        if key is None:
            key = value
        else:
            check_tensor("key", key, "(batch, length, width)")
        arguments.index("start", start)
        keys = self._rotate(self.project_key(key), start)
        return KVCache.of(keys, self.project_value(value))

    def step_memory(
        self,
        query: Tensor,
        memory: KVCache,
        mask: Tensor | None = None,
        index: int | Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attends from one new position of each beam to a projected memory.

        Equals row `index` of a call of the layer on the whole sequence and memory.

        Args:
            query: Float tensor `(B, W, D)`; the beams are on the query axis and share
                the memory.
            memory: What `project_memory` returned.
            mask: Bool tensor `(B, S)`, True = may attend.
            index: Position of the beams among those of the memory, an integer or a
                scalar int32 tensor; needed with `positions` or `sliding_window`.
            return_attention_scores: Whether to return the weights too.

        Returns:
            Float tensor `(B, W, output_shape)`; with `return_attention_scores` also
            the weights `(B, H, W, S)`.

        Raises:
            ValueError: If `index` is needed but None.
        """
        check_built(self)
        check_tensor("query", query, BEAMS)
        check_kept("memory", memory, KVCache, "project_memory")
        arguments.check_flag("return_attention_scores", return_attention_scores)
        checks.check_index(self, index)
        length = memory.key.shape[3]
        mask = checked_mask("mask", mask, length)
        if mask is not None:
            mask = mask[:, None]  # (B, 1, S)
        if self.sliding_window is not None:
            near = masks.window_mask(1, length, self.sliding_window, index)
            mask = masks.combine_masks(mask, near)
        heads, scores = self._attend_beams(
            query,
            memory,
            index,
            mask,
            self._bias(1, length, index),
            return_scores=return_attention_scores,
        )
        output = self.project_output(query, heads)
        return (output, scores) if return_attention_scores else output

    def _attend_beams(self, query, kept, index, mask, bias, return_scores=False):
        """Attends from beams `(B, W, D)`, which are all at `index`, to a `KVCache`."""
        # The other kernels take the row of a query as its position. Here rows are
        # beams, so mask and bias carry the positions.
        return self._attend(
            self._rotate_beams(self.project_query(query), index),
            *kept.read(),  # (B, slots, G, K), (B, slots, G, V)
            mask=mask,
            bias=of_pairs(bias),  # of one query, for all beams
            implementation="explicit",
            return_scores=return_scores,
        )

    def _rotate_beams(self, heads, index):
        """Rotates heads `(B, W, H, K)` of beams, which are all at `index`."""
        if self.positions is None:
            return heads
        rows = ops.reshape(heads, (-1, 1, *heads.shape[2:]))  # (B W, 1, H, K)
        return ops.reshape(self._rotate(rows, index), (-1, *heads.shape[1:]))

    def compute_mask(self, query: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Passes the mask of `query` on to the output, none to the weights."""
        return mask

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        """Returns the shape of the output without the weights."""
        checks.check_key_shape(value_shape, key_shape)
        return (*query_shape[:-1], *(self._output_shape or query_shape[-1:]))

    def compute_output_spec(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        offset: int | Tensor = 0,
    ) -> Any:
        """Returns the symbolic output, and the symbolic weights where asked for."""
        checks.check_inputs(query, value, key)
        key_shape = None if key is None else key.shape
        shape = self.compute_output_shape(query.shape, value.shape, key_shape)
        output = keras.KerasTensor(shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        fold = self._folding_of(len(query.shape))  # The layer may not be built yet.
        shape = fold.scores_shape(query.shape, value.shape, self.num_heads)
        return output, keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
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
            "dropout": self.dropout,
            "attention_axes": self.attention_axes,
            "sliding_window": self.sliding_window,
            "flash_attention": self.flash_attention,
            "seed": self.seed,
            "score": self.score,
            "scale": self.scale,
            "positions": arguments.configuration(self.positions),
            "implementation": self.implementation,
        }
