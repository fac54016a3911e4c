"""A translator's model as an ONNX file: token ids in, logits out."""

import pathlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras

from keras_seqattn import arguments
from keras_seqattn.backend.parts import layers_of
from keras_seqattn.export.artifact import needed_package

if TYPE_CHECKING:
    from keras_seqattn.translator import Translator


# The axes of the inputs and of the output, under names that say what they are.
AXES = {
    "source_ids": ("batch", "source_length"),
    "target_ids": ("batch", "target_length"),
    "logits": ("batch", "target_length"),
}
TOKENS = ("start_id", "end_id", "pad_id")
# What a message of Protocol Buffers, which the file is, can hold.
MOST_BYTES = 2**31 - 1


def prepare(
    translator: "Translator", path: pathlib.Path, opset_version: int | None = None
) -> Callable[[pathlib.Path], None]:
    """Returns the function that writes an ONNX file to the path it is given.

    The file holds the model alone: int32 `source_ids` `(batch, source_length)` and
    `target_ids` `(batch, target_length)`, any lengths, to float32 `logits` `(batch,
    target_length, vocabulary)`. Tokenizers and search are the caller's; `start_id`,
    `end_id` and `pad_id` stand in the file's metadata. `Translator.export` says what
    `opset_version` means.

    Keras converts models of ours on the TensorFlow backend alone. One that was trained
    on another is saved there (`Translator.save`), and loaded and exported under
    `KERAS_BACKEND=tensorflow`.
    """
    arguments.positive_integer("opset_version", opset_version, optional=True)
    backend, model = keras.backend.backend(), translator.model
    if path.suffix != ".onnx":
        raise ValueError(f'`path` must end in ".onnx". Received: path={str(path)!r}.')
    if backend != "tensorflow":
        raise ValueError(
            '`format` must not be "onnx" on this backend: Keras\'s exporter converts '
            "the model on TensorFlow alone. Save the translator, and load and export "
            f"it under KERAS_BACKEND=tensorflow. Received: backend {backend!r}."
        )
    # A quantized layer has a policy that its model has not.
    policies = {layer.dtype_policy.name for layer in layers_of(model)} - {"float32"}
    if policies:
        raise ValueError(
            '`model` must have the dtype policy "float32" for ONNX, in all its layers. '
            f"Received: dtype policy {min(policies)!r}."
        )
    size = 4 * model.count_params()
    if size > MOST_BYTES:
        raise ValueError(
            "`model` must have at most 2 GB of weights for ONNX, as the converter "
            f"writes one file. Received: weights of {size / 1e9:.1f} GB."
        )
    for package in ("onnx", "tf2onnx"):
        needed_package(package, "onnx")

    def write(file):
        signature = {
            name: keras.InputSpec(shape=(None, None), dtype="int32", name=name)
            for name in ("source_ids", "target_ids")
        }
        with warnings.catch_warnings():
            # Of Keras's patch of tf2onnx for NumPy 2.
            warnings.filterwarnings("ignore", "In the future `np.object`")
            model.export(
                file,
                format="onnx",
                verbose=False,
                input_signature=[signature],
                opset_version=opset_version,
            )
        _describe(file, model)

    return write


def _describe(file, model):
    """Names output and axes, which the converter numbers, and the special tokens."""
    import onnx

    made = onnx.load(file)
    (output,) = made.graph.output
    for node in made.graph.node:
        node.output[:] = ["logits" if n == output.name else n for n in node.output]
    output.name = "logits"
    for value in (*made.graph.input, output):
        axes = value.type.tensor_type.shape.dim[:2]  # the third is the vocabulary
        for axis, name in zip(axes, AXES[value.name], strict=True):
            axis.dim_param = name
    tokens = {name: str(getattr(model, name)) for name in TOKENS}
    onnx.helper.set_model_props(made, tokens)
    onnx.checker.check_model(made)
    onnx.save(made, file)
