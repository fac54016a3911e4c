"""Search over scripted logits, where every answer is known."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.decoding import loop
from keras_seqattn.decoding.hypotheses import SpecialTokens, pad_lists
from keras_seqattn.scheduling import generation, static
from tests.decoding.test_beam import log_softmax
from tests.pairs import each_variant, named

V = 9
PAD, START, END = 0, 1, 2


def scripted(table):
    """A step that says `table[b, index]`, whatever was generated."""

    def step(token_ids, state, index):
        return ops.take(state["sentence"]["table"], index, axis=1)[:, None], state

    return step, {"beam": {}, "sentence": {"table": table}}


def chained(table, width=1):
    """A step that says `table[b, token]`; it counts in the beams' part of the state."""

    def step(token_ids, state, index):
        seen = ops.one_hot(token_ids, V, dtype="float32")  # (B, W, V)
        logits = ops.einsum("bwu,buv->bwv", seen, state["sentence"]["table"])
        counted = state["beam"]["count"] + 1.0
        return logits, {"beam": {"count": counted}, "sentence": state["sentence"]}

    count = np.zeros((len(table), width), "float32")
    return step, {"beam": {"count": count}, "sentence": {"table": table}}


def says(*sentences, length):
    """A table (B, length, V) in which each token is the most probable by far."""
    table = np.zeros((len(sentences), length, V), "float32")
    for row, sentence in zip(table, sentences, strict=True):
        for position, token in enumerate(sentence):
            row[position, token] = 5.0
    return table


def search(step_and_state, batch_size, max_length, **options):
    step, state = step_and_state
    return decoding.search(
        step, state, batch_size=batch_size, max_length=max_length, **options
    )


def test_greedy_says_what_is_most_probable_and_freezes_what_has_ended():
    table = says([5, END, 7, 7], [6, 4, 3, END], [8, 8, 8, 8], length=4)
    found = search(scripted(table), 3, 4, method=decoding.Greedy())
    assert found.token_ids[:, 0].tolist() == [[5, 0, 0, 0], [6, 4, 3, 0], [8, 8, 8, 8]]
    assert found.lengths.tolist() == [[1], [3], [4]]
    each = np.max(log_softmax(table), axis=-1)
    expected = [[each[0, :2].sum()], [each[1].sum()], [each[2].sum()]]
    np.testing.assert_allclose(found.scores, expected, rtol=1e-5)


@each_variant(
    "options",
    {"plain": {}, "repetition": {"repetition_penalty": 1.7, "no_repeat_ngram": 2}},
    on_jax=["plain", "repetition"],
    on_tensorflow=["plain"],
)
def test_greedy_without_scores_finds_the_same(options, rng):
    table = rng.normal(0, 2, (4, V, V)).astype("float32")
    found = search(chained(table), 4, 7, method=decoding.Greedy(**options))
    method = decoding.Greedy(scored=False, **options)
    unscored = search(chained(table), 4, 7, method=method)
    np.testing.assert_array_equal(unscored.token_ids, found.token_ids)
    assert np.isnan(unscored.scores).all()
    assert unscored.ranked(0)[0][0] == found.sequence(0)


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_of_logits_of_low_precision_are_in_float32(dtype, rng):
    """As a model in mixed precision may return them."""
    table = ops.cast(rng.normal(0, 2, (4, V, V)).astype("float32"), dtype)
    table = ops.convert_to_numpy(ops.cast(table, "float32"))

    def step(token_ids, state, index):
        logits, state = chained(table)[0](token_ids, state, index)
        return ops.cast(logits, dtype), state

    expected = search(chained(table), 4, 7)
    for scored in (True, False):
        method = decoding.Greedy(scored=scored)
        found = search((step, chained(table)[1]), 4, 7, method=method)
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        if scored:
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.slow_on("jax")
def test_the_default_dtype_of_keras_makes_no_difference(rng):
    table = rng.normal(size=(2, V, V)).astype("float32")
    method = decoding.BeamSearch(4, num_hypotheses=4, num_groups=2)
    options = {"method": method, "prefix": [[5], [3, 4]]}
    expected = search(chained(table, 4), 2, 6, **options)
    keras.config.set_floatx("float16")
    found = search(chained(table, 4), 2, 6, **options)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.slow_on("tensorflow", "jax")
