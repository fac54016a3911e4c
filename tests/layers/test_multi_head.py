"""Against Keras's own layer, against the oracle, and where Keras's is at fault."""

import functools
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import layers
from keras_seqattn.layers.attention import functional
from tests import oracle
from tests.evaluate import JIT, evaluated, numpy
from tests.layers.weights import attention_weights, randomize
from tests.pairs import each_case, every_pair

B, T, S, D = 2, 4, 5, 8
QUERY_MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
VALUE_MASK = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 1, 1]], bool)


def draw(rng, *lengths):
    return [rng.normal(size=(B, length, D)).astype("float32") for length in lengths]


def built(rng, *shapes, **arguments):
    """Makes a layer of 4 heads with random weights, for inputs of the shapes."""
    layer = layers.MultiHeadAttention(**{"num_heads": 4, "key_dim": 3, **arguments})
    layer.build(*shapes or ((B, T, D), (B, S, D)))
    randomize(layer, rng)
    return layer


# Drop-in: the numbers of keras.layers.MultiHeadAttention.

KERAS_CONSTRUCTOR = {
    "value_dim": [None, 2],
    "use_bias": [True, False],
    "output_shape": [None, 7, (2, 3)],
    "use_gate": [False, True],
    "sliding_window": [None, 2],
    "dropout": [0.0, 0.4],
}
KERAS_CALL = {
    "key": [False, True],
    "query_mask": [False, True],
    "value_mask": [False, True],
    "key_mask": [False, True],
    "attention_mask": [None, "pairs", "heads"],
    "use_causal_mask": [False, True],
    "return_attention_scores": [False, True],
}


def both_layers(rng, *shapes, **arguments):
    """Makes Keras's layer and ours, with the same random weights."""
    keras_layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=3, **arguments)
    layer = layers.MultiHeadAttention(num_heads=2, key_dim=3, **arguments)
    for made in (keras_layer, layer):
        made.build(*shapes)
    randomize(layer, rng)
    assert [w.path.split("/")[-2:] for w in layer.weights] == [
        w.path.split("/")[-2:] for w in keras_layer.weights
    ]
    keras_layer.set_weights(layer.get_weights())
    return keras_layer, layer


@each_case(every_pair(**KERAS_CONSTRUCTOR, **KERAS_CALL))
def test_gives_the_numbers_of_keras(rng, case):
    query, value, key = draw(rng, T, S, S)
    case = dict(case)
    constructor = {name: case.pop(name) for name in KERAS_CONSTRUCTOR}
    shapes = {None: None, "pairs": (B, T, S), "heads": (B, 2, T, S)}
    shape = shapes[case.pop("attention_mask")]
    has_query_mask = case.pop("query_mask")
    has_heads_mask = shape is not None and len(shape) == 4
    has_key = case.pop("key")
    arguments = {
        "value_mask": VALUE_MASK if case.pop("value_mask") else None,
        "key_mask": VALUE_MASK if case.pop("key_mask") else None,
        "attention_mask": None if shape is None else rng.random(shape) < 0.8,
        **case,
    }
    if has_heads_mask:
        # Keras lays (B, 1, S) against the batch and the heads.
        arguments.update(value_mask=None, key_mask=None)
        has_query_mask = False
    keras_layer, layer = both_layers(rng, query.shape, value.shape, **constructor)

    def both(query, value, key):
        if has_query_mask:
            query = with_mask(query, QUERY_MASK)
        inputs = (query, value, key) if has_key else (query, value)
        output = layer(*inputs, **arguments)
        # Keras comes last, for it takes the masks off its inputs; and with scores, for
        # its fast path makes a mean of an empty row, and on JAX wants values as wide
        # as keys.
        with_scores = {**arguments, "return_attention_scores": True}
        return keras.tree.flatten(output), keras_layer(*inputs, **with_scores)

    run = evaluated(both, layer, keras_layer, compiles=not has_query_mask)
    outputs, expected = run(query, value, key)
    assert len(outputs) == 1 + case["return_attention_scores"]
    for left, right in zip(outputs, expected, strict=False):
        assert left.shape == right.shape
        np.testing.assert_allclose(left, right, atol=1e-5)


def with_mask(x, mask):
    """Returns `x` as a tensor that carries an implicit mask."""
    x = keras.layers.Masking()(ops.multiply(x, mask[..., None].astype("float32")))
    assert x._keras_mask is not None
    return x


