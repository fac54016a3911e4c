"""Phrases and glossaries of a translator, as token ids for a constrained search.

A phrase is tokenized as it would be in a sentence: after a space, and at the beginning.
Scripts written without spaces have no words here. Their phrases may occur anywhere, so
they are also tokenized as they would be directly after another character.
"""

import itertools
import math
import pathlib
import re
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Self
from unicodedata import category

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Glossary, TokenizerLike
from keras_seqattn.decoding.constraints import Phrase, Row, count_tokens

# Scripts without spaces: Thai and Lao, Burmese, Khmer, kana, Chinese characters.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff"
)


def _marks() -> str:
    """Returns the marks that belong to the letter before them, as ranges of a pattern.

    Regular expressions do not count them as part of a word. Left out are the marks of
    scripts without spaces, and variation selectors, which follow emoji or Chinese
    characters.
    """
    left_out = re.compile(rf"[{UNSPACED}\ufe00-\ufe0f]")
    found = {
        code
        for code in range(0x20000)  # beyond it are only variation selectors
        if category(chr(code)) in ("Mn", "Mc") and not left_out.match(chr(code))
    }
    first = sorted(code for code in found if code - 1 not in found)
    last = sorted(code for code in found if code + 1 not in found)
    return "".join(f"{chr(x)}-{chr(y)}" for x, y in zip(first, last, strict=True))


# Matches a character that continues a word. A single byte of one decodes to U+FFFD.
# The last four are the soft hyphen, zero-width non-joiner and joiner, and word joiner.
LETTER = rf"(?:[^\W{UNSPACED}]|[{_marks()}\u00ad\u200c\u200d\u2060])"
_CONTINUES = re.compile(rf"{LETTER}|\ufffd")
_WORD = re.compile(f"{LETTER}+")
# Matches where a phrase may begin or end: everywhere but between two letters.
_BOUNDARY = re.compile(f"(?<!{LETTER})|(?!{LETTER})")


def continuing_ids(tokenizer: TokenizerLike) -> bytes:
    """Returns a bit for each token (`numpy.packbits`): whether it continues a word."""
    (lead,) = tokenizer.tokenize([_lead(tokenizer)])
    (before,) = tokenizer.detokenize([lead])
    ids = range(tokenizer.vocabulary_size)
    texts = tokenizer.detokenize([[*lead, token] for token in ids])
    begins = [bool(_CONTINUES.match(text[len(before) :])) for text in texts]
    return np.packbits(begins).tobytes()


def _lead(tokenizer: TokenizerLike) -> str:
    """Returns a word to put before phrases, to see how they are tokenized after a word.

    It is "a" or, if the vocabulary has no such letter, the first word that it has.
    """
    unknown = getattr(tokenizer, "unknown_id", None)
    size = tokenizer.vocabulary_size
    own = (tokenizer.detokenize([[token]])[0] for token in range(size))
    for word in itertools.chain("a", filter(_WORD.fullmatch, own)):
        (ids,) = tokenizer.tokenize([word])
        if unknown not in ids:
            return word
    return "a"


