"""A sentence's search is the same whichever row it takes, and when."""

import itertools
from unittest import mock

import keras
import numpy as np
import pytest

from keras_seqattn import decoding, models
from keras_seqattn.backend import compile
from keras_seqattn.decoding.constrained import with_constraints
from keras_seqattn.decoding.constraints import Phrase
from keras_seqattn.scheduling import continuous, generation, static
from tests.layers.weights import randomize
from tests.pairs import each_variant, slow
from tests.small import translation_model

V, D = 11, 8
# Of as many sentences: more than a program has rows, and fewer than may wait.
COUNT = 45


def transformer(vocabulary_size=V, **options):
    return translation_model(vocabulary_size, intermediate_dim=12, **options)


def sources(rng, count=COUNT, most=16):
    """Source ids `(count, most)` of sentences of 1 to `most` tokens."""
    real = np.arange(most) < rng.integers(1, most + 1, size=(count, 1))
    return np.where(real, rng.integers(3, V, size=(count, most)), 0).astype("int32")


def both_ways(model, source_ids, search, size=32, **options):
    """What is found by continuous batching in `size` rows, and in one static batch."""
    found = []
    for plan in (generation.Plan(size, True), generation.Plan(64, False)):
        with mock.patch.object(generation, "make_plan", return_value=plan) as made:
            found.append(generation.decode(model, source_ids, search, **options))
        made.assert_called_once()
    return found


def check_equal(found, expected):
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4, atol=1e-5)


SEARCHES = {
    "greedy": decoding.Greedy(),
    "samples": decoding.Sample(seed=3, num_hypotheses=2, top_p=0.9),
    "beams": decoding.BeamSearch(3, num_hypotheses=2),
    "patience": decoding.BeamSearch(2, patience=1.0, coverage_penalty=0.2),
    "processors": decoding.BeamSearch(
        2,
        min_length=4,
        no_repeat_ngram=2,
        repetition_penalty=1.3,
        banned_ids=(5,),
        penalty="gnmt",
    ),
}


@each_variant(
    "search",
    SEARCHES,
    on_jax=[],
    on_tensorflow=[],
    on_torch=["samples", "beams", "processors"],
)
def test_continuous_batching_finds_what_a_static_batch_finds(rng, search):
    model = transformer()
    randomize(model, rng)
    check_equal(*both_ways(model, sources(rng), search))


@pytest.mark.slow
def test_what_overflows_its_row_is_searched_with_more_capacity(rng):
    """The limits of short sentences end them before."""
    model, search = transformer(), decoding.Sample(seed=3, min_length=26)
    randomize(model, rng)
    found, expected = both_ways(model, sources(rng), search)
    check_equal(found, expected)
    first = 16 + generation.EXTRA_CAPACITY
    assert (found.lengths < first).sum() > 8 and (found.lengths > first).sum() > 8


MODELS = {
    "learned": lambda: transformer(positions="learned", max_length=60),
    "rotary": lambda: transformer(positions="rotary"),
    "relative": lambda: transformer(positions="relative"),
    "windowed": lambda: transformer(attention={"sliding_window": 3}, positions="alibi"),
    "recurrent": lambda: models.TranslationRNN(V, model_dim=D),
}


@each_variant(
    "make",
    MODELS,
    on_jax=[],
    on_tensorflow=[],
    on_torch=["learned", "rotary", "recurrent"],
)
def test_any_model_s_sentences_are_batched_continuously(rng, make):
    model = make()
    randomize(model, rng)
    check_equal(*both_ways(model, sources(rng), decoding.Sample(seed=1)))


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("count", [5, *slow(1, 4, COUNT)])
def test_any_number_may_wait(rng, count):
    """A few rows, which no smaller batch relieves at the end."""
    model = transformer()
    randomize(model, rng)
    source_ids = sources(rng, count)
    check_equal(*both_ways(model, source_ids, decoding.Sample(seed=2), size=4))


@pytest.mark.slow
def test_prefixes_stay_with_their_sentences(rng):
    model = transformer()
    randomize(model, rng)
    prefix = rng.integers(3, V, size=(COUNT, 3))
    prefix[::2, 1:] = 0
    found, expected = both_ways(
        model, sources(rng), decoding.Greedy(), prefix=prefix.astype("int32")
    )
    check_equal(found, expected)
    np.testing.assert_array_equal(found.token_ids[1::2, 0, :3], prefix[1::2])


