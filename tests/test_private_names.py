"""What the package takes of frameworks beside their public names, read from the source.

A private name is one with a leading underscore, or that lies in a private module. Whose
it is, is told by where it stands: an attribute of `self` is the framework's where the
code of a class of theirs, above ours, has it too; one of another object is, where no
code of ours defines it.
"""

import ast
import functools
import importlib
import inspect
import itertools
import textwrap

import pytest

from tests.test_imports import PACKAGE, modules

# All of them. Above each stands in the code why, with an address.
PRIVATE = {
    "backend.tracing": {"__internal__"},
    "layers.attention.conversion": {"_flash_attention"},
    "training.resume": {"_initial_epoch"},
}
PRIVATE_MODULES = ("keras.src", "keras_tuner.src", "tensorflow.python", "tf.python")
# What Python documents.
KNOWN = {"_replace", "_exit"}
# Who may ask which backend it is, beside the part `backend`.
ASK_FOR_BACKEND = {"export.onnx", "export.saved_model", "tuning.processes"}


@functools.cache
def nodes(module):
    return list(ast.walk(ast.parse(modules()[module].read_text())))


def is_private(name):
    return name == "__internal__" or (name[:1] == "_" and name[:2] != "__")


def of_self(node):
    """Whether an attribute is one of `self`, `cls` or `super()`."""
    return ast.unparse(node.value) in ("self", "cls", "super()")


@functools.cache
def defined():
    """The private names that code of ours defines."""
    names = set()
    for node in itertools.chain.from_iterable(map(nodes, modules())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if of_self(node) else set()
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names | KNOWN


def accessed(node):
    """Yields the names that a node takes of an object that is not `self`."""
    if isinstance(node, ast.Attribute) and not of_self(node):
        yield node.attr
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attr"):
        for argument in node.args[1:2]:  # of getattr, hasattr, setattr, delattr
            if isinstance(argument, ast.Constant):
                yield argument.value


def dotted(node):
    """Yields the dotted names of what a node imports, or takes of a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield ast.unparse(node)


def taken(module):
    """Yields (private name, line) of what a module takes of frameworks."""
    for node in nodes(module):
        for name in accessed(node):
            if is_private(name) and name not in defined():
                yield name, node.lineno
        for name in dotted(node):
            if name.startswith(PRIVATE_MODULES):
                yield name, node.lineno
            elif isinstance(node, ast.Import | ast.ImportFrom) and PACKAGE not in name:
                yield from ((x, node.lineno) for x in name.split(".") if is_private(x))


@functools.cache
def private_names(cls):
    """The private names that a class defines, or takes of `self`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):  # not written in Python
        return set()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = {node.name for node in functions}
    names |= {node.attr for node in attributes if of_self(node)}
    return set(filter(is_private, names))


def is_ours(cls):
    return cls.__module__.partition(".")[0] == PACKAGE


def shared(cls):
    """The private names that classes of ours and of others, in one, both have."""
    ours = [private_names(each) for each in cls.__mro__ if is_ours(each)]
    theirs = [private_names(each) for each in cls.__mro__ if not is_ours(each)]
    return set().union(*ours) & set().union(*theirs)


def found_in(module):
    """The private names of frameworks that a module takes."""
    loaded = importlib.import_module(f"{PACKAGE}.{module}".removesuffix("."))
    classes = [
        each
        for each in vars(loaded).values()
        if inspect.isclass(each) and each.__module__ == loaded.__name__
    ]
    return {name for name, _ in taken(module)}.union(*map(shared, classes))


@pytest.mark.slow_on("tensorflow", "jax")
def test_private_names_are_those_of_the_table():
    found = {module: found_in(module) for module in modules()}
    assert {module: names for module, names in found.items() if names} == PRIVATE


def test_they_are_few_and_each_has_an_address():
    assert sum(map(len, PRIVATE.values())) <= 3
    for module, names in PRIVATE.items():
        lines = modules()[module].read_text().splitlines()
        addressed = {
            name
            for name, number in taken(module)
            if any("# https://" in line for line in lines[number - 4 : number])
        }
        assert addressed == names


def test_the_backend_is_asked_for_in_one_room():
    asked = {"keras.backend.backend", "keras.config.backend"}
    modules_that_ask = {
        module
        for module in modules()
        if asked & set(itertools.chain.from_iterable(map(dotted, nodes(module))))
    }
    outside = {name for name in modules_that_ask if not name.startswith("backend")}
    assert outside == ASK_FOR_BACKEND
