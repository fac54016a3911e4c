"""The decoder's block before a past, and its cache filled in one pass."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests.differentiate import value_and_gradient
from tests.evaluate import evaluated
from tests.layers.test_blocks import (
    SOURCE_MASK,
    B,
    D,
    F,
    S,
    T,
    built,
    draw,
    numpy,
)
from tests.pairs import each_variant, named

M = 3
PAST_MASK = np.array([[0, 1, 1], [0, 0, 1]], bool)
SCHEMES = {
    "none": {},
    "rotary": {"attention": {"positions": "rotary"}},
    "alibi": {"attention": {"positions": "alibi", "sliding_window": 4}},
    "relative": {"attention": {"positions": "relative", "num_key_value_heads": 1}},
    "post-norm": {"normalize_first": False},
}


@each_variant("options", SCHEMES, on_jax=[])
def test_past_and_target_equal_the_end_of_one_pass(rng, options):
    past, target = draw(rng, M, T)
    block = built(rng, layers.DecoderBlock, target.shape, **options)
    expected = numpy(block(np.concatenate([past, target], axis=1)))[:, M:]
    output, scores = block(target, past=past, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), expected, atol=1e-5)
    assert scores.shape == (B, 2, T, M + T)
    np.testing.assert_allclose(numpy(block(target, past=past)), expected, atol=1e-5)


@pytest.mark.parametrize("with_target_mask", [False, True])
def test_a_masked_past_changes_nothing(rng, with_target_mask):
    past, target = draw(rng, M, T)
    masks = {"past_mask": PAST_MASK}
    if with_target_mask:
        masks["target_mask"] = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
    block = built(rng, layers.DecoderBlock, target.shape)
    before = numpy(block(target, past=past, **masks))
    past[~PAST_MASK] = 9.0
    np.testing.assert_allclose(
        numpy(block(target, past=past, **masks)), before, atol=1e-5
    )
    empty = {**masks, "past_mask": np.zeros_like(PAST_MASK)}
    plain = {name: mask for name, mask in masks.items() if name != "past_mask"}
    np.testing.assert_allclose(
        numpy(block(target, past=past, **empty)),
        numpy(block(target, **plain)),
        atol=1e-5,
    )


@pytest.mark.parametrize("name", ["past_mask", "target_mask"])
def test_a_mask_before_a_past_may_have_one_row_for_all(rng, name):
    past, target = draw(rng, M, T)
    masks = {
        "past_mask": np.array([[0, 1, 1]] * B, bool),
        "target_mask": np.array([[1, 1, 1, 0]] * B, bool),
    }
    block = built(rng, layers.DecoderBlock, target.shape)
    expected = numpy(block(target, past=past, **masks))
    output = block(target, past=past, **{**masks, name: masks[name][:1]})
    np.testing.assert_allclose(numpy(output), expected, atol=1e-6)


def test_past_takes_its_implicit_mask(rng):
    ids = np.array([[0, 1, 2], [0, 0, 3]])
    past = keras.layers.Embedding(9, D, mask_zero=True)(ids)
    (target,) = draw(rng, T)
    block = built(rng, layers.DecoderBlock, target.shape)
    explicit = block(target, past=ops.convert_to_numpy(past), past_mask=PAST_MASK)
    implicit = block(target, past=past)
    np.testing.assert_allclose(numpy(implicit), numpy(explicit), atol=1e-6)


def test_past_stands_in_a_functional_model(rng):
    past, target = draw(rng, M, T)
    inputs = keras.Input((None, D)), keras.Input((None, D))
    block = layers.DecoderBlock(2, F)
    outputs = block(inputs[0], past=inputs[1], return_attention_scores=True)
    assert outputs[1].shape == (None, 2, None, None)
    given = keras.Model(inputs, outputs)([target, past])[0]
    np.testing.assert_allclose(numpy(given), numpy(block(target, past=past)), atol=1e-5)


@each_variant("dropout", named(0.0, 0.5), on_jax=["0.5"])
@each_variant("position", named(0, 2), on_jax=["2"])
def test_no_gradient_comes_from_a_later_position(rng, dropout, position):
    """And some from the past, and from each position up to its own."""
    past, target = draw(rng, M, T)
    block = built(rng, layers.DecoderBlock, target.shape, dropout=dropout)
    seen = M + position

    def loss(x):
        keras.utils.set_random_seed(1)
        y = block(x[:, M:], past=x[:, :M], training=dropout > 0)
        return ops.sum(y[:, position] ** 2)

    _, gradient = value_and_gradient(loss, np.concatenate([past, target], axis=1))
    assert not gradient[:, seen + 1 :].any()
    if not dropout:
        assert np.abs(gradient[:, : seen + 1]).max(axis=(0, 2)).all()


@each_variant("options", SCHEMES, on_jax=["relative"])
def test_prefill_equals_steps(rng, options):
    (x,) = draw(rng, T)
    block = built(rng, layers.DecoderBlock, x.shape, **options)
    expected = numpy(block(x))

    def rows(x):
        first, cache = block.prefill(x[:, :2], block.initial_cache(B, 2, T), 2)
        outputs = [first]
        for index in (2, 3):
            beams = ops.repeat(x[:, None, index], 2, axis=1)
            own = layers.initial_ancestry(B, 2, T)
            output, cache = block.step(beams, cache, index, ancestry=own)
            outputs.append(output)
        return outputs

    first, *beams = evaluated(rows, block)(x)
    np.testing.assert_allclose(first, expected[:, :2], atol=1e-5)
    for index, output in enumerate(beams, start=2):
        for w in range(2):
            np.testing.assert_allclose(output[:, w], expected[:, index], atol=1e-5)


def test_prefill_before_steps_on_a_source_returns_what_a_call_does(rng):
    target, source = draw(rng, T, S)
    block = built(rng, layers.DecoderBlock, target.shape, source.shape)
    options = {"source_mask": SOURCE_MASK, "return_attention_scores": True}

    def call(target, source):
        return block(target, source, **options)

    def prefill_and_steps(target, source):
        first, cache = block.prefill(
            target[:, :2], block.initial_cache(B, 1, T), source=source, **options
        )
        memory, rows = block.project_memory(source), []
        for index in (2, 3):
            beam = target[:, index : index + 1]
            output, cache, scores = block.step(beam, cache, index, memory, **options)
            rows.append((output, scores))
        return first, rows

    first, rows = evaluated(prefill_and_steps, block)(target, source)
    expected = evaluated(call, block)(target[:, :2], source)
    assert len(first) == len(expected) == 3
    for found, wanted in zip(first, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    whole, _, cross = evaluated(call, block)(target, source)
    for index, (output, scores) in enumerate(rows, start=2):
        np.testing.assert_allclose(output[:, 0], whole[:, index], atol=1e-5)
        np.testing.assert_allclose(scores[:, :, 0], cross[:, :, index], atol=1e-5)


@pytest.mark.backends("torch")
def test_a_cache_has_no_past(rng):
    x, past = draw(rng, T), draw(rng, 2)
    block = built(rng, layers.DecoderBlock, x[0].shape)
    cache = block.initial_cache(B, 1, T)
    with pytest.raises(ValueError, match=r"`past` must be None.*shape \(2, 2, 8\)"):
        block.prefill(x[0], cache, past=past[0])


@pytest.mark.backends("torch")
def test_a_step_has_no_source_mask_without_a_memory(rng):
    (x,) = draw(rng, T)
    block = built(rng, layers.DecoderBlock, x.shape)
    with pytest.raises(ValueError, match="`source_mask` must be None without a `mem"):
        block.step(x[:, :1], block.initial_cache(B, 1, T), 0, source_mask=SOURCE_MASK)


def test_a_masked_column_of_the_cache_is_unseen(rng):
    """As padding before a short prompt is."""
    (x,) = draw(rng, T)
    block = built(rng, layers.DecoderBlock, x.shape)
    mask = np.array([[0, 1, 1, 1], [0, 0, 1, 1]], bool)
    expected = numpy(block(x, target_mask=mask))[:, -1]

    def last_row(x, mask):
        cache = block.initial_cache(B, 1, T)
        _, cache = block.prefill(x[:, :3], cache, target_mask=mask[:, :3])
        return block.step(x[:, 3:], cache, 3, mask=mask)[0]

    output = evaluated(last_row, block)(x, mask)
    np.testing.assert_allclose(output[:, 0], expected, atol=1e-5)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "take",
    [
        lambda: layers.DecoderBlock(2, 16).initial_cache(2, 1, 5),
        lambda: layers.DecoderBlock(2, 16).prefill(np.zeros((2, 3, 8)), None),
        lambda: layers.DecoderBlock(2, 16).step(np.zeros((2, 1, 8)), None, 0),
        lambda: layers.DecoderBlock(2, 16).project_memory(np.zeros((2, 3, 8))),
        lambda: layers.MultiHeadAttention(2, 4).step(np.zeros((2, 1, 8)), None, 0),
        lambda: layers.MultiHeadAttention(2, 4).step_memory(np.zeros((2, 1, 8)), None),
        lambda: layers.AttentiveRecurrentDecoder(8).initial_cache(np.zeros((2, 8))),
        lambda: layers.AttentiveRecurrentDecoder(8).project_memory(np.zeros((2, 3, 8))),
        lambda: layers.AttentiveRecurrentDecoder(8).step(
            np.zeros((2, 1, 8)), None, None
        ),
    ],
)
def test_a_step_before_any_call_is_refused(take):
    with pytest.raises(ValueError, match="called or built .* Received: .*, not built"):
        take()