def test_samples_without_scores_are_the_same_in_the_order_drawn(rng):
    table = rng.normal(0, 2, (2, V, V)).astype("float32")
    found, unscored, two, one = (
        search(
            chained(table, width=width),
            2,
            6,
            method=decoding.Sample(num_hypotheses=width, seed=5, scored=scored),
        )
        for width, scored in ((3, True), (3, False), (2, False), (1, False))
    )
    assert np.isnan(unscored.scores).all()
    for row in range(2):
        samples = found.token_ids[row].tolist()
        assert sorted(unscored.token_ids[row].tolist()) == sorted(samples)
    # Each is drawn by itself, so that fewer are the first of more.
    for fewer in (two, one):
        width = fewer.token_ids.shape[1]
        np.testing.assert_array_equal(unscored.token_ids[:, :width], fewer.token_ids)


def test_found_arrays_have_the_documented_types():
    found = search(scripted(says([5, END], length=3)), 1, 3)
    assert isinstance(found, decoding.Hypotheses)
    assert all(isinstance(array, np.ndarray) for array in found)
    assert [(a.shape, a.dtype.name) for a in found] == [
        ((1, 1, 3), "int32"),
        ((1, 1), "int32"),
        ((1, 1), "float32"),
    ]


@pytest.mark.parametrize(
    "method",
    [
        decoding.Greedy(banned_ids=range(V)),
        decoding.Sample(banned_ids=range(V), seed=1),
        decoding.Sample(banned_ids=range(V), seed=1, top_k=3, top_p=0.5, min_p=0.1),
        decoding.Sample(banned_ids=range(V), seed=1, temperature=1e3),
    ],
)
def test_where_all_is_forbidden_nothing_is_said(method):
    table = says([5, 6], [7, 7], length=2)
    found = search(scripted(table), 2, 2, method=method)
    assert found.lengths.tolist() == [[0], [0]]
    np.testing.assert_allclose(found.scores[:, 0], log_softmax(table)[:, 0, END])


@each_variant(
    "options",
    named({}, {"num_hypotheses": 2}, {"num_groups": 2}),
    on_jax=["{}"],
    on_tensorflow=[],
)
def test_where_all_is_forbidden_beams_end(options, rng):
    table = rng.normal(size=(2, V, V)).astype("float32")
    method = decoding.BeamSearch(banned_ids=range(V), length_penalty=0.0, **options)
    found = search(chained(table, width=4), 2, 3, method=method)
    scores = log_softmax(table)[:, START, END]
    for row in range(2):
        assert [ids for ids, _ in found.ranked(row)] == [[]]
    np.testing.assert_allclose(found.scores[:, 0], scores, rtol=1e-5)


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("size", [9, 256, 300])
def test_a_model_may_forbid_tokens_by_infinity(size, rng):
    """As a grammar does: beams differ, and are those of a very low number."""
    allowed = np.array([END, 5, 6, 7])
    logits = rng.normal(size=(size, size)).astype("float32")

    def found(low):
        table = np.full((1, size, size), low, "float32")
        table[0, :, allowed] = logits[allowed]

        def step(token_ids, state, index):
            seen = ops.one_hot(token_ids, size)
            masked = ops.where(seen[..., None] > 0, state["sentence"]["table"], 0.0)
            return ops.sum(masked, axis=2), state

        state = {"beam": {}, "sentence": {"table": table[:, None]}}
        method = decoding.BeamSearch(width=4, num_hypotheses=4)
        return search((step, state), 1, 4, method=method)

    infinite, finite = found(-np.inf), found(-1e4)
    np.testing.assert_array_equal(infinite.token_ids, finite.token_ids)
    np.testing.assert_allclose(infinite.scores, finite.scores, rtol=1e-5)


