"""The quality of texts by sacreBLEU: of one sentence, or of a whole corpus.

sacreBLEU is imported when it is first needed.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, TypeAlias

from keras_seqattn import arguments

METRICS = ("bleu", "chrf")
# A `Utility` rates a hypothesis against a reference; a `CorpusMetric` rates a list of
# hypotheses against a list of as many references.
Utility: TypeAlias = Literal["bleu", "chrf"] | Callable[[str, str], float]
CorpusMetric: TypeAlias = (
    Literal["bleu", "chrf"] | Callable[[list[str], list[str]], float]
)


def sentence_utility(utility: Any) -> Callable[[str, str], float]:
    """Returns a function of a hypothesis and a reference: that given, or sacreBLEU's.

    For "bleu" and "chrf" it returns the score of a sentence, from 0 to 100.
    """
    if callable(utility):
        return utility
    sacrebleu = _package_of("utility", utility)
    # A sentence of fewer than four words has no four-grams to count.
    bleu = utility == "bleu"
    metric = sacrebleu.BLEU(effective_order=True) if bleu else sacrebleu.CHRF()
    return lambda text, reference: metric.sentence_score(text, [reference]).score


def corpus_metric(metric: Any) -> Callable[[list[str], list[str]], float]:
    """Returns a function of hypotheses and references: that given, or sacreBLEU's.

    For "bleu" and "chrf" it returns the score of a corpus, from 0 to 100.
    """
    if callable(metric):
        return metric
    sacrebleu = _package_of("metric", metric)
    score = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}[metric]
    return lambda texts, references: score(texts, [references]).score


def _package_of(argument: str, metric: Any) -> ModuleType:
    """Imports sacreBLEU if `metric` is one of its names."""
    if not isinstance(metric, str) or metric not in METRICS:
        arguments.refuse(argument, metric, f"one of {METRICS} or a function")
    return arguments.package("sacrebleu", "score")
