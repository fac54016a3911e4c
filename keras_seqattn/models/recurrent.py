"""The recurrent encoder-decoder for translation: the sequential baseline.

Shapes: B batch, W beams, S source length, T target length, D model_dim, V vocabulary.
"""

import dataclasses
from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.layers import (
    AttentiveRecurrentDecoder,
    RecurrentEncoder,
    padding_mask,
)
from keras_seqattn.layers.shapes import check_not_empty
from keras_seqattn.models.config import Config, option, optional_size
from keras_seqattn.models.stacks import check_names
from keras_seqattn.models.translation import TranslationModel, TranslationStacks


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Config):
    """The options of `TranslationRNN`."""

    source_vocabulary_size: int = option(arguments.positive_integer)
    target_vocabulary_size: int | None = option(optional_size, None)
    model_dim: int = option(arguments.positive_integer, 256)
    encoder_layers: int = option(arguments.positive_integer, 1)
    decoder_layers: int = option(arguments.positive_integer, 1)
    dropout: float = option(arguments.fraction, 0.1)
    tie_embeddings: bool = option(arguments.boolean, True)
    cell: str = "gru"
    attention_units: int | None = option(optional_size, None)
    max_length: int | None = option(optional_size, None)
    start_id: int = 1
    end_id: int = 2
    pad_id: int = 0
    zero_id: int | None = None


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TranslationRNN(TranslationModel):
    """Computes the logits of the next target token, from a source and a target so far.

    A `RecurrentEncoder` reads the source in both directions; an
    `AttentiveRecurrentDecoder` reads the target and attends to the source. A functional
    model with the inputs, the output and the decoding protocol of
    `TranslationTransformer`: {"source_ids": (B, S), "target_ids": (B, T)} ->
    (B, T, V). The source's padding is masked automatically; target position i depends
    only on positions j <= i, so padding after a target does not change its logits.
    Shapes: B batch, W beams, S source length, T target length, D model_dim, V target
    vocabulary, E width of the memory (2 D), H heads (1).

    Args:
        source_vocabulary_size: Number of source token ids.
        target_vocabulary_size: Number of target token ids V; None when source and
            target share one vocabulary.
        model_dim: Width D of the embeddings, of the encoder's states in each direction,
            and of the decoder's states.
        encoder_layers: Number of recurrent layers in the encoder, each in both
            directions.
        decoder_layers: Number of recurrent layers in the decoder.
        dropout: Fraction dropped of embeddings and of each layer's output, while
            training.
        tie_embeddings: Whether one table serves the target and the output, and the
            source too if the vocabulary is shared. False: each has its own table.
        cell: "gru", or "simple" for a plain `RecurrentCell`.
        attention_units: Width of the attention's projections; D when None.
        max_length: Longest sentence, source or target, in a search; None for no limit.
            A call takes longer ones.
        start_id: The id each target starts with.
        end_id: The id each sentence ends with.
        pad_id: The id that fills a batch, other than `end_id`.
        zero_id: Id of a token whose vector is 0, or None. Give the tokenizer's
            `unknown_id` if `text.translation_batches` has `cutoff`.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: A dict of int32 tensors, "source_ids" `(B, S)` and "target_ids"
            `(B, T)`.

    Returns:
        Float tensor `(B, T, V)`: logits in the compute dtype.

    Raises:
        ValueError: If a size is not positive, or an option is out of range; in a call,
            if source or target has no position.

    Example:
        >>> import numpy as np
        >>> model = TranslationRNN(100, model_dim=16)
        >>> ids = np.array([[5, 7, 2, 0]])
        >>> tuple(model({"source_ids": ids, "target_ids": ids}).shape)
        (1, 4, 100)

    Reference:
        Bahdanau et al. 2015 and Luong et al. 2015, as `AttentiveRecurrentDecoder` says;
        tied tables: Press and Wolf 2017. Differs: embeddings times sqrt(D), as in
        `PositionalEmbedding`.
    """

    attention_kinds = ("cross",)

    def __init__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int | None = None,
        model_dim: int = 256,
        encoder_layers: int = 1,
        decoder_layers: int = 1,
        dropout: float = 0.1,
        tie_embeddings: bool = True,
        cell: str = "gru",
        attention_units: int | None = None,
        max_length: int | None = None,
        start_id: int = 1,
        end_id: int = 2,
        pad_id: int = 0,
        zero_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_names(TranslationRNN, kwargs)
        config = RecurrentConfig.of(locals())
        super().__init__(_Stacks(config, kwargs.get("dtype")), config, **kwargs)


class _Stacks(TranslationStacks):
    """The layers of the model and their computations."""

    def __init__(self, config: RecurrentConfig, dtype: Any):
        # Without a mask from the embedding the decoder's recurrence can use fused
        # kernels.
        super().__init__(
            config, dtype, positions=None, dropout=config.dropout, mask_zero=False
        )
        common = {
            "units": config.model_dim,
            "cell": config.cell,
            "dropout": config.dropout,
            "dtype": dtype,
        }
        self.encoder = RecurrentEncoder(
            num_layers=config.encoder_layers, name="encoder", **common
        )
        self.decoder = AttentiveRecurrentDecoder(
            num_layers=config.decoder_layers,
            attention_units=config.attention_units,
            name="decoder",
            **common,
        )

    def encode(self, source_ids, return_attention_scores=False):
        check_not_empty("source_ids", source_ids)
        mask = padding_mask(source_ids, self.pad_id)
        hidden, state = self.encoder(self.source_embedding(source_ids), mask=mask)
        return {"hidden": hidden, "mask": mask, "state": state}, {}

    def decode(self, target_ids, memory, return_attention_scores=False):
        x = self.decoder(
            self.target_embedding(target_ids),
            memory["hidden"],
            memory["state"],
            source_mask=memory["mask"],
            return_attention_scores=return_attention_scores,
        )
        x, *scores = x if return_attention_scores else (x,)
        return self.logits(x), {"cross": scores}

    def initial_state(self, memory, max_length, width):
        projected = self.decoder.project_memory(memory["hidden"])
        beam = {"states": self.decoder.initial_cache(memory["state"], width)}
        sentence = {"mask": memory["mask"], "memory": projected}
        return {"beam": beam, "sentence": sentence, "shared": self.logits.shared()}

    def grow_state(self, state, max_length, index):
        return state  # Its size does not depend on the number of steps.

    def step(self, token_ids, state, index, start=None):
        # `start` is not needed: nothing here counts positions.
        x = self.target_embedding.step(token_ids, index)
        beam, sentence = dict(state["beam"]), state["sentence"]
        x, beam["states"], *scores = self.decoder.step(
            x,
            beam["states"],
            sentence["memory"],
            sentence["mask"],
            return_attention_scores="coverage" in beam,
        )
        return self.finish_step(x, scores, {**state, "beam": beam})
