"""Batches of lines: what comes in, what comes next."""

import numpy as np
import pytest

from keras_seqattn import text

pytestmark = pytest.mark.backends("torch")

TOKENIZER = text.ByteTokenizer()


def test_every_line_is_there_once_with_the_token_that_comes_next():
    lines = ["x" * (1 + i % 20) + chr(97 + i) for i in range(20)]
    batches = text.language_batches(
        lines, TOKENIZER, batch_tokens=128, bucket_lengths=(8, 16, 32)
    )
    found = []
    for inputs, labels in batches.as_numpy_iterator():
        assert inputs.shape == labels.shape and inputs.shape in batches.shapes
        assert inputs.dtype == labels.dtype == "int32"
        for read, said in zip(inputs, labels, strict=True):
            length = (said != 0).sum()
            if length:
                assert read[0] == 1 and said[length - 1] == 2
                np.testing.assert_array_equal(read[1:length], said[: length - 1])
                assert not read[length:].any()
                found += TOKENIZER.detokenize([said])
    assert sorted(found) == sorted(lines)
    assert batches.target_tokens == sum(len(line) + 1 for line in lines)
    assert batches.skipped == 0


def test_without_shuffling_the_order_is_that_of_the_lines():
    lines = [f"{number:02}" for number in range(40)]
    options = {"batch_tokens": 64, "bucket_lengths": (8,), "shuffle": False}
    batches = text.language_batches(lines, TOKENIZER, **options)
    rows = [row for _, labels in batches.as_numpy_iterator() for row in labels]
    assert TOKENIZER.detokenize([row for row in rows if row.any()]) == lines


def test_sampling_draws_anew_by_the_seed():
    lines = [f"{number} and this" for number in range(40)]
    tokenizer = text.SentencePieceTokenizer.train(lines, 280)
    options = {"batch_tokens": 128, "bucket_lengths": (16,), "sampling": 0.4}

    def epochs(seed):
        batches = text.language_batches(lines, tokenizer, seed=seed, **options)
        return [[*batches.as_numpy_iterator()] for _ in range(2)]

    def rows(epoch):
        return {tuple(row[row != 0]) for _, labels in epoch for row in labels}

    first, again, other = map(epochs, (3, 3, 4))
    for epoch in first:
        drawn = sorted(rows(epoch) - {()})
        assert sorted(tokenizer.detokenize(drawn)) == sorted(lines)
        for inputs, labels in epoch:
            real = labels[:, 1:] != 0
            np.testing.assert_array_equal(inputs[:, 1:][real], labels[:, :-1][real])
    np.testing.assert_equal(first, again)
    assert rows(first[0]) != rows(first[1])
    assert rows(first[0]) != rows(other[0])


def test_each_line_is_tokenized_once():
    class Counting(text.ByteTokenizer):
        def tokenize(self, lines, sampling=0.0, seed=None):
            counted.extend(lines)
            return super().tokenize(lines)

    lines, counted = ["one", "two"], []
    text.language_batches(lines, Counting())
    assert counted == lines


def test_blank_lines_are_left_out(tmp_path):
    for cache in (None, tmp_path):
        lines = ["", "one", "", "two"]
        batches = text.language_batches(lines, TOKENIZER, cache=cache)
        ((_, labels),) = batches.as_numpy_iterator()
        assert (labels == TOKENIZER.end_id).sum() == 2
        assert batches.target_tokens == 8 and batches.skipped == 0
    with pytest.raises(ValueError, match="`lines` must hold a line.*of 2 blank ones"):
        text.language_batches(["", ""], TOKENIZER)


def test_a_line_is_blank_where_a_prefix_is_all_that_it_has():
    class Tagged(text.ByteTokenizer):
        prefix_ids = [7]

        def tokenize(self, lines):
            """Returns the ids with the prefix first."""
            return [[*self.prefix_ids, *row] for row in super().tokenize(lines)]

    batches = text.language_batches(["", "one", ""], Tagged())
    assert batches.target_tokens == 5  # the prefix, three bytes and the end


def test_the_rows_of_every_batch_are_a_multiple():
    options = {"batch_tokens": 80, "bucket_lengths": (16,), "rows_multiple": 2}
    batches = text.language_batches(["one"] * 9, TOKENIZER, **options)
    assert batches.shapes == {(4, 16)}


def test_what_is_too_long_is_called_a_text():
    options = {"batch_tokens": 16, "bucket_lengths": (16,)}
    with pytest.warns(UserWarning, match="1 of 2 texts are left out"):
        assert text.language_batches(["one", "x" * 16], TOKENIZER, **options).skipped
    with pytest.raises(ValueError, match="must have room for some text, at least 17"):
        text.language_batches(["x" * 16], TOKENIZER, **options)
    with pytest.raises(ValueError, match="at least 64, to hold a text of the longest"):
        text.language_batches(["one"], TOKENIZER, batch_tokens=16)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("abc", "`lines` must be a list of strings.*lines='abc'"),
        ([b"x"], r"`lines` must .*lines\[0\]=b'x'"),
        ([], r"`lines` must hold lines.*lines=\[\]"),
    ],
)
def test_what_is_no_list_of_lines_is_an_error(lines, message):
    with pytest.raises(ValueError, match=message):
        text.language_batches(lines, TOKENIZER)


def test_a_tokenizer_that_cannot_make_batches_has_the_name_of_its_argument():
    class Other:
        start_id, end_id, pad_id = 1, 2, 2
        tokenize = TOKENIZER.tokenize

    with pytest.raises(ValueError, match="`tokenizer` must.* `pad_id` other.*=2, end"):
        text.language_batches(["a"], Other())
    del Other.end_id
    with pytest.raises(ValueError, match="`tokenizer` must.*with `end_id`"):
        text.language_batches(["a"], Other())
