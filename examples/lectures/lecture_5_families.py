"""Lecture 5: "Thinking Machines", words from logits, and three families of stacks.

    python examples/lectures/lecture_5_families.py

A decoder-only stack (such as GPT-2) sees the positions before, and an encoder-only one
(such as BERT) sees all. A segment-recurrent one (such as Transformer-XL) sees those
before in its segment, and what a memory keeps of the previous segments.

It needs `pip install ".[tensorflow,plot]"`.
"""

import blackboard
import keras
import numpy as np
from keras import ops

import keras_seqattn as ks
from keras_seqattn.backend.autodiff import gradients

WORDS = ["<pad>", "<s>", "</s>", "a", "i", "am", "student"]
LENGTH, SEGMENT, MEMORY = 9, 3, 2
VOCABULARY = 3 + 2 * LENGTH
SIZES = {"model_dim": 16, "num_heads": 2, "num_layers": 1, "intermediate_dim": 32}


def main():
    args = blackboard.arguments(__doc__)
    thinking_machines()
    words()
    decoder = ks.models.LanguageModel(VOCABULARY, **SIZES)
    encoder = ks.models.EncoderModel(VOCABULARY, **SIZES)
    recurrent = ks.models.LanguageModel(VOCABULARY, memory_length=MEMORY, **SIZES)
    memory(decoder, recurrent)
    seen = {
        "decoder-only": influence(decoder),
        "encoder-only": influence(encoder),
        "segment-recurrent": influence(lambda ids: read(recurrent, ids)),
    }
    blackboard.save(picture(seen), args.output / "5_families.png")


def thinking_machines():
    """Scores "Thinking" against both words, in a head of width 64."""
    print('"Thinking Machines": q1 . k1 = 112, q1 . k2 = 96, d_k = 64.')
    query = np.ones((1, 1, 1, 64), "float32")
    keys = query * np.array([112 / 64, 96 / 64], "float32")[:, None, None]
    blackboard.show("scores", ops.sum(query * keys, axis=-1) / 64**0.5)
    blackboard.show("weights", ks.layers.attention_scores(query, keys))
    blackboard.show(
        "weights, unscaled", ks.layers.attention_scores(query, keys, scale=1.0)
    )
    attention = ks.layers.MultiHeadAttention(num_heads=8, key_dim=64)
    two_words = np.random.default_rng(0).normal(size=(1, 2, 512)).astype("float32")
    print(f"  8 heads on 2 words: {tuple(attention(two_words, two_words).shape)}")


def words():
    """Turns a vector into logits, then log-probabilities, and the best into a word."""
    print("The word at the largest logit.")
    table = ks.layers.PositionalEmbedding(
        len(WORDS), 16, positions=None, embeddings_initializer="orthogonal"
    )
    table.build()
    # Scaled, so that one word gets most of the probability.
    logits = table.logits(8 * table.embeddings[5])
    log_probs = ops.log_softmax(logits)
    blackboard.show("log_probs", log_probs)
    best = int(ops.argmax(log_probs))
    same = best == int(ops.argmax(logits))
    print(f"  index {best} is {WORDS[best]!r}; the argmax of the logits, too: {same}")


def memory(decoder, recurrent):
    """Shows what a memory changes, and what it does not."""
    print("The memory of a segment-recurrent stack.")
    rng = np.random.default_rng(0)
    first, other, second = rng.integers(3, VOCABULARY, (3, 1, SEGMENT)).astype("int32")
    recurrent.set_weights(decoder.get_weights())
    empty, _ = recurrent.segment(second)
    blackboard.show(
        "empty memory - plain decoder", blackboard.difference(empty, decoder(second))
    )

    def after(ids):
        _, kept = recurrent.segment(ids)
        return recurrent.segment(second, kept)[0]

    blackboard.show(
        "change by another segment before",
        blackboard.difference(after(first), after(other)),
    )
    table = recurrent.get_layer("embedding").embeddings

    def total(values, in_first):
        """Sums the logits, with other embeddings in one of the two segments."""
        swapped = keras.StatelessScope([(table, values)])
        with swapped if in_first else keras.StatelessScope():
            _, kept = recurrent.segment(first)
        with keras.StatelessScope() if in_first else swapped:
            return ops.sum(recurrent.segment(second, kept)[0])

    for name, in_first in (("segment before", True), ("segment itself", False)):
        gradient = gradients(lambda x, here=in_first: total(x, here), table.numpy())
        blackboard.show(f"largest gradient into the {name}", np.abs(gradient).max())


def read(model, token_ids):
    """Reads a text segment by segment; returns the logits of all its positions."""
    kept, logits = None, []
    for start in range(0, LENGTH, SEGMENT):
        part, kept = model.segment(token_ids[:, start : start + SEGMENT], kept)
        logits.append(part)
    return ops.concatenate(logits, axis=1)


def influence(model):
    """Marks which inputs (columns) change which outputs (rows), by trying each."""
    token_ids = np.arange(3, 3 + LENGTH, dtype="int32")[None]
    before = blackboard.array(model(token_ids))
    changed = np.zeros((LENGTH, LENGTH))
    for position in range(LENGTH):
        others = token_ids.copy()
        others[0, position] += LENGTH  # a token that is nowhere else
        after = blackboard.array(model(others))
        changed[:, position] = np.abs(after - before).max(axis=(0, 2)) > 1e-5
    return changed


def picture(seen):
    """Draws what each family sees."""
    figure, panels = blackboard.panels(len(seen), width=2.6, height=3.3)
    for panel, (name, changed) in zip(panels, seen.items(), strict=True):
        panel.imshow(changed, cmap="Blues", vmin=0, vmax=1.4)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("input position")
    panels[0].set_ylabel("output position that it reaches")
    figure.suptitle(
        f"One layer; in the last, segments of {SEGMENT} and a memory of {MEMORY}",
        fontsize=10,
    )
    return figure


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    main()
