"""Strings to batches of token ids and back: tokenizers, corpora, batches."""

from keras_seqattn.text.batching import translation_batches
from keras_seqattn.text.corpora import load_parallel, read_parallel, read_tsv
from keras_seqattn.text.tokenizers import ByteTokenizer, SentencePieceTokenizer

__all__ = [
    "ByteTokenizer",
    "SentencePieceTokenizer",
    "load_parallel",
    "read_parallel",
    "read_tsv",
    "translation_batches",
]
