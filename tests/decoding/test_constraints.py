"""Searches with lexical constraints against brute force and their own definition."""

import functools
import itertools

import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.constrained import ConstrainedBeamSearch
from keras_seqattn.decoding.constraints import (
    Phrase,
    checked_constraints,
    make_constraints,
    table_size,
)
from keras_seqattn.decoding.hypotheses import SpecialTokens, hypotheses
from keras_seqattn.models import LanguageModel
from keras_seqattn.scheduling import generation
from tests.decoding.test_beam import END, PAD, START, brute_force, chained, tables
from tests.evaluate import evaluated
from tests.pairs import each_variant
from tests.small import translation_model

LENGTH = 4


def search_with(table, search, rows, limits):
    """Searches sentences of a scripted model, each with constraints of its own."""
    step, state = chained(table, search.width)
    tokens = SpecialTokens(START, END, PAD)
    prefix = np.zeros((len(rows), 0), "int32")

    def searched(state, limits, prefix, constraints):
        first = search.begin(limits, ops.zeros_like(limits), prefix, LENGTH, tokens)
        constrained = search.constrain(first, constraints)
        begun = loop.first_loop_state(state, constrained)
        return loop.run(search, step, begun, tokens).search_state

    limits = np.asarray(limits, "int32")
    constraints = make_constraints(rows, PAD, table_size(rows))
    found = evaluated(searched)(state, limits, prefix, constraints)
    return hypotheses(*search.results(found), tokens)


def holds(words, phrase):
    n = len(phrase.ids)
    starts = range(1 if phrase.is_first else len(words) - n + 1)
    return any(tuple(words[i : i + n]) == phrase.ids for i in starts)


def is_met(words, row):
    return all(any(holds(words, phrase) for phrase in some) for some in row)


def words_of(sentence):
    return [token for token in sentence if token != END]


def p(*ids, first=False):
    return Phrase(ids, first)


ROWS = [
    [],
    [(p(3),)],
    [(p(4, 4),)],
    [(p(3),), (p(4, 4),)],
    [(p(3, 3, 4), p(4, 3))],  # alternatives
    [(p(3, 3, 4),)],  # 3 3 3 4 needs what Knuth, Morris and Pratt do
    [(p(4, 3), p(3, first=True))],
    [(p(4),), (p(3, 3),)],
]
SEARCHES = {
    "length": ConstrainedBeamSearch(24, 1.0, num_hypotheses=6),
    "sums": ConstrainedBeamSearch(24, 0.0, num_hypotheses=8),
}


def test_a_phrase_may_hold_the_id_0_where_that_is_no_special_token():
    tokens = SpecialTokens(start_id=1, end_id=2, pad_id=3)
    (row,) = checked_constraints([[[0, 5]]], 1, 9, tokens, ())
    assert row == [(Phrase((0, 5), is_first=False),)]


@each_variant("search", SEARCHES, on_jax=["length"], on_tensorflow=[])
def test_a_width_that_covers_the_tree_is_brute_force(search):
    table = tables(seed=3, batch_size=len(ROWS))
    table[::2, :, END] += 1.0
    found = search_with(table, search, ROWS, [LENGTH] * len(ROWS))
    for b, row in enumerate(ROWS):
        # A place is left for the end: what the limit cuts was met one token before.
        expected = [
            (score, words_of(sentence))
            for score, sentence in brute_force(table[b], LENGTH, search)
            if is_met(sentence[: LENGTH - 1], row)
        ]
        assert len(found.ranked(b)) == min(search.num_hypotheses, len(expected)), b
        for (words, score), (best, wanted) in zip(
            found.ranked(b), expected, strict=False
        ):
            np.testing.assert_allclose(score, best, rtol=1e-4, atol=1e-6)
            assert words == wanted, b


def alternatives(row):
    """The constraints of a sentence, given as `generate` takes them."""
    return [[p(*ids) for ids in (x if isinstance(x, tuple) else (x,))] for x in row]


class Scripted:
    """A model whose sentences have one table each: what follows which token."""

    start_id, end_id, pad_id, target_vocabulary_size = START, END, PAD, 12
    max_length, variables = None, ()

    def encode(self, source_ids):
        return {"hidden": ops.cast(source_ids, "float32")[..., None]}

    def initial_state(self, memory, max_length, width=1):
        said = ops.zeros((memory["hidden"].shape[0], width, 1), "int32")
        return {"beam": {"said": said}, "sentence": {"first": memory["hidden"][:, 0]}}

    def step(self, token_ids, state, index):
        every = ops.arange(12, dtype="float32")
        seed = ops.cast(token_ids, "float32")[..., None] * 1.7
        logits = 2.0 * ops.sin(every * seed + state["sentence"]["first"][:, None])
        return logits, state


SOURCES = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [5]]


