"""Greedy search by a loop over whole passes."""

import numpy as np

from tests.evaluate import outputs


def naive_greedy(model, source_ids, max_length):
    """Translates one sentence with one whole pass a token; no cache.

    Args:
        model: A model from `source_ids` and `target_ids` to logits.
        source_ids: Integers `(length,)`.
        max_length: The number of tokens, the end included, that it stops at.

    Returns:
        The tokens without the end, and their log-probability in float64.
    """
    target, score = [model.start_id], 0.0
    for _ in range(max_length):
        padded = np.pad(target, (0, max_length + 1 - len(target)))
        inputs = {"source_ids": source_ids[None], "target_ids": padded[None]}
        row = outputs(model, inputs)[0, len(target) - 1].astype("float64")
        log_probs = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        allowed = log_probs.copy()
        allowed[[model.pad_id, model.start_id]] = -np.inf
        target.append(int(allowed.argmax()))
        score += log_probs[target[-1]]
        if target[-1] == model.end_id:
            return target[1:-1], score
    return target[1:], score
