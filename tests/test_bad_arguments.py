"""Every argument of every public constructor and call is checked, and by its name.

The arguments are read from the signatures, so one that is added without a check fails
here. Each gets a list of values, of which some can never be valid where the default (or
a valid example) is of another type. What is not valid is a `ValueError` that names the
argument; what is valid goes through.
"""

import functools
import inspect
import re

import keras
import keras_tuner
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.tuning import settings
from tests.cases import CASES, HEADS, IDS

pytestmark = pytest.mark.backends("torch")

ROOMS = ("layers", "models", "decoding", "training", "text", "tuning", "plotting")
ROOMS += ("audit", "export")
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
# Arguments of which not every bad value is refused by name, and why.
EXEMPT = {
    "layers.choose_implementation.dtype": "None is Keras's float",
    **{
        f"training.{metric}.{argument}": "Keras's own, which it checks"
        for metric in ("MaskedAccuracy", "Perplexity", "TokenCrossentropy")
        for argument in ("name", "dtype")
    },
    "layers.combine_masks.masks": "takes any number of tensors",
    "tuning.Configuration.model": "the model checks what it holds",
    "tuning.Study.corpus": "needs the folder of a study",
    "tuning.TranslationSpace": "None declares nothing; the model checks `positions`",
    "tuning.attention_choices": "None declares nothing",
    "plotting.attention_html.source_tokens": "the error names `weights`",
    "plotting.attention_html.target_tokens": "the error names `weights`",
    "plotting.attention_map.source_tokens": "the error names `weights`",
    "plotting.attention_map.target_tokens": "the error names `weights`",
    "plotting.learning_curves.history": "a dict of columns is taken as it is",
    "plotting.study": "needs the folder of a study",
    "text.read_tsv.columns": "a file without these columns is an error of `path`",
}
# Calls that these values have not been tried on: an exemption to be removed.
UNTRIED = ("audit.", "export.", "Translator", "layers.initial_ancestry")
UNTRIED += ("layers.mark_ancestry", "text.Tokenizer", "text.WordPieceTokenizer.train")
UNTRIED += ("text.SentencePieceTokenizer.train", "tuning.decode_latency")
UNTRIED += ("training.enable_lora",)  # changes its model: see tests/layers/test_lora.py
# Of these Keras takes None for its own default.
KERAS_OBJECTS = ("initializer", "activation")
# Classes that hold a result, which the library makes and its users read.
MADE_BY_US = {
    "layers.DistanceBias",
    "decoding.Hypotheses",
    "decoding.CompileReport",
    "tuning.AttentionChoices",
    "audit.AuditReport",
}
# Valid values of arguments whose default is None, for all that have them.
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
    "sliding_window": 2,
    "flash_attention": False,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.5,
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
    "source_tokens": ["a", "b"],
    "target_tokens": ["a", "b"],
    "target": "A line",
}


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


class Ready(Exception):
    """All arguments of a call that takes long were checked."""


@functools.cache
def model():
    return ks.models.TranslationTransformer(
        260,
        model_dim=8,
        num_heads=2,
        encoder_layers=1,
        decoder_layers=1,
        intermediate_dim=12,
        max_length=6,
    )


@functools.cache
def translator():
    return ks.Translator(model(), ks.text.ByteTokenizer())


@functools.cache
def generator():
    model = ks.models.LanguageModel(
        260, model_dim=8, num_heads=2, num_layers=1, intermediate_dim=12
    )
    return ks.TextGenerator(model, ks.text.ByteTokenizer())


def step(token_ids, state, index):
    return keras.ops.one_hot(token_ids * 0 + 2, 8), state


def public():
    """Maps the name of every public class, function and method to itself."""
    named = {
        f"{room}.{name}": getattr(getattr(ks, room), name)
        for room in ROOMS
        for name in getattr(ks, room).__all__
    }
    named["Translator"] = ks.Translator
    named["TextGenerator"] = ks.TextGenerator
    return {name: value for name, value in named.items() if name not in MADE_BY_US}


