"""The best of several candidates, by hand-worked numbers."""

import re

import numpy as np
import pytest
import sacrebleu

from keras_seqattn import decoding
from keras_seqattn.decoding import quality, reranking

pytestmark = pytest.mark.backends("torch")

# Each is far from all but those beside it.
LENGTHS = [[("a" * n, -float(n)) for n in (1, 2, 3, 7)], ["bb", "bb", "bb", "bbbbbb"]]


def nearness(hypothesis, reference):
    return -abs(len(hypothesis) - len(reference))


def overlap(hypothesis, reference):
    """The share of the hypothesis's words that the reference has."""
    words = hypothesis.split()
    return sum(word in reference.split() for word in words) / len(words)


def test_the_expected_utility_is_the_mean_over_all_candidates():
    """Distances 1 + 2 + 6, 1 + 1 + 5, 2 + 1 + 4 and 6 + 5 + 4, each over four."""
    found, _ = decoding.minimum_bayes_risk(LENGTHS, nearness)
    assert found == [
        ("aa", -7 / 4),
        ("aaa", -7 / 4),
        ("a", -9 / 4),
        ("a" * 7, -15 / 4),
    ]


def test_a_text_that_was_drawn_often_counts_as_often():
    """Without counting, both would have the same."""
    _, found = decoding.minimum_bayes_risk(LENGTHS, nearness)
    assert found == [("bb", -4 / 4), ("bbbbbb", -12 / 4)]


def test_a_utility_need_not_be_symmetric():
    """The hypothesis comes first: of "a b" two of three references lack half."""
    candidates = [["a", "a b", "a c"]]
    found = decoding.minimum_bayes_risk(candidates, overlap)
    assert found == [[("a", 1.0), ("a b", 2 / 3), ("a c", 2 / 3)]]
    swapped = decoding.minimum_bayes_risk(candidates, lambda x, y: overlap(y, x))
    assert swapped[0][0] == ("a b", (1 + 1 + 0.5) / 3)


@pytest.mark.parametrize("utility", ["bleu", "chrf"])
def test_utilities_by_name_are_those_of_sacrebleu(utility):
    texts = ["ein Hund rennt schnell", "ein Hund rennt", "zwei Hunde rennen weit"]
    metric = {
        "bleu": sacrebleu.BLEU(effective_order=True),
        "chrf": sacrebleu.CHRF(),
    }[utility]
    (found,) = decoding.minimum_bayes_risk([texts], utility)
    expected = {
        text: np.mean([metric.sentence_score(text, [one]).score for one in texts])
        for text in texts
    }
    assert dict(found) == pytest.approx(expected)
    assert [text for text, _ in found] == sorted(texts, key=lambda x: -expected[x])
    assert found[-1][0] == texts[2]


@pytest.mark.parametrize("name", ["bleu", "chrf"])
def test_metrics_of_a_corpus_by_name_are_those_of_sacrebleu(name):
    texts = ["ein Hund rennt sehr schnell", "zwei Hunde rennen weit"]
    references = ["ein Hund rennt schnell", "zwei Hunde rennen heute sehr weit"]
    metric = quality.corpus_metric(name)
    score = {"bleu": sacrebleu.corpus_bleu, "chrf": sacrebleu.corpus_chrf}[name]
    expected = score(texts, [references]).score
    assert metric(texts, references) == pytest.approx(expected)
    assert metric(references, texts) != pytest.approx(expected)


def test_unscored_candidates_have_a_risk():
    candidates = [[("a", np.nan), ("bb", np.nan)]]
    assert decoding.minimum_bayes_risk(candidates, nearness)[0][0] == ("a", -0.5)


CANDIDATES = [[("ja", -1.0), ("nein", -1.25)], [("oh", -0.5)]]


def reverse(sources, texts):
    """A reverse model's log-probability: of "yes" given "ja" far less than of "no"."""
    table = {("yes", "ja"): -3.0, ("yes", "nein"): -2.5, ("oh", "oh"): 0.0}
    return [table[pair] for pair in zip(sources, texts, strict=True)]


def length(sources, texts):
    return np.array([len(text) for text in texts])


@pytest.mark.parametrize(
    ("scorers", "weights", "expected"),
    [
        (reverse, None, [("nein", -3.75), ("ja", -4.0)]),
        ([reverse], [1, 0.25], [("ja", -1.75), ("nein", -1.875)]),
        ([reverse], [0.0, 1.0], [("nein", -2.5), ("ja", -3.0)]),
        ([reverse, length], [1, 0.25, -1.0], [("ja", -3.75), ("nein", -5.875)]),
        ([], None, [("ja", -1.0), ("nein", -1.25)]),
    ],
)
def test_the_total_is_the_weighted_sum(scorers, weights, expected):
    found = decoding.rerank(["yes", "oh"], CANDIDATES, scorers, weights)
    assert found[0] == expected
    assert [text for text, _ in found[1]] == ["oh"]


