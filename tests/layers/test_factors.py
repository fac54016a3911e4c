"""The factors of logits last as long as the logits, and no longer."""

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.layers.embedding.logits import (
    Factors,
    crossentropies_of,
    factors_of,
    keep_crossentropies,
    keep_factors,
)
from keras_seqattn.training import MaskedCrossentropy, Perplexity
from tests.small import translation_model

keeps = pytest.mark.backends("tensorflow", "jax")
LABELS = np.array([[1, 2]])


def made():
    """Returns logits `(1, 2, 5)` and what they are the product of."""
    hidden, kernel = ops.ones((1, 2, 3)), ops.ones((3, 5))
    return ops.matmul(hidden, kernel), hidden, kernel


@keeps
def test_factors_are_read_of_their_own_logits_alone():
    logits, hidden, kernel = made()
    assert keep_factors(logits, hidden, kernel) is logits
    assert factors_of(logits).hidden is hidden
    assert factors_of(logits).kernel is kernel
    assert factors_of(made()[0]) is None


@keeps
def test_crossentropies_are_those_of_the_same_labels_and_padding():
    logits, values = keep_factors(*made()), ops.ones(2)
    keep_crossentropies(logits, LABELS, 0, values)
    np.testing.assert_array_equal(crossentropies_of(logits, LABELS, 0), values)
    assert crossentropies_of(logits, LABELS.copy(), 0) is None
    assert crossentropies_of(logits, LABELS, 1) is None
    assert crossentropies_of(made()[0], LABELS, 0) is None


@keeps
def test_factors_go_with_their_logits():
    logits = keep_factors(*made())
    alive = weakref.ref(factors_of(logits))
    assert alive() is factors_of(logits)
    del logits
    gc.collect()
    assert alive() is None


@pytest.mark.backends("tensorflow")
def test_a_graph_is_freed_whose_logits_have_factors():
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default():
        x = tf.ones((1, 3))
        keep_factors(x, x, x + 1.0)
        assert factors_of(x).hidden is x
    alive = weakref.ref(graph)
    del x, graph
    gc.collect()
    assert alive() is None


@pytest.mark.backends("jax")
def test_outside_of_a_gradient_the_crossentropies_are_known_and_the_factors_are_not():
    import jax

    def function(hidden):
        logits = keep_factors(ops.matmul(hidden, ops.ones((3, 5))), hidden, None)
        keep_crossentropies(logits, LABELS, 0, ops.sum(logits, axis=(0, 2)))
        assert factors_of(logits).hidden is hidden
        return ops.sum(logits), logits

    (_, logits), _ = jax.value_and_grad(function, has_aux=True)(ops.ones((1, 2, 3)))
    assert factors_of(logits) is None
    np.testing.assert_array_equal(crossentropies_of(logits, LABELS, 0), [15.0, 15.0])


# On TensorFlow Keras's optimizer keeps the graph, by `tf.distribute`'s `all_reduce`.
@pytest.mark.slow_on("jax")
@pytest.mark.backends("torch", "jax")
def test_a_model_that_has_trained_leaves_nothing_behind(monkeypatch):
    made = []

    def noticed(cls):
        init = cls.__init__

        def __init__(self, *args):
            made.append(weakref.ref(self))
            init(self, *args)

        monkeypatch.setattr(cls, "__init__", __init__)

    for cls in (Factors, Unpadding):
        noticed(cls)
    ids = np.array([[3, 4, 5, 0], [3, 2, 0, 0]])
    model = translation_model(11)
    model.compile("sgd", MaskedCrossentropy(), metrics=[Perplexity()])
    model.fit({"source_ids": ids, "target_ids": ids}, ids, verbose=0)
    assert made
    del model
    keras.backend.clear_session()
    gc.collect()
    assert [reference() for reference in made] == [None] * len(made)
