"""Beam search against brute force, greedy search and its own definition."""

import dataclasses
import itertools

import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.hypotheses import SpecialTokens, hypotheses
from keras_seqattn.decoding.processors import FORBIDDEN, best_of_all
from tests.evaluate import evaluated
from tests.pairs import each_variant, named

V = 5
PAD, START, END = 0, 1, 2
WORDS = [token for token in range(V) if token not in (PAD, START, END)]


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def chained(table, width):
    """A step that says `table[b, token before, token]`, and notes what it was told.

    The beams' part of the state is the history of each: it is right only where beams
    are reordered as the search says.
    """

    def step(token_ids, state, index):
        seen = ops.one_hot(token_ids, V)
        logits = ops.einsum("bwu,buv->bwv", seen, state["sentence"]["table"])
        history = ops.slice_update(
            state["beam"]["history"], (0, 0, index), token_ids[..., None]
        )
        # Words said two steps before count too, through what the beam remembers.
        before = ops.take(history, ops.maximum(index - 1, 0), axis=2)
        logits = logits + 0.5 * ops.cast(ops.one_hot(before, V), "float32")
        return logits, {"beam": {"history": history}, "sentence": state["sentence"]}

    history = np.zeros((len(table), width, 8), "int32")
    return step, {"beam": {"history": history}, "sentence": {"table": table}}


def log_prob(table, sentence):
    """The model's own log-probability of one sentence, by a loop in float64."""
    tokens, total = [START], 0.0
    for index, token in enumerate(sentence):
        logits = table[tokens[-1]].astype("float64").copy()
        logits[tokens[max(index - 1, 0)]] += 0.5
        total += log_softmax(logits)[token]
        tokens.append(token)
    return total


def penalty(search, length):
    base = length if search.penalty == "length" else (5 + length) / 6
    return base**search.length_penalty


def brute_force(table, max_length, search, prefix=()):
    """All that can be said, best first: what ends, and what the limit cuts."""
    sentences = list(itertools.product(WORDS, repeat=max_length))
    for length in range(max_length):
        for words in itertools.product(WORDS, repeat=length):
            sentences.append((*words, END))
    # A prefix is certain: neither its probability nor its length counts.
    given = len(prefix)
    scored = [
        (
            (log_prob(table, sentence) - log_prob(table, prefix))
            / penalty(search, max(len(sentence) - given, 1)),
            sentence,
        )
        for sentence in sentences
        if sentence[:given] == tuple(prefix)
    ]
    return sorted(scored, reverse=True)


def check_brute_force(found, tables, limits, search, prefixes=None):
    """Sees that hypotheses are the best of all, each of its own sentence."""
    for b, limit in enumerate(limits):
        prefix = () if prefixes is None else prefixes[b]
        expected = brute_force(tables[b], limit, search, prefix)
        assert len(found.ranked(b)) == min(search.num_hypotheses, len(expected))
        for n, (words, score) in enumerate(found.ranked(b)):
            np.testing.assert_allclose(score, expected[n][0], rtol=1e-4, atol=1e-6)
            said = [token for token in expected[n][1] if token != END]
            assert words == said, (b, n)
        assert (found.scores[b, 1:] <= found.scores[b, :-1]).all()


def run_limits(table, search, limits, prefix=None):
    """Searches sentences that each have a limit of their own."""
    step, state = chained(table, search.width)
    tokens = SpecialTokens(START, END, PAD)

    def searched(state, limits, prefix):
        begun = search.begin(limits, ops.zeros_like(limits), prefix, 4, tokens)
        first = loop.first_loop_state(state, begun)
        return loop.run(search, step, first, tokens).search_state

    if prefix is None:
        prefix = np.zeros((len(limits), 0), "int32")
    found = evaluated(searched)(state, np.asarray(limits, "int32"), prefix)
    return hypotheses(*search.results(found), tokens)


def run(table, search, max_length, **options):
    step, state = chained(table, search.width)
    return decoding.search(
        step,
        state,
        batch_size=len(table),
        max_length=max_length,
        method=search,
        **options,
    )