def test_a_model_may_forbid_all_tokens_but_one():
    table = np.full((1, 2, V), -np.inf, "float32")
    table[0, 0, 5] = table[0, 1, END] = 0.0
    method = decoding.BeamSearch(1, stop_ids=(3, 4))
    assert search(scripted(table), 1, 2, method=method).sequence(0) == [5]


@pytest.mark.slow_on("tensorflow")
def test_beams_end_where_nothing_more_may_be_said(rng):
    """Two words, each once, and no end before the fourth token."""
    table = rng.normal(size=(1, V, V)).astype("float32")
    method = decoding.BeamSearch(
        banned_ids=(3, 6, 7, 8), no_repeat_ngram=1, min_length=4, length_penalty=0.0
    )
    found = search(chained(table, width=4), 1, 4, method=method)
    said = log_softmax(table)[0]
    scores = {
        words: said[START, words[0]] + said[words] + said[words[1], END]
        for words in ((4, 5), (5, 4))
    }
    best = max(scores, key=scores.get)
    assert found.sequence(0) == list(best)
    np.testing.assert_allclose(found.scores, [[scores[best]]], rtol=1e-5)


def test_what_is_banned_is_not_drawn_at_any_temperature():
    banned = (END, 4, 5, 6, 7)
    method = decoding.Sample(banned_ids=banned, seed=1, temperature=1e9)
    found = search(scripted(says([5, 6] * 8, length=16)), 1, 16, method=method)
    assert set(found.sequence(0)) == {3, 8}


@pytest.mark.parametrize("banned", [PAD, START])
def test_padding_and_start_are_never_said_and_scores_stay_the_model_s(banned):
    table = np.zeros((1, 2, V), "float32")
    table[0, :, banned], table[0, 0, 4], table[0, 1, END] = 9.0, 3.0, 3.0
    found = search(scripted(table), 1, 2)
    assert found.token_ids[0, 0].tolist() == [4, 0]
    log_probs = log_softmax(table)[0]
    expected = log_probs[0, 4] + log_probs[1, END]
    np.testing.assert_allclose(found.scores, [[expected]], rtol=1e-5)


def test_special_tokens_are_the_caller_s():
    """Token 0 is a word here, and counts as one."""
    table = says([0, 1, 0, 4], [7, 8, 5, 5], [5, 0, 8, 4], length=4)
    found = search(scripted(table), 3, 4, start_id=2, end_id=8, pad_id=3)
    assert found.token_ids[:, 0].tolist() == [[0, 1, 0, 4], [7, 0, 0, 0], [5, 0, 0, 0]]
    assert found.lengths.tolist() == [[4], [1], [2]]


def naive_greedy(table, max_length):
    """The same by a loop over one sentence; returns tokens and score."""
    token, tokens, score = START, [], 0.0
    for _ in range(max_length):
        log_probs = log_softmax(table[token].astype("float64"))
        allowed = np.where(np.isin(np.arange(V), (PAD, START)), -np.inf, log_probs)
        token = int(allowed.argmax())
        score += log_probs[token]
        if token == END:
            break
        tokens.append(token)
    return tokens, score


def test_each_step_sees_the_token_before(rng):
    table = rng.normal(size=(20, V, V)).astype("float32")
    found = search(chained(table), 20, 6)
    for b in range(20):
        tokens, score = naive_greedy(table[b], 6)
        assert found.token_ids[b, 0].tolist() == tokens + [0] * (6 - len(tokens))
        assert found.lengths[b, 0] == len(tokens)
        np.testing.assert_allclose(found.scores[b, 0], score, rtol=1e-4)


