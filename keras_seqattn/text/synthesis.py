"""`synthesize`: a corpus that a translator makes from lines."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.text.journal import Journal
from keras_seqattn.text.parallel import ParallelText
from keras_seqattn.text.token_cache import identity_of_tokenizer

if TYPE_CHECKING:
    from keras_seqattn.decoding.methods import Search

# Number of lines that are translated, and written to disk, at a time.
LINES_IN_A_BLOCK = 1024


def synthesize(
    translator: Any,
    lines: Iterable[str],
    search: "Search | None" = None,
    num_hypotheses: int = 1,
    reverse: bool = False,
    max_length_ratio: float | None = None,
    skip_copies: bool = True,
    min_score: float | None = None,
    keep: float = 1.0,
    path: Path | None = None,
    verbose: bool = False,
) -> ParallelText:
    """Translates lines, and returns the pairs worth training on.

    It has three uses:

    - sequence-level distillation: a small model learns from a large one's translations
      of the sources;
    - data diversification: models of both directions translate the corpus that they
      were trained on, and all of it is joined;
    - back-translation, with `reverse`: a translator of the other direction makes
      sources for lines of the target language.

    These pairs are left out, in this order: those with an empty side; copies, whose
    sides are equal except for case and outer spaces; those whose lengths differ too
    much; those with low scores; repetitions of earlier pairs; and finally, by `keep`,
    the lowest scores of the rest. A pair's score is the mean log-probability of a token
    of the translation, its end included, in nats, as `translator.score` computes it.
    Without `min_score`, `keep` and `path` nothing is scored. A line break in a
    translation becomes a space.

    With a `path`, all translations are written there before any is left out, a block of
    lines at a time. Each row is a JSON object with "line", "source", "target" and
    "score". After an interruption the same call, with the same lines from the first,
    continues there; a call with other filters translates nothing again. Each block is
    translated by itself, so the result is the same as without the interruption.

    Args:
        translator: A `Translator`, or an object that has `translate` and, for scores,
            `score` and `target_tokenizer`.
        lines: Iterable of strings in a fixed order: a list, a generator, an open file.
        search: Search for this call; None: the translator's own. A `Sample` draws from
            its own seed, for each line anew.
        num_hypotheses: Number of translations for each line; with 1, the search's own.
        reverse: Whether the lines are the targets of the pairs, and their translations
            the sources.
        max_length_ratio: Largest ratio of the characters of a pair's longer side to
            those of the shorter, at least 1; None for no limit.
        skip_copies: Whether to leave out copies.
        min_score: Lowest score that is kept, at most 0; None for no limit.
        keep: Share of the remaining pairs that are kept, those with the best scores, in
            (0, 1].
        path: Path of the file; two files beside it hold the progress and a lock. None:
            nothing is written.
        verbose: Whether to show a progress bar.

    Returns:
        Two lists of strings, the sources and the targets, as a tuple with the
        attributes `report`, a text that counts what was left out; `num_lines`; and
        `found`, a dict from "empty", "copy", "length ratio", "low score" and
        "duplicate" to lists of line numbers, from 1.

    Raises:
        ValueError: If an argument is not as above, something in `lines` is not a
            string, or the file at `path` belongs to other lines, another translator or
            another search, is damaged or is in use.

    Example:
        >>> class Article:
        ...     def translate(self, lines, **options):
        ...         return [[(f"the {line}" if line else "", 0.0)] for line in lines]
        >>> sources, targets = synthesize(Article(), ["dog", "cat", "", "dog"])
        >>> sources, targets
        (['dog', 'cat'], ['the dog', 'the cat'])

    Reference:
        Kim and Rush 2016, "Sequence-Level Knowledge Distillation"; Nguyen et al. 2020,
        "Data Diversification"; Sennrich et al. 2016, "Improving Neural Machine
        Translation Models with Monolingual Data". Differs: the filters.
    """
    wanted = "a list of strings, an open file or a generator of them"
    arguments.ordered("lines", lines, wanted)
    num_hypotheses = arguments.positive_integer("num_hypotheses", num_hypotheses)
    arguments.boolean("reverse", reverse)
    arguments.number("max_length_ratio", max_length_ratio, least=1, optional=True)
    arguments.boolean("skip_copies", skip_copies)
    arguments.number("min_score", min_score, most=0, optional=True)
    arguments.number("keep", keep, above=0, most=1)
    arguments.path("path", path, optional=True)
    arguments.boolean("verbose", verbose)
    scored = min_score is not None or keep < 1 or path is not None
    needed = ("translate", *(("score", "target_tokenizer") if scored else ()))
    arguments.offers("translator", translator, needed, "a translator")
    if isinstance(translator, str):  # Strings have a method `translate`, too.
        arguments.refuse("translator", translator, "a translator")
    job = _Job(translator, search, num_hypotheses, reverse, scored)
    filters = _Filters(max_length_ratio, skip_copies, min_score)
    opened = contextlib.nullcontext()
    if path is not None:
        job.translate([], 1)  # A search is refused before the file is made.
        opened = Journal(path, job.describe())
    with opened as journal:
        count = len(lines) if hasattr(lines, "__len__") else None
        bar = keras.utils.Progbar(count, verbose=verbose, unit_name="line")
        for num_lines, rows in _blocks(job, lines, journal, bar):
            filters.add(num_lines, rows)
    return filters.corpus(keep)


def _blocks(job, lines, journal, bar):
    """Yields how many lines are done, and the rows of those done since the last yield.

    A row is a dict for each translation. Those written before come first.
    """
    lines = (line.rstrip("\r\n") for line in arguments.strings("lines", lines))
    first = 1
    if journal is not None:
        yield journal.lines, _read_rows(journal, lines, job.line_side)
        first += journal.lines
        bar.add(journal.lines)
    while block := list(itertools.islice(lines, LINES_IN_A_BLOCK)):
        rows = job.translate(block, first)
        if journal is not None:
            journal.append(b"".join(map(_json_line, rows)), len(block))
        first += len(block)
        yield first - 1, rows
        bar.add(len(block))
    if bar.target is None:  # It cannot know that it is full, and ends its line here.
        bar.update(first - 1, finalize=True)


def _read_rows(journal, lines, side):
    """Yields the rows of a file, and consumes the lines that they translate."""
    number, line = 0, None
    with open(journal.path, encoding="utf-8", newline="\n") as file:
        for row in map(json.loads, file):
            while number < row["line"]:
                number, line = number + 1, next(lines, None)
            if line != row[side]:
                found = "which is missing" if line is None else repr(line)
                raise ValueError(
                    "`lines` must be those that `path` was begun with. Received: line "
                    f"{number}, {found}."
                )
            yield row
    for _ in range(number, journal.lines):  # The last ones may have no row.
        next(lines, None)


def _json_line(row):
    return (json.dumps(row, ensure_ascii=False) + "\n").encode()


@dataclasses.dataclass(frozen=True)
class _Job:
    """A translator, how it translates, and which side of the pairs it makes."""

    translator: Any
    search: Any
    num_hypotheses: int
    reverse: bool
    scored: bool

    @property
    def line_side(self):
        """The side of a pair that holds the given line."""
        return "target" if self.reverse else "source"

    @property
    def search_used(self):
        """The search that is given, else the translator's; None if it has none."""
        if self.search is None:
            return getattr(self.translator, "search", None)
        return self.search

    def describe(self):
        """Returns a dict that distinguishes this job from others."""
        weights, translator = hashlib.sha256(), self.translator
        model = getattr(translator, "model", None)
        # A model that is no Keras model has only the `variables` of the protocol.
        for weight in getattr(model, "weights", getattr(model, "variables", ())):
            weights.update(keras.ops.convert_to_numpy(weight).tobytes())
        sides = ("source_tokenizer", "target_tokenizer")
        tokenizers = [getattr(translator, side, None) for side in sides]
        return {
            "tokenizers": [identity_of_tokenizer(each) for each in tokenizers],
            "max_source_length": getattr(translator, "max_source_length", None),
            "translator": weights.hexdigest(),
            "search": keras.saving.serialize_keras_object(self.search_used),
            "num_hypotheses": self.num_hypotheses,
            "reverse": self.reverse,
        }

    def translate(self, lines, first):
        """Returns the rows of a block of lines; `first` is its first line's number."""
        found = self.translator.translate(
            lines, search=self._search_from(first), num_hypotheses=self.num_hypotheses
        )
        numbers = [i for i, hypotheses in enumerate(found) for _ in hypotheses]
        lines = [lines[i] for i in numbers]
        texts = [" ".join(text.splitlines()) for pairs in found for text, _ in pairs]
        scores = self._scores(lines, texts) if self.scored else [None] * len(texts)
        sides = (texts, lines) if self.reverse else (lines, texts)
        return [
            {"line": first + i, "source": source, "target": target, "score": score}
            for i, source, target, score in zip(numbers, *sides, scores, strict=True)
        ]

    def _search_from(self, first):
        """Returns the search for a block of lines, whose first has this number.

        A `Sample` draws by its seed and a line's place in the call, so each block after
        the first gets its own seed.
        """
        search = self.search_used
        seed = getattr(search, "seed", None)
        is_ours = dataclasses.is_dataclass(search) and isinstance(seed, Integral)
        if not is_ours or first == 1:
            return self.search
        (seed,) = np.random.SeedSequence((seed, first)).generate_state(1).tolist()
        return dataclasses.replace(search, seed=seed)

    def _scores(self, lines, texts):
        """Returns the mean log-probability of each text's tokens, None without text."""
        pairs = zip(lines, texts, strict=True)
        real = [i for i, pair in enumerate(pairs) if all(x.strip() for x in pair)]
        scores = [None] * len(texts)
        if real:
            lines, texts = ([side[i] for i in real] for side in (lines, texts))
            totals = self.translator.score(lines, texts)
            tokenizer = self.translator.target_tokenizer
            # The given ids begin every text, and `score` leaves them out.
            given = len(getattr(tokenizer, "prefix_ids", ()))
            most = getattr(self.translator, "max_target_length", math.inf)
            ids = tokenizer.tokenize(texts)
            for i, total, tokens in zip(real, totals, ids, strict=True):
                scored = min(len(tokens) + 1, most)  # A longer text is cut.
                scores[i] = float(total) / (scored - given)
        return scores


