"""The encoder-decoder Transformer for translation.

Shapes: B batch, W beams, S source length, T target length, L places of a cache, D
model_dim, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.decoding.protocol import abilities
from keras_seqattn.layers import DecoderBlock, EncoderBlock, padding_mask
from keras_seqattn.layers.attention.kv_cache import (
    grow_axis,
    held_positions,
    initial_ancestry,
    mark_ancestry,
)
from keras_seqattn.layers.embedding.positions import takes_positions
from keras_seqattn.layers.norms import EPSILON
from keras_seqattn.models import stacks
from keras_seqattn.models.config import (
    TransformerConfig,
    attention_option,
    option,
    optional_size,
)
from keras_seqattn.models.translation import TranslationModel, TranslationStacks


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationConfig(TransformerConfig):
    """The options of `TranslationTransformer`."""

    source_vocabulary_size: int = option(arguments.positive_integer)
    target_vocabulary_size: int | None = option(optional_size, None)
    encoder_layers: int = option(arguments.positive_integer, 3)
    decoder_layers: int = option(arguments.positive_integer, 3)
    start_id: int = 1
    end_id: int = 2
    zero_id: int | None = None
    decoder_attention: dict[str, Any] | None = option(attention_option, None)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TranslationTransformer(TranslationModel):
    """Computes the logits of the next target token, from a source and a target so far.

    A functional model: {"source_ids": (B, S), "target_ids": (B, T)} -> (B, T, V).
    Padding is masked automatically; target position i attends only to positions j <= i.
    `generate` decodes with the protocol `encode`, `initial_state`, `step`.
    Shapes: B batch, W beams, S source length, T target length, D model_dim, V target
    vocabulary, E width of the memory (D), H heads.

    Args:
        source_vocabulary_size: Number of source token ids.
        target_vocabulary_size: Number of target token ids V; None when source and
            target share one vocabulary.
        model_dim: Width D of the vectors between blocks.
        num_heads: Number of attention heads per block.
        encoder_layers: Number of encoder blocks.
        decoder_layers: Number of decoder blocks.
        intermediate_dim: Width of the feed-forwards' hidden layers.
        dropout: Fraction dropped of embeddings and of each sublayer's output, while
            training.
        positions: "sinusoidal" or "learned" (takes `max_length`), added to the
            embedding; "rotary", "alibi" or "relative", inside every self-attention; a
            layer, which has the methods `rotate` and `bias` if it works inside
            attention; or None.
        tie_embeddings: Whether one table serves the target and the output, and the
            source too if the vocabulary is shared. False: each has its own table.
        key_dim: Width of a head; `model_dim` / `num_heads` when None.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forwards.
        gated: Whether the feed-forwards are gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True), with a norm after each stack, or post-norm.
        attention: A dict of further `MultiHeadAttention` arguments for every attention;
            `sliding_window` and `positions` apply only to self-attention, since they
            have no meaning between source and target.
        max_length: Longest sentence, source or target, in a search, and the number of
            learned positions, which require it. None: no limit. Without learned
            positions a call takes longer sentences.
        start_id: The id each target starts with; it may be `pad_id`, or `end_id`.
        end_id: The id each sentence ends with.
        pad_id: The id that fills a batch, other than `end_id`.
        activation_dropout: Fraction of the feed-forwards' hidden layers dropped while
            training.
        stochastic_depth: Fraction of the samples that skip a sublayer of the last block
            of a stack while training; block i of N, counted from 1, has i / N of it.
        share_layers: Whether one block's weights are used at every depth of a stack;
            `stochastic_depth` is then the same at every depth.
        zero_id: Id of a token whose vector is 0, before its position is added, or None.
            Give the tokenizer's `unknown_id` if `text.translation_batches` has
            `cutoff`.
        epsilon: Number added to the variance of each norm, positive; 1e-5 by default.
            The norms of `qk_norm` have 1e-6.
        use_bias: Whether the projections of attentions and feed-forwards have biases.
        embedding_scale: Factor of the embedding's vectors; sqrt(`model_dim`) when None.
        embedding_norm: Whether a norm follows the embedding.
        logits_bias: Whether the logits have a bias.
        decoder_attention: Replaces `attention` in the decoder's self-attentions; None:
            `attention` serves these too.
        base_dim: Width at which the learning rate was tuned, to be used at `model_dim`
            by the muP rules; see `learning_rate_factors`. None: muP is off.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: A dict of int32 tensors, "source_ids" `(B, S)` and "target_ids"
            `(B, T)`.

    Returns:
        Float tensor `(B, T, V)`: logits in the compute dtype.

    Raises:
        ValueError: If a size is not positive, `num_heads` does not divide `model_dim`
            and `key_dim` is None, positions are rotary and the score is additive, or
            another option is out of range.

    Example:
        >>> import numpy as np
        >>> model = TranslationTransformer(100, model_dim=16, intermediate_dim=32)
        >>> ids = np.array([[5, 7, 2, 0]])
        >>> tuple(model({"source_ids": ids, "target_ids": ids}).shape)
        (1, 4, 100)

    Reference:
        Vaswani et al. 2017, section 3; stochastic depth: Huang et al. 2016;
        `share_layers`: Dehghani et al. 2019, without their positions for each depth
        and their halting. Differs: pre-norm by default; no dropout on the attention
        weights unless `attention_dropout` is given.
    """

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        model_dim: int = 256,
        num_heads: int = 4,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        intermediate_dim: int = 1024,
        dropout: float = 0.1,
        positions: str | keras.layers.Layer | None = "sinusoidal",
        tie_embeddings: bool = True,
        key_dim: int | None = None,
        attention_dropout: float = 0.0,
        activation: str | Callable = "relu",
        gated: bool = False,
        norm: str = "layer",
        normalize_first: bool = True,
        attention: dict[str, Any] | None = None,
        max_length: int | None = None,
        start_id: int = 1,
        end_id: int = 2,
        pad_id: int = 0,
        activation_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        share_layers: bool = False,
        zero_id: int | None = None,
        epsilon: float = EPSILON,
        use_bias: bool = True,
        embedding_scale: float | None = None,
        embedding_norm: bool = False,
        logits_bias: bool = False,
        decoder_attention: dict[str, Any] | None = None,
        base_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        stacks.check_names(TranslationTransformer, kwargs)
        config = TranslationConfig.of(locals())
        super().__init__(_Stacks(config, kwargs.get("dtype")), config, **kwargs)
        added = self._stacks.target_embedding.positions
        if added is not None and not takes_positions(added):
            # A sentence that begins late is at positions of its own.
            self.abilities = abilities(self) - {"start"}


class _Stacks(TranslationStacks):
    """The encoder and the decoder, and their computations."""

    def __init__(self, config: TranslationConfig, dtype: Any):
        self._starts_with_padding = config.start_id == config.pad_id
        super().__init__(
            config,
            dtype,
            **config.embedding_options(),
            mask_zero=config.pad_id == 0 and not self._starts_with_padding,
        )
        self.encoder = stacks.make_stack(
            EncoderBlock, "encoder", config.encoder_layers, config, dtype
        )
        self.decoder = stacks.make_stack(
            DecoderBlock,
            "decoder",
            config.decoder_layers,
            config,
            dtype,
            **config.block_options(config.decoder_attention),
            cross_attention=config.cross_attention(),
        )

    def encode(self, source_ids, return_attention_scores=False):
        mask = padding_mask(source_ids, self.pad_id)
        x = self.encoder(
            self.source_embedding(source_ids),
            mask=mask,
            return_attention_scores=return_attention_scores,
        )
        hidden, scores = x if return_attention_scores else (x, [])
        memory = {"hidden": hidden, "mask": mask}
        return memory, {"encoder": [own for (own,) in scores]}

    def decode(self, target_ids, memory, return_attention_scores=False):
        x = self.decoder(
            self.target_embedding(target_ids),
            memory["hidden"],
            x_mask=self._target_mask(target_ids),
            memory_mask=memory["mask"],
            return_attention_scores=return_attention_scores,
        )
        x, scores = x if return_attention_scores else (x, [])
        return self.logits(x), {
            "decoder": [own for own, _ in scores],
            "cross": [cross for _, cross in scores],
        }

    def _target_mask(self, target_ids):
        """Marks real tokens, and always the first where targets start with padding."""
        mask = padding_mask(target_ids, self.pad_id)
        if not self._starts_with_padding:
            return mask
        return ops.concatenate([ops.ones_like(mask[:, :1]), mask[:, 1:]], axis=1)

    def initial_state(self, memory, max_length, width):
        batch_size = ops.shape(memory["mask"])[0]
        beam = {"ancestry": initial_ancestry(batch_size, width, max_length)}
        sentence = {
            "mask": memory["mask"],
            "memory": self.decoder.project_memory(memory["hidden"]),
            "caches": self.decoder.initial_cache(batch_size, width, max_length),
        }
        return {"beam": beam, "sentence": sentence, "shared": self.logits.shared()}

    def grow_state(self, state, max_length, index):
        ancestry, sentence = state["beam"]["ancestry"], state["sentence"]
        width = ancestry.shape[1]
        caches = self.decoder.grow_cache(sentence["caches"], max_length, index, width)
        ancestry = grow_axis(ancestry, 2, max_length, index)
        beam = {**state["beam"], "ancestry": ancestry}
        return {**state, "beam": beam, "sentence": {**sentence, "caches": caches}}

    def step(self, token_ids, state, index, start=None):
        beam, sentence = dict(state["beam"]), state["sentence"]
        # The embedding needs the position in the sentence. Attention depends only on
        # distances, so it takes the step of the loop, `index`.
        position, own_places = index, None
        if start is not None:
            position = index - start  # (B,)
            # The other places hold an earlier sentence of the same row.
            length = beam["ancestry"].shape[2]  # L
            own_places = held_positions(length, index) >= start[:, None]  # (B, L)
        beam["ancestry"] = mark_ancestry(beam["ancestry"], index)
        x, caches, *scores = self.decoder.step(
            self.target_embedding.step(token_ids, position),
            sentence["caches"],
            index,
            memory=sentence["memory"],
            memory_mask=sentence["mask"],
            mask=own_places,
            ancestry=beam["ancestry"],
            return_attention_scores="coverage" in beam,
        )
        state = {**state, "beam": beam, "sentence": {**sentence, "caches": caches}}
        return self.finish_step(x, scores[0] if scores else [], state)
