"""The encoder-decoder Transformer for translation.

Shapes: B batch, W beams, S source length, T target length, D model_dim, V vocabulary.
"""

import keras
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.layers import (
    DecoderBlock,
    EncoderBlock,
    PositionalEmbedding,
    arguments,
    padding_mask,
)
from keras_seqattn.layers.quantization import dtype_config
from keras_seqattn.layers.residual import make_norm


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TranslationTransformer(keras.Model):
    """Gives the logits of the next target token, from a source and a target so far.

    A functional model: {"source_ids": (B, S), "target_ids": (B, T)} -> (B, T, V).
    Padding is masked by itself; target position i sees only j <= i. Decodes by the
    protocol `encode`, `initial_state`, `step`, which `generate` searches over.
    Shapes: B batch, W beams, S source length, T target length, D model_dim, V target
    vocabulary.

    Args:
        source_vocabulary_size: Number of source token ids.
        target_vocabulary_size: Number of target token ids V; None when source and
            target share one vocabulary.
        model_dim: Width D of the vectors between blocks.
        num_heads: Number of attention heads a block.
        encoder_layers: Number of encoder blocks.
        decoder_layers: Number of decoder blocks.
        intermediate_dim: Width of the feed-forwards' hidden layers.
        dropout: Fraction dropped of embeddings and of each sublayer's output, while
            training.
        positions: "sinusoidal", "learned" (takes `max_length`), or None.
        tie_embeddings: Whether one table serves the source, the target and the output
            where the vocabulary is shared, the target and the output where it is not.
            False makes each its own.
        key_dim: Width of a head; `model_dim` / `num_heads` when None.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forwards.
        gated: Whether the feed-forwards are gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True), with a norm after each stack, or post-norm.
        attention: A dict of further `MultiHeadAttention` arguments for every
            attention; `sliding_window` has no meaning between source and target, and
            holds for self-attention alone.
        max_length: Longest sentence, source or target, that the model takes; None for
            no limit.
        start_id: The id each target starts with.
        end_id: The id each sentence ends with.
        pad_id: The id that fills a batch.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: A dict of int32 tensors, "source_ids" `(B, S)` and "target_ids"
            `(B, T)`.

    Returns:
        Float tensor `(B, T, V)`: logits in the compute dtype.

    Raises:
        ValueError: If a size is not positive, or `num_heads` does not divide
            `model_dim` and `key_dim` is None.

    Example:
        >>> import numpy as np
        >>> model = TranslationTransformer(100, model_dim=16, intermediate_dim=32)
        >>> ids = np.array([[5, 7, 2, 0]])
        >>> tuple(model({"source_ids": ids, "target_ids": ids}).shape)
        (1, 4, 100)

    Reference:
        Vaswani et al. 2017, section 3. Differs: pre-norm by default; no dropout on the
        attention weights unless `attention_dropout` is given.
    """

    def __init__(
        self,
        source_vocabulary_size,
        target_vocabulary_size=None,
        model_dim=256,
        num_heads=4,
        encoder_layers=3,
        decoder_layers=3,
        intermediate_dim=1024,
        dropout=0.1,
        positions="sinusoidal",
        tie_embeddings=True,
        key_dim=None,
        attention_dropout=0.0,
        activation="relu",
        gated=False,
        norm="layer",
        normalize_first=True,
        attention=None,
        max_length=None,
        start_id=1,
        end_id=2,
        pad_id=0,
        **kwargs,
    ):
        options = {
            "source_vocabulary_size": source_vocabulary_size,
            "target_vocabulary_size": target_vocabulary_size,
            "model_dim": model_dim,
            "num_heads": num_heads,
            "encoder_layers": encoder_layers,
            "decoder_layers": decoder_layers,
            "intermediate_dim": intermediate_dim,
            "dropout": dropout,
            "positions": positions,
            "tie_embeddings": tie_embeddings,
            "key_dim": key_dim,
            "attention_dropout": attention_dropout,
            "activation": activation,
            "gated": gated,
            "norm": norm,
            "normalize_first": normalize_first,
            "attention": attention,
            "max_length": max_length,
            "start_id": start_id,
            "end_id": end_id,
            "pad_id": pad_id,
        }
        stacks = _Stacks(options, kwargs.get("dtype"))
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        logits, _ = stacks.decode(target_ids, stacks.encode(source_ids))
        super().__init__(
            {"source_ids": source_ids, "target_ids": target_ids}, logits, **kwargs
        )
        self._options, self._stacks = options, stacks
        self.source_vocabulary_size = stacks.source_embedding.vocabulary_size
        self.target_vocabulary_size = stacks.target_embedding.vocabulary_size
        self.max_length = max_length
        self.start_id, self.end_id, self.pad_id = start_id, end_id, pad_id

    def encode(self, source_ids):
        """Encodes source sentences, once for all decoding steps.

        Args:
            source_ids: Int32 tensor `(B, S)`.

        Returns:
            The memory: "hidden", a float tensor `(B, S, D)`, and "mask", a bool tensor
            `(B, S)`, True = a real token.
        """
        return self._stacks.encode(source_ids)

    def initial_state(self, memory, max_length, width=1):
        """Makes the state before the first decoding step.

        Args:
            memory: What `encode` gave.
            max_length: Number of steps the caches have room for.
            width: Number of beams W a sentence.

        Returns:
            {"beam": the self-attention's caches `(B, W, ...)`, "sentence": the
            projected memory `(B, ...)`, shared by a sentence's beams}.
        """
        return self._stacks.initial_state(memory, max_length, width)

    def step(self, token_ids, state, index):
        """Decodes one position; equals row `index` of the full pass.

        Args:
            token_ids: Int32 tensor `(B, W)`, the token at `index` of each beam.
            state: What `initial_state` or the step before gave.
            index: The position, a scalar int32 tensor; 0 for the start token.

        Returns:
            Float32 logits `(B, W, V)` of the token after, and the state.
        """
        return self._stacks.step(token_ids, state, index)

    def generate(self, source_ids, search=None, max_length=None):
        """Translates token ids: see `keras_seqattn.decoding.generate`."""
        return decoding.generate(self, source_ids, search, max_length)

    def cross_attention_scores(self, source_ids, target_ids):
        """Gives where each target position attends to in the source.

        Args:
            source_ids: Int32 tensor `(B, S)`.
            target_ids: Int32 tensor `(B, T)`, as in training: start, then tokens.

        Returns:
            Float32 tensor `(B, layers, H, T, S)`; row t belongs to the prediction of
            token t + 1.
        """
        _, scores = self._stacks.decode(
            target_ids, self.encode(source_ids), return_attention_scores=True
        )
        return ops.cast(ops.stack([cross for _, cross in scores], axis=1), "float32")

    def get_config(self):
        """Gives the constructor's arguments."""
        return {"name": self.name, "dtype": dtype_config(self), **self._options}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes the model from its constructor's arguments."""
        return cls(**config)


