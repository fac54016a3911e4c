"""A SentencePiece model whose pieces have the ids of a separate vocabulary."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.text.subwords import SPACE
from keras_seqattn.text.tokenizers import SentencePieces


@keras.saving.register_keras_serializable(package="keras_seqattn")
class MappedSentencePieceTokenizer(SentencePieces):
    """Splits text by a SentencePiece model into the ids that a trained model uses.

    Trained models number pieces in their own order, and have further tokens, such as
    those of languages. Text loses what the SentencePiece model's normalisation loses,
    as it does for the trained model. The text of a special token in a line is treated
    as plain text.

    Each line may begin with given ids, such as the language for a multilingual model.
    `tokenize` returns them, so that batches and prefixes have them; `detokenize` leaves
    them out. A `Translator` forces them to come first in what it generates, and does
    not score them.

    A run of characters that the SentencePiece model does not know is one piece. Its id
    is that of this text in `pieces`, if it is there, as in a vocabulary of two
    languages with a model for each. In a tensor, and with `sampling`, it is always
    `unknown_id`. `convert.translator_from_huggingface` makes such tokenizers.

    Args:
        model: Bytes of a SentencePiece model.
        pieces: Text of each id, a list of V different strings. The texts of tokens that
            the SentencePiece model does not produce only hold their places.
        pad_id: The id that pads a batch.
        start_id: The id a sentence starts with; it may equal another special id.
        end_id: The id a sentence ends with.
        unknown_id: The id of what is not among `pieces`.
        special_ids: Further ids that stand for no text.
        prefix_ids: Ids that each line begins with.
        text_prefix: Text put before each line.

    Raises:
        ValueError: If `model` is not such a model, fewer than half of its pieces are in
            `pieces`, or an id is outside the vocabulary.

    Example:
        >>> import io, sentencepiece
        >>> model = io.BytesIO()
        >>> sentencepiece.SentencePieceTrainer.train(
        ...     sentence_iterator=iter(["a man sings", "two men sing"] * 20),
        ...     model_writer=model, vocab_size=16, minloglevel=2)
        >>> model = model.getvalue()
        >>> processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        >>> pieces = [processor.id_to_piece(i) for i in range(3, 16)]
        >>> tokenizer = MappedSentencePieceTokenizer(
        ...     model, ["</s>", "<unk>", *pieces, "<pad>"],
        ...     pad_id=15, start_id=15, end_id=0, unknown_id=1)
        >>> tokenizer.detokenize(tokenizer.tokenize(["two men sing"]))
        ['two men sing']

    Reference:
        Kudo and Richardson 2018, "SentencePiece". Differs: the ids.
    """

    def __init__(
        self,
        model: bytes,
        pieces: Sequence[str],
        pad_id: int,
        start_id: int,
        end_id: int,
        unknown_id: int,
        special_ids: Sequence[int] = (),
        prefix_ids: Sequence[int] = (),
        text_prefix: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        wanted = "the text of each id, a list of strings"
        given = arguments.sequence("pieces", pieces, wanted)
        self._pieces = list(arguments.strings("pieces", given))
        if not self._pieces:
            arguments.refuse("pieces", pieces, wanted)
        self.vocabulary_size = len(self._pieces)
        last = self.vocabulary_size - 1
        self.pad_id = arguments.integer("pad_id", pad_id, 0, last)
        self.start_id = arguments.integer("start_id", start_id, 0, last)
        self.end_id = arguments.integer("end_id", end_id, 0, last)
        self.unknown_id = arguments.integer("unknown_id", unknown_id, 0, last)
        self.special_ids = self._checked_ids("special_ids", special_ids)
        self.prefix_ids = self._checked_ids("prefix_ids", prefix_ids)
        self.text_prefix = arguments.text("text_prefix", text_prefix)
        ids = {piece: token for token, piece in enumerate(self._pieces)}
        self._ids_of_model = self._map_model(ids)
        special = (self.pad_id, self.start_id, self.end_id, self.unknown_id)
        self._silent = {*special, *self.special_ids, *self.prefix_ids}
        self._ids_of_text = {x: i for x, i in ids.items() if i not in self._silent}

    def _checked_ids(self, name, ids):
        last = self.vocabulary_size - 1
        given = arguments.sequence(name, ids, "a list of token ids")
        return [arguments.integer(name, token, 0, last) for token in given]

    def _map_model(self, ids):
        """Returns our id of each piece, a list by the SentencePiece model's number."""
        size = self._processor.vocab_size()
        found = [ids.get(self._processor.id_to_piece(i)) for i in range(size)]
        missing = found.count(None)
        if 2 * missing > size:
            raise ValueError(
                "`pieces` must be the vocabulary of this SentencePiece model. "
                f"Received: pieces without {missing} of the model's {size} pieces."
            )
        unknown = self._processor.unk_id()
        return [
            self.unknown_id if token is None or i == unknown else token
            for i, token in enumerate(found)
        ]

    @property
    def pieces(self) -> list[str]:
        """The text of each token id, a list of strings."""
        return list(self._pieces)

    def _encode(self, lines, sampling, seed):
        lines = [self.text_prefix + line for line in lines]
        rows = super()._encode(lines, sampling, seed)
        found = [[self._ids_of_model[number] for number in row] for row in rows]
        if not sampling:
            unknown = self._processor.unk_id()
            for line, row, ids in zip(lines, rows, found, strict=True):
                if unknown in row:
                    self._look_up_unknown(line, row, ids)
        return [[*self.prefix_ids, *ids] for ids in found]

    def _look_up_unknown(self, line, row, ids):
        """Replaces the ids of runs that the vocabulary has and the model lacks."""
        pieces = self._processor.encode(line, out_type=str)
        unknown = self._processor.unk_id()
        for place, (piece, number) in enumerate(zip(pieces, row, strict=True)):
            if number == unknown:
                ids[place] = self._ids_of_text.get(piece, self.unknown_id)

    def _encode_tensor(self, strings, sampling):
        import tensorflow as tf

        strings = tf.strings.join([self.text_prefix, strings])
        found = super()._encode_tensor(strings, sampling)
        table = tf.constant(self._ids_of_model, tf.int32)
        ids = found.with_flat_values(tf.gather(table, found.flat_values))
        prefix = tf.constant([self.prefix_ids], tf.int32)
        return tf.concat([tf.repeat(prefix, ids.nrows(), axis=0), ids], axis=1)

    def _decode(self, rows):
        texts = [
            self._processor.decode_pieces(
                [self._pieces[token] for token in row if token not in self._silent]
            )
            for row in rows
        ]
        # A piece that the SentencePiece model lacks keeps its U+2581. In a Marian
        # model's target tokenizer, these are pieces of the source.
        return [
            text.replace(SPACE, " ").strip() if SPACE in text else text
            for text in texts
        ]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, the model's bytes as base64."""
        return {
            **super().get_config(),
            "pieces": self.pieces,
            "pad_id": self.pad_id,
            "start_id": self.start_id,
            "end_id": self.end_id,
            "unknown_id": self.unknown_id,
            "special_ids": self.special_ids,
            "prefix_ids": self.prefix_ids,
            "text_prefix": self.text_prefix,
        }
