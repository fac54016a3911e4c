"""What a `tf.data.Dataset` tells of its passes, without importing TensorFlow."""

from typing import Any

import keras

# The name that `text.graph`, which imports nothing from here, gives its datasets. What
# `map`, `zip` or `prefetch` makes of one inherits it.
OF_TEXT = "keras_seqattn.text"


def is_begun_again(dataset: Any, steps: int | None) -> bool:
    """Returns whether `fit` begins a dataset also at the end of each epoch of `steps`.

    A `tf.data.Dataset` that shuffles draws an order whenever an iterator of it begins.
    On TensorFlow Keras makes one for an epoch and, if the number of steps is known, one
    more at its end. On other backends the one at its end is a generator that nothing
    reads, so it begins nothing.
    """
    is_tensors = hasattr(dataset, "element_spec")
    return keras.backend.backend() == "tensorflow" and is_tensors and steps is not None


def is_made_of_batches(dataset: Any) -> bool:
    """Returns whether a `tf.data.Dataset` is made of one of `text`, by its name.

    Those of `text` themselves have the method `pass_over`.
    """
    is_dataset = hasattr(dataset, "element_spec") and hasattr(dataset, "options")
    if not is_dataset or hasattr(dataset, "pass_over"):
        return False
    return getattr(dataset.options(), "dataset_name", None) == OF_TEXT
