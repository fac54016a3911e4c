"""The recurrent decoder that attends to a source with additive scores.

Shapes: B batch, T target length, S source length, W beams, N layers, D width of the
target, E width of the source, U units, A width of the attention's projections.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Cell, Shape, Tensor
from keras_seqattn.backend.parts import track_list
from keras_seqattn.layers.attention import additive
from keras_seqattn.layers.attention.masks import bool_mask, checked_mask, input_masks
from keras_seqattn.layers.dropout import if_known
from keras_seqattn.layers.recurrent.stack import RecurrentStack
from keras_seqattn.layers.shapes import (
    BEAMS,
    check_batch,
    check_built,
    check_kept,
    check_not_empty,
    check_rank,
    check_tensor,
    check_width,
)
from keras_seqattn.layers.weights.frozen import keep_frozen
from keras_seqattn.layers.weights.lora import Dense


class Memory(NamedTuple):
    """A projected source: keys `(B, S, 1, A)` and values `(B, S, 1, E)`."""

    key: Any
    value: Any


@keras.saving.register_keras_serializable(package="keras_seqattn")
class AttentiveRecurrentDecoder(RecurrentStack):
    """Reads a target step by step, and attends to the source from each state.

    A stack of gated recurrent units, whose states begin at tanh(W_0 state + b_0), gives
    s_t. From s_t it attends to the source h_1 ... h_S with additive scores,

        c_t = sum_j a_tj h_j,  a_t = softmax_j(v . tanh(W_q s_t + W_k h_j)),

    and returns tanh(W_c [c_t; s_t]). No state depends on the attention, so in training
    all target positions attend at once, after the recurrence; `step` does the same one
    position at a time. A masked source position has weight 0. A masked target
    position leaves the states as they were and attends to nothing; since the
    recurrence only looks back, no mask is needed for what follows a sentence's end.
    Shapes: B batch, T target length, S source length, W beams, N layers, D width of
    the target, E width of the source, U units.

    Args:
        units: Width U of the states and of the output, a positive integer.
        num_layers: Number of layers N in the stack.
        cell: "gru", or "simple" for a `RecurrentCell`.
        attention_units: Width of the attention's projections; `units` when None.
        dropout: Fraction of each layer's outputs, and of the decoder's, dropped while
            training, in [0, 1).
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        target: Float tensor `(B, T, D)`.
        source: Float tensor `(B, S, E)`, the hidden states of a `RecurrentEncoder`.
        state: Float tensor `(B, E)`, its final states.
        target_mask: Bool tensor `(B, T)`; else the mask on `target`.
        source_mask: Bool tensor `(B, S)`; else the mask on `source`.
        return_attention_scores: Whether to return the weights too.
        training: Whether to apply dropout.

    Returns:
        Float tensor `(B, T, U)` in the compute dtype; with `return_attention_scores`
        also the weights `(B, 1, T, S)`.

    Raises:
        ValueError: If a size is not a positive integer, `cell` is unknown, `target` has
            no position, or shapes do not fit.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.layers import RecurrentEncoder
        >>> encoder, decoder = RecurrentEncoder(4), AttentiveRecurrentDecoder(8)
        >>> target, source = np.zeros((2, 3, 8)), np.zeros((2, 5, 8))
        >>> tuple(decoder(target, *encoder(source)).shape)
        (2, 3, 8)

    Reference:
        Luong et al. 2015, section 3, for the order (the state, then attention, then the
        output), without its input feeding; Bahdanau et al. 2015, sections 3.1 and
        A.1.2, for the scores and the first state. Differs: the first state comes from
        both final states of the encoder, with a bias; the reset gate comes where it
        does in `RecurrentEncoder`.
    """

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: Cell = "gru",
        attention_units: int | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(units, num_layers, cell, dropout, **kwargs)
        self.attention_units = arguments.positive_integer(
            "attention_units", attention_units, optional=True
        )

    def build(
        self, target_shape: Shape, source_shape: Shape, state_shape: Shape
    ) -> None:
        """Makes the stack, its first states, the attention and the output."""
        _check_ranks(target_shape, source_shape, state_shape)
        shapes = (target_shape, source_shape, state_shape)
        self._widths = tuple(shape[-1] for shape in shapes)
        width = self.attention_units or self.units
        hidden_shape = (*target_shape[:-1], self.units)
        joined_shape = (*target_shape[:-1], source_shape[-1] + self.units)
        dense = self._dense
        self.state_dense = dense("state", state_shape, self.num_layers * self.units)
        self.recurrences = []
        for i in range(self.num_layers):
            recurrence = self.recurrence(name=f"layer_{i}")
            recurrence.build(hidden_shape if i else target_shape)
            self.recurrences.append(recurrence)
        track_list(self, "recurrences", self.recurrences)
        linear = {"activation": None, "use_bias": False}
        self.query_dense = dense("query", hidden_shape, width, **linear)
        self.key_dense = dense("key", source_shape, width, **linear)
        self.vector = self.add_weight(name="vector", shape=(1, width))
        self.output_dense = dense("output", joined_shape, self.units, use_bias=False)
        keep_frozen(self)

    def _dense(self, name, input_shape, units, activation="tanh", use_bias=True):
        dense = Dense(units, activation, use_bias, name=name, dtype=self.dtype_policy)
        dense.build(input_shape)
        return dense

    def call(
        self,
        target: Tensor,
        source: Tensor,
        state: Tensor,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Decodes a whole target."""
        _check_shapes(target, source, state)
        check_not_empty("target", target)
        check_width("target", target, self._widths[0])
        target_mask = bool_mask("target_mask", target_mask)
        source_mask = bool_mask("source_mask", source_mask)
        hidden, first = target, self.initial_cache(state)
        for i, recurrence in enumerate(self.recurrences):
            hidden, _ = recurrence(hidden, first[:, 0, i], mask=target_mask)
            hidden = self.dropout_layer(hidden, **if_known(training))
        mask = input_masks(target_mask, source_mask)
        output, scores = self._attend(
            hidden, self.project_memory(source), mask, **if_known(training)
        )
        return (output, scores) if return_attention_scores else output

    def _attend(self, hidden, memory, mask, **training):
        """Returns the output `(B, T, U)` and the weights `(B, 1, T, S)`."""
        query = ops.expand_dims(self.query_dense(hidden), 2)  # (B, T, 1, A)
        vector = ops.cast(self.vector, query.dtype)
        context, scores = additive.attend(query, *memory, vector, mask=mask)
        context = ops.squeeze(context, axis=2)  # (B, T, E)
        output = self.output_dense(ops.concatenate([context, hidden], axis=-1))
        return self.dropout_layer(output, **training), scores

    def initial_cache(self, state: Tensor, width: int = 1) -> Tensor:
        """Makes the states before the first step.

        Args:
            state: Float tensor `(B, E)`, the encoder's final states.
            width: Number of beams W per sentence.

        Returns:
            Float tensor `(B, W, N, U)`.
        """
        check_built(self)
        check_tensor("state", state, "(batch, width)", self._widths[2])
        arguments.index("width", width, 1)
        first = self.state_dense(state)  # (B, N U)
        first = ops.reshape(first, (-1, 1, self.num_layers, self.units))
        return ops.repeat(first, width, axis=1)

    def project_memory(self, source: Tensor) -> Memory:
        """Projects what `step` attends to, once for all steps and beams.

        Args:
            source: Float tensor `(B, S, E)`.

        Returns:
            A `Memory` of "key" `(B, S, 1, A)`, where A is `attention_units`, and
            "value" `(B, S, 1, E)`.
        """
        check_built(self)
        check_tensor("source", source, "(batch, length, width)", self._widths[1])
        keys = ops.expand_dims(self.key_dense(source), 2)
        return Memory(keys, ops.expand_dims(source, 2))

    def step(
        self,
        target: Tensor,
        cache: Tensor,
        memory: Memory,
        source_mask: Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> tuple[Tensor, ...]:
        """Decodes one new position of each beam; equals that row of a call.

        Args:
            target: Float tensor `(B, W, D)`, the next vector of each beam.
            cache: What `initial_cache` or the step before returned.
            memory: What `project_memory` returned, shared by a sentence's beams.
            source_mask: Bool tensor `(B, S)`.
            return_attention_scores: Whether to return the weights too.

        Returns:
            Float tensor `(B, W, U)`, and the states after this position; with
            `return_attention_scores` also the weights `(B, 1, W, S)`.
        """
        check_built(self)
        check_tensor("target", target, BEAMS, self._widths[0])
        check_tensor("cache", cache, "(batch, beams, layers, units)", self.units)
        check_kept("memory", memory, Memory, "project_memory")
        arguments.check_flag("return_attention_scores", return_attention_scores)
        width = target.shape[1]
        hidden = ops.reshape(target, (-1, target.shape[-1]))  # (B W, D)
        before = ops.reshape(cache, (-1, self.num_layers, self.units))
        states = []
        for i, recurrence in enumerate(self.recurrences):
            hidden, _ = recurrence.cell(hidden, [before[:, i]])
            states.append(hidden)
        hidden = ops.reshape(hidden, (-1, width, self.units))
        cache = ops.reshape(ops.stack(states, axis=1), (-1, *cache.shape[1:]))
        source_mask = checked_mask("source_mask", source_mask, memory.key.shape[1])
        mask = input_masks(None, source_mask)
        output, scores = self._attend(hidden, memory, mask)
        return (output, cache, scores) if return_attention_scores else (output, cache)

    def compute_mask(self, target: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Passes the mask of `target` on to the output, none to the weights."""
        return mask

    def compute_output_shape(
        self, target_shape: Shape, source_shape: Shape, state_shape: Shape
    ) -> Shape:
        """Returns the shape of the output without the weights."""
        return (*target_shape[:-1], self.units)

    def compute_output_spec(
        self,
        target: Tensor,
        source: Tensor,
        state: Tensor,
        target_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        """Returns the symbolic output, and the symbolic weights where asked for."""
        _check_shapes(target, source, state)
        output = keras.KerasTensor((*target.shape[:-1], self.units), self.compute_dtype)
        if not return_attention_scores:
            return output
        shape = (target.shape[0], 1, target.shape[1], source.shape[1])
        return output, keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "attention_units": self.attention_units}


def _check_ranks(target, source, state):
    check_rank("target", target, "(batch, length, width)")
    check_rank("source", source, "(batch, length, width)")
    check_rank("state", state, "(batch, width)")


def _check_shapes(target, source, state):
    _check_ranks(target, source, state)
    check_batch(target=target, source=source, state=state)