def test_it_stops_when_every_sentence_has_ended():
    """Uncompiled, each step is a call that can be counted."""
    if keras.backend.backend() == "jax":
        pytest.skip("JAX traces the step once, compiled or not")
    calls = []
    step, state = scripted(says([5, END], [END], length=50))

    def counting(token_ids, state, index):
        calls.append(index)
        return step(token_ids, state, index)

    state = keras.tree.map_structure(ops.convert_to_tensor, state)
    first = decoding.Greedy().begin(
        limits=ops.full((2,), 50, "int32"),
        seeds=ops.zeros((2,), "int32"),
        prefix=ops.zeros((2, 0), "int32"),
        capacity=50,
        tokens=SpecialTokens(),
    )
    first = loop.first_loop_state(state, first)
    loop.run(decoding.Greedy(), counting, first, SpecialTokens())
    assert len(calls) == 2


def test_a_number_in_a_state_has_the_dtype_of_keras():
    def step(token_ids, state, index):
        logits = ops.one_hot(ops.zeros_like(token_ids) + 5, 8)
        return logits * state["shared"]["scale"], state

    state = {"beam": {}, "sentence": {}, "shared": {"scale": 9.0}}
    found = decoding.search(step, state, batch_size=1, max_length=3)
    assert found.token_ids.tolist() == [[[5, 5, 5]]]


def test_a_state_may_hold_tensors_that_numpy_does_not_know():
    step, state = scripted(says([5, END], [END], length=5))
    expected = search((step, state), 2, 5)
    marked = {**state, "shared": ops.ones((2,), "bfloat16")}
    found = search((lambda *args: marking(step, *args), marked), 2, 5)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)


def marking(step, token_ids, state, index):
    """Hands on what a step does not know."""
    known = {name: value for name, value in state.items() if name != "shared"}
    logits, known = step(token_ids, known, index)
    return logits, {**known, "shared": state["shared"]}


@pytest.mark.parametrize("name", ["batch_size", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 2.0, None])
def test_search_says_which_size_is_wrong(name, value):
    step, state = scripted(says([5], length=1))
    sizes = {"batch_size": 1, "max_length": 1, name: value}
    with pytest.raises(ValueError, match=f"`{name}` must be a positive.*={value!r}"):
        decoding.search(step, state, **sizes)


@pytest.mark.parametrize("end_id", [V, -1])
@pytest.mark.parametrize("method", [decoding.Greedy(), decoding.BeamSearch(1)])
def test_search_wants_an_end_in_the_vocabulary(method, end_id):
    message = rf"`end_id` must be in \[0, {V}\).* Received: end_id={end_id}\."
    with pytest.raises(ValueError, match=message):
        search(scripted(says([5], length=2)), 1, 2, method=method, end_id=end_id)


# `generate` knows a model by its protocol alone.


class Copier:
    """Says its source, reversed; a model of three methods and a few attributes."""

    start_id, end_id, pad_id = START, END, PAD
    source_vocabulary_size, max_length = V, 40
    variables = ()

    def encode(self, source_ids):
        flipped = ops.flip(source_ids, axis=1)  # padding comes first
        real = ops.sum(ops.cast(source_ids != PAD, "int32"), axis=1)
        return {"hidden": flipped, "mask": real}

    def initial_state(self, memory, max_length, width=1):
        return {"beam": {}, "sentence": memory}

    def step(self, token_ids, state, index):
        flipped, real = state["sentence"]["hidden"], state["sentence"]["mask"]
        length = ops.shape(flipped)[1]
        at = ops.minimum(length - real + index, length - 1)
        token = ops.take_along_axis(flipped, at[:, None], axis=1)
        token = ops.where((index < real)[:, None], token, END)
        return 9.0 * ops.cast(ops.one_hot(token, V), "float32"), state


def sources(batch_size, length, rng):
    """Sentences of all lengths up to `length`, padded."""
    ids = rng.integers(3, V, size=(batch_size, length))
    real = rng.integers(1, length + 1, size=batch_size)
    real[0] = length
    return np.where(np.arange(length) < real[:, None], ids, PAD)


