"""The house's import table, read from the source, and what an import brings in.

A module that is not in a table may not exist: a change of the house is a visible
line here.
"""

import ast
import json
import pathlib
import subprocess
import sys

import pytest

import keras_seqattn

ROOT = pathlib.Path(keras_seqattn.__file__).parent
PACKAGE = ROOT.name

# Which of our modules each module may import, beside `arguments`; a package means all
# it holds.
OURS = {
    "": {"decoding", "layers", "models", "training", "version"},
    "version": set(),
    "arguments": {"arguments"},
    "arguments.checked": {"arguments.errors", "arguments.objects", "arguments.scalars"},
    "arguments.errors": set(),
    "arguments.objects": set(),
    "arguments.scalars": set(),
    "backend": set(),
    "backend.autodiff": set(),
    "backend.compile": set(),
    "backend.tracing": set(),
    "backend.random": set(),
    "backend.ops": {"backend.tracing"},
    "files": set(),
    "layers": {"layers"},
    "layers.attention": set(),
    "layers.attention.additive": {
        "backend",
        "layers.attention.functional",
        "layers.attention.kernels.chunked.grid",
        "layers.attention.kernels.explicit",
        "layers.attention.masks",
        "layers.attention.scaled_dot",
        "layers.weights.lora",
        "layers.weights.quantization",
    },
    "layers.attention.axes": set(),
    "layers.attention.conversion": set(),
    "layers.attention.distances": set(),
    "layers.attention.functional": {
        "layers.attention.distances",
        "layers.attention.kernels.chunked.kernel",
        "layers.attention.kernels.explicit",
        "layers.attention.kernels.fused",
        "layers.attention.masks",
        "layers.shapes",
    },
    "layers.attention.kernels": set(),
    "layers.attention.kernels.chunked": set(),
    "layers.attention.kernels.chunked.grid": {"layers.attention.masks"},
    "layers.attention.kernels.chunked.kernel": {
        "backend",
        "layers.attention.distances",
        "layers.attention.kernels.chunked.grid",
        "layers.attention.kernels.chunked.tiles",
        "layers.attention.kernels.explicit",
    },
    "layers.attention.kernels.chunked.tiles": {
        "layers.attention.distances",
        "layers.attention.kernels.chunked.grid",
    },
    "layers.attention.kernels.explicit": {
        "backend",
        "layers.attention.distances",
        "layers.dropout",
    },
    "layers.attention.kernels.fused": {
        "layers.attention.kernels.explicit",
        "layers.attention.masks",
    },
    "layers.attention.kv_cache": {
        "layers.attention.distances",
        "layers.attention.masks",
        "layers.shapes",
    },
    "layers.attention.masks": {"backend"},
    "layers.attention.multi_head": {
        "layers.attention.additive",
        "layers.attention.axes",
        "layers.attention.conversion",
        "layers.attention.distances",
        "layers.attention.functional",
        "layers.attention.kv_cache",
        "layers.attention.masks",
        "layers.attention.projections",
        "layers.embedding.relative",
        "layers.shapes",
        "layers.weights.initializers",
    },
    "layers.attention.projections": {
        "backend",
        "layers.shapes",
        "layers.weights.initializers",
        "layers.weights.lora",
        "layers.weights.quantization",
    },
    "layers.attention.scaled_dot": {
        "layers.attention.functional",
        "layers.attention.masks",
        "layers.shapes",
    },
    "layers.dropout": {"backend"},
    "layers.embedding": set(),
    "layers.embedding.counting": {"layers.shapes"},
    "layers.embedding.logits": {
        "layers.embedding.notes",
        "layers.weights.lora",
        "layers.weights.quantization",
    },
    "layers.embedding.notes": set(),
    "layers.embedding.positions": {
        "backend",
        "layers.dropout",
        "layers.embedding.counting",
        "layers.embedding.logits",
        "layers.shapes",
        "layers.weights.lora",
        "layers.weights.quantization",
    },
    "layers.embedding.relative": {
        "backend",
        "layers.attention.distances",
        "layers.embedding.rotary",
        "layers.shapes",
        "layers.weights.quantization",
    },
    "layers.embedding.rotary": {"layers.embedding.counting", "layers.shapes"},
    "layers.recurrent": set(),
    "layers.recurrent.attentive_decoder": {
        "layers.attention.additive",
        "layers.attention.masks",
        "layers.recurrent.encoder",
        "layers.shapes",
        "layers.weights.lora",
    },
    "layers.recurrent.encoder": {
        "layers.attention.masks",
        "layers.dropout",
        "layers.shapes",
        "layers.weights.quantization",
    },
    "layers.recurrent.segment_memory": {"layers.attention.masks", "layers.shapes"},
    "layers.shapes": set(),
    "layers.transformer": set(),
    "layers.transformer.checkpointing": set(),
    "layers.transformer.decoder_block": {
        "layers.attention.masks",
        "layers.shapes",
        "layers.transformer.checkpointing",
        "layers.transformer.encoder_block",
        "layers.transformer.residual",
    },
    "layers.transformer.encoder_block": {
        "backend",
        "layers.attention.masks",
        "layers.attention.multi_head",
        "layers.shapes",
        "layers.transformer.checkpointing",
        "layers.transformer.feed_forward",
        "layers.transformer.packing",
        "layers.transformer.residual",
        "layers.weights.quantization",
    },
    "layers.transformer.feed_forward": {
        "backend",
        "layers.dropout",
        "layers.shapes",
        "layers.weights.initializers",
        "layers.weights.lora",
        "layers.weights.quantization",
    },
    "layers.transformer.normalization": {"backend"},
    "layers.transformer.packing": {"backend", "layers.embedding.notes"},
    "layers.transformer.residual": {
        "layers.dropout",
        "layers.shapes",
        "layers.transformer.normalization",
        "layers.weights.quantization",
    },
    "layers.weights": set(),
    "layers.weights.initializers": set(),
    "layers.weights.lora": {"layers.weights.quantization"},
    "layers.weights.quantization": set(),
    "decoding": {"decoding"},
    "decoding.hypotheses": set(),
    "decoding.processors": set(),
    "decoding.ranking": {"backend", "decoding.processors"},
    "decoding.methods": {"backend", "decoding.processors", "decoding.ranking"},
    "decoding.beam": {"decoding.methods", "decoding.processors", "decoding.ranking"},
    "decoding.loop": {"backend", "decoding.ranking"},
    "decoding.search": {
        "backend",
        "decoding.hypotheses",
        "decoding.ids",
        "decoding.loop",
        "decoding.methods",
    },
    "decoding.threads": set(),
    "decoding.batches": {"backend"},
    "decoding.ids": {"decoding.batches"},
    "decoding.queue": {"decoding.batches", "decoding.loop"},
    "decoding.program": {
        "backend",
        "decoding.batches",
        "decoding.loop",
        "decoding.queue",
    },
    "decoding.generation": {
        "backend",
        "decoding.batches",
        "decoding.hypotheses",
        "decoding.ids",
        "decoding.methods",
        "decoding.program",
        "decoding.search",
        "decoding.threads",
    },
    "decoding.scoring": {"backend", "decoding.batches", "decoding.ids"},
    "decoding.streaming": {
        "backend",
        "decoding.batches",
        "decoding.generation",
        "decoding.hypotheses",
        "decoding.loop",
    },
    "models": {"models"},
    "models.recurrent": {"layers", "models.stacks", "models.translation"},
    "models.inputs": {"decoding"},
    "models.translation": {"decoding", "layers", "models.inputs", "models.stacks"},
    "models.stacks": {"layers"},
    "models.transformer": {"layers", "models.stacks", "models.translation"},
    "models.decoder": {"layers", "models.stacks"},
    "models.language": {
        "decoding",
        "layers",
        "models.decoder",
        "models.inputs",
        "models.stacks",
    },
    "models.encoder": {"layers", "models.stacks"},
    "training": {"layers.weights.lora", "training"},
    "training.average": {"training.snapshot"},
    "training.consistency": {"backend"},
    "training.crossentropy": {"backend", "training.consistency"},
    "training.losses": {
        "layers.embedding.logits",
        "training.consistency",
        "training.crossentropy",
    },
    "training.metrics": {
        "layers.embedding.logits",
        "training.crossentropy",
        "training.losses",
    },
    "training.memory": set(),
    "training.callback_states": {"training.snapshot"},
    "training.resume": {"files", "training.callback_states", "training.snapshot"},
    "training.optimizers": {"backend"},
    "training.schedules": set(),
    "training.score": {"decoding"},
    "training.snapshot": {"files"},
    "text": {"text"},
    "text.tokenizers": set(),
    "text.wordpiece": {"text.tokenizers"},
    "text.phrases": set(),
    "text.parallel": set(),
    "text.corpora": {"text.parallel", "text.phrases"},
    "text.language": {"text.batching", "text.tokenizers"},
    "text.batching": {"text.tokenizers"},
    "translator": {"decoding", "models", "translator_file"},
    "text_generator": {"decoding", "translator_file"},
    "translator_file": {"files"},
    "export": {"export"},
    "export.artifact": set(),
    "export.transformer_spec": {"layers"},
    "export.ctranslate2": {
        "export.artifact",
        "export.transformer_spec",
        "models",
        "text",
    },
    "export.results": {"decoding"},
    "export.saved_model": {"decoding", "export.results", "text"},
    "export.onnx": {"export.artifact"},
    "recipes": {"models"},
    "plotting": {"plotting"},
    "plotting.tokens": set(),
    "plotting.fonts": set(),
    "plotting.figures": {"plotting.fonts", "plotting.tokens"},
    "plotting.attention_page": set(),
    "plotting.attention_view": {"plotting.attention_page", "plotting.tokens"},
    "plotting.study_figure": {"plotting.figures"},
    "tuning": {"tuning"},
    "tuning.records": {"files"},
    "tuning.objective": set(),
    "tuning.clock": {"tuning.records"},
    "tuning.progress": {"tuning.objective", "tuning.records"},
    "tuning.configuration": {"layers", "models", "training"},
    "tuning.space": {"tuning.configuration"},
    "tuning.hypermodels": {"tuning.space"},
    "tuning.corpus": {"training"},
    "tuning.latency": {"decoding"},
    "tuning.oracles": {"tuning.records"},
    "tuning.settings": {
        "tuning.clock",
        "tuning.corpus",
        "tuning.hypermodels",
        "tuning.oracles",
        "tuning.progress",
        "tuning.records",
    },
    "tuning.trials": {"files", "training", "tuning.objective", "tuning.records"},
    "tuning.warm": {"tuning.configuration", "tuning.records", "tuning.trials"},
    "tuning.tuner": {
        "tuning.latency",
        "tuning.records",
        "tuning.trials",
        "tuning.warm",
    },
    "tuning.processes": set(),
    "tuning.study": {
        "tuning.configuration",
        "tuning.objective",
        "tuning.records",
        "tuning.trials",
    },
    "tuning.search": {
        "training",
        "tuning.objective",
        "tuning.oracles",
        "tuning.processes",
        "tuning.settings",
        "tuning.space",
        "tuning.study",
        "tuning.trials",
        "tuning.tuner",
    },
    "audit": {"audit"},
    "audit.passes": {"backend"},
    "audit.causality": {"audit.passes", "backend"},
    "audit.padding": {"audit.causality", "audit.passes"},
}
# What a module may import of ours inside a function only.
OURS_LATE = {
    "translator": {"export"},
    "translator_file": {"text"},
    "tuning.corpus": {"text"},
    "tuning.processes": {"tuning.search"},
    "tuning.study": {"plotting", "translator"},
}
# What may be imported from elsewhere, beside keras, numpy and the standard library.
THEIRS = {
    "text.tokenizers": {"sentencepiece", "tensorflow", "tensorflow_text"},
    "text.wordpiece": {"tensorflow", "tensorflow_text"},
    "text.batching": {"tensorflow"},
    "tuning.hypermodels": {"keras_tuner"},
    "tuning.objective": {"keras_tuner"},
    "tuning.oracles": {"keras_tuner"},
    "tuning.processes": {"keras_tuner"},
    "tuning.settings": {"keras_tuner"},
    "tuning.study": {"keras_tuner"},
    "tuning.trials": {"keras_tuner"},
    "tuning.tuner": {"keras_tuner"},
}
THEIRS_LATE = {
    "backend.autodiff": {"jax", "tensorflow", "torch"},
    "backend.compile": {"jax", "tensorflow", "torch"},
    "backend.ops": {"tensorflow"},
    "backend.random": {"torch"},
    "backend.tracing": {"jax", "tensorflow", "torch"},
    "text.phrases": {"babel"},
    "training.score": {"sacrebleu"},
    "export.transformer_spec": {"ctranslate2"},
    "export.saved_model": {"tensorflow", "tensorflow_text"},
    "export.onnx": {"onnx"},
    "plotting.figures": {"matplotlib"},
    "plotting.fonts": {"matplotlib"},
    "plotting.study_figure": {"matplotlib"},
    "tuning.study": {"pandas", "sklearn"},
}


