"""A layer's weights in the form the oracle takes, float64 NumPy."""

import numpy as np
from keras import ops


def randomize(layer, rng):
    """Gives every weight random numbers, so that no bias is zero by chance."""
    for weight in layer.trainable_weights:
        fan_in = np.sqrt(np.prod(weight.shape[:-1]) or 1.0)
        weight.assign(rng.normal(size=weight.shape) / fan_in)


def _numpy(variable):
    return ops.convert_to_numpy(variable.value).astype("float64")


def dense_weights(dense):
    """Kernel and bias, or None, of a `Dense` or `EinsumDense`."""
    return _numpy(dense.kernel), None if dense.bias is None else _numpy(dense.bias)


def feed_forward_weights(layer):
    """The weights of a `FeedForward`."""
    weights = {
        "intermediate": dense_weights(layer.hidden_dense),
        "output": dense_weights(layer.output_dense),
    }
    if layer.gated:
        weights["gate"] = dense_weights(layer.gate_dense)
    return weights


def attention_weights(layer):
    """The weights of a `MultiHeadAttention`."""
    weights = {
        name: dense_weights(getattr(layer, f"{name}_dense"))
        for name in ("query", "key", "value", "output")
    }
    if layer.use_gate:
        weights["gate"] = dense_weights(layer._gate_dense)
    return weights


def norm_weights(norm):
    """(gamma, beta) of a `LayerNormalization`, (scale,) of an `RMSNormalization`."""
    return tuple(_numpy(weight) for weight in norm.weights)


def block_weights(block):
    """The weights of an `EncoderBlock` or a `DecoderBlock`."""
    residuals = {
        "attention": (block.attention_residual, attention_weights),
        "feed_forward": (block.feed_forward_residual, feed_forward_weights),
    }
    if block.cross_residual is not None:
        residuals["cross_attention"] = (block.cross_residual, attention_weights)
    weights = {}
    for name, (residual, sublayer_weights) in residuals.items():
        weights[name] = sublayer_weights(residual.sublayer)
        weights[f"{name}_norm"] = norm_weights(residual.norm_layer)
    return weights
