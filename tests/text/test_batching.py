import collections
import warnings

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_seqattn.text import (
    ByteTokenizer,
    SentencePieceTokenizer,
    epochs,
    translation_batches,
)
from keras_seqattn.text.mixing import rows_of

pytestmark = pytest.mark.backends("tensorflow")

BYTES = ByteTokenizer()


def corpus(size=50):
    """Pairs of different lines, of all lengths from 0 on."""
    rng = np.random.default_rng(0)
    sources = [f"{n}{'s' * rng.integers(11)}" for n in range(size - 1)]
    targets = [f"{n}{'t' * rng.integers(11)}" for n in range(size - 1)]
    return ["", *sources], ["", *targets]


def make(lines, **arguments):
    defaults = {"batch_tokens": 64, "bucket_lengths": (4, 8, 16)}
    return translation_batches(*lines, BYTES, **{**defaults, **arguments})


class Plain:
    """A tokenizer with no more than batches need."""

    start_id, end_id, pad_id = BYTES.start_id, BYTES.end_id, BYTES.pad_id
    vocabulary_size = BYTES.vocabulary_size

    def tokenize(self, lines):
        return BYTES.tokenize(lines)

    def detokenize(self, ids):
        return BYTES.detokenize(ids)


def arrays(dataset):
    return [
        (inputs["source_ids"].numpy(), inputs["target_ids"].numpy(), labels.numpy())
        for inputs, labels in dataset
    ]


def pairs(batches, tokenizer=BYTES):
    """The pairs of strings in the batches, rows of padding left out."""
    found = []
    for sources, _, labels in batches:
        real = labels[:, 0] != 0
        decoded = (tokenizer.detokenize(ids[real]) for ids in (sources, labels))
        found += zip(*decoded, strict=True)
    return found


