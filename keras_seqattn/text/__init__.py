"""Strings to batches of token ids and back: tokenizers, corpora, batches.

It needs the extra `text`: `pip install ".[text]"` in a clone of the repository.
"""

from keras_seqattn.text.batching import translation_batches
from keras_seqattn.text.corpora import load_parallel
from keras_seqattn.text.language import language_batches
from keras_seqattn.text.lines import TextLines
from keras_seqattn.text.parallel import read_parallel, read_tsv
from keras_seqattn.text.synthesis import synthesize
from keras_seqattn.text.tokenizers import ByteTokenizer, SentencePieceTokenizer
from keras_seqattn.text.vocabulary import MappedSentencePieceTokenizer
from keras_seqattn.text.wordpiece import WordPieceTokenizer

__all__ = [
    "ByteTokenizer",
    "MappedSentencePieceTokenizer",
    "SentencePieceTokenizer",
    "TextLines",
    "WordPieceTokenizer",
    "language_batches",
    "load_parallel",
    "read_parallel",
    "read_tsv",
    "synthesize",
    "translation_batches",
]
