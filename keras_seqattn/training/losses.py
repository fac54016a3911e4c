"""Losses over token ids, in which padding does not count."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.backend.processes import share_of_mean
from keras_seqattn.layers.embedding.logits import factors_of, keep_crossentropies
from keras_seqattn.training.consistency import Pieces, find_pairs, paired_divergence
from keras_seqattn.training.crossentropy import (
    block_rows,
    projected_crossentropy,
    token_crossentropy,
)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class MaskedCrossentropy(keras.losses.Loss):
    """Computes the label-smoothed crossentropy of logits over the real tokens.

    A token's loss is `logsumexp(z) - (1 - eps) z[label] - eps mean(z)` for its
    logits `z`: the target gives `1 - eps` to the label and spreads `eps` evenly
    over the whole vocabulary, including the label. The batch's loss is
    `sum(w * loss) / sum(w)`, where `w` is 0 if the label is `pad_id`, else the
    sample weight or 1. So it does not depend on the amount of padding; a batch of
    only padding gives 0, and zero gradients. Each of several replicas that share a
    batch returns its share of this mean: the shares add up to the mean over all of the
    batch's tokens. Over several batches, as for the `val_loss` of `fit`, Keras weights
    the means by rows; `TokenCrossentropy` averages over the tokens of all batches.

    With `consistency`, two predictions of the same labels, which differ by dropout, are
    also made more alike: `consistency * sum(w * d) / sum(w)` is added. Here `d` is the
    divergence `(KL(p || q) + KL(q || p)) / 2` of each pair of tokens in rows 2i and
    2i + 1 whose labels are equal, and its `w` is the lesser of their weights. Use the
    batches of `text.translation_batches(repeat_batch=2)`. Rows that are not such copies
    add exactly 0, so the loss of a validation without copies stays the same.

    With `pieces` two rows may also be different segmentations of one text, as
    `views=("plain", "sampled")` makes them. Then two tokens are a pair if they are
    equal and begin at the same place in the text: both predict the same token after the
    same text. Tokens without such a counterpart add nothing. If both rows have the same
    segmentation, all tokens are in pairs.

    Only the labels say which tokens are real: a mask that the logits carry from
    `Embedding(mask_zero=True)` changes nothing.
    The loss is computed in float32 whatever the dtype of the logits.

    On TensorFlow and JAX, if `layers.TokenLogits` or `layers.PositionalEmbedding`
    computed the logits while training, the loss does not use the logits. It is computed
    from their factors, over real tokens only, and a compiled program leaves the logits
    out unless something else needs them: `MaskedAccuracy`, or, with sample weights, any
    of the other metrics. This form of the loss has no second derivatives: JAX and
    TensorFlow raise their own error for them. The loss of plain logits has them.

    Shapes: B batch, T target length, V vocabulary.

    Args:
        label_smoothing: Share `eps` of the target spread over the vocabulary, in
            [0, 1).
        consistency: R-Drop's factor `alpha` of the divergence, at least 0.
        normalize_by: None for the mean above, or a positive number to divide the
            sums `sum(w * loss)` and `sum(w * d)` by. Means of unequal micro-batches do
            not average to the mean of the whole; sums divided by one fixed number add
            up exactly. With `gradient_accumulation_steps`, which averages, give the
            number of tokens of an average micro-batch; with replicas, whose gradients
            are summed, give that of the batch over all replicas.
        pad_id: Label of the positions that do not count.
        name: Name of the loss.
        pieces: List of V strings, none empty: the text of each token, such as
            `SentencePieceTokenizer.pieces`; or None, for rows whose labels are equal.

    Call arguments:
        y_true: Integer labels `(B, T)`, each `pad_id` or in [0, V).
        y_pred: Logits `(B, T, V)`.
        sample_weight: Optional weights of the tokens, `(B, T)`, or `(B,)` for all
            tokens of a row; with `consistency`, none may be negative. The mean is over
            the weights of the real tokens. The loss from factors has no gradient for
            them. Give weights of classes here too, as `table[labels]`, since Keras's
            `class_weight` mistakes a row's labels for scores of classes.

    Returns:
        Float32 scalar.

    Raises:
        ValueError: If an argument is out of range, if shapes do not fit, or, where
            values can be read (outside a compiled program), if a label is neither
            `pad_id` nor an integer in [0, V). Inside a compiled program a label out
            of range makes the loss NaN, whatever its weight, and adds nothing to the
            gradients.

    Example:
        >>> import numpy as np
        >>> loss = MaskedCrossentropy(label_smoothing=0.1)
        >>> labels = np.array([[3, 1, 0, 0]])
        >>> round(float(loss(labels, np.zeros((1, 4, 5)))), 4)  # log 5
        1.6094

    Reference:
        Szegedy et al. 2016, section 7. Wu et al. 2021, "R-Drop", equation 4. `pieces`:
        Wang et al. 2021, "Multi-view Subword Regularization", for translation. Differs:
        the sum is divided by the tokens of both copies, so the factor of Wang et al. is
        half of `consistency`.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        consistency: float = 0.0,
        normalize_by: float | None = None,
        pad_id: int = 0,
        name: str = "masked_crossentropy",
        pieces: Sequence[str] | None = None,
    ) -> None:
        arguments.text("name", name)
        # What `__call__` does, in Keras's words.
        reduction = "mean_with_sample_weight" if normalize_by is None else "sum"
        super().__init__(name=name, reduction=reduction, dtype="float32")
        self.label_smoothing = arguments.number(
            "label_smoothing", label_smoothing, least=0, below=1
        )
        self.consistency = arguments.number("consistency", consistency, least=0)
        self.normalize_by = arguments.number(
            "normalize_by", normalize_by, above=0, optional=True
        )
        self.pad_id = arguments.integer("pad_id", pad_id)
        self.pieces = arguments.sequence(
            "pieces", pieces, "a list of strings, none empty", _piece, optional=True
        )
        self._pieces = None if pieces is None else Pieces(self.pieces, self.pad_id)

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Returns the loss of a batch, a float32 scalar."""
        labels, logits, weights = flatten_tokens(
            y_true, y_pred, sample_weight, self.pad_id
        )
        pairs, factors, scaled, scale = None, factors_of(y_pred), weights, 1.0
        if sample_weight is not None and (factors is not None or self.consistency):
            scaled, scale = _scaled(weights)
        if self.consistency:
            self._check_pieces(logits.shape[-1])
            pairs = find_pairs(labels, scaled, ops.shape(y_true)[1], self._pieces)
        if factors is not None:
            weights = scaled
            total, crossentropies = self._projected(factors, labels, weights, pairs)
            if sample_weight is None:
                # Only then: a token whose sample weight is 0 has no value here, but a
                # metric may count it.
                keep_crossentropies(y_pred, y_true, self.pad_id, crossentropies)
        else:
            total = ops.sum(self.call(labels, logits) * weights)
            if pairs is not None:
                rows = block_rows(logits.shape[-1])
                apart = paired_divergence(logits, pairs, rows)
                total = total + self.consistency * scale * apart
            scale = 1.0  # `weights` are as given.
        # A sum shrinks with the weights that `_scaled` divided; a mean does not.
        if self.normalize_by is not None:
            return total * scale / self.normalize_by
        weight = ops.sum(weights)
        return share_of_mean(ops.divide_no_nan(total, weight), weight * scale)

    def _check_pieces(self, vocabulary_size):
        if self.pieces is not None and len(self.pieces) != vocabulary_size:
            raise ValueError(
                f"`pieces` must be {vocabulary_size} strings, one for each token that "
                f"has logits. Received: pieces of length {len(self.pieces)}."
            )

    def _projected(self, factors, labels, weights, pairs):
        """Returns what `projected_crossentropy` does, NaN if any label is wrong."""
        total, crossentropies = projected_crossentropy(
            factors.hidden,
            factors.kernel,
            labels,
            weights,
            self.label_smoothing,
            pairs,
            self.consistency,
        )
        total = total + _nan_if_wrong(labels, factors.kernel.shape[-1], self.pad_id)
        return total, crossentropies

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        """Returns each token's loss `(N,)` for labels `(N,)`, logits `(N, V)`."""
        labels = ops.cast(y_true, "int32")
        return token_crossentropy(labels, y_pred, self.pad_id, self.label_smoothing)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            "label_smoothing": self.label_smoothing,
            "consistency": self.consistency,
            "normalize_by": self.normalize_by,
            "pad_id": self.pad_id,
            "name": self.name,
            "pieces": self.pieces,
        }