def modules():
    """Maps each module's name within the package, "" for its root, to its file."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


def imports(path):
    """Yields (name, whether inside a function) for each import of a file.

    `from package import name` gives "package.name" where that is a module of
    ours, and "package" where it is not.
    """

    def visit(node, late):
        if isinstance(node, ast.Import):
            yield from ((alias.name, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import at line {node.lineno}"
            for alias in node.names:
                joined = f"{node.module}.{alias.name}"
                is_module = joined.removeprefix(f"{PACKAGE}.") in modules()
                yield (joined if is_module else node.module), late
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, late or is_function)

    return visit(ast.parse(path.read_text()), late=False)


def is_within(name, allowed):
    """Whether a module is one of those allowed, or lies in one of them."""
    return any(name == room or name.startswith(f"{room}.") for room in allowed)


def test_every_module_has_its_line_and_every_line_its_module():
    assert set(modules()) == set(OURS)
    assert set(OURS_LATE) | set(THEIRS) | set(THEIRS_LATE) <= set(OURS)


@pytest.mark.parametrize("module", modules())
def test_imports_run_one_way(module):
    ours = OURS[module] | {"arguments"}  # whoever has arguments checks them
    theirs = THEIRS.get(module, set()) | {"keras", "numpy"}
    ours_late = ours | OURS_LATE.get(module, set())
    theirs_late = theirs | THEIRS_LATE.get(module, set())
    for name, late in imports(modules()[module]):
        top = name.partition(".")[0]
        if top == PACKAGE:
            room = name.removeprefix(PACKAGE).removeprefix(".")
            allowed = is_within(room, ours_late if late else ours)
        else:
            allowed = top in (theirs_late if late else theirs) | sys.stdlib_module_names
        assert allowed, f"`{module}` may not import {name}"
        assert not name.startswith("keras.src"), f"`{module}` reaches into {name}"


@pytest.mark.backends("jax", "torch")
def test_importing_the_package_adds_its_own_modules_alone():
    """So it is quick, and JAX and PyTorch users need no TensorFlow."""
    program = (
        "import sys, json, keras; before = set(sys.modules); import keras_seqattn;"
        "print(json.dumps([sorted(before), sorted(set(sys.modules) - before)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    before, added = json.loads(done.stdout)
    tops = {name.partition(".")[0] for name in added}
    assert tops - sys.stdlib_module_names == {PACKAGE}
    assert "tensorflow" not in {*before, *added}
