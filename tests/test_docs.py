"""The documents say what the code does: their blocks run and print what they say."""

import contextlib
import doctest
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from keras_seqattn import tuning
from tests.documents import DOCUMENTS, ROOT, blocks, outputs
from tests.pairs import slow
from tests.test_imports import modules

# The examples of `docs/api` are those of the docstrings, which doctest runs.
WITH_PYTHON = [path for path in DOCUMENTS if any(blocks(path, "python"))]
# What a reader sees first is run by default, the other pages with the commands.
FIRST = pathlib.Path("README.md")
TIERED = [FIRST, *slow(*(path for path in WITH_PYTHON if path != FIRST))]


def run(document, section=""):
    """Runs the blocks of a page in one namespace; they print what the page says."""
    names, expected = {"__name__": "__main__"}, outputs(document)
    for line, block in blocks(document, "python", section):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + block, str(document), "exec"), names)
        if line in expected:
            assert same(expected[line], printed.getvalue()), printed.getvalue()


def same(expected, printed):
    """Whether a text is the expected one, in which dots stand for anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, printed, flags)


# Of what a reader sees: only Orbax warns, that it reads the layout of a save.
WARNINGS = ("-W", "error::UserWarning", "-W", "ignore:Sharding info not provided")


def run_alone(document):
    """Runs a page that chooses its backend: each block in a process of its own."""
    expected = outputs(document)
    for line, block in blocks(document, "python"):
        done = subprocess.run(
            [sys.executable, *WARNINGS, "-c", block],
            env=os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert same(expected[line], done.stdout), done.stdout


# What a reader sees must not warn, whoever warns: most warnings come from Keras.
@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:The use of `x.T`")  # Keras's own, on torch
@pytest.mark.filterwarnings("error::UserWarning", "error::RuntimeWarning")
@pytest.mark.parametrize("document", TIERED, ids=str)
def test_python_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if 'os.environ["KERAS_BACKEND"]' in (ROOT / document).read_text():
        if document.name == "sharded_weights.md":
            (tmp_path / "saves").mkdir()  # as a kill before the first save leaves it
        run_alone(document)
        return
    if "opus-mt-en-de" in (ROOT / document).read_text():
        from tests.convert import families  # which imports transformers

        families.marian(tmp_path / "opus-mt-en-de", tags=())
    if "tiny-llama" in (ROOT / document).read_text():
        make_llama(tmp_path / "tiny-llama")
    monkeypatch.setattr(tuning, "tune_translation", tune_translation_shortly)
    monkeypatch.setattr(tuning, "tune", tune_shortly)
    run(document)


def make_llama(folder):
    """Makes a small random model of Llama, with a tokenizer as Llama 2 has it."""
    import transformers

    from tests.convert import families

    spm = families.make_spm()
    size = len(families.pieces_of(spm)) + 1  # a row that no text has
    config = transformers.LlamaConfig(vocab_size=size, **families.LLAMA_SIZES)
    families.drawn(transformers.LlamaForCausalLM, config).save_pretrained(folder)
    (folder / "tokenizer.model").write_bytes(spm)


def tune_shortly(build, *data, **options):
    """Stands for a search of some minutes: two trials of one epoch on few samples."""
    data = [tuple(each[:99] for each in part) for part in data]
    short = {"max_trials": 2, "epochs": 1, "verbose": False}
    return _tune(build, *data, **options | short)


def tune_translation_shortly(training, validation, max_seconds, **options):
    """Stands for an hour's search: one trial of one epoch on a few short lines."""
    short = {
        "space": tuning.TranslationSpace(
            model_dim=8, encoder_layers=1, decoder_layers=1, vocabulary_size=350
        ),
        "max_trials": 1,
        "epochs": 1,
        "verbose": False,
    }
    pairs = [[side[:99] for side in part] for part in (training, validation)]
    return _tune_translation(*pairs, max_seconds=max_seconds, **options, **short)


_tune, _tune_translation = tuning.tune, tuning.tune_translation


@pytest.mark.backends("torch")
def test_a_corpus_is_split_without_a_change_of_its_lines(tmp_path, monkeypatch):
    """Neither a carriage return within one nor bytes that are not UTF-8 matter."""
    monkeypatch.chdir(tmp_path)
    lines = [b"a\rb\tc", b"\xe4\td", *(b"%d\te" % number for number in range(18))]
    pathlib.Path("pairs.tsv").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines))
    page, section = "docs/how_to/own_corpus.md", "2. Keep some pairs apart"
    ((_, block),) = blocks(page, "python", section)
    with contextlib.redirect_stdout(None):
        exec(block, {})
    parts = [pathlib.Path(f"{name}.tsv").read_bytes() for name in ("val", "train")]
    assert [part.count(b"\n") for part in parts] == [2, 18]
    assert sorted(b"".join(parts)[:-1].split(b"\n")) == sorted(lines)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")  # on torch it is one of the pages above
def test_a_model_composed_by_hand_decodes_on_every_backend():
    """A how-to's example: its beams have the scores of a teacher-forced pass."""
    run("docs/how_to/decode_own_model.md")


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


def test_the_gallery_shows_every_picture_with_a_command():
    text = (ROOT / "docs/gallery.md").read_text()
    shown = set(re.findall(r"\]\(images/([^)]+)\)", text))
    assert shown == {path.name for path in (ROOT / "docs/images").iterdir()}
    for section in text.split("\n## ")[1:]:
        assert re.search(r"`python |same command", section), section


def test_there_is_a_page_for_each_task():
    """The list of tasks names every page, and each page says what can go wrong."""
    folder = ROOT / "docs/how_to"
    pages = {path.name for path in folder.glob("*.md")} - {"README.md"}
    assert len(pages) >= 20
    listed = re.findall(r"\]\(([a-z_]+\.md)\)", (folder / "README.md").read_text())
    assert sorted(listed) == sorted(pages)
    title = "\n## What can go wrong\n"
    assert all(title in (folder / name).read_text() for name in pages)


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


SHOWN = re.findall(r"`pytest ([^`]+)`", (ROOT / "docs/reliability.md").read_text())


@pytest.mark.backends("torch")
@pytest.mark.parametrize("arguments", SHOWN)
def test_the_tests_that_show_a_promise_are_there(arguments):
    words = shlex.split(arguments)
    chosen = words[words.index("-k") + 1].split(" or ") if "-k" in words else [""]
    paths = [ROOT / word for word in words if word.startswith("tests/")]
    files = [
        file
        for path in paths
        for file in ([path] if path.is_file() else path.glob("test_*.py"))
    ]
    assert files and all(path.exists() for path in paths)
    text = "".join(file.read_text() for file in files)
    names = re.findall(r"^def (test_\w+)", text, re.M)
    assert all(any(word in name for name in names) for word in chosen)
    assert "slow" not in words or re.search(r"mark\.slow|slow_on", text)
