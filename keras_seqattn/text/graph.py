"""What `text` needs of TensorFlow: tokenizing in graphs, and a `tf.data.Dataset`.

TensorFlow is imported only when it is needed, as for string tensors: lists of strings
are tokenized without it, except by a `WordPieceTokenizer`.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from keras_seqattn.annotations import Dataset, Tensor


def is_string_tensor(lines: Any) -> bool:
    """Returns whether lines are a TensorFlow tensor; it need not be installed."""
    tensorflow = sys.modules.get("tensorflow")  # Tensors imply that it is imported.
    return tensorflow is not None and tensorflow.is_tensor(lines)


def strings_of(lines: Tensor) -> list[str] | None:
    """Returns the strings of a tensor `(P,)`; None in a graph, which has no values."""
    import tensorflow as tf

    if not tf.executing_eagerly():
        return None
    return [line.decode(errors="replace") for line in lines.numpy()]


def ragged(rows: Iterable[list[int]]) -> Tensor:
    """Returns lists of ids as an int32 `tf.RaggedTensor`."""
    import tensorflow as tf

    # Not `tf.ragged.constant`, which goes through the ids one by one.
    flat = tf.constant([token for row in rows for token in row], tf.int32)
    return tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])


def bytes_of(strings: Tensor, offset: int) -> Tensor:
    """Returns the bytes of strings `(P,)`, each plus `offset`: int32, ragged."""
    import tensorflow as tf

    split = tf.strings.bytes_split(strings)
    codes = tf.reshape(tf.io.decode_raw(split.flat_values, tf.uint8), [-1])
    return split.with_flat_values(tf.cast(codes, tf.int32) + offset)


def sentencepiece_function(model: bytes) -> Callable[[Tensor, float], Tensor]:
    """Returns the function from strings and a sampling strength to ragged ids.

    It holds the model in its own graph. A `SentencepieceTokenizer` made outside a graph
    stops working, with every dataset that uses it, at the next
    `keras.utils.set_random_seed`, when TensorFlow drops the kernel that owns it.
    """
    import tensorflow as tf
    import tensorflow_text

    @tf.function(reduce_retracing=True)
    def to_ids(strings, nbest_size, alpha):
        processor = tensorflow_text.SentencepieceTokenizer(
            model, nbest_size=nbest_size, alpha=alpha
        )
        return processor.tokenize(strings)

    def tokenize(strings, sampling):
        nbest_size = tf.constant(-1 if sampling else 0)  # -1: from all segmentations.
        return to_ids(strings, nbest_size, tf.constant(sampling, tf.float32))

    return tokenize


def make_dataset(
    epochs: Callable[[], Iterable[Any]], example: Any, steps: int
) -> Dataset:
    """Returns a prefetched `tf.data.Dataset`, of which each pass is the next epoch.

    `epochs` returns the next epoch's batches: nested tuples and dicts of int32 arrays
    `(R, L)`, structured as `example` is. `steps` is the number of batches.
    """
    import tensorflow as tf

    ids = tf.TensorSpec((None, None), tf.int32)
    signature = tf.nest.map_structure(lambda array: ids, example)
    dataset = tf.data.Dataset.from_generator(epochs, output_signature=signature)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    # What is made of it, as by `map`, inherits the name, by which `Resume` knows it.
    options = tf.data.Options()
    options.dataset_name = "keras_seqattn.text"
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)
