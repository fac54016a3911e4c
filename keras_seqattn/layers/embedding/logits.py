"""Logits over a vocabulary.

Shapes: B batch, L length, D model_dim, V vocabulary.
"""

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.layers.embedding.factors import keep_factors
from keras_seqattn.layers.weights.lora import KeepsLora
from keras_seqattn.layers.weights.quantization import QuantizedAsParent


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TokenLogits(arguments.Checked, KeepsLora, QuantizedAsParent, keras.layers.Dense):
    """Scores every token of a vocabulary: logits = x . kernel, without bias.

    While training it records with the logits what they are the product of, of which
    `training.MaskedCrossentropy` computes real tokens alone, a block at a time. Being
    Keras's own `Dense`, it takes LoRA and `quantize` as that layer does. For logits
    tied to an embedding see `PositionalEmbedding`.
    Shapes: B batch, L length, D model_dim, V vocabulary_size.

    Args:
        vocabulary_size: Number of token ids V, a positive integer.
        **kwargs: Arguments of `keras.layers.Dense`.

    Call arguments:
        inputs: Float tensor `(..., D)`.
        training: Whether to record the factors.

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
        """Computes the logits of `inputs`."""
        logits = super().call(inputs, training=training)
        if training and self.activation is keras.activations.linear:
            kernel = ops.cast(ops.convert_to_tensor(self.kernel), inputs.dtype)
            keep_factors(logits, inputs, kernel)
        return logits

    def get_config(self):
        """Returns the constructor's arguments."""
        config = super().get_config()
        for owned in ("units", "use_bias"):
            config.pop(owned)
        return {**config, "vocabulary_size": self.vocabulary_size}