def linear_crossentropy(
    hidden: Any,
    kernel: Any,
    labels: Any,
    *,
    sample_weight: Any = None,
    label_smoothing: float = 0.0,
    pad_id: int = 0,
) -> Any:
    """Computes the mean crossentropy over a vocabulary without holding the logits.

    It is `MaskedCrossentropy` of the logits `hidden . kernel`, computed only for the
    real tokens and one block of tokens at a time. The gradient is computed together
    with the loss, while the block's logits are available. So memory is
    O((B T + V) D), not O(B T V), and the loss alone takes as long as with its gradient.
    Shapes: B batch, T target length, D model_dim, V vocabulary.

    Args:
        hidden: Float tensor `(B, T, D)`.
        kernel: Float tensor `(D, V)` of the same dtype: `TokenLogits(...).kernel`, or
            `PositionalEmbedding(...).logits_kernel()`.
        labels: Integer tensor `(B, T)`, each `pad_id` or in [0, V).
        sample_weight: Optional weights of the tokens, `(B, T)` or `(B,)`, which get no
            gradient.
        label_smoothing: Share of the target spread over the vocabulary, in [0, 1).
        pad_id: Label of the positions that do not count.

    Returns:
        Float32 scalar; gradients reach `hidden` and `kernel`. NaN if a label is out of
        range where its value cannot be read.

    Raises:
        ValueError: If shapes or dtypes do not fit, if `label_smoothing` is out of
            range, or if a label that can be read is.

    Example:
        >>> import numpy as np
        >>> labels = np.array([[3, 1, 0]])
        >>> hidden, kernel = np.ones((1, 3, 4), "float32"), np.zeros((4, 5), "float32")
        >>> round(float(linear_crossentropy(hidden, kernel, labels)), 4)  # log 5
        1.6094

    Reference:
        Wijmans et al. 2024, "Cut Your Losses". Differs: a block has some tokens and the
        whole vocabulary, not a part of both; the gradient is computed with the loss,
        and no small one is left out.
    """
    smoothing = arguments.number("label_smoothing", label_smoothing, least=0, below=1)
    pad_id = arguments.integer("pad_id", pad_id)
    hidden, kernel, labels = (
        ops.convert_to_tensor(arguments.tensor(name, x))
        for name, x in (("hidden", hidden), ("kernel", kernel), ("labels", labels))
    )
    fits = len(hidden.shape) == 3 and _fits(labels.shape, hidden.shape[:-1])
    if not fits or not _fits(kernel.shape[:-1], hidden.shape[-1:]):
        raise ValueError(
            "`hidden` must have shape (B, T, D), `kernel` (D, V) and `labels` (B, T). "
            f"Received: hidden.shape={tuple(hidden.shape)!r}, "
            f"kernel.shape={tuple(kernel.shape)!r}, "
            f"labels.shape={tuple(labels.shape)!r}."
        )
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in (hidden, kernel)]
    if dtypes[0] != dtypes[1] or not keras.backend.is_float_dtype(dtypes[0]):
        raise ValueError(
            "`kernel` must be of the float dtype of `hidden`: cast it. Received: "
            f"hidden.dtype={dtypes[0]}, kernel.dtype={dtypes[1]}."
        )
    _check_labels("labels", labels, kernel.shape[-1], pad_id)
    labels = ops.cast(labels, "int32")
    weights = ops.reshape(_token_weights(labels != pad_id, sample_weight), (-1,))
    labels = ops.reshape(labels, (-1,))
    weights, _ = _scaled(weights)  # The mean does not depend on their scale.
    if 0 in hidden.shape[:2]:
        return ops.cast(ops.sum(ops.matmul(hidden, kernel)), "float32")  # 0
    total, _ = projected_crossentropy(hidden, kernel, labels, weights, smoothing)
    total = total + _nan_if_wrong(labels, kernel.shape[-1], pad_id)
    return ops.divide_no_nan(total, ops.sum(weights))


