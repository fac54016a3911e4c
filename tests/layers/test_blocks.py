import collections
import functools
import json
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from tests import oracle
from tests.evaluate import evaluated, numpy
from tests.layers.weights import block_weights, randomize
from tests.pairs import each_case, elsewhere, every_pair

B, T, S, D, F = 2, 4, 5, 8, 12
TARGET_MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
SOURCE_MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], bool)
OPTIONS = {
    "norm": ["layer", "rms"],
    "normalize_first": [True, False],
    "gated": [False, True],
    "activation": ["relu", "silu", "gelu"],
    "key_dim": [None, 3],
    "dropout": [0.0, 0.3],
    "activation_dropout": [0.0, 0.2],
    "stochastic_depth": [0.0, 0.1],
}


def draw(rng, *lengths):
    return [rng.normal(size=(B, length, D)).astype("float32") for length in lengths]


def built(rng, cls, *shapes, **arguments):
    block = cls(num_heads=2, intermediate_dim=F, **arguments)
    block.build(*shapes)
    randomize(block, rng)
    return block


def oracle_options(block, case):
    return {
        "weights": block_weights(block),
        "normalize_first": case["normalize_first"],
        "activation": case["activation"],
        "epsilon": block.feed_forward_residual.norm_layer.epsilon,
    }


@each_case(every_pair(**OPTIONS, masked=[False, True]))
def test_encoder_equals_the_oracle(rng, case):
    case = dict(case)
    mask = TARGET_MASK if case.pop("masked") else None
    (x,) = draw(rng, T)
    block = built(rng, layers.EncoderBlock, x.shape, **case)
    pairs = None if mask is None else mask[:, :, None] & mask[:, None]
    expected = oracle.encoder_block(x, mask=pairs, **oracle_options(block, case))
    output = evaluated(functools.partial(block, mask=mask), block)(x)
    np.testing.assert_allclose(output, expected, atol=1e-4)


@each_case(every_pair(**OPTIONS, masked=[False, True], with_source=[True, False]))
def test_decoder_equals_the_oracle(rng, case):
    case = dict(case)
    masked, with_source = case.pop("masked"), case.pop("with_source")
    target, source = draw(rng, T, S)
    inputs = (target, source) if with_source else (target,)
    block = built(rng, layers.DecoderBlock, *(x.shape for x in inputs), **case)
    decode = functools.partial(
        block,
        target_mask=TARGET_MASK if masked else None,
        source_mask=SOURCE_MASK if masked and with_source else None,
    )
    output = evaluated(decode, block)(*inputs)
    pairs = TARGET_MASK[:, :, None] & TARGET_MASK[:, None]
    cross_pairs = TARGET_MASK[:, :, None] & SOURCE_MASK[:, None]
    expected = oracle.decoder_block(
        target,
        source if with_source else None,
        target_mask=pairs if masked else None,
        source_mask=cross_pairs if masked else None,
        **oracle_options(block, case),
    )
    np.testing.assert_allclose(output, expected, atol=1e-4)


@pytest.mark.backends("torch")
def test_each_fraction_reaches_the_attention_to_the_source():
    fractions = {"dropout": 0.1, "attention_dropout": 0.2, "stochastic_depth": 0.3}
    block = layers.DecoderBlock(2, F, **fractions)
    block.build((B, T, D), (B, S, D))
    cross = block.cross_residual
    found = cross.dropout, cross.sublayer.dropout, cross.stochastic_depth
    assert found == tuple(fractions.values())


@pytest.mark.parametrize(
    ("option", "sublayers", "part"),
    [
        ("dropout", ("attention", "feed_forward"), "dropout_layer"),
        ("attention_dropout", ("attention",), "sublayer"),
        ("activation_dropout", ("feed_forward",), "sublayer"),
        ("stochastic_depth", ("attention", "feed_forward"), "skip_layer"),
    ],
)
def test_each_fraction_drops_where_it_says(rng, option, sublayers, part):
    (x,) = draw(rng, T)
    block = built(rng, layers.EncoderBlock, x.shape, **{option: 0.5})
    keras.utils.set_random_seed(3)
    seen = set()
    for name in ("attention", "feed_forward"):
        residual = getattr(block, f"{name}_residual")
        for place in ("sublayer", "dropout_layer", "skip_layer"):
            layer = getattr(residual, place)
            inputs = (x, x) if (name, place) == ("attention", "sublayer") else (x,)
            quiet = numpy(layer(*inputs))
            drawn = [numpy(layer(*inputs, training=True)) for _ in range(4)]
            if not all(np.allclose(one, quiet, atol=1e-5) for one in drawn):
                seen.add((name, place))
    assert seen == {(name, part) for name in sublayers}
    assert not np.allclose(numpy(block(x, training=True)), numpy(block(x)))