class _Filters:
    """Collects rows, and makes a corpus of those that pass."""

    def __init__(self, max_length_ratio, skip_copies, min_score):
        self._max_length_ratio = max_length_ratio
        self._skip_copies, self._min_score = skip_copies, min_score
        kinds = ("empty", "copy", "length ratio", "low score", "duplicate")
        self._found = {kind: [] for kind in kinds}
        self._rows, self._seen, self._num_lines = [], set(), 0

    def add(self, num_lines, rows):
        """Keeps rows of lines up to `num_lines`, or notes why they are left out."""
        self._num_lines = num_lines
        for row in rows:
            kind = self._kind(row)
            if kind is None:
                self._seen.add((row["source"], row["target"]))
                self._rows.append(row)
            else:
                self._found[kind].append(row["line"])

    def _kind(self, row):
        """Returns why a row is left out, or None."""
        pair = row["source"], row["target"]
        shorter, longer = sorted(len(side.strip()) for side in pair)
        if not shorter:
            return "empty"
        if self._skip_copies and len({side.strip().casefold() for side in pair}) == 1:
            return "copy"
        # A product would be rounded past the ratio: 1.15 * 100 is below 115.
        if self._max_length_ratio and longer / shorter > self._max_length_ratio:
            return "length ratio"
        if self._min_score is not None and not row["score"] >= self._min_score:
            return "low score"
        return "duplicate" if pair in self._seen else None

    def corpus(self, keep):
        """Returns the share `keep` of the rows with the best scores, in their order."""
        rows = self._rows
        if keep < 1:
            scores = np.array([row["score"] for row in rows])
            order = np.argsort(-scores, kind="stable")
            # A product would be rounded past the share: 0.07 * 100 is above 7.
            is_kept = np.arange(len(rows)) / len(rows) < keep
            self._found["low score"] += [rows[i]["line"] for i in order[~is_kept]]
            self._found["low score"].sort()
            rows = [rows[i] for i in sorted(order[is_kept])]
        sides = [[row[side] for row in rows] for side in ("source", "target")]
        skipped = tuple(self._found)
        return ParallelText(*sides, self._num_lines, self._found, skipped)
