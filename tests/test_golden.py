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
import pytest

import keras_seqattn
from tests.evaluate import evaluated

GOLDEN = pathlib.Path(__file__).parent / "golden"
SMALL = {
    "source_vocabulary_size": 16,
    "model_dim": 8,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "intermediate_dim": 12,
}
MODELS = {
    "plain": {},
    "options": {
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
}


def outputs(model, source_ids, target_ids):
    """What a model gives: logits, and a greedy translation with its score."""
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    found = model.generate(source_ids, max_length=6)
    return {
        "logits": evaluated(model, model)(inputs),
        "token_ids": found.token_ids,
        "scores": found.scores,
    }


def make():
    """Saves the models of this version; an existing file is an error."""
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(1)
    for name, options in MODELS.items():
        path = GOLDEN / f"{name}-{keras_seqattn.__version__}.keras"
        if path.exists():
            raise FileExistsError(f"{path} belongs to a version that is out.")
        model = keras_seqattn.models.TranslationTransformer(**SMALL, **options)
        for weight in model.trainable_weights:
            weight.assign(rng.normal(size=weight.shape) * 0.5)
        inputs = {
            "source_ids": np.array([[5, 9, 3, 2, 0], [4, 7, 15, 6, 2]], "int32"),
            "target_ids": np.array([[1, 6, 4, 8], [1, 7, 0, 0]], "int32"),
        }
        model.save(path)
        compress(path)
        np.savez(path.with_suffix(".npz"), **inputs, **outputs(model, **inputs))


def compress(path):
    """Packs the same contents tighter: a `.keras` file is a zip of mostly zeros."""
    with zipfile.ZipFile(path) as archive:
        contents = {info: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in contents.items():
            archive.writestr(info.filename, content)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.keras")), ids=lambda p: p.stem)
@pytest.mark.slow_on("jax")
def test_a_released_version_s_model_gives_what_it_gave(path):
    model = keras.models.load_model(path)
    with np.load(path.with_suffix(".npz")) as saved:
        expected = dict(saved)
    inputs = {name: expected.pop(name) for name in ("source_ids", "target_ids")}
    given = outputs(model, **inputs)
    real = inputs["target_ids"] != 0
    np.testing.assert_allclose(
        given["logits"][real], expected["logits"][real], atol=1e-4
    )
    np.testing.assert_array_equal(given["token_ids"], expected["token_ids"])
    np.testing.assert_allclose(given["scores"], expected["scores"], atol=1e-4)


def test_there_is_a_model_of_this_version():
    names = {path.stem for path in GOLDEN.glob("*.keras")}
    assert {f"{name}-{keras_seqattn.__version__}" for name in MODELS} <= names
