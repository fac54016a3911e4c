"""What holds for every public object; a new name without a case fails here."""

import inspect
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_seqattn
from tests import roundtrip
from tests.cases import CASES, RESULTS
from tests.layers.weights import randomize

ROOMS = ("layers", "models", "decoding", "training", "text")
PUBLIC = {
    f"{room}.{name}": getattr(getattr(keras_seqattn, room), name)
    for room in ROOMS
    for name in getattr(keras_seqattn, room).__all__
}
CLASSES = {name for name, value in PUBLIC.items() if inspect.isclass(value)}
EACH_CASE = [
    pytest.param(make, inputs, id=f"{name}-{i}")
    for name, cases in CASES.items()
    for i, (make, inputs) in enumerate(cases)
]
EACH_LAYER_CASE = [
    each for each in EACH_CASE if each.id.startswith(("layers.", "models."))
]


def working(make, inputs):
    """Makes a thing with random weights; a layer comes in a functional model."""
    made = make()
    if isinstance(made, keras.layers.Layer) and not hasattr(made, "tokenize"):
        if not isinstance(made, keras.Model):
            tensors = [
                keras.Input((None, *x.shape[2:]), dtype=x.dtype, name=f"input_{i}")
                for i, x in enumerate(inputs)
            ]
            made = keras.Model(tensors, made(*tensors))
        randomize(made, np.random.default_rng(0))
    return made


def test_every_public_class_has_a_case_and_every_case_its_class():
    assert CLASSES == set(CASES) | RESULTS


@pytest.mark.parametrize(("make", "inputs"), EACH_CASE)
def test_config_makes_it_again(make, inputs):
    thing = make()
    config = thing.get_config()
    again = type(thing).from_config(config)
    serialize = keras.saving.serialize_keras_object
    assert serialize(again)["config"] == serialize(thing)["config"]
    first, second = (working(lambda it=it: it, inputs) for it in (thing, again))
    for left, right in zip(
        roundtrip.use(first, inputs), roundtrip.use(second, inputs), strict=True
    ):
        np.testing.assert_array_equal(left, right)


def test_every_thing_loads_in_a_fresh_process(tmp_path):
    """One process for all, since starting one takes seconds."""
    expected = {}
    for case in EACH_CASE:
        thing = working(*case.values)
        expected[case.id] = roundtrip.use(thing, case.values[1])
        roundtrip.save(thing, case.values[1], tmp_path / case.id)
    done = subprocess.run(
        [sys.executable, "-m", "tests.roundtrip", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, outputs in expected.items():
        loaded = roundtrip.arrays(tmp_path / name / "outputs.npz")
        for left, right in zip(loaded, outputs, strict=True):
            np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.parametrize(("make", "inputs"), EACH_LAYER_CASE)
def test_symbolic_shapes_are_the_eager_shapes(make, inputs):
    model = working(make, inputs)
    eager = roundtrip.use(model, inputs)
    assert len(model.outputs) == len(eager)
    for symbolic, output in zip(model.outputs, eager, strict=True):
        assert len(symbolic.shape) == output.ndim
        assert all(
            size in (None, real)
            for size, real in zip(symbolic.shape, output.shape, strict=True)
        )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float16"])
@pytest.mark.parametrize(("make", "inputs"), EACH_LAYER_CASE)
def test_precision_is_the_policy_s(make, inputs, policy):
    keras.config.set_dtype_policy(policy)
    model = working(make, inputs)
    policy = keras.config.dtype_policy()
    assert {output.dtype for output in model.outputs} == {policy.compute_dtype}
    assert {weight.dtype for weight in model.trainable_weights} <= {
        policy.variable_dtype
    }
    for layer in model._flatten_layers():
        assert layer.dtype_policy.name == policy.name, layer
    assert all(np.isfinite(output).all() for output in roundtrip.use(model, inputs))


# Documentation.


def section(doc, title):
    """The lines of a section of a docstring, "" where it has none."""
    found = re.search(rf"^{title}:\n((?:[ ]+.*\n?|\n)*)", inspect.cleandoc(doc), re.M)
    return found.group(1) if found else ""


def parameters(function):
    skipped = {"self", "args", "kwargs"}
    return [
        name for name in inspect.signature(function).parameters if name not in skipped
    ]


def undocumented(names, text):
    return [name for name in names if not re.search(rf"^ +\*?{name}:", text, re.M)]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_says_it_all(name):
    value = PUBLIC[name]
    doc = value.__doc__
    assert doc and doc.splitlines()[0].endswith("."), "no sentence to begin with"
    assert ">>>" in section(doc, "Example"), "no example"
    if not inspect.isclass(value):
        assert not undocumented(parameters(value), section(doc, "Args"))
        assert section(doc, "Returns")
    elif name in RESULTS:
        assert not undocumented(value._fields, section(doc, "Attributes"))
    else:
        assert not undocumented(parameters(value.__init__), section(doc, "Args"))
    if name.startswith(("layers.", "models.")) and inspect.isclass(value):
        assert section(doc, "Returns")
        assert section(doc, "Raises")
        assert section(doc, "Reference")
        if "call" in vars(value):
            assert not undocumented(
                parameters(value.call), section(doc, "Call arguments")
            )
