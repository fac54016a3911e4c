"""Logits over a vocabulary, and what they are the product of.

Shapes: B batch, L length, N tokens, D model_dim, V vocabulary.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.layers.embedding.notes import Notes
from keras_seqattn.layers.weights.lora import KeepsLora
from keras_seqattn.layers.weights.quantization import QuantizedAsParent

_FACTORS, _CROSSENTROPIES = Notes("factors"), Notes("crossentropies")


@dataclasses.dataclass(frozen=True)
class Factors:
    """What logits are the product of.

    Attributes:
        hidden: Float tensor `(..., D)`.
        kernel: Float tensor `(D, V)`.
    """

    hidden: Any
    kernel: Any


def remember_factors(logits, hidden, kernel):
    """Notes on logits that they are `hidden . kernel`.

    A loss that finds the note (`factors_of`) can do without the logits, whose product
    a compiled program then leaves out. On torch, which has computed them by then,
    nothing is noted.

    Args:
        logits: Float tensor `(..., V)`.
        hidden: Float tensor `(..., D)`.
        kernel: Float tensor `(D, V)`.

    Returns:
        `logits`.

    Example:
        >>> import numpy as np
        >>> x, kernel = ops.ones((2, 3)), ops.ones((3, 4))
        >>> logits = remember_factors(ops.matmul(x, kernel), x, kernel)
        >>> tuple(logits.shape)
        (2, 4)
    """
    symbolic = isinstance(logits, keras.KerasTensor)
    is_empty = 0 in logits.shape  # What is computed a block at a time needs a row.
    if not symbolic and not is_empty and keras.backend.backend() != "torch":
        _FACTORS.write(logits, Factors(hidden, kernel))
    return logits


def factors_of(logits):
    """Gives what `remember_factors` noted on logits.

    Args:
        logits: Any tensor.

    Returns:
        `Factors`, or None.

    Example:
        >>> factors_of(ops.ones((2, 4))) is None
        True
    """
    return _FACTORS.read(logits)


def remember_crossentropies(logits, labels, pad_id, crossentropies):
    """Notes on logits each token's crossentropy, for metrics after the loss.

    Args:
        logits: Float tensor `(B, T, V)`.
        labels: Integer tensor `(B, T)`.
        pad_id: The label that does not count.
        crossentropies: Float32 tensor `(B * T,)`.

    Example:
        >>> logits, labels = ops.zeros((1, 2, 5)), ops.ones((1, 2), "int32")
        >>> remember_crossentropies(logits, labels, 0, ops.ones(2))
        >>> float(ops.sum(known_crossentropies(logits, labels, 0)))
        2.0
    """
    # A gradient ends here, so on JAX the value is known outside of it too.
    note = labels, pad_id, ops.stop_gradient(crossentropies)
    _CROSSENTROPIES.write(_outside_of_gradient(logits), note)


def known_crossentropies(logits, labels, pad_id):
    """Gives what `remember_crossentropies` noted for the very same labels.

    Args:
        logits: Float tensor `(B, T, V)`.
        labels: Integer tensor `(B, T)`.
        pad_id: The label that does not count.

    Returns:
        Float32 tensor `(B * T,)`, or None.

    Example:
        >>> known_crossentropies(ops.zeros((1, 2, 5)), ops.ones((1, 2)), 0) is None
        True
    """
    note = _CROSSENTROPIES.read(_outside_of_gradient(logits))
    if note is None:
        return None
    noted_labels, noted_pad_id, crossentropies = note
    same = noted_labels is labels and noted_pad_id == pad_id
    return crossentropies if same else None


def _outside_of_gradient(logits):
    """Gives what a function that JAX differentiates hands on as these logits."""
    return getattr(logits, "primal", logits)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TokenLogits(arguments.Checked, KeepsLora, QuantizedAsParent, keras.layers.Dense):
    """Scores every token of a vocabulary: logits = x . kernel, without bias.

    While training it notes on the logits what they are the product of, which
    `training.MaskedCrossentropy` uses to compute real tokens alone, a block of rows
    at a time. Being Keras's own `Dense`, it takes LoRA and `quantize` as that layer
    does. For logits tied to an embedding see `PositionalEmbedding`.
    Shapes: B batch, L length, D model_dim, V vocabulary_size.

    Args:
        vocabulary_size: Number of token ids V, a positive integer.
        **kwargs: Arguments of `keras.layers.Dense`.

    Call arguments:
        inputs: Float tensor `(..., D)`.
        training: Whether to note the factors.

    Returns:
        Float tensor `(..., V)` in the compute dtype.

    Raises:
        ValueError: If `vocabulary_size` is not a positive integer.

    Example:
        >>> import numpy as np
        >>> layer = TokenLogits(vocabulary_size=100)
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 100)

    Reference:
        Vaswani et al. 2017, section 3.4. Differs: none.
    """

    def __init__(self, vocabulary_size, **kwargs):
        arguments.positive_integer("vocabulary_size", vocabulary_size)
        super().__init__(vocabulary_size, use_bias=False, **kwargs)
        self.vocabulary_size = vocabulary_size

    def call(self, inputs, training=None):
        """Gives the logits of `inputs`."""
        logits = super().call(inputs, training=training)
        if training and self.activation is keras.activations.linear:
            kernel = ops.cast(ops.convert_to_tensor(self.kernel), inputs.dtype)
            remember_factors(logits, inputs, kernel)
        return logits

    def get_config(self):
        """Gives the constructor's arguments."""
        config = super().get_config()
        for owned in ("units", "use_bias"):
            config.pop(owned)
        return {**config, "vocabulary_size": self.vocabulary_size}
