"""Orders candidate texts by more than the search's own score.

Candidates are what `Translator.translate` returns for many hypotheses. These functions
return them too, so one can be applied to the result of another.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Lines
from keras_seqattn.decoding.quality import Utility, sentence_utility

# For each line its candidates: texts, or pairs of a text and its score.
Candidates: TypeAlias = Sequence[Sequence[tuple[str, float]] | Sequence[str]]
Scorer: TypeAlias = Callable[[list[str], list[str]], Any]
# The largest number of candidates that a scorer is given at once.
CANDIDATES_IN_A_BLOCK = 1024


def minimum_bayes_risk(
    candidates: Candidates, utility: Utility = "chrf", verbose: bool = False
) -> list[list[tuple[str, float]]]:
    """Orders the candidates of each line by their expected utility.

    The candidates stand for all translations that the model thinks possible. The
    expected utility of one is its mean utility with each of them as the reference,
    itself included. A text that was drawn several times counts that many times, and is
    returned once. The mean is meant for samples (`Sample(num_hypotheses=32)`). The
    hypotheses of a beam search are much alike, and all count equally.

    For n different candidates of a line it computes n^2 utilities. The scores of the
    candidates are not used.

    Args:
        candidates: For each line a list of pairs `(text, score)`, or of texts.
        utility: "chrf" or "bleu", sacreBLEU's score of a sentence, from 0 to 100; or a
            function of a hypothesis and a reference, both strings, that returns a
            number, the larger the better.
        verbose: Whether to show a progress bar.

    Returns:
        For each line a list of pairs `(text, expected utility)`, best first, equal ones
        in the order given.

    Raises:
        ValueError: If `candidates` are not as above or a line has none, or `utility` is
            neither one of these names nor a function that returns numbers.
        ImportError: If `utility` is "chrf" or "bleu", and sacreBLEU, of the extra
            `score`, is not installed.

    Example:
        >>> def length(hypothesis, reference):
        ...     return -abs(len(hypothesis) - len(reference))
        >>> minimum_bayes_risk([["aa", "aaaa", "aaa"]], length)[0][0]
        ('aaa', -0.6666666666666666)

    Reference:
        Kumar and Byrne 2004; Eikema and Aziz 2020, section 5. Differs: none.
    """
    lines = _checked_candidates(candidates)
    utility = sentence_utility(utility)
    arguments.boolean("verbose", verbose)
    progress = keras.utils.Progbar(len(lines), verbose=verbose, unit_name="line")
    found = []
    for pairs in lines:
        counts = Counter(text for text, _ in pairs)
        utilities = [_expected_utility(text, counts, utility) for text in counts]
        found.append(_best_first(list(counts), utilities))
        progress.add(1)
    return found


def rerank(
    sources: Lines,
    candidates: Candidates,
    scorers: Scorer | Sequence[Scorer],
    weights: Sequence[float] | None = None,
    verbose: bool = False,
) -> list[list[tuple[str, float]]]:
    """Orders the candidates of each line by a weighted sum of scores.

    score(text) = w_0 * own score + w_1 * scorer_1(source, text) + ...

    With a translator of the opposite direction as a scorer, this is a noisy channel:
    `lambda sources, texts: reverse.score(texts, sources)`. The method `score` of
    another translator can be passed as it is.

    Args:
        sources: List of strings, the lines.
        candidates: For each of them a list of pairs `(text, score)`, or of texts, whose
            own score is then 0.
        scorers: A function, or a list of functions, of a list of sources and a list of
            as many texts, which returns a number for each pair, the larger the better.
        weights: List of numbers: the own score's, then one for each scorer; None: 1 for
            all.
        verbose: Whether to show a progress bar.

    Returns:
        For each line a list of pairs `(text, score)`, best first, equal ones in the
        order given. A text that occurs several times is returned once; its own score is
        the first one.

    Raises:
        ValueError: If `sources` and `candidates` are not as above, a line has no
            candidates, `scorers` are not functions or return something else, `weights`
            are not one number more than there are scorers, or a candidate's own score
            is NaN and its weight is not 0.

    Example:
        >>> def shortness(sources, texts):
        ...     return [-len(text) for text in texts]
        >>> candidates = [[("a dog runs", -1.0), ("a dog", -1.5)]]
        >>> rerank(["ein Hund"], candidates, shortness, weights=[1.0, 0.2])
        [[('a dog', -2.5), ('a dog runs', -3.0)]]

    Reference:
        Yee et al. 2019, "Simple and Effective Noisy Channel Modeling for Neural Machine
        Translation". Differs: it scores only whole candidates, and adds the scores as
        they are given. The paper divides the own score by the number of target tokens,
        as a `BeamSearch` with a `length_penalty` of 1 does, and the other scores by
        that of source tokens.
    """
    sources = arguments.sequence("sources", sources, "a list of strings")
    sources = list(arguments.strings("sources", sources))
    lines = _checked_candidates(candidates)
    if len(lines) != len(sources):
        raise ValueError(
            f"`candidates` must have as many lines as `sources`, {len(sources)}. "
            f"Received: candidates of {len(lines)} lines."
        )
    scorers = _checked_scorers(scorers)
    weights = _checked_weights(weights, len(scorers))
    arguments.boolean("verbose", verbose)
    lines = [distinct_texts(pairs) for pairs in lines]
    repeated = [source for source, own in zip(sources, lines, strict=True) for _ in own]
    texts = [text for own in lines for text in own]
    own_scores = np.array([x for own in lines for x in own.values()])
    totals = _weighted(weights[0], own_scores)
    if np.isnan(totals).any():
        raise ValueError(
            "`candidates` must have scores. Received: candidates with scores that are "
            "NaN, as of a search that is not `scored`."
        )
    count = len(texts) * len(scorers)
    progress = keras.utils.Progbar(count, verbose=verbose, unit_name="score")
    for number, (scorer, weight) in enumerate(zip(scorers, weights[1:], strict=True)):
        for begin in range(0, len(texts), CANDIDATES_IN_A_BLOCK):
            block = slice(begin, begin + CANDIDATES_IN_A_BLOCK)
            scores = _scores(number, scorer, repeated[block], texts[block])
            totals[block] += _weighted(weight, scores)
            progress.add(len(scores))
    each = iter(totals.tolist())
    return [_best_first(list(own), [next(each) for _ in own]) for own in lines]


def distinct_texts(pairs: list[tuple[str, float]]) -> dict[str, float]:
    """Returns the score of each text, the first if the text occurs several times."""
    scores = {}
    for text, score in pairs:
        scores.setdefault(text, score)
    return scores


def _expected_utility(
    text: str, counts: Counter[str], utility: Callable[[str, str], float]
) -> float:
    """Computes the mean utility of a text over references, weighted by their counts."""
    total = sum(
        count * arguments.number("utility(hypothesis, reference)", utility(text, other))
        for other, count in counts.items()
    )
    return total / counts.total()


def _best_first(texts: list[str], scores: list[float]) -> list[tuple[str, float]]:
    """Returns pairs of texts and scores, the largest scores first."""
    pairs = zip(texts, map(float, scores), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def _weighted(weight: float, scores: np.ndarray) -> np.ndarray:
    """Returns scores times a weight: for 0 all are 0, even if infinite or NaN."""
    return weight * scores if weight else np.zeros(len(scores))


def _scores(
    number: int, scorer: Scorer, sources: list[str], texts: list[str]
) -> np.ndarray:
    """Returns a scorer's numbers for pairs of a source and a text, as an array."""
    scores = np.asarray(scorer(sources, texts))
    is_whole = scores.shape == (len(texts),) and scores.dtype.kind in "iuf"
    has_nan = is_whole and np.isnan(scores).any()
    if not is_whole or has_nan:
        raise ValueError(
            f"`scorers` must return one number for each text, {len(texts)} here. "
            f"Received: from scorers[{number}] an array of shape {scores.shape} and "
            f"dtype {scores.dtype.name!r}{', with NaN in it' if has_nan else ''}."
        )
    return scores.astype("float64")


