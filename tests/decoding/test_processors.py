"""What may be said, and what is drawn, against loops over plain lists."""

import functools
import json
import math

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.decoding import methods, processors
from tests.decoding.test_beam import log_softmax
from tests.evaluate import evaluated
from tests.pairs import each_variant

V = 9
PAD, END = 0, 2


def scripted(table, width=1):
    """A step that says `table[b, index]`, whatever was generated."""

    def step(token_ids, state, index):
        logits = ops.take(state["sentence"]["table"], index, axis=1)[:, None]
        return ops.repeat(logits, width, axis=1), state

    return step, {"beam": {}, "sentence": {"table": table}}


def run(table, method):
    step, state = scripted(table, method.width)
    size, length = table.shape[:2]
    return decoding.search(
        step, state, batch_size=size, max_length=length, method=method
    )


def forbidden_ngrams(said, n):
    """The tokens that would end an n-gram said before, by a loop."""
    last = said[len(said) - n + 1 :] if n > 1 else []
    return {
        said[i + n - 1] for i in range(len(said) - n + 1) if said[i : i + n - 1] == last
    }


@functools.cache
def forbidding(n):
    """Logits of zeros after what was said, one program for each `n`."""
    zeros = np.zeros((1, 1, V), "float32")
    forbid = processors.forbid_repeated_ngrams
    return evaluated(lambda token_ids, length: forbid(zeros, token_ids, length, n))


@settings(deadline=None, max_examples=20)
@given(
    said=st.lists(st.integers(3, 5), min_size=0, max_size=7),
    n=st.integers(1, 4),
)
def test_no_sequence_is_said_twice(said, n):
    token_ids = np.full((1, 1, 7), PAD, "int32")
    token_ids[0, 0, : len(said)] = said
    allowed = forbidding(n)(token_ids, np.int32(len(said)))[0, 0]
    assert set(np.flatnonzero(allowed < 0)) == forbidden_ngrams(said, n)


@pytest.mark.backends("torch")
def test_no_sequence_longer_than_the_limit_is_said_twice():
    table = np.zeros((1, 3, V), "float32")
    table[0, :, 5] = 8.0
    for n in (3, 4, 9):
        assert run(table, decoding.Greedy(no_repeat_ngram=n)).sequence(0) == [5] * 3


METHODS = {
    "greedy": decoding.Greedy,
    "beam": decoding.BeamSearch,
    "sample": decoding.Sample,
}


@each_variant("make", METHODS, on_jax=["sample"], on_tensorflow=[])
def test_a_search_obeys_what_it_is_told(make):
    """The table says 5 5 5 5 and an end; each option forbids a part of that."""
    table = np.zeros((1, 6, V), "float32")
    table[0, :, 5], table[0, :, 6], table[0, 1:, END] = 8.0, 4.0, 6.0
    options = {"seed": 1} if make is decoding.Sample else {}

    def said(**more):
        found = run(table, make(**options, **more))
        return found.sequence(0)

    words = said(banned_ids=(5,), min_length=4)
    assert 5 not in words and len(words) >= 4
    assert len(said(biased_ids={END: 30.0}, min_length=4)) == 4
    assert set(said(biased_ids={6: 30.0, 3: 1.0})) == {6}
    words = said(no_repeat_ngram=1, min_length=3)
    assert len(set(words)) == len(words) >= 3
    words = said(no_repeat_ngram=2, min_length=6)
    pairs = list(zip(words, words[1:], strict=False))
    assert len(set(pairs)) == len(pairs) == 5


def test_scores_leave_biases_out():
    table = np.zeros((1, 6, V), "float32")
    table[0, :, 5], table[0, 1:, END] = 2.0, 3.0
    biased = run(table, decoding.Greedy(biased_ids={4: 9.0, END: 9.0}))
    assert biased.lengths.tolist() == [[0]]
    total = np.log(np.exp(table[0, 0]).sum())
    np.testing.assert_allclose(biased.scores, [[-total]], rtol=1e-5)


