"""Lecture 3: the matrix form, with encoder and decoder of different lengths.

    python examples/lectures/lecture_3_matrices.py

One output is z_i = sum_j alpha_ij v_j, where alpha_i is the softmax of q_i . k_j /
sqrt(d_k) over j. All outputs at once are the rows of Z = softmax(Q K^T / sqrt(d_k)) V,
or the columns of its transpose. In a decoder, Q comes from the target, K and V from the
encoder, whose length may differ.

It needs `pip install ".[tensorflow,plot]"`.
"""

import blackboard
import keras
import numpy as np
from keras import ops

import keras_seqattn as ks

TARGET, SOURCE, WIDTH = 3, 5, 8


def main():
    args = blackboard.arguments(__doc__)
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.normal(size=(length, WIDTH)).astype("float32")
        for length in (TARGET, SOURCE, SOURCE)
    )
    print(f"{TARGET} queries look at {SOURCE} keys and values.")
    rows = ks.layers.ScaledDotProductAttention()(q[None], v[None], k[None])[0]
    blackboard.show("vector loop - rows", blackboard.difference(by_loop(q, k, v), rows))
    columns = by_columns(q.T, k.T, v.T)
    blackboard.show("columns - rows", blackboard.difference(columns.T, rows))

    print("A decoder block, fed by a stack of encoder blocks.")
    scores = decode(rng)
    print(f"  cross-attention (batch, heads, target, source): {scores.shape}")
    blackboard.show("sums over the source, least and most", *extremes(scores.sum(-1)))
    figure = ks.plotting.attention_map(
        scores[0],
        ["Jane", "visite", "l'Afrique", "en", "septembre"],
        ["<sos>", "Jane", "visits"],
        title="Cross-attention, untrained: 3 target and 5 source tokens",
    )
    blackboard.save(figure, args.output / "3_cross_attention.png")


def by_loop(queries, keys, values):
    """Computes each z_i by itself, from vectors."""
    outputs = []
    for q in queries:
        scores = ops.stack([ops.vdot(q, k) for k in keys]) / WIDTH**0.5
        alpha = blackboard.array(ops.softmax(scores))
        outputs.append(sum(a * v for a, v in zip(alpha, values, strict=True)))
    return np.stack(outputs)


def by_columns(queries, keys, values):
    """Computes Z with a vector in each column."""
    alpha = ops.softmax(ops.matmul(keys.T, queries) / WIDTH**0.5, axis=0)
    return blackboard.array(ops.matmul(values, alpha))


def decode(rng):
    """Returns the cross-attention of a decoder block over two encoder blocks."""
    source, target = (
        rng.normal(size=(1, length, WIDTH)).astype("float32")
        for length in (SOURCE, TARGET)
    )
    # The first block takes the embedding, the second the output of the first.
    for _ in range(2):
        source = ks.layers.EncoderBlock(num_heads=2, intermediate_dim=16)(source)
    block = ks.layers.DecoderBlock(num_heads=2, intermediate_dim=16)
    _, _, scores = block(target, source, return_attention_scores=True)
    return blackboard.array(scores)


def extremes(numbers):
    return numbers.min(), numbers.max()


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    main()
