"""The documentation site builds without a warning, and holds every public name."""

import importlib
import inspect
import os
import re
import subprocess
import sys

import pytest

import keras_seqattn
from docs.tools import docstrings, pages
from tests.documents import ROOT

pytestmark = pytest.mark.backends("torch")

PAGES = sorted(path.stem for path in (ROOT / "docs/api").glob("*.md"))
PARTS = [page for page in PAGES if page != "README"]
PACKAGE = keras_seqattn.__name__


@pytest.mark.slow
def test_the_site_builds_and_holds_what_it_must(tmp_path):
    """All that is read in the site in one test, since building it takes a minute."""
    done = subprocess.run(
        [sys.executable, *"-m mkdocs build --strict --site-dir".split(), tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for part in PARTS:
        check_public_names(part, tmp_path)
    check_nothing_is_loaded_from_elsewhere(tmp_path)
    layers = (tmp_path / "api" / "layers.html").read_text("utf-8")
    assert "Call arguments:</span>" in layers and "<p>Call arguments:" not in layers
    errors = (tmp_path / "errors.html").read_text("utf-8")
    assert "a positive integer" in errors and "error index" not in errors


def check_public_names(part, site):
    """Checks that every public name is on its page, with its methods."""
    module = importlib.import_module(f"{PACKAGE}.{part}")
    page = (site / "api" / f"{part}.html").read_text("utf-8")
    anchors = set(re.findall(r' id="([\w.]+)"', page))
    for name in public_names(module):
        thing = getattr(module, name)
        wanted = [name]
        if inspect.isclass(thing):
            wanted += [f"{name}.{method}" for method in methods(thing)]
        for one in wanted:
            assert inspect.getdoc(inspect.unwrap(resolved(module, one))), one
            assert f"{module.__name__}.{one}" in anchors, one


def check_nothing_is_loaded_from_elsewhere(site):
    """Checks that it can be read and searched without a network and unseen."""
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", text):
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag), tag


def public_names(module):
    """Returns the names in `__all__`, or those that the module itself defines."""
    return getattr(module, "__all__", None) or [
        name
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", "").startswith(module.__name__)
        and name[0] != "_"
    ]


def methods(cls):
    """Yields the public methods of a class that none of its foreign bases has."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith(PACKAGE)]
    foreign = {name for base in cls.__mro__ if base not in ours for name in vars(base)}
    for name in {name for base in ours for name in vars(base)} - foreign:
        is_public = name == "__call__" or name[0] != "_"
        if is_public and inspect.isroutine(getattr(cls, name)):
            yield name


def test_every_part_of_the_package_has_a_page():
    public = {name for name in keras_seqattn.__all__ if name[:2] != "__"}
    of_classes = {"TextGenerator": "text_generator", "Translator": "translator"}
    assert {of_classes.get(name, name) for name in public} == set(PARTS)


def resolved(module, name):
    for part in name.split("."):
        module = getattr(module, part)
    return module


def test_sections_are_named_as_mkdocstrings_reads_them():
    text = "Adds.\nShapes: B batch.\n\nCall arguments:\n    x: X.\nExample:\n    >>> 1"
    assert docstrings.sections(text) == (
        "Adds.\n\nShapes: B batch.\n\nOther Parameters: Call arguments:\n    x: X.\n"
        "Examples:\n    >>> 1"
    )


def test_links_between_files_become_links_between_pages():
    text = "[a](docs/guide.md#search) [b](benchmarks/README.md) [c](https://d.e)"
    assert pages.linked(text, "index.md") == (
        "[a](guide.md#search) [b](benchmarks/README.md) [c](https://d.e)"
    )
    assert pages.linked("[a](../README.md)", "guide.md") == "[a](index.md)"
    assert pages.linked("![a](../docs/images/b.png)", "benchmarks/README.md") == (
        "![a](../images/b.png)"
    )