class Terms:
    """The constraints of each line: those that the caller gives, and a glossary's.

    `tokenizer` is the target's, and `continuing` its `continuing_ids`, empty if word
    boundaries do not matter. No phrase may contain one of `stop_ids`, which would end
    the hypothesis. `before` may have tokenized some of the glossary's phrases already.

    Example:
        >>> from keras_seqattn.text import ByteTokenizer
        >>> terms = Terms(ByteTokenizer(), {"dog": "Hund", "hot dog": "Hotdog"})
        >>> [len(row) for row in terms.rows(["A hot dog.", "Dogs!", "dog eats dog"])]
        [1, 0, 1]
    """

    def __init__(
        self,
        tokenizer: TokenizerLike,
        glossary: Glossary | None,
        stop_ids: Iterable[int] = (),
        continuing: bytes = b"",
        before: Self | None = None,
    ) -> None:
        self._tokenizer, self._lead = tokenizer, _lead(tokenizer)
        self._stop_ids = set(stop_ids)
        bits = np.unpackbits(np.frombuffer(continuing, "uint8"))
        self._continuing = np.flatnonzero(bits)
        self._glossary = {} if glossary is None else _checked_glossary(glossary)
        known = {}
        if before is not None and self._tokenizes_as(before):
            known = before._ids
        self._ids: dict[str, tuple[Phrase, ...]] = {
            phrase: known[phrase]
            for choices in self._glossary.values()
            for phrase in choices
            if phrase in known
        }
        self._tokenize(
            (f"glossary[{source!r}]", phrase)
            for source, choices in self._glossary.items()
            for phrase in choices
        )
        self._lengths = sorted({len(x) for x in self._glossary}, reverse=True)

    def _tokenizes_as(self, other: Self) -> bool:
        same = self._tokenizer is other._tokenizer, self._stop_ids == other._stop_ids
        return all(same) and np.array_equal(self._continuing, other._continuing)

    def rows(
        self,
        lines: Sequence[str],
        constraints: Any = None,
        prefix: Sequence[str] | None = None,
        room: Sequence[int] | None = None,
        read: Sequence[str] | None = None,
        first: int = 0,
    ) -> list[Row]:
        """Returns the constraints of each line, as phrases of token ids.

        `constraints` are as the caller passed them: for each line a list of phrases, or
        tuples of alternatives. `prefix` is what each translation begins with, or None.
        `room` is the number of tokens that each line's constraints may have together,
        or None: what the glossary adds beyond it is left out, with a warning. It
        numbers the lines from `first`. `read` has what the model reads of each line,
        which may be cut; None: all.
        """
        given = [[] for _ in lines]
        if constraints is not None:
            given = _checked_constraints(lines, constraints)
            self._tokenize(
                (f"constraints[{number}][{k}]", phrase)
                for number, row in enumerate(given)
                for k, choices in enumerate(row)
                for phrase in choices
            )
        before = [""] * len(given) if prefix is None else prefix
        room = [math.inf] * len(given) if room is None else room
        read = lines if read is None else read
        rows, too_long = [], set()
        for number, (own, text) in enumerate(zip(given, before, strict=True)):
            row = []
            found = self._found(lines[number], read[number])
            for choices in dict.fromkeys([*own, *found]):
                if _says(text, choices):
                    continue
                longer = [*row, self._ways(choices, text)]
                if choices in own or count_tokens(longer) <= room[number]:
                    row = longer
                else:
                    too_long.add(number)
            rows.append(row)
        if too_long:
            warnings.warn(
                f"{len(too_long)} of {len(rows)} lines have phrases of the glossary "
                "that do not fit the limit of their translation, and were left out. "
                f"The first is lines[{first + min(too_long)}].",
                stacklevel=4,
            )
        return rows

    def _found(self, line: str, read: str) -> list[tuple[str, ...]]:
        """Returns what the glossary wants for a line of which the model reads a part.

        A source phrase must be in both: the part may end within a word, or begin with
        what the tokenizer puts before each line.
        """
        sources = self._sources(line)
        if read != line:
            kept = {*self._sources(read)}
            sources = [source for source in sources if source in kept]
        return [self._glossary[source] for source in sources]

    def _sources(self, line: str) -> list[str]:
        """Returns the source phrases of a line."""
        found = _whole_phrases(line, self._glossary, self._lengths)
        return [phrase for phrase, _ in found]

    def _ways(self, choices: Iterable[str], before: str) -> tuple[Phrase, ...]:
        """Returns the ways to write alternative phrases in a text after `before`."""
        ways = (way for phrase in choices for way in self._ids[phrase])
        # A phrase for the beginning alone would be glued to a word before it.
        in_word = re.match(LETTER, before[-1:]) is not None
        return tuple(way for way in ways if not (way.is_first and in_word))

    def _tokenize(self, named: Iterable[tuple[str, str]]) -> None:
        """Tokenizes phrases, each given with its name for error messages."""
        new = [(name, text) for name, text in named if text not in self._ids]
        for name, text in new:
            if not arguments.is_unicode(text):
                _refuse(name, text, "valid Unicode, without lone surrogates")
        texts = [text for _, text in new]
        tokenize = self._tokenizer.tokenize
        (lead,) = tokenize([self._lead])
        given = len(getattr(self._tokenizer, "prefix_ids", ()))
        # At the beginning of a text, after a space, and right after another character.
        starts = [ids[given:] for ids in tokenize(texts)]
        spaced = tokenize([f"{self._lead} {text}" for text in texts])
        spaced = [ids[len(lead) :] for ids in spaced]
        joined = tokenize([self._lead + text for text in texts])
        unknown = getattr(self._tokenizer, "unknown_id", None)
        for (name, text), start, later, whole in zip(
            new, starts, spaced, joined, strict=True
        ):
            if unknown in later or not later:
                _refuse(name, text, "words that the target's tokenizer knows")
            is_word = re.match(LETTER, text) is not None  # begins with a letter
            ways = [Phrase(tuple(later))]
            # A word is tokenized so at the beginning only; what is no word, anywhere.
            if start != later:
                ways.append(Phrase(tuple(start), is_first=is_word))
            glued = whole[len(lead) :]
            # Only if the character before keeps its own tokens.
            if glued and not is_word and whole == [*lead, *glued]:
                ways.append(Phrase(tuple(glued)))
            if not self._stop_ids.isdisjoint(later):
                _refuse(
                    name, text, "phrases without a token of the search's `stop_ids`"
                )
            never = {unknown, *self._stop_ids}
            self._ids[text] = tuple(
                way._replace(is_glued=way.ids[0] in self._continuing)
                for way in dict.fromkeys(ways)
                if never.isdisjoint(way.ids)
            )


