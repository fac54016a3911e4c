"""Notes on tensors last as long as the tensors, and no longer."""

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.layers.embedding.logits import Factors
from keras_seqattn.layers.embedding.notes import Notes
from keras_seqattn.layers.transformer.packing import Packing
from keras_seqattn.models import TranslationTransformer
from keras_seqattn.training import MaskedCrossentropy, Perplexity


class Note:
    """What a weak reference can be made to."""


def test_a_note_is_read_from_its_own_tensor_alone():
    notes, others = Notes("some"), Notes("other")
    x, y = ops.ones(3), ops.ones(3)
    notes.write(x, "first")
    notes.write(x, "second")
    assert notes.read(x) == "second"
    assert notes.read(y) is None
    assert others.read(x) is None


def test_a_note_goes_with_its_tensor():
    notes, x, note = Notes("some"), ops.ones(3), Note()
    notes.write(x, note)
    alive = weakref.ref(note)
    del note
    assert alive() is notes.read(x)
    del x
    gc.collect()
    assert alive() is None


@pytest.mark.backends("tensorflow")
def test_a_graph_is_freed_whose_tensors_have_notes_of_it():
    import tensorflow as tf

    notes, graph = Notes("some"), tf.Graph()
    with graph.as_default():
        x = tf.ones(3)
        notes.write(x, Factors(x, x + 1.0))
        assert notes.read(x).hidden is x
    alive = weakref.ref(graph)
    del x, graph
    gc.collect()
    assert alive() is None


@pytest.mark.backends("torch", "jax")  # On TensorFlow Keras itself keeps the graph.
def test_a_model_that_has_trained_leaves_nothing_behind(monkeypatch):
    made = []

    def noticed(cls):
        init = cls.__init__

        def __init__(self, *args):
            made.append(weakref.ref(self))
            init(self, *args)

        monkeypatch.setattr(cls, "__init__", __init__)

    for cls in (Factors, Packing):
        noticed(cls)
    ids = np.array([[3, 4, 5, 0], [3, 2, 0, 0]])
    model = TranslationTransformer(
        11, model_dim=8, num_heads=2, encoder_layers=1, decoder_layers=1
    )
    model.compile("sgd", MaskedCrossentropy(), metrics=[Perplexity()])
    model.fit({"source_ids": ids, "target_ids": ids}, ids, verbose=0)
    assert made
    del model
    keras.backend.clear_session()
    gc.collect()
    assert [reference() for reference in made] == [None] * len(made)
