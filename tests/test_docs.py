"""The documents say what the code does: their blocks run, their pages are current."""

import pathlib
import re

import pytest

from docs import generate
from tests.test_imports import modules

ROOT = pathlib.Path(__file__).parent.parent
DOCUMENTS = sorted(
    path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
)


def blocks(document, language):
    """Yields the fenced blocks of a language, each with the line it begins on."""
    text = (ROOT / document).read_text()
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S):
        yield text[: match.start(1)].count("\n"), match[1]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("document", ["README.md", "docs/guide.md"])
def test_python_blocks_run(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for line, block in blocks(document, "python"):
        exec(compile("\n" * line + block, document, "exec"), names)


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


@pytest.mark.backends("torch")
def test_api_pages_are_what_the_docstrings_say():
    written = {path.name: path.read_text() for path in generate.API.iterdir()}
    assert written == generate.pages(), "run `python -m docs.generate`"
