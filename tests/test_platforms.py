"""Programs for devices that are not here: JAX lowers them for CUDA and for TPUs."""

import importlib
import re

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.backend import attention as kernels
from keras_seqattn.backend import compile, tracing
from keras_seqattn.layers import dropout
from keras_seqattn.layers.attention import functional
from tests.pairs import slow
from tests.small import translation_model

pytestmark = pytest.mark.backends("jax")
jax = pytest.importorskip("jax")
export = pytest.importorskip("jax.export")

PLATFORMS = ("cuda", "tpu")
ALL = ("cpu", *PLATFORMS)
SOURCE = np.array([[5, 6, 7, 2], [8, 9, 2, 0]], "int32")
TARGET = np.array([[1, 5, 6], [1, 8, 0]], "int32")
CUDNN = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward")
LONG = (1, 2**12, 2, 64)


def lowered(function, *args, platforms=PLATFORMS):
    """Returns the text of the module that is compiled for the platforms."""
    program = function if hasattr(function, "lower") else jax.jit(function)
    checks = [export.DisabledSafetyCheck.custom_call(name) for name in CUDNN]
    exported = export.export(program, platforms=platforms, disabled_checks=checks)
    return exported(*args).mlir_module()


def products(text):
    """Returns the dtypes of the operands of each matrix product, as pairs."""
    found = re.findall(r"dot_general.*: \((.*)\) ->", text)
    return {
        tuple(re.findall(r"(\w+)>", operands.replace("x", " "))) for operands in found
    }


def custom_calls(text):
    return set(re.findall(r"custom_call @([\w$.]+)", text))


def check_program(text, others=()):
    """No shape is left open, nothing asks the host, and products are in bfloat16."""
    assert "tensor<?" not in text and "callback" not in text
    assert not custom_calls(text)
    assert products(text) - set(others) == {("bf16", "bf16")}


@pytest.fixture
def programs(monkeypatch):
    """Collects, for the other platforms, what Keras and we have JAX compile."""
    found, plain = [], jax.jit

    def jit(function, **options):
        program = plain(function, **options)
        if not function.__module__.startswith(("keras.", compile.__name__)):
            return program

        def call(*args):
            found.append(lowered(program, *args))
            if function.__module__.startswith("keras."):
                raise NotImplementedError  # That it lowers is enough.
            return program(*args)

        return call

    monkeypatch.setattr(jax, "jit", jit)
    monkeypatch.setattr(keras.src.backend.jax.trainer, "jit", jit)
    return found


def make_model():
    sizes = {"model_dim": 16, "intermediate_dim": 32}
    return translation_model(20, **sizes, dtype="mixed_bfloat16")


# JAX's attention takes the gradient of its float32 scores times bfloat16.
OF_SCORES = ("f32", "bf16")


def test_the_training_step(programs):
    model = make_model()
    model.compile(ks.training.Adam(0.001), ks.training.MaskedCrossentropy())
    inputs = {"source_ids": SOURCE, "target_ids": TARGET}
    with pytest.raises(NotImplementedError):
        model.fit(inputs, TARGET, verbose=0)
    (text,) = programs
    check_program(text, others=(OF_SCORES,))


@pytest.mark.parametrize(
    "search", [ks.decoding.BeamSearch(2), *slow(ks.decoding.Greedy())]
)
def test_a_search(search, programs):
    make_model().generate(SOURCE, search, max_length=4)
    assert programs
    for text in programs:
        check_program(text)


def attention(shape, dtype, differentiate=True, **options):
    """Returns attention to lower, or its gradient, and the shape of its argument."""

    def attend(x):
        output = ks.layers.dot_product_attention(x, x, x, causal=True, **options)
        return output.astype("float32").sum()

    function = jax.grad(attend) if differentiate else attend
    return jax.jit(function), jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize("kernel", ["explicit", "fused", "chunked"])
def test_attention_and_its_gradient(kernel):
    text = lowered(*attention((2, 8, 2, 4), "bfloat16", implementation=kernel))
    check_program(text, others=(OF_SCORES,) if kernel == "fused" else ())


@pytest.fixture
def cudnn(monkeypatch):
    """Has JAX trace what it traces on a host with a GPU."""
    theirs = importlib.import_module("jax._src.cudnn.fused_attention_stablehlo")
    monkeypatch.setattr(theirs, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(theirs, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(kernels, "finds_cudnn", lambda: True)
    monkeypatch.setattr(functional, "finds_cudnn", lambda: True)


@pytest.mark.parametrize("options", [{}, {"implementation": "fused"}])
def test_the_kernel_is_that_of_the_platform_compiled_for(options, cudnn):
    program = attention(LONG, "bfloat16", **options)
    found = {p: custom_calls(lowered(*program, platforms=(p,))) for p in ALL}
    assert found == {"cpu": set(), "cuda": set(CUDNN), "tpu": set()}


def test_without_cudnn_long_attention_is_chunked_for_all():
    program = attention(LONG, "bfloat16", differentiate=False)
    texts = [lowered(*program, platforms=(platform,)) for platform in ALL]
    assert all("while" in text and not custom_calls(text) for text in texts)


def test_scores_of_float16_are_left_to_the_kernel_on_a_gpu():
    program = attention((2, 8, 2, 4), "float16", False, implementation="fused")
    found = {p: products(lowered(*program, platforms=(p,))) for p in ALL}
    wide = {("f32", "f32")}
    assert found == {"cpu": wide, "cuda": {("f16", "f16")}, "tpu": wide}


def test_dropout_is_a_hash_for_a_cpu_alone():
    seed = keras.random.SeedGenerator(0)
    state = jax.ShapeDtypeStruct((2,), "uint32")

    def drop(state, x):
        with keras.StatelessScope([(seed.state, state)]):
            return dropout.drop(x, 0.5, seed)

    program = jax.jit(drop), state, jax.ShapeDtypeStruct((2, 3), "float32")
    texts = {p: lowered(*program, platforms=(p,)) for p in ALL}
    draws = {p: "threefry" in text for p, text in texts.items()}
    assert draws == {"cpu": False, "cuda": True, "tpu": True}


def test_without_a_program_the_form_is_that_of_the_device():
    x = keras.ops.ones(2)
    assert tracing.by_platform(x, default=lambda: 1, cpu=lambda: 2) == 2
    assert tracing.by_platform(x, default=lambda: 1, gpu=lambda: 2) == 1