def test_an_encoder_with_a_causal_mask_is_a_decoder_without_a_source(rng):
    (x,) = draw(rng, T)
    encoder = built(rng, layers.EncoderBlock, x.shape)
    decoder = layers.DecoderBlock(2, F)
    decoder.build(x.shape)
    decoder.set_weights(encoder.get_weights())
    np.testing.assert_array_equal(
        numpy(encoder(x, mask=TARGET_MASK, use_causal_mask=True)),
        numpy(decoder(x, mask=TARGET_MASK)),
    )
    assert not np.allclose(numpy(encoder(x)), numpy(encoder(x, use_causal_mask=True)))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("cls", [layers.EncoderBlock, layers.DecoderBlock])
def test_initializers_and_epsilon_reach_every_sublayer(cls):
    block = cls(
        2,
        F,
        gated=True,
        kernel_initializer=keras.initializers.RandomUniform(2.0, 3.0),
        bias_initializer="ones",
        epsilon=0.25,
    )
    block.build((B, T, D), *[(B, S, D)] * (cls is layers.DecoderBlock))
    kernels, drawn = 0, set()
    for weight in block.weights:
        if weight.name == "kernel":
            values = numpy(weight)
            assert values.min() >= 2.0, weight.path
            kernels, drawn = kernels + 1, drawn | {values.flat[0]}
        elif weight.name == "bias":
            assert (numpy(weight) == 1.0).all(), weight.path
    assert kernels == len(drawn) == (11 if cls is layers.DecoderBlock else 7)
    norms = [part for part in block._flatten_layers() if hasattr(part, "epsilon")]
    assert {part.epsilon for part in norms} == {0.25}
    again = cls.from_config(block.get_config())
    assert again.get_config() == block.get_config()


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("make", "shapes", "projections"),
    [
        (functools.partial(layers.FeedForward, F), [(B, T, D)], 3),
        (functools.partial(layers.EncoderBlock, 2, F), [(B, T, D)], 7),
        (functools.partial(layers.DecoderBlock, 2, F), [(B, T, D), (B, S, D)], 11),
    ],
    ids=["feed-forward", "encoder", "decoder"],
)
def test_use_bias_is_of_the_projections_alone(make, shapes, projections):
    names = {}
    for use_bias in (True, False):
        layer = make(gated=True, use_bias=use_bias)
        layer.build(*shapes)
        names[use_bias] = collections.Counter(weight.name for weight in layer.weights)
    assert names[True]["kernel"] == names[True]["bias"] == projections
    del names[True]["bias"]  # those of the norms, "beta", stay
    assert names[False] == names[True]


def test_no_causal_mask_where_it_is_not_wanted(rng):
    (x,) = draw(rng, T)
    block = built(rng, layers.DecoderBlock, x.shape)
    causal, full = numpy(block(x)), numpy(block(x, use_causal_mask=False))
    assert not np.allclose(causal[:, 0], full[:, 0])
    np.testing.assert_allclose(causal[:, -1], full[:, -1], atol=1e-5)


@pytest.mark.slow_on("jax")
def test_blocks_return_the_scores_of_each_attention(rng):
    """Post-norm, so that each attention sees what the oracle can be given."""
    target, source = draw(rng, T, S)
    encoder = built(rng, layers.EncoderBlock, source.shape, normalize_first=False)
    output, scores = encoder(source, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), numpy(encoder(source)), atol=1e-5)
    weights = block_weights(encoder)
    attended = oracle.multi_head_attention(source, source, weights["attention"])
    np.testing.assert_allclose(numpy(scores), attended[1], atol=1e-5)

    decoder = built(
        rng, layers.DecoderBlock, target.shape, source.shape, normalize_first=False
    )
    output, scores, cross_scores = decoder(target, source, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), numpy(decoder(target, source)), atol=1e-5)
    weights = block_weights(decoder)
    attended, expected = oracle.multi_head_attention(
        target, target, weights["attention"], causal=True
    )
    np.testing.assert_allclose(numpy(scores), expected, atol=1e-5)
    x = oracle.normalize(target + attended, weights["attention_norm"], 1e-5)
    _, expected = oracle.multi_head_attention(x, source, weights["cross_attention"])
    np.testing.assert_allclose(numpy(cross_scores), expected, atol=1e-5)


