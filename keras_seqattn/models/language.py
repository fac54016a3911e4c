"""The decoder-only language model, segment-recurrent if it has a memory.

Shapes: B batch, W beams, P prompt length, T length, M memory_length, D model_dim, V
vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments, decoding
from keras_seqattn.annotations import State, Tensor, TokenIds
from keras_seqattn.decoding import Hypotheses
from keras_seqattn.decoding.ids import check_prompts, checked_ids
from keras_seqattn.decoding.methods import Search
from keras_seqattn.layers.norms import EPSILON
from keras_seqattn.layers.shapes import check_not_empty
from keras_seqattn.models import stacks
from keras_seqattn.models.decoder import Decoder, LanguageConfig
from keras_seqattn.models.inputs import (
    check_sizes,
    id_tensor,
    memory_of,
    state_of,
)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class LanguageModel(stacks.Configured, keras.Model):
    """Computes the logits of the next token of a text, from the text so far.

    A functional model: token ids (B, T) -> logits (B, T, V). Padding is masked
    automatically; position i attends only to positions j <= i. `generate` continues
    prompts.

    With `memory_length` M it is segment-recurrent: `segment` reads a long text segment
    by segment. Each block also attends to the last M vectors that entered it before the
    segment; no gradient flows through these. A call of the model itself treats its
    input as a text's first segment, with an empty memory. `recurrent` makes a model of
    the same weights, to `fit` on texts that continue from batch to batch.
    Shapes: B batch, W beams, P prompt length, T length, M memory_length, D model_dim,
    V vocabulary.

    Args:
        vocabulary_size: Number of token ids V.
        model_dim: Width D of the vectors between blocks.
        num_heads: Number of attention heads per block.
        num_layers: Number of blocks.
        intermediate_dim: Width of the feed-forwards' hidden layers.
        dropout: Fraction dropped of embeddings and of each sublayer's output, while
            training.
        positions: "rotary", "alibi" or "relative", inside attention; "sinusoidal" or
            "learned" (takes `max_length`), added to the embedding; a layer, which has
            the methods `rotate` and `bias` if it works inside attention; or None.
        tie_embeddings: Whether the embedding's table also computes the logits.
        key_dim: Width of a head; `model_dim` / `num_heads` when None.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forwards.
        gated: Whether the feed-forwards are gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True), with a norm after the stack, or post-norm.
        attention: A dict of further `MultiHeadAttention` arguments.
        max_length: Most tokens of a text, prompt and continuation together, in
            `generate`, and the number of learned positions, which require it. None: no
            limit. Without learned positions a call takes longer texts.
        start_id: The id a text starts with; never generated.
        end_id: The id a text ends with.
        pad_id: The id that fills a batch, other than `end_id`.
        activation_dropout: Fraction of the feed-forwards' hidden layers dropped while
            training.
        stochastic_depth: Fraction of the samples that skip a sublayer of the last block
            while training; block i of N, counted from 1, has i / N of it.
        share_layers: Whether one block's weights are used at every depth;
            `stochastic_depth` is then the same at every depth.
        memory_length: Number of vectors M that each block remembers of earlier
            segments; 0 for no memory.
        epsilon: Number added to the variance of each norm, positive; 1e-5 by default.
            The norms of `qk_norm` have 1e-6.
        use_bias: Whether the projections of attentions and feed-forwards have biases.
        embedding_scale: Factor of the embedding's vectors; sqrt(`model_dim`) when None.
        embedding_norm: Whether a norm follows the embedding.
        logits_bias: Whether the logits have a bias.
        base_dim: Width at which the learning rate was tuned, to be used at `model_dim`
            by the muP rules; see `learning_rate_factors`. None: muP is off.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: Int32 tensor `(B, T)`, padded at the end.

    Returns:
        Float tensor `(B, T, V)`: logits in the compute dtype.

    Raises:
        ValueError: If a size is not positive, `num_heads` does not divide `model_dim`
            and `key_dim` is None, positions are rotary (the default) and the score is
            additive, a model with a memory adds positions to the embedding, since these
            start each segment at 0, or another option is out of range.

    Example:
        >>> import numpy as np
        >>> model = LanguageModel(50, model_dim=16, intermediate_dim=32)
        >>> prompts = np.array([[1, 7, 5], [1, 4, 0]])
        >>> tuple(model(prompts).shape), model.generate(prompts).token_ids.shape
        ((2, 3, 50), (2, 1, 16))

    Reference:
        Radford et al. 2019, section 2.3; memory: Dai et al. 2019, section 3.2. Differs:
        rotary positions (Su et al. 2021), ReLU, embeddings times sqrt(`model_dim`), and
        no dropout of attention weights by default; kernels before a residual are not
        made smaller for deep models; in place of the positions of Dai et al., any that
        depend on the distance from query to key.
    """

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int = 256,
        num_heads: int = 4,
        num_layers: int = 3,
        intermediate_dim: int = 1024,
        dropout: float = 0.1,
        positions: str | keras.layers.Layer | None = "rotary",
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
        memory_length: int = 0,
        epsilon: float = EPSILON,
        use_bias: bool = True,
        embedding_scale: float | None = None,
        embedding_norm: bool = False,
        logits_bias: bool = False,
        base_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        stacks.check_names(LanguageModel, kwargs)
        config = LanguageConfig.of(locals())
        decoder = Decoder(config, kwargs.get("dtype"))
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        super().__init__(token_ids, decoder.logits(token_ids), **kwargs)
        self.configure(config, kwargs.get("dtype"))
        self._decoder = decoder
        # `source_vocabulary_size` is the name by which searches check ids.
        self.vocabulary_size = self.source_vocabulary_size = config.vocabulary_size
        self.max_length, self.memory_length = config.max_length, config.memory_length
        self.start_id, self.end_id = config.start_id, config.end_id
        self.pad_id = config.pad_id

    def generate(
        self,
        prompt_ids: TokenIds,
        search: Search | None = None,
        max_length: int | None = None,
        constraints: Sequence[Sequence[Any]] | None = None,
    ) -> Hypotheses:
        """Continues prompts, each from its own end.

        A prompt should begin with `start_id` if the texts of the training did. It is
        read in one pass, and each generated token in one step. With a memory, a
        generated token attends to the M tokens before it, as a segment of one token
        does.

        A program searches at most 64 prompts at once, with 131,072 tokens of prompts
        and possible continuations, whatever the model's size. Each takes memory for the
        keys and values of all layers; on a CPU, TensorFlow and JAX run a program on
        each core. For a large model, pass fewer prompts at a time.

        Args:
            prompt_ids: Int array `(B, P)`, each row padded at its end, or a list of
                lists of integers.
            search: The search; `Greedy()` when None.
            max_length: Most tokens to generate, end included; when None, twice the
                tokens of each prompt plus 10, or fewer if the model takes fewer.
            constraints: List of B lists of phrases that each continuation must contain,
                as in `keras_seqattn.decoding.generate`, or None.

        Returns:
            The `Hypotheses` of the continuations, without the prompts.

        Raises:
            ValueError: If `prompt_ids` is not an integer array of rank 2, or holds an
                id outside the vocabulary, padding before a token, or a row without
                tokens; if prompt and continuation are longer than the model's
                `max_length`; or if `constraints` do not fit.
        """
        prompt_ids = self._checked_prompts(prompt_ids)
        return decoding.generate(
            self, prompt_ids, search, max_length, constraints=constraints
        )

    def _checked_prompts(self, prompt_ids):
        prompt_ids = checked_ids(
            "prompt_ids", prompt_ids, self.vocabulary_size, self.pad_id
        )
        limit = self.most_generated(prompt_ids.shape[1])
        if limit is not None and limit < 1:
            raise ValueError(
                f"`prompt_ids` must be shorter than {self.max_length}, the model's "
                f"`max_length`. Received: prompt_ids of length {prompt_ids.shape[1]}."
            )
        check_prompts("prompt_ids", prompt_ids, self.pad_id)
        return prompt_ids

    def most_generated(self, prompt_length: int) -> int | None:
        """Returns how many tokens the model can generate after a prompt.

        Args:
            prompt_length: Length P of the prompt, an integer.

        Returns:
            An integer, or None for no limit.
        """
        arguments.integer("prompt_length", prompt_length, 0)
        return None if self.max_length is None else self.max_length - prompt_length

    def encode(self, prompt_ids: TokenIds) -> State:
        """Embeds prompts, and moves each to the end of its row.

        So the last tokens of all prompts share a column, and a step is at the same
        column for all: attention depends only on the distance between tokens.

        Args:
            prompt_ids: Int32 tensor `(B, P)`, padded at the end.

        Returns:
            The memory: "hidden", a float tensor `(B, P, D)`, and "mask", a bool tensor
            `(B, P)`, True = a real token.
        """
        prompt_ids = id_tensor("prompt_ids", prompt_ids, self.pad_id)
        return self._decoder.embed_prompts(prompt_ids)

    def initial_state(self, memory: State, max_length: int, width: int = 1) -> State:
        """Reads the prompts in one pass.

        Args:
            memory: What `encode` returned.
            max_length: Number of steps the caches have capacity for.
            width: Number of beams W per prompt.

        Returns:
            A dict: "beam" says where each beam's history stands in the caches,
            `(B, W, ...)`; "sentence" holds the caches, and each prompt's last vector,
            mask and length, `(B, ...)`; "shared" is the same for all prompts.
        """
        check_sizes(max_length, width)
        return self._decoder.initial_state(memory_of(memory), max_length, width)

    def step(
        self, token_ids: TokenIds, state: State, index: int | Tensor
    ) -> tuple[Tensor, State]:
        """Decodes one position; equals row P - 1 + `index` of the full pass.

        Args:
            token_ids: Int32 tensor `(B, W)`, the token at `index` of each beam; at
                index 0 the prompt's last token is used instead.
            state: What `initial_state` or the step before returned.
            index: Number of tokens generated so far, a scalar int32 tensor.

        Returns:
            Float32 logits `(B, W, V)` of the next token, and the new state.
        """
        token_ids = id_tensor("token_ids", token_ids, self.pad_id)
        check_not_empty("token_ids", token_ids)
        return self._decoder.step(token_ids, *state_of(state, index))

    def initial_memory(self, batch_size: int) -> State:
        """Makes the empty memory of `segment`.

        Args:
            batch_size: Number of texts B.

        Returns:
            A dict: "hidden", a dict of float tensors `(B, M, D)` by depth, and "mask",
            a bool tensor `(B, M)`, all False.

        Raises:
            ValueError: If the model has no memory.
        """
        self._check_memory("initial_memory")
        arguments.index("batch_size", batch_size, 1)
        return self._decoder.initial_memory(batch_size)

    def segment(
        self,
        token_ids: TokenIds,
        memory: State | None = None,
        training: bool | None = None,
    ) -> tuple[Tensor, State]:
        """Reads the next segment of each text, which continues what the memory holds.

        A pure function of its arguments and the weights: no state is kept.

        Args:
            token_ids: Int32 tensor `(B, T)`; padding stands at the end of a text.
            memory: What `initial_memory` or the call before returned; None: empty.
            training: Whether to apply dropout.

        Returns:
            Logits `(B, T, V)`, and the memory for the next segment, through which no
            gradient passes.

        Raises:
            ValueError: If the model has no memory.
        """
        self._check_memory("segment")
        arguments.check_flag("training", training, optional=True)
        token_ids = id_tensor("token_ids", token_ids, self.pad_id)
        if memory is None:
            memory = self._decoder.initial_memory(ops.shape(token_ids)[0])
        memory = memory_of(memory, "initial_memory")
        return self._decoder.segment(token_ids, memory, training)

    def recurrent(self, batch_size: int) -> keras.Model:
        """Makes a model that carries its memory from batch to batch, for `fit`.

        It shares this model's weights. Row b of a batch continues where row b of the
        previous batch ended, so `fit` needs `shuffle=False`. A row whose first token is
        `start_id` begins a new text. To make all rows do so, call `reset` of each
        `SegmentMemory` among the `layers` of the model returned. Validation batches
        need a separate model, made by another call.

        Args:
            batch_size: Number of rows B of every batch.

        Returns:
            A functional `keras.Model`: token ids `(B, T)` -> logits `(B, T, V)`.

        Raises:
            ValueError: If the model has no memory, or `batch_size` is not a positive
                integer.

        Example:
            >>> import numpy as np
            >>> from keras import ops
            >>> model = LanguageModel(9, model_dim=8, intermediate_dim=8,
            ...                       memory_length=4)
            >>> reader = model.recurrent(batch_size=1)
            >>> first, second = (reader(np.array([[3, 5]])) for _ in range(2))
            >>> bool(ops.all(ops.isclose(first, second)))
            False
        """
        self._check_memory("recurrent")
        arguments.positive_integer("batch_size", batch_size)
        memories = self._decoder.memories(batch_size)
        token_ids = keras.Input(
            (None,), batch_size=batch_size, dtype="int32", name="token_ids"
        )
        restart = ops.equal(token_ids[:, 0], self.start_id)

        def recall(name, x, mask):
            return memories[name](x, mask=mask, restart=restart)

        logits = self._decoder.logits_after(token_ids, recall)
        model = keras.Model(token_ids, logits, name=f"recurrent_{self.name}")
        model.dtype_policy = self.dtype_policy  # `compile` scales the loss by it
        return model

    def _check_memory(self, method):
        if self.memory_length == 0:
            raise ValueError(
                f"`memory_length` must be positive for `{method}`. "
                f"Received: memory_length={self.memory_length!r}."
            )