@pytest.mark.backends("torch")
def test_phrases_have_logits():
    """Though the model does not say how many there are."""
    model = Scripted()
    model.target_vocabulary_size = None
    message = r"`constraints` must be in \[0, 12\).*ids from 5 to 12"
    with pytest.raises(ValueError, match=message):
        decoding.generate(model, SOURCES[:1], constraints=[[[5, 12]]])


GIVEN = [
    [[5, 6, 7], [9]],
    [],
    [([3, 3, 3], [8, 4])],
    [[6], [7], [10, 11]],
]


@functools.cache
def scripted():
    return Scripted()


@pytest.mark.slow_on("tensorflow", "jax")
def test_generate_says_all_phrases():
    found = decoding.generate(scripted(), SOURCES, constraints=GIVEN)
    for b, row in enumerate(GIVEN):
        assert is_met(found.sequence(b), alternatives(row))
    # Without constraints a sentence is searched as ever.
    plain = decoding.generate(scripted(), SOURCES, decoding.BeamSearch())
    assert found.ranked(1) == plain.ranked(1)


class Masked(Scripted):
    """Allows two tokens. One that it does not know spoils the whole sentence."""

    def step(self, token_ids, state, index):
        logits, state = super().step(token_ids, state, index)
        every = ops.arange(12, dtype="int32")
        allowed = ops.logical_or(every == 6, every == END)
        logits = ops.where(allowed, logits, -np.inf)
        unknown = ops.any(token_ids >= 12, axis=1)[:, None, None]
        return ops.where(unknown, np.nan, logits), state


def test_a_model_may_forbid_tokens_by_infinity():
    found = decoding.generate(Masked(), [[3, 4]], max_length=3, constraints=[[[6]]])
    assert found.sequence(0) == [6, 6, 6]
    assert np.isfinite(found.scores).all()


class Preferring(Scripted):
    """Would rather generate one token than anything else."""

    def __init__(self, token):
        super().__init__()
        self.token = token

    def step(self, token_ids, state, index):
        logits, state = super().step(token_ids, state, index)
        preferred = ops.arange(12, dtype="int32") == self.token
        return ops.where(preferred, 9.0, logits), state


@pytest.mark.backends("torch")
def test_padding_ends_no_phrase():
    """A hypothesis would be cut there."""
    search = decoding.BeamSearch(4, num_hypotheses=4)
    given = [[[5, 6, 7], [7]], [], [([3, 3, 3], [8, 4])], [[6], [5, 6], [8]]]
    found = decoding.generate(Preferring(PAD), SOURCES, search, constraints=given)
    for b, row in enumerate(given):
        assert all(is_met(words, alternatives(row)) for words, _ in found.ranked(b))
        assert found.lengths[b].all()


@pytest.mark.backends("torch")
def test_none_ends_before_the_least_length_though_its_phrases_are_said():
    search = decoding.BeamSearch(2, min_length=5, num_hypotheses=2)
    found = decoding.generate(Preferring(END), SOURCES, search, constraints=GIVEN)
    assert found.lengths.min() == 5
    free = decoding.BeamSearch(2, num_hypotheses=2)
    found = decoding.generate(Preferring(END), SOURCES, free, constraints=GIVEN)
    assert found.lengths.min() < 5


# Of which some tokens end a hypothesis, so that fewer of the best continuations do not.
ENDING = [(2, ()), (3, (3, 5, 7)), (3, (3, 4, 5, 6, 7, 8, 9))]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(("width", "stop_ids"), ENDING)
def test_enough_beams_do_not_end_whatever_ends_them(width, stop_ids):
    """A sentence without constraints is searched as if others had none."""
    search = decoding.BeamSearch(width, stop_ids=stop_ids, num_hypotheses=width)
    sources = [[token] for token in range(3, 12)]
    plain = decoding.generate(scripted(), sources, search, max_length=6)
    given = [*([[]] * len(sources)), [[10, 10]]]
    found = decoding.generate(
        scripted(), [*sources, [3, 4]], search, max_length=6, constraints=given
    )
    for b in range(len(sources)):  # Those of equal scores may be in another order.
        assert sorted(found.ranked(b)) == sorted(plain.ranked(b))


OPTIONS = {
    "groups": decoding.BeamSearch(6, num_groups=3, num_hypotheses=3),
    "told to avoid": decoding.BeamSearch(
        3, no_repeat_ngram=1, min_length=5, stop_ids=(8,), patience=1.0
    ),
    "one beam": decoding.BeamSearch(1, repetition_penalty=1.5),
}


@each_variant("search", OPTIONS, on_jax=[], on_tensorflow=[])
def test_phrases_are_said_whatever_else_is_asked(search):
    given = [[5, 5, 6], [9]]
    prefix = [[4, 4], [], [10], [9]]
    found = decoding.generate(
        scripted(), SOURCES, search, prefix=prefix, constraints=[given] * 4
    )
    for b in range(4):
        assert found.ranked(b)
        for words, _ in found.ranked(b):
            assert is_met(words, alternatives(given))
            assert words[: len(prefix[b])] == prefix[b]