def tables(seed, batch_size=2):
    rng = np.random.default_rng(seed)
    return 1.5 * rng.normal(size=(batch_size, V, V)).astype("float32")


@each_variant(
    "score",
    {"length": (1.0, "length"), "gnmt": (0.6, "gnmt")},
    on_jax=["gnmt"],
    on_tensorflow=["length"],
)
def test_a_width_that_covers_the_tree_is_brute_force(score):
    """Of 2 words and an end, 3 steps: at most 4 live beams, 12 continuations."""
    length_penalty, penalty_kind = score
    search = decoding.BeamSearch(
        width=12, length_penalty=length_penalty, penalty=penalty_kind, num_hypotheses=4
    )
    table = tables(seed=1, batch_size=8)
    check_brute_force(run(table, search, max_length=3), table, [3] * 8, search)


@each_variant("length_penalty", named(0.0, 1.0, 3.0), on_jax=["1.0"], on_tensorflow=[])
def test_a_bias_that_lets_rankings_rise_does_not_end_the_search_early(length_penalty):
    """Hypotheses are the best by what is ranked, of all that can be said."""
    search = decoding.BeamSearch(
        12, length_penalty, num_hypotheses=2, biased_ids={WORDS[0]: 2.5, END: 4.0}
    )
    table = tables(seed=1, batch_size=8)
    found = run(table, search, max_length=3)
    biases = dict(search.biased_ids)
    for b in range(8):
        every = brute_force(table[b], 3, dataclasses.replace(search, length_penalty=0))
        ranked = sorted(
            (total + sum(biases.get(token, 0.0) for token in sentence))
            / penalty(search, len(sentence))
            for total, sentence in every
        )
        said = [words for words, _ in found.ranked(b)]
        assert len(said) == 2
        for n, words in enumerate(said):
            whole = (*words, END) if len(words) < 3 else tuple(words)
            ranking = log_prob(table[b], whole) + sum(biases.get(t, 0.0) for t in whole)
            ranking /= penalty(search, len(whole))
            np.testing.assert_allclose(ranking, ranked[-1 - n], rtol=1e-4)


LIMITED = {
    "length": decoding.BeamSearch(24, 1.0, num_hypotheses=6),
    "gnmt": decoding.BeamSearch(24, 0.6, "gnmt", num_hypotheses=3),
    "sums": decoding.BeamSearch(24, 0.0, num_hypotheses=24),
    "long": decoding.BeamSearch(24, 3.0),
}


@each_variant("search", LIMITED, on_jax=[], on_tensorflow=["gnmt"])
def test_what_the_limit_cuts_competes_by_its_score(search):
    """Ends are unlikely in some tables: there what has not ended is best."""
    table = tables(seed=4, batch_size=12)
    table[::2, :, END] -= 3.0
    limits = [1, 2, 3, 4] * 3
    found = run_limits(table, search, limits)
    check_brute_force(found, table, limits, search)
    best = found.lengths[:, 0]
    assert (best == limits).any() and (best < limits).any()


@each_variant("search", LIMITED, on_jax=["gnmt"], on_tensorflow=[])
def test_of_a_prefix_neither_probability_nor_length_counts(search):
    """The prefixes are of all lengths up to the limit, and none, and unlikely."""
    table = tables(seed=6, batch_size=8)
    table[::2, :, END] -= 2.0
    table[:, START, WORDS] -= 6.0
    limits = [4, 4, 4, 4, 3, 2, 1, 4]
    prefixes = [(), (3,), (4, 3), (3, 3, 4), (4,), (4, 4), (3,), (3, 4, 4, 3)]
    rows = [[*prefix, *[PAD] * (4 - len(prefix))] for prefix in prefixes]
    found = run_limits(table, search, limits, np.array(rows, "int32"))
    check_brute_force(found, table, limits, search, prefixes)


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_likely_sentence_that_the_limit_cuts_is_best():
    """Not the empty one, which ended: 3 3 3 3 has nearly all the probability."""
    table = np.zeros((1, V, V), "float32")
    table[0, :, 3], table[0, :, END] = 9.0, 0.1
    search = decoding.BeamSearch(width=4, num_hypotheses=4)
    found = run(table, search, max_length=4)
    assert found.sequence(0, 0) == [3, 3, 3, 3]
    assert found.scores[0, 0] > -0.01
    assert (np.diff(found.scores[0]) <= 0).all()
    single = run(table, decoding.BeamSearch(width=1), max_length=4)
    np.testing.assert_allclose(single.scores[0, 0], found.scores[0, 0], rtol=1e-5)


