"""How good texts are, by sacreBLEU: of one against another, or of all against all.

sacreBLEU is imported when it is first needed.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from keras_seqattn import arguments

METRICS = ("bleu", "chrf")
# Of a hypothesis and a reference, and of as many hypotheses as references.
Utility: TypeAlias = Literal["bleu", "chrf"] | Callable[[str, str], float]
CorpusMetric: TypeAlias = (
    Literal["bleu", "chrf"] | Callable[[list[str], list[str]], float]
)


def sentence_utility(utility: Any) -> Callable[[str, str], float]:
    """Returns a function of a hypothesis and a reference.

    Args:
        utility: "bleu" or "chrf", for sacreBLEU's of a sentence, from 0 to 100; or such
            a function.

    Returns:
        The function.

    Raises:
        ValueError: If `utility` is neither.

    Example:
        >>> sentence_utility("chrf")("a dog", "a dog")
        100.0
    """
    if callable(utility):
        return utility
    if not isinstance(utility, str) or utility not in METRICS:
        arguments.refuse("utility", utility, f"one of {METRICS} or a function")
    import sacrebleu

    # What has fewer than four words has no four-grams to count.
    metrics = {"bleu": sacrebleu.BLEU, "chrf": sacrebleu.CHRF}
    options = {"bleu": {"effective_order": True}, "chrf": {}}
    metric = metrics[utility](**options[utility])
    return lambda text, reference: metric.sentence_score(text, [reference]).score


def corpus_metric(metric: Any) -> Callable[[list[str], list[str]], float]:
    """Returns a function of hypotheses and as many references.

    Args:
        metric: "bleu" or "chrf", for sacreBLEU's of a corpus, from 0 to 100; or such a
            function.

    Returns:
        The function.

    Raises:
        ValueError: If `metric` is neither.

    Example:
        >>> round(corpus_metric("bleu")(["a dog runs in here"], ["a dog runs in here"]))
        100
    """
    if callable(metric):
        return metric
    if not isinstance(metric, str) or metric not in METRICS:
        arguments.refuse("metric", metric, f"one of {METRICS} or a function")
    import sacrebleu

    score = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}[metric]
    return lambda texts, references: score(texts, [references]).score
