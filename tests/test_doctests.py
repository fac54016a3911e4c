"""Every example in a docstring runs, on the backend quickest to run it."""

import doctest
import importlib

import pytest

from tests.test_imports import PACKAGE, modules


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", modules())
def test_examples_run(name):
    module = importlib.import_module(f"{PACKAGE}.{name}".rstrip("."))
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.testmod(module, optionflags=flags).failed == 0
