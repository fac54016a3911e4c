"""Saving in one process and loading in another, which knows the package alone.

`python -m tests.roundtrip FOLDER` loads each thing that `save` left in a folder of
FOLDER, uses it as `use` does, and writes what it gave beside it.
"""

import json
import pathlib
import sys

import keras
import numpy as np
from keras import ops

import keras_seqattn
import keras_seqattn.text  # The tokenizers are registered where they are needed.
from tests.evaluate import evaluated, numpy


def use(thing, inputs):
    """Returns what a thing gives for inputs, as a list of NumPy arrays."""
    if hasattr(thing, "tokenize"):
        rows = thing.tokenize(list(inputs[0]))
        return [np.concatenate(rows), np.array(thing.detokenize(rows))]
    if isinstance(thing, keras.metrics.Metric):
        thing.reset_state()
        thing.update_state(*inputs)
        return [ops.convert_to_numpy(thing.result())]
    if isinstance(thing, keras.optimizers.Optimizer):
        weight = keras.Variable(inputs[0])
        fresh = type(thing).from_config(thing.get_config())
        fresh.apply([ops.convert_to_tensor(inputs[1])], [weight])
        return [ops.convert_to_numpy(weight)]
    if hasattr(thing, "advance"):
        return list(_searched(thing, *inputs))
    if isinstance(thing, keras.Model):
        (graph, *_) = getattr(thing, "models", [thing])  # of an ensemble, any
        names = [tensor.name for tensor in graph.inputs]
        inputs = [dict(zip(names, inputs, strict=True))]
        thing = evaluated(thing, thing)
    return [numpy(output) for output in keras.tree.flatten(thing(*inputs))]


def _searched(method, table):
    def step(token_ids, state, index):
        logits = ops.take(state["sentence"]["table"], index, axis=1)[:, None]
        return ops.repeat(logits, token_ids.shape[1], axis=1), state

    return keras_seqattn.decoding.search(
        step,
        {"beam": {}, "sentence": {"table": table}},
        batch_size=table.shape[0],
        max_length=table.shape[1],
        method=method,
    )


def save(thing, inputs, folder):
    """Saves a model as a `.keras` file, all else as its serialized configuration."""
    folder.mkdir()
    if isinstance(thing, keras.Model):
        thing.save(folder / "thing.keras")
    else:
        config = keras.saving.serialize_keras_object(thing)
        (folder / "thing.json").write_text(json.dumps(config))
    np.savez(folder / "inputs.npz", *inputs)


def load(folder):
    """Loads what `save` saved, as a stranger: safely, with no custom objects."""
    if (folder / "thing.keras").exists():
        return keras.models.load_model(folder / "thing.keras", safe_mode=True)
    config = json.loads((folder / "thing.json").read_text())
    return keras.saving.deserialize_keras_object(config, safe_mode=True)


def arrays(path):
    """Reads the arrays of an `.npz` file, in their order."""
    with np.load(path) as file:
        return [file[name] for name in file.files]


if __name__ == "__main__":
    for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        outputs = use(load(folder), arrays(folder / "inputs.npz"))
        np.savez(folder / "outputs.npz", *outputs)
