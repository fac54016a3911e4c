"""Lexical constraints: phrases that hypotheses must contain, as one table per phrase.

A phrase is matched token by token, as by Knuth, Morris and Pratt. Its progress is the
number of its first tokens that the beam has just generated, and `next` holds the
progress after one more token. A phrase of n tokens is complete at progress n. It moves
to n + 1, and is met for good, when a token follows that does not continue its last
word.
Shapes: B sentences, K constraints, A alternatives of each, L tokens of the longest
phrase, U different tokens of a sentence's phrases.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding.hypotheses import SpecialTokens, next_power

# Stands for a phrase that cannot be relied on: more tokens than any limit has.
NEVER = 2**20
WANTED = "a list of phrases, each a list of token ids, or a tuple of alternative ones"


class Phrase(NamedTuple):
    """One way to meet a constraint."""

    ids: tuple[int, ...]
    is_first: bool = False  # counts only right after the forced tokens
    is_glued: bool = False  # its first token would continue a word before it

    @property
    def num_reserved(self) -> int:
        """How many tokens must still fit for it at any place.

        Its own, and one more that ends the word before, if its first token would
        continue that word. `NEVER` if it counts only at the beginning: it cannot be
        relied on later.
        """
        return NEVER if self.is_first else len(self.ids) + self.is_glued


# For each constraint of a sentence, its alternative phrases, of which one must occur.
Row = list[tuple[Phrase, ...]]


class Constraints(NamedTuple):
    """The phrases of B sentences; constraints that only fill the row have length 0."""

    tokens: Tensor  # int32 (B, U), padded with the pad token
    lengths: Tensor  # int32 (B, K, A)
    reserved: Tensor  # int32 (B, K, A): the `num_reserved` of each
    is_first: Tensor  # bool (B, K, A): only the beginning of the text counts
    next: Tensor  # int32 (B, K, A, L + 1, U): the progress after each token


class Size(NamedTuple):
    """The sizes in `Constraints`: powers of 2, so that few programs are compiled."""

    constraints: int
    alternatives: int
    length: int
    tokens: int


def table_size(rows: Sequence[Row]) -> Size:
    """Returns the size of the tables for the constraints of each sentence."""
    phrases = [phrase for row in rows for choices in row for phrase in choices]
    most = (
        max((len(row) for row in rows), default=0),
        max((len(choices) for row in rows for choices in row), default=0),
        max((len(phrase.ids) for phrase in phrases), default=0),
        max((len(_tokens(row)) for row in rows), default=0),
    )
    return Size(*map(next_power, most, (1, 2, 4, 8)))


def _tokens(row: Row) -> list[int]:
    """Returns the different tokens of a sentence's phrases."""
    return sorted(
        {token for choices in row for phrase in choices for token in phrase.ids}
    )


def make_constraints(rows: Sequence[Row], pad_id: int, size: Size) -> Constraints:
    """Makes the NumPy tables of sentences' constraints.

    Example:
        >>> rows = [[(Phrase((5, 5, 7)),)]]
        >>> made = make_constraints(rows, 0, table_size(rows))
        >>> made.tokens[0, :2].tolist(), made.next[0, 0, 0, :, :2].tolist()
        ([5, 7], [[1, 0], [2, 0], [2, 3], [1, 0], [0, 0]])

    Reference:
        Knuth, Morris and Pratt 1977, "Fast Pattern Matching in Strings".
    """
    shape = (len(rows), size.constraints, size.alternatives)
    tokens = np.full((len(rows), size.tokens), pad_id, "int32")
    lengths, reserved = np.zeros(shape, "int32"), np.zeros(shape, "int32")
    is_first = np.zeros(shape, "bool")
    after = np.zeros((*shape, size.length + 1, size.tokens), "int32")
    for b, row in enumerate(rows):
        columns = _tokens(row)
        tokens[b, : len(columns)] = columns
        for k, choices in enumerate(row):
            # Repeated to fill the row: an alternative given twice changes nothing.
            for a in range(size.alternatives):
                phrase = choices[a % len(choices)]
                lengths[b, k, a] = len(phrase.ids)
                reserved[b, k, a] = phrase.num_reserved
                is_first[b, k, a] = phrase.is_first
                table = _progress_after(phrase, columns)
                after[b, k, a, : len(table), : len(columns)] = table
    return Constraints(tokens, lengths, reserved, is_first, after)


