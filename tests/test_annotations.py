"""Whether every public signature is annotated, which needs no type checker."""

import functools
import inspect

import pytest

from keras_seqattn import recipes
from tests.public_calls import named

OURS = "keras_seqattn"


def functions(value):
    """Yields a function, or those of a class and of classes of ours it is made of."""
    if not inspect.isclass(value):
        yield value
        return
    ours = [base for base in value.__mro__ if base.__module__.startswith(OURS)]
    for name, member in (pair for base in ours for pair in vars(base).items()):
        if isinstance(member, property):
            member = member.fget
        elif isinstance(member, functools.cached_property):
            member = member.func
        member = getattr(member, "__func__", member)  # of a class method
        is_public = not name.startswith("_") or name in ("__init__", "__call__")
        if is_public and inspect.isfunction(member):
            yield member


def bare(function):
    """Lists the parameters without a type, and "return" where that has none."""
    signature = inspect.signature(function)
    types = {name: each.annotation for name, each in signature.parameters.items()}
    types["return"] = signature.return_annotation
    return [
        name
        for name, annotation in types.items()
        if annotation is inspect.Signature.empty and name not in ("self", "cls")
    ]


@pytest.mark.backends("torch")
def test_every_public_signature_is_annotated():
    public = [*named().values(), recipes.Recipe]
    found = {function for value in public for function in functions(value)}
    assert len(found) > 200
    assert not {each.__qualname__: bare(each) for each in found if bare(each)}
