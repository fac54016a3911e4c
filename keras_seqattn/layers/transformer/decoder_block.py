"""The decoder's block: self-attention, attention to a source, feed-forward.

Shapes: B batch, T target length, S source length, M length of the past, D model_dim,
H heads, W beams, L places of a cache. In `call_unpadded`: M and N, tokens of target and
source.
"""

from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Activation, Initializer, Norm, Shape, Tensor
from keras_seqattn.layers.attention.kv_cache import KVCache
from keras_seqattn.layers.attention.masks import (
    bool_mask,
    checked_mask,
    input_masks,
    mask_of_all,
)
from keras_seqattn.layers.attention.multi_head import MultiHeadAttention
from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.layers.dropout import if_known
from keras_seqattn.layers.norms import EPSILON
from keras_seqattn.layers.shapes import (
    BEAMS,
    check_built,
    check_kept,
    check_rank,
    check_tensor,
)
from keras_seqattn.layers.transformer.block import (
    Block,
    attend,
    attend_unpadded,
    attention_config,
    check_sequences,
    checked_attention,
)
from keras_seqattn.layers.transformer.checkpointing import checkpointed
from keras_seqattn.layers.weights.frozen import keep_frozen


@keras.saving.register_keras_serializable(package="keras_seqattn")
class DecoderBlock(Block):
    """Lets each target position attend to those before it, then to the source.

    x = residual(causal self-attention), x = residual(cross-attention to the source),
    y = residual(feed-forward). Called without a source, it is a decoder-only block,
    without the middle part; the first call decides, and the others must be alike. The
    output carries the target's mask.
    Shapes: B batch, T target length, S source length, M length of the past, D
    model_dim, H heads, W beams, L cache length.

    Args:
        num_heads: Number of attention heads H, a positive integer.
        intermediate_dim: Width of the feed-forward's hidden layer.
        key_dim: Width of a head; D / H when None, which must then be an integer.
        dropout: Fraction of each sublayer's output dropped while training.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forward.
        gated: Whether the feed-forward is gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True) or post-norm (False).
        attention: A dict of further `MultiHeadAttention` arguments for the
            self-attention, or a layer that is called as one.
        cross_attention: The same for the cross-attention.
        activation_dropout: Fraction of the feed-forward's hidden layer dropped while
            training.
        stochastic_depth: Fraction of the samples that skip a sublayer while training,
            drawn for each sublayer: see `Residual`.
        gradient_checkpointing: Whether to keep only the block's output, and recompute
            the block in the backward pass with the same dropout: less memory for more
            time. Not for sublayers that change their own weights when called, or that
            add losses.
        kernel_initializer: Initializer of the kernels of attention and feed-forward.
        bias_initializer: Initializer of their biases.
        epsilon: Number added to the variance of each norm, positive; 1e-5 by default.
            The norms of `qk_norm` have 1e-6.
        use_bias: Whether the projections of attention and feed-forward have biases; a
            `use_bias` among an attention's own options takes precedence.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        target: Float tensor `(B, T, D)`.
        source: Float tensor `(B, S, D)`, or None.
        mask: The same as `target_mask`; Keras fills it in if there is no source.
        target_mask: Bool tensor `(B, T)`; else the mask on `target`.
        source_mask: Bool tensor `(B, S)`; else the mask on `source`.
        return_attention_scores: Whether to return the weights too.
        training: Whether to apply dropout and stochastic depth.
        use_causal_mask: Whether position i of the target sees only j <= i; True by
            default.
        past: Float tensor `(B, M, D)` of the vectors right before the target, or None.
            The self-attention attends to them too, and positions count from the first
            of them. Gradients reach it unless the caller applies `ops.stop_gradient`.
        past_mask: Bool tensor `(B, M)`, True = may be attended to.

    Returns:
        Float tensor `(B, T, D)` in the compute dtype; with `return_attention_scores`
        also the weights of the self-attention `(B, H, T, M + T)`, and with a source
        those of the cross-attention `(B, H, T, S)`.

    Raises:
        ValueError: If both `mask` and `target_mask` are given, `source` is given in one
            call and not in another, `source_mask` or `past_mask` is given without its
            sequence, `num_heads` does not divide D and `key_dim` is None, or an option
            is out of range.

    Example:
        >>> import numpy as np
        >>> block = DecoderBlock(num_heads=2, intermediate_dim=32)
        >>> target, source = np.zeros((2, 5, 8)), np.zeros((2, 7, 8))
        >>> tuple(block(target, source).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.1; `past`: Dai et al. 2019, section 3.2. Differs:
        pre-norm (Xiong et al. 2020) and no dropout, unless given; gradients reach
        `past`.
    """

    mask_name = "target_mask"

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        key_dim: int | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: Activation = "relu",
        gated: bool = False,
        norm: Norm = "layer",
        normalize_first: bool = True,
        attention: dict[str, Any] | keras.layers.Layer | None = None,
        cross_attention: dict[str, Any] | keras.layers.Layer | None = None,
        activation_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        gradient_checkpointing: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        epsilon: float = EPSILON,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        given = locals()
        options = {name: given[name] for name in arguments.names_of(Block)}
        super().__init__(**options, **kwargs)
        self.cross_attention = checked_attention("cross_attention", cross_attention)

    def build(self, target_shape: Shape, source_shape: Shape | None = None) -> None:
        """Makes the attentions and the feed-forward."""
        for name, shape in (("target", target_shape), ("source", source_shape)):
            check_rank(name, shape, "(batch, length, width)")
        self.attention_residual = self._attention_residual(
            self.attention, target_shape[-1], "self_attention"
        )
        self.attention_residual.build(target_shape, target_shape)
        if source_shape is not None:
            self.cross_residual = self._attention_residual(
                self.cross_attention, target_shape[-1], "cross_attention"
            )
            self.cross_residual.build(target_shape, source_shape)
        self.feed_forward_residual.build(target_shape)
        keep_frozen(self)

    def compute_output_shape(
        self, target_shape: Shape, source_shape: Shape | None = None
    ) -> Shape:
        """Returns the shape of `target`, unchanged."""
        return target_shape

    @checkpointed
    def call(
        self,
        target: Tensor,
        source: Tensor | None = None,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = True,
        past: Tensor | None = None,
        past_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Decodes `target`, attending to `source`."""
        check_sequences(target=target, source=source, past=past)
        target_mask = bool_mask("target_mask", target_mask if mask is None else mask)
        source_mask = bool_mask("source_mask", source_mask)
        self._check_given("source", source)
        x, *scores = attend(
            self.attention_residual,
            target,
            query_mask=target_mask,
            return_attention_scores=return_attention_scores,
            training=training,
            use_causal_mask=use_causal_mask,
            **_with_past(target, target_mask, past, past_mask),
        )
        if source is not None:
            x, *cross_scores = attend(
                self.cross_residual,
                x,
                source,
                query_mask=target_mask,
                value_mask=source_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            scores += cross_scores
        x = self.feed_forward_residual(x, **if_known(training))
        return (x, *scores) if return_attention_scores else x

    def call_unpadded(
        self,
        x: Tensor,
        unpadding: Unpadding,
        mask: Tensor,
        memory: Tensor | None = None,
        memory_unpadding: Unpadding | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Does what a call does while training, on only the tokens of a batch.

        Args:
            x: Float tensor `(1, M, D)`, the tokens that `unpadding` takes.
            unpadding: The `Unpadding` of `mask`.
            mask: Bool tensor `(B, T)`.
            memory: Float tensor `(1, N, D)`, the tokens that `memory_unpadding` takes,
                or `(B, S, D)` where that is None; None without a source.
            memory_unpadding: The `Unpadding` of `memory_mask`, or None.
            memory_mask: Bool tensor `(B, S)`, or None.

        Returns:
            Float tensor `(1, M, D)`.
        """
        self._check_given("source", memory)
        x = attend_unpadded(
            self.attention_residual,
            x,
            unpadding,
            mask=input_masks(mask, mask),
            use_causal_mask=True,
        )
        if memory is not None:
            x = attend_unpadded(
                self.cross_residual,
                x,
                unpadding,
                memory,
                memory_unpadding,
                mask=input_masks(mask, memory_mask),
            )
        return self.feed_forward_residual(x, training=True)

    def _check_given(self, name, value):
        """Raises an error if what a source makes is missing, or there is no source."""
        if (value is None) != (self.cross_residual is None):
            raise ValueError(
                f"`{name}` must be given to a decoder block that was built with a "
                "source, and to no other. Received: "
                f"{name}={'None' if value is None else 'a tensor'}, for a block "
                f"built with{'out' if self.cross_residual is None else ''} a source."
            )

    def _checked_source_mask(self, source_mask, memory):
        """Checks the mask here, so that an error calls it `source_mask`."""
        if memory is None and source_mask is not None:
            arguments.refuse("source_mask", source_mask, "None without a `memory`")
        known = memory is not None and isinstance(
            self.cross_residual.sublayer, MultiHeadAttention
        )
        if known:
            check_kept("memory", memory, KVCache, "project_memory")
        length = memory.key.shape[3] if known else None
        return checked_mask("source_mask", source_mask, length)

    def initial_cache(
        self, batch_size: int | Tensor, width: int, max_length: int
    ) -> KVCache:
        """Makes the empty cache of `step`, that of the self-attention.

        Args:
            batch_size: Number of sentences B, an integer or a scalar tensor.
            width: Number of beams W per sentence.
            max_length: Number of steps L the cache has capacity for.

        Returns:
            A `KVCache` of tensors `(B, ...)`, zeros, for `state["sentence"]`.

        Raises:
            ValueError: If the block is not built, or a size is not an integer or a
                scalar tensor.
        """
        check_built(self)
        attention = self.attention_residual.sublayer
        return attention.initial_cache(batch_size, width, max_length)

    def project_memory(self, source: Tensor) -> KVCache:
        """Projects the source for the cross-attention, once for all steps and beams.

        Args:
            source: Float tensor `(B, S, D)`.

        Returns:
            A `KVCache` of tensors `(B, ...)`, for `state["sentence"]`.

        Raises:
            ValueError: If the block is not built, was built without a source, or
                `source` does not fit.
        """
        check_built(self)
        self._check_given("source", source)
        check_tensor("source", source, "(batch, length, width)")
        return self.cross_residual.sublayer.project_memory(source)

    def prefill(
        self, target: Tensor, cache: KVCache, width: int = 1, **options: Any
    ) -> tuple[Any, KVCache]:
        """Does what a call does, and fills the cache so that `step` can continue.

        Args:
            target: Float tensor `(B, T, D)`, the first positions of every beam.
            cache: What `initial_cache` returned.
            width: Number of beams W per sentence.
            **options: Those of a call, except `past`: the cache begins with `target`.

        Returns:
            What a call returns, and the cache with the T positions.

        Raises:
            ValueError: If `past` is given.
        """
        if options.get("past") is not None:
            raise ValueError(
                "`past` must be None, as the cache begins with `target`. Received: "
                f"past of shape {tuple(options['past'].shape)}."
            )
        check_built(self)
        check_tensor("target", target, "(batch, length, width)")
        # Keys and values are projected again in the call, which does not return them.
        residual = self.attention_residual
        entered = residual.enter(target)
        cache = residual.sublayer.fill_cache(entered, cache, width=width)
        return self(target, **options), cache

    def step(
        self,
        target: Tensor,
        cache: KVCache,
        index: int | Tensor,
        memory: KVCache | None = None,
        source_mask: Tensor | None = None,
        mask: Tensor | None = None,
        ancestry: Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """Decodes one new position of each beam.

        Equals row `index` of a call on the whole sequence.

        Args:
            target: Float tensor `(B, W, D)`, the vector at `index` of each beam.
            cache: What `initial_cache` or the step before returned.
            index: The position, an integer or a scalar int32 tensor: see
                `MultiHeadAttention.step`.
            memory: What `project_memory` returned, or None without a source.
            source_mask: Bool tensor `(B, S)`.
            mask: Bool tensor `(B, L)`, True = the place of the cache may be attended
                to; None allows all positions up to `index`.
            ancestry: Int32 tensor `(B, W, L)`, the beam that wrote each position of a
                beam's history, as `mark_ancestry` returns it for `index`; None for a
                single beam.
            return_attention_scores: Whether to return the weights on the memory too.

        Returns:
            Float tensor `(B, W, D)`, and the cache with this position; with
            `return_attention_scores` also the weights `(B, H, W, S)`, None without a
            memory.

        Raises:
            ValueError: If `ancestry` is None and there are several beams; if `memory`
                is missing in a block that attends to a source, or given in another; or
                if `source_mask` is given without `memory`.
        """
        check_built(self)
        check_tensor("target", target, BEAMS)
        self._check_given("memory", memory)
        arguments.check_flag("return_attention_scores", return_attention_scores)
        source_mask = self._checked_source_mask(source_mask, memory)
        residual = self.attention_residual
        given = {"mask": mask, "ancestry": ancestry}
        # A user's own attention need not take arguments that are not used.
        given = {name: value for name, value in given.items() if value is not None}
        attended, cache = residual.sublayer.step(
            residual.enter(target), cache, index, **given
        )
        x, scores = residual.leave(target, attended), None
        if memory is not None:
            residual = self.cross_residual
            attended = residual.sublayer.step_memory(
                residual.enter(x),
                memory,
                source_mask,
                index=index,
                return_attention_scores=return_attention_scores,
            )
            if return_attention_scores:
                attended, scores = attended
            x = residual.leave(x, attended)
        x = self.feed_forward_residual(x)
        return (x, cache, scores) if return_attention_scores else (x, cache)

    def compute_mask(self, target: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Passes the mask of `target` on to the output, none to the weights."""
        return mask

    def compute_output_spec(
        self,
        target: Tensor,
        source: Tensor | None = None,
        mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = True,
        past: Tensor | None = None,
        past_mask: Tensor | None = None,
    ) -> Any:
        """Returns the symbolic output, and the symbolic weights where asked for."""
        check_sequences(target=target, source=source, past=past)
        self._check_given("source", source)
        seen = target if past is None else ops.concatenate([past, target], axis=1)
        attended = [(self.attention_residual, seen)]
        if source is not None:
            attended.append((self.cross_residual, source))
        return self._output_spec(target, return_attention_scores, *attended)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "cross_attention": attention_config(self.cross_attention),
        }


def _with_past(target, target_mask, past, past_mask):
    """Returns the call arguments that let `target` attend to `past` and itself."""
    if past is None:
        return {"value_mask": target_mask}
    mask = None
    past_mask = bool_mask("past_mask", past_mask)
    if past_mask is not None or target_mask is not None:
        mask = ops.concatenate(
            [mask_of_all(past, past_mask), mask_of_all(target, target_mask)], axis=1
        )
    return {"past": past, "value_mask": mask, "offset": ops.shape(past)[1]}