def test_a_value_of_another_rank_is_refused_with_the_axes_of_the_query():
    query, value = np.ones((2, 3, 4, 5, D)), np.ones((2, 3, D))
    axes = "batch, length, length, length, width"
    with pytest.raises(ValueError, match=rf"`value`.*\({axes}\)"):
        layers.MultiHeadAttention(2, 3)(query, value)


@pytest.mark.parametrize("rank", [4, 5])
def test_a_mask_of_several_axes_is_that_of_all_heads(rank, rng):
    """(B, T, T', S, S'), and (T, T', S, S') of all sequences, as Keras aligns it."""
    x = rng.normal(size=(1, 2, 3, D)).astype("float32")
    layer = layers.MultiHeadAttention(2, 3, attention_axes=(1, 2))
    mask = rng.random((2, 3, 2, 3)) < 0.7
    mask[..., 0] = True
    less = mask if rank == 4 else mask[None]
    every = np.broadcast_to(mask, (1, 2, *mask.shape))
    outputs = [layer(x, x, attention_mask=some) for some in (less, every)]
    np.testing.assert_allclose(*map(ops.convert_to_numpy, outputs), atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 3, 4, D), None),
        ((2, 3, 4, D), 1),
        ((2, 3, 4, D), (2,)),
        ((2, 3, 4, D), (-2,)),
        ((2, 3, 4, D), (1, 2)),
        ((2, 2, 3, 2, D), (1, 3)),
        # As of a video, each pixel through time. On TensorFlow the softmax of Keras's
        # layer takes no six axes.
        pytest.param((2, 2, 3, 4, D), 1, marks=pytest.mark.backends("jax", "torch")),
        ((2, 2, 3, 4, D), (3, 1)),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_attends_over_the_axes_of_keras(rng, shape, axes, masked):
    query = rng.normal(size=shape).astype("float32")
    value = rng.normal(size=shape).astype("float32")
    keras_layer, layer = both_layers(rng, shape, shape, attention_axes=axes)
    assert layer.attention_axes == keras_layer.attention_axes
    inputs = [keras.Input(batch_shape=shape) for _ in "ab"]
    _, scores = layer(*inputs, return_attention_scores=True)
    mask = None
    if masked:
        mask = rng.random(scores.shape) < 0.7
        mask[..., 0] = True
    arguments = {"attention_mask": mask, "return_attention_scores": True}

    def both(query, value):
        quiet = layer(query, value, attention_mask=mask)
        outputs = layer(query, value, **arguments)
        return quiet, *outputs, *keras_layer(query, value, **arguments)

    run = evaluated(both, layer, keras_layer)
    quiet, output, scores, expected, expected_scores = run(query, value)
    np.testing.assert_allclose(output, expected, atol=1e-5)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    np.testing.assert_allclose(quiet, expected, atol=1e-5)


@pytest.mark.parametrize("axes", [None, 1, 2, (2, 1)])
@pytest.mark.parametrize("implicit", [False, True])
def test_a_masked_key_has_weight_zero_whatever_the_axes(axes, implicit):
    ids = np.array([[[3, 0, 3], [3, 3, 0], [3, 3, 3]], [[3, 3, 3], [3, 3, 0], [0] * 3]])
    x = layers.PositionalEmbedding(10, D, positions=None)(ids)
    real = ids > 0
    given = {} if implicit else {"query_mask": real, "value_mask": real}
    if not implicit:
        x = ops.convert_to_numpy(x)
    layer = layers.MultiHeadAttention(2, 3, attention_axes=axes)
    _, scores = layer(x, x, return_attention_scores=True, **given)
    # To (B, target axes, source axes) of all positions, zero where not attended over.
    pairs = {
        None: "bhijkl->bijkl",
        1: "bjhik->bijk",
        2: "bihjl->bijl",
        (2, 1): "bhjilk->bijkl",
    }[axes]
    seen = np.einsum(pairs, ops.convert_to_numpy(scores)) > 0
    expected = {
        None: real[:, :, :, None, None] & real[:, None, None],
        1: real[..., None] & real.transpose(0, 2, 1)[:, None],
        2: real[..., None] & real[:, :, None],
    }
    np.testing.assert_array_equal(seen, expected.get(axes, expected[None]))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("name", "shape", "axis", "wanted"),
    [
        ("query_mask", (2, 5), 2, "(2, 3, 4), or (2, 4)"),
        ("query_mask", (2, 5), 1, "(2, 3, 4), or (2, 3)"),
        ("value_mask", (2, 4, 3), 2, "(2, 3, 4), or (2, 4)"),
        ("key_mask", (4,), 2, "(2, 3, 4), or (2, 4)"),
        ("key_mask", (), 2, "(2, 3, 4), or (2, 4)"),
        ("query_mask", (2, 3, 4, 1), 2, "(2, 3, 4), or (2, 4)"),
        ("attention_mask", (4,), 2, "(2, 3, None, 4, 4), or (2, 4, 4)"),
        ("attention_mask", (3, 4), 2, "(2, 3, None, 4, 4), or (2, 4, 4)"),
        ("attention_mask", (2, 3, 2, 4, 5), 2, "(2, 3, None, 4, 4), or (2, 4, 4)"),
    ],
)
def test_a_mask_must_fit_the_axes(name, shape, axis, wanted):
    x = np.zeros((2, 3, 4, D))
    layer = layers.MultiHeadAttention(2, 3, attention_axes=axis)
    begin = re.escape(f"`{name}` must have the shape {wanted}")
    message = f"{begin}.*{re.escape(f'{name}.shape={shape}')}"
    with pytest.raises(ValueError, match=message):
        layer(x, x, **{name: np.ones(shape, bool)})


