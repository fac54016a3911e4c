"""SavedModel: strings in, strings out, the same translations without this library."""

import json
import re
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.export import export_translator
from keras_seqattn.scheduling import generation
from tests.decoding import test_ensemble as ensembles
from tests.export.translators import LINES, make_translator
from tests.small import make_sentencepiece

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
tensorflow_only = pytest.mark.skipif(not ON_TENSORFLOW, reason="TensorFlow's format")

# Keras cannot be taken away: `import tensorflow_text` itself imports it.
SERVE = """
import json, sys
for name in ("keras_seqattn", "sentencepiece"):
    sys.modules[name] = None
import tensorflow as tf
import tensorflow_text

loaded = tf.saved_model.load(sys.argv[1])
lines = tf.constant(json.loads(sys.argv[2]))
outputs = {
    name: {key: x.numpy().tolist() for key, x in signature(lines=lines).items()}
    for name, signature in loaded.signatures.items()
}
assert not any(name.startswith("keras_seqattn.") for name in sys.modules)
decode = lambda x: x.decode() if isinstance(x, bytes) else list(map(decode, x))
for found in outputs.values():
    found["translations"] = decode(found["translations"])
print(json.dumps(outputs))
"""


def served(translator, lines, folder, **options):
    """Exports, and gives what each signature answers in this process."""
    import tensorflow as tf

    path = export_translator(translator, folder / "m", overwrite=True, **options)
    signatures = tf.saved_model.load(str(path)).signatures
    return {
        name: {key: x.numpy() for key, x in signature(lines=tf.constant(lines)).items()}
        for name, signature in signatures.items()
    }


def decoded(array):
    return [text.decode() for text in array]