@pytest.mark.backends("torch")
def test_what_groups_avoid_affects_no_ranking_of_a_phrase_that_is_told_to_be_avoided():
    search = decoding.BeamSearch(
        6, num_groups=3, num_hypotheses=6, no_repeat_ngram=1, diversity_penalty=5.0
    )
    sources = [[token] for token in range(3, 12)]
    given = [[[5, 5, 6], [9]]] * len(sources)
    found = decoding.generate(scripted(), sources, search, constraints=given)
    for b in range(len(sources)):  # Rankings are scores here, so the best come first.
        scores = [score for _, score in found.ranked(b)]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("length", [4, 7])
def test_a_phrase_is_said_where_its_last_word_ends(length):
    """Words begin with the tokens 3 and 4; all others continue the word before."""
    bits = np.isin(np.arange(16), range(5, 12))
    search = ConstrainedBeamSearch(2, continuing_ids=np.packbits(bits).tobytes())
    row = [(p(3, 5),), (p(4, 6), p(4, 7))]
    sources = np.array([[k] for k in range(3, 12)], "int32")
    found = generation.decode(scripted(), sources, search, 2 + length, None, [row] * 9)
    for b in range(9):
        words = found.sequence(b)
        said = [words[i : i + 3] for i in range(len(words))]
        assert any(x == [3, 5] or (x[:2] == [3, 5] and x[2] < 5) for x in said)
        assert any(
            x[:1] == [4] and x[1:2] in ([6], [7]) and max(x[2:], default=0) < 5
            for x in said
        )


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("length", [4, 5])
def test_phrases_are_said_where_the_limit_leaves_just_enough_space(length):
    given = [[[7, 8, 9]], [[3], [4], [5]], [([4, 4, 4, 4], [9, 9, 9])], []]
    found = decoding.generate(scripted(), SOURCES, max_length=length, constraints=given)
    for b, row in enumerate(given):
        assert is_met(found.sequence(b), alternatives(row))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ([[]], "`constraints` must have 4 rows, one a sentence.*of 1 rows"),
        (3, "`constraints` must be a list of 4 rows.*=3"),
        ([[], [], [], 5], r"`constraints.3.` must be a list of phrases.*=5"),
        ([[], [], [], [5]], r"`constraints.3..0.` must be a list of token ids.*=5"),
        ([[[[4, 5], [6]]], [], [], []], r"`constraints.0..0.` must be a list.*6\]\]"),
        ([[[]], [], [], []], r"`constraints.0..0.` must be token ids.*at least one"),
        ([[[4, END]], [], [], []], r"that the search may generate.*=.4, 2."),
        ([[[99]], [], [], []], r"that the search may generate.*=.99."),
        ([[()], [], [], []], r"`constraints.0..0.` must be a list of token ids"),
        ([[([4], [0])], [], [], []], r"`constraints.0..0..1.` must be .*=.0."),
        (
            [[[4] * 16], [], [], []],
            r"`constraints.0.` must have at most 15 tokens together, for a limit "
            r"of 16 tokens with the end's.*constraints.0. of 16 tokens",
        ),
    ],
)
def test_bad_constraints(constraints, message):
    with pytest.raises(ValueError, match=message):
        decoding.generate(scripted(), SOURCES, constraints=constraints)


@pytest.mark.backends("torch")
def test_constraints_need_beams_and_space_behind_a_prefix():
    with pytest.raises(ValueError, match="`search` must be a `BeamSearch` or `Greedy`"):
        decoding.generate(scripted(), SOURCES, decoding.Sample(), constraints=GIVEN)
    with pytest.raises(ValueError, match="at most 1 tokens.*and the prefix's 2"):
        decoding.generate(
            scripted(),
            SOURCES,
            max_length=4,
            prefix=[[4, 4]] * 4,
            constraints=[[[5, 6]]] * 4,
        )
    for name in ("banned_ids", "stop_ids"):
        search = decoding.BeamSearch(**{name: (7,)})
        with pytest.raises(ValueError, match="that the search may generate"):
            decoding.generate(scripted(), SOURCES, search, constraints=GIVEN)


@pytest.mark.slow_on("tensorflow", "jax")
def test_models_say_what_they_are_told():
    """A language model in a continuation, a translation model in a translation."""
    sizes = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
    language = LanguageModel(20, num_layers=1, **sizes)
    found = language.generate([[1, 7], [1, 9, 5]], constraints=[[[11, 12]], [[13]]])
    texts = [found.sequence(row) for row in range(2)]
    translation = translation_model(20)
    found = translation.generate([[7, 2], [9, 2]], constraints=[[[11, 12]], [[13]]])
    for first, second in (texts, [found.sequence(row) for row in range(2)]):
        assert (11, 12) in itertools.pairwise(first)
        assert 13 in second