def check_reversed(found, source_ids):
    for row, sentence in enumerate(source_ids):
        words = sentence[sentence != PAD][::-1].tolist()
        assert found.lengths[row, 0] == len(words)
        assert found.token_ids[row, 0, : len(words)].tolist() == words
        assert not found.token_ids[row, 0, len(words) :].any()


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(("threads", "size"), [(1, 64), (3, 32)])
def test_generate_keeps_the_order_of_many_sentences(threads, size, rng, monkeypatch):
    """All are searched by programs of one size, several of them at once."""
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: threads)
    source_ids, model = sources(70, 5, rng), Copier()
    assert generation.make_plan(70).size == size
    found = decoding.generate(model, source_ids)
    assert found.token_ids.shape == (70, 1, 20)
    check_reversed(found, source_ids)
    programs = decoding.programs(model)
    assert [program.num_programs for program in programs] == [1, 1]


def test_few_programs_serve_many_shapes(rng):
    model = Copier()
    for batch_size in (1, 2, 3, 4, 5):
        for length in (1, 7, 15):
            source_ids = sources(batch_size, length, rng)
            check_reversed(decoding.generate(model, source_ids), source_ids)
    programs = decoding.programs(model)
    assert sum(program.num_programs for program in programs) == 3
    assert all(program.compile_seconds > 0.0 for program in programs)


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_lone_long_sentence_has_a_program_without_copies(rng, monkeypatch):
    """And the short ones beside it are not padded to its length."""
    model, shapes, search = Copier(), [], static.search_batch
    model.max_length = None

    def noted(model, options, sentences, *more):
        shapes.append((options.size, sentences.source_ids.shape))
        return search(model, options, sentences, *more)

    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 1)
    monkeypatch.setattr(static, "search_batch", noted)
    source_ids = np.pad(sources(20, 9, rng), [(0, 1), (0, 151)])
    source_ids[20] = 4
    check_reversed(decoding.generate(model, source_ids), source_ids)
    alone = 2 if keras.backend.backend() == "tensorflow" else 1
    assert shapes == [(alone, (1, 256)), (32, (20, 16))]


@pytest.mark.parametrize(
    ("length", "max_length", "room"), [(3, None, 16), (20, None, 40), (9, 4, 4)]
)
def test_length_limit(rng, length, max_length, room):
    source_ids = sources(2, length, rng)
    found = decoding.generate(Copier(), source_ids, max_length=max_length)
    assert found.token_ids.shape[-1] == room
    assert found.lengths[0, 0] == min(length, room)


def test_a_model_s_length_bounds_what_its_encoder_sees(rng):
    """Sources are padded to few lengths, and never past the model's own."""
    source_ids = sources(2, 35, rng)

    class Bounded(Copier):
        def encode(self, source_ids):
            assert source_ids.shape[1] <= self.max_length
            return super().encode(source_ids)

    check_reversed(decoding.generate(Bounded(), source_ids), source_ids)


@pytest.mark.parametrize(
    ("source_ids", "message"),
    [
        (np.array([4, 5]), "`source_ids` must have rank 2.*shape=(2,)"),
        (np.zeros((0, 4), int), "`source_ids` must.*shape=(0, 4)"),
        (np.zeros((4, 0), int), "`source_ids` must.*shape=(4, 0)"),
        (np.array([[4.0]]), "`source_ids` must be integers.*'float64'"),
        (np.array([[4, V]]), "`source_ids` must be in [0, 9).*from 4 to 9"),
        (np.array([[-1, 4]]), "`source_ids` must be in [0, 9).*from -1 to 4"),
        (np.full((1, 41), 4), "`source_ids` must .*41"),
        ([[4, 5], [4.5]], "`source_ids[1]` must be a list of integers.*=[4.5]"),
        ([[4], 5], "`source_ids[1]` must be a list of integers.*=5"),
        ([[[4], [5, 6]]], "`source_ids[0]` must be a list of integers.*=[[4], [5, 6]]"),
        (["ab", "c"], "`source_ids` must be an integer array.*=['ab', 'c']"),
        ("ab", "`source_ids` must be an integer array.*='ab'"),
        ({4: 5}, "`source_ids` must be an integer array.*={4: 5}"),
        ([], "`source_ids` must not be empty.*=(0, 0)"),
        ([[4], [V]], "`source_ids` must be in [0, 9).*from 4 to 9"),
        ([[4], [2**32 + 5]], "`source_ids` must be in [0, 9).*from 4 to 4294967301"),
    ],
)
def test_generate_says_what_is_wrong_with_the_source(source_ids, message):
    message = re.escape(message).replace(r"\.\*", ".*")
    with pytest.raises(ValueError, match=message):
        decoding.generate(Copier(), source_ids)