@tensorflow_only
@pytest.mark.slow_on("tensorflow")
def test_a_fresh_process_serves_the_same_translations(tmp_path):
    source, target = make_sentencepiece(), make_sentencepiece(300)
    search = ks.decoding.BeamSearch(width=2, num_hypotheses=2)
    translator = make_translator(
        search, source, target, decoder_layers=1, max_length=16
    )
    lines = [*LINES, "dogs " * 20, *(f"{'dogs ' * (i % 4)}{i}" for i in range(9))]
    path = export_translator(translator, tmp_path / "model", batch_size=4)
    done = subprocess.run(
        [sys.executable, "-c", SERVE, path, json.dumps(lines)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    outputs = json.loads(done.stdout.splitlines()[-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = translator.translate(lines, num_hypotheses=2)
    filled = [i for i, line in enumerate(lines) if line.strip()]
    found = outputs["n_best"]
    assert [found["translations"][i] for i in filled] == [
        [text for text, _ in expected[i]] for i in filled
    ]
    np.testing.assert_allclose(
        [found["scores"][i] for i in filled],
        [[score for _, score in expected[i]] for i in filled],
        atol=1e-4,
    )
    best = outputs["serving_default"]
    assert best["translations"] == [pairs[0][0] for pairs in expected]
    assert best["scores"] == [scores[0] for scores in found["scores"]]
    assert len(set(best["translations"])) > 5


@pytest.mark.slow
@tensorflow_only
def test_all_hypotheses_of_pieces_are_served(tmp_path):
    search = ks.decoding.BeamSearch(width=2, num_hypotheses=2)
    pieces = make_sentencepiece(), make_sentencepiece(300)
    translator = make_translator(search, *pieces, decoder_layers=1, max_length=12)
    found = served(translator, ["two dogs", "a man"], tmp_path, batch_size=2)
    expected = translator.translate(["two dogs", "a man"], num_hypotheses=2)
    n_best = found["n_best"]
    for texts, scores, pairs in zip(
        n_best["translations"], n_best["scores"], expected, strict=True
    ):
        assert decoded(texts) == [text for text, _ in pairs]
        np.testing.assert_allclose(scores, [score for _, score in pairs], atol=1e-4)
    best = decoded(found["serving_default"]["translations"])
    assert best == [pairs[0][0] for pairs in expected]


@tensorflow_only
def test_lines_that_are_empty_or_too_long(tmp_path):
    translator = make_translator(ks.decoding.BeamSearch(2), decoder_layers=1)
    lines = ["", "x" * 23, " \u3000\x1f\t", "x" * 24, "x" * 99, "x", "é"]
    # The line break at the end does not count, and those before it do.
    lines += ["x" * 23 + "\r\n", "x\n\r\n", "x\ny", "\nx"]
    found = served(translator, lines, tmp_path, batch_size=2)["serving_default"]
    with pytest.warns(UserWarning, match="2 of 11 lines"):
        pairs = [pairs[0] for pairs in translator.translate(lines)]
    expected = [text for text, _ in pairs]
    assert decoded(found["translations"]) == expected
    assert expected[1] == expected[3] == expected[4] != ""
    assert expected[7] == expected[1] and expected[8] == expected[5]
    filled = [1, *range(3, len(lines))]
    scores = [pairs[i][1] for i in filled]
    np.testing.assert_allclose(found["scores"][filled], scores, atol=1e-4)
    assert found["scores"][[0, 2]].tolist() == [0.0, 0.0]


@tensorflow_only
@pytest.mark.slow_on("tensorflow")
def test_an_ensemble_is_served(tmp_path):
    first, second = (make_translator(seed=seed, max_length=16) for seed in (1, 2))
    ensemble = ks.decoding.Ensemble([first.model, second.model])
    translator = ks.Translator(ensemble, first.source_tokenizer)
    found = served(translator, LINES, tmp_path, batch_size=4)["serving_default"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert decoded(found["translations"]) == translator(LINES)


@tensorflow_only
@pytest.mark.slow_on("tensorflow")
def test_stop_tokens_end_its_texts_too(tmp_path):
    search = ks.decoding.BeamSearch(2, stop_ids=tuple(range(64, 124)))
    translator = make_translator(search, max_length=16)
    lines = ["x", "two dogs", "a man"]
    found = served(translator, lines, tmp_path, batch_size=2)["serving_default"]
    expected = [best for (best,) in translator.translate(lines)]
    assert decoded(found["translations"]) == [text for text, _ in expected]
    scores = [score for _, score in expected]
    np.testing.assert_allclose(found["scores"], scores, atol=1e-4)
    translator.search = ks.decoding.BeamSearch(2)
    assert translator(lines) != [text for text, _ in expected]


@pytest.mark.slow
@tensorflow_only
def test_compiled_and_a_limit_of_the_export_alone(tmp_path):
    import tensorflow as tf

    translator = make_translator(max_length=None, decoder_layers=1)
    options = {"batch_size": 2, "max_length": 12, "jit_compile": True}
    found = served(translator, ["abc", "x" * 30], tmp_path, **options)
    assert decoded(found["serving_default"]["translations"]) == translator(
        ["abc", "x" * 11]
    )
    signature = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    assert signature(lines=tf.constant([], tf.string))["scores"].shape == (0,)
    specs = signature.structured_input_signature[1]
    assert specs == {"lines": tf.TensorSpec((None,), tf.string, name="lines")}
    outputs = signature.structured_outputs
    assert outputs["translations"].shape.as_list() == [None]
    assert outputs["translations"].dtype == tf.string
    assert outputs["scores"].dtype == tf.float32


@pytest.mark.skipif(ON_TENSORFLOW, reason="exports there")
def test_other_backends_are_refused(tmp_path):
    message = f"KERAS_BACKEND=tensorflow.*Received: backend '{keras.backend.backend()}'"
    with pytest.raises(ValueError, match=message):
        export_translator(make_translator(), tmp_path / "model")
    assert not list(tmp_path.iterdir())


@tensorflow_only
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "`batch_size` must be .*Received: batch_size=0"),
        (
            {"max_length": 25},
            r"an integer in \[2, 24\] or None. Received: max_length=25",
        ),
        ({"max_length": 1}, "`max_length` must be .*Received: max_length=1"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export_translator(make_translator(), tmp_path / "model", **options)
    assert not list(tmp_path.iterdir())


@tensorflow_only
@pytest.mark.slow
def test_a_model_without_a_limit_gets_one(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "MOST_TOKENS", 20)
    translator = make_translator(max_length=None, decoder_layers=1)
    found = served(translator, ["abc", "x" * 30], tmp_path, batch_size=2)
    texts = decoded(found["serving_default"]["translations"])
    assert texts == translator(["abc", "x" * 19])


@tensorflow_only
@pytest.mark.slow
def test_a_translator_s_own_limit_is_kept(tmp_path):
    model = make_translator(max_length=None, decoder_layers=1).model
    tokenizer = ks.text.ByteTokenizer()
    translator = ks.Translator(model, tokenizer, max_source_length=9)
    found = served(translator, ["abc", "x" * 30], tmp_path, batch_size=2)
    texts = decoded(found["serving_default"]["translations"])
    assert texts == translator(["abc", "x" * 8])


@tensorflow_only
def test_a_model_may_generate_less_after_some_sources(tmp_path):
    translator = make_translator(decoder_layers=1)
    lines = ["abc", "x" * 20, "x"]
    without = translator(lines)
    translator.model.most_generated = lambda length: 22 - length
    expected = translator(lines)
    assert expected[1] != without[1]
    found = served(translator, lines, tmp_path, batch_size=2)["serving_default"]
    assert decoded(found["translations"]) == expected


@tensorflow_only
def test_a_coverage_penalty_needs_a_model_that_counts_it(tmp_path):
    translator = make_translator(ks.decoding.BeamSearch(2, coverage_penalty=0.1))
    translator.model.abilities = ()
    with pytest.raises(ValueError, match="`search` must have a `coverage_penalty` of"):
        export_translator(translator, tmp_path / "model")
    assert not list(tmp_path.iterdir())


@tensorflow_only
@pytest.mark.parametrize("form", ["saved_model", "onnx"])
def test_a_model_that_is_no_keras_model_is_refused(tmp_path, form):
    class Plain(ensembles.Plain):
        source_vocabulary_size = target_vocabulary_size = 260

    translator = ks.Translator(Plain(), ks.text.ByteTokenizer())
    with pytest.raises(ValueError, match="`model` must be a Keras model for"):
        export_translator(translator, tmp_path / "model.onnx", form)


@tensorflow_only
def test_what_was_set_as_search_is_refused_if_it_is_none(tmp_path):
    translator = make_translator(None)
    translator.search = "beam"
    with pytest.raises(ValueError, match="`search` must be a `Greedy`, `Sample` or"):
        export_translator(translator, tmp_path / "model")


@tensorflow_only
@pytest.mark.slow_on("tensorflow")
def test_the_documented_program_loads_it(tmp_path):
    """Alone, with the import that TensorFlow has no tokenizer without."""
    translator = make_translator(tokenizer=make_sentencepiece(), max_length=12)
    translator.export(tmp_path / "folder", batch_size=1)
    (block,) = re.findall(r"```python\n(.*?)```", ks.export.__doc__, re.S)
    command = [sys.executable, "-c", block]
    options = {"cwd": tmp_path, "capture_output": True, "text": True}
    printed = subprocess.run(command, **options, check=True).stdout
    assert repr(translator(["two dogs"])[0].encode()) in printed
    command[-1] = block.replace("import tensorflow_text\n", "")
    assert "SentencepieceOp" in subprocess.run(command, **options).stderr


@tensorflow_only
def test_another_tokenizer_is_refused(tmp_path):
    translator = make_translator()
    translator.target_tokenizer = keras.layers.Identity()
    with pytest.raises(ValueError, match="Received: target_tokenizer of class Iden"):
        export_translator(translator, tmp_path / "model")

    class Language(ks.text.ByteTokenizer):
        prefix_ids = [7]

    translator.target_tokenizer = Language()
    with pytest.raises(ValueError, match="Received: target_tokenizer of class Lang"):
        export_translator(translator, tmp_path / "model")
