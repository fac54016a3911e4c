import logging
import os
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.backend import compile
from keras_seqattn.backend.compile import CompiledFunction, num_threads
from keras_seqattn.backend.ops import largest, sizes
from keras_seqattn.backend.random import repeated_randomness
from keras_seqattn.scheduling.threads import in_threads


def test_nested_arrays_go_in_and_come_out():
    function = CompiledFunction(lambda x: {"sum": x["a"] + x["b"], "both": (x["a"],)})
    result = function({"a": np.ones(3, "float32"), "b": np.full(3, 2.0, "float32")})
    assert isinstance(result["sum"], np.ndarray)
    np.testing.assert_array_equal(result["sum"], [3.0, 3.0, 3.0])
    np.testing.assert_array_equal(result["both"][0], [1.0, 1.0, 1.0])


@pytest.mark.backends("tensorflow")
def test_programs_of_one_function_are_no_retracing(caplog):
    """TensorFlow warns where it traces the same code again and again."""

    class Doubler:
        def double(self, x):
            return x * 2

    tensorflow = logging.getLogger("tensorflow")
    tensorflow.addHandler(caplog.handler)
    try:
        for _ in range(8):
            CompiledFunction(Doubler().double)(np.ones(2, "float32"))
    finally:
        tensorflow.removeHandler(caplog.handler)
    assert not caplog.records


def test_one_program_serves_one_signature():
    function = CompiledFunction(lambda x: x * 2)
    for shape in ((2,), (3,), (2,), (3,)):
        function(np.ones(shape, "float32"))
    assert function.num_programs == 2
    function(np.ones(2, "int32"))
    assert function.num_programs == 3
    assert function.compile_seconds > 0.0


def test_threads_share_a_program():
    """They all come while none is there; one makes it, and the others wait."""
    together, calls = threading.Barrier(4), []

    def function(x):
        calls.append(x)
        return x * 2

    compiled = CompiledFunction(function)

    def double(number):
        together.wait(timeout=60.0)
        return compiled(np.full(2, number, "float32"))

    found = list(in_threads(double, range(4), threads=4))
    np.testing.assert_array_equal(found, [[0, 0], [2, 2], [4, 4], [6, 6]])
    assert compiled.num_programs == 1
    assert len(calls) == (4 if keras.backend.backend() == "torch" else 1)


def test_programs_run_at_once_where_a_processor_computes_them(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    assert num_threads() == (1 if keras.backend.backend() == "torch" else 3)


def test_variables_that_change_are_seen():
    variable = keras.Variable([1.0, 2.0])
    function = CompiledFunction(lambda x: x + variable, [variable])
    x = np.zeros(2, "float32")
    np.testing.assert_array_equal(function(x), [1.0, 2.0])
    variable.assign([5.0, 6.0])
    np.testing.assert_array_equal(function(x), [5.0, 6.0])
    assert function.num_programs == 1


@pytest.mark.backends("jax")
def test_weights_that_a_training_step_has_are_an_error():
    """As within an epoch of `fit`, without `callback.model`."""
    weight = keras.Variable(np.ones(2, "float32"))
    double = CompiledFunction(lambda x: x * weight, [weight])
    weight._value = weight._initializer = None
    with pytest.raises(RuntimeError, match="`model` must not be within `fit`"):
        double(np.ones(2, "float32"))


def test_it_is_traced_once_where_the_backend_compiles():
    calls = []

    def function(x):
        calls.append(x)
        return ops.sum(x)

    compiled = CompiledFunction(function)
    for value in (1.0, 2.0, 3.0):
        assert compiled(np.full(4, value, "float32")) == 4.0 * value
    assert len(calls) == (3 if keras.backend.backend() == "torch" else 1)


FORK = """
import os
import numpy as np
import keras_seqattn as ks
from keras_seqattn.backend.compile import CompiledFunction
from tests.small import translation_model

double = CompiledFunction(lambda x: x * 2)
if {before!r} == "computes":
    double(np.ones(2, "float32"))
if {before!r} == "has a translator":
    tokenizer = ks.text.ByteTokenizer()
    ks.Translator(translation_model(tokenizer.vocabulary_size), tokenizer)
child = os.fork()
if not child:
    try:
        assert double(np.ones(3, "float32")).tolist() == [2.0, 2.0, 2.0]
        os._exit(3)
    except RuntimeError as error:
        os._exit(4 if "must not compute" in str(error) else 5)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert double(np.ones(2, "float32")).tolist() == [2.0, 2.0]
print(code)
"""


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("200000 100000", 2), ("150000 100000", 2), ("20000 100000", 1), ("max 1000", 8)],
)
def test_cores_are_as_many_as_a_container_allows(monkeypatch, tmp_path, limit, cores):
    monkeypatch.setattr(compile, "CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(limit + "\n")
    expected = 1 if keras.backend.backend() == "torch" else cores
    assert compile.num_threads() == expected
    (tmp_path / "cpu.max").unlink()
    assert compile.num_threads() == (1 if keras.backend.backend() == "torch" else 8)


@pytest.mark.slow_on("tensorflow", "torch")
@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("computes", "4"),
        ("has a translator", "4"),
        pytest.param("imports", "3", marks=pytest.mark.slow),
    ],
)
def test_a_forked_child_says_that_it_would_hang(before, code):
    if before == "has a translator" and keras.backend.backend() == "torch":
        code = "3"  # Only threads of a computation would be missed.
    program = FORK.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == code, done.stderr[-2000:]


def test_a_mistake_inside_shows_itself():
    function = CompiledFunction(lambda x: ops.reshape(x, (3, 3)))
    assert function(np.zeros(9, "float32")).shape == (3, 3)
    with pytest.raises(Exception, match=r"[\[(]3, ?3[\])]"):
        function(np.zeros(4, "float32"))


def test_randomness_repeats_and_goes_on_as_if_nothing_had_been():
    def dropped(dropout):
        return ops.convert_to_numpy(dropout(ops.ones(100), training=True))

    keras.utils.set_random_seed(0)
    expected = dropped(keras.layers.Dropout(0.5))
    keras.utils.set_random_seed(0)
    dropout = keras.layers.Dropout(0.5)
    with keras.StatelessScope(), repeated_randomness():
        dropped(dropout)
    np.testing.assert_array_equal(dropped(dropout), expected)
    with keras.StatelessScope(), repeated_randomness():
        first = dropped(dropout)
    if keras.backend.backend() == "torch":  # Elsewhere it would advance its seed.
        dropped(dropout)
    with keras.StatelessScope(), repeated_randomness():
        np.testing.assert_array_equal(dropped(dropout), first)


@pytest.mark.parametrize("length", [3, None])
def test_sizes_are_what_reshape_takes(length):
    def turned(x):
        return ops.reshape(ops.reshape(x, (-1, 1)), sizes(x))

    inputs = keras.Input((length, 2))
    outputs = keras.layers.Lambda(turned, output_shape=(length, 2))(inputs)
    x = np.arange(12, dtype="float32").reshape(2, 3, 2)
    np.testing.assert_array_equal(keras.Model(inputs, outputs).predict(x, verbose=0), x)
    assert sizes(ops.array(x)) == (2, 3, 2)


def test_the_largest_of_nothing_is_the_given_number():
    x = ops.array([[1.0, -5.0], [-4.0, -3.0]])
    np.testing.assert_array_equal(largest(x, -1, -2.0), [[1.0], [-2.0]])
    empty = ops.zeros((2, 0)) + largest(ops.zeros((2, 0)), -1, -2.0)
    assert tuple(empty.shape) == (2, 0)
