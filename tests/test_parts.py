"""What a layer is made of, compared with Keras's own private lists of it."""

import keras
import pytest

from keras_seqattn.backend.parts import layers_of, seed_generators_of
from keras_seqattn.layers import TransformerStack
from tests.test_contract import each_layer_example, example


def assert_parts_are_those_of_keras(layer):
    found, listed = layers_of(layer), layer._flatten_layers()
    assert found[0] is layer
    assert_each_once(found)
    missed = set(map(id, listed)) - set(map(id, found))
    assert not missed, [part.name for part in listed if id(part) in missed]
    more = [part for part in found if id(part) not in set(map(id, listed))]
    # Keras hides the functional model of a `Sequential`, our models their stacks; not
    # what these are made of.
    assert all(isinstance(part, keras.Model | TransformerStack) for part in more)

    drawing = seed_generators_of(layer)
    assert_each_once(drawing)
    generators = [generator for part in listed for generator in part._seed_generators]
    assert set(map(id, drawing)) == set(map(id, generators))


def assert_each_once(things):
    assert len(set(map(id, things))) == len(things)


@pytest.mark.slow_on("tensorflow")
@each_layer_example
def test_our_own_layers_and_models(name):
    assert_parts_are_those_of_keras(example(name)[0])


def test_models_of_keras_own_layers():
    inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(7, 4)(inputs)
    x = keras.layers.Bidirectional(keras.layers.GRU(3, return_sequences=True))(x)
    x = keras.Sequential([keras.layers.Dense(3), keras.layers.Dropout(0.1)])(x)
    model = keras.Model(inputs, keras.layers.TimeDistributed(keras.layers.Dense(2))(x))
    model.compile("adam", "mse", metrics=["mae"])
    assert_parts_are_those_of_keras(model)


def test_parts_in_containers_and_shared_ones():
    class Nested(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.shared = keras.layers.Dropout(0.1, seed=1)
            self.by_name = {"a": [self.shared, keras.layers.Dense(1)], "b": 3}
            self.pair = (keras.layers.Dense(2), {"c": keras.layers.Dropout(0.2)})

    layer = Nested()
    layer.by_name["a"].append(keras.layers.Dropout(0.3))
    assert_parts_are_those_of_keras(layer)
    assert len(layers_of(layer)) == 6
    assert len(seed_generators_of(layer)) == 3
