"""What holds for every public object; a new name without a case fails here."""

import contextlib
import dataclasses
import functools
import inspect
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_seqattn
from tests import public_calls, roundtrip
from tests.cases import CASES, UNCONFIGURED
from tests.layers.weights import randomize
from tests.pairs import each_variant, named

PARTS = ("layers", "models", "decoding", "training", "text")
PUBLIC = {
    f"{part}.{name}": getattr(getattr(keras_seqattn, part), name)
    for part in PARTS
    for name in getattr(keras_seqattn, part).__all__
}
CLASSES = {name for name, value in PUBLIC.items() if inspect.isclass(value)}
EXAMPLES = {
    f"{name}-{i}": case for name, cases in CASES.items() for i, case in enumerate(cases)
}
LAYERS = [name for name in EXAMPLES if name.startswith(("layers.", "models."))]
each_layer_example = each_variant("name", named(*LAYERS), on_jax=[])
# Models are made of the layers.
FIRST_WITHOUT_LAYERS = [f"{name}-0" for name in CASES if not name.startswith("layers.")]
# A search is compiled anew for each that is made.
no_search = [name for name in EXAMPLES if not name.startswith("decoding.")]


def working(thing, inputs):
    """Puts a layer in a functional model; gives random weights to what has any."""
    if not isinstance(thing, keras.layers.Layer) or hasattr(thing, "tokenize"):
        return thing
    if not isinstance(thing, keras.Model):
        tensors = [
            keras.Input(
                # Two axes of floats are vectors, which have a width and no length.
                x.shape[1:]
                if x.ndim == 2 and x.dtype.kind == "f"
                else (None, *x.shape[2:]),
                dtype=x.dtype,
                name=f"input_{i}",
            )
            for i, x in enumerate(inputs)
        ]
        thing = keras.Model(tensors, thing(*tensors))
    randomize(thing, np.random.default_rng(0))
    return thing


@functools.cache
def example(name):
    """Returns the working thing, its inputs and outputs: made once for all tests."""
    make, inputs = EXAMPLES[name]
    thing = working(make(), inputs)
    return thing, inputs, roundtrip.use(thing, inputs)


def assert_same(outputs, expected, name):
    for left, right in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=name)


@pytest.mark.backends("torch")
def test_arguments_by_position_are_the_same_in_a_functional_model():
    """Keras hands a layer's symbolic call on as it was written."""
    layers = {name: PUBLIC[name] for name in CLASSES if name.startswith("layers.")}
    own = {name for name, cls in layers.items() if "compute_output_spec" in vars(cls)}
    assert "layers.MultiHeadAttention" in own
    for name in own:
        call, spec = (
            list(inspect.signature(method).parameters)
            for method in (layers[name].call, layers[name].compute_output_spec)
        )
        assert spec[: len(call)] == call[: len(spec)], name


def test_every_public_class_has_a_case_and_every_case_its_class():
    assert CLASSES == set(CASES) | UNCONFIGURED


@each_variant("name", named(*EXAMPLES), on_jax=[], on_tensorflow=no_search)
def test_config_makes_it_again(name):
    make, inputs = EXAMPLES[name]
    thing = make()
    config = thing.get_config()
    assert set(parameters(type(thing).__init__)) <= set(config)
    for argument, value in getattr(make, "keywords", {}).items():
        if isinstance(value, int | float | None):
            assert config[argument] == value
    again = type(thing).from_config(config)
    serialize = keras.saving.serialize_keras_object
    assert serialize(again)["config"] == serialize(thing)["config"]
    outputs = roundtrip.use(working(again, inputs), inputs)
    assert_same(outputs, example(name)[2], name)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name", [x for x in LAYERS if isinstance(EXAMPLES[x][0], functools.partial)]
)
def test_numbers_of_numpy_are_taken_as_python_s(name):
    make, _ = EXAMPLES[name]
    options = {key: of_numpy(value) for key, value in make.keywords.items()}
    config = make.func(*map(of_numpy, make.args), **options).get_config()
    assert [key for key in config if isinstance(config[key], np.generic)] == []


