"""Every public call, with arguments that are valid, for tests that change one."""

import functools
import importlib
import inspect
import pathlib
import tempfile

import keras
import keras_tuner
import numpy as np

import keras_seqattn as ks
from tests.cases import CASES, HEADS, IDS, X
from tests.small import translation_model

PARTS = ("layers", "models", "decoding", "training", "text", "tuning", "plotting")
PARTS += ("audit", "export", "convert")
FORMATS = ("saved_model", "ctranslate2", "onnx")
# Classes that hold a result, which the library makes and its users read.
MADE_BY_US = {
    "layers.DistanceBias",
    "decoding.Hypotheses",
    "decoding.CompileReport",
    "tuning.AttentionChoices",
    "audit.AuditReport",
}


class Ready(Exception):
    """Stands for the long work of a call, once all its arguments were checked."""


@functools.cache
def model():
    return translation_model(260, intermediate_dim=12, max_length=6)


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


def near(hypothesis, reference):
    return -abs(len(hypothesis) - len(reference))


def shortness(sources, texts):
    return [-len(text) for text in texts]


@functools.cache
def adaptable():
    return keras.Sequential([keras.Input((3, 8)), ks.layers.FeedForward(4)])


@functools.cache
def dataset():
    lines = ["one", "two"]
    return ks.text.translation_batches(
        lines, lines, ks.text.ByteTokenizer(), batch_tokens=64
    )


# The tests read signatures: `wraps` shows that of the function that is called.
@functools.wraps(ks.training.enable_lora)
def adapted(model, **given):
    """Adapts a new model each time, since none can be adapted twice."""
    if model is adaptable():
        model = adaptable.__wrapped__()
    return ks.training.enable_lora(model, **given)


@functools.cache
def checkpoint():
    """Makes a folder of a model of transformers, which goes when Python ends."""
    from tests.convert import families

    folder = tempfile.TemporaryDirectory()
    families.marian(pathlib.Path(folder.name))
    return folder


def listed(stream):
    """Returns a method that reads to its end what another yields."""

    @functools.wraps(stream)
    def to_its_end(**given):
        return list(stream(**given))

    return to_its_end


@functools.wraps(ks.models.TranslationTransformer)
def counted(**given):
    return ks.tuning.count_parameters(**given)


def exporting(format):
    """Returns what takes the options of a format, on a backend that may lack it."""
    prepare = importlib.import_module(f"keras_seqattn.export.{format}").prepare
    signature = inspect.signature(prepare)
    options = list(signature.parameters.values())[2:]
    place = {"path": pathlib.Path("x.onnx"), "translator": translator()}

    @functools.wraps(prepare)
    def prepared(**given):
        try:
            prepare(**place, **given)
        except ValueError as error:
            if "`format` must not be" in str(error):
                raise Ready from error
            raise

    prepared.__signature__ = signature.replace(parameters=options)
    return prepared


def layer_call(name):
    """Returns the name of a layer's call, and the call with valid inputs."""
    make, inputs = CASES[name][0]
    layer = make()
    layer(*inputs)
    if name == "layers.RecurrentCell":  # What is made of it is Keras's `RNN`.
        layer, inputs = layer.cell, (inputs[0][:, 0], [np.zeros((2, 5), "float32")])

    @functools.wraps(layer.call)
    def call(**given):
        return layer(**given)

    names = list(inspect.signature(call).parameters)[: len(inputs)]
    return f"{name}.call", (call, dict(zip(names, inputs, strict=True)))


def protocol():
    """Returns the methods that a search calls, with what it calls them with."""
    models = ("TranslationTransformer", "TranslationRNN", "LanguageModel")
    found = {}
    for name in models:
        made = CASES[f"models.{name}"][0][0]()
        memory = made.encode(IDS)
        state = made.initial_state(memory, 3)
        first = list(inspect.signature(made.encode).parameters)[0]
        token_ids = np.full((2, 1), 3, "int32")
        methods = {
            "encode": {first: IDS},
            "initial_state": {"memory": memory, "max_length": 3},
            "step": {"token_ids": token_ids, "state": state, "index": 0},
        }
        if hasattr(made, "grow_state"):
            methods["grow_state"] = {"state": state, "max_length": 5, "index": 1}
        for method, given in methods.items():
            found[f"models.{name}.{method}"] = getattr(made, method), given
    return found


