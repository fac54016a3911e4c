"""`WordPieceTokenizer`: BERT's subwords, by tensorflow_text."""

import collections
from collections.abc import Iterable
from typing import Any, Self

import keras

from keras_seqattn import arguments
from keras_seqattn.text import graph
from keras_seqattn.text.tokenizers import SPECIAL_PIECES, Tokenizer, check_lines

SUFFIX = "##"
# Characters that end a word and are words themselves: punctuation, ASCII symbols and
# Chinese characters.
MARKS = (
    r"[!-/:-@\[-`{-~]|\p{P}|[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}"
    r"\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{2F800}-\x{2FA1F}]"
)

# For training, words are cut into parts of this many characters; the longest possible
# piece is a whole part.
PART = 50
MOST_BYTES = 2**30  # in a word; a longer one would be unknown


@keras.saving.register_keras_serializable(package="keras_seqattn")
class WordPieceTokenizer(Tokenizer):
    """Splits words and punctuation marks into the longest known pieces.

    Use it with an existing vocabulary, or for comparison: unlike
    `SentencePieceTokenizer` it loses information. `detokenize` puts one space between
    words and marks, wherever the text had spaces. A word that cannot be split into
    known pieces becomes the unknown id 3, which stands for no text. Case and accents
    stay. Ids: pad 0, start 1, end 2, unknown 3, then the pieces; those within a word
    begin with "##".

    Like every tokenizer it is a layer only so that Keras saves its configuration, which
    holds the pieces. There is one way to split a text, so `sampling` must be 0. Unlike
    the others it needs TensorFlow and tensorflow_text, on every backend.

    Args:
        vocabulary: The pieces, a list of strings that begins with "<pad>", "<s>",
            "</s>" and "<unk>".

    Raises:
        ValueError: If `vocabulary` is not such a list.
        ImportError: If tensorflow_text, of the extra `tensorflow`, is not installed.

    Example:
        >>> tokenizer = WordPieceTokenizer(
        ...     ["<pad>", "<s>", "</s>", "<unk>", "a", "dog", "##s", "."]
        ... )
        >>> tokenizer.tokenize(["a dogs."])
        [[4, 5, 6, 7]]
        >>> tokenizer.detokenize([[4, 5, 6, 7]])
        ['a dogs .']

    Reference:
        Schuster and Nakajima 2012; Devlin et al. 2019, for the splitting into words;
        Song et al. 2021, "Fast WordPiece Tokenization". Differs: nothing is
        lower-cased.
    """

    _one_way = "word pieces, into which a text splits in one way only"

    def __init__(self, vocabulary: Iterable[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        wanted = "a list of strings"
        arguments.offers("vocabulary", vocabulary, ("__iter__",), wanted)
        vocabulary = list(vocabulary)
        arguments.sequence("vocabulary", vocabulary, wanted, arguments.text)
        count, special = len(vocabulary), len(SPECIAL_PIECES)
        begins = tuple(vocabulary[:special]) == SPECIAL_PIECES
        if not begins or count == special or len(set(vocabulary)) < count:
            raise ValueError(
                f"`vocabulary` must begin with {SPECIAL_PIECES}, have more pieces, and "
                f"none twice. Received: vocabulary={vocabulary[:8]!r}, {count} pieces."
            )
        self.vocabulary = vocabulary
        self.vocabulary_size = len(vocabulary)
        tensorflow_text = arguments.package("tensorflow_text", "tensorflow")
        import tensorflow as tf

        self._pieces = tensorflow_text.FastWordpieceTokenizer(
            vocabulary,
            suffix_indicator=SUFFIX,
            unknown_token=SPECIAL_PIECES[self.unknown_id],
            max_bytes_per_word=MOST_BYTES,
            token_out_type=tf.int32,
            support_detokenization=True,
        )

    @classmethod
    def train(cls, lines: Iterable[str], vocabulary_size: int = 8000) -> Self:
        """Trains a tokenizer on text; the same lines always give the same one.

        Args:
            lines: Iterable of strings. For one vocabulary of two languages, chain
                both sides.
            vocabulary_size: Largest number of ids, special ids included; a small text
                may give fewer.

        Returns:
            A `WordPieceTokenizer`.

        Raises:
            ValueError: If `lines` holds no words or something other than strings, or
                `vocabulary_size` is too small for the characters of the text.
            ImportError: If tensorflow_text is not installed.
        """
        tensorflow_text = arguments.package("tensorflow_text", "tensorflow")
        from tensorflow_text.tools.wordpiece_vocab import (
            wordpiece_tokenizer_learner_lib,
        )

        vocabulary_size = arguments.positive_integer("vocabulary_size", vocabulary_size)
        lines = list(check_lines(lines))
        words = tensorflow_text.regex_split(lines, rf"\s+|{MARKS}", MARKS)
        counts = collections.Counter(
            part for word in words.flat_values.numpy() for part in _parts(word.decode())
        )
        if not counts:
            raise ValueError(
                f"`lines` must hold words to train on. Received: {len(lines)} lines, "
                "all without any."
            )
        pieces = wordpiece_tokenizer_learner_lib.learn(
            sorted(counts.items()),
            vocab_size=vocabulary_size,
            reserved_tokens=list(SPECIAL_PIECES),
            lower_thresh=1,
            max_token_length=PART,
            max_unique_chars=len(set().union(*counts)),
            joiner=SUFFIX,
        )
        if len(pieces) > vocabulary_size:
            raise ValueError(
                f"`vocabulary_size` must be at least {len(pieces)} for this text, to "
                "hold its characters, each also within a word. "
                f"Received: vocabulary_size={vocabulary_size!r}."
            )
        return cls(pieces)

    def _encode(self, lines, sampling, seed):
        import tensorflow as tf

        return self._encode_tensor(tf.constant(lines, tf.string), sampling).to_list()

    def _encode_tensor(self, strings, sampling):
        return self._pieces.tokenize(strings)

    def _decode(self, rows):
        first = len(SPECIAL_PIECES)
        rows = [[i for i in row if i >= first] for row in rows]
        lines = self._pieces.detokenize(graph.ragged(rows))
        return [line.decode(errors="replace") for line in lines.numpy()]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "vocabulary": self.vocabulary}


def _parts(word):
    """Cuts a word into parts of at most `PART` characters."""
    return [word[start : start + PART] for start in range(0, len(word), PART)]