def of_numpy(value):
    """Returns a number of Python as one of NumPy, and all else as it is."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return np.array(value)[()] if is_number else value


def test_every_class_is_registered():
    saving = keras.saving
    for name in CLASSES - UNCONFIGURED:
        registered = saving.get_registered_name(PUBLIC[name])
        assert saving.get_registered_object(registered) is PUBLIC[name], name


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "names",
    [FIRST_WITHOUT_LAYERS, pytest.param(list(EXAMPLES), marks=pytest.mark.slow)],
    ids=["without layers", "all"],
)
def test_every_thing_loads_in_a_fresh_process(names, tmp_path):
    """One process for all, since starting one takes seconds."""
    for name in names:
        thing, inputs, _ = example(name)
        roundtrip.save(thing, inputs, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.roundtrip", str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in names:
        loaded = roundtrip.arrays(tmp_path / name / "outputs.npz")
        for one, other in zip(loaded, example(name)[2], strict=True):
            if one.dtype.kind != "f":
                np.testing.assert_array_equal(one, other, err_msg=name)
            else:  # A matrix product rounds by how its arrays lie in memory.
                np.testing.assert_allclose(one, other, 1e-6, 1e-6, err_msg=name)


@each_layer_example
def test_symbolic_shapes_are_the_eager_shapes(name):
    model, _, outputs = example(name)
    assert len(model.outputs) == len(outputs)
    for symbolic, output in zip(model.outputs, outputs, strict=True):
        assert len(symbolic.shape) == output.ndim
        assert all(
            size in (None, real)
            for size, real in zip(symbolic.shape, output.shape, strict=True)
        )


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_takes_the_shapes_that_it_was_built_with(name):
    """Keras's `summary` passes them on by the names that `build` has for them."""
    model, *_ = example(name)
    for layer in model.layers:
        shapes = layer._build_shapes_dict
        with contextlib.suppress(NotImplementedError):  # as Keras does
            if shapes:
                layer.compute_output_shape(**shapes)


@each_layer_example
def test_precision_is_the_policy_s(name):
    keras.config.set_dtype_policy("mixed_bfloat16")
    make, inputs = EXAMPLES[name]
    model = working(make(), inputs)
    assert {output.dtype for output in model.outputs} - {"bool"} == {"bfloat16"}
    assert {weight.dtype for weight in model.trainable_weights} <= {"float32"}
    assert all(np.isfinite(output).all() for output in roundtrip.use(model, inputs))


# Of a cell Keras's own `RNN` is made.
ALONE = [x for x in LAYERS if x.startswith("layers.") and "RecurrentCell" not in x]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("name", ALONE)
def test_what_is_not_trainable_has_nothing_that_is(name):
    make, inputs = EXAMPLES[name]
    config = make().get_config()
    layer = working(type(make()).from_config({**config, "trainable": False}), inputs)
    roundtrip.use(layer, inputs)
    assert not any(weight.trainable for weight in layer.weights)


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
    found = re.findall(r"^ +\*{0,2}(\w+):", text, re.M)
    return [name for name in names if name not in found]


# What the pages show, since it takes a study of minutes.
SHOWN = {"tuning.Study", "tuning.tune", "tuning.tune_translation", "plotting.study"}
DOCUMENTED = public_calls.named()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_says_it_all(name):
    value = DOCUMENTED[name]
    doc = value.__doc__
    assert doc and doc.splitlines()[0].endswith("."), "no sentence to begin with"
    has_example = ">>>" in section(doc, "Example")
    assert has_example != (name in SHOWN), "an example, or a page that shows it"
    if not inspect.isclass(value):
        assert not undocumented(parameters(value), section(doc, "Args"))
        assert section(doc, "Returns")
    elif hasattr(value, "_fields"):
        assert not undocumented(value._fields, section(doc, "Attributes"))
    elif dataclasses.is_dataclass(value) and not section(doc, "Args"):
        fields = [field.name for field in dataclasses.fields(value)]
        assert not undocumented(fields, section(doc, "Attributes"))
    else:
        assert not undocumented(parameters(value.__init__), section(doc, "Args"))
    if name.startswith(("layers.", "models.")) and name in set(CASES):
        assert section(doc, "Returns")
        assert section(doc, "Raises")
        assert section(doc, "Reference")
        if "call" in vars(value):
            assert not undocumented(
                parameters(value.call), section(doc, "Call arguments")
            )
