"""The loss and its gradient in float64 NumPy and plain loops."""

import numpy as np


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
