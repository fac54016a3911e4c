"""Distribution of weights and data over several devices and processes."""

from typing import Any

import keras
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.annotations import Dataset
from keras_seqattn.backend.processes import parts_of_batches

# Which axis of a weight is split over the mesh axis "model", by the weight's path: the
# axis of heads, of the feed-forward's width, or of the vocabulary. This is Megatron's
# rule: of two matrix products in a row, the first kernel is split by its columns and
# the second by its rows.
_HEADS = r".*(?<!additive_)attention(_\d+)?"  # `AdditiveAttention` has no such axis.
_SPLIT = {
    _HEADS + "/(query|key|value|gate)/kernel": (None, "model", None),
    _HEADS + "/(query|key|value|gate)/bias": ("model", None),
    _HEADS + "/score_vector": ("model", None),
    _HEADS + "/attention_output/kernel": ("model", None, None),
    r".*feed_forward(_\d+)?/(hidden|gate)/kernel": (None, "model"),
    r".*feed_forward(_\d+)?/(hidden|gate)/bias": ("model",),
    r".*feed_forward(_\d+)?/output/kernel": ("model", None),
    r".*embedding(_\d+)?/embeddings": ("model", None),
    r"output/kernel|.*token_logits(_\d+)?/kernel": (None, "model"),
}


def layout_map(
    device_mesh: keras.distribution.DeviceMesh,
) -> keras.distribution.LayoutMap:
    """Returns a map of which weights of this library's layers lie on which devices.

    For `keras.distribution.ModelParallel`, on JAX. The heads of attention, the width of
    the feed-forward, and the vocabulary of embeddings and logits are split over the
    mesh's axis "model". All other weights, among them those of recurrences and of
    `AdditiveAttention`, are on all devices. Layers are known by their names, so leave
    an `AdditiveAttention` the name that it has by default. The number of devices on
    that axis must divide the heads (also `num_key_value_heads`), `intermediate_dim` and
    the vocabulary's size.

    Args:
        device_mesh: `keras.distribution.DeviceMesh` with an axis "model". Batches are
            split over its first axis.

    Returns:
        A `keras.distribution.LayoutMap`. Layouts may be added for paths that it does
        not cover yet.

    Raises:
        ValueError: If the mesh has no axis "model".

    Example:
        >>> import keras
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

    Call it after the distribution is set: on JAX by
    `keras.distribution.set_distribution` with `auto_shard_dataset=False`, on TensorFlow
    in the scope of a `tf.distribute` strategy. Without a distribution, batches stay as
    they are. Each process makes the same batches, as `text.translation_batches` does
    by its seed, and takes its own rows of each. So together they train on each row
    once, in the same order as a single process. That holds for any number of
    processes, which may change from one run to the next.

    If the number of rows is not divisible by that of the devices, rows of `pad_id` are
    added at the end of the batch. They are padding, and have no weight in this
    library's losses and metrics. Where labels are of whole rows, such as classes, an
    added row would count, so such a batch is an error. With `rows_multiple` of
    `translation_batches` the devices get about the same number of tokens, which is
    faster. On TensorFlow it also keeps both copies of a pair on one device;
    `consistency` ignores pairs that are split, and those after one on the same device.

    Args:
        dataset: A `tf.data.Dataset` or `keras.utils.PyDataset` of batches: (nested)
            integer arrays whose first axis is the batch, the same in all processes.
        pad_id: Id of padding, that of the tokenizers and of the model.

    Returns:
        A dataset of the same kind and number of batches, with the `pass_over` method of
        `dataset` if it has one.

    Raises:
        ValueError: If `dataset` is neither of these, or if several processes train
            together and no distribution is set; for a batch (on `tf.data` with
            TensorFlow's own error), if its labels are not token ids `(B, T)`, T > 1,
            and the number of rows is not divisible by that of the devices.

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

    @property
    def num_batches(self):
        """The number of batches, None if they have no end."""
        return self._dataset.num_batches

    def __getitem__(self, index):
        """Returns this part of a batch."""
        return self._part(self._dataset[index])

    def __iter__(self):
        """Yields this part of each batch of a pass over the whole dataset."""
        for batch in self._dataset:
            yield self._part(batch)

    def _part(self, batch):
        for labels in _labels_of_rows(batch):
            if _bounds(len(labels), *self._parts)[2]:
                received = f"Received: labels of shape {labels.shape}."
                raise ValueError(f"{_divisible(self._parts[0])} {received}")
        return keras.tree.map_structure(self._cut, batch)

    def _cut(self, rows):
        before, after, missing = _bounds(len(rows), *self._parts)
        padding = [(0, missing)] + [(0, 0)] * (rows.ndim - 1)
        padded = np.pad(rows, padding, constant_values=self._pad_id)
        return padded[before:after]

    def on_epoch_begin(self):
        """Passes the call on to the whole dataset."""
        self._dataset.on_epoch_begin()

    def on_epoch_end(self):
        """Passes the call on to the whole dataset."""
        self._dataset.on_epoch_end()


def _part_of_tensors(dataset, pad_id, *parts):
    """Returns one part of each batch of a `tf.data.Dataset`."""
    import tensorflow as tf

    def cut(rows):
        before, after, missing = _bounds(tf.shape(rows)[0], *parts)
        padding = [(0, missing)] + [(0, 0)] * (rows.shape.rank - 1)
        padded = tf.pad(rows, padding, constant_values=tf.cast(pad_id, rows.dtype))
        return padded[before:after]

    is_tuple = type(dataset.element_spec) is tuple  # `map` unpacks these only.

    def cut_all(*batch):
        batch = batch if is_tuple else batch[0]
        for labels in _labels_of_rows(batch):
            missing = _bounds(tf.shape(labels)[0], *parts)[2]
            tf.debugging.assert_equal(missing, 0, _divisible(parts[0]))
        return tf.nest.map_structure(cut, batch)

    return dataset.map(cut_all).prefetch(tf.data.AUTOTUNE)


def _labels_of_rows(batch):
    """Returns those labels of a batch that are not token ids, such as a class a row."""
    is_pair = isinstance(batch, tuple | list)  # Keras takes a list for a tuple.
    labels = keras.tree.flatten(batch[1:2] if is_pair else ())
    dtypes = [keras.backend.standardize_dtype(x.dtype) for x in labels]
    return [
        x
        for x, dtype in zip(labels, dtypes, strict=True)
        if len(x.shape) < 2 or x.shape[1] == 1 or "int" not in dtype
    ]


def _divisible(replicas):
    """Returns the error for a batch in which the labels of added rows would count."""
    return (
        "`dataset` must have batches of a number of rows that is divisible by "
        f"{replicas}, the number of devices, where labels are not token ids: a row "
        "that is added would count. Choose such a size of batches, with "
        "`drop_remainder=True`."
    )


def _bounds(rows: Any, replicas: int, parts: int, part: int) -> tuple[Any, Any, Any]:
    """Returns where a part begins and ends, and how many rows the batch lacks."""
    missing = -rows % replicas
    size = (rows + missing) // parts
    return part * size, (part + 1) * size, missing