@pytest.mark.parametrize("axes", [3, 4, -1, (1, 1), (1, -3)])
def test_axes_must_be_those_of_the_inputs(axes):
    x = np.zeros((2, 3, 3, D))
    with pytest.raises(ValueError, match="`attention_axes` must be .* of rank 4, not"):
        layers.MultiHeadAttention(2, 3, attention_axes=axes)(x, x)


def test_takes_the_weights_file_of_a_model_made_with_keras(rng, tmp_path):
    """The class is swapped in the source; trained weights still load."""

    def model(cls):
        inputs = keras.Input((T, D))
        hidden = cls(2, 3, use_gate=True, dropout=0.1, name="attention")(inputs, inputs)
        return keras.Model(inputs, keras.layers.Dense(1, name="dense")(hidden))

    theirs, ours = (
        model(keras.layers.MultiHeadAttention),
        model(layers.MultiHeadAttention),
    )
    theirs.save_weights(tmp_path / "a.weights.h5")
    ours.load_weights(tmp_path / "a.weights.h5")
    (x,) = draw(rng, T)
    np.testing.assert_allclose(numpy(ours(x)), numpy(theirs(x)), atol=1e-5)


def test_has_the_config_and_properties_of_keras():
    theirs, ours = (
        cls(2, 3, value_dim=4, dropout=0.1, attention_axes=(1,), output_shape=5)
        for cls in (keras.layers.MultiHeadAttention, layers.MultiHeadAttention)
    )
    skipped = {"name", "dtype"}
    for name, value in theirs.get_config().items():
        if name not in skipped:
            assert ours.get_config()[name] == value, name
    for name in (
        "num_heads",
        "key_dim",
        "value_dim",
        "dropout",
        "use_bias",
        "attention_axes",
    ):
        assert getattr(ours, name) == getattr(theirs, name)
    for each in (theirs, ours):
        each.build((B, T, D), (B, S, D))
    for name in ("query_dense", "key_dense", "value_dense", "output_dense"):
        ours_dense, theirs_dense = getattr(ours, name), getattr(theirs, name)
        assert ours_dense.kernel.shape == theirs_dense.kernel.shape


