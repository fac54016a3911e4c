"""Transformer blocks one above the other.

Shapes: B batch, T length, S length of the memory, M and N tokens of x and memory, D
model_dim, H heads, W beams, L places of a cache.
"""

from collections.abc import Sequence
from typing import Any, Self

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.backend import tracing
from keras_seqattn.backend.parts import build_part, track_list
from keras_seqattn.layers.attention.kv_cache import KVCache
from keras_seqattn.layers.attention.masks import bool_mask, mask_of_all
from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.layers.dropout import if_known
from keras_seqattn.layers.shapes import check_built, check_rank
from keras_seqattn.layers.transformer.block import Block, CarriesMask, check_sequences
from keras_seqattn.layers.transformer.encoder_block import EncoderBlock
from keras_seqattn.layers.weights.frozen import keep_frozen
from keras_seqattn.layers.weights.quantization import dtype_config


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TransformerStack(arguments.Checked, CarriesMask, keras.layers.Layer):
    """Applies Transformer blocks one above the other, then a norm.

    While training, it computes only the real tokens where it can: it unpads `x` and
    `memory` before the first block, and pads the output with zeros after the last. This
    requires a program whose shapes may depend on values (TensorFlow and torch on a CPU,
    not compiled by XLA), a mask, and blocks of this package, with its attention and
    their own `call`, without stochastic depth, gradient checkpointing and activity
    regularizers, and a layer or RMS norm of each vector alone, or none; nor may it have
    an activity regularizer itself. Otherwise it calls the blocks on padded inputs.
    Shapes: B batch, T length, S length of the memory, D model_dim, H heads, W beams,
    L cache length.

    Args:
        blocks: List of `EncoderBlock`s or of `DecoderBlock`s, the lowest first. A block
            that occurs several times has the same weights at each depth.
        norm: Layer applied to what the last block returns, as pre-norm blocks need
            it, or None.
        unpad: Whether to leave out padding while training, where that is possible.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        x: Float tensor `(B, T, D)`.
        memory: Float tensor `(B, S, D)` that decoder blocks attend to, or None.
        mask: The same as `x_mask`; Keras fills it in if there is no memory.
        x_mask: Bool tensor `(B, T)`, True = a real token; else the mask on `x`.
        memory_mask: Bool tensor `(B, S)`; else the mask on `memory`.
        return_attention_scores: Whether to return the weights of each block too.
        training: Whether to apply dropout and stochastic depth.

    Returns:
        Float tensor `(B, T, D)` in the compute dtype, with the mask of `x`; with
        `return_attention_scores` also a list with a tuple for each block: the weights
        `(B, H, T, T)` of its self-attention and, with a memory, `(B, H, T, S)` of its
        cross-attention.

    Raises:
        ValueError: If `blocks` is not a list of layers, `EncoderBlock`s are given a
            `memory`, both `mask` and `x_mask` are given, `memory_mask` is given without
            `memory`, or shapes do not fit.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.layers import EncoderBlock
        >>> stack = TransformerStack([EncoderBlock(2, 16) for _ in range(3)])
        >>> tuple(stack(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.1. Differs: only `norm`, which pre-norm blocks
        need after the last one.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        norm: keras.layers.Layer | None = None,
        unpad: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        wanted = "a list of layers"
        self.blocks = arguments.sequence("blocks", blocks, wanted, _layer)
        if not self.blocks:
            arguments.refuse("blocks", blocks, f"{wanted}, at least one")
        track_list(self, "blocks", self.blocks)
        self.norm = arguments.instance(
            "norm", norm, keras.layers.Layer, "a layer", optional=True
        )
        if isinstance(norm, keras.layers.RMSNormalization):
            norm.supports_masking = True  # else Keras warns that the mask ends here
        self.unpad = arguments.boolean("unpad", unpad)
        self.supports_masking = True

    def build(self, x_shape: Shape, memory_shape: Shape | None = None) -> None:
        """Builds the blocks and the norm."""
        check_rank("x", x_shape, "(batch, length, width)")
        self._check_memory(memory_shape)
        shapes = (x_shape,) if memory_shape is None else (x_shape, memory_shape)
        for block in self.blocks:
            build_part(block, *shapes)
        if self.norm is not None:
            build_part(self.norm, x_shape)
        keep_frozen(self)

    def _check_memory(self, shape):
        has_encoders = any(isinstance(block, EncoderBlock) for block in self.blocks)
        if shape is not None and has_encoders:
            raise ValueError(
                "`memory` must be None for a stack of `EncoderBlock`s, which attend to "
                f"`x` alone. Received: memory of shape {tuple(shape)}."
            )

    def _check_steps(self, method):
        """Refuses blocks that take no steps, and a stack that is not built."""
        if not all(hasattr(block, method) for block in self.blocks):
            wanted = f"`DecoderBlock`s for the method `{method}`"
            arguments.refuse("blocks", self.blocks, wanted)
        check_built(self)

    @property
    def parts(self) -> list[keras.layers.Layer]:
        """The distinct blocks, the lowest first, and the norm."""
        blocks = self._distinct()
        return blocks if self.norm is None else [*blocks, self.norm]

    def call(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Applies all blocks."""
        check_sequences(x=x, memory=memory)
        self._check_memory(getattr(memory, "shape", None))
        mask = bool_mask("x_mask", x_mask if mask is None else mask)
        memory_mask = bool_mask("memory_mask", memory_mask)
        if training and not return_attention_scores and self._unpads(x, mask):
            return self._call_unpadded(x, mask, memory, memory_mask)
        masks, source = {"mask": mask}, []
        if memory is not None:
            masks, source = {"target_mask": mask, "source_mask": memory_mask}, [memory]
        options: dict[str, Any] = {**masks, **if_known(training)}
        if not return_attention_scores:
            for block in self.blocks:
                x = block(x, *source, **options)
            return self.finish(x)
        scores = []
        for block in self.blocks:
            x, *weights = block(x, *source, **options, return_attention_scores=True)
            scores.append(tuple(weights))
        return self.finish(x), scores

    def _unpads(self, x, mask):
        """Returns whether padding can be left out here."""
        if not self.unpad or mask is None or 0 in x.shape[:2]:
            return False
        if self.activity_regularizer is not None:  # It is of padding, too.
            return False
        can = all(isinstance(block, Block) and block.unpads for block in self.blocks)
        return can and _is_by_vector(self.norm) and tracing.allows_any_shape(x)

    def _call_unpadded(self, x, mask, memory, memory_mask):
        """Does what a call does, on only the tokens."""
        mask = mask_of_all(x, mask)
        unpadding = Unpadding(mask)
        memory_unpadding = None
        if memory_mask is not None and 0 not in memory.shape[:2]:
            memory_mask = mask_of_all(memory, memory_mask)
            memory_unpadding = Unpadding(memory_mask)
            memory = memory_unpadding.unpad(memory)  # (1, N, D)
        x = unpadding.unpad(x)  # (1, M, D)
        for block in self.blocks:
            x = block.call_unpadded(
                x, unpadding, mask, memory, memory_unpadding, memory_mask
            )
        return unpadding.pad(self.finish(x))

    def finish(self, x: Tensor) -> Tensor:
        """Applies the norm, if there is one, to what the last block returned."""
        return x if self.norm is None else self.norm(x)

    def initial_cache(
        self, batch_size: int | Tensor, width: int, max_length: int
    ) -> list[KVCache]:
        """Makes the empty caches of `step`, one for each depth.

        Args:
            batch_size: Number of sentences B, an integer or a scalar tensor.
            width: Number of beams W per sentence.
            max_length: Number of steps L the caches have capacity for.

        Returns:
            A list of `KVCache` of tensors `(B, ...)`, zeros.

        Raises:
            ValueError: If the blocks are not `DecoderBlock`s, the stack is not built,
                or an argument does not fit.
        """
        self._check_steps("initial_cache")
        return [
            block.initial_cache(batch_size, width, max_length) for block in self.blocks
        ]

    def project_memory(self, memory: Tensor) -> list[KVCache]:
        """Projects the memory for each block's cross-attention, once for all steps.

        Args:
            memory: Float tensor `(B, S, D)`.

        Returns:
            A list of `KVCache` of tensors `(B, ...)`, one for each distinct block.

        Raises:
            ValueError: If the blocks are not `DecoderBlock`s, the stack is not built,
                or an argument does not fit.
        """
        self._check_steps("project_memory")
        return [block.project_memory(memory) for block in self._distinct()]

    def grow_cache(
        self, caches: list[KVCache], max_length: int, index: int | Tensor, width: int
    ) -> list[KVCache]:
        """Grows the caches for more steps.

        Args:
            caches: What `initial_cache` or `step` returned.
            max_length: Number of steps L they get capacity for, no fewer than they
                have.
            index: Number of steps taken, an integer or a scalar int32 tensor.
            width: Number of beams W per sentence.

        Returns:
            The grown caches.

        Raises:
            ValueError: If `max_length` or `index` is not an integer or a scalar tensor.
        """
        arguments.index("max_length", max_length, 1)
        arguments.index("index", index, 0)
        return [cache.grow(max_length, index, width) for cache in caches]

    def step(
        self,
        x: Tensor,
        caches: list[KVCache],
        index: int | Tensor,
        memory: list[KVCache] | None = None,
        memory_mask: Tensor | None = None,
        mask: Tensor | None = None,
        ancestry: Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """Computes one new position of each beam; equals row `index` of a call.

        Args:
            x: Float tensor `(B, W, D)`, the vector at `index` of each beam.
            caches: What `initial_cache` or the step before returned.
            index: The position, an integer or a scalar int32 tensor: see
                `MultiHeadAttention.step`.
            memory: What `project_memory` returned, or None.
            memory_mask: Bool tensor `(B, S)`.
            mask: Bool tensor `(B, L)`: see `DecoderBlock.step`.
            ancestry: Int32 tensor `(B, W, L)`: see `DecoderBlock.step`.
            return_attention_scores: Whether to return the weights on the memory too.

        Returns:
            Float tensor `(B, W, D)`, and the caches with this position; with
            `return_attention_scores` also a list of the weights `(B, H, W, S)` of each
            block, None without a memory.

        Raises:
            ValueError: If the blocks are not `DecoderBlock`s, the stack is not built,
                or an argument does not fit.
        """
        self._check_steps("step")
        _check_length("caches", caches, len(self.blocks))
        if memory is None and memory_mask is not None:
            arguments.refuse("memory_mask", memory_mask, "None without a `memory`")
        projected = {}
        if memory is not None:
            distinct = self._distinct()
            _check_length("memory", memory, len(distinct))
            # Depths that share a block share its projection of the memory.
            projected = dict(zip(map(id, distinct), memory, strict=True))
        options = {"mask": mask, "ancestry": ancestry}
        if return_attention_scores:
            options["return_attention_scores"] = True
        kept, scores = [], []
        for block, cache in zip(self.blocks, caches, strict=True):
            x, cache, *weights = block.step(
                x, cache, index, projected.get(id(block)), memory_mask, **options
            )
            kept.append(cache)
            scores += weights
        x = self.finish(x)
        return (x, kept, scores) if return_attention_scores else (x, kept)

    def _distinct(self):
        return list({id(block): block for block in self.blocks}.values())

    def compute_mask(self, x: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Passes the mask of `x` on to the output, none to the weights."""
        return mask

    def compute_output_shape(
        self, x_shape: Shape, memory_shape: Shape | None = None
    ) -> Shape:
        """Returns the shape of `x`, unchanged."""
        return x_shape

    def compute_output_spec(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        x_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Returns the symbolic output, and the symbolic weights where asked for."""
        check_sequences(x=x, memory=memory)
        self._check_memory(getattr(memory, "shape", None))
        output = keras.KerasTensor(x.shape, self.compute_dtype)
        if not return_attention_scores:
            return output
        given = (x,) if memory is None else (x, memory)
        outputs = [
            block.compute_output_spec(*given, return_attention_scores=True)
            for block in self.blocks
        ]
        return output, [tuple(scores) for _, *scores in outputs]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; each block once, with its depths."""
        distinct = self._distinct()
        ids = [id(block) for block in distinct]
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "blocks": [arguments.configuration(block) for block in distinct],
            "depths": [ids.index(id(block)) for block in self.blocks],
            "norm": arguments.configuration(self.norm),
            "unpad": self.unpad,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the stack, its blocks and its norm."""
        deserialize = keras.saving.deserialize_keras_object
        config = dict(config)
        blocks = [deserialize(block) for block in config["blocks"]]
        config["blocks"] = [blocks[number] for number in config.pop("depths")]
        if config["norm"] is not None:
            config["norm"] = deserialize(config["norm"])
        return cls(**config)


def _is_by_vector(norm):
    """Returns whether a built norm, or None, needs no padding around a vector."""
    kinds = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
    is_known = type(norm) in kinds and norm.axis in ([-1], [2])
    return norm is None or (is_known and norm.activity_regularizer is None)


def _check_length(name, given, length):
    if len(given) != length:
        raise ValueError(
            f"`{name}` must have {length} entries, as made by this stack. "
            f"Received: {name} of length {len(given)}."
        )


def _layer(name, value):
    return arguments.instance(name, value, keras.layers.Layer, "a layer")
