"""Every public method of our classes, derived, with arguments that are valid."""

import atexit
import functools
import inspect
import pathlib
import tempfile
import types

import keras
import keras_tuner
import numpy as np

import keras_seqattn as ks
from keras_seqattn.tuning import records
from tests.cases import CASES, HEADS, IDS, X, Y
from tests.public_calls import named

OURS, KERAS = "keras_seqattn", ("keras", "keras_tuner")
# Public in name: what takes no argument of a user's, and why.
LOOP = "the loop of a search calls it, at each step of the compiled program"
HOOK = "`update_state` calls it, with what it has checked"
TOKENS = "`TransformerStack` calls it, with what it has checked"
STEPS = "each block checks what it is given of it"
MEMBERS = "each model checks what it is given of it"
UNCHECKED = {
    "layers.MultiHeadAttention.call_unpadded": TOKENS,
    "layers.EncoderBlock.call_unpadded": TOKENS,
    "layers.DecoderBlock.call_unpadded": TOKENS,
    **{
        f"layers.TransformerStack.{method}": STEPS
        for method in ("initial_cache", "project_memory", "grow_cache", "step")
    },
    "layers.TransformerStack.finish": TOKENS,
    "tuning.Configuration.of": "the constructor checks what it takes of a dict",
    **{
        f"decoding.{search}.{method}": LOOP
        for search in ("BeamSearch", "Greedy")
        for method in ("begin", "advance", "results")
    },
    "decoding.BeamSearch.advance_beams": LOOP,
    "decoding.BeamSearch.process": LOOP,
    "decoding.BeamSearch.replace_stop_ids": LOOP,
    **{
        f"decoding.Ensemble.{method}": MEMBERS
        for method in ("encode", "initial_state", "grow_state", "step")
    },
    "decoding.Greedy.choose": LOOP,
    "decoding.Sample.choose": LOOP,
    "models.EncoderModel.configure": "the constructor calls it, with what it checked",
    "training.MaskedAccuracy.token_values": HOOK,
    "training.MaskedAccuracy.recorded_values": HOOK,
    "training.TokenCrossentropy.token_values": HOOK,
    "training.TokenCrossentropy.recorded_values": HOOK,
}


def derived():
    """Maps each public method to its names, one a class that has it.

    Left out are those that Keras's own classes have, whose arguments are Keras's, and
    those that take none.
    """
    found = {}
    for name, cls in named().items():
        if not inspect.isclass(cls):
            continue
        homes = {base: base.__module__.partition(".")[0] for base in cls.__mro__}
        of_keras = {x for base in homes if homes[base] in KERAS for x in vars(base)}
        of_keras |= {"get_config", "from_config"}  # which Keras calls of any class
        ours = [base for base in homes if homes[base] == OURS]
        for method in {x: None for base in ours for x in vars(base)}:
            private = method.startswith("_") and method != "__call__"
            value = inspect.getattr_static(cls, method)
            value = getattr(value, "__func__", value)
            if private or method in of_keras or not inspect.isfunction(value):
                continue
            if len(inspect.signature(value).parameters) > 1:  # `self` or `cls` is one
                found.setdefault(value, []).append(f"{name}.{method}")
    return found