@functools.cache
def calls():
    """Maps names to pairs: what is called, and a dict of valid arguments."""
    heads = {"query": HEADS, "key": HEADS}
    table = {"vector": np.ones((2, 8), "float32")}
    lines = ["one", "two"]
    corpus = {"sources": lines, "targets": lines}
    byte = ks.text.ByteTokenizer()
    sp = CASES["text.SentencePieceTokenizer"][0][0]()
    ids = {"source_ids": IDS}
    inputs = {"source_ids": IDS[:, :3], "target_ids": IDS[:, :3]}
    weights = {"weights": np.full((2, 2), 0.5)}
    tokens = {"source_tokens": ["a", "b"], "target_tokens": ["c", "d"]}
    hp = keras_tuner.HyperParameters
    found = {
        "layers.additive_attention": {**heads, "value": HEADS, **table},
        "layers.additive_scores": {**heads, **table},
        "layers.attention_scores": heads,
        "layers.dot_product_attention": {**heads, "value": HEADS},
        "layers.causal_mask": {"target_length": 3},
        "layers.window_mask": {"target_length": 3, "source_length": 3, "window": 2},
        "layers.choose_implementation": {
            "query_shape": (2, 4, 2, 8),
            "key_shape": (2, 4, 2, 8),
        },
        "layers.combine_masks": {},
        "layers.padding_mask": {"token_ids": IDS},
        "layers.sinusoidal_table": {"length": 4, "dim": 8},
        "layers.Residual": {"sublayer": keras.layers.Dense(8)},
        "layers.RecurrentCell": {"units": 5},
        "decoding.compile_report": {"model": model()},
        "decoding.programs": {"model": model()},
        "decoding.generate": {"model": model(), **ids, "max_length": 2},
        "decoding.scored": {"model": model(), **ids, "target_ids": IDS},
        "decoding.search": {
            "step": step,
            "state": {"beam": {}, "sentence": {}},
            "batch_size": 2,
            "max_length": 2,
        },
        "training.CheckpointAverage": {},
        "training.Resume": {"directory": "folder"},
        "training.TranslationScore": {
            "sources": lines,
            "references": lines,
            "source_tokenizer": byte,
        },
        "training.keep_freed_memory": {},
        "text.SentencePieceTokenizer": {"model": sp._model},
        "text.load_parallel": {"name": "phrases", "source": "en", "target": "de"},
        "text.read_parallel": {"source_path": "lines.txt", "target_path": "lines.txt"},
        "text.read_tsv": {"path": "pairs.tsv"},
        "text.language_batches": {
            "lines": ["one", "two"],
            "tokenizer": byte,
            "batch_tokens": 64,
        },
        "text.translation_batches": {
            **corpus,
            "source_tokenizer": byte,
            "batch_tokens": 64,
        },
        "tuning.Configuration": {
            "model": {"source_vocabulary_size": 11},
            "learning_rate": 0.1,
            "warmup_steps": 10,
        },
        "tuning.Range": {"low": 0.1, "high": 0.5},
        "tuning.Study": {"directory": "study"},
        "tuning.TranslationHyperModel": {},
        "tuning.TranslationSpace": {},
        "tuning.attention_choices": {"hp": hp(), "model_dim": 8},
        "tuning.count_parameters": {"source_vocabulary_size": 50},
        "tuning.decode_latency": {
            "model": model(),
            "source_length": 2,
            "target_length": 2,
        },
        "tuning.tune_translation": {
            "train": (lines, lines),
            "validation": (lines, lines),
        },
        "plotting.attention_html": {**weights, **tokens},
        "plotting.attention_map": {**weights, **tokens},
        "plotting.learning_curves": {"history": {"loss": [2.0, 1.0]}},
        "plotting.study": {"study": None},
        "audit.check_causality": {"model": model(), "inputs": inputs, "num_draws": 1},
        "audit.check_padding_invariance": {
            "model": model(),
            "inputs": inputs,
            "num_draws": 1,
            "extra": 1,
        },
        "export.export_translator": {"translator": translator(), "path": "exported"},
        "Translator": {"model": model(), "source_tokenizer": byte},
        "TextGenerator": {"model": generator().model, "tokenizer": byte},
    }
    targets = public()
    for name, cases in CASES.items():
        if name not in found:
            make = cases[0][0]
            bound = inspect.signature(make.func).bind(*make.args, **make.keywords)
            given = dict(bound.arguments)
            more = given.pop("kwargs", {})
            found[name] = {**given, **more}
    found = {name: (targets[name], given) for name, given in found.items()}
    ours, language = translator(), CASES["models.LanguageModel"][0][0]()
    masked, metric = ks.training.MaskedCrossentropy(), ks.training.MaskedAccuracy()
    logits = np.zeros((2, 4, 11), "float32")
    batch = {"y_true": IDS, "y_pred": logits}
    methods = {
        "Translator.__call__": (ours, {"lines": lines}),
        "Translator.translate": (ours.translate, {"lines": lines}),
        "Translator.stream": (
            lambda **given: list(ours.stream(**given)),
            {"lines": lines},
        ),
        "Translator.score": (ours.score, {"sources": lines, "targets": lines}),
        "Translator.attention": (ours.attention, {"source": "one"}),
        "Translator.export": (ours.export, {"path": "exported"}),
        "Translator.save": (ours.save, {"path": "saved.keras"}),
        "Translator.load": (ks.Translator.load, {"path": "saved.keras"}),
        "TextGenerator.__call__": (generator(), {"prompts": lines, "max_length": 2}),
        "TextGenerator.generate": (
            generator().generate,
            {"prompts": lines, "max_length": 2},
        ),
        "TextGenerator.stream": (
            lambda **given: list(generator().stream(**given)),
            {"prompt": "one", "max_length": 2},
        ),
        "TextGenerator.score": (generator().score, {"lines": lines}),
        "TextGenerator.save": (generator().save, {"path": "generator.keras"}),
        "TextGenerator.load": (ks.TextGenerator.load, {"path": "generator.keras"}),
        "models.LanguageModel.generate": (
            language.generate,
            {"prompt_ids": IDS, "max_length": 2},
        ),
        "models.LanguageModel.recurrent": (language.recurrent, {"batch_size": 2}),
        "models.LanguageModel.initial_memory": (
            language.initial_memory,
            {"batch_size": 2},
        ),
        "models.TranslationTransformer.generate": (
            model().generate,
            {**ids, "max_length": 2},
        ),
        "models.TranslationTransformer.score": (
            model().score,
            {**ids, "target_ids": IDS},
        ),
        "models.TranslationTransformer.attention_scores": (
            model().attention_scores,
            {**ids, "target_ids": IDS},
        ),
        "layers.MultiHeadAttention.from_keras": (
            ks.layers.MultiHeadAttention.from_keras,
            {"layer": keras.layers.MultiHeadAttention(2, 4)},
        ),
        "training.MaskedCrossentropy.__call__": (masked, batch),
        "training.MaskedAccuracy.update_state": (metric.update_state, batch),
        "text.Tokenizer.tokenize": (sp.tokenize, {"lines": lines}),
        "text.Tokenizer.detokenize": (sp.detokenize, {"ids": [[3, 4]]}),
        "text.SentencePieceTokenizer.train": (
            ks.text.SentencePieceTokenizer.train,
            {"lines": lines, "vocabulary_size": 265},
        ),
        "text.WordPieceTokenizer.train": (
            ks.text.WordPieceTokenizer.train,
            {"lines": lines},
        ),
    }
    every = found | methods
    return {name: every[name] for name in every if not name.startswith(UNTRIED)}


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


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """A folder with the files that the calls read, and no study that is run."""
    folder = tmp_path_factory.mktemp("ground")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "lines.txt").write_text("one\ntwo\n")
        (folder / "pairs.tsv").write_text("one\teins\n")

        def ready(*_, **__):
            raise Ready

        patch.setattr(settings.Settings, "claim", ready)
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


def complaints(name):
    """What is wrong with the checks of one call, a line for each bad value."""
    function, given = calls()[name]
    lines = []
    for parameter in parameters(function):
        if {name, f"{name}.{parameter.name}"} & set(EXEMPT):
            continue
        refused = set(never(parameter, given))
        if not allows_none(function, parameter):
            refused |= {"None"}
        for label, value in VALUES.items():
            error = outcome(function, given, parameter.name, value)
            if isinstance(error, FileNotFoundError) and type(value) is str:
                continue
            if error is None and label in refused:
                lines.append(f"{parameter.name}={label}: accepted")
            elif error is not None and (
                type(error) is not ValueError or f"`{parameter.name}`" not in str(error)
            ):
                first = f"{type(error).__name__}: {error}".splitlines()[0][:150]
                lines.append(f"{parameter.name}={label}: {first}")
    return lines


def test_every_public_call_is_here():
    tried = {name for name in public() if not name.startswith(UNTRIED)}
    assert tried <= set(calls())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(calls()) - SLOW))
def test_bad_values_are_refused_by_name(name, ground):
    assert not complaints(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(SLOW))
def test_bad_values_of_slow_calls_are_refused_by_name(name, ground):
    assert not complaints(name)
