"""A translator's search, tuned, and its source read in several ways."""

import dataclasses
import math
import re
import types

import keras
import numpy as np
import pytest
import sacrebleu

import keras_seqattn as ks
from tests.evaluate import outputs
from tests.layers.weights import randomize
from tests.small import make_sentencepiece, translation_model

LINES = ["two dogs run in a park", "", "a man sings", "dogs in a blue shirt", "park"]


def make_model(size, **options):
    model = translation_model(size, model_dim=16, intermediate_dim=16, **options)
    randomize(model, np.random.default_rng(2))
    table = model.get_layer("source_embedding").weights[0]
    table.assign(1.5 * keras.ops.convert_to_numpy(table))  # so that tokens differ
    return model


@pytest.fixture(scope="module")
def translator():
    return ks.Translator(make_model(290, max_length=24), make_sentencepiece())


# Tuning.

WIDTHS, PENALTIES = (1, 3), (0.0, 2.0)


@pytest.mark.slow_on("tensorflow", "jax")
def test_each_search_has_the_score_of_its_own_translations(translator):
    references = translator(LINES[::-1])
    common = ks.decoding.BeamSearch(stop_ids=range(4, 60))  # so that sentences end
    found = translator.tune_search(
        LINES, references, WIDTHS, PENALTIES, "chrf", search=common
    )
    expected = []
    for width in WIDTHS:
        for penalty in PENALTIES:
            options = {"width": width, "length_penalty": penalty}
            search = dataclasses.replace(common, **options)
            texts = translator(LINES, search)
            score = sacrebleu.corpus_chrf(texts, [references]).score
            expected.append((width, penalty, score))
    assert found.table == expected
    assert len({score for *_, score in expected}) > 2
    best = max(expected, key=lambda row: row[2])
    options = dict(zip(("width", "length_penalty"), best, strict=False))
    assert found.search == dataclasses.replace(common, **options)


@pytest.mark.backends("torch")
def test_a_width_is_searched_once(translator, monkeypatch):
    searched = []
    translate = ks.Translator.translate

    def counted(self, lines, search, **options):
        searched.append(search.width)
        return translate(self, lines, search, **options)

    monkeypatch.setattr(ks.Translator, "translate", counted)
    translator.tune_search(LINES, LINES, WIDTHS, PENALTIES)
    assert searched == [1, 3]


@pytest.mark.backends("torch")
def test_what_searches_have_in_common_is_the_translator_s(translator):
    """The first of equal ones is chosen; no width is less than the hypotheses."""
    own = ks.decoding.BeamSearch(4, penalty="gnmt", min_length=2, num_hypotheses=3)
    tuned = ks.Translator(translator.model, translator.source_tokenizer, search=own)
    found = tuned.tune_search(LINES, LINES, (2, 3), (1.0, 0.5), metric=lambda x, y: 1)
    expected = {"width": 2, "length_penalty": 1.0, "num_hypotheses": 2}
    assert found.search == dataclasses.replace(own, **expected)
    assert tuned.search is own
    other = ks.decoding.BeamSearch(min_length=1)
    found = tuned.tune_search(LINES, LINES, [2], [1], lambda x, y: 0, search=other)
    assert found.search == ks.decoding.BeamSearch(2, 1, min_length=1)


@pytest.mark.backends("torch")
def test_scores_are_printed(translator, capsys):
    translator.tune_search(LINES[:1], LINES[:1], (2,), (0.5,), verbose=True)
    said = capsys.readouterr().out
    assert "1/1" in said and re.search(r"width 2, length penalty 0.5: [\d.]+\n", said)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": [], "references": []}, "`sources` must be a list of at least one"),
        ({"references": ["a"]}, "`references` must have as many lines as `sources`, 5"),
        ({"widths": ()}, "must be a list of positive integers, at least one. Rec"),
        ({"widths": (0,)}, "`widths` must be a list of positive integers. Received: "),
        ({"length_penalties": (-1,)}, "must be a list of numbers of at least 0. Rec"),
        ({"metric": "ter"}, "`metric` must be one of ('bleu', 'chrf') or a function."),
        ({"search": ks.decoding.Greedy()}, "`search` must be a `BeamSearch` or None."),
        (
            {"search": ks.decoding.BeamSearch(4, num_groups=2)},
            "`search` must have one group of beams to be tuned. Received: search.num_",
        ),
        (
            {"metric": lambda x, y: math.nan, "widths": (1,)},
            "`metric(translations, references)` must be a finite number. Received: ",
        ),
    ],
)
def test_bad_arguments_of_tuning(translator, options, message):
    given = {"sources": LINES, "references": LINES, **options}
    with pytest.raises(ValueError, match=re.escape(message)):
        translator.tune_search(**given)