def _piece(name, value):
    return arguments.text(name, value) or arguments.refuse(name, value, "not empty")


def flatten_tokens(
    y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None, pad_id: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Checks labels `(B, T)` and logits `(B, T, V)`, and flattens them to tokens.

    Returns int32 labels `(B * T,)`, logits `(B * T, V)` that carry no Keras mask, and
    float32 weights `(B * T,)`, 0 at padding.
    """
    if y_true is None:
        raise ValueError(
            "`y_true` must be the labels: give them to `fit` or `evaluate` as `y`, or "
            "as the second of each pair of a dataset. Received: y_true=None."
        )
    arguments.tensor("y_true", y_true)
    arguments.tensor("y_pred", y_pred)
    y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
    if len(y_pred.shape) != 3 or not _fits(y_true.shape, y_pred.shape[:-1]):
        raise ValueError(
            "`y_true` must have shape (B, T) and `y_pred`, its logits, (B, T, V). "
            f"Received: y_true.shape={tuple(y_true.shape)!r}, "
            f"y_pred.shape={tuple(y_pred.shape)!r}."
        )
    _check_labels("y_true", y_true, y_pred.shape[-1], pad_id)
    labels = ops.cast(y_true, "int32")
    # Reshaping removes the implicit mask, which Keras would apply again.
    return (
        ops.reshape(labels, (-1,)),
        ops.reshape(y_pred, (-1, y_pred.shape[-1])),
        ops.reshape(_token_weights(labels != pad_id, sample_weight), (-1,)),
    )


def _scaled(weights):
    """Scales weights so that the largest is 1; returns them and the undoing factor.

    In half precision, gradients are computed with these weights before a mean divides
    by their sum, so very small or large weights would underflow or overflow. The
    weights get no gradient.
    """
    weights = ops.stop_gradient(weights)
    largest = ops.max(ops.abs(weights), initial=0.0)
    largest = ops.where(largest > 0.0, largest, 1.0)
    return weights / largest, largest


def _token_weights(real, sample_weight):
    """Returns the tokens' weights, float32 `(B, T)`, 0 where `real` is False."""
    if sample_weight is None:
        return ops.cast(real, "float32")
    arguments.tensor("sample_weight", sample_weight)
    sample_weight = ops.convert_to_tensor(sample_weight, dtype="float32")
    if getattr(sample_weight.shape, "rank", 0) is None:
        # TensorFlow traces once for several ranks. The weights are (B, 1) or (B, T).
        sample_weight = ops.reshape(sample_weight, (ops.shape(real)[0], -1))
    shape = tuple(sample_weight.shape)
    if len(shape) == 1 and _fits(shape, real.shape[:1]):
        sample_weight = ops.expand_dims(sample_weight, -1)  # (B, 1)
    elif not _fits(shape, real.shape):
        raise ValueError(
            "`sample_weight` must have shape (B,) or (B, T), here "
            f"{tuple(real.shape[:1])} or {tuple(real.shape)}. "
            f"Received: sample_weight.shape={shape!r}."
        )
    return ops.where(real, sample_weight, 0.0)


def _check_labels(name, labels, vocabulary_size, pad_id):
    """Raises an error if a label is out of range, where labels can be read."""
    try:
        # `tracing.known_values` would also read torch's labels on a GPU, and wait.
        labels = np.asarray(labels)
    except (NotImplementedError, TypeError, RuntimeError):
        return  # Traced, or on a different device: a wrong label makes the loss NaN.
    # No check of the dtype: under `tf.distribute`, Keras builds with float labels.
    is_id = (labels >= 0) & (labels < vocabulary_size) & (labels % 1 == 0)
    wrong = labels[~is_id & (labels != pad_id)]
    if wrong.size:
        raise ValueError(
            f"`{name}` must hold token ids in [0, {vocabulary_size}), the logits' "
            f"vocabulary, or `pad_id`={pad_id}. Received: {name} with {wrong[0]}."
        )


def _nan_if_wrong(labels, vocabulary_size, pad_id):
    """Returns NaN if any label, even of weight 0, is out of range, else 0."""
    wrong = ops.logical_or(labels < 0, labels >= vocabulary_size)
    wrong = ops.logical_and(wrong, labels != pad_id)
    # Two Python numbers would have Keras's default dtype.
    nan = ops.convert_to_tensor(float("nan"), "float32")
    return ops.where(ops.any(wrong), nan, 0.0)


def _fits(shape, expected):
    """Returns whether `shape` equals `expected` in all sizes that both know."""
    return len(shape) == len(expected) and all(map(arguments.may_be, shape, expected))
