"""Programs: how many, and how long they are kept."""

import gc
import weakref

import keras
import numpy as np
import pytest

from keras_seqattn import decoding, models
from keras_seqattn.scheduling.programs import compiled
from tests.pairs import slow

V = 11


class Scale:
    """Not a Keras model, so that nothing else keeps its variables."""

    def __init__(self):
        self.variables = [keras.Variable(np.float32(2.0))]


def scaled(model, number, x):
    return model.variables[0] * number * x


@pytest.mark.slow_on("tensorflow")
def test_programs_of_variables_that_were_replaced_are_dropped():
    """As those that `quantize` replaces: their memory is to be free."""
    model, x = Scale(), np.ones((1,), "float32")
    for number in (1.0, 3.0):
        found = keras.ops.convert_to_numpy(compiled(model, scaled, number)(x))
        assert found == 2.0 * number
    before = weakref.ref(model.variables[0])
    model.variables = [keras.Variable(np.float32(5.0))]
    assert keras.ops.convert_to_numpy(compiled(model, scaled, 1.0)(x)) == 5.0
    gc.collect()
    assert before() is None
    assert decoding.compile_report(model).num_programs == 1


@pytest.mark.parametrize("positions", ["rotary", *slow("learned")])
@pytest.mark.slow_on("tensorflow", "jax")
def test_few_programs_serve_prompts_near_the_limit(positions):
    """2 P + 10 tokens do not fit there, and each length has a limit of its own."""
    model = models.LanguageModel(
        V,
        model_dim=8,
        num_heads=2,
        num_layers=1,
        intermediate_dim=8,
        positions=positions,
        max_length=64,
    )
    search = decoding.Greedy(min_length=64)
    for length in range(33, 64, 3):
        found = model.generate(np.full((1, length), 4), search)
        assert found.lengths.tolist() == [[64 - length]]
    assert decoding.compile_report(model).num_programs == 2
