"""Every argument of every public constructor and call is checked, and by its name.

The arguments are read from the signatures, so one that is added without a check fails
here. Each gets a list of values, of which some can never be valid where the default (or
a valid example) is of another type. What is not valid is a `ValueError` that names the
argument; what is valid goes through.
"""

import functools
import inspect
import re

import numpy as np
import pytest

from keras_seqattn.arguments.checked import FLAGS
from keras_seqattn.audit import passes
from keras_seqattn.tuning import latency, settings
from tests import public_calls
from tests.public_calls import Ready, public
from tests.public_methods import UNCHECKED, derived, methods

pytestmark = pytest.mark.backends("torch")

VALUES = {
    "None": None,
    "object": object(),
    "string": "?",
    "empty string": "",
    "list": [1, 2],
    "empty list": [],
    "dict": {"a": 1},
    "array": np.ones((2, 3)),
    "True": True,
    "nan": float("nan"),
    "inf": float("inf"),
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "huge": 10**30,
}
NO_NUMBER = ("object", "string", "empty string", "list", "empty list", "dict", "array")
NO_NUMBER += ("True", "nan")
# What can never be valid where a valid value is of a type. A bool is no number.
NEVER = {
    bool: set(VALUES) - {"True", "None"},
    int: {*NO_NUMBER, "inf", "1.5", "huge"},
    float: {*NO_NUMBER},
    str: {"object", "True", "nan", "inf", "1.5", "-1"},
    list: {"object", "string", "empty string", "dict", "nan", "1.5"},
    tuple: {"object", "string", "empty string", "dict", "nan", "1.5"},
    np.ndarray: {"object", "string", "empty string", "dict"},
    dict: {"object", "string", "list", "array", "True", "nan", "-1", "1.5"},
}
# What is not refused by the argument's name although its type says that it is never
# valid, and why.
EXEMPT = {
    "tuning.Configuration.make_model.weights=string": "Keras says what files it reads",
    "tuning.Configuration.model=dict": "the model checks what it holds",
    "tuning.TranslationSpace.feed_forward_ratio=1.5": "one number is valid, too",
    "tuning.TranslationSpace.positions=None": "a model without positions",
    "tuning.TranslationSpace.post_norm_learning_rate=None": "declares nothing",
    "tuning.TranslationSpace.post_norm_warmup_steps=None": "declares nothing",
    "tuning.TranslationSpace.vocabulary_size=list": "several sizes are a choice",
}
# Of these Keras takes None for its own default.
KERAS_OBJECTS = ("initializer", "activation")
# Valid values, or others of their type, of arguments whose default is None.
EXAMPLES = {
    "seed": 3,
    "scale": 0.5,
    "window": 2,
    "mask": np.ones((2, 4, 4), bool),
    "bias": np.zeros((2, 2, 4, 4), "float32"),
    "key_dim": 4,
    "value_dim": 4,
    "max_length": 6,
    "num_key_value_heads": 1,
    "num_classes": 3,
    "attention": {"use_bias": False},
    "attention_units": 3,
    "target_vocabulary_size": 11,
    "source_length": 4,
    "value_shape": (2, 4, 2, 8),
    "device": "cpu",
    "dtype": "float32",
    "quantization": "int8",
    "which": "ids",
    "alpha": 4.0,
    "embedding_scale": 0.5,
    "finish": 0.5,
    "max_length_ratio": 2.0,
    "min_score": -1.0,
    "average_epochs": 2,
    "base_dim": 8,
    "batch_size": 8,
    "batch_tokens": 64,
    "column": 0,
    "epochs": 1,
    "index": 0,
    "max_source_length": 6,
    "opset_version": 17,
    "pad_id": 0,
    "vocabulary_size": 50,
    "zero_id": 3,
    "attention_axes": (1,),
    "bucket_lengths": (16,),
    "columns": (0, 1),
    "output_shape": (2, 3),
    "views": ("plain",),
    "callbacks": [],
    "constraints": [[], []],
    "pieces": ["a"],
    "targets": ["query"],
    "cross_attention": {"use_bias": False},
    "decoder_attention": {"use_bias": False},
    "glossary": {"a": "b"},
    "learning_rate_factors": {"kernel": 0.5},
    "llama3_scaling": {"factor": 4.0},
    "masks": {"x": "mask"},
    "sliding_window": 2,
    "flash_attention": False,
    "patience": 1.0,
    "normalize_by": 7.0,
    "every": 1,
    "lines": 1,
    "title": "A title",
    "data_dir": ".",
    "ema_momentum": 0.9,
    "max_trials": 1,
    "max_seconds": 1.0,
    "max_parameters": 10**6,
    "max_latency": 1.0,
    "prune": False,
    "tolerance": 1e-5,
    "training": False,
    "prefix": np.array([[4], [4]]),
    "target": "A line",
}
FLOATS = "key memory past sample_weight start".split()
MASKS = "attention key memory past query source target value x".split()
EXAMPLES |= dict.fromkeys(FLOATS, np.ones((2, 4), "float32"))
EXAMPLES |= {f"{name}_mask": np.ones((2, 4), bool) for name in MASKS}
EXAMPLES["restart"] = np.ones(2, bool)


