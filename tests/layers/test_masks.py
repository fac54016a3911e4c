import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from keras_seqattn.backend.compile import CompiledFunction
from keras_seqattn.layers.attention import masks
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


def test_masks_whose_shapes_do_not_broadcast_are_named():
    padding = np.ones((2, 3), bool)  # lacks the axis of the queries
    message = r"`mask\[:, None\]`. Received: masks of shapes \[\(2, 3\), \(3, 3\)\]"
    with pytest.raises(ValueError, match=message):
        masks.combine_masks(padding, masks.causal_mask(3))


def test_a_different_failure_is_not_taken_for_one_of_shapes(monkeypatch):
    def fail(*given):
        raise MemoryError

    monkeypatch.setattr(ops, "logical_and", fail)
    with pytest.raises(MemoryError):
        masks.combine_masks(np.ones((1, 3), bool), np.ones((3, 3), bool))


ADDITIVE = np.array([[0.0, -1e9, 0.0], [0.0, 0.0, -1e9]], "float32")
X = np.ones((2, 3, 8), "float32")


def attention_call(layer, argument):
    pairs = argument == "attention_mask"
    return lambda mask: layer(X, X, **{argument: mask[:, None] if pairs else mask})


def takers():
    """Returns every call that takes a mask, by the name its error gives it."""
    block = {"num_heads": 2, "intermediate_dim": 12}
    multi_head = layers.MultiHeadAttention(2, 4)
    multi_head.build(X.shape, X.shape)
    calls = {}
    for layer in (
        multi_head,
        layers.ScaledDotProductAttention(),
        layers.AdditiveAttention(6),
    ):
        for argument in ("query_mask", "value_mask", "key_mask", "attention_mask"):
            calls[f"{argument}, {layer.name}"] = attention_call(layer, argument)
    encoder, decoder = layers.EncoderBlock(**block), layers.DecoderBlock(**block)
    decoder_only = layers.DecoderBlock(**block)
    recurrent, three = layers.AttentiveRecurrentDecoder(4), (X, X, X[:, 0])
    memory, cache = multi_head.project_memory(X), multi_head.initial_cache(2, 1, 3)
    return calls | {
        "mask, encoder": lambda mask: encoder(X, mask=mask),
        "attention_mask, encoder": lambda mask: encoder(
            X, attention_mask=mask[:, None]
        ),
        "target_mask, decoder": lambda mask: decoder(X, X, target_mask=mask),
        "source_mask, decoder": lambda mask: decoder(X, X, source_mask=mask),
        "x_mask, encoder": lambda mask: encoder(X, x_mask=mask),
        "mask, decoder-only": lambda mask: decoder_only(X, mask=mask),
        "past_mask, decoder-only": lambda mask: decoder_only(X, past=X, past_mask=mask),
        "mask, recurrent": lambda mask: layers.RecurrentEncoder(4)(X, mask=mask),
        "target_mask, recurrent": lambda mask: recurrent(*three, target_mask=mask),
        "source_mask, recurrent": lambda mask: recurrent(*three, source_mask=mask),
        "mask, segments": lambda mask: layers.SegmentMemory(3, 2)(X, mask=mask),
        "mask, step": lambda mask: multi_head.step(X[:, :1], cache, 0, mask),
        "mask, memory": lambda mask: multi_head.step_memory(X[:, :1], memory, mask),
        "masks, combined": lambda mask: masks.combine_masks(mask, None),
    }


@pytest.mark.backends("torch")
def test_a_mask_that_is_added_to_scores_is_refused():
    for name, call in takers().items():
        argument = name.partition(",")[0]
        message = (
            rf"`{argument}` must be bool.*Pass `{argument} == 0`.*`bias`.*"
            rf"Received: {argument} of dtype 'float32' with the value -1"
        )
        with pytest.raises(ValueError, match=message):
            call(ADDITIVE)
        for dtype in ("float32", "int32", "bool"):
            call((ADDITIVE == 0).astype(dtype))


@pytest.mark.backends("torch")
def test_functions_refuse_a_mask_that_is_added_to_scores():
    heads = np.ones((2, 3, 2, 4), "float32")
    mask = ADDITIVE[:, None]
    message = "`mask` must be bool.*Pass `mask == 0`.*`bias`.*float32"
    for function in (
        lambda: layers.dot_product_attention(heads, heads, heads, mask=mask),
        lambda: layers.attention_scores(heads, heads, mask=mask),
        lambda: layers.additive_scores(heads, heads, heads[0, 0], mask=mask),
    ):
        with pytest.raises(ValueError, match=message):
            function()


def test_floats_that_are_all_zero_hide_everything_as_in_keras():
    assert not ops.any(masks.combine_masks(np.zeros((2, 3), "float32")))


@pytest.mark.backends("tensorflow", "jax")
def test_floats_that_cannot_be_seen_are_no_mask():
    def combine(mask):
        return masks.combine_masks(mask, masks.causal_mask(3))

    ones = np.ones((3, 3))
    message = r"`masks` must be bool.*cannot be seen.*cast\(masks, 'bool'\).*`bias`"
    with pytest.raises(ValueError, match=f"{message}.*'float32'"):
        CompiledFunction(combine)(ones.astype("float32"))
    expected = np.tril(ones).astype(bool)
    for dtype in ("int32", "bool"):
        given = CompiledFunction(combine)(ones.astype(dtype))
        np.testing.assert_array_equal(given, expected)
    # What does not depend on the program's inputs can be seen.
    seen = CompiledFunction(lambda x: x & masks.combine_masks(ones))(expected)
    np.testing.assert_array_equal(seen, expected)


def test_combining_nothing_is_none():
    assert masks.combine_masks() is None
    assert masks.combine_masks(None, None) is None


@pytest.mark.parametrize("window", [0, -1, 1.5, "2"])
def test_window_must_be_positive(window):
    with pytest.raises(ValueError, match=f"`window` must be.*window={window!r}"):
        masks.window_mask(3, 3, window)
