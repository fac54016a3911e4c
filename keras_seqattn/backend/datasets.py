"""What datasets of TensorFlow and torch tell of their passes, without an import."""

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


def has_generator(dataset: Any) -> bool:
    """Returns whether a `torch.utils.data.DataLoader` draws by a generator of its own.

    How many numbers it draws for a pass depends on who makes the pass, and how far it
    goes. Without a generator it draws from torch's own random numbers.
    """
    is_loader = hasattr(dataset, "batch_sampler")
    # The loader hands its generator on to a sampler that draws.
    sampler = getattr(dataset, "sampler", None) if is_loader else None
    return getattr(sampler, "generator", None) is not None