def test_each_projection_draws_its_own_numbers():
    layer = layers.MultiHeadAttention(2, D // 2, kernel_initializer="he_normal")
    layer.build((B, T, D), (B, T, D))
    kernels = [
        numpy(dense.kernel).ravel()
        for dense in (layer.query_dense, layer.key_dense, layer.value_dense)
    ]
    assert len({kernel.tobytes() for kernel in kernels}) == 3


# Where Keras's layer is at fault.


def test_a_given_query_mask_is_respected(rng):
    query, value = draw(rng, T, S)
    layer = built(rng)
    _, scores = layer(query, value, query_mask=QUERY_MASK, return_attention_scores=True)
    empty = numpy(scores).sum(-1) == 0.0  # (B, H, T)
    np.testing.assert_array_equal(empty, np.repeat(~QUERY_MASK[:, None], 4, axis=1))


def test_a_layer_that_is_not_built_has_symbolic_scores():
    query = keras.KerasTensor((None, T, 6, D))
    layer = layers.MultiHeadAttention(2, 3, attention_axes=-2)
    _, scores = layer.compute_output_spec(query, query, return_attention_scores=True)
    assert scores.shape == (None, T, 2, 6, 6) and layer.attention_axes == (-2,)


def test_symbolic_scores_have_the_shape_of_cross_attention():
    layer = layers.MultiHeadAttention(num_heads=2, key_dim=3)
    inputs = keras.Input((T, D)), keras.Input((S, D))
    output, scores = layer(*inputs, return_attention_scores=True)
    assert output.shape == (None, T, D)
    assert scores.shape == (None, 2, T, S)


def test_regularizers_and_constraints_are_those_of_keras(rng):
    query, value = draw(rng, T, S)
    pair = both_layers(
        rng,
        *(query.shape, value.shape),
        use_gate=True,
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer=keras.regularizers.L1(0.2),
        activity_regularizer=keras.regularizers.L2(0.3),
        kernel_constraint="non_neg",
        bias_constraint=keras.constraints.MaxNorm(0.5),
    )
    expected, losses = [], []
    for layer, found in zip(pair, (expected, losses), strict=True):
        layer(query, value)
        found += sorted(float(loss) for loss in layer.losses)
    assert len(losses) == 5 * 3  # five projections
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for theirs, ours in zip(*(layer.weights for layer in pair), strict=True):
        np.testing.assert_allclose(
            numpy(ours.constraint(ours)), numpy(theirs.constraint(theirs)), atol=1e-6
        )
        assert not np.allclose(numpy(ours.constraint(ours)), numpy(ours))


@pytest.mark.parametrize("flash_attention", [None, True, False])
def test_flash_attention_is_in_the_config(flash_attention):
    layer = layers.MultiHeadAttention(2, 3, flash_attention=flash_attention)
    assert layer.get_config()["flash_attention"] is flash_attention


@pytest.fixture
def without_flash():
    keras.config.disable_flash_attention()
    yield
    keras.config.enable_flash_attention()


@pytest.mark.backends("jax", "torch")
@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({}, "explicit"),
        ({"implementation": "fused"}, "fused"),
        ({"flash_attention": True}, "fused"),
    ],
    ids=str,
)
def test_the_switch_of_keras_counts(rng, monkeypatch, without_flash, options, kernel):
    chosen = noted_kernels(monkeypatch)
    layer, inputs = built(rng, **options), draw(rng, T, S)
    layer(*inputs)
    theirs = keras.layers.MultiHeadAttention(2, 3)
    keras.config.enable_flash_attention()
    layer(*inputs)  # It counts when a layer is made.
    layers.MultiHeadAttention.from_keras(theirs, **options)(*inputs)
    assert chosen == 3 * [kernel]
    built(rng)(*inputs)
    assert chosen[3:] == ["fused"]
    assert layer.get_config()["flash_attention"] == options.get("flash_attention")


@pytest.mark.parametrize(("given", "kernel"), [(True, "fused"), (False, "explicit")])
def test_flash_attention_chooses_the_kernel(rng, monkeypatch, given, kernel):
    chosen = noted_kernels(monkeypatch)
    built(rng, flash_attention=given)(*draw(rng, T, S))
    assert chosen == [kernel]


def noted_kernels(monkeypatch):
    """Returns a list that gets the name of each kernel that is called."""
    chosen = []

    def noted(name, function):
        def attend(*args, **options):
            chosen.append(name)
            return function(*args, **options)

        return attend

    for name, module, function in (
        ("explicit", functional.explicit, "softmax"),
        ("fused", functional.fused, "fused_attention"),
    ):
        noting = noted(name, getattr(module, function))
        monkeypatch.setattr(module, function, noting)
    return chosen


def test_inputs_keep_their_masks():
    inputs = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(9, D, mask_zero=True)(inputs)
    attended = layers.MultiHeadAttention(2, 3)(x, x)
    model = keras.Model(inputs, keras.layers.Add()([x, attended]))
    ids = np.array([[1, 2, 0]])
    np.testing.assert_array_equal(model(ids)._keras_mask, ids != 0)


