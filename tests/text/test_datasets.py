"""Batches and text without TensorFlow are those with it."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap
import unittest.mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_seqattn as ks
from keras_seqattn.text.datasets import EpochDataset
from tests.cases import LINES as UNICODE
from tests.small import translation_model

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent.parent
LINES = [f"{i} red dogs{' and a cat' * (i % 5)}" for i in range(40)]
OTHERS = [f"{i} rote Hunde{' und eine Katze' * (i % 7)}" for i in range(40)]
SIZES = {"batch_tokens": 256, "bucket_lengths": (16, 32, 64)}


def tokenizer():
    return ks.text.SentencePieceTokenizer.train([*LINES, *OTHERS], 300, strict=False)


def both(make=ks.text.translation_batches, lines=(LINES, OTHERS), **options):
    """Makes the batches with TensorFlow, and as where it is not installed."""
    given = (*lines, tokenizer())
    with_tensorflow = make(*given, **SIZES, **options)
    with unittest.mock.patch.object(importlib.util, "find_spec", return_value=None):
        without = make(*given, **SIZES, **options)
    assert isinstance(with_tensorflow, tf.data.Dataset)
    assert isinstance(without, EpochDataset)
    return with_tensorflow, without


OPTIONS = {
    "plain": {},
    "in order": {"shuffle": False},
    "cutoff": {"repeat_batch": 2, "cutoff": 0.2},
    "sampled": {"sampling": 0.2},
    "views": {"repeat_batch": 2, "sampling": 0.2, "views": ("plain", "sampled")},
    "both directions": {"bidirectional_epochs": 2, "rows_multiple": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_batches_are_those_of_tensorflow(name):
    first, second = both(**OPTIONS[name])
    assert len(first) == len(second)
    for attribute in ("shapes", "skipped", "target_tokens"):
        assert getattr(first, attribute) == getattr(second, attribute)
    for _ in range(3):  # epochs
        passes = zip(first.as_numpy_iterator(), second, strict=True)
        for expected, batch in passes:
            arrays = map(keras.tree.flatten, (expected, batch))
            for one, other in zip(*arrays, strict=True):
                assert isinstance(other, np.ndarray) and other.dtype == "int32"
                np.testing.assert_array_equal(one, other)


def test_lines_make_batches_too():
    first, second = both(ks.text.language_batches, (LINES,))
    for expected, batch in zip(first.as_numpy_iterator(), second, strict=True):
        for one, other in zip(expected, batch, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_batch_may_be_asked_for_again():
    _, batches = both(cutoff=0.3, repeat_batch=2)
    epochs = []
    for _ in range(2):
        for index in (0, 1, -1):
            np.testing.assert_equal(batches[index], batches[index])
            assert batches[index][1].shape in batches.shapes
        epochs.append(sorted(batches[i][1].tobytes() for i in range(len(batches))))
        with pytest.raises(IndexError):
            batches[len(batches)]
        batches.on_epoch_end()
    assert epochs[0] != epochs[1]


def fitted(batches, *callbacks, epochs=3):
    keras.utils.set_random_seed(0)
    model = translation_model(tokenizer().vocabulary_size)
    model.compile(ks.training.Adam(0.01), ks.training.MaskedCrossentropy())
    history = model.fit(
        batches,
        epochs=epochs,
        shuffle=False,
        callbacks=list(callbacks),
        verbose=0,
    )
    return history.history


@pytest.mark.slow
@pytest.mark.backends("jax", "torch")
def test_a_training_is_the_same():
    losses = [fitted(batches) for batches in both()]
    for name, values in losses[0].items():
        np.testing.assert_allclose(values, losses[1][name], rtol=1e-5)


def test_a_training_is_resumed(tmp_path):
    def run(name, epochs):
        _, batches = both()
        resume = ks.training.Resume(tmp_path / name, data=batches)
        return fitted(batches, resume, epochs=epochs)["loss"]

    run("cut", 1)
    assert run("cut", 3) == run("whole", 3)


def test_an_epoch_that_fit_shuffles_is_resumed_within():
    """The skipped batches are those requested first; the others are made."""
    whole, resumed = (both()[1] for _ in range(2))
    resumed.pass_over(0, 2)
    order = [*reversed(range(len(whole)))]
    found = [resumed[index][1] for index in order][2:]
    for index, labels in zip(order[2:], found, strict=True):
        np.testing.assert_array_equal(labels, whole[index][1])


def random_lines(count):
    """Lines of characters of all scripts: from all of Unicode but its surrogates."""
    rng = np.random.default_rng(0)
    points = np.r_[0:0xD800, 0xE000:0x110000]
    for _ in range(count):
        common = rng.integers(32, 0x3000, rng.integers(0, 20))
        rare = points[rng.integers(0, len(points), rng.integers(0, 4))]
        yield "".join(map(chr, rng.permutation([*common, *rare])))


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)]
)
def test_ids_are_those_of_tensorflow_text(count):
    lines = [*UNICODE, *LINES, *random_lines(count)]
    for made in (tokenizer(), ks.text.ByteTokenizer()):
        ids = made.tokenize(lines)
        assert ids == made.tokenize(tf.constant(lines)).to_list()
        assert made.detokenize(ids) == lines


# The main job in small, where TensorFlow cannot be imported.
PROGRAM = """
    import sys

    sys.modules["tensorflow"] = sys.modules["tensorflow_text"] = None
    import keras_seqattn as ks

    lines = [f"{i} red dogs" for i in range(64)]
    tokenizer = ks.text.SentencePieceTokenizer.train(lines, 300, strict=False)
    batches = ks.text.translation_batches(lines, lines, tokenizer)
    recipe = ks.recipes.RECIPES["smoke"]
    model = recipe.make_model(tokenizer.vocabulary_size)
    model.fit(
        batches,
        validation_data=batches,
        epochs=1,
        shuffle=False,
        callbacks=[
            *recipe.average_callbacks(),
            ks.training.TranslationScore(lines[:4], lines[:4], tokenizer),
            ks.training.Resume(sys.argv[1] + "/backup", data=batches),
        ],
    )
    translator = ks.Translator(model, tokenizer)
    translator.save(sys.argv[1] + "/translator.keras")
    loaded = ks.Translator.load(sys.argv[1] + "/translator.keras")
    assert loaded(lines[:3]) == translator(lines[:3])
    assert loaded.translate(lines[:1], num_hypotheses=2)
    try:
        ks.text.WordPieceTokenizer.train(lines)
    except ImportError as error:
        assert "tensorflow" in str(error)
    else:
        raise AssertionError
    assert not any(name.startswith("tensorflow.") for name in sys.modules)
    print("done")
"""


@pytest.mark.slow
def test_the_main_job_runs_without_tensorflow(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend()},
    )
    assert done.stdout.endswith("done\n"), done.stderr[-2000:]
