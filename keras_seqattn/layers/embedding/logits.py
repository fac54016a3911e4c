"""Logits over a vocabulary, with records of the vectors and kernel they come from.

While training, `TokenLogits.call` and `PositionalEmbedding.call` record the factors of
the logits with the logits: hidden vectors and kernel (`keep_factors`).
`MaskedCrossentropy` reads these (`factors_of`), and records each token's crossentropy
with the same logits (`keep_crossentropies`); `TokenCrossentropy` and `Perplexity` read
it (`crossentropies_of`). A record lasts as long as its tensor. Any operation on the
logits makes another tensor, without factors. The loss is then computed from that
tensor, with the same result, but all logits are held. No other tensors in this package
carry records.

Why: a loss over a large vocabulary needs the factors of the logits, not the logits.
Computed from the factors, over only the real tokens, a training step takes a half to
two thirds of the time it takes otherwise (`benchmarks/paths.py`, row "factors"). But
`fit` calls the model as `model(x, training=True)`, which returns logits, and passes
only these to the loss and the metrics, on all three backends' trainers.

Tried instead: `Model.compute_loss`, which is given `x` too, computes the vectors again.
What `fit` computed before is then unused, and a compiled program leaves most of it out:
a step takes 1.10 times as long on TensorFlow without XLA, 1.08 on JAX and 0.98 on
TensorFlow with XLA (medians of 5 rounds of 6 steps, shape T1 of `benchmarks/README.md`,
2026-11-24, 2 cores, AMD EPYC, beside other work). But it takes twice as long if a
metric needs the logits or the model runs eagerly, and losses that layers add count
twice. If the factors were kept on the model instead, one replica would read those of
another, since `tf.distribute.MirroredStrategy` traces replicas in threads.

Shapes: B batch, T length, D model_dim, V vocabulary.
"""

import dataclasses
import weakref
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.backend import tracing
from keras_seqattn.layers.weights.lora import KeepsLora
from keras_seqattn.layers.weights.quantization import QuantizedAsParent

# Records are attributes of a tensor. JAX's tracers take no attributes: their records
# are kept here by tracer id and record name, with a weak reference to the tracer.
_FACTORS, _CROSSENTROPIES = "_keras_seqattn_factors", "_keras_seqattn_crossentropies"
_OF_TRACERS = {}


@dataclasses.dataclass(frozen=True)
class Factors:
    """Holds the factors of logits, `(..., D)` and `(D, V)`."""

    hidden: Any
    kernel: Any


@dataclasses.dataclass(frozen=True)
class Crossentropies:
    """Holds each token's crossentropy, and the labels and padding id it is for."""

    labels: Any
    pad_id: int
    values: Any


def keep_factors(logits: Any, hidden: Any, kernel: Any, bias: Any = None) -> Any:
    """Records that logits `(..., V)` are `hidden . kernel + bias`, and returns them.

    A loss that uses these factors (`factors_of`) does not use the logits, so a compiled
    program leaves out their product. On torch, which has computed it by then, nothing
    is recorded.
    """
    is_symbolic = isinstance(logits, keras.KerasTensor)
    is_empty = 0 in logits.shape  # A loss in blocks needs a token.
    if not is_symbolic and not is_empty and tracing.leaves_out_unused():
        factors = (hidden, kernel) if bias is None else _join(hidden, kernel, bias)
        _write(logits, _FACTORS, Factors(*factors))
    return logits


def factors_of(logits: Any) -> Factors | None:
    """Returns what `keep_factors` recorded for logits, or None."""
    return _read(logits, _FACTORS)


def keep_crossentropies(logits: Any, labels: Any, pad_id: int, values: Any) -> None:
    """Records each token's crossentropy with the logits, for metrics after the loss.

    The logits are `(B, T, V)`, the labels `(B, T)`, the values float32 `(B * T,)`; the
    label `pad_id` does not count.
    """
    # On JAX the loss is computed within `jax.grad`, and metrics outside of it. There
    # the logits are their primal, and a tensor with a gradient, which is a tracer of
    # `jax.grad`, is no longer valid: hence `stop_gradient`.
    record = Crossentropies(labels, pad_id, ops.stop_gradient(values))
    for tensor in (logits, _primal(logits)):
        _write(tensor, _CROSSENTROPIES, record)


