"""Batches of lines: what comes in, what comes next."""

import numpy as np
import pytest

from keras_seqattn import text

TOKENIZER = text.ByteTokenizer()


@pytest.mark.backends("torch")
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


@pytest.mark.backends("torch")
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


@pytest.mark.backends("torch")
def test_a_tokenizer_that_cannot_make_batches_has_the_name_of_its_argument():
    class Other:
        start_id, end_id, pad_id = 1, 2, 2
        tokenize = TOKENIZER.tokenize

    with pytest.raises(ValueError, match="`tokenizer` must.* `pad_id` other.*=2, end"):
        text.language_batches(["a"], Other())
    del Other.end_id
    with pytest.raises(ValueError, match="`tokenizer` must.*with `end_id`"):
        text.language_batches(["a"], Other())
