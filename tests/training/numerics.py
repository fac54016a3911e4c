"""Gradients on whichever backend the tests run."""

import keras
import numpy as np


def value_and_gradient(function, x):
    """Returns a scalar function's value and its gradient at `x`, as NumPy arrays."""
    x = keras.ops.convert_to_tensor(x)
    value, gradient = _BACKENDS[keras.backend.backend()](function, x)
    # NumPy has no bfloat16 of its own: float32 holds every 16-bit float.
    gradient = keras.ops.cast(gradient, "float32")
    return float(value), keras.ops.convert_to_numpy(gradient)


def _tensorflow(function, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        value = function(x)
    return value, tape.gradient(value, x)


def _jax(function, x):
    import jax

    return jax.value_and_grad(function)(x)


def _torch(function, x):
    x = x.detach().requires_grad_()
    value = function(x)
    value.backward()
    return value.detach(), x.grad


_BACKENDS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


def reference(labels, logits, weights=None, label_smoothing=0.0, pad_id=0):
    """Float64 loop: the weighted sum of the losses, the weights' sum, the gradient."""
    logits = np.asarray(logits, "float64")
    gradient = np.zeros_like(logits)
    loss_sum = weight_sum = 0.0
    for position in np.ndindex(*labels.shape):
        label, row = labels[position], logits[position]
        if label == pad_id:
            continue
        weight = 1.0 if weights is None else float(weights[position])
        target = np.full(row.size, label_smoothing / row.size)
        target[label] += 1 - label_smoothing
        log_probs = row - row.max() - np.log(np.sum(np.exp(row - row.max())))
        loss_sum -= weight * np.sum(target * log_probs)
        weight_sum += weight
        gradient[position] = weight * (np.exp(log_probs) - target)
    return loss_sum, weight_sum, gradient