def test_one_batch_by_hand():
    dataset = translation_batches(
        ["ab", ""], ["c", "de"], BYTES, batch_tokens=12, bucket_lengths=(4,)
    )
    shuffled = translation_batches(
        ["ab", ""], ["c", "de"], BYTES, batch_tokens=12, bucket_lengths=(4,), seed=1
    )
    a, b, c, d, e = (ord(letter) + 4 for letter in "abcde")
    for made in (dataset, shuffled):
        ((sources, targets, labels),) = arrays(made)
        order = [0, 1, 2] if sources[0, 0] == a else [1, 0, 2]
        expected = np.array([[a, b, 2, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
        np.testing.assert_array_equal(sources[order], expected)
        expected = np.array([[1, c, 0, 0], [1, d, e, 0], [0, 0, 0, 0]])
        np.testing.assert_array_equal(targets[order], expected)
        expected = np.array([[c, 2, 0, 0], [d, e, 2, 0], [0, 0, 0, 0]])
        np.testing.assert_array_equal(labels[order], expected)
        assert {ids.dtype for ids in (sources, targets, labels)} == {np.dtype("int32")}
        assert made.target_tokens == 5


@settings(deadline=None, max_examples=10)
@given(
    lines=st.lists(st.tuples(*[st.text("aé ", max_size=7)] * 2), min_size=1),
    batch_tokens=st.integers(16, 64),
    shuffle=st.booleans(),
)
def test_every_pair_is_there_once(lines, batch_tokens, shuffle):
    dataset = make(zip(*lines, strict=True), batch_tokens=batch_tokens, shuffle=shuffle)
    for _ in range(2):
        batches = arrays(dataset)
        assert collections.Counter(pairs(batches)) == collections.Counter(lines)
        assert len(batches) == dataset.cardinality()
        assert sum(np.sum(labels != 0) for *_, labels in batches) == (
            dataset.target_tokens
        )


def test_few_shapes_and_tight_buckets():
    dataset = make(corpus())
    assert dataset.shapes == {(16, 4), (8, 8), (4, 16)}
    batches = arrays(dataset)
    assert {ids.shape for batch in batches for ids in batch} == dataset.shapes
    for sources, _, labels in batches:
        needed = np.maximum((sources != 0).sum(1), (labels != 0).sum(1))
        below = {4: 0, 8: 4, 16: 8}[labels.shape[1]]
        assert np.all((needed > below) | (needed == 0))


def test_target_ids_are_the_labels_shifted():
    for sources, targets, labels in arrays(make(corpus())):
        real = labels != 0
        assert np.all(targets[:, 0][real[:, 0]] == 1)
        np.testing.assert_array_equal(targets != 0, real)
        shifted = np.where(real[:, 1:], labels[:, :-1], 0)
        np.testing.assert_array_equal(targets[:, 1:], shifted)
        np.testing.assert_array_equal((labels == 2).sum(1), real[:, 0])
        np.testing.assert_array_equal((sources == 2).sum(1), real[:, 0])


def test_a_tokenizer_of_ones_own_makes_the_same_batches():
    found = arrays(translation_batches(*corpus(), Plain()))
    wanted = arrays(translation_batches(*corpus(), BYTES))
    assert len(found) == len(wanted)
    for row, expected in zip(found, wanted, strict=True):
        for array, other in zip(row, expected, strict=True):
            np.testing.assert_array_equal(array, other)
    with pytest.raises(TypeError, match="sampling"):
        translation_batches(*corpus(), Plain(), sampling=0.1)


@pytest.mark.parametrize(
    ("tokenize", "message"),
    [
        (str.split, r"a list of ids for each line.* \[\['a', 'b'\]\] \(invalid"),
        (lambda line: 7, r"a list of ids for each line.* \[7\] \(object of type"),
        (
            lambda line: [1, 7, 2],
            "ids without its `end_id` and `pad_id`, .*: id 2, of 'a b'",
        ),
        (
            lambda line: [7, 0, 0],
            "ids without its `end_id` and `pad_id`, .*: id 0, of 'a b'",
        ),
    ],
    ids=["words", "no list", "ended", "padded"],
)
def test_what_a_tokenizer_of_ones_own_must_return(tokenize, message):
    class Own(Plain):
        def tokenize(self, lines):
            return [tokenize(line) for line in lines]

    with pytest.raises(ValueError, match=f"`tokenize` of Own must return {message}"):
        translation_batches(["a b"], ["a b"], Own())


def test_a_tokenizer_of_ones_own_must_return_a_list_for_each_line():
    class Own(Plain):
        def tokenize(self, lines):
            return super().tokenize([" ".join(lines)])

    with pytest.raises(ValueError, match="Received: 1 lists for 2 lines"):
        translation_batches(["a", "b"], ["a", "b"], Own())


def test_epochs_are_reproducible_and_differ():
    first, again, other = (make(corpus(), seed=seed) for seed in (7, 7, 8))
    epochs = [pairs(arrays(first)) for _ in range(3)]
    keras.utils.set_random_seed(99)
    assert [pairs(arrays(again)) for _ in range(3)] == epochs
    assert pairs(arrays(other)) != epochs[0]
    assert epochs[0] != epochs[1] != epochs[2]
    shapes = [[labels.shape for *_, labels in arrays(first)] for _ in range(3)]
    assert shapes[0] != shapes[1] or shapes[1] != shapes[2]


def test_rows_change_their_neighbours():
    dataset = make(corpus())
    epochs = [
        {frozenset(pairs([batch])) for batch in arrays(dataset)} for _ in range(2)
    ]
    assert len(epochs[0] & epochs[1]) < len(epochs[0]) / 2


def test_without_shuffling_the_order_is_that_of_the_corpus():
    lines = corpus()
    dataset = make(lines, shuffle=False)
    epochs = [pairs(arrays(dataset)) for _ in range(2)]
    assert epochs[0] == epochs[1]
    order = [list(zip(*lines, strict=True)).index(pair) for pair in epochs[0]]
    lengths = [labels.shape[1] for *_, labels in arrays(dataset)]
    assert lengths == sorted(lengths)
    assert sum(n > m for n, m in zip(order, order[1:], strict=False)) == 2


def test_line_breaks_at_the_ends_do_not_count(tmp_path):
    """Nor do they for a `Translator`: it would not read what it was trained on."""
    lines = (["a", "b\nc", ""], ["x", "y", "z"])
    wanted = pairs(arrays(make(lines, shuffle=False)))
    ended = (["a\n", "b\nc\r\n", "\n"], ["x\n", "y", "z\n"])
    assert pairs(arrays(make(ended, shuffle=False))) == wanted
    assert pairs(arrays(make(ended, shuffle=False, cache=tmp_path / "ids"))) == wanted
    ended = [{"<de>": side} for side in ended]
    assert ("<de> a", "x") in pairs(arrays(make(ended)))
    same = ["a\n", "b"]
    assert pairs(arrays(make((same, same), shuffle=False))) == [("a", "a"), ("b", "b")]


def test_one_iterator_for_both_sides_pairs_each_line_with_itself():
    lines, _ = corpus(20)
    once = iter(lines)
    expected = pairs(arrays(make((lines, lines), shuffle=False)))
    assert pairs(arrays(make((once, once), shuffle=False))) == expected


def test_two_iterators_at_once():
    dataset = make(corpus())
    one, two = iter(dataset), iter(dataset)
    found = [arrays(both) for both in zip(*zip(one, two, strict=True), strict=True)]
    expected = collections.Counter(zip(*corpus(), strict=True))
    assert [collections.Counter(pairs(batches)) for batches in found] == [expected] * 2


def test_copies_stand_side_by_side():
    dataset = make(corpus(), repeat_batch=2)
    batches = arrays(dataset)
    assert {labels.shape for *_, labels in batches} == {(16, 4), (8, 8), (4, 16)}
    for batch in batches:
        for ids in batch:
            np.testing.assert_array_equal(ids[0::2], ids[1::2])
    expected = collections.Counter(2 * list(zip(*corpus(), strict=True)))
    assert collections.Counter(pairs(batches)) == expected
    assert dataset.target_tokens == 2 * make(corpus()).target_tokens


def test_three_copies_divide_every_batch():
    for batch in arrays(make(corpus(), repeat_batch=3)):
        for ids in batch:
            assert len(ids) % 3 == 0
            np.testing.assert_array_equal(ids[0::3], ids[1::3])
            np.testing.assert_array_equal(ids[0::3], ids[2::3])


@pytest.mark.parametrize("copies", [2, 3])
def test_cutoff_replaces_tokens_of_all_copies_but_the_first(copies):
    plain = make(corpus(400), repeat_batch=copies, batch_tokens=96)
    dataset = make(corpus(400), repeat_batch=copies, batch_tokens=96, cutoff=0.2)
    assert dataset.shapes == plain.shapes
    for epoch in range(2):
        cut = total = 0
        for before, after in zip(arrays(plain), arrays(dataset), strict=True):
            np.testing.assert_array_equal(after[2], before[2])  # the labels
            for ids, others in zip(before[:2], after[:2], strict=True):
                changed = ids != others
                assert not changed[::copies].any()
                assert np.all(others[changed] == BYTES.unknown_id)
                assert np.all(ids[changed] >= 4)  # no padding, start or end
                cut += changed.sum()
                total += np.sum(ids >= 4) * (copies - 1) // copies
        assert abs(cut / total - 0.2) < 0.03, epoch


def test_cutoff_is_the_same_for_the_same_seed():
    lines = corpus()
    first, again, other = (
        make(lines, repeat_batch=2, cutoff=0.3, shuffle=False, seed=seed)
        for seed in (7, 7, 8)
    )

    def epoch(dataset):
        """The sources of all batches, and the targets."""
        sides = list(zip(*arrays(dataset), strict=True))[:2]
        return [np.concatenate([x.ravel() for x in side]) for side in sides]

    epochs = [epoch(first) for _ in range(3)]
    for expected in epochs:
        for found, ids in zip(epoch(again), expected, strict=True):
            np.testing.assert_array_equal(found, ids)
    for different in (epochs[1], epoch(other)):
        for found, ids in zip(different, epochs[0], strict=True):
            assert not np.array_equal(found, ids)


def test_each_token_is_cut_by_itself():
    """Not as that at its place on the other side, or in another batch."""
    lines, options = ["x" * 15] * 8, {"batch_tokens": 64, "bucket_lengths": (16,)}
    batches = arrays(make((lines, lines), repeat_batch=2, cutoff=0.5, **options))
    cuts = [ids[1::2, 1:15] == 3 for batch in batches for ids in batch[:2]]
    assert len({cut.tobytes() for cut in cuts}) == len(cuts) == 8


def test_cutoff_asks_the_tokenizer_for_an_id():
    class Other:
        start_id, end_id, pad_id = 1, 2, 0
        tokenize = BYTES.tokenize

    with pytest.raises(ValueError, match="`source_tokenizer` must.*`unknown_id`"):
        translation_batches(["a"], ["b"], Other(), repeat_batch=2, cutoff=0.1)


def test_padding_that_would_hide_the_end_is_refused():
    class Other:
        start_id, end_id, pad_id = 1, 2, 2
        tokenize = BYTES.tokenize

    for name, tokenizers in (
        ("source_tokenizer", (Other(), BYTES)),
        ("target_tokenizer", (BYTES, Other())),
    ):
        message = f"`{name}` must have a `pad_id` other.*pad_id=2, end_id=2"
        with pytest.raises(ValueError, match=message):
            translation_batches(["a"], ["b"], *tokenizers)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("repeat_batch", [1, 2])
@pytest.mark.parametrize("rows_multiple", [2, 3])
def test_every_replica_gets_as_many_rows(rows_multiple, repeat_batch, shuffle):
    lines = corpus(53)
    dataset = make(
        lines,
        batch_tokens=150,
        rows_multiple=rows_multiple,
        repeat_batch=repeat_batch,
        shuffle=shuffle,
    )
    group = rows_multiple * repeat_batch
    assert dataset.shapes == {(150 // n // group * group, n) for n in (4, 8, 16)}
    expected = collections.Counter(repeat_batch * list(zip(*lines, strict=True)))
    for _ in range(2):
        batches = arrays(dataset)
        assert collections.Counter(pairs(batches)) == expected
        assert len(batches) == dataset.cardinality()
        for batch in batches:
            assert batch[0].shape in dataset.shapes
            for ids in batch:  # A replica sees all copies of a pair.
                for part in np.split(ids, rows_multiple):
                    np.testing.assert_array_equal(
                        part[0::repeat_batch], part[repeat_batch - 1 :: repeat_batch]
                    )
            real = np.array(
                [np.sum(x[:, 0] != 0) for x in np.split(batch[2], rows_multiple)]
            )
            assert real.max() - real.min() <= repeat_batch


def test_what_is_too_long_is_counted_and_said():
    lines = (["a", "b" * 16, "c", "d" * 15], ["a", "b", "c" * 99, "d" * 15])
    with pytest.warns(UserWarning, match="2 of 4 pairs are left out.* 16 tokens"):
        dataset = make(lines)
    assert dataset.skipped == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(pairs(arrays(dataset))) == [("a", "a"), ("d" * 15, "d" * 15)]
        assert make(corpus()).skipped == 0


def test_two_tokenizers():
    lines = corpus()
    targets = SentencePieceTokenizer.train(lines[1], 280)
    dataset = translation_batches(*lines, BYTES, targets)
    ((sources, _, labels),) = arrays(dataset)
    assert sorted(BYTES.detokenize(sources[:50])) == sorted(lines[0])
    assert sorted(targets.detokenize(labels[:50])) == sorted(lines[1])


def sampled(**arguments):
    lines = [[f"{n} and {word}" for n in range(60)] for word in ("this", "dies das")]
    tokenizer = SentencePieceTokenizer.train([*lines[0], *lines[1]], 280)
    defaults = {"batch_tokens": 64, "bucket_lengths": (8, 12, 20), "sampling": 0.4}
    dataset = translation_batches(*lines, tokenizer, **{**defaults, **arguments})
    return lines, tokenizer, dataset


def test_sampling_draws_anew_and_loses_nothing():
    lines, tokenizer, dataset = sampled()
    epochs = [arrays(dataset) for _ in range(4)]
    for batches in epochs:
        assert len(batches) == dataset.cardinality()
        assert {labels.shape for *_, labels in batches} <= dataset.shapes
        assert sorted(pairs(batches, tokenizer)) == sorted(zip(*lines, strict=True))
    rows = [
        {tuple(row) for *_, labels in batches for row in labels} for batches in epochs
    ]
    assert rows[0] != rows[1]
    drawn = sum(np.sum(labels != 0) for *_, labels in epochs[0])
    assert drawn > dataset.target_tokens


def test_sampling_is_the_same_for_the_same_seed():
    (*_, first), (*_, again), (*_, other) = (sampled(seed=n) for n in (3, 3, 4))
    epochs = [arrays(first) for _ in range(3)]
    assert first.cardinality() == again.cardinality()
    for batches in epochs:
        np.testing.assert_equal(batches, arrays(again))
    rows = [
        {tuple(row) for *_, x in y for row in x} for y in (epochs[0], arrays(other))
    ]
    assert rows[0] != rows[1]


def test_a_draw_too_long_falls_back_to_the_plain_segmentation():
    lines, tokenizer, _ = sampled()
    longest = 1 + max(len(row) for row in tokenizer.tokenize([*lines[0], *lines[1]]))
    *_, dataset = sampled(bucket_lengths=(longest,), sampling=0.9)
    assert dataset.skipped == 0
    assert sorted(pairs(arrays(dataset), tokenizer)) == sorted(zip(*lines, strict=True))


def test_a_draw_as_long_as_the_longest_bucket_is_kept():
    lines, tokenizer, _ = sampled()
    plain = [[*row, 2] for row in tokenizer.tokenize([*lines[0], *lines[1]])]
    longest = max(map(len, plain))
    *_, dataset = sampled(bucket_lengths=(longest,), sampling=0.9)
    rows = [row for x, _, y in arrays(dataset) for row in (*x.tolist(), *y.tolist())]
    full = [row for row in rows if row[-1] != 0]
    assert any(row not in plain for row in full)


def test_draws_that_need_too_many_batches_are_drawn_again_and_then_plain():
    class Doubling(Plain):
        """Draws each token, and then each token twice."""

        is_long, seeds = False, []

        def tokenize(self, lines, sampling=0.0, seed=None):
            rows = super().tokenize(lines)
            if not (sampling and self.is_long):
                return rows
            self.seeds.append(seed)
            return [[token for token in row for _ in range(2)] for row in rows]

    lines, tokenizer = [f"{n:03}" for n in range(32)], Doubling()
    options = {"batch_tokens": 64, "bucket_lengths": (4, 8), "sampling": 0.1}
    dataset = translation_batches(lines, lines, tokenizer, **options)
    tokenizer.is_long = True  # Four batches of length 8, where there may be three.
    assert sorted(pairs(arrays(dataset))) == [(line, line) for line in lines]
    assert len(set(tokenizer.seeds)) == len(tokenizer.seeds) == 2 * epochs.ATTEMPTS


def test_it_trains_a_model_whose_progress_is_known():
    dataset = make(corpus())
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    embed = keras.layers.Embedding(260, 4)
    memory = keras.layers.GlobalAveragePooling1D(keepdims=True)(embed(source_ids))
    logits = keras.layers.Dense(260)(embed(target_ids) + memory)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    model = keras.Model(inputs, logits)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*ran out of data")
        history = model.fit(
            dataset, validation_data=dataset, epochs=2, shuffle=False, verbose=0
        )
    assert history.params["steps"] == int(dataset.cardinality())
    assert history.history["loss"][1] < history.history["loss"][0]


def test_rows_of_padding_have_no_labels():
    lines = (["a"], ["b"])
    batches = [arrays(make(lines, batch_tokens=tokens))[0] for tokens in (16, 64)]
    counts = [np.sum(labels != 0) for *_, labels in batches]
    assert [len(labels) for *_, labels in batches] == [4, 16]
    assert counts == [2, 2]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((["a"], ["b", "c"]), r"as many lines as `sources`, 1.* targets with 2"),
        (([], []), r"`sources` must hold lines.* sources=\[\]"),
        (("ab", ["a", "b"]), r"`sources` must be a list of strings.* sources='ab'"),
        ((["a"], [b"b"]), r"`targets` must hold strings only.* targets\[0\]=b'b'"),
        ((["a" * 99], ["b"]), r"`bucket_lengths`.* at least 100 .*\(4, 8, 16\)"),
    ],
)
def test_bad_corpus(lines, message):
    with pytest.raises(ValueError, match=message):
        make(lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bucket_lengths": ()}, r"must be increasing.* bucket_lengths=\(\)"),
        ({"bucket_lengths": (8, 8)}, r"must be increasing.*=\(8, 8\)"),
        ({"bucket_lengths": (0, 8)}, r"must be increasing.*=\(0, 8\)"),
        ({"bucket_lengths": (8, 4)}, r"must be increasing.*=\(8, 4\)"),
        ({"bucket_lengths": (8, 9.5)}, r"must be increasing.*=\(8, 9.5\)"),
        ({"batch_tokens": 15}, r"must be at least 16, .*batch_tokens=15"),
        ({"batch_tokens": 31, "repeat_batch": 2}, r"at least 32, .*batch_tokens=31"),
        ({"repeat_batch": 0}, r"must be a positive integer.*repeat_batch=0"),
        ({"rows_multiple": 0}, r"must be a positive integer.*rows_multiple=0"),
        ({"rows_multiple": 1.5}, r"must be a positive integer.*rows_multiple=1.5"),
        (
            {"batch_tokens": 95, "rows_multiple": 3, "repeat_batch": 2},
            r"at least 96, to hold 6 rows of the longest bucket.*batch_tokens=95",
        ),
        ({"cutoff": 0.1}, r"`cutoff` must be 0 without a second copy.*cutoff=0.1"),
        ({"cutoff": 1.0, "repeat_batch": 2}, r"`cutoff` must be in \[0, 1\).*=1.0"),
        ({"sampling": -1.0}, r"`sampling` must be a number in .*sampling=-1.0"),
        ({"sampling": 0.1}, r"`sampling` must be 0 for bytes.*sampling=0.1"),
    ],
)
def test_bad_numbers(arguments, message):
    with pytest.raises(ValueError, match=message):
        make((["a"], ["b"]), **arguments)


def test_it_is_a_plain_dataset():
    dataset = make(corpus())
    assert isinstance(dataset, tf.data.Dataset)
    inputs, labels = dataset.element_spec
    assert set(inputs) == {"source_ids", "target_ids"}
    assert labels.dtype == tf.int32


@pytest.mark.parametrize("views", [("plain", "sampled"), ("sampled", "sampled")])
def test_views_segment_each_copy_by_itself(views):
    lines, tokenizer, dataset = sampled(repeat_batch=2, views=views)
    plain = {
        text: ids
        for side in lines
        for text, ids in zip(side, tokenizer.tokenize(side), strict=True)
    }
    epochs = [arrays(dataset) for _ in range(2)]
    differ = 0
    for batches in epochs:
        assert len(batches) == dataset.cardinality()
        expected = 2 * list(zip(*lines, strict=True))
        assert sorted(pairs(batches, tokenizer)) == sorted(expected)
        for sources, targets, labels in batches:
            shifted = np.where(labels[:, 1:] != 0, labels[:, :-1], 0)
            np.testing.assert_array_equal(targets[:, 1:], shifted)
            for ids in (sources, labels):
                texts = tokenizer.detokenize(ids)
                assert texts[0::2] == texts[1::2]
                differ += np.sum((ids[0::2] != ids[1::2]).any(axis=1))
                if views[0] == "plain":
                    first = [[i for i in row if i > 2] for row in ids[0::2].tolist()]
                    assert first == [plain.get(text, []) for text in texts[0::2]]
    assert differ > 50
    again = arrays(sampled(repeat_batch=2, views=views)[2])
    np.testing.assert_equal(epochs[0], again)


def test_a_pair_goes_to_the_bucket_that_holds_all_its_views():
    views = {"repeat_batch": 2, "views": ("plain", "sampled")}
    lines, tokenizer, dataset = sampled(bucket_lengths=(14, 15, 16, 20), **views)
    batches = arrays(dataset)
    for sources, _, labels in batches:
        needed = np.maximum((sources != 0).sum(1), (labels != 0).sum(1))
        needed = np.maximum(needed[0::2], needed[1::2])
        below = {14: 0, 15: 14, 16: 15, 20: 16}[labels.shape[1]]
        for ids in (sources, labels):  # Each row has its end.
            np.testing.assert_array_equal((ids == 2).sum(1), ids[:, 0] != 0)
        assert np.all((needed > below) | (needed == 0))
    expected = 2 * list(zip(*lines, strict=True))
    assert sorted(pairs(batches, tokenizer)) == sorted(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"views": ("plain", "sampled")}, r"`views` must be .* each copy, 1 in all"),
        ({"views": ("plain", "drawn"), "repeat_batch": 2}, r"`views`.*'drawn'"),
        ({"views": "plain"}, r"`views` must be .*views='plain'"),
        ({"views": ("plain", "plain"), "repeat_batch": 2}, "'sampled' where there is"),
        (
            {"views": ("sampled",), "sampling": 0.0},
            r"without it all 'plain', or None. Received: views=\('sampled',\)",
        ),
    ],
    ids=str,
)
def test_bad_views(arguments, message):
    with pytest.raises(ValueError, match=message):
        sampled(**arguments)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_bidirectional_start_has_both_directions_in_two_epochs(shuffle):
    lines = corpus(51)
    forward = list(zip(*lines, strict=True))
    backward = [(target, source) for source, target in forward]
    plain = make(lines, shuffle=shuffle)
    dataset = make(lines, shuffle=shuffle, bidirectional_epochs=4)
    assert dataset.cardinality() == plain.cardinality()
    turned = []
    for _ in range(2):
        two = [[arrays(dataset) for _ in range(2)], [arrays(plain) for _ in range(2)]]
        found, others = ([pairs(x) for x in epochs] for epochs in two)
        both = collections.Counter(found[0] + found[1])
        assert both == collections.Counter(forward + backward)
        for epoch, other, batches, before in zip(found, others, *two, strict=True):
            turned.append({pair for pair in epoch if pair in backward})
            assert abs(len(turned[-1]) - len(forward) / 2) <= 1
            # The pairs have the batches that they have anyway.
            same = [pair[::-1] if pair in backward else pair for pair in epoch]
            assert [p for p in same if p[0]] == [p for p in other if p[0]]
            assert [x.shape for *_, x in batches] == [x.shape for *_, x in before]
    assert turned[0] != turned[2]
    assert pairs(arrays(dataset)) == pairs(arrays(plain)), "then one direction"
    again = make(lines, shuffle=shuffle, bidirectional_epochs=4)
    assert {pair for pair in pairs(arrays(again)) if pair in backward} == turned[0]


