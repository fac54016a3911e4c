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
    "": {"layers", "models", "decoding", "training", "version"},
    "version": set(),
    "arguments": {"arguments"},
    "arguments.checked": {
        "arguments.errors",
        "arguments.objects",
        "arguments.scalars",
    },
    "arguments.errors": set(),
    "arguments.objects": set(),
    "arguments.scalars": set(),
    "autodiff": set(),
    "compiled": set(),
    "files": set(),
    "layers": {"layers"},
    "layers.quantization": set(),
    "layers.lora": {"layers.quantization"},
    "layers.axes": set(),
    "layers.initializers": set(),
    "layers.shapes": set(),
    "layers.masks": {"compiled"},
    "layers.distances": set(),
    "layers.dropping": {"compiled"},
    "layers.explicit": {"autodiff", "layers.distances", "layers.dropping"},
    "layers.fused": {"layers.explicit", "layers.masks"},
    "layers.grid": {"layers.masks"},
    "layers.tiles": {"layers.distances", "layers.grid"},
    "layers.chunked": {
        "autodiff",
        "layers.distances",
        "layers.explicit",
        "layers.grid",
        "layers.tiles",
    },
    "layers.attention": {
        "layers.chunked",
        "layers.distances",
        "layers.explicit",
        "layers.fused",
        "layers.masks",
        "layers.shapes",
    },
    "layers.scaled_dot": {"layers.attention", "layers.masks", "layers.shapes"},
    "layers.additive": {
        "layers.lora",
        "autodiff",
        "layers.attention",
        "layers.explicit",
        "layers.grid",
        "layers.masks",
        "layers.quantization",
        "layers.scaled_dot",
    },
    "layers.notes": set(),
    "layers.packing": {"autodiff", "compiled", "layers.notes"},
    "layers.normalization": {"autodiff", "compiled"},
    "layers.logits": {"layers.lora", "layers.notes", "layers.quantization"},
    "layers.counting": {"layers.shapes"},
    "layers.positions": {
        "layers.lora",
        "compiled",
        "layers.counting",
        "layers.dropping",
        "layers.logits",
        "layers.quantization",
        "layers.shapes",
    },
    "layers.rotary": {"layers.counting", "layers.shapes"},
    "layers.relative": {
        "compiled",
        "layers.distances",
        "layers.quantization",
        "layers.rotary",
        "layers.shapes",
    },
    "layers.projections": {
        "layers.lora",
        "compiled",
        "layers.initializers",
        "layers.quantization",
        "layers.shapes",
    },
    "layers.cached": {"layers.distances", "layers.masks", "layers.shapes"},
    "layers.conversion": set(),
    "layers.multi_head": {
        "layers.additive",
        "layers.attention",
        "layers.axes",
        "layers.cached",
        "layers.conversion",
        "layers.distances",
        "layers.initializers",
        "layers.masks",
        "layers.projections",
        "layers.relative",
        "layers.shapes",
    },
    "layers.feed_forward": {
        "layers.lora",
        "compiled",
        "layers.dropping",
        "layers.initializers",
        "layers.quantization",
        "layers.shapes",
    },
    "layers.recurrent": {
        "layers.dropping",
        "layers.masks",
        "layers.quantization",
        "layers.shapes",
    },
    "layers.recurrent_decoder": {
        "layers.lora",
        "layers.additive",
        "layers.masks",
        "layers.recurrent",
        "layers.shapes",
    },
    "layers.residual": {
        "layers.dropping",
        "layers.normalization",
        "layers.quantization",
        "layers.shapes",
    },
    "layers.checkpointing": set(),
    "layers.blocks": {
        "compiled",
        "layers.checkpointing",
        "layers.feed_forward",
        "layers.masks",
        "layers.multi_head",
        "layers.packing",
        "layers.quantization",
        "layers.residual",
        "layers.shapes",
    },
    "layers.decoder_block": {
        "layers.blocks",
        "layers.checkpointing",
        "layers.masks",
        "layers.residual",
        "layers.shapes",
    },
    "layers.segment": {"layers.masks", "layers.shapes"},
    "decoding": {"decoding"},
    "decoding.hypotheses": set(),
    "decoding.processors": set(),
    "decoding.ranking": {"compiled", "decoding.processors"},
    "decoding.methods": {"compiled", "decoding.processors", "decoding.ranking"},
    "decoding.beam": {"decoding.methods", "decoding.processors", "decoding.ranking"},
    "decoding.loop": {"compiled", "decoding.ranking"},
    "decoding.search": {
        "compiled",
        "decoding.hypotheses",
        "decoding.ids",
        "decoding.loop",
        "decoding.methods",
    },
    "decoding.threads": set(),
    "decoding.batches": {"compiled"},
    "decoding.ids": {"decoding.batches"},
    "decoding.queue": {"decoding.batches", "decoding.loop"},
    "decoding.program": {
        "compiled",
        "decoding.batches",
        "decoding.loop",
        "decoding.queue",
    },
    "decoding.generation": {
        "compiled",
        "decoding.batches",
        "decoding.hypotheses",
        "decoding.ids",
        "decoding.methods",
        "decoding.program",
        "decoding.search",
        "decoding.threads",
    },
    "decoding.scoring": {"compiled", "decoding.batches", "decoding.ids"},
    "decoding.streaming": {
        "compiled",
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
    "training": {"layers.lora", "training"},
    "training.average": {"training.snapshot"},
    "training.consistency": {"autodiff", "compiled"},
    "training.crossentropy": {"autodiff", "compiled", "training.consistency"},
    "training.losses": {
        "layers.logits",
        "training.consistency",
        "training.crossentropy",
    },
    "training.metrics": {
        "layers.logits",
        "training.crossentropy",
        "training.losses",
    },
    "training.memory": set(),
    "training.callback_states": {"training.snapshot"},
    "training.resume": {"files", "training.callback_states", "training.snapshot"},
    "training.optimizers": {"compiled"},
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
    "audit.passes": {"compiled"},
    "audit.causality": {"audit.passes", "autodiff"},
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
    "autodiff": {"jax", "tensorflow", "torch"},
    "compiled": {"jax", "tensorflow", "torch"},
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
