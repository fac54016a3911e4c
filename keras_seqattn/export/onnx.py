"""A translator's model as an ONNX file: token ids in, logits out."""

import pathlib
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras

from keras_seqattn import arguments
from keras_seqattn.backend.parts import layers_of
from keras_seqattn.decoding.ensemble import single_models

if TYPE_CHECKING:
    from keras_seqattn.translator import Translator


# Names for the axes of the inputs and of the output.
AXES = {
    "source_ids": ("batch", "source_length"),
    "target_ids": ("batch", "target_length"),
    "logits": ("batch", "target_length"),
}
TOKENS = ("start_id", "end_id", "pad_id")
# The largest Protocol Buffers message; the file is one.
MOST_BYTES = 2**31 - 1


def prepare(
    translator: "Translator", path: pathlib.Path, opset_version: int | None = None
) -> Callable[[pathlib.Path], None]:
    """Returns the function that writes an ONNX file to the path it is given.

    The file holds only the model, for sequences of any lengths above 0. Tokenizers and
    search are up to the caller. `keras_seqattn.export` names its inputs, its output and
    its metadata; `Translator.export` says what `opset_version` means.

    Keras converts our models only on the TensorFlow backend. Save a translator that was
    trained on another (`Translator.save`), and load and export it under
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
    if not isinstance(model, keras.Model):
        arguments.refuse("model", model, "a Keras model for ONNX")
    for single in single_models(model):
        if not callable(single):  # The protocol of a search asks for no call.
            wanted = "an ensemble of models that can be called, for ONNX"
            arguments.refuse("model", single, wanted)
    # A quantized layer's policy differs from its model's.
    policies = {layer.dtype_policy.name for layer in layers_of(model)} - {"float32"}
    if policies:
        raise ValueError(
            '`model` must have the dtype policy "float32" for ONNX, in all its layers. '
            f"Received: dtype policy {min(policies)!r}."
        )
    if "chunked" in (getattr(x, "implementation", None) for x in layers_of(model)):
        wanted = "'auto', 'explicit' or 'fused' for ONNX, which lacks its loop"
        arguments.refuse("implementation", "chunked", wanted)
    size = 4 * model.count_params()
    if size > MOST_BYTES:
        raise ValueError(
            "`model` must have at most 2 GB of weights for ONNX, as the converter "
            f"writes one file. Received: weights of {size / 1e9:.1f} GB."
        )
    for package in ("onnx", "tf2onnx"):
        arguments.package(package, "export", '`format="onnx"`')

    def write(file):
        signature = {
            name: keras.InputSpec(shape=(None, None), dtype="int32", name=name)
            for name in ("source_ids", "target_ids")
        }
        with warnings.catch_warnings():
            # The warning comes from Keras's patch of tf2onnx for NumPy 2.
            warnings.filterwarnings("ignore", "In the future `np.object`")
            model.export(
                file,
                format="onnx",
                verbose=False,
                input_signature=[signature],
                opset_version=opset_version,
            )
        _describe(file, model, opset_version)

    return write


def _describe(file, model, opset_version):
    """Names the output and the axes, and puts the special tokens into the metadata.

    Refuses a version in which the converter has left operations of TensorFlow.
    """
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
    try:
        onnx.checker.check_model(made)
    except onnx.checker.ValidationError as error:
        if opset_version is None:
            raise
        wanted = "None, or a later version, with all operations of the model"
        raise ValueError(
            f"`opset_version` must be {wanted}. Received: {opset_version=}."
        ) from error
    onnx.save(made, file)
