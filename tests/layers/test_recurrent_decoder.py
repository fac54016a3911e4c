import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from keras_seqattn.backend.compile import CompiledFunction
from tests.layers import recurrent_oracle
from tests.layers.weights import randomize
from tests.pairs import each_case, every_pair

B, T, S, D, E, U = 2, 4, 5, 3, 6, 4
TARGET_MASK = np.array([[1, 1, 1, 0], [1, 0, 1, 1]], "bool")
SOURCE_MASK = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], "bool")


def made(rng, **options):
    """A decoder of random weights."""
    decoder = layers.AttentiveRecurrentDecoder(U, **options)
    decoder.build((None, None, D), (None, None, E), (None, E))
    randomize(decoder, rng)
    return decoder


def inputs(rng):
    """A target, a source, and the final states of its encoder."""
    shapes = ((B, T, D), (B, S, E), (B, E))
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def decode(decoder, target, source, state, **masks):
    """Gives the output, as without the weights, and the weights."""
    masks = {name: mask for name, mask in masks.items() if mask is not None}
    model = compiled(decoder, *masks)
    alone, output, scores = model.predict_on_batch(
        [target, source, state, *masks.values()]
    )
    np.testing.assert_allclose(alone, output, atol=1e-6)
    return output, scores


@functools.cache
def compiled(decoder, *masks):
    inputs = [keras.Input((None, D)), keras.Input((None, E)), keras.Input((E,))]
    masks = {name: keras.Input((None,), dtype="bool", name=name) for name in masks}
    outputs = decoder(*inputs, **masks, return_attention_scores=True)
    return keras.Model(
        [*inputs, *masks.values()], [decoder(*inputs, **masks), *outputs]
    )


@each_case(
    every_pair(
        cell=["gru", "simple"],
        num_layers=[1, 2],
        attention_units=[None, 7],
        masks=["no mask", "both masks"],
    )
)
def test_equals_the_oracle(rng, case):
    masks = {"target_mask": TARGET_MASK, "source_mask": SOURCE_MASK}
    masks = masks if case.pop("masks") == "both masks" else {}
    decoder, given = made(rng, **case), inputs(rng)
    # The oracle takes the kind of cell and the widths from the weights.
    kinds = [len(recurrence.weights) for recurrence in decoder.recurrences]
    assert kinds == case["num_layers"] * [{"gru": 3, "simple": 2}[case["cell"]]]
    assert decoder.query_dense.kernel.shape[-1] == (case["attention_units"] or U)
    expected = recurrent_oracle.decoder(
        *given, recurrent_oracle.decoder_weights(decoder), U, **masks
    )
    for output, wanted in zip(decode(decoder, *given, **masks), expected, strict=True):
        np.testing.assert_allclose(output, wanted, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "cell": "simple"}], ids=str)
def test_steps_equal_one_pass(rng, options):
    """Two beams with targets of their own share one source, projected once."""
    decoder, (_, source, state) = made(rng, **options), inputs(rng)
    targets = rng.normal(size=(B, 2, T, D)).astype("float32")
    expected, _ = decode(
        decoder,
        targets.reshape(2 * B, T, D),
        *(np.repeat(x, 2, axis=0) for x in (source, state)),
        source_mask=np.repeat(SOURCE_MASK, 2, axis=0),
    )
    expected = expected.reshape(B, 2, T, U)
    memory = decoder.project_memory(ops.convert_to_tensor(source))
    cache = decoder.initial_cache(ops.convert_to_tensor(state), width=2)
    memory, cache = keras.tree.map_structure(ops.convert_to_numpy, (memory, cache))
    variables = decoder.variables
    del decoder.key_dense  # No step may project the source again.
    step = CompiledFunction(decoder.step, variables)
    for t in range(T):
        output, cache = step(targets[:, :, t], cache, memory, SOURCE_MASK)
        assert cache.shape[:2] == (B, 2)
        np.testing.assert_allclose(output, expected[:, :, t], atol=1e-5)


