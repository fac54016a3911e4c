"""The computations of a decoder-only model: on whole texts, segments and single steps.

Shapes: B batch, W beams, P prompt length, T length, M memory_length, D model_dim, V
vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import State, Tensor
from keras_seqattn.layers import DecoderBlock, SegmentMemory, padding_mask
from keras_seqattn.layers.attention.kv_cache import initial_ancestry, mark_ancestry
from keras_seqattn.layers.dropout import if_known
from keras_seqattn.layers.recurrent.segment_memory import next_memory
from keras_seqattn.models import stacks
from keras_seqattn.models.config import (
    POSITIONS_IN_ATTENTION,
    TransformerConfig,
    option,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(TransformerConfig):
    """The options of `LanguageModel`."""

    vocabulary_size: int = option(arguments.positive_integer)
    num_layers: int = option(arguments.positive_integer, 3)
    positions: Any = "rotary"
    start_id: int = 1
    end_id: int = 2
    memory_length: int = option(functools.partial(arguments.integer, least=0), 0)

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        if self.memory_length and self.embedding_positions is not None:
            raise ValueError(
                f"`positions` must be one of {POSITIONS_IN_ATTENTION} or None with "
                "a memory: those of an embedding start each segment at 0. "
                f"Received: positions={self.positions!r}, "
                f"memory_length={self.memory_length}."
            )


class Decoder:
    """The layers of a language model and their computations.

    They are not in the model itself: on the torch backend a `keras.Model` cannot own a
    layer before its functional graph exists, and the graph needs these layers. The
    docstrings of `LanguageModel` say what the methods take and return.
    """

    def __init__(self, config: LanguageConfig, dtype: Any) -> None:
        self.config, self.dtype = config, dtype
        self.embedding = stacks.make_embedding(config, dtype)
        self.stack = stacks.make_stack(
            DecoderBlock, "decoder", config.num_layers, config, dtype
        )
        self._project = stacks.Logits(self.embedding, config, dtype)

    def logits(self, token_ids: Tensor) -> Tensor:
        """Returns the logits of whole texts."""
        mask = padding_mask(token_ids, self.config.pad_id)
        return self._project(self.stack(self.embedding(token_ids), mask=mask))

    def logits_after(
        self,
        token_ids: Tensor,
        recall: Callable[..., tuple[Tensor, Tensor]],
        training: bool | None = None,
    ) -> Tensor:
        """Returns the logits `(B, T, V)` of segments of texts `(B, T)`.

        `recall` takes the name of a depth, the input of the block there `(B, T, D)` and
        that input's mask. It returns the memory of the block `(B, M, D)` and its mask,
        and may remember that input for the next segment.
        """
        mask = padding_mask(token_ids, self.config.pad_id)
        x = self.embedding(token_ids, **if_known(training))
        for name, block in zip(self._depths(), self.stack.blocks, strict=True):
            past, past_mask = recall(name, x, mask)
            masks = {"target_mask": mask, "past_mask": past_mask}
            x = block(x, past=past, **masks, **if_known(training))
        return self._project(self.stack.finish(x))

    def _depths(self):
        """Returns a name for each depth, since one block may serve several depths."""
        return [f"decoder_{depth}" for depth in range(len(self.stack.blocks))]

    def initial_memory(self, batch_size: int) -> State:
        """Returns an empty memory."""
        shape = (batch_size, self.config.memory_length)
        vectors = ops.zeros(
            (*shape, self.config.model_dim), self.embedding.compute_dtype
        )
        hidden = dict.fromkeys(self._depths(), vectors)
        return {"hidden": hidden, "mask": ops.zeros(shape, "bool")}

    def segment(
        self, token_ids: Tensor, memory: State, training: bool | None
    ) -> tuple[Tensor, State]:
        """Computes the logits `(B, T, V)` of a segment, and the memory after it."""
        held, hidden = memory["hidden"], {}

        def recall(name, x, mask):
            hidden[name] = next_memory(held[name], x)
            return ops.stop_gradient(held[name]), memory["mask"]

        logits = self.logits_after(token_ids, recall, training)
        mask = padding_mask(token_ids, self.config.pad_id)
        return logits, {"hidden": hidden, "mask": next_memory(memory["mask"], mask)}

    def memories(self, batch_size: int) -> dict[str, SegmentMemory]:
        """Returns a `SegmentMemory` for each depth."""
        length = self.config.memory_length
        return {
            name: SegmentMemory(
                length, batch_size, name=f"{name}_memory", dtype=self.dtype
            )
            for name in self._depths()
        }

    def embed_prompts(self, prompt_ids: Tensor) -> State:
        """Embeds prompts, and moves each to the end of its row."""
        mask = padding_mask(prompt_ids, self.config.pad_id)
        length = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)  # (B, 1)
        size = prompt_ids.shape[1]
        # For each column the one that moves there; below 0 there is padding.
        origin = ops.arange(size, dtype="int32")[None] - (size - length)  # (B, P)
        hidden = self.embedding(prompt_ids)
        moved = ops.take_along_axis(hidden, ops.maximum(origin, 0)[..., None], axis=1)
        return {"hidden": moved, "mask": origin >= 0}

    def initial_state(self, memory: State, max_length: int, width: int) -> State:
        """Reads the prompts, and returns the state before the first step."""
        x, mask = memory["hidden"], memory["mask"]
        batch_size, length = ops.shape(mask)[0], mask.shape[1]
        caches = []
        # The first step overwrites the prompt's last column, hence - 1.
        capacity = length - 1 + max_length
        last = x[:, -1]  # (B, D), which the first step reads in place of a token
        for block in self.stack.blocks:
            cache = block.initial_cache(batch_size, width, capacity)
            x, cache = block.prefill(x, cache, width, target_mask=mask)
            caches.append(cache)
        generated = ops.ones((batch_size, max_length - 1), "bool")
        sentence = {
            "last": last,
            "length": ops.sum(ops.cast(mask, "int32"), axis=1),
            "prompt_mask": mask,
            # (B, P + max_length - 1), as the caches
            "mask": ops.concatenate([mask, generated], axis=1),
            "caches": caches,
        }
        beam = {"ancestry": initial_ancestry(batch_size, width, capacity)}
        shared = self._project.shared()
        return {"beam": beam, "sentence": sentence, "shared": shared}

    def step(
        self, token_ids: Tensor, state: State, index: int | Tensor
    ) -> tuple[Tensor, State]:
        """Computes the logits `(B, W, V)` after each beam's token, and the state."""
        sentence = state["sentence"]
        x = self._embed_step(token_ids, sentence, index)
        column = index + sentence["prompt_mask"].shape[1] - 1
        # The prompt's last token belongs to the prompt's segment, and sees all of it.
        remembered = ops.logical_or(index == 0, self._mark_remembered(sentence, column))
        mask = ops.logical_and(sentence["mask"], remembered)
        ancestry = mark_ancestry(state["beam"]["ancestry"], column)
        x, caches = self.stack.step(
            x, sentence["caches"], column, mask=mask, ancestry=ancestry
        )
        logits = ops.cast(self._project(x, state["shared"]), "float32")
        sentence = {**sentence, "caches": caches}
        return logits, {**state, "beam": {"ancestry": ancestry}, "sentence": sentence}

    def _embed_step(self, token_ids, sentence, index):
        """Embeds each beam's token at its position in its own text."""
        position = sentence["length"] - 1 + index
        if self.config.max_length is not None:
            # A text that has ended stays at the last position while others go on.
            position = ops.minimum(position, self.config.max_length - 1)
        x = self.embedding.step(token_ids, position)
        # A search begins with `start_id`, but a text continues its prompt's last token.
        return ops.where(index == 0, sentence["last"][:, None], x)

    def _mark_remembered(self, sentence, column):
        """Marks the columns at most M before `column`; all if there is no memory."""
        length = self.config.memory_length
        columns = ops.arange(sentence["mask"].shape[1], dtype="int32")[None]  # (1, L)
        return columns >= (column - length if length else 0)