@pytest.mark.parametrize("name", ["banned_ids", "biased_ids", "stop_ids"])
def test_token_ids_are_in_the_vocabulary(name):
    ids = {V: 1.0} if name == "biased_ids" else (3, V)
    table = np.zeros((1, 6, V), "float32")
    message = f"`{name}` must be below {V}, the size of .* Received: {name}={V}"
    with pytest.raises(ValueError, match=message):
        run(table, decoding.BeamSearch(2, **{name: ids}))


@pytest.mark.backends("torch")
def test_biases_are_a_configuration_as_json():
    search = decoding.Greedy(biased_ids={7: 1, 3: -2.5})
    config = json.loads(json.dumps(search.get_config()))
    assert decoding.Greedy.from_config(config) == search
    assert search.biased_ids == ((3, -2.5), (7, 1.0))


@each_variant("make", METHODS, on_jax=["sample"], on_tensorflow=[])
def test_a_stop_token_ends_as_the_end_token_does(make):
    """The first says 6 and 5, the second 7, which ends too; none says the end token."""
    table = np.zeros((3, 5, V), "float32")
    table[:, :, END] = -9.0
    table[0, 0, 6] = table[0, 1, 5] = table[1, 0, 7] = table[2, :, 3] = 19.0
    options = {"seed": 1} if make is decoding.Sample else {}
    search = make(**options, stop_ids=(5, 7))
    assert make.from_config(search.get_config()) == search
    found = run(table, search)
    assert [found.sequence(b) for b in range(3)] == [[6], [], [3] * 5]
    log_probs = log_softmax(table)
    first = log_probs[0, 0, 6] + log_probs[0, 1, 5]
    expected = np.array([first, log_probs[1, 0, 7], log_probs[2, :, 3].sum()])
    lengths = np.array([2, 1, 5]) if make is decoding.BeamSearch else 1
    np.testing.assert_allclose(found.scores[:, 0], expected / lengths, atol=1e-6)
    found = run(table, make(**options, stop_ids=(5, 7), min_length=2))
    assert (found.lengths[:, 0] >= 2).all()
    assert not np.isin(found.token_ids[:2, 0], (5, 7)).any()


@pytest.mark.slow_on("tensorflow", "jax")
def test_beams_live_on_where_many_tokens_end_them():
    """Of two equal beams each may end in three ways that are likelier than to go on."""
    table = np.zeros((1, 4, V), "float32")
    table[0, 0, [6, 8]] = 9.0
    table[0, 1, [END, 5, 7]], table[0, 1, 4] = 2.0, 1.5
    table[0, 2:, 3] = 20.0
    search = decoding.BeamSearch(2, stop_ids=(5, 7), length_penalty=3.0)
    assert run(table, search).sequence(0)[1:] == [4, 3, 3]


def test_repetition_is_penalized_and_scores_stay_the_model_s():
    table = np.zeros((1, 3, V), "float32")
    table[0, :, 5], table[0, :, 6] = 2.0, 1.5
    found = run(table, decoding.Greedy(repetition_penalty=2.0))
    assert found.token_ids[0, 0].tolist() == [5, 6, 5]
    log_probs = log_softmax(table[0, 0])
    expected = 2 * log_probs[5] + log_probs[6]
    np.testing.assert_allclose(found.scores, [[expected]], rtol=1e-5)


@pytest.mark.slow_on("tensorflow")
def test_where_all_is_forbidden_a_sentence_ends():
    table = np.zeros((1, 9, V), "float32")
    words = tuple(range(4, V))
    found = run(
        table, decoding.Greedy(banned_ids=words, no_repeat_ngram=1, min_length=9)
    )
    assert found.token_ids[0, 0].tolist() == [3] + [0] * 8


def test_each_sentence_may_stand_at_its_own_position(rng):
    """What processors make of positions `(B,)` is what each makes of its own."""
    said = rng.integers(3, V, size=(3, 2, 6)).astype("int32")
    prefix = np.array([[4, 5], [6, 0], [7, 8]], "int32")
    index = np.array([1, 4, 0], "int32")

    def processed(said, prefix, index):
        zeros = ops.zeros((*said.shape[:2], V))
        seeds = ops.ones(said.shape[:2], "int32")
        return (
            processors.force(zeros, prefix, index, PAD),
            processors.forbid_repeated_ngrams(zeros, said, index, 2),
            processors.gumbel_noise(seeds, index, V),
            methods.write_token(said, seeds, index),
        )

    together = evaluated(processed)(said, prefix, index)
    alone = evaluated(processed)
    for b in range(3):
        rows = alone(said[b : b + 1], prefix[b : b + 1], index[b])
        for whole, row in zip(together, rows, strict=True):
            np.testing.assert_allclose(whole[b : b + 1], row, rtol=1e-6)