@pytest.mark.slow_on("tensorflow", "jax")
def test_constraints_stay_with_their_sentences(rng):
    model = transformer()
    search = with_constraints(decoding.BeamSearch(2))
    phrases = rng.integers(3, V, size=(COUNT, 2)).tolist()
    rows = [[(Phrase(tuple(ids)),)] * (b % 3 > 0) for b, ids in enumerate(phrases)]
    options = {"constraints": rows, "max_length": 8}
    found, expected = both_ways(model, sources(rng), search, **options)
    check_equal(found, expected)
    for b, ids in enumerate(phrases):
        said = found.sequence(b)
        assert b % 3 == 0 or ids in [said[i : i + 2] for i in range(len(said) - 1)]


def all_sentences(limit, words):
    """All that a model of few words can say, rows padded with 0."""
    said = [(*s, 2) for n in range(limit) for s in itertools.product(words, repeat=n)]
    said += itertools.product(words, repeat=limit)
    return [[*s, *[0] * (limit - len(s))] for s in said]


@pytest.mark.slow_on("tensorflow", "jax")
def test_sentences_compete_by_score_at_limits_of_their_own(rng, monkeypatch):
    """By both policies: the best of all by the model's own scores."""
    model = transformer(vocabulary_size=5)
    randomize(model, rng)
    source_ids = rng.integers(3, 5, size=(10, 3)).astype("int32")
    limits = np.array([1, 2, 3, 4] * 3, "int32")[:10]
    monkeypatch.setattr(generation, "_limits", lambda *_: limits)
    search = decoding.BeamSearch(24, 0.8, num_hypotheses=3)
    for found in both_ways(model, source_ids, search, size=4):
        for b, limit in enumerate(limits):
            said = np.array(all_sentences(limit, (3, 4)))
            scores = model.score(np.repeat(source_ids[b : b + 1], len(said), 0), said)
            scores /= search.penalty_of((said != 0).sum(1))
            best = np.argsort(-scores)[:3]
            np.testing.assert_allclose(found.scores[b], scores[best], rtol=1e-4)
            words = np.where(said == 2, 0, said)[best]
            np.testing.assert_array_equal(found.token_ids[b, :, :limit], words)
    cut = found.lengths == limits[:, None]
    assert cut.any() and not cut.all()


class FromTheFirst(keras.layers.Layer):
    """A user's own positions, of which only the first can be given."""

    def call(self, x, start=0):
        places = keras.ops.arange(keras.ops.shape(x)[1], dtype="int32") + start
        return x + keras.ops.cast(places, x.dtype)[:, None]


@pytest.mark.backends("torch")
def test_positions_that_all_begin_at_once_are_not_batched_continuously(
    rng, monkeypatch
):
    """As many as with other positions would be, of a model or an ensemble."""
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 2)
    model, source_ids = transformer(positions=FromTheFirst()), sources(rng, count=65)
    randomize(model, rng)
    for one in (model, decoding.Ensemble([model, transformer()])):
        found, alone = (
            decoding.generate(one, x) for x in (source_ids, source_ids[-1:])
        )
        assert found.sequence(64) == alone.sequence(0)


@pytest.mark.slow
def test_a_state_grows_with_what_is_shared(rng):
    """As it is of one sentence too, and in a static batch."""

    class Shared(models.TranslationTransformer):
        def grow_state(self, state, max_length, index):
            seen.append("shared" in state)
            return super().grow_state(state, max_length, index)

    seen, model = [], Shared(V, model_dim=D, num_heads=2, intermediate_dim=12)
    both_ways(model, sources(rng), decoding.Greedy(min_length=3))
    assert len(seen) > 2 and all(seen)


def mixed_lists(rng, count):
    """Sources of up to 16 tokens, and ten of up to 60."""
    rows = sources(rng, count, most=60)
    rows[10:] *= np.arange(60) < 16
    return [[int(i) for i in row if i] or [4] for row in rows]


def decode_all(model, lists, search):
    """Token ids of the best hypothesis of each."""
    found = dict.fromkeys(range(len(lists)))
    for places, some in generation.decode_lists(model, lists, search):
        for row, place in enumerate(places):
            assert found[place] is None
            found[place] = some.sequence(row)
    return [found[place] for place in range(len(lists))]


