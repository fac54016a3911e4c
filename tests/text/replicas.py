"""Trains on one device, then on two that share each batch; prints what came out.

    python -m tests.text.replicas ROWS_MULTIPLE OPTIMIZER

On JAX it trains a third time, with weights that are split over the two. With 1 for a
multiple each batch has five rows, which two devices do not divide.

A process of its own: devices are counted when a backend starts.
"""

import contextlib
import functools
import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import keras  # noqa: E402

from keras_seqattn import text, training  # noqa: E402
from tests.small import translation_model  # noqa: E402

LINES = (
    ["a", "bb", "ccc", "dddd", "e f g"] * 3,
    ["x", "yy", "zzz", "wwww", "q r s t u v"] * 3,
)
TOKENIZER = text.ByteTokenizer()


def two_devices():
    """Returns the scope of the backend's own replicas."""
    if keras.backend.backend() == "jax":
        return keras.distribution.DataParallel().scope()
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()


def split_weights():
    """Returns the scope of one model whose weights lie on two devices."""
    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"))
    layouts = training.layout_map(mesh)
    return keras.distribution.ModelParallel(layout_map=layouts).scope()


def make_two_devices():
    """Parts TensorFlow's device in two; JAX's is, by what its flags say."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        (cpu,) = tf.config.list_physical_devices("CPU")
        twice = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, twice)


def train(scope, rows_multiple, optimizer):
    """Returns the losses of an epoch, and the weights after it."""
    batches = text.translation_batches(
        *LINES,
        TOKENIZER,
        batch_tokens=80,
        bucket_lengths=(8, 16) if rows_multiple > 1 else (16,),
        shuffle=False,
        rows_multiple=rows_multiple,
    )
    keras.utils.set_random_seed(0)
    with scope:
        batches = training.distribute(batches)
        model = translation_model(TOKENIZER.vocabulary_size, dropout=0.0)
        # The tokens of an average batch, or those of each.
        tokens = 30 if rows_multiple > 1 else None
        loss = training.MaskedCrossentropy(normalize_by=tokens)
        made = {"sgd": keras.optimizers.SGD, "adam": training.Adam}
        made["muon"] = training.Muon
        scaled = {"global_clipnorm": 0.05, "loss_scale_factor": 64.0}
        made["clipped"] = functools.partial(training.Adam, **scaled)
        metrics = [training.TokenCrossentropy()]
        model.compile(made[optimizer](0.01), loss, metrics=metrics)
        history = model.fit(batches, validation_data=batches, verbose=0)
        weights = [keras.ops.convert_to_numpy(x).tolist() for x in model.get_weights()]
    return {name: values[0] for name, values in history.history.items()}, weights


if __name__ == "__main__":
    make_two_devices()
    options = int(sys.argv[1]), sys.argv[2]
    scopes = [contextlib.nullcontext(), two_devices()]
    if keras.backend.backend() == "jax":
        scopes.append(split_weights())
    print(json.dumps([train(scope, *options) for scope in scopes]))
