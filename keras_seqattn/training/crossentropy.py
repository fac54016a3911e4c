"""The crossentropy of tokens: from their logits, or from what these are a product of.

Shapes: N tokens, D model_dim, V vocabulary, R rows of a block.
"""

import keras
from keras import ops

from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import autodiff, tracing
from keras_seqattn.backend.processes import sum_of_rows
from keras_seqattn.training.consistency import Pairs, divergence

# Logits in a block, 8 MB: blocks of 40 MB took twice as long, since memory of that
# size is new from the system, page by page, in each block (`benchmarks/loss.py`).
BLOCK_LOGITS = 2_000_000


def block_rows(vocabulary_size: int) -> int:
    """Returns how many tokens' logits are computed together, an even number."""
    rows = max(64, BLOCK_LOGITS // vocabulary_size)
    return rows - rows % 2


def token_crossentropy(
    labels: Tensor, logits: Tensor, pad_id: int = 0, label_smoothing: float = 0.0
) -> Tensor:
    """Computes the crossentropy `(N,)` of tokens from logits `(N, V)`, 0 at padding.

    It is NaN where a label is neither `pad_id` nor in [0, V), so that a wrong
    vocabulary shows. Neither these nor padding have a gradient.
    """
    in_range, indices = _clip_labels(labels, logits.shape[-1])
    losses = _crossentropy(indices, ops.cast(logits, "float32"), label_smoothing)
    losses = ops.where(in_range, losses, float("nan"))
    return ops.where(labels == pad_id, 0.0, losses)


def _clip_labels(labels, vocabulary_size):
    """Returns which labels are in the vocabulary, and labels that all are."""
    in_range = ops.logical_and(labels >= 0, labels < vocabulary_size)
    # Backends differ on an index out of range: some wrap, some clamp, some raise.
    return in_range, ops.clip(labels, 0, vocabulary_size - 1)


def _crossentropy(labels, logits, label_smoothing):
    """Computes the smoothed crossentropy `(N,)`, with a gradient written by hand.

    The exponentials of the forward pass are kept, and scaled into the gradient.
    Differentiating `sparse_categorical_crossentropy` plus the smoothing term takes
    longer in each of these ways to compile; `benchmarks/loss.py` measures it.
    """

    @autodiff.custom_gradient
    def crossentropy(logits):
        losses, chosen, exponentials, total, _ = _compute_losses(labels, logits)
        if label_smoothing:
            losses = losses + label_smoothing * (chosen - ops.mean(logits, axis=-1))

        def gradient(upstream):  # (N,)
            return _logits_gradient(
                labels, exponentials, total, upstream, label_smoothing
            )

        return losses, gradient

    return crossentropy(logits)


def _logits_gradient(labels, exponentials, total, weights, label_smoothing):
    """Computes the logits' gradient `(N, V)`, of losses times `weights` `(N,)`."""
    spread = label_smoothing / exponentials.shape[-1]
    scale = ops.expand_dims(weights, -1)
    d_logits = exponentials * (scale / total)
    if tracing.is_compiled_by_xla(exponentials):
        # A part of the same loop, where for a scatter XLA would copy the tensor.
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


def _label_logits(labels, logits):
    """Returns each label's logit `(N, 1)`."""
    size, vocabulary_size = ops.shape(logits)
    if not isinstance(size, int) or size * vocabulary_size >= 2**31:
        return ops.take_along_axis(logits, labels[:, None], axis=-1)
    # On TensorFlow `take_along_axis` copies the logits; these indices fit an int32.
    starts = ops.arange(size, dtype="int32") * vocabulary_size
    chosen = ops.take(ops.reshape(logits, (-1,)), starts + labels, axis=0)
    return ops.expand_dims(chosen, -1)


def _compute_losses(labels, logits):
    """Computes crossentropies, and what smoothing and their gradient need.

    Returns the crossentropies, and the labels' logits, `(N,)`; exp(logits - largest)
    `(N, V)`, the sums of these and the largest logits `(N, 1)`.
    """
    # Of no tokens there is none, which Keras's `amax` refuses on TensorFlow.
    lowest = -float("inf")
    largest = ops.max(logits, axis=-1, keepdims=True, initial=lowest)  # (N, 1)
    exponentials = ops.exp(logits - largest)  # (N, V)
    total = ops.sum(exponentials, axis=-1, keepdims=True)  # (N, 1)
    chosen = _label_logits(labels, logits)  # (N, 1)
    plain = ops.log(total) - (chosen - largest)
    return ops.squeeze(plain, -1), ops.squeeze(chosen, -1), exponentials, total, largest


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

    sum(w * loss) of the logits `hidden . kernel`, with its gradient for both factors,
    and `consistency` times the weighted divergence of pairs, if any are given. Tokens
    of weight 0 are passed over; the others are taken a block of rows at a time, and the
    gradient is computed beside the loss, while a block's logits are at hand. So memory
    is O((N + V) D), and padding costs nothing.

    Shapes: hidden `(..., D)`, N vectors; kernel `(D, V)`, of the same dtype; labels and
    weights `(N,)`. No token of a pair has weight 0.

    Returns the sum, a float32 scalar, and each token's own crossentropy without
    smoothing, float32 `(N,)`, 0 where its weight is, for metrics: it has no gradient.
    Both are NaN where a label of weight not 0 is not in [0, V); such a token's
    crossentropy adds nothing to the gradients.
    """
    if pairs is None:
        rows = hidden, labels, weights
        return sum_of_rows(
            lambda hidden, labels, weights, kernel: _blockwise(
                hidden, kernel, labels, weights, label_smoothing
            ),
            rows,
            kernel,
        )
    # A pair may lie on two devices.
    return _blockwise(
        hidden, kernel, labels, weights, label_smoothing, pairs, consistency
    )


def _blockwise(
    hidden, kernel, labels, weights, label_smoothing, pairs=None, consistency=0.0
):
    """Does what `projected_crossentropy` does, for the rows of one device."""
    blocks = _Blocks(
        labels, weights, kernel.shape[-1], label_smoothing, pairs, consistency
    )
    hidden = ops.reshape(hidden, (-1, hidden.shape[-1]))

    @autodiff.custom_gradient
    def crossentropy(hidden, kernel):
        transposed = ops.transpose(kernel)  # (V, D)
        mean = ops.mean(ops.cast(kernel, "float32"), axis=-1, keepdims=True)  # (D, 1)

        def body(start, loss, each, d_hidden, d_kernel):
            block = blocks.loss(start, hidden, kernel, mean)
            vectors, added, each_added, d_logits, scale = block
            each = ops.slice_update(each, (start,), each_added)
            d_logits = ops.cast(d_logits, kernel.dtype)  # (R, V)
            inner = ops.matmul(d_logits, transposed) * scale
            d_hidden = ops.slice_update(d_hidden, (start, 0), inner)
            outer = ops.matmul(ops.transpose(vectors * scale), d_logits)  # (D, V)
            d_kernel = d_kernel + ops.cast(outer, "float32")
            return start + blocks.rows, loss + added, each, d_hidden, d_kernel

        _, loss, each, d_hidden, d_kernel = ops.while_loop(
            blocks.has_begun,
            body,
            (
                ops.zeros((), "int32"),
                ops.zeros((), "float32"),
                ops.zeros((blocks.size,), "float32"),
                ops.zeros((blocks.size, hidden.shape[-1]), hidden.dtype),
                ops.zeros(kernel.shape, "float32"),
            ),
        )
        each = ops.take(each, blocks.place, axis=0)
        d_hidden = ops.take(d_hidden, blocks.place, axis=0)
        if blocks.are_factored(kernel):
            inner, outer = blocks.target_gradients(hidden, transposed, mean)
            d_hidden, d_kernel = d_hidden - inner, d_kernel - outer

        def gradient(upstream):
            return tuple(
                ops.cast(ops.cast(x, "float32") * upstream[0], kernel.dtype)
                for x in (d_hidden, d_kernel)
            )

        # One tensor: torch's functions of a gradient of their own give one.
        return ops.concatenate([loss[None], each]), gradient

    both = crossentropy(hidden, kernel)
    return both[0], ops.stop_gradient(both[1:])


class _Blocks:
    """The tokens of weight not 0, in blocks of rows.

    Attributes:
        rows: Number of rows R of a block.
        size: N filled up to whole blocks.
        place: Where each token stands when the real ones come first, and of these the
            pairs, int32 `(N,)`.
    """

    def __init__(
        self, labels, weights, vocabulary_size, label_smoothing, pairs, consistency
    ):
        self.rows = block_rows(vocabulary_size)
        self._label_smoothing = label_smoothing
        self._pairs, self._consistency = pairs, consistency
        self._in_range, self._labels = _clip_labels(labels, vocabulary_size)
        self._weights = weights
        # By sums, not by a sort: in one XLA program with a sort, dropout takes many
        # times as long on a CPU.
        real = weights != 0
        before = ops.cumsum(ops.cast(real, "int32"))
        self._count = before[-1]
        length = ops.shape(labels)[0]
        index = ops.arange(length, dtype="int32")
        self.place = ops.where(real, before - 1, self._count + index - before)
        if pairs is not None:
            paired = pairs.weights != 0
            alone = ops.logical_and(real, ops.logical_not(paired))
            before = ops.cumsum(ops.cast(alone, "int32"))
            self.place = ops.where(alone, pairs.count + before - 1, self.place)
            self.place = ops.where(paired, pairs.place, self.place)
        self.size = length + -length % self.rows
        self._order = ops.scatter(self.place[:, None], index, (self.size,))

    def has_begun(self, start, *_):
        """Whether a real token stands at `start` or behind it."""
        return start < self._count

    def are_factored(self, kernel):
        """Whether `loss` leaves the gradient in factors, without the target's part.

        That saves passes over the logits, of which XLA has none to save. Where the
        target's part takes most of it away again, half a precision has no digits left.
        """
        dtype = keras.backend.standardize_dtype(kernel.dtype)
        plain = dtype == "float32" and self._pairs is None
        return plain and not tracing.is_compiled_by_xla(kernel)

    def loss(self, start, hidden, kernel, mean):
        """Computes a block of rows.

        Returns its vectors `(R, D)`, its loss, each token's plain crossentropy `(R,)`,
        and `(R, V)` and `(R, 1)` whose product is the gradient of the loss for the
        logits; except for what `target_gradients` returns, where they `are_factored`.
        """
        tokens = ops.slice(self._order, (start,), (self.rows,))
        labels, weights, in_range = (
            ops.take(x, tokens, axis=0)
            for x in (self._labels, self._weights, self._in_range)
        )
        last = start + ops.arange(self.rows, dtype="int32") >= self._count
        weights = ops.where(last, 0.0, weights)  # (R,)
        vectors = ops.take(hidden, tokens, axis=0)  # (R, D)
        logits = ops.cast(ops.matmul(vectors, kernel), "float32")  # (R, V)
        each, chosen, exponentials, total, largest = _compute_losses(labels, logits)
        losses = each
        if self._label_smoothing:
            means = ops.matmul(ops.cast(vectors, "float32"), mean)  # (R, 1)
            losses = each + self._label_smoothing * (chosen - ops.squeeze(means, -1))
        losses, each = (
            ops.where(weights != 0, ops.where(in_range, x, float("nan")), 0.0)
            for x in (losses * weights, each)
        )
        weights, loss = ops.where(in_range, weights, 0.0), ops.sum(losses)
        if self.are_factored(kernel):
            return vectors, loss, each, exponentials, weights[:, None] / total
        d_logits = _logits_gradient(
            labels, exponentials, total, weights, self._label_smoothing
        )
        if self._pairs is not None:
            log_probs = logits - (largest + ops.log(total))
            weights = self._consistency * self._pairs.weights_of(tokens, start)
            probs = exponentials / total
            apart, d_apart = divergence(log_probs, probs, weights)
            loss, d_logits = loss + apart, d_logits + d_apart
        return vectors, loss, each, d_logits, ops.ones((1, 1), kernel.dtype)

    def target_gradients(self, hidden, transposed, mean):
        """Computes both factors' gradients of the logits' mean under the target.

        Returns tensors `(N, D)` and `(D, V)`.
        """
        vocabulary_size = transposed.shape[0]
        weights = ops.where(self._in_range, self._weights, 0.0)[:, None]  # (N, 1)
        chosen = (1 - self._label_smoothing) * weights
        spread = self._label_smoothing * weights
        inner = chosen * ops.take(transposed, self._labels, axis=0)
        inner = inner + spread * ops.transpose(mean)
        outer = ops.segment_sum(chosen * hidden, self._labels, vocabulary_size)
        everywhere = ops.sum(spread * hidden, axis=0) / vocabulary_size  # (D,)
        return inner, ops.transpose(outer) + everywhere[:, None]