@pytest.mark.parametrize("penalty_kind", ["length", "gnmt"])
@pytest.mark.slow_on("tensorflow", "jax")
def test_a_limit_of_one_token(penalty_kind):
    table = tables(seed=8, batch_size=4)
    search = decoding.BeamSearch(3, 2.0, penalty_kind, num_hypotheses=3)
    found = run(table, search, max_length=1)
    check_brute_force(found, table, [1] * 4, search)


@pytest.mark.slow_on("tensorflow")
def test_a_width_of_one_is_greedy():
    table = tables(seed=2, batch_size=20)
    greedy = run(table, decoding.Greedy(), max_length=6)
    found = run(table, decoding.BeamSearch(width=1), max_length=6)
    np.testing.assert_array_equal(found.token_ids, greedy.token_ids)
    lengths = np.minimum(greedy.lengths + 1, 6)
    np.testing.assert_allclose(found.scores, greedy.scores / lengths, rtol=1e-4)


@pytest.mark.slow_on("tensorflow")
def test_scores_are_those_of_the_model_recomputed():
    table = tables(3, batch_size=3)
    search = decoding.BeamSearch(width=3, num_hypotheses=3, length_penalty=0.7)
    found = run(table, search, max_length=5)
    for b, n in itertools.product(range(3), range(3)):
        sentence = found.sequence(b, n)
        sentence += [END] if len(sentence) < 5 else []
        expected = log_prob(table[b], sentence) / penalty(search, len(sentence))
        np.testing.assert_allclose(found.scores[b, n], expected, rtol=1e-4)
    assert (np.diff(found.scores, axis=1) <= 1e-6).all()


@pytest.mark.slow_on("tensorflow", "jax")
def test_the_search_goes_on_while_something_better_may_come():
    """A short sentence ends first; a longer one has the better mean, and wins."""
    table = np.full((1, V, V), -9.0, "float32")
    table[0, START, [END, 3]] = 0.0, -0.1  # ends at once, or says 3
    table[0, 3, 4] = table[0, 4, END] = 3.0
    search = decoding.BeamSearch(width=2, length_penalty=1.0)
    found = run(table, search, max_length=6)
    assert found.sequence(0, 0) == [3, 4]
    search = dataclasses.replace(search, length_penalty=0.0)
    assert run(table, search, max_length=6).sequence(0, 0) == []


@pytest.mark.slow_on("tensorflow", "jax")
def test_without_patience_the_search_takes_what_ends_first():
    """One hypothesis of two beams is enough: the longer, better one is never found."""
    table = np.full((1, V, V), -9.0, "float32")
    table[0, :, END] = -20.0
    table[0, START, [END, 3]] = 0.0, -0.1  # ends at once, or says 3
    table[0, 3, 4] = table[0, 4, END] = 3.0
    search = decoding.BeamSearch(width=2, patience=0.5)
    assert run(table, search, max_length=6).sequence(0, 0) == []
    search = dataclasses.replace(search, patience=2.0)
    assert run(table, search, max_length=6).sequence(0, 0) == [3, 4]
    table[0, 3, END] = 0.0  # so that a second one ends before the better one
    search = dataclasses.replace(search, patience=1.0)
    assert run(table, search, max_length=6).sequence(0, 0) == []
    search = dataclasses.replace(search, patience=1.5)
    assert run(table, search, max_length=6).sequence(0, 0) == [3, 4]


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("patience", [99.0, 1e300])
def test_much_patience_is_the_whole_search(patience):
    table = tables(seed=5, batch_size=20)
    search = decoding.BeamSearch(width=3, num_hypotheses=2)
    expected = run(table, search, max_length=6)
    found = run(table, dataclasses.replace(search, patience=patience), max_length=6)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("limit", [1, 3])
