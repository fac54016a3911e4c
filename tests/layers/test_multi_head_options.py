"""What Keras's layer has not, in all combinations: against the oracle, and by laws."""

import copy
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.attention import functional
from tests.differentiate import values_and_gradients
from tests.evaluate import evaluated, examples, numpy
from tests.layers.multi_head_oracle import multi_head_attention
from tests.layers.test_multi_head import QUERY_MASK, VALUE_MASK, B, D, S, T, draw
from tests.layers.weights import attention_weights, randomize
from tests.pairs import case_id, each_case, each_variant, every_pair, named

BUCKETS = (8, 4, True)
OPTIONS = {
    "score": ["scaled_dot", "dot", "additive"],
    "positions": [None, "rotary", "relative", "alibi"],
    "num_key_value_heads": [4, 2],
    "implementation": list(functional.IMPLEMENTATIONS),
    "mask": [None, "padding", "causal", "window"],
    "qk_norm": [False, True],
    "use_gate": [False, True],
    "dropout": [0.0, 0.4],
    "return_attention_scores": [False, True],
}
PAIRS = every_pair(**OPTIONS)
CALLED = ("mask", "return_attention_scores")


def make(rng, case, **more):
    """Makes the layer of a case, with random weights."""
    arguments = {name: case[name] for name in case if name not in CALLED} | more
    if arguments["score"] == "additive":
        arguments["implementation"] = "auto"  # It has no kernel.
    if arguments["positions"] == "relative":
        arguments["positions"] = layers.RelativeBias(*BUCKETS)
    window = 2 if case["mask"] == "window" else None
    layer = layers.MultiHeadAttention(4, 6, sliding_window=window, **arguments)
    layer.build((B, T, D), (B, S, D))
    randomize(layer, rng)
    return layer


def weights_of(layer):
    """The weights in the form the oracle takes."""
    weights = attention_weights(layer)
    if layer.qk_norm:
        weights["query_norm"] = [numpy(layer.query_norm.scale.value)]
        weights["key_norm"] = [numpy(layer.key_norm.scale.value)]
    if layer.score == "additive":
        weights["vector"] = numpy(layer.score_vector.value).astype("float64")
    if isinstance(layer.positions, layers.RelativeBias):
        weights["table"] = numpy(layer.positions.table.value).astype("float64")
    return weights


def droppable(case):
    """Gives the case with an implementation that drops weights."""
    is_fused = case["implementation"] == "fused" and case["dropout"]
    return {**case, "implementation": "auto"} if is_fused else case


def caller(layer, case, **more):
    """Gives a function that calls a layer as a case says.

    It takes the inputs, and gives [output] or [output, weights].
    """
    arguments = {"use_causal_mask": case["mask"] == "causal", **more}
    returns_scores = case["return_attention_scores"]

    def call(*inputs):
        output = layer(*inputs, return_attention_scores=returns_scores, **arguments)
        return list(output) if returns_scores else [output]

    return call


def call(layer, *inputs, case, **more):
    """Calls a layer once, as a case says."""
    return evaluated(caller(layer, case, **more), layer)(*inputs)


def check_oracle(case):
    rng = np.random.default_rng(0)
    query, value, key = draw(rng, T, S, S)
    layer = make(rng, case)
    masked = case["mask"] == "padding"
    offset = 1 if case["mask"] in ("causal", "window") else 0
    outputs = call(
        layer,
        query,
        value,
        key,
        case=case,
        query_mask=QUERY_MASK if masked else None,
        value_mask=VALUE_MASK if masked else None,
        offset=offset,
    )
    expected = multi_head_attention(
        query,
        value,
        weights_of(layer),
        key=key,
        mask=QUERY_MASK[:, :, None] & VALUE_MASK[:, None] if masked else None,
        causal=case["mask"] == "causal",
        window=layer.sliding_window,
        score=case["score"],
        positions=case["positions"],
        buckets=BUCKETS,
        offset=offset,
    )
    assert len(outputs) == 1 + case["return_attention_scores"]
    for output, right in zip(outputs, expected, strict=False):
        np.testing.assert_allclose(output, right, atol=1e-5)


@each_case(PAIRS)
def test_equals_the_oracle(case):
    check_oracle(case)


@pytest.mark.slow
@pytest.mark.parametrize("positions", OPTIONS["positions"], ids=str)
@pytest.mark.parametrize("score", OPTIONS["score"])
def test_every_combination_equals_the_oracle(score, positions):
    options = {**OPTIONS, "score": [score], "positions": [positions]}
    if score == "additive":
        options["implementation"] = ["auto"]
    for values in itertools.product(*options.values()):
        check_oracle(dict(zip(options, values, strict=True)))


# Laws. Each is tried with some of the cases that hold every pair of options.

cases = st.sampled_from(PAIRS)
seeds = st.integers(0, 99)
law = examples(3)


