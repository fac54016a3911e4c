"""Small translators to export, whose tokens never tie."""

import numpy as np

import keras_seqattn as ks

LINES = ["Two dogs run.", "", "a man in a blue shirt sings", "é 🙂 \n", " \u00a0", "x"]


def make_translator(
    search=None, tokenizer=None, target_tokenizer=None, seed=1, scale=0.3, **options
):
    """Makes a translator with a model of noise.

    Args:
        search: The search, or None.
        tokenizer: The source's tokenizer; None: bytes.
        target_tokenizer: The target's, or None.
        seed: Seed of the noise.
        scale: Standard deviation of the noise.
        **options: Arguments of `TranslationTransformer`.

    Returns:
        A `Translator`.
    """
    tokenizer = tokenizer or ks.text.ByteTokenizer()
    sizes = {
        "model_dim": 16,
        "num_heads": 4,
        "intermediate_dim": 24,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "max_length": 24,
    }
    if target_tokenizer is not None:
        options["target_vocabulary_size"] = target_tokenizer.vocabulary_size
    model = ks.models.TranslationTransformer(
        tokenizer.vocabulary_size, **{**sizes, **options}
    )
    rng = np.random.default_rng(seed)
    model.set_weights([w + rng.normal(0, scale, w.shape) for w in model.get_weights()])
    return ks.Translator(model, tokenizer, target_tokenizer, search)


def make_sentencepiece(vocabulary_size=290):
    """Trains a tokenizer on two lines."""
    lines = ["two dogs run in a park", "a man in a blue shirt sings"] * 20
    return ks.text.SentencePieceTokenizer.train(lines, vocabulary_size=vocabulary_size)