def test_symbolic_scores_have_the_shapes_of_the_eager_ones():
    target, source = keras.Input((T, D)), keras.Input((S, D))
    shapes = [
        each.shape
        for each in layers.DecoderBlock(2, F)(
            target, source, return_attention_scores=True
        )
    ]
    assert shapes == [(None, T, D), (None, 2, T, T), (None, 2, T, S)]
    output, scores = layers.EncoderBlock(2, F)(source, return_attention_scores=True)
    assert (output.shape, scores.shape) == ((None, S, D), (None, 2, S, S))


# Masks.


def embedded(ids, width=D):
    return keras.layers.Embedding(9, width, mask_zero=True)(ids)


def without_mask(x):
    return ops.convert_to_tensor(ops.convert_to_numpy(x))


@pytest.mark.parametrize("with_attention_mask", [False, True])
def test_encoder_takes_the_implicit_mask_and_passes_it_on(rng, with_attention_mask):
    ids = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    x = embedded(ids)
    block = built(rng, layers.EncoderBlock, x.shape)
    options = {}
    if with_attention_mask:
        options["attention_mask"] = np.tril(np.ones((B, T, T), bool))
    implicit = block(x, **options)
    explicit = block(without_mask(x), mask=ids != 0, **options)
    np.testing.assert_allclose(numpy(implicit), numpy(explicit), atol=1e-6)
    np.testing.assert_array_equal(implicit._keras_mask, ids != 0)


@pytest.mark.parametrize("with_source", [True, False])
def test_decoder_takes_the_implicit_masks_and_passes_the_target_mask_on(
    rng, with_source
):
    target_ids = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    source_ids = np.array([[1, 2, 3, 4, 0], [4, 5, 0, 0, 0]])
    inputs = [embedded(target_ids)]
    masks = {"target_mask": target_ids != 0}
    if with_source:
        inputs.append(embedded(source_ids))
        masks["source_mask"] = source_ids != 0
    block = built(rng, layers.DecoderBlock, *(x.shape for x in inputs))
    implicit = block(*inputs)
    explicit = block(*map(without_mask, inputs), **masks)
    np.testing.assert_allclose(numpy(implicit), numpy(explicit), atol=1e-6)
    np.testing.assert_array_equal(implicit._keras_mask, target_ids != 0)


CARRIERS = {
    "encoder": (lambda: layers.EncoderBlock(2, F), "x_mask", 1),
    "decoder": (lambda: layers.DecoderBlock(2, F), "target_mask", 2),
    "decoder-only": (lambda: layers.DecoderBlock(2, F), "target_mask", 1),
    "stack": (
        lambda: layers.TransformerStack([layers.EncoderBlock(2, F)]),
        "x_mask",
        1,
    ),
    "stack with a memory": (
        lambda: layers.TransformerStack([layers.DecoderBlock(2, F)]),
        "x_mask",
        2,
    ),
}


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("kind", CARRIERS)
def test_the_output_carries_a_given_mask(rng, kind, implicit):
    """By both of its names, or by place, eagerly and in a functional model."""
    make, name, count = CARRIERS[kind]
    layer, inputs = make(), [*map(ops.convert_to_tensor, draw(rng, T, S)[:count])]
    given = ops.convert_to_tensor(TARGET_MASK)
    if implicit:
        inputs[0] = embedded(np.array([[1, 2, 0, 0], [4, 5, 6, 0]]))
    expected = layer(*inputs, mask=TARGET_MASK)
    outputs = [expected, layer(*inputs, **{name: TARGET_MASK})]
    outputs.append(layer(*inputs, mask=TARGET_MASK.tolist()))
    place = [] if kind == "encoder" else [None] * (2 - count)
    outputs.append(layer(*inputs, *place, given))
    tensors = [keras.Input(x.shape[1:]) for x in inputs]
    mask = keras.Input((T,), dtype="bool")
    x = layer(*tensors, **{name: mask})
    model = keras.Model([*tensors, mask], [x, layers.ScaledDotProductAttention()(x, x)])
    output, attended = model([*map(without_mask, inputs), given])
    for x in (*outputs, output):
        np.testing.assert_allclose(numpy(x), numpy(expected), atol=1e-6)
        np.testing.assert_array_equal(x._keras_mask, TARGET_MASK)
    assert not numpy(attended)[~TARGET_MASK].any()


