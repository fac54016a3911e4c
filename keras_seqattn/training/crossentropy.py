"""The crossentropy of tokens, from their logits or from the two factors of these.

Shapes: N tokens, D model_dim, V vocabulary, R rows of a block.
"""

import functools
from typing import NamedTuple

from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import autodiff, tracing
from keras_seqattn.backend.processes import sum_of_rows
from keras_seqattn.training.consistency import Pairs, divergence

# Number of logits in a block, 8 MB. Blocks of 40 MB took twice as long, since for each
# one the system supplies memory of that size anew, page by page (`benchmarks/loss.py`).
BLOCK_LOGITS = 2_000_000


def block_rows(vocabulary_size: int, model_dim: int = 1) -> int:
    """Returns the number of tokens in a block: even, so that no pair is divided.

    Neither its logits nor its vectors are more than `BLOCK_LOGITS` numbers, unless 64
    rows are.
    """
    rows = max(64, BLOCK_LOGITS // max(vocabulary_size, model_dim))
    return rows - rows % 2


def token_crossentropy(
    labels: Tensor, logits: Tensor, pad_id: int = 0, label_smoothing: float = 0.0
) -> Tensor:
    """Computes the crossentropy `(N,)` of tokens from logits `(N, V)`, 0 at padding.

    It is NaN where a label is neither `pad_id` nor in [0, V), so that a wrong
    vocabulary is noticed. Such labels and padding have no gradient.
    """
    in_range, indices = _clip_labels(labels, logits.shape[-1])
    losses = _crossentropy(indices, ops.cast(logits, "float32"), label_smoothing)
    losses = ops.where(in_range, losses, float("nan"))
    return ops.where(labels == pad_id, 0.0, losses)


def _clip_labels(labels, vocabulary_size):
    """Returns which labels are in the vocabulary, and the labels clipped to it."""
    in_range = ops.logical_and(labels >= 0, labels < vocabulary_size)
    # Backends differ on an index out of range: some wrap, some clamp, some raise.
    return in_range, ops.clip(labels, 0, vocabulary_size - 1)


def _crossentropy(labels, logits, label_smoothing):
    """Computes the smoothed crossentropy `(N,)`, with a gradient written by hand.

    The exponentials of the forward pass are kept, and scaled into the gradient.
    Differentiating `sparse_categorical_crossentropy` plus the smoothing term takes
    longer on TensorFlow, with and without XLA, and on JAX; `benchmarks/loss.py`
    measures it.
    """

    @autodiff.custom_gradient
    def crossentropy(logits):
        losses, chosen, exponentials, sums, _ = _plain_crossentropies(labels, logits)
        if label_smoothing:
            losses = losses + label_smoothing * (chosen - ops.mean(logits, axis=-1))

        def gradient(upstream):  # (N,)
            return _logits_gradient(
                labels, exponentials, sums, upstream, label_smoothing
            )

        return losses, gradient

    return crossentropy(logits)


def _logits_gradient(labels, exponentials, sums, weights, label_smoothing):
    """Computes the logits' gradient `(N, V)` for losses times `weights` `(N,)`."""
    spread = label_smoothing / exponentials.shape[-1]
    scale = ops.expand_dims(weights, -1)
    d_logits = exponentials * (scale / sums)
    if tracing.is_compiled_by_xla(exponentials):
        # XLA fuses this into the same loop; for a scatter it would copy the tensor.
        columns = ops.arange(exponentials.shape[-1], dtype="int32")
        label = columns[None] == labels[:, None]
        return d_logits - scale * ops.where(label, 1 - label_smoothing + spread, spread)
    if label_smoothing:
        d_logits = d_logits - scale * spread
    rows = ops.arange(ops.shape(labels)[0], dtype="int32")
    return ops.scatter_update(
        d_logits,
        ops.stack([rows, labels], axis=-1),
        (label_smoothing - 1) * weights,
        reduction="add",
    )


def _plain_crossentropies(labels, logits):
    """Computes crossentropies without smoothing, and what smoothing and gradients need.

    Returns the crossentropies and the labels' logits, both `(N,)`;
    exp(logits - largest), `(N, V)`; and their sums and the largest logits, both
    `(N, 1)`.
    """
    # `initial` is for inputs without tokens, which `amax` refuses on TensorFlow.
    lowest = -float("inf")
    largest = ops.max(logits, axis=-1, keepdims=True, initial=lowest)  # (N, 1)
    exponentials = ops.exp(logits - largest)  # (N, V)
    sums = ops.sum(exponentials, axis=-1, keepdims=True)  # (N, 1)
    chosen = ops.take_along_axis(logits, labels[:, None], axis=-1)  # (N, 1)
    plain = ops.log(sums) - (chosen - largest)
    return ops.squeeze(plain, -1), ops.squeeze(chosen, -1), exponentials, sums, largest


def projected_crossentropy(
    hidden: Tensor,
    kernel: Tensor,
    labels: Tensor,
    weights: Tensor,
    label_smoothing: float = 0.0,
    pairs: Pairs | None = None,
    consistency: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Sums the weighted crossentropy of tokens without ever holding all their logits.

    Computes sum(w * loss) for the logits `hidden . kernel`, plus `consistency` times
    the weighted divergence of `pairs`, if given, with the gradient for both factors.
    Tokens of weight 0 are skipped. The others are taken one block of rows at a time,
    and the gradient is computed together with the loss, while the block's logits are
    available. So memory is O((N + V) D), and padding costs nothing. The price: the loss
    alone takes as long as with its gradient, and on TensorFlow and JAX it has no second
    derivative.

    Shapes: hidden `(..., D)`, N vectors; kernel `(D, V)`, of the same dtype; labels and
    weights `(N,)`. No token of a pair has weight 0.

    Returns the sum, a float32 scalar, and for metrics each token's crossentropy without
    smoothing, float32 `(N,)`, which is 0 where the weight is 0 and has no gradient.
    Both are NaN where a label of nonzero weight is not in [0, V); such a token's
    crossentropy adds nothing to the gradients.
    """
    if pairs is None:
        of_rows = functools.partial(_blockwise, label_smoothing=label_smoothing)
        return sum_of_rows(of_rows, (hidden, labels, weights), kernel)
    # The tokens of a pair may be on two devices, so each device cannot sum its own.
    return _blockwise(
        hidden, labels, weights, kernel, label_smoothing, pairs, consistency
    )


def _blockwise(
    hidden, labels, weights, kernel, label_smoothing, pairs=None, consistency=0.0
):
    """Computes what `projected_crossentropy` returns, for the rows of one device."""
    blocks = _TokenBlocks(
        labels, weights, kernel.shape, label_smoothing, pairs, consistency
    )

    @autodiff.custom_gradient
    def crossentropy(hidden, kernel):
        loss, crossentropies, *gradients = _sum_blocks(blocks, hidden, kernel)

        def gradient(upstream):
            return tuple(
                ops.cast(ops.cast(x, "float32") * upstream[0], kernel.dtype)
                for x in gradients
            )

        # One tensor, since a function with a custom gradient on torch returns one.
        return ops.concatenate([loss[None], crossentropies]), gradient

    hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))
    loss_and_crossentropies = crossentropy(hidden, kernel)
    return loss_and_crossentropies[0], ops.stop_gradient(loss_and_crossentropies[1:])


def _sum_blocks(blocks, hidden, kernel):
    """Computes the loss, crossentropies `(N,)`, and the gradient for both factors."""
    transposed = ops.transpose(kernel)  # (V, D)
    # A vector times this is the mean of its logits, which smoothing needs: (D, 1).
    kernel_mean = ops.mean(ops.cast(kernel, "float32"), axis=-1, keepdims=True)

    def add_block(number, loss, crossentropies, d_hidden, d_kernel):
        start = number * blocks.rows
        block = blocks.compute(start, hidden, kernel, kernel_mean)
        crossentropies = ops.slice_update(
            crossentropies, (start,), block.crossentropies
        )
        d_logits = ops.cast(block.d_logits, kernel.dtype)  # (R, V)
        d_vectors = ops.matmul(d_logits, transposed)  # (R, D)
        d_hidden = ops.slice_update(d_hidden, (start, 0), d_vectors)
        d_block = ops.matmul(ops.transpose(block.vectors), d_logits)  # (D, V)
        d_kernel = d_kernel + ops.cast(d_block, "float32")
        loss = loss + block.loss
        return number + 1, loss, crossentropies, d_hidden, d_kernel

    _, loss, crossentropies, d_hidden, d_kernel = ops.while_loop(
        blocks.has_more,
        add_block,
        (
            ops.zeros((), "int32"),
            ops.zeros((), "float32"),
            ops.zeros((blocks.size,), "float32"),
            ops.zeros((blocks.size, hidden.shape[-1]), hidden.dtype),
            ops.zeros(kernel.shape, "float32"),
        ),
    )
    # From the order of the blocks back to that of the tokens.
    crossentropies = ops.take(crossentropies, blocks.place, axis=0)
    d_hidden = ops.take(d_hidden, blocks.place, axis=0)
    return loss, crossentropies, d_hidden, d_kernel


class _Block(NamedTuple):
    """What a block of R rows adds to the loss and to its gradient.

    Attributes:
        vectors: The rows of `hidden`, `(R, D)`.
        loss: Sum of the weighted losses and divergences, a scalar.
        crossentropies: Crossentropy of each row, without weight and smoothing, `(R,)`.
        d_logits: Gradient of the loss for the logits, `(R, V)`.
    """

    vectors: Tensor
    loss: Tensor
    crossentropies: Tensor
    d_logits: Tensor


class _TokenBlocks:
    """The tokens of nonzero weight, here called real, in blocks of rows.

    Attributes:
        rows: Number of rows R in a block.
        size: N rounded up to whole blocks, at least one.
        place: Place of each token when the real ones come first, and among these the
            pairs, int32 `(N,)`.
    """

    def __init__(
        self, labels, weights, kernel_shape, label_smoothing, pairs, consistency
    ):
        model_dim, vocabulary_size = kernel_shape
        length = ops.shape(labels)[0]
        self.rows = block_rows(vocabulary_size, model_dim)
        if isinstance(length, int):  # No block needs more rows than there are tokens.
            self.rows = min(self.rows, max(2, length + length % 2))
        self._label_smoothing = label_smoothing
        self._pairs, self._consistency = pairs, consistency
        self._in_range, self._labels = _clip_labels(labels, vocabulary_size)
        self._weights = weights
        # Places come from sums, not from a sort: on a CPU dropout takes many times as
        # long in an XLA program that contains a sort.
        real = weights != 0
        so_far = ops.cumsum(ops.cast(real, "int32"))  # Each token counts itself.
        self._count = ops.sum(ops.cast(real, "int32"))  # A replica may have no token.
        index = ops.arange(length, dtype="int32")
        # A token that is not real follows all real ones and `index - so_far` others.
        self.place = ops.where(real, so_far - 1, self._count + index - so_far)
        if pairs is not None:
            paired = pairs.weights != 0
            alone = ops.logical_and(real, ops.logical_not(paired))
            so_far = ops.cumsum(ops.cast(alone, "int32"))
            self.place = ops.where(alone, pairs.count + so_far - 1, self.place)
            self.place = ops.where(paired, pairs.place, self.place)
        larger = max if isinstance(length, int) else ops.maximum
        self.size = larger(length + -length % self.rows, self.rows)
        # The token at each place. Places from N on hold token 0, with no weight: see
        # `is_filler` in `compute`.
        self._order = ops.scatter(self.place[:, None], index, (self.size,))

    def has_more(self, number, *_):
        """Returns whether a block, counted from 0, has a real token."""
        # Not `start < self._count`: if XLA knows that the count is 1, it concludes that
        # a loop from 0 in steps of more than 1 makes no step, and leaves out the loop.
        return number * self.rows < self._count

    def compute(self, start, hidden, kernel, kernel_mean):
        """Computes the `_Block` of the rows from `start` on."""
        tokens = ops.slice(self._order, (start,), (self.rows,))
        labels, weights, in_range = (
            ops.take(x, tokens, axis=0)
            for x in (self._labels, self._weights, self._in_range)
        )
        is_filler = start + ops.arange(self.rows, dtype="int32") >= self._count
        weights = ops.where(is_filler, 0.0, weights)  # (R,)
        vectors = ops.take(hidden, tokens, axis=0)  # (R, D)
        logits = ops.cast(ops.matmul(vectors, kernel), "float32")  # (R, V)
        crossentropies, chosen, exponentials, sums, largest = _plain_crossentropies(
            labels, logits
        )
        losses = crossentropies
        if self._label_smoothing:
            mean_logits = ops.matmul(ops.cast(vectors, "float32"), kernel_mean)
            mean_logits = ops.squeeze(mean_logits, -1)  # (R,)
            losses = losses + self._label_smoothing * (chosen - mean_logits)
        losses, crossentropies = (
            ops.where(weights != 0, ops.where(in_range, x, float("nan")), 0.0)
            for x in (losses * weights, crossentropies)
        )
        loss = ops.sum(losses)
        weights = ops.where(in_range, weights, 0.0)  # A wrong label has no gradient.
        d_logits = _logits_gradient(
            labels, exponentials, sums, weights, self._label_smoothing
        )
        if self._pairs is not None:
            log_probs = logits - (largest + ops.log(sums))
            pair_weights = self._consistency * self._pairs.weights_of(tokens, start)
            apart, d_apart = divergence(log_probs, exponentials / sums, pair_weights)
            loss, d_logits = loss + apart, d_logits + d_apart
        return _Block(vectors, loss, crossentropies, d_logits)
