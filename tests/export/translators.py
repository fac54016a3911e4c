"""Small translators to export, whose tokens never tie."""

import numpy as np

import keras_seqattn as ks
from tests.small import translation_model

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
        "decoder_layers": 2,
        "max_length": 24,
    }
    if target_tokenizer is not None:
        options["target_vocabulary_size"] = target_tokenizer.vocabulary_size
    model = translation_model(tokenizer.vocabulary_size, **{**sizes, **options})
    rng = np.random.default_rng(seed)
    model.set_weights([w + rng.normal(0, scale, w.shape) for w in model.get_weights()])
    return ks.Translator(model, tokenizer, target_tokenizer, search)