@law
@given(case=cases, seed=seeds, position=st.sampled_from([1, 3]))
def test_no_gradient_comes_from_the_future(case, seed, position):
    """Of rows before `position` to inputs from it on; dropout is on."""
    rng = np.random.default_rng(seed)
    (x,) = draw(rng, T)
    layer = make(rng, droppable(case))
    attend = caller(layer, {**case, "mask": "causal"}, training=True)
    _, (gradient,) = values_and_gradients(lambda x: attend(x, x)[0][:, :position], [x])
    assert np.all(gradient[:, position:] == 0.0)
    assert np.any(gradient[:, :position] != 0.0)


@law
@given(case=cases, seed=seeds)
def test_padding_is_not_seen(case, seed):
    """What stands where nothing may be attended to changes no real row."""
    rng = np.random.default_rng(seed)
    query, value, other = draw(rng, T, S, S)
    layer = make(rng, case)
    other = np.where(VALUE_MASK[..., None], value, 10.0 * other)
    attend = evaluated(caller(layer, case, value_mask=VALUE_MASK), layer)
    outputs = [attend(query, x) for x in (value, other)]
    for left, right in zip(*outputs, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)


@law
@given(case=cases, seed=seeds)
def test_without_positions_order_is_unseen(case, seed):
    rng = np.random.default_rng(seed)
    (x,) = draw(rng, T)
    case = {**case, "positions": None, "mask": None}
    layer = make(rng, case)
    order = rng.permutation(T)
    attend = evaluated(caller(layer, case), layer)
    shuffled, straight = attend(x[:, order], x[:, order])[0], attend(x, x)[0]
    np.testing.assert_allclose(shuffled, straight[:, order], atol=1e-5)


@pytest.mark.parametrize("positions", ["rotary", "relative", "alibi"])
def test_with_positions_order_is_seen(rng, positions):
    (x,) = draw(rng, T)
    layer = make(rng, {**PAIRS[0], "positions": positions, "mask": None})
    order = [1, 0, 3, 2]
    attend = evaluated(layer, layer)
    shuffled, straight = attend(x[:, order], x[:, order]), attend(x, x)
    assert not np.allclose(shuffled, straight[:, order], atol=1e-3)


@law
@given(case=cases, seed=seeds, shift=st.sampled_from([3, 40]))
def test_only_distances_count(case, seed, shift):
    """Padding before a sequence shifts all its positions, and changes nothing."""
    if (case["positions"], case["score"]) == ("rotary", "additive"):
        return  # tanh(q + k) of rotated q and k sees more than the distance.
    rng = np.random.default_rng(seed)
    x, padding = draw(rng, T, shift)
    layer = make(rng, case)
    mask = np.arange(shift + T)[None] >= shift
    mask = np.broadcast_to(mask, (B, shift + T))
    longer = np.concatenate([padding, x], axis=1)
    expected = call(layer, x, x, case=case)[0]
    shifted = call(layer, longer, longer, case=case, value_mask=mask)[0]
    np.testing.assert_allclose(shifted[:, shift:], expected, atol=1e-5)


@law
@given(case=cases, seed=seeds, memory=st.sampled_from([1, 3]))
def test_a_segment_attends_to_memory_and_itself(case, seed, memory):
    """With the memory's length as offset, its rows are those of the whole."""
    rng = np.random.default_rng(seed)
    (x,) = draw(rng, T)
    layer = make(rng, case)
    whole = call(layer, x, x, case=case)[0]
    segment = call(layer, x[:, memory:], x, case=case, offset=memory)[0]
    np.testing.assert_allclose(segment, whole[:, memory:], atol=1e-5)


@each_variant("case", {case_id(x): x for x in PAIRS[:4]}, on_jax=[case_id(PAIRS[0])])
def test_dropout_falls_on_the_weights_while_training(rng, case):
    """The same seed drops the same, the next draw other weights, inference none."""
    query, value = draw(rng, T, S)
    case = droppable({**case, "dropout": 0.3})
    layer, again = (make(np.random.default_rng(1), case, seed=5) for _ in "ab")

    def draws(layer):
        training = caller(layer, case, training=True)
        inference = caller(layer, case)
        calls = [training, training, inference]
        run = evaluated(lambda *inputs: [call(*inputs)[0] for call in calls], layer)
        return run(query, value)

    first, second, undropped = draws(layer)
    np.testing.assert_array_equal(draws(again)[0], first)
    assert not np.allclose(first, second)
    assert not np.allclose(first, undropped)


# Precision, axes and shapes.


@each_case(PAIRS[:6])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_close(rng, policy, case):
    kernel = keras.backend.backend(), case["implementation"], policy
    if kernel == ("jax", "fused", "mixed_float16"):
        case = {**case, "implementation": "auto"}  # XLA compiles it for no CPU.
    query, value = draw(rng, T, S)
    layer = make(rng, case)
    mixed = make(rng, case, dtype=policy)
    mixed.set_weights(layer.get_weights())
    expected = call(layer, query, value, case=case)[0]
    output = call(mixed, query, value, case=case)[0]
    assert output.dtype.name == mixed.compute_dtype
    scale = np.abs(expected).max()
    output = output.astype("float32")
    np.testing.assert_allclose(output, expected, atol=0.05 * scale)


