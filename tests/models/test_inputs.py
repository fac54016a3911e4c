"""The methods of models take NumPy's arrays and lists, and refuse what is no ids."""

import numpy as np
import pytest
from keras import ops, tree

from keras_seqattn import models
from tests.small import translation_model

SIZES = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 8}
MODELS = {
    "transformer": lambda: translation_model(9),
    "recurrent": lambda: models.TranslationRNN(9, model_dim=8),
    "language": lambda: models.LanguageModel(9, num_layers=1, **SIZES),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@pytest.mark.slow_on("tensorflow", "jax")
def test_arrays_and_lists_do_as_tensors_do(model):
    lists = [[3, 4, 5], [6]]
    ids = np.array([[3, 4, 5], [6, 0, 0]], "int64")

    def stepped(ids, token_ids, index, convert):
        memory = tree.map_structure(convert, model.encode(ids))
        state = tree.map_structure(convert, model.initial_state(memory, 4, width=2))
        if hasattr(model, "grow_state"):
            state = model.grow_state(state, 6, index)
            state = tree.map_structure(convert, state)
        logits, _ = model.step(token_ids, state, index)
        return ops.convert_to_numpy(logits)

    tokens = np.array([[1, 1], [1, 2]])
    given = (ops.convert_to_tensor(x, "int32") for x in (ids, tokens, 0))
    expected = stepped(*given, lambda x: x)
    arrays = stepped(ids, tokens, np.array(0, "int32"), ops.convert_to_numpy)
    np.testing.assert_array_equal(arrays, expected)
    listed = stepped(lists, tokens.tolist(), 0, lambda x: x)
    np.testing.assert_array_equal(listed, expected)


def test_steps_may_be_int64_as_numpy_counts_them(model):
    """TensorFlow adds no int64 to an int32."""
    state = model.initial_state(model.encode([[3, 4], [6]]), 4)
    expected, _ = model.step([[1], [1]], state, 0)
    own = {} if isinstance(model, models.LanguageModel) else {"start": np.zeros(2, int)}
    logits, _ = model.step([[1], [1]], state, np.array(0), **own)
    np.testing.assert_allclose(
        *map(ops.convert_to_numpy, (logits, expected)), atol=1e-6
    )


@pytest.mark.slow_on("tensorflow", "jax")
def test_what_is_no_token_ids_is_refused(model):
    first = "prompt_ids" if isinstance(model, models.LanguageModel) else "source_ids"
    with pytest.raises(ValueError, match=f"`{first}` must be integers.*'float64'"):
        model.encode(np.array([[3.5]]))
    with pytest.raises(ValueError, match=rf"`{first}` must have rank 2.*\(1,\)"):
        model.encode([3])
    state = model.initial_state(model.encode([[3]]), 2)
    with pytest.raises(ValueError, match=r"`token_ids` must have rank 2.*\(1,\)"):
        model.step(np.array([3]), state, 0)
    with pytest.raises(ValueError, match="`token_ids` must be an integer.*='a'"):
        model.step("a", state, 0)
