"""Devices and processes share each batch: no row twice, none left out."""

import importlib.util
import itertools
import os
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import tree

from keras_seqattn.text import ByteTokenizer, translation_batches
from keras_seqattn.training import distribute, distribution, layout_map
from tests.cases import CASES
from tests.documents import ROOT
from tests.small import translation_model

pytestmark = pytest.mark.backends("torch")

ROWS = (8, 3, 1)  # of batches; four replicas do not divide the last two


def batch(rows):
    ids = np.arange(1, 1 + rows * 2, dtype="int32").reshape(rows, 2)
    return {"source_ids": ids, "target_ids": ids + 100}, ids + 200


class Batches(keras.utils.PyDataset):
    """Batches by their index, that know of their epochs."""

    begun = ended = 0

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, index):
        return batch(ROWS[index])

    def on_epoch_begin(self):
        self.begun += 1

    def on_epoch_end(self):
        self.ended += 1


def tensors():
    example = batch(1)
    signature = tree.map_structure(
        lambda x: tf.TensorSpec((None, None), x.dtype), example
    )
    dataset = tf.data.Dataset.from_generator(
        lambda: map(batch, ROWS), output_signature=signature
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(len(ROWS)))


def as_arrays(dataset):
    batches = (dataset[i] for i in range(len(dataset)))
    if isinstance(dataset, tf.data.Dataset):
        batches = dataset.as_numpy_iterator()
    return list(batches)


