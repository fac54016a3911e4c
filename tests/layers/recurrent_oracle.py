"""What the recurrent layers must compute: float64 NumPy, one vector at a time.

Weights are a layer's own, by `encoder_weights` and `decoder_weights`; a recurrence's
are those of a Keras GRU, (kernel, recurrent kernel, two biases) with the gates update,
reset and candidate side by side, or those of a plain cell, (kernel, bias).
"""

import numpy as np
from keras import ops

from tests import oracle
from tests.layers.weights import dense_weights


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def next_state(x, h, weights):
    """The state after one vector: (D,), (U,) -> (U,)."""
    if len(weights) == 2:
        kernel, bias = weights
        return np.tanh(np.concatenate([x, h]) @ kernel + bias)
    kernel, recurrent_kernel, (input_bias, recurrent_bias) = weights
    from_x = np.split(x @ kernel + input_bias, 3)
    from_h = np.split(h @ recurrent_kernel + recurrent_bias, 3)
    update = sigmoid(from_x[0] + from_h[0])
    reset = sigmoid(from_x[1] + from_h[1])
    candidate = np.tanh(from_x[2] + reset * from_h[2])
    return update * h + (1.0 - update) * candidate


def recurrence(x, weights, h, mask=None, backwards=False, hold=False):
    """States (L, U) of one sequence (L, D), and the final one.

    A masked vector changes no state; its own is zero, or with `hold` the one before.
    """
    states = np.zeros((len(x), len(h)))
    for i in reversed(range(len(x))) if backwards else range(len(x)):
        real = mask is None or mask[i]
        h = next_state(x[i], h, weights) if real else h
        states[i] = h if real or hold else 0.0
    return states, h


def encoder(x, layers, units, mask=None):
    """Hidden states (B, L, E) and final states (B, E).

    Args:
        x: Array (B, L, D).
        layers: For each layer the weights of one recurrence, or of two directions.
        units: Width of a state.
        mask: Bool array (B, L), or None.
    """
    hidden, final = [], []
    for b, sequence in enumerate(np.asarray(x, "float64")):
        row = None if mask is None else mask[b]
        for directions in layers:
            found = [
                recurrence(sequence, weights, np.zeros(units), row, backwards=i == 1)
                for i, weights in enumerate(directions)
            ]
            sequence = np.concatenate([states for states, _ in found], axis=-1)
        hidden.append(sequence)
        final.append(np.concatenate([h for _, h in found]))
    return np.stack(hidden), np.stack(final)


def decoder(target, source, state, weights, units, target_mask=None, source_mask=None):
    """Output (B, T, U) and attention weights (B, 1, T, S).

    Args:
        target: Array (B, T, D).
        source: Array (B, S, E).
        state: Array (B, E).
        weights: Dict of "layers" (a recurrence's weights each), "state", "query",
            "key" and "output" (kernel, bias or None) and "vector" (A,).
        units: Width of a state.
        target_mask: Bool array (B, T), or None.
        source_mask: Bool array (B, S), or None.
    """
    shape = (*np.shape(target)[:2], np.shape(source)[1])
    outputs, scores = np.zeros((*shape[:2], units)), np.zeros(shape)
    for b in range(shape[0]):
        first = np.tanh(oracle.dense(state[b][None], *weights["state"]))[0]
        hidden = np.asarray(target[b], "float64")
        for layer, h in zip(weights["layers"], first.reshape(-1, units), strict=True):
            row = None if target_mask is None else target_mask[b]
            hidden, _ = recurrence(hidden, layer, h, row, hold=True)
        keys = oracle.dense(source[b], *weights["key"])
        for t in range(shape[1]):
            query = oracle.dense(hidden[t][None], *weights["query"])[0]
            allowed = [
                s
                for s in range(shape[2])
                if (source_mask is None or source_mask[b, s])
                and (target_mask is None or target_mask[b, t])
            ]
            context = np.zeros(np.shape(source)[2])
            if allowed:
                logits = [weights["vector"] @ np.tanh(query + keys[s]) for s in allowed]
                scores[b, t, allowed] = oracle.softmax(logits)
                context = scores[b, t] @ np.asarray(source[b], "float64")
            joined = np.concatenate([context, hidden[t]])
            outputs[b, t] = np.tanh(oracle.dense(joined[None], *weights["output"]))[0]
    return outputs, scores[:, None]


def numpy_weights(layer):
    return [ops.convert_to_numpy(weight).astype("float64") for weight in layer.weights]


def encoder_weights(encoder):
    """Per layer the weights of each direction."""
    return [
        [
            numpy_weights(direction)
            for direction in (
                (recurrence.forward_layer, recurrence.backward_layer)
                if encoder.bidirectional
                else (recurrence,)
            )
        ]
        for recurrence in encoder.recurrences
    ]


def decoder_weights(decoder):
    """The weights of an `AttentiveRecurrentDecoder`."""
    weights = {
        name: dense_weights(getattr(decoder, f"{name}_dense"))
        for name in ("state", "query", "key", "output")
    }
    vector = ops.convert_to_numpy(decoder.vector.value).astype("float64")[0]
    layers = [numpy_weights(recurrence) for recurrence in decoder.recurrences]
    return {**weights, "vector": vector, "layers": layers}