def test_a_tiny_min_p_is_not_rounded_to_the_default_dtype():
    keras.config.set_floatx("float16")
    log_probs = ops.convert_to_tensor(np.array([[[-1e-3, -7.0, -23.0]]], "float32"))
    found = ops.convert_to_numpy(processors.keep_min_p(log_probs, 1e-8))
    assert (found > processors.FORBIDDEN).tolist() == [[[True, True, False]]]


def filtered(probs, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The probabilities that are drawn from, by sorting lists."""
    probs = np.array([p ** (1 / temperature) for p in probs])
    probs /= probs.sum()
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    if top_k is not None:
        order = order[:top_k]
        probs = np.array([p if i in order else 0.0 for i, p in enumerate(probs)])
        probs /= probs.sum()
    if top_p is not None:
        kept, total = [], 0.0
        for i in order:
            if total >= top_p:
                break
            kept.append(i)
            total += probs[i]
        probs = np.array([p if i in kept else 0.0 for i, p in enumerate(probs)])
    if min_p is not None:
        probs = np.where(probs >= min_p * probs.max(), probs, 0.0)
    return probs / probs.sum()


FILTERS = {
    "none": {},
    "cold": {"temperature": 0.5},
    "hot top k": {"temperature": 2.0, "top_k": 3},
    "more than all": {"top_k": V + 1},
    "top p": {"top_p": 0.6},
    "min p": {"min_p": 0.4},
    "top p of the top k": {"top_k": 2, "top_p": 0.6},  # .4 of .65 is enough
    "all": {"temperature": 1.5, "top_k": 4, "top_p": 0.8, "min_p": 0.5},
}


@each_variant("options", FILTERS, on_jax=["none", "all"], on_tensorflow=[])
def test_samples_follow_the_filtered_probabilities(options):
    """Of 4,000 samples each frequency is within 5 standard deviations."""
    probs = np.array([0, 0, 0, 0.4, 0.25, 0.17, 0.1, 0.05, 0.03])
    table = np.log(np.maximum(probs, 1e-30)).astype("float32")
    table = np.broadcast_to(table, (40, 1, V))
    found = run(table, decoding.Sample(**options, seed=7, num_hypotheses=100))
    counts = np.bincount(found.token_ids.ravel(), minlength=V)
    expected = filtered(probs[3:], **options)
    size = counts.sum()
    assert size == 4000
    deviation = np.sqrt(size * expected * (1 - expected))
    assert (np.abs(counts[3:] - size * expected) <= 5 * deviation + 1e-6).all()


def test_the_best_token_is_kept_at_any_probability():
    log_probs = ops.log(ops.array([[[0.2, 0.5, 0.3]]]))
    kept = processors.is_allowed(processors.keep_top_p(log_probs, 1e-46))
    assert ops.convert_to_numpy(kept).tolist() == [[[False, True, False]]]


@pytest.mark.slow_on("tensorflow")
def test_a_sample_is_a_function_of_the_seed_and_the_sentence():
    table = np.random.default_rng(0).normal(size=(1, 12, V)).astype("float32")
    both = np.repeat(table, 2, axis=0)
    first = run(both, decoding.Sample(seed=3))
    assert (first.token_ids[0] != first.token_ids[1]).any()
    np.testing.assert_array_equal(
        run(table, decoding.Sample(seed=3)).token_ids, first.token_ids[:1]
    )
    other = run(both, decoding.Sample(seed=4))
    assert (other.token_ids != first.token_ids).any()


def test_without_a_seed_each_search_draws_anew():
    table = np.random.default_rng(0).normal(size=(1, 12, V)).astype("float32")
    keras.utils.set_random_seed(1)
    first, second = (run(table, decoding.Sample()).token_ids for _ in range(2))
    assert (first != second).any()
    keras.utils.set_random_seed(1)
    for expected in (first, second):
        found = run(table, decoding.Sample()).token_ids
        np.testing.assert_array_equal(found, expected)


def test_samples_are_the_same_on_every_backend():
    """Tokens that were drawn on torch; the noise is of integers, equal everywhere."""
    table = np.random.default_rng(0).normal(size=(2, 8, V)).astype("float32")
    found = run(table, decoding.Sample(seed=3))
    assert found.token_ids[:, 0].tolist() == SAMPLED


def test_noise_is_gumbel():
    seeds = np.arange(300, dtype="int32")[:, None]
    noise = processors.gumbel_noise(ops.array(seeds), np.int32(4), 50)
    noise = ops.convert_to_numpy(noise).ravel()
    assert np.isfinite(noise).all()
    assert abs(noise.mean() - 0.5772) < 5 * math.pi / math.sqrt(6 * noise.size)
    assert abs(noise.std() - math.pi / math.sqrt(6)) < 0.05
    rows = noise.reshape(300, 50)
    assert abs(np.corrcoef(rows[:-1].ravel(), rows[1:].ravel())[0, 1]) < 0.04


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "`temperature` must be a number in .1e-06, inf.*=0.0"),
        ({"temperature": 1e-39}, "`temperature` must be a number.*=1e-39"),
        ({"top_k": 0}, "`top_k` must be a positive integer or None.*top_k=0"),
        ({"top_p": 1.5}, "`top_p` must be a number in .0, 1. or None.*top_p=1.5"),
        ({"min_p": 0.0}, "`min_p` must be a number.* or None.*min_p=0.0"),
        ({"seed": -1}, "`seed` must be an integer of at least 0 or None.*=-1"),
        ({"num_hypotheses": 0}, "`num_hypotheses` must be a positive integer.*=0"),
        ({"stop_ids": (4, -1)}, r"`stop_ids` must hold integers in \[0, 2.*s\[1\]=-1"),
        ({"stop_ids": 4}, "`stop_ids` must be a tuple of integers.*stop_ids=4"),
        ({"biased_ids": {-1: 2.0}}, r"`biased_ids` must hold int.*_ids\[-1\]=2.0"),
        ({"biased_ids": {5.9: 2.0}}, r"`biased_ids` must hold int.*_ids\[5.9\]=2.0"),
        ({"biased_ids": {4: "2"}}, r"`biased_ids.4.` must be a number in .*='2'"),
        ({"biased_ids": {4: 1e39}}, r"must be a number in \[-100000, 100000\].*1e\+39"),
        ({"biased_ids": {4: -1e6}}, r"must be a number in \[-100000, 1.*=-1000000"),
        ({"biased_ids": {2**31: 1.0}}, r"in \[0, 2147483647\].*\[2147483648\]=1.0"),
        ({"min_length": 2**31}, r"in \[0, 2147483647\].*=2147483648"),
        ({"biased_ids": (4, 5)}, "`biased_ids` must be a dict of token ids to num.*4"),
        ({"banned_ids": "45"}, "`banned_ids` must be a tuple of integers.*='45'"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        decoding.Sample(**options)


SAMPLED = [[8, 6, 8, 0, 0, 0, 0, 0], [8, 8, 0, 0, 0, 0, 0, 0]]


def test_past_its_end_a_prefix_forces_nothing():
    log_probs = -ops.ones((1, 1, 3))
    for index in (1, 4):
        free = processors.force(log_probs, ops.array([[1]], "int32"), index, PAD)
        np.testing.assert_array_equal(free, log_probs)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pad_id", [0, 2])
def test_what_is_not_said_yet_is_not_repeated(pad_id):
    """Where the padding is the end token, an end is no repetition."""
    probs = np.array([1e-9, 1e-9, 0.55, 0.45], "float32")
    log_probs = np.log(probs)[None, None]
    token_ids = np.array([[[3, pad_id, pad_id]]])
    found = processors.penalize_repetition(
        ops.convert_to_tensor(log_probs), ops.convert_to_tensor(token_ids), 1, 2.0
    )
    expected = log_probs * np.array([1, 1, 1, 2])
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, rtol=1e-5)
