"""Keras's own layers as ours: the same options, weights and outputs."""

import keras
import numpy as np
import pytest

from keras_seqattn import layers
from tests.evaluate import numpy

B, T, S, D = 2, 4, 5, 8

MULTI_HEAD = [
    {},
    {"value_dim": 5, "use_bias": False, "use_gate": True, "dropout": 0.2, "seed": 3},
    {"output_shape": (2, 3), "sliding_window": 2, "kernel_regularizer": "l2"},
]
GROUPED = [{}, {"use_gate": True, "use_bias": False, "sliding_window": 2}]


def theirs(options):
    return keras.layers.MultiHeadAttention(2, 3, name="attention", **options)


def grouped(options):
    return keras.layers.GroupQueryAttention(3, 4, 2, name="attention", **options)


@pytest.fixture
def inputs(rng):
    return [rng.normal(size=(B, length, D)).astype("float32") for length in (T, S)]


@pytest.mark.parametrize(
    ("make", "options"),
    [(theirs, options) for options in MULTI_HEAD]
    + [(grouped, options) for options in GROUPED],
)
def test_gives_what_the_layer_of_keras_gives(inputs, make, options):
    layer = make(options)
    expected, scores = layer(*inputs, return_attention_scores=True)
    ours = layers.MultiHeadAttention.from_keras(layer)
    output, our_scores = ours(*inputs, return_attention_scores=True)
    np.testing.assert_allclose(numpy(output), numpy(expected), atol=1e-5)
    np.testing.assert_allclose(numpy(our_scores), numpy(scores), atol=1e-5)
    assert ours.name == "attention"
    config = ours.get_config()
    for name, value in layer.get_config().items():
        if name in config and name != "dtype":
            assert config[name] == value, name


@pytest.mark.slow_on("jax")
def test_attends_over_the_axes_of_the_layer(rng):
    grid = rng.normal(size=(B, 3, 4, D)).astype("float32")
    layer = theirs({"attention_axes": 2})
    expected = layer(grid, grid)
    output = layers.MultiHeadAttention.from_keras(layer)(grid, grid)
    np.testing.assert_allclose(numpy(output), numpy(expected), atol=1e-5)


@pytest.mark.slow_on("jax")
def test_keeps_the_precision_and_what_is_frozen(inputs):
    layer = theirs({"dtype": "mixed_bfloat16", "trainable": False})
    layer(*inputs)
    ours = layers.MultiHeadAttention.from_keras(layer)
    assert ours.compute_dtype == "bfloat16"
    assert not any(weight.trainable for weight in ours.weights)
    np.testing.assert_allclose(numpy(ours(*inputs)), numpy(layer(*inputs)), atol=0.02)


@pytest.mark.backends("torch")
def test_a_projection_that_is_frozen_stays_frozen(inputs):
    layer = theirs({})
    layer(*inputs)
    layer.key_dense.trainable = False
    ours = layers.MultiHeadAttention.from_keras(layer)
    frozen = [w.path.partition("/")[2] for w in ours.non_trainable_weights]
    assert frozen == ["key/kernel", "key/bias"]
    layer.trainable = False
    assert layers.MultiHeadAttention.from_keras(layer, trainable=True).trainable_weights


def test_an_unbuilt_layer_gives_an_unbuilt_layer():
    ours = layers.MultiHeadAttention.from_keras(theirs({"flash_attention": True}))
    assert not ours.built
    assert (ours.num_heads, ours.key_dim, ours.flash_attention) == (2, 3, True)


def test_options_may_be_added(inputs):
    layer = theirs({})
    layer(*inputs)
    ours = layers.MultiHeadAttention.from_keras(
        layer, implementation="explicit", sliding_window=2
    )
    assert ours.implementation == "explicit"
    windowed = theirs({"sliding_window": 2})
    windowed.build(*(x.shape for x in inputs))
    windowed.set_weights(layer.get_weights())
    expected, _ = windowed(*inputs, return_attention_scores=True)
    np.testing.assert_allclose(numpy(ours(*inputs)), numpy(expected), atol=1e-5)


def lora(layer):
    layer.query_dense.enable_lora(2)


def int8(layer):
    layer.key_dense.quantize("int8")


@pytest.mark.parametrize("change", [lora, int8])
def test_refuses_weights_of_another_kind(inputs, change):
    layer = theirs({})
    layer(*inputs)
    change(layer)
    with pytest.raises(ValueError, match="`layer` must have the weights of a plain"):
        layers.MultiHeadAttention.from_keras(layer)


def test_refuses_a_layer_of_another_class():
    message = "`layer` must be a .*GroupQueryAttention.*Received: layer=<Dense"
    with pytest.raises(ValueError, match=message):
        layers.MultiHeadAttention.from_keras(keras.layers.Dense(3))


@pytest.mark.backends("torch")
def test_a_layer_within_another_becomes_one_of_another_name(inputs):
    """Weights are told by the sublayer and their name, wherever the layer stands."""

    class Outer(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="outer")
            self.inner = theirs({})

        def call(self, query, value):
            return self.inner(query, value)

    outer = Outer()
    expected = numpy(outer(*inputs))
    assert outer.inner.weights[0].path.startswith("outer/")
    ours = layers.MultiHeadAttention.from_keras(outer.inner, name="elsewhere")
    np.testing.assert_allclose(numpy(ours(*inputs)), expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_refuses_weights_in_another_order(inputs):
    class KeysFirst(keras.layers.MultiHeadAttention):
        @property
        def weights(self):
            query, key = super().weights[:2], super().weights[2:4]
            return [*key, *query, *super().weights[4:]]

    layer = KeysFirst(2, 3)
    layer(*inputs)
    with pytest.raises(ValueError, match="Received: weights .*'key/kernel.*'query/ker"):
        layers.MultiHeadAttention.from_keras(layer)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("hook", ["call", "_compute_attention", "_masked_softmax"])
def test_refuses_a_subclass_that_computes_something_else(hook):
    def other(self, query, value):
        return query

    subclass = type("Other", (keras.layers.MultiHeadAttention,), {hook: other})
    message = f"`layer` must be of Keras's own class.*Received: Other.{hook}"
    with pytest.raises(ValueError, match=message):
        layers.MultiHeadAttention.from_keras(subclass(2, 3))


@pytest.mark.backends("torch")
def test_takes_a_subclass_with_a_constructor_of_its_own(inputs):
    class Tagged(keras.layers.MultiHeadAttention):
        def __init__(self, *args, tag=None, **kwargs):
            super().__init__(*args, **kwargs)
            self.tag = tag

        def get_config(self):
            return {**super().get_config(), "tag": self.tag}

    layer = Tagged(2, 3, tag="x")
    expected = numpy(layer(*inputs))
    ours = layers.MultiHeadAttention.from_keras(layer)
    np.testing.assert_allclose(numpy(ours(*inputs)), expected, atol=1e-5)