def _progress_after(phrase: Phrase, columns: list[int]) -> np.ndarray:
    """Returns the progress after each token, for each progress before: `(n + 1, U)`."""
    ids, length = phrase.ids, len(phrase.ids)
    table = np.zeros((length + 1, len(columns)), "int32")
    for column, token in enumerate(columns):
        for progress in range(length + 1):
            said = (*ids[:progress], token)
            ends = range(min(len(said), length), 0, -1)
            if phrase.is_first:  # Once broken off, it cannot begin again.
                ends = [progress + 1] if progress < length else []
            table[progress, column] = next((n for n in ends if said[-n:] == ids[:n]), 0)
    return table


def count_tokens(row: Row) -> int:
    """Adds up the fewest tokens that each constraint needs at any place."""
    return sum(min(phrase.num_reserved for phrase in choices) for choices in row)


def checked_constraints(
    given: Any,
    batch_size: int,
    vocabulary_size: int | None,
    tokens: SpecialTokens,
    banned: Any,
) -> list[Row]:
    """Returns the constraints of a batch, given as token ids, as B rows of phrases.

    A phrase must contain no special `tokens` and none of those `banned`, which the
    search never generates.
    """
    wanted = f"a list of {batch_size} rows, one a sentence"
    rows = arguments.sequence("constraints", given, wanted)
    if len(rows) != batch_size:
        raise ValueError(
            f"`constraints` must have {batch_size} rows, one a sentence. "
            f"Received: constraints of {len(rows)} rows."
        )
    never, beyond = {*tokens, *banned}, vocabulary_size or math.inf
    wanted = "a list of token ids, or a tuple of such"

    def phrase(name, ids):
        arguments.instance(name, ids, list | np.ndarray, wanted)
        ids = arguments.sequence(name, ids, wanted, arguments.integer)
        if not ids or any(i in never or not 0 <= i < beyond for i in ids):
            raise ValueError(
                f"`{name}` must be token ids that the search may generate, at least "
                f"one. Received: {name}={ids!r}."
            )
        return Phrase(tuple(ids))

    def constraint(name, choices):
        if not isinstance(choices, tuple):
            return (phrase(name, choices),)
        if not choices:
            arguments.refuse(name, choices, wanted)
        return tuple(phrase(f"{name}[{k}]", ids) for k, ids in enumerate(choices))

    return [
        [
            constraint(f"constraints[{b}][{k}]", choices)
            for k, choices in enumerate(
                arguments.sequence(f"constraints[{b}]", row, WANTED)
            )
        ]
        for b, row in enumerate(rows)
    ]


def check_lengths(
    rows: Sequence[Row], limits: Sequence[int], forced: Iterable[int], first: int
) -> None:
    """Raises an error where the constraints of a sentence do not fit in its limit.

    A limit includes the sentence's `forced` first tokens, given as their number, and
    its end. `first` is the number of the first sentence, for the error message.
    """
    given = zip(rows, limits, forced, strict=True)
    for number, (row, limit, before) in enumerate(given, first):
        count, most = count_tokens(row), max(0, int(limit) - 1 - before)
        if count > most:
            with_forced = f" and the prefix's {before}" if before else ""
            raise ValueError(
                f"`constraints[{number}]` must have at most {most} tokens together, "
                f"for a limit of {limit} tokens with the end's{with_forced}. "
                f"Received: constraints[{number}] of {count} tokens."
            )
