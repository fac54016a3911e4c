"""Metrics over token ids, averaged over tokens and not over batches."""

from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Dtype, Tensor
from keras_seqattn.layers.embedding.logits import crossentropies_of
from keras_seqattn.training.crossentropy import token_crossentropy
from keras_seqattn.training.losses import flatten_tokens


class TokenMean(keras.metrics.Mean):
    """Averages the values that `token_values` returns over all real tokens seen."""

    def __init__(
        self, pad_id: int = 0, name: str | None = None, dtype: Dtype = "float32"
    ) -> None:
        arguments.text("name", name, optional=True)
        policy = keras.dtype_policies.get
        arguments.interpreted("dtype", dtype, policy, "the name of a dtype", True)
        super().__init__(name=name, dtype=dtype)
        self.pad_id = arguments.integer("pad_id", pad_id)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns a tensor `(N,)` for int32 labels `(N,)` and logits `(N, V)`."""
        raise NotImplementedError

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        """Adds a batch: labels `(B, T)`, logits `(B, T, V)`, weights as in the loss."""
        labels, logits, weights = flatten_tokens(
            y_true, y_pred, sample_weight, self.pad_id
        )
        values = self.recorded_values(y_true, y_pred)
        if values is None:
            values = self.token_values(labels, logits)
        super().update_state(values, weights)

    def recorded_values(self, y_true: Tensor, y_pred: Tensor) -> Tensor | None:
        """Returns the values `(N,)` if the loss has computed them, else None."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"pad_id": self.pad_id, **super().get_config()}


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TokenCrossentropy(TokenMean):
    """Computes the mean crossentropy over all real tokens, without smoothing.

    `sum(w * (logsumexp(z) - z[label])) / sum(w)` over every token of every batch,
    in nats; `w` is 0 where the label is `pad_id`, else the sample weight or 1.
    `val_loss` is not this mean: Keras weights the losses of batches by their rows.
    Only the labels say which tokens are real; masks of the logits are ignored.

    While training on TensorFlow and JAX it reuses what `MaskedCrossentropy` has already
    computed, unless there are sample weights (`benchmarks.paths`, row "metrics").

    Shapes: B batch, T target length, V vocabulary.

    Args:
        pad_id: Label of the positions that do not count.
        name: Name in the logs; None: Keras's own.
        dtype: Dtype of the sums; None: Keras's default of floats.

    Call arguments:
        y_true: Integer labels `(B, T)`, each `pad_id` or in [0, V).
        y_pred: Logits `(B, T, V)`.
        sample_weight: Optional weights of the tokens, `(B, T)` or `(B,)`. In
            `compile`, only `weighted_metrics` receive them.

    Returns:
        Scalar; 0 before the first real token.

    Raises:
        ValueError: As `MaskedCrossentropy` does; NaN where it gives NaN.

    Example:
        >>> import numpy as np
        >>> metric = TokenCrossentropy()
        >>> metric.update_state(np.array([[3, 0]]), np.zeros((1, 2, 5)))
        >>> round(float(metric.result()), 4)  # log 5
        1.6094
    """

    def __init__(
        self,
        pad_id: int = 0,
        name: str | None = "token_crossentropy",
        dtype: Dtype = "float32",
    ) -> None:
        super().__init__(pad_id=pad_id, name=name, dtype=dtype)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns the crossentropy `(N,)` of each token."""
        return token_crossentropy(labels, logits, self.pad_id)

    def recorded_values(self, y_true: Tensor, y_pred: Tensor) -> Tensor | None:
        """Returns what `MaskedCrossentropy` recorded with the logits."""
        return crossentropies_of(y_pred, y_true, self.pad_id)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Perplexity(TokenCrossentropy):
    """Computes `exp` of the mean crossentropy over all real tokens.

    The mean is `TokenCrossentropy`'s, over every token of every batch, so this is
    not a mean of perplexities. In float32 it is infinite above a mean of 88.7 nats.

    Shapes: B batch, T target length, V vocabulary.

    Args:
        pad_id: Label of the positions that do not count.
        name: Name in the logs; None: Keras's own.
        dtype: Dtype of the sums; None: Keras's default of floats.

    Call arguments:
        y_true: Integer labels `(B, T)`, each `pad_id` or in [0, V).
        y_pred: Logits `(B, T, V)`.
        sample_weight: Optional weights of the tokens, `(B, T)` or `(B,)`.

    Returns:
        Scalar; 1 before the first real token.

    Raises:
        ValueError: As `MaskedCrossentropy` does; NaN where it gives NaN.

    Example:
        >>> import numpy as np
        >>> metric = Perplexity()
        >>> metric.update_state(np.array([[3, 0]]), np.zeros((1, 2, 5)))
        >>> round(float(metric.result()), 4)
        5.0
    """

    def __init__(
        self, pad_id: int = 0, name: str | None = "perplexity", dtype: Dtype = "float32"
    ) -> None:
        super().__init__(pad_id=pad_id, name=name, dtype=dtype)

    def result(self) -> Tensor:
        """Returns the perplexity of all tokens seen."""
        return ops.exp(super().result())


@keras.saving.register_keras_serializable(package="keras_seqattn")
class MaskedAccuracy(TokenMean):
    """Computes the fraction of real tokens whose label has the largest logit.

    `sum(w * (argmax(z) == label)) / sum(w)` over every token of every batch; `w` is
    0 where the label is `pad_id`, else the sample weight or 1.

    Shapes: B batch, T target length, V vocabulary.

    Args:
        pad_id: Label of the positions that do not count.
        name: Name in the logs; None: Keras's own.
        dtype: Dtype of the sums; None: Keras's default of floats.

    Call arguments:
        y_true: Integer labels `(B, T)`, each `pad_id` or in [0, V).
        y_pred: Logits, or other scores that increase with them, `(B, T, V)`.
        sample_weight: Optional weights of the tokens, `(B, T)` or `(B,)`.

    Returns:
        Scalar in [0, 1]; 0 before the first real token.

    Raises:
        ValueError: As `MaskedCrossentropy` does. Inside a compiled program a label
            out of range counts as wrong.

    Example:
        >>> import numpy as np
        >>> metric = MaskedAccuracy()
        >>> logits = np.array([[[0.0, 2.0, 1.0], [0.0, 2.0, 1.0], [3.0, 0.0, 0.0]]])
        >>> metric.update_state(np.array([[1, 2, 0]]), logits)
        >>> float(metric.result())
        0.5
    """

    def __init__(
        self, pad_id: int = 0, name: str | None = "accuracy", dtype: Dtype = "float32"
    ) -> None:
        super().__init__(pad_id=pad_id, name=name, dtype=dtype)

    def token_values(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Returns `(N,)`, True where the label has the largest logit."""
        # `argmax` would take twice as long on TensorFlow, three times as long on JAX.
        _, predicted = ops.top_k(logits, 1)  # (N, 1)
        return ops.squeeze(predicted, -1) == labels