def test_fewer_sentences_than_hypotheses(limit):
    """With one word there is one sentence more than steps; no other one exists."""
    table = np.zeros((1, V, V), "float32")
    search = decoding.BeamSearch(width=5, num_hypotheses=5, banned_ids=(4,))
    found = run(table, search, max_length=limit)
    assert sorted(found.lengths[0, : limit + 1].tolist()) == list(range(limit + 1))
    assert (found.scores[0, : limit + 1] > -9.0).all()
    assert (found.scores[0, limit + 1 :] == -np.inf).all()
    assert (found.lengths[0, limit + 1 :] == 0).all()


@each_variant(
    "search",
    {
        "greedy": decoding.Greedy(),
        "sample": decoding.Sample(seed=1),
        "beams": decoding.BeamSearch(width=3),
        "one beam": decoding.BeamSearch(width=1),
        "repetition": decoding.BeamSearch(width=2, repetition_penalty=1.3),
    },
    on_jax=["sample", "beams"],
    on_tensorflow=[],
)
def test_a_prefix_is_forced_and_not_scored(search):
    table = tables(5)
    table[:, START, 3:] -= 5.0
    prefix = np.array([[4, 3, 4], [3, PAD, PAD]])
    found = run(table, search, max_length=6, prefix=prefix)
    assert found.sequence(0, 0)[:3] == [4, 3, 4]
    assert found.sequence(1, 0)[:1] == [3]
    for b, forced in enumerate(([4, 3, 4], [3])):
        sentence = found.sequence(b, 0)
        sentence += [END] if len(sentence) < 6 else []
        expected = log_prob(table[b], sentence) - log_prob(table[b], forced)
        if isinstance(search, decoding.BeamSearch):
            expected /= penalty(search, len(sentence) - len(forced))
        np.testing.assert_allclose(found.scores[b, 0], expected, rtol=1e-4)


@pytest.mark.parametrize(
    "search",
    [
        decoding.Greedy(),
        decoding.BeamSearch(width=3),
        decoding.BeamSearch(2, repetition_penalty=1.5, num_hypotheses=2),
    ],
    ids=["greedy", "beams", "repetition"],
)
@pytest.mark.slow_on("tensorflow", "jax")
def test_a_prefix_may_be_as_long_as_the_limit(search):
    found = run(tables(5), search, max_length=3, prefix=[[4, 3, 4], [3, 4, 3]])
    assert [found.sequence(b) for b in range(2)] == [[4, 3, 4], [3, 4, 3]]
    assert found.scores[:, 0].tolist() == [0.0, 0.0]
    assert (found.scores[:, 1:] == -np.inf).all()


@pytest.mark.backends("torch")
def test_a_prefix_wins_over_what_else_a_search_is_told():
    """Also over a ban of its tokens, a repetition and a least length."""
    options = {"banned_ids": (3,), "no_repeat_ngram": 1, "min_length": 4}
    for search in (decoding.Greedy(**options), decoding.BeamSearch(2, **options)):
        found = run(tables(5, 1), search, max_length=4, prefix=[[3, 3, END]])
        assert found.sequence(0) == [3, 3]
        assert found.scores[0, 0] == 0.0


@pytest.mark.slow_on("tensorflow", "jax")
def test_coverage_prefers_what_looks_at_the_whole_source():
    """The less probable of two sentences wins where it attends to the whole source."""
    words = np.array([0.0, 0.0, 0.0, 0.05, 0.0], "float32")

    def step(token_ids, state, index):
        logits = ops.where(ops.arange(V) == END, ops.where(index > 0, 9.0, -9.0), words)
        logits = ops.broadcast_to(logits, (1, 2, V))
        attended = ops.where(
            (token_ids == 4)[..., None],
            ops.array([[[0.0, 1.0, 1.0]]]),
            ops.array([[[1.0, 0.0, 1.0]]]),
        )
        coverage = state["beam"]["coverage"] + attended
        return logits, {**state, "beam": {"coverage": coverage}}

    def state():
        mask = np.array([[True, True, False]])
        coverage = np.zeros((1, 2, 3), "float32")
        return {"beam": {"coverage": coverage}, "sentence": {"mask": mask}}

    options = {"batch_size": 1, "max_length": 3}
    search = decoding.BeamSearch(width=2, coverage_penalty=0.2)
    found = decoding.search(step, state(), method=search, **options)
    assert found.sequence(0, 0) == [4]  # looks at the second token; START at the first
    plain = dataclasses.replace(search, coverage_penalty=0.0)
    without = decoding.search(step, state(), method=plain, **options)
    assert without.sequence(0, 0) == [3]
    # [4] ends with log(1) of coverage; its log-probability is 0.05 below, of 2 tokens.
    np.testing.assert_allclose(found.scores, without.scores - 0.025, atol=1e-4)