@pytest.mark.parametrize("score", [np.nan, -np.inf])
def test_scores_of_no_weight_decide_nothing(score):
    def other(sources, texts):
        return [0.0, -np.inf]

    candidates = [[("a", score), ("bb", 0.0)]]
    found = decoding.rerank(["x"], candidates, [length, other], [0, 1, 0])
    assert found == [[("bb", 2.0), ("a", 1.0)]]


def test_candidates_may_be_read_from_json_and_scores_be_numpy_s():
    pairs = [["ja", -1.0], ("nein", np.float32(-0.5)), ["oh", np.int64(-3)]]
    expected = [("nein", -0.5), ("ja", -1.0), ("oh", -3.0)]
    assert decoding.rerank(["x"], [pairs], []) == [expected]
    for wrong in (["ja", "nein"], ["ja", -1.0, 0.0], ("ja",)):
        with pytest.raises(ValueError, match="or pairs of a text and its score"):
            decoding.minimum_bayes_risk([[wrong]], nearness)


def test_scorers_get_each_text_once_in_blocks(monkeypatch):
    monkeypatch.setattr(reranking, "CANDIDATES_IN_A_BLOCK", 2)
    asked = []

    def scorer(sources, texts):
        asked.append((sources, texts))
        return [0.0] * len(texts)

    candidates = [[("a", -2.0), ("b", -1.0), ("a", -3.0)], ["c"]]
    found = decoding.rerank(["x", "y"], candidates, scorer)
    assert asked == [(["x", "x"], ["a", "b"]), (["y"], ["c"])]
    assert found == [[("b", -1.0), ("a", -2.0)], [("c", 0.0)]]


def test_one_goes_on_from_the_other():
    risks = decoding.minimum_bayes_risk(LENGTHS[:1], nearness)
    found = decoding.rerank(["x"], risks, length, [1.0, 0.5])
    assert found[0][0] == ("aaa", -7 / 4 + 1.5)


def test_progress_is_shown(capsys):
    decoding.minimum_bayes_risk(LENGTHS, nearness, verbose=True)
    assert "2/2" in capsys.readouterr().out
    decoding.rerank(["x", "y"], LENGTHS, [length, length], verbose=True)
    assert "12/12" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: decoding.minimum_bayes_risk("ab"),
            "`candidates` must be a list with, for each line, a list of its "
            "candidates. Received: candidates='ab'.",
        ),
        (
            lambda: decoding.minimum_bayes_risk([["a"], []]),
            "a list of its candidates, at least one. Received: candidates[1]=[].",
        ),
        (
            lambda: decoding.minimum_bayes_risk([["a", 3]]),
            "`candidates` must be texts, or pairs of a text and its score. Received: "
            "candidates[0] with 3.",
        ),
        (
            lambda: decoding.minimum_bayes_risk([["a"]], "rouge"),
            "`utility` must be one of ('bleu', 'chrf') or a function. Received: "
            "utility='rouge'.",
        ),
        (
            lambda: decoding.minimum_bayes_risk([["a"]], lambda x, y: None),
            "`utility(hypothesis, reference)` must be a finite number. Received: ",
        ),
        (
            lambda: decoding.rerank(["x"], CANDIDATES, length),
            "`candidates` must have as many lines as `sources`, 1. Received: "
            "candidates of 2 lines.",
        ),
        (
            lambda: decoding.rerank(["x", "y"], CANDIDATES, [3]),
            "`scorers` must be a function or a list of functions. Received: "
            "scorers=[3].",
        ),
        (
            lambda: decoding.rerank(["x", "y"], CANDIDATES, lambda x, y: [1.0]),
            "`scorers` must return one number for each text, 3 here. Received: from "
            "scorers[0] an array of shape (1,) and dtype 'float64'.",
        ),
        (
            lambda: decoding.rerank(["x"], [["a"]], lambda x, y: [np.nan]),
            "scorers[0] an array of shape (1,) and dtype 'float64', with NaN in it.",
        ),
        (
            lambda: decoding.rerank(["x", "y"], CANDIDATES, length, [1.0]),
            "`weights` must be a list of 2 numbers: the own score's, then one for each "
            "scorer. Received: weights=[1.0].",
        ),
        (
            lambda: decoding.rerank(["x"], [[("a", np.nan)]], length),
            "`candidates` must have scores. Received: candidates with scores that are "
            "NaN",
        ),
    ],
)
def test_what_is_wrong_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
