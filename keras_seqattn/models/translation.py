"""What the translation models have in common, whatever their encoder and decoder.

Shapes: B batch, W beams, S source length, T target length, D model_dim, V vocabulary, E
width of the memory (D, or 2 D of a recurrent encoder), H heads.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments, decoding
from keras_seqattn.annotations import AttentionKind, State, Tensor, TokenIds
from keras_seqattn.decoding import Hypotheses
from keras_seqattn.decoding.methods import Search
from keras_seqattn.layers import PositionalEmbedding
from keras_seqattn.layers.shapes import check_batch, check_not_empty, check_rank
from keras_seqattn.models.config import Config
from keras_seqattn.models.inputs import (
    check_sizes,
    id_tensor,
    memory_of,
    state_of,
)
from keras_seqattn.models.stacks import Configured, Logits


class TranslationModel(Configured, keras.Model):
    """A functional model of token ids that follows the decoding protocol.

    {"source_ids": (B, S), "target_ids": (B, T)} -> logits (B, T, V), which `stacks`
    computes. `attention_kinds` lists the kinds that `attention_scores` can return.
    """

    attention_kinds: tuple[str, ...] = ("cross", "encoder", "decoder")
    source_vocabulary_size: int
    target_vocabulary_size: int
    max_length: int | None
    start_id: int
    end_id: int
    pad_id: int

    def __init__(
        self, stacks: "TranslationStacks", config: Config, **kwargs: Any
    ) -> None:
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        memory, _ = stacks.encode(source_ids)
        logits, _ = stacks.decode(target_ids, memory)
        super().__init__(
            {"source_ids": source_ids, "target_ids": target_ids}, logits, **kwargs
        )
        self.configure(config, kwargs.get("dtype"))
        self._stacks = stacks
        self.source_vocabulary_size = stacks.source_embedding.vocabulary_size
        self.target_vocabulary_size = stacks.target_embedding.vocabulary_size
        for name in ("max_length", "start_id", "end_id", "pad_id"):
            setattr(self, name, getattr(config, name))

    def encode(self, source_ids: TokenIds) -> State:
        """Encodes source sentences, once for all decoding steps.

        Args:
            source_ids: Int32 tensor `(B, S)`.

        Returns:
            The memory, a dict: "hidden", a float tensor `(B, S, E)`; "mask", a bool
            tensor `(B, S)`, True = a real token; and anything else that the decoder
            starts from.
        """
        source_ids = id_tensor("source_ids", source_ids, self.pad_id)
        memory, _ = self._stacks.encode(source_ids)
        return memory

    def initial_state(
        self, memory: State, max_length: int, width: int = 1, coverage: bool = False
    ) -> State:
        """Makes the state before the first decoding step.

        Args:
            memory: What `encode` returned.
            max_length: Number of steps the state has capacity for.
            width: Number of beams W per sentence.
            coverage: Whether the steps sum the attention that each source position
                gets, as the mean over layers and heads, in
                `state["beam"]["coverage"]`, float32 `(B, W, S)`.

        Returns:
            A dict: "beam" is the state of each beam, `(B, W, ...)`, reordered when
            beams change places; "sentence" is never reordered, `(B, ...)`: the
            projected memory, shared by a sentence's beams, and the caches; "shared" is
            the same for all sentences.
        """
        check_sizes(max_length, width, coverage)
        memory = memory_of(memory)
        state = self._stacks.initial_state(memory, max_length, width)
        if coverage:
            batch_size, length = ops.shape(memory["mask"])
            shape = (batch_size, width, length)
            state["beam"]["coverage"] = ops.zeros(shape, "float32")
        return state

    def grow_state(self, state: State, max_length: int, index: int | Tensor) -> State:
        """Grows the capacity of a state for more steps.

        Args:
            state: What `initial_state` or `step` returned.
            max_length: Number of steps the new state has capacity for, no fewer than
                the old one.
            index: Number of steps taken, an integer or a scalar int32 tensor.

        Returns:
            A state like that of `initial_state`.
        """
        check_sizes(max_length)
        state, index = state_of(state, index)
        return self._stacks.grow_state(state, max_length, index)

    def step(
        self,
        token_ids: TokenIds,
        state: State,
        index: int | Tensor,
        start: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Decodes one position; equals row `index` of the full pass.

        Args:
            token_ids: Int32 tensor `(B, W)`, each beam's last token.
            state: What `initial_state` or the step before returned.
            index: The step, a scalar int32 tensor; 0 for the start token.
            start: Int32 tensor `(B,)`, the step at which each sentence began, no more
                steps ago than the state has capacity for; earlier steps are masked.
                None: 0 for all.

        Returns:
            Float32 logits `(B, W, V)` of the next token, and the new state.
        """
        token_ids = id_tensor("token_ids", token_ids, self.pad_id)
        check_not_empty("token_ids", token_ids)
        state, index = state_of(state, index)
        if start is not None:
            start = ops.convert_to_tensor(arguments.tensor("start", start))
            check_rank("start", start, "(batch,)")
            check_batch(token_ids=token_ids, start=start)
            start = ops.cast(start, "int32")
        return self._stacks.step(token_ids, state, index, start)

    def generate(
        self,
        source_ids: TokenIds,
        search: Search | None = None,
        max_length: int | None = None,
        prefix: TokenIds | None = None,
        constraints: Sequence[Sequence[Any]] | None = None,
    ) -> Hypotheses:
        """Translates token ids, by `keras_seqattn.decoding.generate`.

        Args:
            source_ids: Int array `(B, S)`, padded, or a list of lists of integers; each
                row ends with `end_id`, as in training.
            search: The search; `Greedy()` when None.
            max_length: Most tokens to generate, end included; when None, twice the
                tokens of each sentence plus 10, or fewer if the model takes fewer.
            prefix: Int array `(B, P)` of forced first tokens, padded, or a list of B
                lists of integers, or None.
            constraints: List of B lists of phrases that each translation must contain,
                as in `keras_seqattn.decoding.generate`, or None.

        Returns:
            The `Hypotheses`, in the order of `source_ids`.

        Raises:
            ValueError: As `keras_seqattn.decoding.generate` does.
        """
        return decoding.generate(
            self, source_ids, search, max_length, prefix, constraints
        )

    def attention_scores(
        self, source_ids: TokenIds, target_ids: TokenIds, kind: AttentionKind = "cross"
    ) -> Tensor:
        """Computes the attention weights of every layer and head.

        Args:
            source_ids: Int32 tensor `(B, S)`.
            target_ids: Int32 tensor `(B, T)`, as in training: start, then tokens.
            kind: "cross": of target positions on source positions; "encoder": of source
                positions on each other; "decoder": of target positions on earlier ones
                and themselves.

        Returns:
            Float32 tensor `(B, layers, H, T, S)`, or with the two lengths that `kind`
            has; for target positions, row t belongs to the prediction of token t + 1.

        Raises:
            ValueError: If the model has no attention of that kind.
        """
        arguments.choice("kind", kind, self.attention_kinds)
        source_ids = id_tensor("source_ids", source_ids, self.pad_id)
        target_ids = id_tensor("target_ids", target_ids, self.pad_id)
        check_batch(source_ids=source_ids, target_ids=target_ids)
        memory, scores = self._stacks.encode(source_ids, return_attention_scores=True)
        _, decoder_scores = self._stacks.decode(
            target_ids, memory, return_attention_scores=True
        )
        scores = {**scores, **decoder_scores}
        return ops.cast(ops.stack(scores[kind], axis=1), "float32")

    def score(self, source_ids: TokenIds, target_ids: TokenIds) -> np.ndarray:
        """Computes the log-probability of given target sentences.

        Args:
            source_ids: Int array `(B, S)`, padded.
            target_ids: Int array `(B, T)`, without start token, with end token, padded.

        Returns:
            Float32 array `(B,)`: the sum over the real tokens, in nats.
        """
        return decoding.scored(self, source_ids, target_ids)