# What each token read attends to, of a source of three tokens, the last one padded in
# the first sentence. Some get more than 1 in all, and some nothing.
ATTENTION = np.array(
    [[0, 0, 0], [0.3, 0, 0.2], [0, 0, 0], [0.8, 0, 0.1], [0.1, 0.6, 0.2]], "float32"
)
MASK = np.array([[True, True, False], [True, True, True]])


def covering(table, width):
    """The step of `chained`, with the attention that each source token has received."""
    plain, state = chained(table, width)

    def step(token_ids, state, index):
        beam = {**state["beam"]}
        received = beam.pop("coverage")
        logits, state = plain(token_ids, {**state, "beam": beam}, index)
        attended = ops.take(ops.convert_to_tensor(ATTENTION), token_ids, axis=0)
        beam = {**state["beam"], "coverage": received + attended}
        return logits, {**state, "beam": beam}

    state["beam"]["coverage"] = np.zeros((len(table), width, 3), "float32")
    state["sentence"]["mask"] = MASK
    return step, state


def coverage_of(sentence, mask):
    """The sum over real source tokens of log(min(attention received, 1))."""
    received = ATTENTION[[START, *sentence[:-1]]].astype("float64").sum(axis=0)
    return np.log(np.clip(received, 1e-9, 1.0))[mask].sum()


def run_covering(table, search):
    step, state = covering(table, search.width)
    return decoding.search(step, state, batch_size=2, max_length=3, method=search)


@pytest.mark.slow_on("tensorflow")
def test_coverage_is_of_the_real_source_and_part_of_the_score():
    search = decoding.BeamSearch(12, num_hypotheses=4, coverage_penalty=0.1)
    table = tables(seed=1)
    found = run_covering(table, search)
    for b in range(2):
        every = [
            (score + 0.1 * coverage_of(sentence, MASK[b]), sentence)
            for score, sentence in brute_force(table[b], 3, search)
        ]
        best = sorted(every, reverse=True)[:4]
        for (words, score), (wanted, sentence) in zip(
            found.ranked(b), best, strict=True
        ):
            np.testing.assert_allclose(score, wanted, rtol=1e-4)
            assert words == [token for token in sentence if token != END]


@pytest.mark.slow_on("tensorflow", "jax")
def test_coverage_is_of_each_group_s_own_beams():
    """Of two groups of one beam, which begin with different words."""
    search = decoding.BeamSearch(
        2, num_groups=2, num_hypotheses=2, coverage_penalty=0.1, diversity_penalty=9.0
    )
    table = tables(seed=1)
    table[:, START, END] -= 9.0
    found = run_covering(table, search)
    for b in range(2):
        assert {words[0] for words, _ in found.ranked(b)} == {*WORDS}
        for words, score in found.ranked(b):
            sentence = words + [END] * (len(words) < 3)
            expected = log_prob(table[b], sentence) / penalty(search, len(sentence))
            expected += 0.1 * coverage_of(sentence, MASK[b])
            np.testing.assert_allclose(score, expected, rtol=1e-4)


def test_best_of_all_is_a_sort(rng):
    values = rng.normal(size=(3, 2, 700)).astype("float32")
    best, places = map(ops.convert_to_numpy, best_of_all(ops.array(values), 5))
    flat = values.reshape(3, -1)
    expected = np.argsort(-flat, axis=1)[:, :5]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(best, np.take_along_axis(flat, expected, axis=1))