def _checked_candidates(candidates: Any) -> list[list[tuple[str, float]]]:
    """Returns the candidates of each line as pairs of a text and its score."""
    wanted = "a list with, for each line, a list of its candidates"
    lines = []
    for number, given in enumerate(
        arguments.sequence("candidates", candidates, wanted)
    ):
        if not isinstance(given, list | tuple) or not given:
            raise ValueError(
                f"`candidates` must be {wanted}, at least one. "
                f"Received: candidates[{number}]={given!r}."
            )
        pairs = [(x, 0.0) if isinstance(x, str) else x for x in given]
        for pair in pairs:
            if not _is_pair(pair):
                raise ValueError(
                    "`candidates` must be texts, or pairs of a text and its score. "
                    f"Received: candidates[{number}] with {pair!r}."
                )
        lines.append([(text, float(score)) for text, score in pairs])
    return lines


def _is_pair(pair: Any) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    text, score = pair
    return isinstance(text, str) and isinstance(score, int | float | np.number)


def _checked_scorers(scorers: Any) -> list[Scorer]:
    """Returns scorers as a list."""
    if callable(scorers):
        return [scorers]
    wanted = "a function or a list of functions"
    return list(arguments.sequence("scorers", scorers, wanted, arguments.function))


def _checked_weights(weights: Any, count: int) -> list[float]:
    """Returns the weights of the own score and of each scorer."""
    if weights is None:
        return [1.0] * (count + 1)
    wanted = f"a list of {count + 1} numbers: the own score's, then one for each scorer"
    weights = arguments.sequence("weights", weights, wanted, arguments.number)
    if len(weights) != count + 1:
        arguments.refuse("weights", weights, wanted)
    return list(weights)