@pytest.mark.parametrize("tensorflow", [True, False])
def test_fit_begins_with_the_first_epoch(tensorflow, monkeypatch):
    """What it looks at before that, to build the loss, is no pass."""
    if not tensorflow:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lines = [["a" * n for n in range(1, 17)], ["b" * n for n in range(1, 17)]]
    sizes = {"batch_tokens": 32, "bucket_lengths": (32,)}
    batches = translation_batches(*lines, BYTES, bidirectional_epochs=2, **sizes)
    seen, (a,) = [], BYTES.tokenize(["a"])[0]

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.table = keras.layers.Embedding(300, 300)

        def call(self, inputs):
            if isinstance(inputs["source_ids"], keras.KerasTensor):
                return self.table(inputs["target_ids"])
            ids = keras.ops.convert_to_numpy(inputs["source_ids"])
            seen.extend(ids[:, 0][ids[:, 0] > 0].tolist())
            return self.table(inputs["target_ids"])

    model = Counting()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
    model.build({"source_ids": (None, None), "target_ids": (None, None)})
    model.fit(batches, epochs=3, shuffle=False, verbose=0)
    epochs = np.reshape(seen, (3, 16))
    assert (epochs == a).sum(axis=1).tolist() == [8, 8, 16]


def test_a_bidirectional_start_goes_with_copies():
    dataset = make(corpus(), repeat_batch=2, cutoff=0.3, bidirectional_epochs=1)
    lines, cut = [], 0
    for sources, targets, labels in arrays(dataset):
        np.testing.assert_array_equal(labels[0::2], labels[1::2])
        shifted = np.where(labels[:, 1:] != 0, labels[:, :-1], 0)
        np.testing.assert_array_equal(targets[0::2, 1:], shifted[0::2])
        assert np.all((sources[1::2] == sources[0::2]) | (sources[1::2] == 3))
        lines += BYTES.detokenize(sources[0::2])
        cut += np.sum(sources[1::2] != sources[0::2])
    # Half of the 50 pairs are turned; only lines of the targets hold a "t".
    assert 0 < sum("t" in line for line in lines) <= 25 and cut > 0