def test_a_given_target_mask_stands_in_for_the_implicit_one(rng):
    ids = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    # It lets some padding of the implicit one be attended to, and hides some tokens.
    x, mask = embedded(ids), np.array([[1, 1, 0, 1], [1, 0, 1, 0]], bool)
    block = built(rng, layers.DecoderBlock, x.shape)
    np.testing.assert_allclose(
        numpy(block(x, target_mask=mask)),
        numpy(block(without_mask(x), target_mask=mask)),
        atol=1e-6,
    )


@pytest.mark.parametrize("normalize_first", [True, False])
def test_padding_content_never_changes_a_real_position(rng, normalize_first):
    target, source = draw(rng, T, S)
    masks = {"target_mask": TARGET_MASK, "source_mask": SOURCE_MASK}
    block = built(
        rng,
        layers.DecoderBlock,
        target.shape,
        source.shape,
        normalize_first=normalize_first,
    )
    encoder = built(
        rng, layers.EncoderBlock, source.shape, normalize_first=normalize_first
    )
    before = numpy(block(target, source, **masks))
    encoded = numpy(encoder(source, mask=SOURCE_MASK))
    target[~TARGET_MASK], source[~SOURCE_MASK] = 7.0, -9.0
    after = numpy(block(target, source, **masks))
    np.testing.assert_allclose(after[TARGET_MASK], before[TARGET_MASK], atol=1e-5)
    again = numpy(encoder(source, mask=SOURCE_MASK))
    np.testing.assert_allclose(again[SOURCE_MASK], encoded[SOURCE_MASK], atol=1e-5)


# Attention chosen by the user.


@pytest.mark.slow_on("jax")
def test_attention_takes_a_dict_of_options(rng):
    target, source = draw(rng, T, S)
    block = layers.DecoderBlock(
        2,
        F,
        attention={"num_key_value_heads": 1, "sliding_window": 2},
        cross_attention={"num_heads": 3, "key_dim": 5},
    )
    _, scores, cross_scores = block(target, source, return_attention_scores=True)
    band = np.tril(np.ones((T, T))) - np.tril(np.ones((T, T)), -2)
    np.testing.assert_array_equal(numpy(scores)[0, 0] > 0, band > 0)
    assert cross_scores.shape == (B, 3, T, S)


@pytest.mark.backends("torch")
def test_a_width_of_heads_among_the_options_of_attention_is_enough(rng):
    (x,) = draw(rng, T)
    for block in (
        layers.EncoderBlock(3, F, attention={"key_dim": 5}),
        layers.DecoderBlock(3, F, attention={"key_dim": 5}),
    ):
        assert block(x).shape == x.shape
        assert block.attention_residual.sublayer.key_dim == 5


@pytest.mark.parametrize("cls", [layers.EncoderBlock, layers.DecoderBlock])
def test_attention_options_may_hold_a_layer(rng, cls):
    (x,) = draw(rng, T)
    positions = layers.RelativeBias(num_buckets=8)
    block = built(rng, cls, x.shape, attention={"positions": positions})
    assert block.attention_residual.sublayer.positions is positions
    again = cls.from_config(json.loads(json.dumps(block.get_config())))
    again.build(x.shape)
    again.set_weights(block.get_weights())
    np.testing.assert_array_equal(numpy(again(x)), numpy(block(x)))


def test_attention_takes_a_layer(rng):
    """Any layer that is called as Keras's is."""
    (x,) = draw(rng, T)
    attention = keras.layers.MultiHeadAttention(3, 5)
    block = layers.EncoderBlock(2, F, attention=attention)
    _, scores = block(x, return_attention_scores=True)
    assert scores.shape == (B, 3, T, T)
    assert block.attention_residual.sublayer is attention


