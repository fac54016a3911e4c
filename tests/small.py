"""A translation model and a tokenizer that are small enough for any test."""

from keras_seqattn.models import TranslationTransformer
from keras_seqattn.text import SentencePieceTokenizer


def translation_model(vocabulary_size, **options):
    """Makes a `TranslationTransformer` of one block a side, 8 wide."""
    sizes = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    depths = {"encoder_layers": 1, "decoder_layers": 1}
    return TranslationTransformer(vocabulary_size, **{**sizes, **depths, **options})


def make_sentencepiece(vocabulary_size=290):
    """Trains a tokenizer on two lines."""
    lines = ["two dogs run in a park", "a man in a blue shirt sings"] * 20
    return SentencePieceTokenizer.train(lines, vocabulary_size)
