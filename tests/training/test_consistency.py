"""The divergence of pairs in the loss, against float64 loops and their gradients."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_seqattn.backend.autodiff import gradients
from keras_seqattn.layers.embedding.logits import TokenLogits, keep_factors
from keras_seqattn.text import ByteTokenizer, translation_batches
from keras_seqattn.training import MaskedCrossentropy
from keras_seqattn.training.consistency import Pieces, find_pairs
from tests.differentiate import values_and_gradients
from tests.training.numerics import reference

T, D, V = 24, 3, 5
rng = np.random.default_rng(0)
FIRST, SECOND = rng.integers(1, V, (2, T))
FIRST[20:] = 0
# Rows 0 and 1 are copies; 2 and 3 differ in a token; 4 has none beside it.
LABELS = np.stack([FIRST, FIRST, SECOND, SECOND, SECOND]).astype("int32")
LABELS[3, 5] = LABELS[3, 5] % (V - 1) + 1
# Of these 88 tokens are paired: more than a block of 64 rows.
COPIES = np.stack([FIRST, FIRST, SECOND, SECOND]).astype("int32")
WEIGHTS = rng.choice([0.0, 0.5, 2.0, 3.0], LABELS.shape, p=[0.1, 0.3, 0.3, 0.3]).astype(
    "float32"
)
HIDDEN = rng.normal(size=(*LABELS.shape, D)).astype("float32")
KERNEL = rng.normal(size=(D, V)).astype("float32")
ALPHA, SMOOTHING = 0.7, 0.1
# Rows 0 and 1, 2 and 3 are each two segmentations of one text: "ab" is a token or two.
PIECES = ["<pad>", "a", "b", "ab", "c"]
WHOLE = rng.integers(1, V, (2, T // 2))


def padded(rows, length=T, pad_id=0):
    labels = np.full((len(rows), length), pad_id, "int32")
    for label, row in zip(labels, rows, strict=True):
        label[: len(row)] = row
    return labels


def split(ids, whole, parts):
    """Puts the parts of a token in its place."""
    return [i for token in ids for i in (parts if token == whole else [token])]


SPLIT = [split(row, 3, [1, 2]) for row in WHOLE]
SEGMENTED = padded([WHOLE[0], SPLIT[0], SPLIT[1], WHOLE[1]])
MODES = ["eager", "jit"] if keras.backend.backend() == "tensorflow" else ["eager"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("keras_seqattn.training.crossentropy.BLOCK_LOGITS", 1)


def divergence(logits):
    """Of the two rows of logits of a pair, float64."""
    p, q = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return (np.sum(p * np.log(p / q)) + np.sum(q * np.log(q / p))) / 2


def equal_rows(labels):
    """Yields the tokens (row, t), (row + 1, t) of rows whose labels are equal."""
    for row in range(0, len(labels) - 1, 2):
        if (labels[row] == labels[row + 1]).all():
            for t in np.flatnonzero(labels[row]):
                yield (row, t), (row + 1, t)


def aligned(labels, pieces):
    """Yields the equal tokens at equal places of rows that have one text."""
    for row in range(0, len(labels) - 1, 2):
        texts, places = [], []
        for side in (row, row + 1):
            text, found = "", {}
            for t in np.flatnonzero(labels[side]):
                found[len(text), labels[side, t]] = side, t
                text += pieces[labels[side, t]]
            texts.append(text)
            places.append(found)
        if texts[0] == texts[1]:
            for place in sorted(places[0].keys() & places[1].keys()):
                yield places[0][place], places[1][place]


def expected(labels, weights, pairs):
    """The loss, and its gradient for the logits: of the divergence by differences."""
    logits = HIDDEN[: len(labels)].astype("float64") @ KERNEL
    loss, total, d_logits = reference(labels, logits, weights, SMOOTHING)
    for partners in pairs:
        weight = ALPHA * min(weights[place] for place in partners)
        pair = np.stack([logits[place] for place in partners])
        loss += weight * divergence(pair)
        for i, v in np.ndindex(*pair.shape):
            step = np.zeros_like(pair)
            step[i, v] = 1e-5
            rise = divergence(pair + step) - divergence(pair - step)
            d_logits[(*partners[i], v)] += weight * rise / 2e-5
    return loss / total, d_logits / total


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("labels", "pieces"),
    [(LABELS, None), (COPIES, None), (SEGMENTED, PIECES), (LABELS, PIECES)],
    ids=["some", "all", "segmented", "some, by pieces"],
)
def test_loss_and_gradients_are_the_float64_loop(labels, pieces, mode):
    weights = WEIGHTS[: len(labels)]
    loss = MaskedCrossentropy(SMOOTHING, consistency=ALPHA, pieces=pieces)
    pairs = list(aligned(labels, pieces) if pieces else equal_rows(labels))
    assert pairs
    hidden = HIDDEN[: len(labels)]

    def of_logits(logits):
        return loss(labels, logits, weights)

    def of_factors(hidden, kernel):
        logits = ops.matmul(hidden, kernel)
        return of_logits(keep_factors(logits, hidden, kernel))

    value, d_logits = expected(labels, weights, pairs)
    got, (gradient,) = values_and_gradients(of_logits, [hidden @ KERNEL], mode)
    np.testing.assert_allclose(got, value, rtol=1e-5)
    np.testing.assert_allclose(gradient, d_logits, atol=1e-6)
    got, gradients = values_and_gradients(of_factors, [hidden, KERNEL], mode)
    np.testing.assert_allclose(got, value, rtol=1e-5)
    np.testing.assert_allclose(gradients[0], d_logits @ KERNEL.T, atol=1e-6)
    np.testing.assert_allclose(
        gradients[1], np.einsum("btd,btv->dv", hidden, d_logits), atol=1e-5
    )


def test_a_pair_stays_within_a_block_that_has_room_for_an_odd_number(monkeypatch):
    """88 tokens are paired, and 65 rows would be as many as fit."""
    monkeypatch.setattr("keras_seqattn.training.crossentropy.BLOCK_LOGITS", 65 * V)
    loss = MaskedCrossentropy(SMOOTHING, consistency=ALPHA)
    hidden, weights = HIDDEN[: len(COPIES)], WEIGHTS[: len(COPIES)]
    value, _ = expected(COPIES, weights, list(equal_rows(COPIES)))
    logits = hidden @ KERNEL
    np.testing.assert_allclose(float(loss(COPIES, logits, weights)), value, rtol=1e-5)
    factors = keep_factors(*map(ops.convert_to_tensor, (logits, hidden, KERNEL)))
    np.testing.assert_allclose(float(loss(COPIES, factors, weights)), value, rtol=1e-5)


NAMES = ["<pad>", "a", "b", "ab", "ba", "c", "</s>"]


@pytest.mark.parametrize(
    ("first", "second", "partners"),
    [
        ("ab c </s>", "ab c </s>", [(0, 0), (1, 1), (2, 2)]),
        ("ab c </s>", "a b c </s>", [(1, 2), (2, 3)]),
        ("a b c </s>", "ab c </s>", [(2, 1), (3, 2)]),
        ("a ba c </s>", "ab a c </s>", [(2, 2), (3, 3)]),
        ("a ba </s>", "ab a </s>", [(2, 2)]),  # The same "a" at other places.
        ("a b a b </s>", "ab a b </s>", [(2, 1), (3, 2), (4, 3)]),
        ("a b c </s>", "a b b </s>", []),  # Another text, equal at first.
        ("ab </s>", "ba </s>", []),
        ("a b </s>", "b a </s>", []),
        ("a </s>", "a a </s>", []),
        ("</s>", "</s>", [(0, 0)]),
        ("", "", []),
    ],
)
def test_which_tokens_pair(first, second, partners):
    rows = [[NAMES.index(name) for name in x.split()] for x in (first, second)]
    labels = padded(rows, length=6)
    weights = (labels != 0).astype("float32")
    weights[1] *= 0.5
    assert pairs_of(labels, weights, NAMES) == [(*pair, 0.5) for pair in partners]
    alike = [pair for pair in partners if first == second]
    assert pairs_of(labels, weights, None) == [(*pair, 0.5) for pair in alike]


def pairs_of(labels, weights, pieces):
    """Returns the pairs of two rows as (first t, second t, weight)."""
    length = labels.shape[1]
    pieces = pieces and Pieces(pieces, pad_id=0)
    flat = [ops.convert_to_tensor(x.reshape(-1)) for x in (labels, weights)]
    pairs = find_pairs(*flat, length, pieces)
    found, place = (ops.convert_to_numpy(x) for x in (pairs.weights, pairs.place))
    tokens = sorted(np.flatnonzero(found), key=lambda token: place[token])
    assert sorted(place[tokens]) == list(range(int(pairs.count))), "one for each"
    return [
        (int(one), int(other) - length, float(found[one]))
        for one, other in zip(tokens[::2], tokens[1::2], strict=True)
        if found[one] == found[other]
    ]


@settings(deadline=None, max_examples=15)
@given(
    rows=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=3, max_size=3),
    index=st.integers(0, 2),
)
def test_all_equal_tokens_at_equal_places_pair(rows, index):
    names, pad_id = ["a", "b", "ab", "aba", "ä", "<pad>", "</s>"], 5
    rows.append(split(rows[index], 2, [0, 1]))
    labels = padded([[*row, 6] for row in rows], length=8, pad_id=pad_id)
    weights = (labels != pad_id).astype("float32")
    pairs = find_pairs(
        *(ops.convert_to_tensor(x.reshape(-1)) for x in (labels, weights)),
        labels.shape[1],
        Pieces(names, pad_id),
    )
    found = ops.convert_to_numpy(pairs.weights).reshape(labels.shape)
    shifted = np.where(labels == pad_id, 0, labels + 1)  # to the 0 of `aligned`
    tokens = {place for pair in aligned(shifted, ["", *names]) for place in pair}
    assert {tuple(place) for place in np.argwhere(found)} == tokens


@pytest.mark.parametrize("rows", [1, 4], ids=["one row", "no copies"])
@pytest.mark.parametrize("pieces", [None, PIECES], ids=["labels", "pieces"])
@pytest.mark.slow_on("jax")
def test_what_is_no_copy_adds_exactly_nothing(rows, pieces, rng):
    labels = rng.integers(0, V, (rows, T)).astype("int32")
    labels[::2, 0], labels[1::2, 0] = 1, 2  # There "ab" does not become "a b".
    logits = rng.normal(size=(rows, T, V)).astype("float32")
    plain = MaskedCrossentropy(0.1)
    drawn = MaskedCrossentropy(0.1, consistency=5.0, pieces=pieces)
    assert float(drawn(labels, logits)) == float(plain(labels, logits))


def test_extreme_logits_stay_finite():
    logits = np.zeros((2, 1, V), "float32")
    logits[0, 0, 0], logits[1, 0, 1] = 1e4, 1e4
    loss = MaskedCrossentropy(consistency=1.0)
    value, (gradient,) = values_and_gradients(
        lambda x: loss(np.full((2, 1), 1, "int32"), x), [logits]
    )
    # The divergence is 1e4, the crossentropies 1e4 and 0, the tokens two.
    np.testing.assert_allclose(value, 1e4, rtol=1e-6)
    assert np.isfinite(gradient).all()


def test_a_token_that_the_model_forbids_is_not_apart():
    logits = np.zeros((4, 5), "float32")
    logits[::2, 0] = logits[1::2, 1] = 1.0
    logits[:, 4] = -np.inf
    loss = MaskedCrossentropy(pad_id=-1, consistency=1.0)
    labels = np.zeros((4, 1), "int32")
    with_it, without = (
        values_and_gradients(lambda x: loss(labels, x), [logits[:, None, :size]])
        for size in (5, 4)
    )
    np.testing.assert_allclose(with_it[0], without[0], rtol=1e-6)
    np.testing.assert_allclose(with_it[1][0][..., :4], without[1][0], atol=1e-7)
    assert not with_it[1][0][..., 4].any()


@pytest.mark.backends("tensorflow", "torch")  # JAX has no shapes that are not known.
@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.slow_on("tensorflow")
def test_copies_are_drawn_together_in_fit(jit_compile):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch compiles nothing")
    tokenizer, lines = ByteTokenizer(), ["red", "a dog"]
    data = translation_batches(
        lines, lines, tokenizer, batch_tokens=32, bucket_lengths=(8,), repeat_batch=2
    )
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("source_ids", "target_ids")
    }
    wide = keras.initializers.RandomNormal(stddev=2.0, seed=0)
    x = keras.layers.Embedding(tokenizer.vocabulary_size, 4, wide)(inputs["target_ids"])
    x = keras.layers.Dropout(0.5, seed=1)(x)
    model = keras.Model(inputs, TokenLogits(tokenizer.vocabulary_size)(x))
    weights, losses = model.get_weights(), []
    for consistency in (0.0, 10.0):
        model.set_weights(weights)
        (seed,) = (v for v in model.variables if "seed" in v.path)
        seed.assign(np.array([1, 0]))
        model.compile(
            keras.optimizers.SGD(0.0),
            MaskedCrossentropy(consistency=consistency),
            jit_compile=jit_compile,
        )
        model.optimizer.build(model.trainable_variables)
        history = model.fit(data, shuffle=False, verbose=0)
        losses.append([history.history["loss"][0], model.evaluate(data, verbose=0)])
    (loss, val_loss), (drawn, val_drawn) = losses
    assert drawn > loss + 1e-3
    np.testing.assert_allclose(val_drawn, val_loss, rtol=1e-6)


@pytest.mark.parametrize("pieces", ["abc", ["a", ""], ["a", 3], {"a": 1}])
def test_pieces_are_checked(pieces):
    with pytest.raises(ValueError, match="`pieces` must be a list of strings, none em"):
        MaskedCrossentropy(consistency=1.0, pieces=pieces)


def test_pieces_are_as_many_as_the_tokens():
    loss = MaskedCrossentropy(consistency=1.0, pieces=PIECES[:-1])
    with pytest.raises(ValueError, match="`pieces` must be 5 strings.* of length 4"):
        loss(LABELS, HIDDEN @ KERNEL)


@pytest.mark.parametrize("consistency", [-0.1, float("inf"), "1", True])
def test_consistency_is_checked(consistency):
    with pytest.raises(ValueError, match=f"Received: consistency={consistency!r}"):
        MaskedCrossentropy(consistency=consistency)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_size_of_weights_does_not_matter_in_float16(factor):
    logits = ops.matmul(HIDDEN, KERNEL)

    def gradient(weights):
        loss = MaskedCrossentropy(consistency=ALPHA)
        return gradients(
            lambda x: loss(LABELS, ops.cast(x, "float16"), weights) * 2.0**10, logits
        )

    np.testing.assert_allclose(
        gradient(WEIGHTS * factor), gradient(WEIGHTS), rtol=2e-3, atol=1e-2
    )
