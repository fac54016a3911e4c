"""Lecture 2: how query and key are compared, and what two heads are.

    python examples/lectures/lecture_2_scores_and_heads.py

Self-attention scores a query q against a key k by their dot product q . k, scaled or
not, or by a small network, v . tanh(W_q q + W_k k). Each head has its own projections;
a matrix W^o joins the outputs of the heads.

It needs `pip install ".[tensorflow,plot]"`.
"""

import blackboard
import keras
import numpy as np
from keras import ops

import keras_seqattn as ks

QUERY = np.array([[[1, 0]]], "float32")
KEYS = np.array([[[1, 0], [0, 1]]], "float32")
LENGTH, WIDTH, HEADS, KEY_DIM = 5, 6, 2, 3


def main():
    args = blackboard.arguments(__doc__)
    print("q = [1, 0] looks at the keys [1, 0] and [0, 1].")
    weights = {
        "dot product": weights_of(ks.layers.ScaledDotProductAttention(scale=1.0)),
        "scaled by 1 / sqrt(2)": weights_of(ks.layers.ScaledDotProductAttention()),
    }
    additive = identity_network()
    hidden = additive.query_dense(QUERY) + additive.key_dense(KEYS)
    scores = ops.sum(additive.vector * ops.tanh(hidden), axis=-1)
    blackboard.show("additive scores", scores)
    weights["additive"] = weights_of(additive)
    for name, row in weights.items():
        blackboard.show(f"weights, {name}", row)

    print("Two heads, on random weights.")
    heads()
    blackboard.save(picture(weights), args.output / "2_scores.png")


def weights_of(layer):
    """Returns the weights with which a layer looks at the two keys."""
    return layer(QUERY, KEYS, return_attention_scores=True)[1][0, 0]


def identity_network():
    """Makes an additive attention with identity W_q and W_k, and a v of ones."""
    layer = ks.layers.AdditiveAttention(units=2)
    layer(QUERY, KEYS)
    for dense in (layer.query_dense, layer.key_dense):
        dense.kernel.assign(np.eye(2))
    layer.vector.assign(np.ones(2))
    return layer


def heads():
    """Computes two heads at once, one by one, and in two stages of projections."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, LENGTH, WIDTH)).astype("float32")
    # q = W x first, then a second projection of it for each head.
    first = {
        name: rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5 for name in ("q", "k", "v")
    }
    second = {
        name: rng.normal(size=(WIDTH, HEADS, KEY_DIM)) / WIDTH**0.5 for name in first
    }
    join = rng.normal(size=(HEADS, KEY_DIM, WIDTH)) / WIDTH**0.5

    fused = ks.layers.MultiHeadAttention(HEADS, KEY_DIM, use_bias=False)
    fused.build(x.shape, x.shape)
    dense = {"q": fused.query_dense, "k": fused.key_dense, "v": fused.value_dense}
    for name, layer in dense.items():
        layer.kernel.assign(np.einsum("de,ehk->dhk", first[name], second[name]))
    fused.output_dense.kernel.assign(join)
    at_once = fused(x, x)

    attend = ks.layers.ScaledDotProductAttention()
    one_by_one = two_stages = 0.0
    for head in range(HEADS):
        q, k, v = (x @ blackboard.array(dense[name].kernel)[:, head] for name in "qkv")
        one_by_one += blackboard.array(attend(q, v, k)) @ join[head]
        q, k, v = ((x @ first[name]) @ second[name][:, head] for name in "qkv")
        two_stages += blackboard.array(attend(q, v, k)) @ join[head]
    difference = blackboard.difference
    blackboard.show("heads at once - one by one", difference(at_once, one_by_one))
    blackboard.show("heads at once - two stages", difference(at_once, two_stages))
    stacked = fused(at_once, at_once)
    print(f"  A layer on a layer, again {tuple(stacked.shape)}.")


def picture(weights):
    """Draws the weights that each score gives."""
    figure, panels = blackboard.panels(3, width=2.3, height=2.8)
    for panel, (name, row) in zip(panels, weights.items(), strict=True):
        bars = panel.bar(["[1, 0]", "[0, 1]"], blackboard.array(row), color="#1d4ed8")
        panel.bar_label(bars, fmt="%.3f", fontsize=8)
        panel.set_title(name, fontsize=10)
        panel.set_ylim(0, 1)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("attention weight")
    figure.supxlabel("key", fontsize=10)
    return figure


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    main()
