"""ONNX: the same logits, for any lengths, under names that say what they are."""

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.export import export_translator
from tests.decoding import test_ensemble as ensembles
from tests.export.translators import make_translator

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
tensorflow_only = pytest.mark.skipif(not ON_TENSORFLOW, reason="Keras converts there")


@tensorflow_only
def test_the_file_gives_the_logits_of_the_model(tmp_path, rng):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    translator = make_translator(decoder_layers=1)
    path = export_translator(translator, tmp_path / "model.onnx", "onnx")
    assert list(tmp_path.iterdir()) == [path]
    session = onnxruntime.InferenceSession(path)
    shapes = {x.name: x.shape for x in session.get_inputs()}
    assert shapes == {
        "source_ids": ["batch", "source_length"],
        "target_ids": ["batch", "target_length"],
    }
    (output,) = session.get_outputs()
    assert output.name == "logits"
    assert output.shape == ["batch", "target_length", 260]
    metadata = session.get_modelmeta().custom_metadata_map
    assert metadata == {"start_id": "1", "end_id": "2", "pad_id": "0"}
    for batch_size, source_length, target_length in ((1, 1, 1), (3, 9, 4), (2, 5, 11)):
        ids = {
            "source_ids": rng.integers(2, 260, (batch_size, source_length)),
            "target_ids": rng.integers(2, 260, (batch_size, target_length)),
        }
        ids = {name: x.astype("int32") for name, x in ids.items()}
        ids["source_ids"][0, source_length // 2 + 1 :] = 0
        (logits,) = session.run(None, ids)
        expected = keras.ops.convert_to_numpy(translator.model(ids))
        np.testing.assert_allclose(logits, expected, atol=1e-4)


@tensorflow_only
@pytest.mark.slow
def test_a_version_without_the_operations_of_the_model_is_refused(tmp_path):
    pytest.importorskip("tf2onnx")
    translator = make_translator(decoder_layers=1)
    with pytest.raises(ValueError, match="`opset_version` must be .*opset_version=9"):
        export_translator(translator, tmp_path / "m.onnx", "onnx", opset_version=9)
    assert not list(tmp_path.iterdir())


@tensorflow_only
def test_an_ensemble_of_a_model_that_only_searches_is_refused(tmp_path):
    class Plain(ensembles.Plain):
        source_vocabulary_size = target_vocabulary_size = 260

    ensemble = ks.decoding.Ensemble([ks.decoding.Ensemble([Plain()])])
    translator = ks.Translator(ensemble, ks.text.ByteTokenizer())
    with pytest.raises(ValueError, match="`model` must be an ensemble of models that"):
        export_translator(translator, tmp_path / "model.onnx", "onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(ON_TENSORFLOW, reason="exports there")
def test_other_backends_are_refused(tmp_path):
    message = f"KERAS_BACKEND=tensorflow.*Received: backend '{keras.backend.backend()}'"
    with pytest.raises(ValueError, match=message):
        export_translator(make_translator(), tmp_path / "model.onnx", "onnx")
    assert not list(tmp_path.iterdir())


def test_a_path_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r'end in ".onnx". Received: .*model.bin'):
        export_translator(make_translator(), tmp_path / "model.bin", "onnx")


@tensorflow_only
def test_mixed_precision_is_refused(tmp_path):
    translator = make_translator(dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match="Received: dtype policy 'mixed_bfloat16'"):
        export_translator(translator, tmp_path / "model.onnx", "onnx")


@tensorflow_only
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_a_quantized_model_is_refused(tmp_path):
    translator = make_translator()
    translator.model.quantize("int8", filters="output")
    with pytest.raises(ValueError, match="Received: dtype policy 'int8_from_float32'"):
        export_translator(translator, tmp_path / "model.onnx", "onnx")


@tensorflow_only
def test_the_chunked_kernel_is_refused(tmp_path):
    translator = make_translator(attention={"implementation": "chunked"})
    with pytest.raises(ValueError, match="Received: implementation='chunked'"):
        export_translator(translator, tmp_path / "model.onnx", "onnx")
    assert not list(tmp_path.iterdir())


@tensorflow_only
def test_what_no_file_could_hold_is_refused(tmp_path, monkeypatch):
    translator = make_translator()
    monkeypatch.setattr(type(translator.model), "count_params", lambda self: 6 * 10**8)
    with pytest.raises(ValueError, match="at most 2 GB.*Received: weights of 2.4 GB"):
        export_translator(translator, tmp_path / "model.onnx", "onnx")
