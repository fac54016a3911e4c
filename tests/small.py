"""A translation model that is small enough for any test."""

from keras_seqattn.models import TranslationTransformer


def translation_model(vocabulary_size, **options):
    """Makes a `TranslationTransformer` of one block a side, 8 wide."""
    sizes = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    depths = {"encoder_layers": 1, "decoder_layers": 1}
    return TranslationTransformer(vocabulary_size, **{**sizes, **depths, **options})
