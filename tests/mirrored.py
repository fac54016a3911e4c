"""A corpus that a small model learns in seconds: words backwards, each letter the next.

To translate an unseen word a model must look at each of its letters in turn.
"""

import keras
import numpy as np

import keras_seqattn as ks

TRAINING = 4800


def mirrored(rng, count):
    """Draws words of 3 to 6 letters, and their translations."""
    words = rng.integers(ord("a"), ord("z"), size=(count, 6))
    words = [word[: 3 + i % 4] for i, word in enumerate(words)]
    text = ["".join(map(chr, word)) for word in words]
    return text, ["".join(map(chr, word[::-1] + 1)) for word in words]


def learn(make_model, rng, epochs, learning_rate=0.01, jit_compile="auto"):
    """Trains a model.

    Args:
        make_model: Gives a translation model of a number of tokens.
        rng: NumPy generator of the words.
        epochs: Number of epochs.
        learning_rate: Rate of Adam's first step; the last has almost none.
        jit_compile: As `compile` takes it.

    Returns:
        The translator, 100 unseen words, and their translations.
    """
    sources, targets = mirrored(rng, TRAINING + 100)
    tokenizer = ks.text.ByteTokenizer()
    batches = ks.text.translation_batches(
        sources[:TRAINING],
        targets[:TRAINING],
        tokenizer,
        batch_tokens=320,
        bucket_lengths=(8,),
    )
    model = make_model(tokenizer.vocabulary_size)
    steps = epochs * len(list(batches))
    decay = keras.optimizers.schedules.CosineDecay(learning_rate, steps)
    model.compile(
        keras.optimizers.Adam(decay),
        ks.training.MaskedCrossentropy(),
        jit_compile=jit_compile,
    )
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    translator = ks.Translator(model, tokenizer)
    return translator, sources[TRAINING:], targets[TRAINING:]


def share_right(translations, targets):
    """Gives the share of the words that are translated right."""
    return np.mean(list(map(str.__eq__, translations, targets)))
