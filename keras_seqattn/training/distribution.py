"""Training that several devices and processes share: their weights, and their data."""

from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Dataset
from keras_seqattn.backend.processes import parts_of_batches

# Which axis of a weight is split over the axis "model" of a mesh, by the weight's path:
# that of heads, of the feed-forward's width, of the vocabulary. Megatron's rule: the
# first of two products is split by its columns, the second by its rows.
_SPLIT = {
    r".*attention(_\d+)?/(query|key|value|gate)/kernel": (None, "model", None),
    r".*attention(_\d+)?/(query|key|value|gate)/bias": ("model", None),
    r".*attention(_\d+)?/score_vector": ("model", None),
    r".*attention(_\d+)?/attention_output/kernel": ("model", None, None),
    r".*feed_forward(_\d+)?/(hidden|gate)/kernel": (None, "model"),
    r".*feed_forward(_\d+)?/(hidden|gate)/bias": ("model",),
    r".*feed_forward(_\d+)?/output/kernel": ("model", None),
    r".*embedding(_\d+)?/embeddings": ("model", None),
    r"output/kernel|.*token_logits(_\d+)?/kernel": (None, "model"),
}


def layout_map(
    device_mesh: keras.distribution.DeviceMesh,
) -> keras.distribution.LayoutMap:
    """Returns which weights of our layers lie on which devices.

    For `keras.distribution.ModelParallel`, on JAX. Split over the mesh's axis "model"
    are the heads of attention, the width of the feed-forward and the vocabulary of
    embeddings and logits; everything else is on all devices, and so are the weights of
    recurrences. The number of devices on that axis must divide the heads (also
    `num_key_value_heads`), `intermediate_dim` and the vocabulary's size.

    Args:
        device_mesh: `keras.distribution.DeviceMesh` with an axis "model". Its first
            axis is the one that batches are split over.

    Returns:
        A `keras.distribution.LayoutMap`. More layouts may be added, for paths that it
        does not know yet.

    Raises:
        ValueError: If the mesh has no axis "model".

    Example:
        >>> mesh = keras.distribution.DeviceMesh(
        ...     (1, 1), ("batch", "model"), devices=["cpu:0"]
        ... )
        >>> layout_map(mesh)["decoder/decoder_0/self_attention/query/kernel"].axes
        (None, 'model', None)

    Reference:
        Shoeybi et al. 2019, "Megatron-LM", section 3. Differs: none.
    """
    wanted = 'a `keras.distribution.DeviceMesh` with an axis "model"'
    arguments.instance(
        "device_mesh", device_mesh, keras.distribution.DeviceMesh, wanted
    )
    if "model" not in device_mesh.axis_names:
        arguments.refuse("device_mesh", device_mesh, wanted)
    layouts = keras.distribution.LayoutMap(device_mesh)
    for path, axes in _SPLIT.items():
        layouts[path] = axes
    return layouts


def distribute(dataset: Dataset, pad_id: int = 0) -> Dataset:
    """Returns the part of each batch that this process trains on.

    Called where the distribution is set: `keras.distribution.set_distribution` with
    `auto_shard_dataset=False` on JAX, the scope of a `tf.distribute` strategy on
    TensorFlow; without one, batches stay as they are. Each process makes the same
    batches, as `text.translation_batches` does by its seed, and takes its rows of each,
    so that all together train on each row once, in the order of one process alone. That
    holds for any number of processes, which may change from one run to the next.

    A batch whose rows the devices do not divide gets rows of `pad_id` at its end. They
    are padding, and weigh nothing in our losses and metrics. With `rows_multiple` of
    `translation_batches` the devices have about as many tokens each, which is quicker;
    and on TensorFlow both copies of a pair are on one device, without which
    `consistency` passes over them.

    Args:
        dataset: A `tf.data.Dataset` or `keras.utils.PyDataset` of batches: (nested)
            integer arrays whose first axis is the batch, the same in all processes.
        pad_id: Id of padding, that of the tokenizers and of the model.

    Returns:
        A dataset of the same kind and number of batches, with the method `pass_over` of
        `dataset` if that has one.

    Raises:
        ValueError: If `dataset` is neither.

    Example:
        >>> from keras_seqattn.text import ByteTokenizer, translation_batches
        >>> batches = translation_batches(["one"], ["eins"], ByteTokenizer())
        >>> len(distribute(batches)) == len(batches)  # of one process: all
        True
    """
    arguments.integer("pad_id", pad_id, 0)
    if isinstance(dataset, keras.utils.PyDataset):
        part = _Part(dataset, pad_id, *parts_of_batches())
    else:
        offers = ("map", "element_spec", "prefetch")
        arguments.offers("dataset", dataset, offers, "a tf.data.Dataset or PyDataset")
        part = _part_of_tensors(dataset, pad_id, *parts_of_batches())
    if hasattr(dataset, "pass_over"):
        part.pass_over = dataset.pass_over
    return part


class _Part(keras.utils.PyDataset):
    """One part of each batch of a `PyDataset`."""

    def __init__(self, dataset, pad_id, replicas, parts, part):
        super().__init__(
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self._dataset, self._pad_id = dataset, pad_id
        self._parts = replicas, parts, part

    def __len__(self):
        """Returns the number of batches."""
        return len(self._dataset)

    def __getitem__(self, index):
        """Returns this part of a batch."""
        return keras.tree.map_structure(self._cut, self._dataset[index])

    def _cut(self, rows):
        before, after, missing = _bounds(len(rows), *self._parts)
        padding = [(0, missing)] + [(0, 0)] * (rows.ndim - 1)
        padded = np.pad(rows, padding, constant_values=self._pad_id)
        return padded[before:after]

    def on_epoch_begin(self):
        """Tells the whole dataset."""
        self._dataset.on_epoch_begin()

    def on_epoch_end(self):
        """Tells the whole dataset."""
        self._dataset.on_epoch_end()


def _part_of_tensors(dataset, pad_id, *parts):
    """Returns one part of each batch of a `tf.data.Dataset`."""
    import tensorflow as tf

    def cut(rows):
        before, after, missing = _bounds(tf.shape(rows)[0], *parts)
        padding = [(0, missing)] + [(0, 0)] * (rows.shape.rank - 1)
        padded = tf.pad(rows, padding, constant_values=tf.cast(pad_id, rows.dtype))
        return padded[before:after]

    batches = dataset.map(lambda *batch: tf.nest.map_structure(cut, batch))
    return batches.prefetch(tf.data.AUTOTUNE)


def _bounds(rows: Any, replicas: int, parts: int, part: int) -> tuple[Any, Any, Any]:
    """Returns where a part of a batch begins and ends, and how many rows it lacks."""
    missing = -rows % replicas
    size = (rows + missing) // parts
    return part * size, (part + 1) * size, missing
