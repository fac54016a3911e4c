"""The beam search that translates held-out lines best: `Translator.tune_search`."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras_seqattn import arguments
from keras_seqattn.decoding import BeamSearch
from keras_seqattn.decoding.sweep import BeamSweep


class SearchScore(NamedTuple):
    """How well one search translates.

    Attributes:
        width: Its number of beams.
        length_penalty: Its length penalty.
        score: The metric of its translations.
    """

    width: int
    length_penalty: float
    score: float


class TunedSearch(NamedTuple):
    """The best of several beam searches, and how good each was.

    Attributes:
        search: The best `BeamSearch`; of equal ones the first in the table.
        table: List of `SearchScore`, one per search, in the order of the widths and
            then of the length penalties.
    """

    search: BeamSearch
    table: list[SearchScore]


def tune(
    translate: Callable[..., list[list[tuple[str, float]]]],
    references: list[str],
    widths: Sequence[int],
    length_penalties: Sequence[float],
    metric: Callable[[list[str], list[str]], float],
    search: BeamSearch,
    verbose: bool,
) -> TunedSearch:
    """Scores every width with every length penalty.

    `translate` takes a search, and returns for each line a list of pairs of a text and
    its score. All searches share the remaining options of `search`.
    """
    if search.num_groups > 1:
        raise ValueError(
            "`search` must have one group of beams to be tuned. "
            f"Received: search.num_groups={search.num_groups}."
        )
    table = []
    for width in widths:
        options = {**search.get_config(), "width": width, "num_hypotheses": 1}
        sweep = BeamSweep(**options, length_penalties=tuple(length_penalties))
        found = translate(search=sweep)
        for number, penalty in enumerate(length_penalties):
            # An empty line has one translation under every penalty.
            texts = [pairs[min(number, len(pairs) - 1)][0] for pairs in found]
            score = metric(texts, references)
            arguments.number("metric(translations, references)", score)
            table.append(SearchScore(width, penalty, score))
            if verbose:
                print(f"width {width}, length penalty {penalty}: {score:.2f}")
    best = max(table, key=lambda row: row.score)
    chosen = {
        "width": best.width,
        "length_penalty": best.length_penalty,
        "num_hypotheses": min(search.num_hypotheses, best.width),
    }
    return TunedSearch(dataclasses.replace(search, **chosen), table)


def checked_values(name: str, values: Any) -> list[Any]:
    """Returns the values to try in a list; `name` is "widths" or "length_penalties"."""
    check, wanted = arguments.positive_integer, "a list of positive integers"
    if name == "length_penalties":
        check = functools.partial(arguments.number, least=0)
        wanted = "a list of numbers of at least 0"
    values = list(arguments.sequence(name, values, wanted, check))
    if not values:
        arguments.refuse(name, values, f"{wanted}, at least one")
    return values