# Minimum Bayes risk.


@pytest.mark.backends("torch")
def test_candidates_are_samples_whatever_the_translator_s_search(
    translator, monkeypatch
):
    searched = []
    translate = ks.Translator.translate

    def noted(self, lines, search, *args, **options):
        searched.append(search)
        return translate(self, lines, search, *args, **options)

    monkeypatch.setattr(ks.Translator, "translate", noted)
    model, tokenizer = translator.model, translator.source_tokenizer
    own = ks.Translator(model, tokenizer, search=ks.decoding.BeamSearch(2))
    found = own.minimum_bayes_risk(LINES, num_candidates=2)
    search = ks.decoding.Sample(min_p=0.02, seed=0)
    assert searched == [search]
    assert found == own.minimum_bayes_risk(LINES, search, num_candidates=2)


@pytest.mark.backends("torch")
def test_the_candidate_with_the_highest_expected_utility_is_chosen(translator):
    search = ks.decoding.Sample(seed=3)
    found = translator.minimum_bayes_risk(LINES, search, num_candidates=4)
    candidates = translator.translate(LINES, search, num_hypotheses=4)
    assert [len(each) for each in candidates] == [4, 1, 4, 4, 4]
    metric = sacrebleu.CHRF()
    for text, each in zip(found, candidates, strict=True):
        texts = [candidate for candidate, _ in each]
        utilities = [
            sum(metric.sentence_score(one, [other]).score for other in texts)
            for one in texts
        ]
        assert text == texts[int(np.argmax(utilities))]
    assert found[1] == ""
    # With a utility of the caller's own.
    short = translator.minimum_bayes_risk(LINES, search, 4, lambda x, y: -len(x))
    least = [min(len(text) for text, _ in each) for each in candidates]
    assert [len(text) for text in short] == least


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:.* are longer than")
def test_a_reverse_translator_reranks(translator):
    candidates = translator.translate(LINES, num_hypotheses=3)

    def reverse(sources, texts):
        return translator.score(texts, sources)

    found = ks.decoding.rerank(LINES, candidates, reverse, [0.5, 2.0])
    for line, each, ranked in zip(LINES, candidates, found, strict=True):
        own = dict(reversed(each))
        for text, score in ranked:
            (channel,) = translator.score([text], [line])
            assert score == pytest.approx(0.5 * own[text] + 2.0 * channel, rel=1e-4)
        scores = [score for _, score in ranked]
        assert scores == sorted(scores, reverse=True)


# Segmentations.


def drawn(translator, line, count, sampling, seed):
    """Source ids of several segmentations of one line, each with its end."""
    tokenizer, end = translator.source_tokenizer, translator.model.end_id
    found = [tokenizer.tokenize([line])]
    found += [tokenizer.tokenize([line], sampling, seed + i) for i in range(count - 1)]
    return [[*ids, end] for (ids,) in found]


