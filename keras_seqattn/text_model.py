"""What `Translator` and `TextGenerator` share: lines, a search, texts, and one file."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras

from keras_seqattn import arguments, translator_file
from keras_seqattn.annotations import DecodingModel, Path, TokenizerLike
from keras_seqattn.backend.compile import note_variables
from keras_seqattn.decoding.hypotheses import Hypotheses
from keras_seqattn.decoding.methods import Search, checked_search
from keras_seqattn.decoding.protocol import check_vocabulary

# What the decoding protocol asks of a model, apart from its special ids.
DECODING = ("encode", "initial_state", "step", "variables")


class TextModel:
    """A model with its tokenizers and a search, saved in one file."""

    _file: type  # the class of that file

    def __init__(self, model: DecodingModel, search: Search | None) -> None:
        checked_search("search", search)
        note_variables()
        self.model: DecodingModel = model
        self.search: Search | None = search

    def save(self, path: Path) -> None:
        """Writes model, tokenizers and search to one file.

        The optimizer is left out: its state would make the file three times as large.
        If the process is killed during the write, the old file stays.

        Args:
            path: Path of the file, which must end in ".keras".

        Raises:
            ValueError: If `path` does not end in ".keras", or what was set as `search`
                is no search.
        """
        arguments.path("path", path)
        checked_search("search", self.search)
        translator_file.write(self, path, self._file)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads what `save` wrote.

        Args:
            path: Path of the file.

        Returns:
            An instance of this class.

        Raises:
            ValueError: If there is no such file, it holds something else, or is
                damaged.
            ImportError: If sentencepiece, of the extra `text`, is not installed.
        """
        return translator_file.read(cls, path, cls._file)

    def _checked_search(self, search: Search | None) -> Search:
        """Returns the search of a call, the object's own for None."""
        return checked_search("search", self.search if search is None else search)


def check_tokenizer(
    name: str, tokenizer: Any, model: DecodingModel, side: str | None = None
) -> None:
    """Raises an error if an object is no tokenizer, or not that of a model."""
    offered = ("tokenize", "detokenize", "vocabulary_size")
    arguments.offers(name, tokenizer, offered, "a tokenizer")
    check_vocabulary(name, tokenizer, model, side)


def checked_lines(name: str, given: Any, first: int = 0) -> list[str]:
    """Returns a list of strings, of which the first is line number `first`."""
    wanted = f"a list of strings; pass one as [line], and an iterable as list({name})"
    lines = arguments.sequence(name, given, wanted)
    return list(arguments.strings(name, lines, first))


def continuations(
    tokenizer: TokenizerLike,
    prompts: Sequence[list[int]],
    sequences: Sequence[list[int]],
) -> list[str]:
    """Returns the texts that sequences of token ids add to those of their prompts.

    Each is decoded after its prompt, which shows whether it begins with a space:
    tokenizers leave out a space at the beginning of a text.
    """
    whole = [[*prompt, *ids] for prompt, ids in zip(prompts, sequences, strict=True)]
    texts = tokenizer.detokenize([*prompts, *whole])
    begins, texts = texts[: len(whole)], texts[len(whole) :]
    return [
        text[len(begin) :] if text.startswith(begin) else tokenizer.detokenize([ids])[0]
        for begin, text, ids in zip(begins, texts, sequences, strict=True)
    ]


def ranked_texts(
    decoded: Iterable[tuple[list[int], Hypotheses]],
    tokenizer: TokenizerLike,
    count: int,
    verbose: bool = False,
    prompts: Sequence[list[int]] | None = None,
) -> dict[int, list[tuple[str, float]]]:
    """Returns the pairs `(text, score)` of each line, best first, by line number.

    `decoded` is what `decode_lists` yields for `count` lines; the texts continue those
    of the token ids `prompts`, if there are any.
    """
    progress = keras.utils.Progbar(count, verbose=verbose, unit_name="line")
    ranked = {}
    for numbers, found in decoded:
        for row, number in enumerate(numbers):
            ranked[number] = found.ranked(row)
        progress.add(len(numbers))
    # All at once: a call of the tokenizer costs as much as a hundred lines.
    sequences = [ids for pairs in ranked.values() for ids, _ in pairs]
    if prompts is None:
        texts = iter(tokenizer.detokenize(sequences))
    else:
        before = [prompts[number] for number, pairs in ranked.items() for _ in pairs]
        texts = iter(continuations(tokenizer, before, sequences))
    return {
        number: [(next(texts), score) for _, score in pairs]
        for number, pairs in ranked.items()
    }
