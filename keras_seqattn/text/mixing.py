"""`Corpus`, whose pairs are read one by one, and the shares of several corpora."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.text.tokenizers import check_lines


class Corpus(NamedTuple):
    """Sentence pairs, which are checked as they are read.

    As for a `Translator`, the line break at the end of a line does not count. In text
    without translations it does.

    Attributes:
        targets: The translations of `sources`; the very same object as `sources` for
            text without translations.
        tag: Text put before each source, with a space between; None for none.
        names: The names of the user's arguments for both sides, for errors; one name
            twice for text without translations.

    Example:
        >>> list(Corpus(["a", "b"], ["x", "y"], "<de>").pairs())
        [('<de> a', 'x'), ('<de> b', 'y')]
    """

    sources: Iterable[str]
    targets: Iterable[str]
    tag: str | None = None
    names: tuple[str, str] = ("sources", "targets")

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yields the pairs; raises an error if there are none or the lengths differ."""
        number, lines = 0, self._checked()
        for number, (source, target) in enumerate(lines, start=1):
            if source is None or target is None:
                self._refuse(number, source is None, lines)
            yield source if self.tag is None else f"{self.tag} {source}", target
        if not number:
            name, _ = self.names
            raise ValueError(f"`{name}` must hold lines. Received: {name}=[].")

    def _checked(self):
        """Yields the lines of both sides, with None once one side has ended."""
        sources, targets = self.names
        lines = check_lines(self.sources, sources)
        if sources != targets:
            lines = _without_breaks(lines)
        if self.targets is self.sources:  # It may be an iterator, which is read once.
            return ((line, line) for line in lines)
        translations = _without_breaks(check_lines(self.targets, targets))
        return itertools.zip_longest(lines, translations)

    def _refuse(self, number, ended_with_sources, left):
        """Raises the error that one side ends before line `number`, the other later."""
        counts = [number - 1, number + sum(1 for _ in left)]
        sizes = counts if ended_with_sources else counts[::-1]
        sources, targets = self.names
        raise ValueError(
            f"`{targets}` must hold as many lines as `{sources}`, {sizes[0]}. "
            f"Received: {targets} with {sizes[1]}."
        )


def _without_breaks(lines):
    return (line.rstrip("\r\n") for line in lines)


def corpora_of(sources: Any, targets: Any) -> list[Corpus]:
    """Returns the user's corpora: one, or one for each tag if dicts are given."""
    if not isinstance(sources, Mapping):
        return [Corpus(sources, targets)]
    if not all(isinstance(tag, str) for tag in sources):
        wanted = "a dict from tags, which are strings, to lines"
        arguments.refuse("sources", list(sources), wanted)
    if not isinstance(targets, Mapping) or set(targets) != set(sources):
        tags = sorted(targets, key=str) if isinstance(targets, Mapping) else targets
        arguments.refuse(
            "targets", tags, f"a dict with the tags of `sources`, {list(sources)}"
        )
    if not sources:
        raise ValueError("`sources` must hold lines. Received: sources={}.")
    return [
        Corpus(
            sources[tag],
            targets[tag],
            tag,
            (f"sources[{tag!r}]", f"targets[{tag!r}]"),
        )
        for tag in sources
    ]


def rows_of(sizes: Sequence[int], temperature: float, seed: int) -> np.ndarray:
    """Returns the numbers of an epoch's pairs, counted through all corpora in turn.

    A corpus of n pairs, where the largest has m, gives n (m / n)^(1 - 1 / temperature):
    whole copies of it, and a rest that is drawn with `seed`. A temperature of 1 repeats
    nothing; a large one repeats each corpus until it is as large as the largest.

    Example:
        >>> rows_of([2, 1], 1e9, seed=0).tolist()
        [0, 1, 2, 2]

    Reference:
        Arivazhagan et al. 2019, "Massively Multilingual Neural Machine Translation in
        the Wild", section 4.2. Differs: pairs are drawn once, not anew in each epoch.
    """
    rng, first, rows = np.random.default_rng(seed), 0, []
    for size in sizes:
        wanted = round(size * (max(sizes) / size) ** (1 - 1 / temperature))
        copies, rest = divmod(wanted, size)
        drawn = np.sort(rng.choice(size, rest, replace=False))
        rows += [first + np.arange(size)] * copies + [first + drawn]
        first += size
    return np.concatenate(rows).astype("int64")
