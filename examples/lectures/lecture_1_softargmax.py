"""Lecture 1: attention is a softargmax over keys, and so a mixture of values.

    python examples/lectures/lecture_1_softargmax.py

A query q is compared with each of tau keys. The softargmax of beta times the scores
gives weights a, which sum to 1. The output is h = V a. These lectures write vectors as
columns: Q in R^(d' x t), K in R^(d' x tau), V in R^(d'' x tau),

    A = softargmax(beta K^T Q),  H = V A,

where the *columns* of A sum to 1. The library writes vectors as rows, so everything is
transposed. d' (keys) and d'' (values) may differ.

It needs `pip install ".[tensorflow,plot]"`.
"""

import blackboard
import numpy as np
from keras import ops

import keras_seqattn as ks

KEYS = np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]], "float32")
VALUES = np.array([[1, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]], "float32")
QUERIES = np.array([[0, 10, 0], [0, 0, 10], [10, 10, 0]], "float32")
BETA = 1 / 8


def main():
    args = blackboard.arguments(__doc__)
    print("Rows: a query in each row of Q, a key in each row of K.")
    attention = ks.layers.ScaledDotProductAttention(scale=BETA)
    outputs, weights = attention(
        QUERIES[None], VALUES[None], KEYS[None], return_attention_scores=True
    )
    for query, row, output in zip(QUERIES, weights[0], outputs[0], strict=True):
        blackboard.show(f"weights of q = {query.astype(int).tolist()}", row)
        blackboard.show(f"output of q = {query.astype(int).tolist()}", output)

    print("Columns: the same, transposed.")
    columns, mixed = in_columns(QUERIES.T, KEYS.T, VALUES.T)
    blackboard.show("sums of the columns of A", ops.sum(columns, axis=0))
    blackboard.show(
        "largest difference of A", blackboard.difference(columns.T, weights[0])
    )
    largest = blackboard.array(outputs).max()
    blackboard.show(
        "largest difference of H, to its largest number",
        blackboard.difference(mixed.T, outputs[0]) / largest,
    )
    blackboard.save(picture(), args.output / "1_softargmax.png")


def in_columns(queries, keys, values):
    """Computes A and H as the lectures write them."""
    scores = BETA * ops.matmul(keys.T, queries)  # (tau, t)
    weights = blackboard.array(ops.softmax(scores, axis=0))
    return weights, values @ weights


def picture():
    """Draws how the weights harden, from a mean to an argmax, as beta grows."""
    betas = np.geomspace(1e-3, 1, 60)
    query, keys = np.array([[[6.0, 7.0, 5.0]]], "float32"), KEYS[None]
    weights = [
        blackboard.array(
            ks.layers.attention_scores(query[:, :, None], keys[:, :, None], scale=beta)
        )[0, 0, 0]
        for beta in betas
    ]
    figure, (panel,) = blackboard.panels(1, width=5.5)
    names = ("k1", "k2, the best", "k3 and k4, which are equal")
    # The curve of k4 is that of k3.
    for name, curve in zip(names, np.transpose(weights), strict=False):
        panel.semilogx(betas, curve, label=name, linewidth=2)
    panel.set_xlabel("inverse temperature beta")
    panel.set_ylabel("attention weight")
    panel.set_title("Softargmax of beta q . k, for q = (6, 7, 5)", fontsize=10)
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
