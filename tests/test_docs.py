"""The documents say what the code does: their blocks run, their links lead on."""

import re

import pytest

from keras_seqattn import tuning
from tests.documents import DOCUMENTS, ROOT, blocks
from tests.test_imports import modules

# The examples of `docs/api` are those of the docstrings, which doctest runs.
WITH_PYTHON = [path for path in DOCUMENTS if any(blocks(path, "python"))]


def run(document, section=""):
    names = {"__name__": "__main__"}
    for line, block in blocks(document, "python", section):
        exec(compile("\n" * line + block, str(document), "exec"), names)


# What a reader sees must not warn, whoever warns: most warnings come from Keras.
@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # Keras's own, on torch
@pytest.mark.parametrize("document", WITH_PYTHON, ids=str)
def test_python_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "tune_translation", tune_shortly)
    run(document)


def tune_shortly(training, validation, max_seconds, **options):
    """Stands for an hour's search: one trial of one epoch on a few short lines."""
    short = {
        "space": tuning.TranslationSpace(
            model_dim=8, encoder_layers=1, decoder_layers=1, vocabulary_size=320
        ),
        "max_trials": 1,
        "epochs": 1,
        "verbose": False,
    }
    pairs = [[side[:40] for side in part] for part in (training, validation)]
    return _tune_translation(*pairs, max_seconds=max_seconds, **options, **short)


_tune_translation = tuning.tune_translation


@pytest.mark.slow_on("tensorflow")
def test_a_model_composed_by_hand_decodes_on_every_backend():
    """The guide's example: its beams have the scores of a teacher-forced pass."""
    run("docs/guide.md", "Decode a model of your own")


def test_ci_runs_the_commands_of_the_readme():
    """CI may add options, such as a short preset; it leaves out and changes nothing."""
    ci = [line.strip() for line in (ROOT / ".ci/run").read_text().splitlines()]
    commands = [
        command
        for _, block in blocks("README.md", "bash")
        for command in block.strip().split(" && ")
    ]
    assert len(commands) == 4
    positions = [
        next(i for i, line in enumerate(ci) if f"{line} ".startswith(f"{command} "))
        for command in commands
    ]
    assert positions == sorted(positions)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        assert ((ROOT / document).parent / target).exists(), target


def test_architecture_names_every_module():
    text = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(
        r"`([a-z0-9_.]+)`", "".join(re.findall(r"^\| (`.*?)\|", text, re.M))
    )
    files = [name for name, path in modules().items() if path.name != "__init__.py"]
    assert sorted(named) == sorted(files)