@pytest.mark.parametrize("position", [1, 3])
def test_no_later_target_affects_a_row(rng, position):
    decoder, (target, source, state) = made(rng, num_layers=2), inputs(rng)
    changed = target.copy()
    changed[:, position:] += 1.0
    before, after = (decode(decoder, x, source, state)[0] for x in (target, changed))
    np.testing.assert_array_equal(before[:, :position], after[:, :position])
    assert (before[:, position:] != after[:, position:]).any(axis=-1).all()


def test_what_is_masked_in_the_source_weighs_nothing(rng):
    decoder, (target, source, state) = made(rng), inputs(rng)
    changed = np.where(SOURCE_MASK[..., None], source, 9.0).astype("float32")
    before, after = (
        decode(decoder, target, x, state, source_mask=SOURCE_MASK)[0]
        for x in (source, changed)
    )
    np.testing.assert_array_equal(before, after)


def test_a_source_that_is_all_masked_gives_no_context(rng):
    decoder, given = made(rng), inputs(rng)
    output, scores = decode(decoder, *given, source_mask=np.zeros((B, S), "bool"))
    assert not scores.any()
    given[1] = np.zeros_like(given[1])
    np.testing.assert_allclose(output, decode(decoder, *given)[0], atol=1e-6)


@pytest.mark.backends("tensorflow", "torch")
def test_implicit_masks_equal_explicit_masks(rng):
    encoder = layers.RecurrentEncoder(E // 2)
    embedding = keras.layers.Embedding(9, D, mask_zero=True)
    source_ids = np.array([[5, 3, 7, 2, 0], [2, 8, 0, 0, 0]])
    target_ids = np.array([[4, 6, 0, 0], [3, 3, 7, 0]])
    decoder, target = made(rng), embedding(target_ids)
    source, state = encoder(embedding(source_ids))
    output = decoder(target, source, state)
    masks = {"target_mask": target_ids != 0, "source_mask": source_ids != 0}
    values = [ops.convert_to_numpy(x) for x in (target, source, state)]
    expected, _ = decode(decoder, *values, **masks)
    np.testing.assert_allclose(ops.convert_to_numpy(output), expected, atol=1e-6)
    np.testing.assert_array_equal(
        ops.convert_to_numpy(output._keras_mask), target_ids != 0
    )


def test_symbolic_weights_have_the_shape_of_the_eager_ones(rng):
    decoder = made(rng)
    target, source = keras.Input((None, D)), keras.Input((S, E))
    output, scores = decoder(
        target, source, keras.Input((E,)), return_attention_scores=True
    )
    assert output.shape == (None, None, U)
    assert scores.shape == (None, 1, None, S)


@pytest.mark.slow_on("jax")
def test_dropout_in_training_alone(rng):
    decoder, given = made(rng, dropout=0.5), inputs(rng)
    output = ops.convert_to_numpy(decoder(*given, training=True))
    assert 0.2 < (output == 0.0).mean() < 0.8
    assert (decode(decoder, *given)[0] != 0.0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": -1}, "`units` must be a positive integer.*units=-1"),
        ({"num_layers": 1.5}, "`num_layers` must be .*num_layers=1.5"),
        ({"attention_units": 0}, "`attention_units` must be .*attention_units=0"),
        ({"cell": None}, "`cell` must be one of .*cell=None"),
        ({"dropout": -0.1}, "`dropout` must be in .*dropout=-0.1"),
    ],
    ids=str,
)
def test_says_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        layers.AttentiveRecurrentDecoder(**{"units": U, **options})


def test_targets_have_the_width_that_the_layer_was_built_for(rng):
    decoder, (target, source, state) = made(rng), inputs(rng)
    with pytest.raises(ValueError, match="`target` must have the width .*target.shape"):
        decoder(target[..., :-1], source, state)
