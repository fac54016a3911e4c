"""Tokenizers that lose nothing: strings to token ids and back."""

import base64
import functools
import io
import math
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Self

import keras
import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor, TokenIds
from keras_seqattn.text import graph
from keras_seqattn.text.subwords import Subwords

# The pieces of ids 0 to 3, which no text produces: models pad, start and end their
# sequences with them.
SPECIAL_PIECES = ("<pad>", "<s>", "</s>", "<unk>")

# From this many lines on, SentencePiece's threads save more time than they cost.
MANY_LINES = 64

# SentencePiece writes a space as U+2581 and reads every U+2581 back as a space. So the
# model escapes a real U+2581 as U+0010 (the "data link escape" of ASCII) and "_", and a
# real U+0010 as two of them; decoding reverses both. These are code points in the
# format of SentencePiece's rule files.
ESCAPES = (("2581", "10 5F"), ("10", "10 10"))

# The least and the greatest size that SentencePiece's trainer is asked for. For smaller
# ones it raises an internal error, for much greater ones it takes gigabytes. No text
# has a size outside them, so it refuses the nearest one and names a size that suits.
SIZES = (len(SPECIAL_PIECES), 2**24)

# SentencePiece's trainer leaves out lines with this character, which it reserves.
RESERVED = "\u2585"

# Options that make a SentencePiece model lose nothing, and have our special ids.
LOSSLESS = {
    "byte_fallback": True,
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "unk_id": 3,
    "pad_piece": "<pad>",
    "required_chars": "\u2581",  # As bytes, spaces would come back as U+2581.
    "max_sentence_length": 2**30,  # Longer lines would be left out.
    "minloglevel": 2,
}


def check_lines(lines: Any, argument: str = "lines") -> Iterator[str]:
    """Yields the lines one by one, and checks each when asked for it: see `strings`."""
    wanted = "a list of strings, not one string, a path or a table"
    yield from arguments.strings(argument, arguments.ordered(argument, lines, wanted))


class Tokenizer(arguments.Checked, keras.layers.Layer):
    """The base class of tokenizers: special ids, and checks for lists and tensors.

    A subclass has a `vocabulary_size` and three methods. `_encode(lines, sampling,
    seed)` turns a list of strings into a list of id lists. `_encode_tensor(strings,
    sampling)` does the same in a TensorFlow graph, with a string tensor and a
    RaggedTensor. `_decode(rows)` turns a list of id lists into a list of strings, in
    which special ids stand for nothing. If a text can be split in one way only,
    `_one_way` says into what, for the error that refuses sampling; else it is "".
    `_most_sampling` is the greatest strength of sampling.
    """

    vocabulary_size: int
    _one_way: str = ""
    _most_sampling: float = math.inf
    pad_id, start_id, end_id, unknown_id = range(len(SPECIAL_PIECES))

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.built = True  # There is nothing to build.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuses a call, in which a layer would take the strings for tensors."""
        raise ValueError(
            "`tokenize` must be called, with a list of strings, or `detokenize`, with "
            f"rows of ids. Received: a call of {type(self).__name__} itself."
        )

    def tokenize(
        self,
        lines: Iterable[str] | Tensor,
        sampling: float = 0.0,
        seed: int | None = None,
    ) -> list[list[int]] | Tensor:
        """Converts strings to token ids, without start or end.

        Args:
            lines: List of strings, or a TensorFlow tensor of UTF-8 strings, as in a
                `tf.data.Dataset.map`, which needs tensorflow_text, of the extra
                `tensorflow`, except with `ByteTokenizer`. A tensor is not checked:
                bytes in it that are not UTF-8 do not come back as they were.
            sampling: Strength of subword sampling, 0 for none (see the class).
            seed: Integer of at least 0 for the draws, which are then the same for the
                same lines in the same order. None: different draws in each call; a
                `tf.data` graph allows nothing else.

        Returns:
            A list of lists of ids, or an int32 `tf.RaggedTensor` for a tensor; the ids
            of a scalar tensor, which is one string, are an int32 tensor.

        Raises:
            ValueError: If `lines` is one string, or holds anything but valid strings,
                or `sampling` or `seed` is out of its range.
        """
        sampling = arguments.number("sampling", sampling, least=0)
        seed = arguments.integer("seed", seed, 0, optional=True)
        if sampling and self._one_way:
            arguments.refuse("sampling", sampling, f"0 for {self._one_way}")
        if sampling > 1 and sampling > self._most_sampling:
            wanted = f"at most {self._most_sampling:g}: a share of the merges"
            arguments.refuse("sampling", sampling, wanted)
        if not graph.is_string_tensor(lines):
            return self._encode(list(check_lines(lines)), sampling, seed)
        if lines.shape.rank == 0:
            return self.tokenize(lines[None], sampling, seed)[0]
        if seed is None:
            return self._encode_tensor(lines, sampling)
        strings = graph.strings_of(lines)
        if strings is None:
            arguments.refuse("seed", seed, "None in a `tf.data` graph")
        return graph.ragged(self._encode(strings, sampling, seed))

    def detokenize(self, ids: TokenIds) -> list[str]:
        """Converts token ids back to strings.

        Args:
            ids: Rows of token ids: a list of lists, or a 2-D array or tensor. Pad,
                start and end stand for no text, wherever they are, and what comes after
                them is kept.

        Returns:
            List of strings, one for each row. Bytes that are not UTF-8, which a model
            may well generate, are replaced by U+FFFD.

        Raises:
            ValueError: If `ids` is not a list of rows, or holds an id that the
                vocabulary does not have.
        """
        wanted = "rows of integers, one row a string"
        rows = []
        given_rows = arguments.ordered("ids", ids, wanted, table=True)
        for number, given in enumerate(given_rows):
            row = _id_row(given)
            if row is None:
                raise ValueError(
                    f"`ids` must be {wanted}. "
                    f"Received: ids[{number}]={arguments.shown(given)}."
                )
            if row.size and not 0 <= row.min() <= row.max() < self.vocabulary_size:
                raise ValueError(
                    f"`ids` must be at least 0 and below {self.vocabulary_size}, the "
                    "vocabulary's size. "
                    f"Received: ids[{number}]={arguments.shown(row.tolist())}."
                )
            rows.append(row)
        return self._decode([row.tolist() for row in rows])


