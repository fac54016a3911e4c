import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn.layers import masks
from tests import oracle
from tests.evaluate import examples

lengths = st.integers(1, 6)


def band(target_length, source_length, **options):
    """The mask of the oracle's rule, (T, S)."""
    return np.array(
        [
            [oracle.may_attend(i, j, **options) for j in range(source_length)]
            for i in range(target_length)
        ]
    )


@pytest.mark.parametrize("pad_id", [0, 3])
def test_padding_mask_is_true_on_real_tokens(pad_id):
    token_ids = np.array([[5, 3, 0], [0, 3, 3]], "int32")
    mask = ops.convert_to_numpy(masks.padding_mask(token_ids, pad_id))
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, token_ids != pad_id)


@examples(10)
@given(target=lengths, source=st.none() | lengths, offset=st.integers(0, 4))
def test_causal_mask_is_the_rule(target, source, offset):
    mask = masks.causal_mask(target, source, offset)
    expected = band(target, source or target, causal=True, offset=offset)
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), expected)


@examples(10)
@given(target=lengths, source=lengths, window=lengths, offset=st.integers(0, 4))
def test_window_mask_is_the_rule(target, source, window, offset):
    mask = masks.window_mask(target, source, window, offset)
    expected = band(target, source, window=window, offset=offset)
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), expected)


def test_offset_may_be_a_tensor():
    offset = ops.convert_to_tensor(2, "int32")
    np.testing.assert_array_equal(
        ops.convert_to_numpy(masks.causal_mask(1, 4, offset)),
        [[True, True, True, False]],
    )
    np.testing.assert_array_equal(
        ops.convert_to_numpy(masks.window_mask(1, 4, 2, offset)),
        [[False, True, True, True]],
    )


def test_combine_masks_is_and_and_broadcasts():
    padding = np.array([[[True, True, False]], [[True, False, False]]])
    combined = masks.combine_masks(None, padding, masks.causal_mask(3), None)
    expected = padding & np.tril(np.ones((3, 3), bool))
    np.testing.assert_array_equal(ops.convert_to_numpy(combined), expected)


def test_combining_nothing_is_none():
    assert masks.combine_masks() is None
    assert masks.combine_masks(None, None) is None


@pytest.mark.parametrize("window", [0, -1, 1.5, "2"])
def test_window_must_be_positive(window):
    with pytest.raises(ValueError, match=f"`window` must be.*window={window!r}"):
        masks.window_mask(3, 3, window)