@pytest.mark.slow_on("tensorflow")
def test_lists_of_unequal_lengths_are_padded():
    lists, prefix = [[5, 6, 7], [4], np.array([8, 4])], [[7], [], [4, 8]]
    found = decoding.generate(Copier(), lists, prefix=prefix)
    arrays = pad_lists(lists, PAD), pad_lists(prefix, PAD)
    expected = decoding.generate(Copier(), arrays[0], prefix=arrays[1])
    assert [found.sequence(b) for b in range(3)] == [[7, 6, 5], [4], [4, 8]]
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)
    np.testing.assert_array_equal(found.scores, expected.scores)
    step, state = scripted(says([5, END], [6, END], length=4))
    found = search((step, state), 2, 4, prefix=[[8, 8], []])
    assert [found.sequence(b) for b in range(2)] == [[8, 8], [6]]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("prefix", [[[4], [2**32 + 5]], np.array([[4], [2**32 + 5]])])
def test_forced_tokens_are_of_the_vocabulary(prefix):
    model = Copier()
    model.target_vocabulary_size = V
    message = r"`prefix` must be in \[0, 9\).*from 4 to 4294967301"
    with pytest.raises(ValueError, match=message):
        decoding.generate(model, [[4], [5]], prefix=prefix)
    message = r"`prefix` must be in \[0, 2147483648\).*from 4 to 4294967301"
    with pytest.raises(ValueError, match=message):
        search(scripted(says([5], [5], length=1)), 2, 1, prefix=prefix)


@pytest.mark.backends("torch")
def test_forced_tokens_have_logits():
    """Though the model does not say how many there are."""
    prefix, message = [[4], [V]], r"`prefix` must be in \[0, 9\).*ids from 4 to 9"
    with pytest.raises(ValueError, match=message):
        decoding.generate(Copier(), [[4], [5]], prefix=prefix)
    with pytest.raises(ValueError, match=message):
        search(scripted(says([5], [5], length=1)), 2, 1, prefix=prefix)


@pytest.mark.backends("torch")
def test_a_prefix_must_fit_the_limit_of_its_own_sentence():
    """Of 2 tokens 14 are generated at most, of 8 tokens 26."""
    sources, prefixes = [[4] * 8, [5, 6]], [[7] * 20, [7] * 14]
    found = decoding.generate(Copier(), sources, prefix=prefixes)
    assert [found.sequence(b)[: len(ids)] for b, ids in enumerate(prefixes)] == prefixes
    prefixes = [[], [7] * 15]
    message = r"`prefix\[{}\]` must have at most 14 tokens.*\[{}\] of 15 tokens"
    with pytest.raises(ValueError, match=message.format(1, 1)):
        decoding.generate(Copier(), sources, prefix=prefixes)
    with pytest.raises(ValueError, match=message.format(4, 4)):
        list(generation.decode_lists(Copier(), sources, prefixes=prefixes, first=3))
    # Nothing is generated for what is not chosen.
    chosen = generation.decode_lists(Copier(), sources, chosen=[0], prefixes=prefixes)
    assert [places for places, _ in chosen] == [[0]]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("wrong", ["beam", decoding.BeamSearch, {"width": 4}, 4])