def test_a_bidirectional_start_takes_one_tokenizer():
    lines = corpus()
    with pytest.raises(ValueError, match="`bidirectional_epochs` must be 0 with two"):
        translation_batches(*lines, BYTES, ByteTokenizer(), bidirectional_epochs=1)
    translation_batches(*lines, BYTES, BYTES, bidirectional_epochs=1)


def test_a_resumed_epoch_is_the_same_with_all_options():
    """As `Resume` does it: passes that are behind are passed over."""
    options = {"repeat_batch": 2, "views": ("plain", "sampled"), "cutoff": 0.2}
    (*_, first), (*_, again) = (
        sampled(bidirectional_epochs=2, **options) for _ in range(2)
    )
    epochs = [arrays(first) for _ in range(3)]
    next(iter(again))  # a look at a batch is no pass
    again.pass_over(2)
    np.testing.assert_equal(epochs[2], arrays(again))


def test_several_corpora_have_their_tags_and_shares():
    sources = {"<de>": [f"{n}" for n in range(8)], "<fr>": ["a", "b"]}
    targets = {"<de>": [f"d{n}" for n in range(8)], "<fr>": ["x", "y"]}
    expected = [(f"<de> {n}", f"d{n}") for n in range(8)]
    french = [("<fr> a", "x"), ("<fr> b", "y")]
    options = {"batch_tokens": 64, "bucket_lengths": (8,)}
    # 2 (8 / 2)^(1 - 1 / temperature): 2, 4 and 8 pairs.
    for temperature, copies in ((1.0, 1), (2.0, 2), (1e9, 4)):
        dataset = translation_batches(
            sources, targets, BYTES, temperature=temperature, **options
        )
        found = collections.Counter(pairs(arrays(dataset)))
        assert found == collections.Counter(expected + copies * french)