@functools.cache
def study():
    """A study of one trial, on disk, which knows a tokenizer."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = pathlib.Path(folder.name)
    records.write_json(path / "study.json", {"objective": ["val_loss", "min"]})
    sizes = {"model_dim": 8, "num_heads": 2, "intermediate_dim": 12}
    depths = {"encoder_layers": 1, "decoder_layers": 1}
    configuration = ks.tuning.Configuration(
        {"source_vocabulary_size": 260, **sizes, **depths},
        learning_rate=0.1,
        warmup_steps=10,
    )
    folder, epochs = records.folder_of(path, "0"), [{"score": 2.0}]
    record = records.TrialRecord("0", "completed", path=folder)
    record.configuration, record.parameters = configuration, 100
    record.epochs, record.score = epochs, 2.0
    record.save()
    configuration.make_model().save_weights(record.best_weights)
    return ks.tuning.Study(
        path, task=types.SimpleNamespace(hypermodel=None, corpus=Tokenized())
    )


class Tokenized:
    """A corpus of which a study asks for no more than the tokenizer."""

    def tokenizer(self, vocabulary_size):
        return ks.text.ByteTokenizer()


def attention_methods():
    """Those of `MultiHeadAttention`, by which it attends step by step."""
    layer = ks.layers.MultiHeadAttention(2, 4)
    layer(X, Y)
    cache, memory = layer.initial_cache(2, 1, 6), layer.project_memory(Y)
    beam = X[:, :1]
    ancestry = ks.layers.initial_ancestry(2, 1, 6)
    heads = np.zeros((2, 4, 2, 4), "float32")
    return layer, {
        "initial_cache": {"batch_size": 2, "width": 1, "max_length": 6},
        "fill_cache": {"value": X, "cache": cache},
        "step": {"query": beam, "cache": cache, "index": 0, "ancestry": ancestry},
        "project_memory": {"value": Y},
        "step_memory": {"query": beam, "memory": memory},
        "project_query": {"query": X},
        "project_key": {"key": Y},
        "project_value": {"value": Y},
        "project_output": {"query": X, "heads": heads},
    }


def block_methods():
    layer = ks.layers.DecoderBlock(2, 12)
    layer(X, Y)
    cache, beam = layer.initial_cache(2, 1, 6), X[:, :1]
    decoding = {"cache": cache, "memory": layer.project_memory(Y), "index": 0}
    return layer, {
        "initial_cache": {"batch_size": 2, "width": 1, "max_length": 6},
        "project_memory": {"source": Y},
        "prefill": {"target": X, "cache": cache},
        "step": {"target": beam, "ancestry": np.zeros((2, 1, 6), "int32"), **decoding},
    }


def recurrent_methods():
    layer = ks.layers.AttentiveRecurrentDecoder(5)
    layer(X, Y, Y[:, 0])
    cache, memory = layer.initial_cache(Y[:, 0]), layer.project_memory(Y)
    return layer, {
        "initial_cache": {"state": Y[:, 0]},
        "project_memory": {"source": Y},
        "step": {"target": X[:, :1], "cache": cache, "memory": memory},
        "recurrence": {},
    }


def position_methods():
    lengths = {"target_length": 4, "source_length": 5}
    rotate, bias = {"x": HEADS}, {"rotate": {"x": HEADS}, "bias": lengths}
    embedding = ks.layers.PositionalEmbedding(11, 8)
    embedding(IDS)
    alibi, relative = ks.layers.AlibiBias(), ks.layers.RelativeBias()
    for layer in (alibi, relative):
        layer(HEADS)
    kernel = embedding.logits_kernel()
    return {
        "layers.AlibiBias": (alibi, {**bias, "rotate": rotate}),
        "layers.RelativeBias": (
            relative,
            {**bias, "buckets": {"behind": np.arange(6).reshape(2, 3)}},
        ),
        "layers.RotaryPositions": (ks.layers.RotaryPositions(), bias),
        "layers.PositionalEmbedding": (
            embedding,
            {
                "step": {"token_ids": IDS[:, :1], "index": 0},
                "logits": {"x": X, "kernel": kernel},
            },
        ),
    }


@functools.cache
def methods():
    """Maps names to pairs: the method, and a dict of valid arguments."""
    residual = ks.layers.Residual(keras.layers.Dense(8))
    residual(X)
    hypotheses = ks.decoding.Hypotheses(IDS[:, None], np.full((2, 1), 3), X[:, :1, 0])
    tokenizer, lines = ks.text.ByteTokenizer(), ["one", "two"]
    score = ks.training.TranslationScore(lines, lines, tokenizer)
    score.set_params({"epochs": 10})
    sizes = {"vocabulary_size": 50}
    hp = {"hp": keras_tuner.HyperParameters()}
    chosen = ks.tuning.TranslationSpace().choose(**hp, **sizes)
    found = {
        "layers.MultiHeadAttention": attention_methods(),
        "layers.DecoderBlock": block_methods(),
        "layers.AttentiveRecurrentDecoder": recurrent_methods(),
        **position_methods(),
        "layers.Residual": (
            residual,
            {"enter": {"x": X}, "leave": {"x": X, "output": X}},
        ),
        "models.LanguageModel": (
            CASES["models.LanguageModel"][0][0](),
            {"most_generated": {"prompt_length": 3}, "segment": {"token_ids": IDS}},
        ),
        "decoding.BeamSearch": (
            ks.decoding.BeamSearch(),
            {"penalty_of": {"length": np.array([3.0, 4.0])}},
        ),
        "decoding.Ensemble": (
            CASES["decoding.Ensemble"][0][0](),
            {"most_generated": {"source_length": 3}},
        ),
        "decoding.Hypotheses": (
            hypotheses,
            {"sequence": {"sentence": 0}, "ranked": {"sentence": 0}},
        ),
        "training.TranslationScore": (score, {"is_due": {"epoch": 0}}),
        "text.ByteTokenizer": (
            tokenizer,
            {"tokenize": {"lines": lines}, "detokenize": {"ids": [[70, 71]]}},
        ),
        "tuning.Configuration": (
            chosen,
            {"make_model": {}, "with_vocabulary": {"vocabulary_size": 50}},
        ),
        "tuning.Study": (study(), {"best_translator": {}, "plot": {}}),
        "tuning.TranslationHyperModel": (
            ks.tuning.TranslationHyperModel(**sizes),
            {"configuration": hp},
        ),
        "tuning.TranslationSpace": (
            ks.tuning.TranslationSpace(),
            {"choose": {**hp, **sizes}, "around": {"center": chosen}},
        ),
    }
    found = {
        f"{name}.{method}": (getattr(owner, method), given)
        for name, (owner, of_owner) in found.items()
        for method, given in of_owner.items()
    }
    found["tuning.Study"] = ks.tuning.Study, {"directory": study().directory}
    found["plotting.study"] = ks.plotting.study, {"study": study()}
    return found