@pytest.mark.slow_on("tensorflow", "jax")
def test_probabilities_are_averaged_over_segmentations(translator):
    """A greedy search by whole passes, in float64."""
    line, count = LINES[0], 3
    options = {"segmentations": count, "sampling": 0.5, "seed": 4}
    [[(text, score)]] = translator.translate([line], **options)
    sources = drawn(translator, line, count, 0.5, 4)
    assert len({tuple(ids) for ids in sources}) == count
    model, limit = translator.model, 24
    limit = min(limit, 2 * -(-sum(map(len, sources)) // count) + 10)
    target, total = [model.start_id], 0.0
    while len(target) <= limit and target[-1] != model.end_id:
        read = np.array([target], "int32")
        each = [
            outputs(model, {"source_ids": np.array([ids], "int32"), "target_ids": read})
            for ids in sources
        ]
        logits = np.array([one[0, -1] for one in each]).astype("float64")
        exponentials = np.exp(logits)
        mean = (exponentials / exponentials.sum(-1, keepdims=True)).mean(0)
        allowed = np.where(np.isin(np.arange(290), [0, 1]), 0.0, mean)
        target.append(int(allowed.argmax()))
        total += np.log(mean[target[-1]])
    said = [token for token in target[1:] if token != model.end_id]
    assert text == translator.target_tokenizer.detokenize([said])[0]
    np.testing.assert_allclose(score, total, rtol=1e-4)


@pytest.mark.slow
def test_a_seed_draws_the_same_and_another_seed_others(translator):
    beams = ks.decoding.BeamSearch(2)
    first, again, other, plain = (
        translator.translate(LINES, beams, **options)
        for options in (
            {"segmentations": 3, "sampling": 0.5},
            {"segmentations": 3, "sampling": 0.5, "seed": 0},
            {"segmentations": 3, "sampling": 0.5, "seed": 5},
            {},
        )
    )
    assert first == again
    assert first != other and first != plain
    assert first[1] == [("", 0.0)]


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_programs_of_segmentations_are_counted(translator):
    tokenizer = translator.source_tokenizer
    fresh = ks.Translator(translator.model, tokenizer)
    before = fresh.compile_report().num_programs
    fresh.translate(LINES, segmentations=2)
    after = fresh.compile_report().num_programs
    assert after > before
    fresh.translate(LINES, segmentations=2)
    assert fresh.compile_report().num_programs == after
    fresh.model = make_model(290)
    fresh.translate(LINES, segmentations=2)
    assert fresh._ensembles[2].models[0] is fresh.model


@pytest.mark.backends("torch")
def test_lines_whose_segmentations_are_too_long_are_told_once(translator):
    lines = ["a man", "a man in a blue shirt is standing"]
    (plain,) = translator.source_tokenizer.tokenize(lines[1:])
    tokenizers = translator.source_tokenizer, translator.target_tokenizer
    cut = ks.Translator(translator.model, *tokenizers, max_source_length=10)
    roomy = len(plain) + 1
    exact = ks.Translator(translator.model, *tokenizers, max_source_length=roomy)
    for one in (cut, exact):  # of `exact`, only what is drawn is too long
        with pytest.warns(UserWarning, match=r"1 of 2 lines.*lines\[1\]") as found:
            one.translate(lines, segmentations=4, sampling=0.9)
        assert len([x for x in found if "lines are longer" in str(x.message)]) == 1


@pytest.mark.backends("torch")
def test_segmentations_need_a_tokenizer_that_draws_and_no_coverage(translator):
    model = make_model(260, max_length=24)
    with pytest.raises(ValueError, match="`sampling` must be 0 for bytes.*=0.1"):
        ks.Translator(model, ks.text.ByteTokenizer()).translate(LINES, segmentations=2)
    tokenizer = ks.text.ByteTokenizer()
    plain = types.SimpleNamespace(
        tokenize=lambda lines: tokenizer.tokenize(lines),
        detokenize=tokenizer.detokenize,
        vocabulary_size=tokenizer.vocabulary_size,
    )
    with pytest.raises(ValueError, match="`segmentations` must be 1 where.*'sampling'"):
        ks.Translator(model, plain).translate(LINES, segmentations=2)
    search = ks.decoding.BeamSearch(coverage_penalty=0.1)
    with pytest.raises(ValueError, match="with several segment.*segmentations=2"):
        translator.translate(LINES, search, segmentations=2)
