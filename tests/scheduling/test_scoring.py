"""Scores of lists of token ids: their order, batches, and what counts."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.decoding import Ensemble
from keras_seqattn.models import LanguageModel, TranslationTransformer
from keras_seqattn.scheduling.scoring import score_lists, scored

pytestmark = pytest.mark.backends("torch")

NUM_LOGITS = 8


class Uniform:
    """A model to which all tokens are alike; it records the shapes of its inputs."""

    start_id, pad_id = 1, 0
    variables = ()

    def __init__(self, vocabulary_size=NUM_LOGITS):
        self.target_vocabulary_size = vocabulary_size
        self.shapes = []

    def __call__(self, inputs):
        target_ids = inputs["target_ids"] if isinstance(inputs, dict) else inputs
        self.shapes.append(tuple(target_ids.shape))
        return ops.zeros((*target_ids.shape, NUM_LOGITS))


def lists(lengths):
    return [[5] * length for length in lengths]


def test_scores_come_in_the_order_of_the_lists():
    lengths, numbers = [3, 90, 1, 17, *range(1, 80)], []
    scores = score_lists(Uniform(), lists(lengths), on_batch=numbers.append)
    expected = -np.log(NUM_LOGITS) * np.array(lengths)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert scores.dtype == "float32" and numbers == [64, 19]
    assert score_lists(Uniform(), []).shape == (0,)


def test_logits_of_low_precision_are_normalized_in_float32():
    class Mixed(Uniform):
        def __call__(self, inputs):
            return ops.cast(super().__call__(inputs), "bfloat16")

    scores = score_lists(Mixed(), lists([7]))
    np.testing.assert_allclose(scores, [-7 * np.log(NUM_LOGITS)], rtol=1e-6)


def test_forced_tokens_do_not_count():
    sources, targets = lists([2, 30, 4]), lists([5, 2, 20])
    scores = score_lists(Uniform(), sources, targets, num_forced=2)
    expected = -np.log(NUM_LOGITS) * np.array([3, 0, 18])
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("vocabulary_size", "length", "size"),
    [
        (8, 16, 64),
        (16_384, 64, 64),
        (32_000, 64, 32),
        (256_206, 16, 16),
        (256_206, 300, 1),
    ],
)
def test_fewer_are_scored_at_once_of_a_large_vocabulary(vocabulary_size, length, size):
    model = Uniform(vocabulary_size)
    score_lists(model, lists([length] * 64))
    assert {shape[0] for shape in model.shapes} == {size}


def test_fewer_are_scored_at_once_of_a_language_model_s_large_vocabulary():
    model = Uniform()
    del model.target_vocabulary_size
    model.vocabulary_size = 256_206
    score_lists(model, lists([16] * 64))
    assert {shape[0] for shape in model.shapes} == {16}


def test_fewer_are_scored_at_once_of_a_long_source():
    model = Uniform()
    score_lists(model, lists([300] * 64), lists([2] * 64))
    assert {shape[0] for shape in model.shapes} == {8}


def test_each_source_has_a_target():
    with pytest.raises(
        ValueError, match="`target_ids` must have 2 rows, as many as `s"
    ):
        scored(Uniform(), [[4, 2], [5, 2]], [[4, 2]])


def test_what_a_model_lacks_is_named():
    class Frozen:
        start_id, pad_id = 1, 0

    with pytest.raises(ValueError, match="translation model, with `variables`. Rec"):
        scored(Frozen(), [[4, 2]], [[4, 2]])


def test_a_model_that_only_searches_has_no_scores():
    class Searched:
        start_id, pad_id, variables = 1, 0, ()

    with pytest.raises(ValueError, match="`model` must be a model that can be called"):
        scored(Searched(), [[4, 2]], [[4, 2]])


def test_a_language_model_is_refused():
    model = LanguageModel(8, model_dim=8, num_heads=2, intermediate_dim=8)
    for one in (model, Ensemble([model, model])):
        with pytest.raises(ValueError, match="translation model; `TextGenerator.scor"):
            scored(one, [[1, 5]], [[4, 2]])


def test_ids_without_a_logit_are_refused():
    """The model does not say how many there are, but its output does."""
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    embed, pool = keras.layers.Embedding, keras.layers.GlobalAveragePooling1D
    x = embed(10, 4)(target) + pool(keepdims=True)(embed(10, 4)(source))
    inputs = {"source_ids": source, "target_ids": target}
    model = keras.Model(inputs, keras.layers.Dense(NUM_LOGITS)(x))
    model.start_id, model.pad_id = 1, 0
    assert scored(model, [[5, 2]], [[5, 7]]) < 0.0
    with pytest.raises(ValueError, match=r"`target_ids` must be in \[0, 8\)"):
        scored(model, [[5, 2]], [[5, 8]])


def test_an_ensemble_with_a_model_that_only_searches_has_no_scores():
    model = TranslationTransformer(50, model_dim=8, num_heads=2)

    class Plain:
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(model, name)

    with pytest.raises(ValueError, match="`model` must be a model that can be called"):
        scored(Ensemble([model, Plain()]), [[5, 2]], [[7, 2]])


def test_models_that_translate_do_not_continue_texts_together():
    """Even if they call their vocabulary's size as a language model does."""
    model = TranslationTransformer(50, model_dim=8, num_heads=2)
    model.vocabulary_size = 50
    pair = Ensemble([model, model])
    expected = scored(model, [[5, 2]], [[7, 2]])
    np.testing.assert_allclose(scored(pair, [[5, 2]], [[7, 2]]), expected, rtol=1e-5)
    assert len(Ensemble([pair, model]).models) == 2