def test_the_fast_path_is_taken_at_inference_with_dropout_configured(rng, monkeypatch):
    """The same kernel runs, so the numbers are equal to the last bit."""
    chosen, choose = [], functional.choose_implementation

    def noted(*shapes, **options):
        chosen.append(choose(*shapes, **options))
        return chosen[-1]

    monkeypatch.setattr(functional, "choose_implementation", noted)
    query, value = draw(rng, T, S)
    plain, configured = built(rng), built(rng, dropout=0.5)
    configured.set_weights(plain.get_weights())
    np.testing.assert_array_equal(
        numpy(configured(query, value)), numpy(plain(query, value))
    )
    has_kernel = keras.backend.backend() != "tensorflow"
    assert set(chosen) == {"fused" if has_kernel else "explicit"}


def test_a_mask_of_heads_combines_with_masks_of_inputs(rng):
    """B equals H here: a wrong broadcast would go unnoticed by its shape."""
    query, value = draw(rng, T, S)
    layer = built(rng, num_heads=B)
    heads_mask = rng.random((B, B, T, S)) < 0.7
    output, scores = layer(
        query,
        value,
        query_mask=QUERY_MASK,
        value_mask=VALUE_MASK,
        attention_mask=heads_mask,
        return_attention_scores=True,
    )
    mask = heads_mask & QUERY_MASK[:, None, :, None] & VALUE_MASK[:, None, None]
    expected, expected_scores = oracle.multi_head_attention(
        query, value, attention_weights(layer), mask=mask
    )
    np.testing.assert_allclose(numpy(output), expected, atol=1e-5)
    np.testing.assert_allclose(numpy(scores), expected_scores, atol=1e-5)


# What Keras's layer has not, against the oracle; more in test_multi_head_options.py.

OURS = {
    "num_key_value_heads": [None, 1, 2, 4],
    "scale": [None, 0.3],
    "implementation": list(functional.IMPLEMENTATIONS),
    "value_dim": [None, 2],
    "use_gate": [False, True],
    "use_bias": [True, False],
    "sliding_window": [None, 2],
    "masked": [False, True],
    "causal": [False, True],
    "return_attention_scores": [False, True],
}


@each_case(every_pair(**OURS))
def test_equals_the_oracle(rng, case):
    query, value, key = draw(rng, T, S, S)
    case = dict(case)
    masked, causal = case.pop("masked"), case.pop("causal")
    returns_scores = case.pop("return_attention_scores")
    layer = built(rng, **case)
    attend = functools.partial(
        layer,
        query_mask=QUERY_MASK if masked else None,
        value_mask=VALUE_MASK if masked else None,
        use_causal_mask=causal,
        return_attention_scores=returns_scores,
    )
    outputs = keras.tree.flatten(evaluated(attend, layer)(query, value, key))
    mask = QUERY_MASK[:, :, None] & VALUE_MASK[:, None] if masked else None
    expected = oracle.multi_head_attention(
        query,
        value,
        attention_weights(layer),
        key=key,
        mask=mask,
        scale=case["scale"],
        causal=causal,
        window=case["sliding_window"],
    )
    assert len(outputs) == 1 + returns_scores
    for left, right in zip(outputs, expected, strict=False):
        np.testing.assert_allclose(left, right, atol=1e-5)


@pytest.mark.parametrize("implementation", ["explicit", "fused"])
def test_implicit_masks_are_the_explicit_masks(rng, implementation):
    query, value = draw(rng, T, S)
    layer = built(rng, implementation=implementation)
    implicit = layer(with_mask(query, QUERY_MASK), with_mask(value, VALUE_MASK))
    explicit = layer(query, value, query_mask=QUERY_MASK, value_mask=VALUE_MASK)
    real = QUERY_MASK[..., None]
    np.testing.assert_allclose(
        numpy(implicit) * real, numpy(explicit) * real, atol=1e-6
    )
    np.testing.assert_array_equal(implicit._keras_mask, QUERY_MASK)