@each_variant("positions", named("rotary", "relative", "alibi"), on_jax=["rotary"])
@pytest.mark.parametrize("axis", [1, 2])
def test_positions_count_along_the_axis_attended_over(rng, positions, axis):
    """Each row or column of a grid is a sequence of its own."""
    grid = rng.normal(size=(B, 3, 4, D)).astype("float32")
    layer = layers.MultiHeadAttention(2, 4, attention_axes=axis, positions=positions)
    flat = layers.MultiHeadAttention(2, 4, positions=positions)
    layer.build(grid.shape, grid.shape)
    output = evaluated(layer, layer)(grid, grid)
    sequences = np.moveaxis(grid, axis, 2).reshape(-1, grid.shape[axis], D)
    flat.build(sequences.shape, sequences.shape)
    flat.set_weights(layer.get_weights())
    expected = evaluated(flat, flat)(sequences, sequences)
    output = np.moveaxis(output, axis, 2).reshape(expected.shape)
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_positions_refuse_several_axes():
    layer = layers.MultiHeadAttention(2, 4, positions="rotary")
    grid = np.zeros((B, 3, 4, D), "float32")
    with pytest.raises(ValueError, match=r"`attention_axes` must be one.*\(1, 2\)"):
        layer(grid, grid)


def test_a_layer_of_positions_may_be_shared(rng):
    """As T5 shares one bias among its blocks; the heads must be as many."""
    bias = layers.RelativeBias(*BUCKETS)
    first, second = (layers.MultiHeadAttention(2, 4, positions=bias) for _ in "ab")
    (x,) = draw(rng, T)
    second(first(x, x), x)
    assert first.positions is second.positions
    third = layers.MultiHeadAttention(4, 4, positions=bias)
    with pytest.raises(ValueError, match="`positions` must give a bias for 4.*2 heads"):
        third(x, x)


def _with_attention(positions, x):
    for _ in range(2):
        x = layers.MultiHeadAttention(2, 4, positions=positions)(x, x)
    return x


def _with_blocks(positions, x):
    for _ in range(2):
        x = layers.EncoderBlock(2, 8, attention={"positions": positions})(x)
    return x


def _with_stacks(positions, x):
    blocks = [
        layers.EncoderBlock(2, 8, attention={"positions": positions}) for _ in range(2)
    ]
    return layers.TransformerStack(blocks[1:])(layers.TransformerStack(blocks)(x))


def _with_residuals(positions, x):
    first = layers.MultiHeadAttention(2, 4, positions=positions)(x, x)
    feed_forward = layers.FeedForward(8)
    return layers.Residual(feed_forward)(layers.Residual(feed_forward)(first))


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize(
    "stacked", [_with_attention, _with_blocks, _with_stacks, _with_residuals]
)
def test_what_layers_share_is_one_layer_in_a_loaded_model(rng, tmp_path, stacked):
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, stacked(layers.RelativeBias(*BUCKETS), inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(loaded.weights) == len(model.weights)
    assert len(copy.deepcopy(model).weights) == len(model.weights)
    (x,) = draw(rng, T)
    np.testing.assert_allclose(numpy(loaded(x)), numpy(model(x)), atol=1e-6)


def test_users_may_give_positions_of_their_own(rng):
    """Whatever has `build`, `rotate` and `bias`: here, the next key alone counts."""

    class Next(layers.AlibiBias):
        def bias(self, target_length, source_length, offset=0):
            ahead = (
                np.arange(source_length) - np.arange(target_length)[:, None] - offset
            )
            return ops.convert_to_tensor(np.where(ahead == 1, 0.0, -1e9), "float32")[
                None, None
            ]

    (x,) = draw(rng, T)
    layer = layers.MultiHeadAttention(2, 4, positions=Next())
    _, scores = layer(x, x, return_attention_scores=True)
    np.testing.assert_allclose(numpy(scores)[:, :, 0, 1], 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"score": "cosine"}, "`score` must be one of.*'cosine'"),
        ({"score": "dot", "scale": 0.5}, "`scale` must be None.*scale=0.5.*'dot'"),
        ({"positions": "learned"}, "`positions` must be one of.*'learned'"),
        ({"positions": layers.AlibiBias}, "`positions` must be one of.*AlibiBias"),
        (
            {"score": "additive", "implementation": "fused"},
            "`implementation` must be 'auto' or 'explicit'.*'fused'",
        ),
        (
            {"score": "additive", "flash_attention": True},
            "and `flash_attention` not True, for an.*'auto', flash_attention=True",
        ),
    ],
    ids=str,
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.MultiHeadAttention(2, 4, **arguments)


def test_rotary_positions_want_an_even_width():
    layer = layers.MultiHeadAttention(2, 5, positions="rotary")
    with pytest.raises(ValueError, match="`key_dim` must be even.*key_dim=5"):
        layer.build((B, T, D), (B, S, D))