def test_what_is_no_search_is_refused(wrong):
    message = "must be a `Greedy`, `Sample` or `BeamSearch`, or None. Received: "
    with pytest.raises(ValueError, match=f"`search` {message}search={wrong!r}"):
        decoding.generate(Copier(), np.array([[4]]), wrong)
    with pytest.raises(ValueError, match=f"`search` {message}search={wrong!r}"):
        next(generation.decode_lists(Copier(), [[4]], wrong))
    with pytest.raises(ValueError, match=f"`method` {message}method={wrong!r}"):
        search(scripted(says([5], length=1)), 1, 1, method=wrong)


@pytest.mark.parametrize("max_length", [0, -1, 2.0, 41])
def test_generate_says_which_length_is_wrong(max_length):
    with pytest.raises(ValueError, match=f"`max_length` must.*max_length={max_length}"):
        decoding.generate(Copier(), np.array([[4]]), max_length=max_length)


@pytest.mark.backends("torch")
def test_a_state_is_never_longer_than_the_model_s_limit():
    class Noted(Copier):
        max_length = 20

        def initial_state(self, memory, max_length, width=1):
            asked.add(max_length)
            return super().initial_state(memory, max_length, width)

    asked = set()
    found = decoding.generate(Noted(), np.array([[4, 5]]), max_length=18)
    assert found.sequence(0) == [5, 4] and asked == {20}


def test_coverage_needs_a_model_that_counts_it():
    search = decoding.BeamSearch(width=2, coverage_penalty=0.1)
    with pytest.raises(ValueError, match="`coverage_penalty` of 0.*penalty=0.1"):
        decoding.generate(Copier(), np.array([[4, 5]]), search)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(("threads", "sizes"), [(1, {64, 16}), (2, {32, 8})])
def test_the_last_sentences_go_on_in_a_smaller_program(
    threads, sizes, rng, monkeypatch
):
    """Of 64 sentences 7 are long: the others end, and these are taken out."""
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: threads)
    source_ids = np.zeros((64, 30), int)
    source_ids[:, :3] = rng.integers(3, V, size=(64, 3))
    source_ids[::10] = rng.integers(3, V, size=(7, 30))
    model = Copier()
    model.sizes = []
    steps = model.step

    def step(token_ids, state, index):
        model.sizes.append(token_ids.shape[0])
        return steps(token_ids, state, index)

    model.step = step
    check_reversed(decoding.generate(model, source_ids), source_ids)
    assert set(model.sizes) == sizes
    assert len(decoding.programs(model)) == 2


@pytest.mark.backends("torch")
def test_a_model_without_the_protocol_is_told_what_it_lacks():
    model = keras.Sequential([keras.layers.Dense(3)])
    message = (
        "`model` must be .* with `encode`, `initial_state`, .* Received: model=<Seq"
    )
    with pytest.raises(ValueError, match=message):
        decoding.generate(model, np.ones((2, 3), "int32"))


def test_a_seed_is_taken_modulo_what_32_bits_hold():
    assert decoding.Sample(seed=2**31 + 3).draw_seed() == 3


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(
    "method",
    [
        decoding.Greedy(stop_ids=(3, 7)),
        decoding.BeamSearch(2, stop_ids=(3, 7)),
    ],
    ids=["greedy", "beam"],
)
def test_a_forced_token_ends_nothing(method):
    table = says([8, 8, 8, 7, 8], [7, 8, 8, 8, 8], length=5)
    step, state = scripted(table)

    def step_of_beams(token_ids, state, index):
        logits, state = step(token_ids, state, index)
        return ops.repeat(logits, token_ids.shape[1], axis=1), state

    prefix = [[4, 3, 5], [6, PAD, PAD]]
    found = search((step_of_beams, state), 2, 5, method=method, prefix=prefix)
    assert found.sequence(0) == [4, 3, 5]
    assert found.sequence(1) == [6, 8, 8, 8, 8]