def _says(text: str, choices: Iterable[str]) -> bool:
    """Returns whether a text contains one of alternative phrases, not at its very end.

    A phrase at the end may still be continued to another word.
    """
    if not text:
        return False
    # Each by itself: if one phrase is the beginning of another, either may be found.
    ends = (
        end
        for phrase in choices
        for _, end in _whole_phrases(text, [phrase], [len(phrase)])
    )
    return any(end < len(text) for end in ends)


def _whole_phrases(
    text: str, phrases: Container[str], lengths: Iterable[int]
) -> Iterator[tuple[str, int]]:
    """Yields the phrases that a text has as whole words, each with its end.

    `lengths` are the phrases' lengths, the longest first. Of several phrases at one
    place the longest is taken, and none within it.
    """
    bounds, end = [match.start() for match in _BOUNDARY.finditer(text)], 0
    known = set(bounds)
    for start in bounds:
        if start < end:
            continue
        stops = (start + length for length in lengths)
        whole = (x for x in stops if x in known and text[start:x] in phrases)
        stop = next(whole, None)
        if stop is not None:
            end = stop
            yield text[start:end], end


def _checked_glossary(glossary: Any) -> dict[str, tuple[str, ...]]:
    """Returns a glossary as a dict of source phrases to alternatives."""
    wanted = "a dict of source phrases to target phrases, or the path of a TSV file"
    if not isinstance(glossary, dict):
        try:
            arguments.path("glossary", glossary)
        except ValueError:
            arguments.refuse("glossary", glossary, wanted, optional=True)
        path = pathlib.Path(glossary)
        if not path.is_file():
            arguments.refuse("glossary", str(path), f"{wanted} that exists")
        glossary = {}
        for source, target in _read_pairs(path):
            glossary[source] = (*glossary.get(source, ()), target)
        if not glossary:
            arguments.refuse("glossary", str(path), "a file that holds phrases")
    checked = {}
    for source, choices in glossary.items():
        if not isinstance(source, str) or not source.strip():
            arguments.refuse("glossary", glossary, wanted, optional=True)
        key, choices = source.strip(), _alternatives(f"glossary[{source!r}]", choices)
        checked[key] = (*checked.get(key, ()), *choices)
    return checked


def _read_pairs(path: pathlib.Path) -> Iterator[list[str]]:
    """Yields the pairs of a glossary's file."""
    from keras_seqattn.text.lines import decoded, lines_of

    for number, line in enumerate(lines_of(path), start=1):
        text = decoded(line, path, number, "`glossary`")
        if not text.strip():
            continue
        pair = text.split("\t")
        if len(pair) != 2 or not all(side.strip() for side in pair):
            raise ValueError(
                "`glossary` must hold a source phrase, a tab and a target phrase in "
                f"each line. Received: {str(path)!r}, line {number}: {text!r}."
            )
        yield pair


def _checked_constraints(
    lines: Sequence[str], constraints: Any
) -> list[list[tuple[str, ...]]]:
    wanted = "a list of phrases, or of tuples of alternative ones, for each line"
    rows = arguments.sequence("constraints", constraints, wanted)
    if len(rows) != len(lines):
        raise ValueError(
            f"`constraints` must have as many rows as `lines`, {len(lines)}. "
            f"Received: constraints of {len(rows)} rows."
        )
    checked = []
    for number, (row, line) in enumerate(zip(rows, lines, strict=True)):
        name = f"constraints[{number}]"
        if not isinstance(row, list | tuple):
            _refuse(name, row, wanted)
        if row and not line.strip():
            _refuse(name, row, "an empty list for an empty line")
        checked.append([_alternatives(f"{name}[{k}]", x) for k, x in enumerate(row)])
    return checked


def _alternatives(name: str, choices: Any) -> tuple[str, ...]:
    """Returns a phrase, or a tuple of alternative ones, as a tuple."""
    phrases = choices if isinstance(choices, tuple) else (choices,)
    if not phrases or not all(isinstance(x, str) and x.strip() for x in phrases):
        _refuse(name, choices, "phrases, or tuples of alternative ones")
    return tuple(phrase.strip() for phrase in phrases)


def _refuse(place: str, value: Any, wanted: str) -> NoReturn:
    """Raises the error for something that an argument must not contain."""
    argument = place.partition("[")[0]
    raise ValueError(f"`{argument}` must hold {wanted}. Received: {place}={value!r}.")