def test_pairs_that_are_too_long_have_no_share():
    sources = {"<de>": [*"01234567"], "<fr>": ["a", "b", "c" * 9]}
    targets = {"<de>": [*"01234567"], "<fr>": ["x", "y", "z"]}
    options = {"batch_tokens": 64, "bucket_lengths": (8,), "temperature": 1e9}
    with pytest.warns(UserWarning, match="1 of 11 pairs are left out"):
        dataset = translation_batches(sources, targets, BYTES, **options)
    found = collections.Counter(pairs(arrays(dataset)))
    assert found["<fr> a", "x"] == found["<fr> b", "y"] == 4
    assert found.total() == 16 and dataset.skipped == 1
    sources["<fr>"] = ["c" * 9] * 3
    message = "some pair of '<fr>', at least 15 tokens. Received: bucket_lengths="
    with (
        pytest.warns(UserWarning, match="3 of 11"),
        pytest.raises(ValueError, match=message),
    ):
        translation_batches(sources, targets, BYTES, **options)
    with pytest.warns(UserWarning, match="3 of 11"):  # It has no share to keep.
        dataset = translation_batches(
            sources, targets, BYTES, **(options | {"temperature": 1.0})
        )
    assert len(pairs(arrays(dataset))) == 8


def test_subwords_are_drawn_of_the_lines_that_are_left_and_repeated():
    lines = [f"{n} and this" for n in range(12)]
    tokenizer = SentencePieceTokenizer.train([*lines, "<a> <b>"], 290)
    sides = {"<a>": ["x" * 99, *lines[:9]], "<b>": lines[9:]}
    options = {"batch_tokens": 128, "bucket_lengths": (32,), "temperature": 1e9}
    with pytest.warns(UserWarning, match="1 of 13 pairs are left out"):
        dataset = translation_batches(sides, sides, tokenizer, sampling=0.2, **options)
    expected = [(f"<a> {line}", line) for line in lines[:9]]
    expected += 3 * [(f"<b> {line}", line) for line in lines[9:]]
    assert sorted(pairs(arrays(dataset), tokenizer)) == sorted(expected)