@pytest.mark.backends("torch")
def test_a_length_is_padded_to_the_next_that_has_a_program():
    lengths = (1, 16, 17, 24, 25, 32, 33, 48, 49)
    for padded, continuously in (
        ([16, 16, 32, 32, 32, 32, 64, 64, 64], False),
        ([16, 16, 24, 24, 32, 32, 48, 48, 64], True),
    ):
        found = [static.padded_length(None, n, continuously) for n in lengths]
        assert found == padded


@pytest.mark.slow_on("tensorflow", "jax")
def test_few_programs_serve_a_file_of_mixed_lengths(rng, monkeypatch):
    """One a length, one more for the longest, and none for another file."""
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 2)
    model, search = transformer(), decoding.Sample(seed=0)
    randomize(model, rng)
    counts = []
    for count in (150, 90):
        found = decode_all(model, mixed_lists(rng, count), search)
        assert all(tokens is not None for tokens in found)
        counts.append(decoding.compile_report(model).num_programs)
    assert counts[0] == counts[1] <= 6


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("worthwhile", [1.0, *slow(0.0, 1e3)])
def test_what_waits_once_more_is_found_once(rng, monkeypatch, worthwhile):
    """With the longer ones, in one thread or the other, or all in one program."""
    model, search = transformer(), decoding.Sample(seed=0)
    randomize(model, rng)
    lists = mixed_lists(rng, 150)
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 1)
    expected = decode_all(model, lists, search)
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 2)
    monkeypatch.setattr(continuous, "MIN_PADDING_SAVED", worthwhile)
    ends, searched = [], generation._search

    def recorded(*arguments):
        found = searched(*arguments)
        ends.append(found[-1])
        return found

    monkeypatch.setattr(generation, "_search", recorded)
    assert decode_all(model, lists, search) == expected
    again = sum(map(len, ends)) - len(lists)
    assert again == sum(np.sum(~ended) for ended in ends)
    assert (again > 8) == (worthwhile < 1e3)


def test_a_long_sentence_has_no_copies_beside_it(rng, monkeypatch):
    """Its program takes fewer sentences than it would have rows."""
    model, sizes = transformer(), []
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 2)
    searched = static.search_batch

    def recorded(model, options, sentences, *rest):
        if sentences.source_ids.shape[1] > 256:
            sizes.append(options.size)
        return searched(model, options, sentences, *rest)

    monkeypatch.setattr(static, "search_batch", recorded)
    lists = [*mixed_lists(rng, 80), [5] * 300]
    for search in (decoding.Greedy(), decoding.BeamSearch(2)):
        decode_all(model, lists, search)
    fewest = compile.fewest_rows()
    assert sizes == [fewest, -(-fewest // 2)]


def test_few_sentences_wait_with_longer_ones():
    """The last two of each length are not searched to the end."""
    searched = []

    def search(batch, length, to_the_end):
        searched.append((length, batch))
        return (batch, None, []) if to_the_end else (batch[:-2], None, batch[-2:])

    short, few, long = list(range(200)), list(range(200, 210)), list(range(210, 400))
    groups = {32: long, 16: short, 24: few}

    def short_to_long(groups, longest):
        """What was searched to the end, and what was left."""
        left, given = [], (search, lambda length: 32, groups, longest)

        def run():
            left.extend((yield from continuous._short_to_long(*given)))

        return [batch for batch, _ in run()], left

    found, left = short_to_long(groups, 48)
    assert found == [short[:-2], short[-2:] + few + long[:-2]]
    assert searched == [(16, short), (32, short[-2:] + few + long)]
    assert left == long[-2:]
    # None waits for far longer ones.
    assert short_to_long({16: short}, 1024) == ([short], [])


def test_a_single_row_is_two_on_tensorflow():
    alone = 2 if keras.backend.backend() == "tensorflow" else 1
    assert generation.make_plan(1).size == alone
    assert generation.make_plan(1, width=4).size == 1
    assert generation.make_plan(2).size == 4


def test_those_that_wait_are_dealt_out_to_all_threads(monkeypatch):
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 2)
    plan = generation.make_plan(100, supports_late_start=True)
    assert plan == generation.Plan(32, True)
    parts = continuous.split_evenly(list(range(100)), 32, 16)
    assert [len(part) for part in parts] == [50, 50]
    assert sorted(sum(parts, [])) == list(range(100))
    assert generation.make_plan(64, supports_late_start=True).continuous is False
    assert generation.make_plan(64).size == 32
    assert generation.make_plan(100, supports_late_start=False).continuous is False