class TranslationStacks:
    """The layers of a translation model; this class makes its embeddings and output.

    They are not in the model itself: on the torch backend a `keras.Model` cannot own a
    layer before its functional graph exists, and the graph needs these layers.

    A subclass adds `encode`, `decode`, `initial_state`, `grow_state` and `step`. Its
    `encode` returns the memory, and its `decode` the logits. Both also return a dict of
    lists of each layer's attention weights, which are empty unless requested.

    `embedding` holds arguments of both `PositionalEmbedding`s. `logits` computes the
    logits `(..., V)` of vectors `(..., D)`.
    """

    def __init__(self, config: Config, dtype: Any, **embedding: Any) -> None:
        self.pad_id: int = config.pad_id
        source_size = config.source_vocabulary_size
        target_size = config.target_vocabulary_size
        is_shared = target_size is None and config.tie_embeddings
        embedding |= {
            "model_dim": config.model_dim,
            "zero_id": config.zero_id,
            "dtype": dtype,
        }
        # A source embedding of its own computes no logits, and so has no bias of them.
        own = embedding if is_shared else {**embedding, "logits_bias": False}
        self.source_embedding: PositionalEmbedding = PositionalEmbedding(
            source_size, name="source_embedding", **own
        )
        self.target_embedding: PositionalEmbedding = self.source_embedding
        if not is_shared:
            self.target_embedding = PositionalEmbedding(
                target_size or source_size, name="target_embedding", **embedding
            )
        self.logits: Logits = Logits(self.target_embedding, config, dtype)

    def finish_step(self, x: Any, scores: list[Any], state: State) -> tuple[Any, State]:
        """Returns the logits of vectors `(B, W, D)`, and the state with its coverage.

        `scores` are each layer's `(B, H, W, S)`, if there is a coverage.
        """
        beam = state["beam"]
        if "coverage" in beam:
            layers = ops.cast(ops.stack(scores, axis=1), "float32")
            coverage = beam["coverage"] + ops.mean(layers, axis=(1, 2))  # (B, W, S)
            state = {**state, "beam": {**beam, "coverage": coverage}}
        return ops.cast(self.logits(x, state["shared"]), "float32"), state