@pytest.mark.parametrize("make", [tensors, Batches])
@pytest.mark.parametrize("replicas, parts", [(4, 1), (4, 2), (4, 4), (1, 1)])
def test_each_row_is_in_one_part(make, replicas, parts, monkeypatch):
    taken = []
    for part in range(parts):
        monkeypatch.setattr(
            distribution, "parts_of_batches", lambda p=part: (replicas, parts, p)
        )
        dataset = distribute(make())
        assert len(dataset) == len(ROWS)
        taken.append(as_arrays(dataset))
    for rows, *pieces in zip(ROWS, *taken, strict=True):
        inputs, labels = tree.map_structure(lambda *x: np.concatenate(x), *pieces)
        size = -(-rows // replicas) * replicas
        for found, expected in (
            *((inputs[name], batch(rows)[0][name]) for name in inputs),
            (labels, batch(rows)[1]),
        ):
            assert found.shape == (size, 2)
            np.testing.assert_array_equal(found[:rows], expected)
            assert not found[rows:].any()
        assert len({len(labels) for _, labels in pieces}) == 1


@pytest.mark.parametrize("tensorflow", [True, False])
def test_rows_that_are_added_are_padding(tensorflow, monkeypatch):
    monkeypatch.setattr(distribution, "parts_of_batches", lambda: (2, 1, 0))
    rows = np.full((3, 2), 5, "int32")
    whole = tf.data.Dataset.from_tensors(rows) if tensorflow else Batches()
    if not tensorflow:
        monkeypatch.setattr(Batches, "__getitem__", lambda self, index: rows)
    (batch,) = itertools.islice(distribute(whole, pad_id=15), 1)
    (batch,) = tree.flatten(batch)
    assert np.asarray(batch).tolist() == [[5, 5]] * 3 + [[15, 15]]


def of_arrays(arrays, tensorflow, monkeypatch):
    """Returns a dataset of one batch, and then of two replicas."""
    monkeypatch.setattr(distribution, "parts_of_batches", lambda: (2, 1, 0))
    if tensorflow:
        return tf.data.Dataset.from_tensors(arrays)
    monkeypatch.setattr(Batches, "__getitem__", lambda self, index: arrays)
    return Batches()


@pytest.mark.parametrize("tensorflow", [True, False])
@pytest.mark.parametrize(
    "labels",
    [np.ones(3, "int32"), np.ones((3, 1), "int32"), np.ones((3, 2), "float32")],
)
def test_labels_that_added_rows_would_have_are_refused(labels, tensorflow, monkeypatch):
    """A class of 0, or a number of 0, would count as any other."""
    ids = np.ones((3, 2), "int32")
    whole = of_arrays((ids, labels), tensorflow, monkeypatch)
    kind = tf.errors.InvalidArgumentError if tensorflow else ValueError
    message = "`dataset` must have .* divisible by 2.*`drop_remainder=True`"
    with pytest.raises(kind, match=message):
        next(iter(distribute(whole)))
    whole = of_arrays((ids[:2], labels[:2]), tensorflow, monkeypatch)
    _, found = next(iter(distribute(whole)))
    np.testing.assert_array_equal(np.asarray(found), labels[:2])


def test_labels_in_a_list_are_refused_alike(monkeypatch):
    """Keras takes a list for a tuple."""
    arrays = [np.ones((3, 2), "int32"), np.ones(3, "int32")]
    with pytest.raises(ValueError, match="`dataset` must have .* divisible by 2"):
        distribute(of_arrays(arrays, False, monkeypatch))[0]


@pytest.mark.parametrize("tensorflow", [True, False])
def test_rows_of_token_ids_may_have_weights(tensorflow, monkeypatch):
    ids, weights = np.ones((3, 2), "int32"), np.ones(3, "float32")
    whole = of_arrays((ids, ids, weights), tensorflow, monkeypatch)
    _, labels, found = next(iter(distribute(whole)))
    assert np.asarray(labels)[3].tolist() == [0, 0]
    assert np.asarray(found).tolist() == [1, 1, 1, 0]


def test_batches_may_have_no_end():
    class Endless(keras.utils.PyDataset):
        num_batches = None

        def __getitem__(self, index):
            return batch(1 + index)

    part = distribute(Endless())
    assert part.num_batches is None
    taken = list(itertools.islice(part, 3))
    assert [len(labels) for _, labels in taken] == [1, 2, 3]


@pytest.mark.parametrize("take", [lambda x: x, lambda x: {"ids": x}, lambda x: (x, x)])
def test_a_batch_keeps_its_structure(take):
    whole = tf.data.Dataset.from_tensor_slices(take([[1, 2], [3, 4]])).batch(2)
    assert distribute(whole).element_spec == whole.element_spec


def test_the_whole_dataset_is_told_of_its_epochs():
    whole = Batches()
    part = distribute(whole)
    part.on_epoch_begin()
    assert (whole.begun, whole.ended) == (1, 0)
    part.on_epoch_end()
    assert (whole.begun, whole.ended) == (1, 1)


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.parametrize("installed", [True, False])
def test_a_part_passes_over_epochs_as_the_whole_does(installed, monkeypatch):
    """What `Resume` calls, with tf.data and without TensorFlow."""
    if not installed:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    def batches():
        lines = [str(number) for number in range(100)]
        return translation_batches(lines, lines, ByteTokenizer(), batch_tokens=512)

    whole, part = batches(), distribute(batches())
    list(whole)
    part.pass_over(1)
    for _ in range(2):  # Each loop is the next epoch.
        for (_, labels), (_, others) in zip(whole, part, strict=True):
            np.testing.assert_array_equal(np.asarray(labels), np.asarray(others))
    assert not hasattr(distribute(Batches()), "pass_over")


@pytest.mark.backends("jax")
def test_processes_without_a_distribution_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    message = "`keras.distribution.set_distribution` must be called before.* no distr"
    with pytest.raises(ValueError, match=message):
        distribute(Batches())


@pytest.mark.backends("jax")
def test_each_device_computes_the_loss_of_its_own_rows():
    script = ROOT / "tests" / "training" / "devices.py"
    flags = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_no_dataset_is_refused():
    with pytest.raises(ValueError, match=r"`dataset` must be .*Received: dataset=\[1"):
        distribute([1])


def mesh(names=("batch", "model")):
    return keras.distribution.DeviceMesh((1, 1), names, devices=["cpu:0"])


SPLIT = {
    "encoder/encoder_0/self_attention_residual/self_attention/query/kernel": 1,
    "encoder/encoder_0/self_attention_residual/self_attention/value/bias": 0,
    "decoder/decoder_0/cross_attention_residual/cross_attention/key/kernel": 1,
    "decoder/decoder_0/cross_attention_residual/cross_attention/"
    "attention_output/kernel": 0,
    "decoder/decoder_0/feed_forward_residual/feed_forward/hidden/kernel": 1,
    "decoder/decoder_0/feed_forward_residual/feed_forward/hidden/bias": 0,
    "decoder/decoder_0/feed_forward_residual/feed_forward/output/kernel": 0,
    "source_embedding/embeddings": 0,
    "output/kernel": 1,
    "multi_head_attention_3/gate/kernel": 1,
    "feed_forward_2/gate/kernel": 1,
    "positional_embedding/embeddings": 0,
    "token_logits_1/kernel": 1,
}


def test_heads_feed_forward_and_vocabulary_are_split():
    layouts = layout_map(mesh())
    assert {path: layouts[path].axes.index("model") for path in SPLIT} == SPLIT


def test_all_large_weights_of_a_translation_model_are_split():
    model = translation_model(20, tie_embeddings=False)
    layouts = layout_map(mesh())
    split = {x.path for x in model.weights if layouts[x.path] is not None}
    own = ("encoder/", "decoder/", "source_embedding/", "output/")
    assert {path for path in SPLIT if path.startswith(own)} <= split
    kept = {x.path for x in model.weights} - split
    names = {path.rpartition("/")[2] for path in kept}
    assert not names & {"kernel", "embeddings"}
    # The biases left are of outputs, of which each device has a part of the sum.
    biases = {path.split("/")[-2] for path in kept if path.endswith("/bias")}
    assert biases == {"attention_output", "output"}


MODELS = [name for name in CASES if name.startswith("models.")]
LAYERS = [name for name in CASES if name.startswith("layers.")]


@pytest.mark.parametrize("name", [*MODELS, *LAYERS])
def test_layouts_fit_the_weights_of_every_model_and_layer(name):
    layouts = layout_map(mesh())
    for make, inputs in CASES[name]:
        made = make()
        if name in LAYERS:
            made(*inputs)  # which builds it
        found = [(x, layouts[x.path]) for x in made.variables]
        assert any(layout for _, layout in found) or name in LAYERS
        for variable, layout in found:
            assert layout is None or len(layout.axes) == len(variable.shape)


def test_a_mesh_without_models_is_refused():
    with pytest.raises(ValueError, match='`device_mesh` must be .* axis "model"'):
        layout_map(mesh(("batch", "other")))