# Their valid values compile searches, train tokenizers or make whole models.
SLOW = {
    "decoding.generate",
    "decoding.search",
    "models.LanguageModel",
    "models.EncoderModel",
    "models.TranslationTransformer.generate",
    "models.TranslationTransformer.attention_scores",
    "models.LanguageModel.generate",
    "text.load_parallel",
    "text.translation_batches",
}


@functools.cache
def calls():
    return {**public_calls.calls(), **methods()}


def documentation(function):
    return inspect.cleandoc(getattr(function, "__doc__", None) or "")


def allows_none(function, parameter):
    """Whether an argument's default is None, or its documentation speaks of None."""
    if parameter.default is None or parameter.name.endswith(KERAS_OBJECTS):
        return True
    lines = rf"^ +\*?{parameter.name}:(.*(?:\n {{8,}}.*)*)"
    said = re.search(lines, documentation(function), re.M)
    return bool(said and re.search(r"\bNone\b", said.group(1)))


def parameters(function):
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    signature = inspect.signature(function)
    return [one for one in signature.parameters.values() if one.kind not in kinds]


def never(parameter, given):
    """Names of the values that the argument can never take, by its valid one's type."""
    example = given.get(parameter.name, parameter.default)
    if example is None:
        example = EXAMPLES.get(parameter.name)
    return next(
        (names for kind, names in NEVER.items() if type(example) is kind), {"object"}
    )


@pytest.fixture
def ground(tmp_path):
    """A folder with the files that the calls read, and no study that is run."""
    folder = tmp_path
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "lines.txt").write_text("one\ntwo\n")
        (folder / "pairs.tsv").write_text("one\teins\ntwo\tzwei\n")

        def ready(*_, **__):
            raise Ready

        # What takes long, after which nothing is checked.
        patch.setattr(settings.Settings, "claim", ready)
        patch.setattr(latency, "generate", ready)
        patch.setattr(passes.Passes, "tensors", ready)
        yield folder


def outcome(function, given, argument, value):
    """Returns the error of a call, None where it went through."""
    try:
        function(**{**given, argument: value})
    except Ready:
        return None
    except Exception as error:
        return error
    return None


def is_clear(error, argument):
    """Whether it names the argument, or is Keras's of a built layer's input shape."""
    wanted = rf"`{argument}`|is incompatible with the layer: expected"
    return type(error) is ValueError and bool(re.search(wanted, str(error)))


def complaints(name):
    """What is wrong with the checks of one call, a line for each bad value."""
    function, given = calls()[name]
    lines = []
    for parameter in parameters(function):
        refused = set(never(parameter, given))
        if not allows_none(function, parameter):
            refused |= {"None"}
        if parameter.name in FLAGS and name.startswith(("layers.", "models.")):
            refused -= {"0"}  # A flag may be 1 or 0, as in Keras.
        for label, value in VALUES.items():
            if f"{name}.{parameter.name}={label}" in EXEMPT:
                continue
            error = outcome(function, given, parameter.name, value)
            if isinstance(error, OSError) and type(value) is str:
                continue
            if error is None and label in refused:
                lines.append(f"{parameter.name}={label}: accepted")
            elif error is not None and not is_clear(error, parameter.name):
                first = f"{type(error).__name__}: {error}".replace("\n", " ")[:330]
                lines.append(f"{parameter.name}={label}: {first}")
    return lines


def test_every_example_is_of_an_argument_that_has_none_of_its_own():
    lacking = {
        parameter.name
        for function, given in calls().values()
        for parameter in parameters(function)
        if given.get(parameter.name, parameter.default) is None
    }
    assert set(EXAMPLES) <= lacking


def test_every_public_call_is_here():
    assert set(public()) <= set(calls())


def test_every_public_method_is_here_or_says_why_not():
    for names in derived().values():
        assert len({*names} & set(UNCHECKED)) + bool({*names} & set(calls())) == 1, (
            names
        )
    known = {name for names in derived().values() for name in names}
    assert set(UNCHECKED) <= known


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(calls()) - SLOW))
def test_bad_values_are_refused_by_name(name, ground):
    assert not complaints(name)


@pytest.mark.filterwarnings("ignore")
def test_all_that_is_exempt_needs_to_be(ground, monkeypatch):
    exempt = set(EXEMPT)
    monkeypatch.setattr("tests.test_bad_arguments.EXEMPT", {})
    names = {value.partition("=")[0].rpartition(".")[0] for value in exempt}
    lines = [f"{name}.{line}" for name in names for line in complaints(name)]
    assert {line.partition(": ")[0] for line in lines} == exempt


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SLOW))
def test_bad_values_of_slow_calls_are_refused_by_name(name, ground):
    assert not complaints(name)