_BLOCK_OPTIONS = (
    "num_heads",
    "intermediate_dim",
    "key_dim",
    "dropout",
    "attention_dropout",
    "activation",
    "gated",
    "norm",
    "normalize_first",
    "attention",
)


def _check_options(options):
    sizes = ["source_vocabulary_size", "encoder_layers", "decoder_layers", "model_dim"]
    optional = ("target_vocabulary_size", "max_length", "key_dim")
    sizes += [name for name in optional if options[name] is not None]
    for name in sizes:
        arguments.positive_integer(name, options[name])
    smallest = min(options[n] for n in sizes if n.endswith("vocabulary_size"))
    for name in ("start_id", "end_id", "pad_id"):
        if not 0 <= options[name] < smallest:
            raise ValueError(
                f"`{name}` must be in [0, {smallest}), the vocabulary. "
                f"Received: {name}={options[name]!r}."
            )


def _cross_options(options):
    given = options["attention"] or {}
    return {name: given[name] for name in given if name != "sliding_window"}


class _Stacks:
    """The layers of the model and what they compute.

    Apart from the model, since the torch backend lets a `keras.Model` own no layer
    before its functional graph, and so these computations, exist.
    """

    def __init__(self, options, dtype):
        _check_options(options)
        self.options = options
        self.pad_id = options["pad_id"]
        source_size = options["source_vocabulary_size"]
        target_size = options["target_vocabulary_size"]
        tied = options["tie_embeddings"]
        self.source_embedding = self._embedding("source_embedding", source_size, dtype)
        self.target_embedding = self.source_embedding
        if target_size is not None or not tied:
            self.target_embedding = self._embedding(
                "target_embedding", target_size or source_size, dtype
            )
        self.output_dense = None
        if not tied:
            self.output_dense = keras.layers.Dense(
                target_size or source_size, use_bias=False, name="output", dtype=dtype
            )
        self.encoder_blocks = self._blocks(EncoderBlock, "encoder", dtype)
        self.decoder_blocks = self._blocks(
            DecoderBlock, "decoder", dtype, cross_attention=_cross_options(options)
        )
        self.encoder_norm = self._final_norm("encoder_norm", dtype)
        self.decoder_norm = self._final_norm("decoder_norm", dtype)

    def _embedding(self, name, vocabulary_size, dtype):
        return PositionalEmbedding(
            vocabulary_size,
            self.options["model_dim"],
            positions=self.options["positions"],
            max_length=self.options["max_length"],
            dropout=self.options["dropout"],
            mask_zero=self.pad_id == 0,
            name=name,
            dtype=dtype,
        )

    def _blocks(self, block, name, dtype, **more):
        options = {option: self.options[option] for option in _BLOCK_OPTIONS} | more
        return [
            block(**options, name=f"{name}_{i}", dtype=dtype)
            for i in range(self.options[f"{name}_layers"])
        ]

    def _final_norm(self, name, dtype):
        """Makes the norm after a stack, which post-norm blocks have in them."""
        if not self.options["normalize_first"]:
            return None
        return make_norm(self.options["norm"], name=name, dtype=dtype)

    def encode(self, source_ids):
        mask = padding_mask(source_ids, self.pad_id)
        hidden = self.source_embedding(source_ids)
        for block in self.encoder_blocks:
            hidden = block(hidden, mask=mask)
        if self.encoder_norm is not None:
            hidden = self.encoder_norm(hidden)
        return {"hidden": hidden, "mask": mask}

    def decode(self, target_ids, memory, return_attention_scores=False):
        """Gives the logits, and the weights of each block where asked for."""
        mask = padding_mask(target_ids, self.pad_id)
        x = self.target_embedding(target_ids)
        scores = []
        for block in self.decoder_blocks:
            x = block(
                x,
                memory["hidden"],
                target_mask=mask,
                source_mask=memory["mask"],
                return_attention_scores=return_attention_scores,
            )
            if return_attention_scores:
                x, *block_scores = x
                scores.append(block_scores)
        return self._logits(x), scores

    def _logits(self, x):
        if self.decoder_norm is not None:
            x = self.decoder_norm(x)
        if self.output_dense is not None:
            return self.output_dense(x)
        return self.target_embedding.logits(x)

    def initial_state(self, memory, max_length, width):
        batch_size = ops.shape(memory["hidden"])[0]
        beam, sentence = {}, {"mask": memory["mask"]}
        for block in self.decoder_blocks:
            beam[block.name] = block.initial_cache(batch_size, width, max_length)
            sentence[block.name] = block.project_memory(memory["hidden"])
        return {"beam": beam, "sentence": sentence}

    def step(self, token_ids, state, index):
        x = self.target_embedding(ops.reshape(token_ids, (-1, 1)), start=index)
        x = ops.reshape(x, (*token_ids.shape, x.shape[-1]))  # (B, W, D)
        beam, sentence = dict(state["beam"]), state["sentence"]
        for block in self.decoder_blocks:
            x, beam[block.name] = block.step(
                x, beam[block.name], index, sentence[block.name], sentence["mask"]
            )
        logits = ops.cast(self._logits(x), "float32")
        return logits, {"beam": beam, "sentence": sentence}
