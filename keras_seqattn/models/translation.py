"""What models that translate have in common, whatever lies between their embeddings.

Shapes: B batch, W beams, S source length, T target length, D model_dim, V vocabulary.
"""

import keras
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.layers import PositionalEmbedding
from keras_seqattn.models.stacks import Configured, check_options, make_logits


class TranslationModel(Configured, keras.Model):
    """A functional model of token ids that has the decoding protocol.

    {"source_ids": (B, S), "target_ids": (B, T)} -> logits (B, T, V).

    Args:
        stacks: The `TranslationStacks` that compute.
        options: Dict of the constructor's arguments.
        **kwargs: `name`, `dtype`.
    """

    def __init__(self, stacks, options, **kwargs):
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        logits, _ = stacks.decode(target_ids, stacks.encode(source_ids))
        super().__init__(
            {"source_ids": source_ids, "target_ids": target_ids}, logits, **kwargs
        )
        self.configure(options, kwargs.get("dtype"))
        self._stacks = stacks
        self.source_vocabulary_size = stacks.source_embedding.vocabulary_size
        self.target_vocabulary_size = stacks.target_embedding.vocabulary_size
        for name in ("max_length", "start_id", "end_id", "pad_id"):
            setattr(self, name, options[name])

    def encode(self, source_ids):
        """Encodes source sentences, once for all decoding steps.

        Args:
            source_ids: Int32 tensor `(B, S)`.

        Returns:
            The memory, a dict: "hidden", a float tensor `(B, S, E)`, "mask", a bool
            tensor `(B, S)`, True = a real token, and what else the decoder begins with.
        """
        return self._stacks.encode(source_ids)

    def initial_state(self, memory, max_length, width=1):
        """Makes the state before the first decoding step.

        Args:
            memory: What `encode` gave.
            max_length: Number of steps the state has room for.
            width: Number of beams W a sentence.

        Returns:
            {"beam": what each beam has of its own `(B, W, ...)`, "sentence": the
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
        return ops.cast(ops.stack(scores, axis=1), "float32")


class TranslationStacks:
    """The layers of a translation model: here its embeddings and its output.

    Apart from the model, since the torch backend lets a `keras.Model` own no layer
    before its functional graph, and so these computations, exist. A subclass adds
    `encode`, `decode`, `initial_state` and `step`; its `decode` gives the logits and
    the list of each layer's cross-attention weights, empty where not asked for. What
    gives the logits `(..., V)` of vectors `(..., D)` is `logits`.

    Args:
        options: Dict of the model's constructor arguments.
        dtype: Dtype policy of all layers.
        **embedding: Arguments of both `PositionalEmbedding`s.
    """

    def __init__(self, options, dtype, **embedding):
        check_options(options)
        self.options, self.dtype = options, dtype
        self.pad_id = options["pad_id"]
        source_size = options["source_vocabulary_size"]
        target_size = options["target_vocabulary_size"]
        self.source_embedding = self._embedding("source", source_size, embedding)
        self.target_embedding = self.source_embedding
        if target_size is not None or not options["tie_embeddings"]:
            self.target_embedding = self._embedding(
                "target", target_size or source_size, embedding
            )
        self.logits = make_logits(self.target_embedding, options, dtype)

    def _embedding(self, side, vocabulary_size, options):
        return PositionalEmbedding(
            vocabulary_size,
            self.options["model_dim"],
            dropout=self.options["dropout"],
            name=f"{side}_embedding",
            dtype=self.dtype,
            **options,
        )