def _id_row(ids):
    """Returns a row of token ids as an array `(L,)`; None if it is not one."""
    if keras.ops.is_tensor(ids):
        ids = keras.ops.convert_to_numpy(ids)  # from a GPU, too
    try:
        row = np.asarray(ids)
    except ValueError:  # Lists of unequal lengths.
        return None
    whole = row.ndim == 1 and (row.dtype.kind in "iu" or not row.size)
    return row if whole else None


class SentencePieces(Tokenizer):
    """The base class of tokenizers that have a SentencePiece model.

    `_model` is its bytes, `_processor` what SentencePiece makes of them.
    """

    def __init__(self, model: bytes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        wanted = "the bytes of a SentencePiece model"
        self._model = arguments.instance("model", model, bytes, wanted)
        try:
            self._processor = processor_of(model)
        except RuntimeError:
            arguments.refuse("model", model, wanted)

    @functools.cached_property
    def _most_sampling(self) -> float:
        spec = sentencepiece_model_pb2.ModelProto.FromString(self._model).trainer_spec
        return 1.0 if spec.model_type == spec.BPE else math.inf

    @functools.cached_property
    def _subwords(self):
        """The pieces for seeded draws, made on first use so that loading stays fast."""
        return Subwords(self._model, self._processor.unk_id())

    def _encode(self, lines, sampling, seed):
        if not sampling:
            return in_threads_if_many(self._processor.encode, lines)
        if seed is not None:
            lines = self._processor.normalize(lines)
            return self._subwords.draw(lines, sampling, seed)
        return self._processor.encode(
            lines, enable_sampling=True, alpha=sampling, nbest_size=-1
        )  # -1: from all segmentations.

    @functools.cached_property
    def _encode_in_graph(self):
        return graph.sentencepiece_function(self._model)

    def _encode_tensor(self, strings, sampling):
        return self._encode_in_graph(strings, sampling)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, the model's bytes as base64."""
        return {**super().get_config(), "model": base64.b64encode(self._model).decode()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the tokenizer that `get_config` described."""
        return cls(**{**config, "model": base64.b64decode(config["model"])})


@keras.saving.register_keras_serializable(package="keras_seqattn")
class SentencePieceTokenizer(SentencePieces):
    r"""Splits text into subwords by a SentencePiece model, without losing anything.

    `detokenize(tokenize(lines)) == lines` for every string: leading and repeated
    spaces, newlines, emoji, control characters. Characters rare in the training text
    become their UTF-8 bytes, so nothing is unknown. Ids: pad 0, start 1, end 2,
    unknown 3 (never produced), the 256 bytes, then the subwords.

    It is a layer only so that Keras saves its configuration: strings go through
    `tokenize` and `detokenize`, on every Keras backend, and never through `__call__`.
    The model's bytes are part of the configuration, as base64. They are not an asset,
    since Keras saves assets only with a model, but a configuration everywhere.

    With `sampling` above 0 every call draws different subwords for the same text, as
    regularisation; they detokenize to the same strings. For a "bpe" model, `sampling`
    is the probability that a merge is left out, at most 1 (0.1 is usual). For a
    "unigram" model it is the smoothing exponent (small values draw more freely).

    Args:
        model: Bytes of a SentencePiece model, as `train` makes it. A model trained
            elsewhere must have the ids above, and loses what its own normalisation
            loses.

    Raises:
        ValueError: If `model` is not such a model.

    Example:
        >>> lines = ["A man in a blue shirt.", "A woman in a red shirt."] * 50
        >>> tokenizer = SentencePieceTokenizer.train(lines, vocabulary_size=300)
        >>> tokenizer.detokenize(tokenizer.tokenize(["  a red\nman 🙂"]))
        ['  a red\nman 🙂']

    Reference:
        Kudo and Richardson 2018, "SentencePiece"; sampling: Provilkov et al. 2020,
        "BPE-Dropout", and Kudo 2018, "Subword Regularization". Differs: the model
        escapes U+2581 and U+0010, so that they too come back.
    """

    def __init__(self, model: bytes, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.vocabulary_size = self._processor.vocab_size()
        pieces = tuple(self.pieces[: len(SPECIAL_PIECES)])
        if pieces != SPECIAL_PIECES:
            raise ValueError(
                f"`model` must begin with the pieces {SPECIAL_PIECES}; train it with "
                f"`SentencePieceTokenizer.train`. Received: model with {pieces}."
            )

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocabulary_size: int = 8000,
        model_type: Literal["bpe", "unigram"] = "bpe",
        strict: bool = True,
        character_coverage: float = 0.9995,
    ) -> Self:
        """Trains a tokenizer on text; the same lines always give the same one.

        Args:
            lines: Iterable of strings. For one vocabulary of two languages, chain
                both sides.
            vocabulary_size: Number of ids, special ids and bytes included.
            model_type: "bpe" or "unigram".
            strict: Whether it is an error if the text is too small for so many ids.
                False: the tokenizer then has as many as the text allows.
            character_coverage: Share of the text, from 0.98 to 1, whose characters have
                a token each. The rarest others become bytes; with 1 none does.

        Returns:
            A `SentencePieceTokenizer`.

        Raises:
            ValueError: If `lines` holds no text or something other than strings, or
                `vocabulary_size` does not suit the text (the message names the
                nearest that does), or an argument is not as above.
        """
        arguments.choice("model_type", model_type, ("bpe", "unigram"))
        arguments.boolean("strict", strict)
        arguments.number("character_coverage", character_coverage, 0.98, most=1)
        vocabulary_size = arguments.positive_integer("vocabulary_size", vocabulary_size)
        lines = list(check_lines(lines))
        model = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder:
            rules, inverse = (pathlib.Path(folder, name) for name in ("to", "from"))
            rules.write_text("".join(f"{a}\t{b}\n" for a, b in ESCAPES))
            inverse.write_text("".join(f"{b}\t{a}\n" for a, b in ESCAPES))
            try:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=(x.replace(RESERVED, " ") for x in lines),
                    model_writer=model,
                    vocab_size=max(SIZES[0], min(vocabulary_size, SIZES[1])),
                    model_type=model_type,
                    character_coverage=character_coverage,
                    normalization_rule_tsv=rules,
                    denormalization_rule_tsv=inverse,
                    **LOSSLESS,
                )
            except RuntimeError as error:
                largest = _largest_vocabulary(str(error))
                if largest is not None and not strict:
                    return cls.train(
                        lines,
                        largest,
                        model_type,
                        character_coverage=character_coverage,
                    )
                raise _training_error(str(error), lines, vocabulary_size) from error
        return cls(_without_paths(model.getvalue()))

    @property
    def pieces(self) -> list[str]:
        """The text of each token as the model spells it, a list of strings.

        A space is U+2581, and a byte is such as "<0xE4>". Whatever the segmentation,
        the pieces of a line spell the same text. `training.MaskedCrossentropy` uses
        this to find the tokens that two segmentations have in common.
        """
        return self._processor.id_to_piece(list(range(self.vocabulary_size)))

    def _decode(self, rows):
        return in_threads_if_many(self._processor.decode, rows)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class ByteTokenizer(Tokenizer):
    """Splits text into its UTF-8 bytes: nothing to train, nothing unknown or lost.

    The id of a byte is `byte + 4`; ids 0 to 3 are pad, start, end and unknown, which
    stand for no text. There is one way to split a text into bytes, so `sampling` must
    be 0.

    Example:
        >>> ByteTokenizer().tokenize(["Oh é"])
        [[83, 108, 36, 199, 173]]
        >>> ByteTokenizer().detokenize([[83, 108, 2, 0]])
        ['Oh']
    """

    vocabulary_size = len(SPECIAL_PIECES) + 256
    _one_way = "bytes, into which a text splits in one way only"

    @property
    def pieces(self) -> list[str]:
        """The name of each token, a list of strings; a byte is such as "<0xE4>"."""
        return [*SPECIAL_PIECES, *(f"<0x{byte:02X}>" for byte in range(256))]

    def _encode(self, lines, sampling, seed):
        offset = len(SPECIAL_PIECES)
        return [[byte + offset for byte in line.encode()] for line in lines]

    def _encode_tensor(self, strings, sampling):
        return graph.bytes_of(strings, len(SPECIAL_PIECES))

    def _decode(self, rows):
        offset = len(SPECIAL_PIECES)
        return [
            bytes(i - offset for i in row if i >= offset).decode(errors="replace")
            for row in rows
        ]


def processor_of(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Loads a SentencePiece model; bytes that are none raise a `RuntimeError`."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)  # the constructor ignores b""
    return processor


def in_threads_if_many(function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Applies a SentencePiece function to a list; to its items if they are few.

    For a list SentencePiece starts threads, which takes as long as encoding 50 to 100
    lines (`benchmarks.decoding`).
    """
    return list(map(function, items)) if len(items) < MANY_LINES else function(items)


def _without_paths(model):
    """Returns a model without what does not count once it is trained.

    Paths differ from one run to the next, and some options came later than others.
    """
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    proto.normalizer_spec.ClearField("normalization_rule_tsv")
    proto.denormalizer_spec.ClearField("normalization_rule_tsv")
    for option in ("required_chars", "character_coverage"):
        proto.trainer_spec.ClearField(option)
    return proto.SerializeToString(deterministic=True)


def _largest_vocabulary(message):
    """Returns the largest vocabulary that a trainer's error names, or None."""
    largest = re.search(r"value <= (\d+)", message)
    return largest and int(largest[1])


def _training_error(message, lines, vocabulary_size):
    """Turns an error of SentencePiece's trainer into one that says what to change."""
    if "sentences_.empty()" in message or "all_chars" in message:
        return ValueError(
            f"`lines` must hold text to train on. Received: {len(lines)} lines, "
            "without text."
        )
    received = f"Received: vocabulary_size={vocabulary_size!r}."
    if largest := _largest_vocabulary(message):
        return ValueError(
            f"`vocabulary_size` must be at most {largest} for this text. {received}"
        )
    if smallest := re.search(r"required_chars\. -?\d+ vs (\d+)", message):
        return ValueError(
            f"`vocabulary_size` must be at least {smallest[1]} for this text, to hold "
            f"its characters and the 256 bytes. {received}"
        )
    return ValueError(f"`lines` could not be trained on: {message} {received}")