def named():
    """Maps the name of every public class and function to itself."""
    found = {
        f"{part}.{name}": getattr(getattr(ks, part), name)
        for part in PARTS
        for name in getattr(ks, part).__all__
    }
    found["Translator"] = ks.Translator
    found["TextGenerator"] = ks.TextGenerator
    return found


def public():
    """Maps the name of every public class and function that a user calls to itself."""
    return {name: value for name, value in named().items() if name not in MADE_BY_US}


@functools.cache
def arguments_of(make):
    """Maps the names of what a `functools.partial` of a class or function is given."""
    is_class = inspect.isclass(make.func)
    # Of a class some releases of Python 3.11 read `__new__`, which Keras defines.
    function = make.func.__init__ if is_class else make.func
    before = [None] if is_class else []
    bound = inspect.signature(function).bind(*before, *make.args, **make.keywords)
    given = dict(bound.arguments)
    if is_class:
        del given["self"]
    return given


@functools.cache
def calls():
    """Maps names to pairs: what is called, and a dict of valid arguments.

    Paths are relative: `ground` of `test_bad_arguments.py` makes the files.
    """
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
    written = {"path": "exported", "format": "ctranslate2", "overwrite": True}
    exported = {"translator": translator(), **written}
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
        "layers.initial_ancestry": {"batch_size": 2, "width": 2, "max_length": 3},
        "layers.mark_ancestry": {"ancestry": np.zeros((2, 2, 3), "int32"), "index": 1},
        "layers.sinusoidal_table": {"length": 4, "dim": 8},
        "layers.Residual": {"sublayer": keras.layers.Dense(8)},
        "layers.RecurrentCell": {"units": 5},
        "decoding.Ensemble": {"models": [model(), model()]},
        "decoding.compile_report": {"model": model()},
        "decoding.minimum_bayes_risk": {"candidates": [lines], "utility": near},
        "decoding.rerank": {
            "sources": ["one"],
            "candidates": [[("one", -1.0), ("two", -2.0)]],
            "scorers": shortness,
        },
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
        "training.ScheduleFreeAverage": {},
        "training.TerminateOnDivergence": {},
        "training.TranslationScore": {
            "sources": lines,
            "references": lines,
            "source_tokenizer": byte,
        },
        "training.distribute": {"dataset": dataset()},
        "training.layout_map": {
            "device_mesh": keras.distribution.DeviceMesh(
                (1, 1), ("batch", "model"), devices=["cpu:0"]
            )
        },
        "training.enable_lora": {"model": adaptable(), "rank": 2},
        "training.keep_freed_memory": {},
        "training.linear_crossentropy": {
            "hidden": X,
            "kernel": np.ones((8, 11), "float32"),
            "labels": IDS,
        },
        "text.SentencePieceTokenizer": {"model": sp._model},
        "text.MappedSentencePieceTokenizer": {
            "model": sp._model,
            "pieces": sp.pieces,
            "pad_id": 0,
            "start_id": 1,
            "end_id": 2,
            "unknown_id": 3,
        },
        "text.load_parallel": {"name": "phrases", "source": "en", "target": "de"},
        "text.read_parallel": {"source_path": "lines.txt", "target_path": "lines.txt"},
        "text.TextLines": {"paths": "pairs.tsv"},
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
        "text.synthesize": {"translator": translator(), "lines": lines},
        "tuning.Configuration": {
            "model": {"source_vocabulary_size": 11},
            "learning_rate": 0.1,
            "warmup_steps": 10,
        },
        "tuning.Range": {"low": 0.1, "high": 0.5},
        "tuning.TranslationHyperModel": {},
        "tuning.TranslationSpace": {},
        "tuning.attention_choices": {"hp": hp(), "model_dim": 8},
        "tuning.count_parameters": {"source_vocabulary_size": 50},
        "tuning.decode_latency": {
            "model": model(),
            "source_length": 2,
            "target_length": 2,
        },
        "tuning.tune": {
            "build": lambda hp: model(),
            "train": (np.ones((4, 3)), np.ones(4)),
            "validation": (np.ones((4, 3)), np.ones(4)),
        },
        "tuning.tune_translation": {
            "train": (lines, lines),
            "validation": (lines, lines),
        },
        "layers.TransformerStack": {"blocks": [ks.layers.EncoderBlock(2, 12)]},
        "plotting.attention_html": {**weights, **tokens},
        "plotting.attention_map": {**weights, **tokens},
        "plotting.learning_curves": {"history": {"loss": [2.0, 1.0]}},
        "audit.check_causality": {"model": model(), "inputs": inputs, "num_draws": 1},
        "audit.check_padding_invariance": {
            "model": model(),
            "inputs": inputs,
            "num_draws": 1,
            "extra": 1,
        },
        "export.export_translator": exported,
        "convert.model_from_huggingface": {"source": checkpoint().name},
        "convert.translator_from_huggingface": {"folder": checkpoint().name},
        "Translator": {"model": model(), "source_tokenizer": byte},
        "TextGenerator": {"model": generator().model, "tokenizer": byte},
    }
    targets = public()
    for name, cases in CASES.items():
        if name not in found:
            make = cases[0][0]
            given = arguments_of(make)
            more = given.pop("kwargs", {})
            found[name] = {**given, **more}
    found = {name: (targets[name], given) for name, given in found.items()}
    called = dict(layer_call(name) for name in CASES if name.startswith("layers."))
    for name, stand_in in (
        ("training.enable_lora", adapted),
        ("tuning.count_parameters", counted),
    ):
        found[name] = stand_in, found[name][1]
    ours, language = translator(), CASES["models.LanguageModel"][0][0]()
    masked, metric = ks.training.MaskedCrossentropy(), ks.training.MaskedAccuracy()
    logits = np.zeros((2, 4, 11), "float32")
    batch = {"y_true": IDS, "y_pred": logits}
    methods = {
        "Translator.__call__": (ours, {"lines": lines}),
        "Translator.translate": (ours.translate, {"lines": lines}),
        "Translator.stream": (listed(ours.stream), {"lines": lines}),
        "Translator.score": (ours.score, {"sources": lines, "targets": lines}),
        "Translator.minimum_bayes_risk": (
            ours.minimum_bayes_risk,
            {"lines": lines, "num_candidates": 2, "utility": near},
        ),
        "Translator.tune_search": (
            ours.tune_search,
            {
                "sources": lines,
                "references": lines,
                "widths": [1],
                "length_penalties": [1.0],
                "metric": near,
            },
        ),
        "Translator.attention": (ours.attention, {"source": "one"}),
        "Translator.export": (ours.export, written),
        **{
            f"Translator.export.{format}": (exporting(format), {}) for format in FORMATS
        },
        "Translator.save": (ours.save, {"path": "saved.keras"}),
        "Translator.load": (ks.Translator.load, {"path": "saved.keras"}),
        "TextGenerator.__call__": (generator(), {"prompts": lines, "max_length": 2}),
        "TextGenerator.generate": (
            generator().generate,
            {"prompts": lines, "max_length": 2},
        ),
        "TextGenerator.stream": (
            listed(generator().stream),
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
            {"lines": lines, "vocabulary_size": 266},
        ),
        "text.WordPieceTokenizer.train": (
            ks.text.WordPieceTokenizer.train,
            {"lines": lines},
        ),
    }
    return found | called | methods | protocol()