@keras.saving.register_keras_serializable()
class Lazy(keras.layers.Layer):
    """Has no `build` of its own: what it holds is built as it is called."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(D)
        self.supports_masking = True

    def call(self, query, value=None, return_attention_scores=False, **masks):
        return self.dense(query)


@pytest.mark.filterwarnings("ignore:.build... was called")  # as Keras loads it
@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize(
    "made",
    [
        lambda lazy: layers.EncoderBlock(2, F, attention=lazy),
        lambda lazy: layers.Residual(lazy),
        lambda lazy: layers.TransformerStack([lazy]),
        lambda lazy: layers.TransformerStack([layers.EncoderBlock(2, F)], norm=lazy),
    ],
    ids=["attention", "residual", "block", "norm"],
)
def test_the_weights_of_a_part_without_a_build_are_saved(made, rng, tmp_path):
    (x,) = draw(rng, T)
    inputs = keras.Input((T, D))
    lazy = Lazy()
    model = keras.Model(inputs, made(lazy)(inputs))
    assert len(lazy.weights) == 2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))


# Step by step.


@pytest.mark.parametrize(
    ("normalize_first", "with_source"),
    [
        (True, True),
        pytest.param(True, False, marks=elsewhere),
        pytest.param(False, True, marks=elsewhere),
        (False, False),
    ],
)
def test_steps_equal_one_pass(rng, normalize_first, with_source):
    target = rng.normal(size=(B, 2, T, D)).astype("float32")
    (source,) = draw(rng, S)
    rows = target.reshape(2 * B, T, D)
    shapes = (rows.shape, source.shape) if with_source else (rows.shape,)
    options = {"normalize_first": normalize_first, "norm": "rms"}
    block = built(rng, layers.DecoderBlock, *shapes, **options)

    def steps(target, source):
        attended = {"ancestry": layers.initial_ancestry(B, 2, T + 2)}
        if with_source:
            attended["memory"] = block.project_memory(source)
            attended["source_mask"] = SOURCE_MASK
        cache, outputs = block.initial_cache(B, 2, T + 2), []
        for index in range(T):
            output, cache = block.step(target[:, :, index], cache, index, **attended)
            outputs.append(output)
        return ops.stack(outputs, axis=2)  # (B, W, T, D)

    def one_pass(rows, source):
        if not with_source:
            return block(rows)
        mask = np.repeat(SOURCE_MASK, 2, axis=0)
        return block(rows, ops.repeat(source, 2, axis=0), source_mask=mask)

    given = evaluated(steps, block)(target, source)
    expected = evaluated(one_pass, block)(rows, source)
    np.testing.assert_allclose(given.reshape(rows.shape), expected, atol=1e-5)


# Mistakes.


@pytest.mark.parametrize("cls", [layers.EncoderBlock, layers.DecoderBlock])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "`num_heads` must be a positive .*num_heads=0"),
        ({"intermediate_dim": 0}, "`intermediate_dim` must.*intermediate_dim=0"),
        ({"epsilon": 0.0}, "`epsilon` must.*epsilon=0.0"),
        ({"norm": "batch"}, "`norm` must be.*norm='batch'"),
        ({"dropout": 1.0}, "`dropout` must be in .*dropout=1.0"),
        (
            {"attention_dropout": -1.0},
            "`attention_dropout` must be in .*attention_dropout=-1.0",
        ),
        ({"activation_dropout": 1.0}, "`activation_dropout` must be in .*dropout=1.0"),
        ({"stochastic_depth": 1.0}, "`stochastic_depth` must be in .*=1.0"),
        ({"key_dim": 0}, "`key_dim`.*key_dim=0"),
        ({"num_heads": 3}, "`num_heads` must divide.*num_heads=3 for width 8"),
    ],
    ids=str,
)
def test_says_what_is_wrong(cls, arguments, message):
    with pytest.raises(ValueError, match=message):
        cls(**{"num_heads": 2, "intermediate_dim": F, **arguments}).build((B, T, D))


@pytest.mark.parametrize("mask", [TARGET_MASK, TARGET_MASK.tolist()])
def test_mask_and_its_second_name_are_one(rng, mask):
    (x,) = draw(rng, T)
    with pytest.raises(
        ValueError, match=r"`mask` must be None where `x_mask`.*\(2, 4\)"
    ):
        layers.EncoderBlock(2, F)(x, mask=mask, x_mask=mask)


def test_a_mask_given_twice_is_an_error(rng):
    x, mask = rng.normal(size=(2, 4, F)), np.ones((2, 4), bool)
    with pytest.raises(TypeError, match="multiple values for argument 'mask'"):
        layers.EncoderBlock(2, F)(x, mask, mask=mask)
    with pytest.raises(ValueError, match=r"`mask` must be None.*\(2, 4\)"):
        layers.DecoderBlock(2, F)(x, mask=mask, target_mask=mask)
    with pytest.raises(ValueError, match=r"`mask` must be None.*\(2, 4\)"):
        layers.DecoderBlock(2, F)(x, None, mask, mask)


def test_a_stack_of_encoder_blocks_takes_no_memory(rng):
    x, memory = draw(rng, T, S)
    for begun in (False, True):
        stack = layers.TransformerStack([layers.EncoderBlock(2, F)])
        if begun:
            stack(x)
        with pytest.raises(ValueError, match=r"`memory` must be None.*of shape \(2, "):
            stack(x, memory)


def test_a_stack_says_what_its_steps_lack(rng):
    x, memory = draw(rng, T, S)
    encoder = layers.TransformerStack([layers.EncoderBlock(2, F)])
    encoder(x)
    for call in (
        lambda: encoder.initial_cache(2, 1, 4),
        lambda: encoder.project_memory(memory),
        lambda: encoder.step(x[:, :1], [], 0),
    ):
        with pytest.raises(ValueError, match="`blocks` must be `DecoderBlock`s for"):
            call()
    stack = layers.TransformerStack([layers.DecoderBlock(2, F) for _ in range(2)])
    stack(x, memory)
    caches, memory = stack.initial_cache(2, 1, 4), stack.project_memory(memory)
    with pytest.raises(ValueError, match="`caches` must have 2 .*caches of length 1"):
        stack.step(x[:, :1], caches[:1], 0, memory)
    with pytest.raises(ValueError, match="`memory` must have 2 .*memory of length 1"):
        stack.step(x[:, :1], caches, 0, memory[:1])
    with pytest.raises(ValueError, match="`memory_mask` must be None without a `mem"):
        stack.step(x[:, :1], caches, 0, memory_mask=SOURCE_MASK)


def test_a_source_comes_always_or_never(rng):
    target, source = draw(rng, T, S)
    with_source, without = layers.DecoderBlock(2, F), layers.DecoderBlock(2, F)
    with_source(target, source)
    without(target)
    with pytest.raises(
        ValueError, match="`source` must.*source=None, .* with a source"
    ):
        with_source(target)
    with pytest.raises(
        ValueError, match="`source` must.*=a tensor, .* without a source"
    ):
        without(target, source)


@pytest.mark.parametrize("name", ["source", "past", "memory"])
@pytest.mark.parametrize("symbolic", [False, True])
def test_a_mask_without_its_sequence_is_refused(rng, name, symbolic):
    (target,) = draw(rng, T)
    mask = np.ones((B, S), bool)
    if symbolic:
        target, mask = keras.Input((T, D)), keras.Input((S,), dtype="bool")
    layer = layers.DecoderBlock(2, F)
    if name == "memory":
        layer = layers.TransformerStack([layer])
    message = rf"`{name}_mask` must be None without a `{name}`.*{name}_mask="
    with pytest.raises(ValueError, match=message):
        layer(target, **{f"{name}_mask": mask})
    if not symbolic:
        with pytest.raises(ValueError, match=message):
            layer(target, **{f"{name}_mask": mask.tolist()})
    layer(target, **{name: target})  # The refused call has not built the layer.


@pytest.mark.parametrize(
    ("mask", "shape"),
    [("mask", (2, 4)), ("attention_mask", (2, 3, 4)), ("attention_mask", (3,))],
)
def test_a_mask_that_does_not_fit_is_named(mask, shape):
    block = layers.EncoderBlock(2, 8)
    message = rf"`{mask}` must be .* of the inputs.*Received: {mask}.shape=\({shape[0]}"
    with pytest.raises(ValueError, match=message):
        block(np.ones((2, 3, 4), "float32"), **{mask: np.ones(shape, bool)})


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_a_quantized_block_with_a_dtype_for_its_attention_is_loaded(rng, tmp_path):
    inputs = keras.Input((None, D))
    block = layers.EncoderBlock(
        2, F, attention={"dtype": "float32"}, dtype="mixed_bfloat16"
    )
    model = keras.Model(inputs, block(inputs))
    model.quantize("int8")
    attention = block.attention_residual.sublayer
    assert attention.query_dense.quantization_mode == "int8"
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    (x,) = draw(rng, T)
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    found = loaded.layers[-1].attention_residual.sublayer
    assert found.compute_dtype == attention.compute_dtype == "float32"


def test_a_loaded_rms_norm_of_a_stack_takes_masks(rng):
    """Keras's layer would warn that the mask ends at it."""
    norm = keras.layers.RMSNormalization()
    stack = layers.TransformerStack([layers.EncoderBlock(2, 8)], norm)
    for made in (stack, layers.TransformerStack.from_config(stack.get_config())):
        x = keras.layers.Masking()(rng.normal(size=(1, 3, 4)).astype("float32"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert made(x)._keras_mask is not None


WITH_DROPOUT = {
    "encoder": lambda: layers.EncoderBlock(2, F, dropout=0.5),
    "attention weights": lambda: layers.EncoderBlock(2, F, attention_dropout=0.5),
    "hidden layer": lambda: layers.EncoderBlock(2, F, activation_dropout=0.5),
    "skipping": lambda: layers.EncoderBlock(2, F, stochastic_depth=0.5),
    "checkpointed": lambda: layers.EncoderBlock(
        2, F, dropout=0.5, gradient_checkpointing=True
    ),
    "decoder": lambda: layers.DecoderBlock(2, F, dropout=0.5),
    "cross-attention": lambda: layers.DecoderBlock(
        2, F, attention_dropout=0.5, attention={"dropout": 0.0}
    ),
    "feed-forward": lambda: layers.FeedForward(F, dropout=0.5),
    "residual": lambda: layers.Residual(keras.layers.Rescaling(2.0), dropout=0.5),
    "stack": lambda: layers.TransformerStack([layers.EncoderBlock(2, F, dropout=0.5)]),
    "embedding": lambda: layers.PositionalEmbedding(9, D, dropout=0.5),
    "recurrent encoder": lambda: layers.RecurrentEncoder(D, dropout=0.5),
    "recurrent decoder": lambda: layers.AttentiveRecurrentDecoder(D, dropout=0.5),
}


@pytest.mark.backends("jax", "torch")
@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_a_stateless_call_drops_while_training_alone(rng, name):
    # Keras calls `call` there, not the layer, so that parts learn from it what it is.
    layer = WITH_DROPOUT[name]()
    x, y = draw(rng, T, S)
    inputs = {
        "decoder": [x, y],
        "cross-attention": [x, y],
        "embedding": [np.ones((B, T), "int32")],
        "recurrent decoder": [x, y, y[:, 0]],
    }.get(name, [x])
    inputs = [ops.convert_to_tensor(each) for each in inputs]
    layer(*inputs)
    values = [
        [variable.value for variable in variables]
        for variables in (layer.trainable_variables, layer.non_trainable_variables)
    ]
    outputs = [
        numpy(keras.tree.flatten(layer.stateless_call(*values, *inputs, **training))[0])
        for training in ({}, {"training": False}, {"training": True})
    ]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert not np.allclose(outputs[1], outputs[2])


class PlainBlock(layers.EncoderBlock):
    """Has a call of the user's own, without `training`."""

    def call(self, x, mask=None):
        return super().call(x, mask=mask)


class PlainFeedForward(layers.FeedForward):
    """Has a call of the user's own, without `training`."""

    def call(self, x):
        return super().call(x)


@pytest.mark.parametrize("kind", [PlainBlock, PlainFeedForward])
def test_a_call_of_the_users_own_need_not_take_training(kind):
    layer = PlainFeedForward(F, dropout=0.5)
    layer = PlainBlock(2, F, dropout=0.5) if kind is PlainBlock else layer
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")
    dropped, whole = map(ops.convert_to_numpy, (layer(x, training=True), layer(x)))
    assert not np.allclose(dropped, whole)
