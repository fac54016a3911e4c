import keras
import numpy as np
import pytest

from keras_seqattn import decoding
from keras_seqattn.backend.compile import CompiledFunction
from keras_seqattn.decoding.hypotheses import SpecialTokens


@pytest.mark.backends("torch")
def test_a_sentence_without_hypotheses_has_an_empty_one():
    token_ids = np.zeros((2, 2, 1), "int32")
    token_ids[0, 0] = 5
    scores = np.array([[-1.5, -np.inf], [-np.inf, -np.inf]], "float32")
    found = decoding.Hypotheses(token_ids, (token_ids > 0).sum(-1), scores)
    assert found.ranked(0) == [([5], -1.5)]
    assert found.ranked(1) == [([], -np.inf)]


@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.parametrize(
    "search",
    [
        decoding.Greedy(),
        decoding.Sample(seed=1, num_hypotheses=3),
        decoding.BeamSearch(width=4, num_hypotheses=2),
        decoding.BeamSearch(width=4, num_hypotheses=2, num_groups=2),
    ],
)
def test_results_in_a_graph_are_those_of_arrays(rng, search):
    """A SavedModel has them in its graph."""
    batch_size, capacity = 6, 5
    limits = keras.ops.convert_to_tensor(np.array([5, 3, 1, 5, 4, 0], "int32"))
    seeds = keras.ops.zeros((batch_size,), "int32")
    prefix = keras.ops.zeros((batch_size, 0), "int32")
    state = search.begin(limits, seeds, prefix, capacity, SpecialTokens())
    state = keras.tree.map_structure(keras.ops.convert_to_numpy, state)
    drawn = {
        name: rng.integers(2, 9, x.shape).astype("int32")
        if x.dtype == "int32"
        else -rng.random(x.shape).astype("float32")
        for name, x in state._asdict().items()
        if name.endswith(("ids", "scores", "ranking"))
    }
    state = state._replace(**drawn)
    expected, found = search.results(state), CompiledFunction(search.results)(state)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)