def test_best_of_all_finds_tokens_of_the_vocabulary_alone():
    values = np.full((1, 2, V), -np.inf, "float32")
    values[0, 1, 4] = 0.0  # so the block searched first is the last beam's
    best, places = map(ops.convert_to_numpy, best_of_all(ops.array(values), 4))
    assert places[0, 0] == V + 4 and best[0, 0] == 0.0
    assert (places < 2 * V).all() and (best[0, 1:] < FORBIDDEN).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "`width` must be a positive integer.*width=0"),
        ({"width": 2.0}, "`width` must be a positive integer.*width=2.0"),
        ({"width": 2, "num_hypotheses": 3}, "at most `width`, 2.*num_hypotheses=3"),
        ({"length_penalty": -1.0}, "`length_penalty` must.*length_penalty=-1.0"),
        ({"penalty": "google"}, "`penalty` must be one of.*penalty='google'"),
        ({"patience": 0.0}, "`patience` must be a number.* or None.*patience=0.0"),
        ({"coverage_penalty": -0.1}, "`coverage_penalty` must.*=-0.1"),
        ({"diversity_penalty": -0.1}, "`diversity_penalty` must.*=-0.1"),
        ({"diversity_penalty": 1e10}, r"in \[0, 100000\].*=10000000000"),
        ({"num_groups": 0}, "`num_groups` must be a positive integer.*=0"),
        ({"num_groups": 3}, "`num_groups` must divide `width`, 4.*=3"),
        ({"min_length": -1}, "`min_length` must.*min_length=-1"),
        ({"banned_ids": (1, -4)}, r"`banned_ids` must.*banned_ids\[1\]=-4"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must.*=0.0"),
        ({"no_repeat_ngram": 1.5}, "`no_repeat_ngram` must.*=1.5"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        decoding.BeamSearch(**options)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (np.array([3, 4]), "`prefix` must have rank 2, .batch, length.*=.2,."),
        (np.array([[3.0], [4.0]]), "`prefix` must be integers.*float64"),
        ([[3.0], [4.0]], r"`prefix.0.` must be a list of integers.*=.3.0."),
        ([[3], [4], [3]], "`prefix` must have 2 rows.*shape=.3, 1."),
        ([[3, 4], [PAD, 4]], r"padded at its end.*prefix\[1\]=\[0, 4\]"),
        ([[3, PAD, 4], [3, 4, 5]], r"padded at its end.*prefix\[0\]=\[3, 0, 4\]"),
        ([[3] * 7, [3] * 7], r"`prefix\[0\]` must have at most 6 tokens.*of 7 tokens"),
    ],
)
def test_bad_prefix(prefix, message):
    with pytest.raises(ValueError, match=message):
        run(tables(0), decoding.Greedy(), max_length=6, prefix=prefix)


def steps_run(table, search):
    """Gives how many steps a search of at most 8 runs, and what it finds."""
    calls = []
    step, state = chained(table, 2)

    def counting(token_ids, state, index):
        calls.append(index)
        return step(token_ids, state, index)

    found = decoding.search(counting, state, batch_size=1, max_length=8, method=search)
    return len(calls), found


@pytest.mark.backends("torch")  # Compiled backends trace the step once.
def test_torch_runs_no_step_after_the_end():
    """Where steps run one by one, those after every sentence has ended are not run."""
    table = np.full((1, V, V), -9.0, "float32")
    table[0, :, END] = 9.0
    steps, _ = steps_run(table, decoding.BeamSearch(width=2))
    assert steps < 4


@pytest.mark.backends("torch")
def test_torch_runs_no_step_where_no_beam_is_left():
    """All is forbidden: the best beam ends, and nothing goes on to the limit."""
    search = decoding.BeamSearch(
        width=2, num_hypotheses=2, min_length=8, banned_ids=tuple(range(END + 1, V))
    )
    steps, found = steps_run(np.zeros((1, V, V), "float32"), search)
    assert steps < 4
    assert found.lengths.tolist() == [[0, 0]]