@pytest.mark.parametrize("implementation", ["explicit", "fused"])
def test_training_with_an_empty_row_stays_finite(rng, implementation):
    layer = built(rng, (B, T, D), (B, T, D), implementation=implementation)
    inputs, masks = keras.Input((T, D)), keras.Input((T,), dtype="bool")
    model = keras.Model([inputs, masks], layer(inputs, inputs, value_mask=masks))
    model.compile("sgd", "mse", jit_compile=JIT)
    model.optimizer.build(model.trainable_variables)
    (x,) = draw(rng, T)
    real = np.array([[True] * T, [False] * T])
    before = layer.get_weights()
    loss = model.train_on_batch([x, real], x)
    assert np.isfinite(loss)
    after = layer.get_weights()
    assert all(np.isfinite(weight).all() for weight in after)
    assert any(np.any(a != b) for a, b in zip(after, before, strict=True))


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "`num_heads`, expected a positive .*num_heads=0"),
        ({"num_heads": 2.0}, "`num_heads`, expected a positive .*num_heads=2.0"),
        ({"key_dim": -1}, "`key_dim`, expected a positive .*key_dim=-1"),
        ({"value_dim": 0}, "`value_dim`, expected a positive .*value_dim=0"),
        (
            {"num_key_value_heads": 3},
            "must divide `num_heads`.*heads=3, num_heads=4",
        ),
        ({"num_key_value_heads": 0}, "`num_key_value_heads`.*num_key_value_heads=0"),
        ({"sliding_window": 0}, "`sliding_window` must.*sliding_window=0"),
        ({"attention_axes": "1"}, "`attention_axes` must.*attention_axes='1'"),
        ({"output_shape": 1.5}, "Invalid `output_shape`: 1.5"),
        ({"output_shape": -3}, "Invalid `output_shape`: -3.*int, and positive."),
        ({"dropout": 1.0}, "`dropout` must be in .*dropout=1.0"),
        ({"dropout": 0.1, "flash_attention": True}, "Dropout is not supported.*=0.1"),
        ({"implementation": "quick"}, "`implementation` must.*'quick'"),
    ],
    ids=str,
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        layers.MultiHeadAttention(**{"num_heads": 4, "key_dim": 2, **arguments})


def test_flash_attention_returns_no_scores(rng):
    query, value = draw(rng, T, S)
    layer = built(rng, flash_attention=True)
    with pytest.raises(ValueError, match="Returning attention scores is not supported"):
        layer(query, value, return_attention_scores=True)


def test_says_which_inputs_do_not_fit(rng):
    query, value, key = draw(rng, T, S, S + 1)
    layer = layers.MultiHeadAttention(2, 3)
    message = r"All dimensions of `value` and `key`.*\(2, 5, 8\).*\(2, 6, 8\)"
    with pytest.raises(ValueError, match=message):
        layer(query, value, key)
    mask = np.ones((B, T, S), bool)
    with pytest.raises(ValueError, match=r"`value` must have rank 3.*2, 1, 5, 8"):
        layers.MultiHeadAttention(2, 3)(query, value[:, None], attention_mask=mask)


@pytest.mark.parametrize(
    "shape, wanted",
    [
        ((B, S, T), "`attention_mask` must be (..., target, source)"),
        ((3, T, S), "`attention_mask` must be (..., target, source)"),
        ((B, 3, T, S), "`mask` must broadcast"),
    ],
)
def test_says_which_mask_does_not_fit(rng, shape, wanted):
    query, value = draw(rng, T, S)
    message = f"{re.escape(wanted)}.*mask.shape={re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        built(rng)(query, value, attention_mask=np.ones(shape, bool))


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "hook", ["_compute_attention", "_compute_attention_mask", "_masked_softmax"]
)
def test_an_override_that_nothing_calls_is_refused(hook):
    class Own(layers.MultiHeadAttention):
        pass

    Own(2, 3)
    setattr(Own, hook, lambda self, *args, **kwargs: None)
    with pytest.raises(ValueError, match=f"`{hook}` must not.*Received: Own.{hook}"):
        Own(2, 3)


@pytest.mark.parametrize("name", ["query_mask", "value_mask", "attention_mask"])
def test_ones_and_zeros_are_a_mask(rng, name):
    """As in Keras."""
    query, value = draw(rng, T, S)
    masks = {"query_mask": QUERY_MASK, "value_mask": VALUE_MASK}
    mask = masks.get(name, rng.random((B, T, S)) < 0.7)
    layer = built(rng)
    expected = numpy(layer(query, value, **{name: mask}))
    for dtype in ("float32", "int32"):
        output = layer(query, value, **{name: mask.astype(dtype)})
        np.testing.assert_array_equal(numpy(output), expected)


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_norm_of_queries_and_keys_lets_masks_pass():
    """Keras warns of a layer that destroys a mask."""
    ids = np.array([[3, 4, 0]])
    x = keras.layers.Embedding(9, D, mask_zero=True)(ids)
    layer = layers.MultiHeadAttention(2, 4, qk_norm=True)
    _, scores = layer(x, x, return_attention_scores=True)
    assert (numpy(scores)[..., 2] == 0).all()
