"""The worked examples B and G of the lectures, which span rooms, on every backend.

The others stand with what they are examples of: A, D and F in `layers.attention` and
`layers.additive`, C in `layers.recurrent`, E in `layers.positions`, H and J in
`models.language`, `models.recurrent` and `models.transformer`.
"""

import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding, layers
from tests import oracle

HEADS, KEY_DIM, WIDTH = 3, 4, 6


@pytest.mark.parametrize("stages", [1, 2])
def test_heads_at_once_are_heads_one_by_one(rng, stages):
    """B: a stacked projection, made of two where a head projects what all share."""
    x = rng.normal(size=(1, 5, WIDTH))
    shared = [rng.normal(size=(WIDTH, WIDTH)) / WIDTH for _ in range(3)]
    of_heads = [rng.normal(size=(HEADS, WIDTH, KEY_DIM)) / WIDTH for _ in range(3)]
    if stages == 1:
        shared = [np.eye(WIDTH)] * 3
    join = rng.normal(size=(HEADS, KEY_DIM, WIDTH)) / WIDTH
    fused = layers.MultiHeadAttention(HEADS, KEY_DIM, use_bias=False)
    fused.build(x.shape, x.shape)
    denses = fused.query_dense, fused.key_dense, fused.value_dense
    for dense, first, second in zip(denses, shared, of_heads, strict=True):
        dense.kernel.assign(np.einsum("de,hek->dhk", first, second))
    fused.output_dense.kernel.assign(join)
    expected = 0.0
    for head in range(HEADS):
        query, key, value = (
            (x @ first @ second[head])[:, :, None]
            for first, second in zip(shared, of_heads, strict=True)
        )
        attended, _ = oracle.attention(query, key, value)
        expected = expected + attended[:, :, 0] @ join[head]
    output = fused(x.astype("float32"), x.astype("float32"))
    np.testing.assert_allclose(ops.convert_to_numpy(output), expected, atol=1e-6)


def test_the_word_at_the_largest_log_probability_is_said(rng):
    """G: from logits to log-probabilities, to an index, to its word."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "I", "am", "a", "student"]
    logits = rng.normal(size=len(words)).astype("float32")
    logits[5] = logits.max() + 1.0
    log_probabilities = ops.log_softmax(ops.convert_to_tensor(logits))
    assert words[int(ops.argmax(log_probabilities))] == "am"
    assert words[int(np.argmax(logits))] == "am"

    def step(token_ids, state, index):
        return ops.broadcast_to(ops.convert_to_tensor(logits), (1, 1, 8)), state

    state = {"beam": {}, "sentence": {}}
    found = decoding.search(step, state, batch_size=1, max_length=1)
    assert [words[i] for i in found.token_ids[0, 0]] == ["am"]
    expected = float(log_probabilities[5])
    np.testing.assert_allclose(found.scores, [[expected]], atol=1e-6)
