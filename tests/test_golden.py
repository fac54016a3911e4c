"""Models saved by released versions load in this one, with equal outputs.

`tests/golden/` holds, for each released version, small models and what they gave
(`NAME-VERSION.keras`, `NAME-VERSION.npz`). They are made once, before a release:

    KERAS_BACKEND=tensorflow python -c "from tests.test_golden import make; make()"

and never again: a file that a user saved with that version is like them.
"""

import pathlib
import zipfile

import keras
import numpy as np

import keras_seqattn
from keras_seqattn import models
from tests.evaluate import evaluated
from tests.pairs import each_variant

GOLDEN = pathlib.Path(__file__).parent / "golden"
SMALL = {
    "source_vocabulary_size": 16,
    "model_dim": 8,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "intermediate_dim": 12,
}
STACK = {
    "vocabulary_size": 16,
    "model_dim": 8,
    "num_heads": 2,
    "num_layers": 1,
    "intermediate_dim": 12,
}
MODELS = {
    "plain": (models.TranslationTransformer, SMALL),
    "options": (
        models.TranslationTransformer,
        SMALL
        | {
            "target_vocabulary_size": 20,
            "positions": "learned",
            "max_length": 12,
            "tie_embeddings": False,
            "activation": "silu",
            "gated": True,
            "norm": "rms",
            "normalize_first": False,
            "attention": {"num_key_value_heads": 1, "use_gate": True},
        },
    ),
    "recurrent": (
        models.TranslationRNN,
        {"source_vocabulary_size": 16, "model_dim": 8},
    ),
    "decoder": (models.LanguageModel, STACK | {"positions": "rotary"}),
    "segments": (
        models.LanguageModel,
        STACK | {"positions": "relative", "memory_length": 3},
    ),
    "classes": (
        models.EncoderModel,
        STACK | {"positions": "alibi", "num_classes": 3},
    ),
}
INPUTS = ("source_ids", "target_ids", "text_ids")
TEXT = np.array([[5, 9, 3, 2, 0], [4, 7, 15, 6, 2]], "int32")
TARGET = np.array([[1, 6, 4, 8], [1, 7, 0, 0]], "int32")


def outputs(model, inputs):
    """What a model gives: logits, and what it generates with the score."""
    (first, *rest) = inputs.values()
    given = {"logits": evaluated(model, model)(inputs if rest else first)}
    if hasattr(model, "generate"):
        found = model.generate(first, max_length=6)
        given |= {"token_ids": found.token_ids, "scores": found.scores}
    return given


def make():
    """Saves the models of this version that are not there yet; none is made again."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    for name, (make_model, options) in MODELS.items():
        path = GOLDEN / f"{name}-{keras_seqattn.__version__}.keras"
        if path.exists():
            continue
        model = make_model(**options)
        for weight in model.trainable_weights:
            weight.assign(rng.normal(size=weight.shape) * 0.5)
        translates = len(model.inputs) == 2
        inputs = {"source_ids": TEXT, "target_ids": TARGET}
        inputs = inputs if translates else {"text_ids": TEXT}
        model.save(path)
        compress(path)
        np.savez(path.with_suffix(".npz"), **inputs, **outputs(model, inputs))


def compress(path):
    """Packs the same contents tighter: a `.keras` file is a zip of mostly zeros."""
    with zipfile.ZipFile(path) as archive:
        contents = {info: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in contents.items():
            archive.writestr(info.filename, content)


PATHS = {path.stem: path for path in sorted(GOLDEN.glob("*.keras"))}


@each_variant("path", PATHS, on_jax=[], on_tensorflow=[])
def test_a_released_version_s_model_gives_what_it_gave(path):
    model = keras.models.load_model(path)
    with np.load(path.with_suffix(".npz")) as saved:
        expected = dict(saved)
    inputs = {name: expected.pop(name) for name in INPUTS if name in expected}
    given = outputs(model, inputs)
    assert set(given) == set(expected)
    if "token_ids" in expected:
        np.testing.assert_array_equal(given["token_ids"], expected["token_ids"])
    if expected["logits"].ndim == 3:  # What padding gives is not defined.
        real = list(inputs.values())[-1] != 0
        for each in (given, expected):
            each["logits"] = each["logits"][real]
    for name, output in expected.items():
        np.testing.assert_allclose(given[name], output, atol=1e-4, err_msg=name)


def test_there_is_a_model_of_this_version():
    names = {path.stem for path in GOLDEN.glob("*.keras")}
    assert {f"{name}-{keras_seqattn.__version__}" for name in MODELS} <= names
