"""What each layer says of inputs with another rank, or another batch than the rest."""

import re

import keras
import numpy as np
import pytest

from keras_seqattn import layers

pytestmark = pytest.mark.backends("torch")

MULTI_HEAD = {"num_heads": 2, "key_dim": 4}
BLOCK = {"num_heads": 2, "intermediate_dim": 12}
# A layer, shapes that fit, and shapes that do not with the arguments that are named.
CASES = {
    "encoder": (layers.EncoderBlock(**BLOCK), [(2, 4, 8)], [(2, 8)], "x"),
    "encoder, rank 4": (
        layers.EncoderBlock(**BLOCK),
        [(2, 4, 8)],
        [(2, 3, 4, 8)],
        "x",
    ),
    "decoder": (layers.DecoderBlock(**BLOCK), [(2, 4, 8)], [(2, 8)], "target"),
    "source": (
        layers.DecoderBlock(**BLOCK),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 4, 8), (2, 8)],
        "source",
    ),
    "source's batch": (
        layers.DecoderBlock(**BLOCK),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 4, 8), (3, 5, 8)],
        "target source",
    ),
    "multi-head": (
        layers.MultiHeadAttention(**MULTI_HEAD),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 8), (2, 8)],
        "query",
    ),
    "value": (
        layers.MultiHeadAttention(**MULTI_HEAD),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 4, 8), (2, 8)],
        "value",
    ),
    "value's batch": (
        layers.MultiHeadAttention(**MULTI_HEAD),
        [(2, 4, 8), (2, 5, 8)],
        [(1, 4, 8), (2, 5, 8)],
        "query value",
    ),
    "key's batch": (
        layers.MultiHeadAttention(**MULTI_HEAD),
        [(2, 4, 8), (2, 5, 8), (2, 5, 8)],
        [(2, 4, 8), (2, 5, 8), (3, 5, 8)],
        "query value key",
    ),
    "scaled dot": (
        layers.ScaledDotProductAttention(),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 8), (2, 8)],
        "query",
    ),
    "scaled dot, value": (
        layers.ScaledDotProductAttention(),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 4, 2, 8), (2, 5, 8)],
        "value",
    ),
    "scaled dot's batch": (
        layers.ScaledDotProductAttention(),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 4, 8), (3, 5, 8)],
        "query value",
    ),
    "additive": (
        layers.AdditiveAttention(6),
        [(2, 4, 8), (2, 5, 8)],
        [(2, 4, 8), (3, 5, 8)],
        "query value",
    ),
    "feed-forward": (layers.FeedForward(12), [(2, 8)], [(8,)], "x"),
    "recurrent": (layers.RecurrentEncoder(4), [(2, 4, 8)], [(2, 8)], "x"),
    "recurrent decoder": (
        layers.AttentiveRecurrentDecoder(4),
        [(2, 4, 8), (2, 5, 8), (2, 8)],
        [(2, 4, 8), (2, 5, 8), (2, 1, 8)],
        "state",
    ),
    "recurrent decoder's batch": (
        layers.AttentiveRecurrentDecoder(4),
        [(2, 4, 8), (2, 5, 8), (2, 8)],
        [(2, 4, 8), (3, 5, 8), (2, 8)],
        "target source state",
    ),
    "segments": (layers.SegmentMemory(3, 2), [(2, 4, 8)], [(2, 8)], "x"),
    "segments' batch": (
        layers.SegmentMemory(3, 2),
        [(2, 4, 8)],
        [(3, 4, 8)],
        "x memory",
    ),
    "sinusoids": (layers.SinusoidalPositions(), [(2, 4, 8)], [(4, 8)], "x"),
    "learned": (layers.LearnedPositions(6), [(2, 4, 8)], [(4, 8)], "x"),
    "rotary": (layers.RotaryPositions(), [(2, 4, 2, 8)], [(4, 8)], "x"),
    "relative": (layers.RelativeBias(), [(2, 4, 2, 8)], [(2, 4, 8)], "query"),
    "alibi": (layers.AlibiBias(), [(2, 4, 2, 8)], [(2, 4, 8)], "query"),
}


def arrays(shapes):
    return [np.zeros(shape, "float32") for shape in shapes]


def message(shapes, names):
    """What is said of the first that is named: its shape, which is one of those."""
    first, *_ = names.split()
    given = "|".join(re.escape(str(shape)) for shape in shapes)
    return rf"`{first}` must have.*Received: .*{first}\.shape=({given})"


@pytest.mark.parametrize("built", [False, True], ids=["first call", "built"])
@pytest.mark.parametrize("symbolic", [False, True], ids=["arrays", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_says_which_shape_does_not_fit(name, symbolic, built):
    layer, fit, wrong, names = CASES[name]
    layer = layer.__class__.from_config(layer.get_config())
    if built:
        layer(*arrays(fit))
    given = arrays(wrong)
    if symbolic:
        given = [keras.Input(batch_shape=shape) for shape in wrong]
    with pytest.raises(ValueError, match=message(wrong, names)) as raised:
        layer(*given)
    if len(names.split()) > 1:  # A batch: every input is named, with its shape.
        for argument in names.split():
            assert f"{argument}.shape=" in str(raised.value)


@pytest.mark.parametrize(
    "function",
    [
        layers.dot_product_attention,
        lambda q, k, v: layers.attention_scores(q, k),
        lambda q, k, v: layers.additive_attention(q, k, v, np.zeros((2, 8))),
    ],
)
def test_functions_say_which_batch_does_not_fit(function):
    query, key = arrays([(2, 4, 2, 8), (3, 5, 2, 8)])
    shapes = r"query.shape=\(2, 4, 2, 8\), key.shape=\(3, 5, 2, 8\)"
    with pytest.raises(ValueError, match=f"`query` must have the batch size.*{shapes}"):
        function(query, key, key)


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize(
    ("value", "key"),
    [((2, 5, 8), (2, 6, 8)), ((2, 5, 2, 8), (2, 5, 4, 8))],
    ids=["length", "heads"],
)
def test_keys_and_values_that_do_not_fit_are_refused(value, key, wanted):
    query = (2, 4, *key[2:])
    shapes = r"key.shape=.*value.shape=\(2, 5, \d, 8\)"
    with pytest.raises(ValueError, match=shapes):
        layers.ScaledDotProductAttention()(
            *arrays([query, value, key]), return_attention_scores=wanted
        )


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4)])
def test_an_embedding_with_positions_takes_ids_of_rank_two(shape):
    layer = layers.PositionalEmbedding(11, 8)
    message = rf"`inputs` must have rank 2.*{re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        layer(np.ones(shape, "int32"))
    without = layers.PositionalEmbedding(11, 8, positions=None)
    assert tuple(without(np.ones(shape, "int32")).shape) == (*shape, 8)