def test_what_is_left_of_a_share_is_drawn_by_the_seed():
    draws = [rows_of([100, 30], 1.25, seed)[100:].tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert {len(set(draw)) for draw in draws} == {30}
    assert {len(draw) for draw in draws} == {round(30 * (100 / 30) ** 0.2)}


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ({"<de>": ["a"]}, ["x"], "a dict with the tags of `sources`"),
        ({"<de>": ["a"]}, {"<fr>": ["x"]}, r"Received: targets=\['<fr>'\]"),
        (
            {"<de>": ["a"]},
            {"<de>": []},
            r"as many lines as `sources\['<de>'\]`, 1. .* with 0",
        ),
        ({3: ["a"]}, {3: ["x"]}, r"tags, which are strings.* Received: sources=\[3\]"),
        ({"<de>": [4]}, {"<de>": ["x"]}, r"`sources\['<de>'\]` must .* Received: .*4"),
        ({}, {}, r"`sources` must hold lines. Received: sources=\{\}"),
    ],
)
def test_several_corpora_that_do_not_fit_are_refused(sources, targets, message):
    with pytest.raises(ValueError, match=message):
        translation_batches(sources, targets, BYTES)


def test_several_corpora_are_not_turned_round():
    lines = {"<de>": ["a"]}
    with pytest.raises(ValueError, match="must be 0 with several corpora"):
        translation_batches(lines, lines, BYTES, bidirectional_epochs=1)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "options",
    [
        {"bucket_lengths": pandas.Series([8, 16])},
        {"bucket_lengths": np.array([8, 16], "uint8")},
        {"repeat_batch": 2, "views": np.array(["plain", "plain"])},
        {"seed": np.int64(0), "batch_tokens": np.int16(4096)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_may_be_arrays_and_columns(options):
    def batches(**options):
        made = translation_batches(["one"], ["eins"], ByteTokenizer(), **options)
        return [x.numpy().tolist() for batch in made for x in tf.nest.flatten(batch)]

    plain = {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in options.items()
    }
    assert batches(**options) == batches(**plain)