def crossentropies_of(logits: Any, labels: Any, pad_id: int) -> Any:
    """Returns what `keep_crossentropies` recorded for the very same labels, or None."""
    record = _read(logits, _CROSSENTROPIES)
    if record is None or record.labels is not labels or record.pad_id != pad_id:
        return None
    return record.values


def _write(tensor, name, record):
    """Keeps a record of a tensor for as long as the tensor lives."""
    try:
        # As an attribute: if the record refers to the tensor's own graph, the two are
        # only a cycle, and freed together. A table would keep both.
        setattr(tensor, name, record)
    except AttributeError:
        key = id(tensor), name
        reference = weakref.ref(tensor, lambda _: _OF_TRACERS.pop(key, None))
        _OF_TRACERS[key] = reference, record


def _read(tensor, name):
    """Returns the record of this name that `_write` kept of a tensor, or None."""
    reference, record = _OF_TRACERS.get((id(tensor), name), (None, None))
    # The id may once have been that of another tensor.
    if reference is not None and reference() is tensor:
        return record
    return getattr(tensor, name, None)


def _primal(tensor):
    """Returns what a tensor is outside of `jax.grad`: its primal, or itself.

    JAX has no way to pass on more from a gradient than its function's results:
    https://github.com/jax-ml/jax/issues/5131
    """
    return getattr(tensor, "primal", tensor)


def _join(hidden, kernel, bias):
    """Returns factors `(..., D + 1)` and `(D + 1, V)` of `hidden . kernel + bias`."""
    hidden = ops.concatenate([hidden, ops.ones_like(hidden[..., :1])], axis=-1)
    row = ops.cast(ops.convert_to_tensor(bias), kernel.dtype)[None]
    return hidden, ops.concatenate([kernel, row], axis=0)


class LogitsBias(keras.layers.Layer):
    """Adds a learned bias `(V,)` to logits; part of an embedding, and saved with it."""

    def __init__(self, **kwargs: Any) -> None:
        # The logits stay in their dtype, which may be the embedding's `reverse_dtype`.
        super().__init__(autocast=False, **kwargs)

    def build(self, logits_shape: Any) -> None:
        """Makes the bias."""
        self.bias = self.add_weight(
            name="bias", shape=(logits_shape[-1],), initializer="zeros"
        )

    def call(self, logits: Any) -> Any:
        """Adds the bias."""
        return logits + ops.cast(self.bias, logits.dtype)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class TokenLogits(arguments.Checked, KeepsLora, QuantizedAsParent, keras.layers.Dense):
    """Scores every token of a vocabulary: logits = x . kernel, and a bias if asked for.

    While training on TensorFlow and JAX, unless it has an `activation`, it records the
    factors of the logits with them. From these factors, `training.MaskedCrossentropy`
    computes only the real tokens, a block at a time. As a subclass of Keras's `Dense`,
    it takes LoRA and `quantize` as that layer does. For logits tied to an embedding see
    `PositionalEmbedding`.
    Shapes: B batch, L length, D model_dim, V vocabulary_size.

    Args:
        vocabulary_size: Number of token ids V, a positive integer.
        use_bias: Whether logits have a bias `(V,)`.
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
        Vaswani et al. 2017, section 3.4. Differs: the kernel is the layer's own; theirs
        is the table of the embedding, as in `PositionalEmbedding`.
    """

    def __init__(
        self, vocabulary_size: int, use_bias: bool = False, **kwargs: Any
    ) -> None:
        size = arguments.positive_integer("vocabulary_size", vocabulary_size)
        use_bias = arguments.boolean("use_bias", use_bias)
        super().__init__(size, use_bias=use_bias, **kwargs)
        self.vocabulary_size = size

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Computes the logits of `inputs`."""
        logits = super().call(inputs, training=training)
        if training and self.activation is keras.activations.linear:
            kernel = ops.cast(ops.convert_to_tensor(self.kernel), inputs.dtype)
            keep_factors(logits, inputs, kernel, self.bias)
        return logits

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = super().get_config()
        config.pop("units")
        return {**config, "vocabulary_size": self.vocabulary_size}
