"""What each part may import, read from the source, and what an import brings in.

A part that is not in the table may not exist: a change of this order is a visible line
here.
"""

import ast
import functools
import json
import pathlib
import subprocess
import sys

import pytest

import keras_seqattn

ROOT = pathlib.Path(keras_seqattn.__file__).parent
PACKAGE = ROOT.name

# Which other parts each part may import, beside `arguments` and `annotations`. Modules
# of one part import each other one way too: no import leads back to where it came from.
PARTS = {
    "": {"layers", "models", "decoding", "training", "version"},
    "version": set(),
    "arguments": set(),
    "annotations": set(),
    "backend": set(),
    "files": set(),
    "layers": {"backend"},
    "decoding": {"backend"},
    "scheduling": {"backend", "decoding"},
    "models": {"decoding", "layers"},
    "training": {"backend", "decoding", "files", "layers", "scheduling"},
    "text": {"files"},
    "translator_file": {"decoding", "files"},
    "search_tuning": {"decoding"},
    "sentence_attention": {"scheduling"},
    "terminology": {"decoding"},
    "text_model": {"backend", "decoding", "translator_file"},
    "translator": {
        "decoding",
        "scheduling",
        "search_tuning",
        "sentence_attention",
        "terminology",
        "text_model",
        "translator_file",
    },
    "text_generator": {"decoding", "scheduling", "text_model", "translator_file"},
    "export": {"backend", "decoding", "layers", "models", "scheduling", "text"},
    "convert": {"decoding", "layers", "models", "translator"},
    "recipes": {"models", "training"},
    "plotting": set(),
    "tuning": {"backend", "decoding", "files", "models", "recipes", "training"},
    "audit": {"backend"},
}
# What the `__init__` of a part shows of parts above the part's own modules.
SHOWN = {"decoding": {"scheduling"}}
# What a module may import of ours inside a function only.
PARTS_LATE = {
    "convert.translators": {"text"},
    "terminology": {"text"},
    "translator": {"export"},
    "translator_file": {"text"},
    "tuning.corpus": {"text"},
    "tuning.study": {"plotting", "translator"},
}
# What may be imported from elsewhere, beside keras, numpy and the standard library.
THEIRS = {
    "convert.safetensors": {"ml_dtypes"},  # keras needs it too
    "plotting.notebook": {"matplotlib"},
    "text.tokenizers": {"sentencepiece"},
    "text.subwords": {"sentencepiece"},
    "tuning.draws": {"keras_tuner"},
    "tuning.hypermodels": {"keras_tuner"},
    "tuning.objective": {"keras_tuner"},
    "tuning.oracles": {"keras_tuner"},
    "tuning.processes": {"keras_tuner"},
    "tuning.settings": {"keras_tuner"},
    "tuning.study": {"keras_tuner"},
    "tuning.tasks": {"keras_tuner"},
    "tuning.trials": {"keras_tuner"},
    "tuning.tuner": {"keras_tuner"},
}
THEIRS_LATE = {
    "backend.autodiff": {"jax", "tensorflow", "torch"},
    "backend.compile": {"jax", "tensorflow", "torch"},
    "backend.ops": {"tensorflow"},
    "backend.processes": {"jax", "tensorflow"},
    "backend.random": {"torch"},
    "backend.tracing": {"jax", "tensorflow", "torch"},
    "text.graph": {"tensorflow", "tensorflow_text"},
    "text.vocabulary": {"tensorflow"},
    "decoding.quality": {"sacrebleu"},
    "text.phrases": {"babel"},
    "text.wordpiece": {"tensorflow", "tensorflow_text"},
    "training.distribution": {"tensorflow"},
    "training.score": {"sacrebleu"},
    "export.ctranslate2": {"ctranslate2"},
    "export.transformer_spec": {"ctranslate2"},
    "export.saved_model": {"tensorflow", "tensorflow_text"},
    "export.onnx": {"onnx"},
    "plotting.figures": {"matplotlib"},
    "plotting.fonts": {"matplotlib"},
    "plotting.study_figure": {"matplotlib"},
    "tuning.study": {"pandas", "sklearn"},
}


# The function that imports what may not be installed.
PACKAGE_OF = "arguments.package"


@functools.cache
def modules():
    """Maps each module's name within the package, "" for its root, to its file."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(part for part in parts if part != "__init__")] = path
    return names


@functools.cache
def imports(path):
    """Returns (name, whether inside a function) for each import of a file.

    `from package import name` gives "package.name" where that is a module of
    ours, and "package" where it is not. So does `arguments.package("package", ...)`,
    which imports it. What only a type checker reads, under `if TYPE_CHECKING:`, is no
    import.
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
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == PACKAGE_OF:
            if isinstance(node.args[0], ast.Constant):
                yield node.args[0].value, late
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, late or is_function)

    return list(visit(ast.parse(path.read_text()), late=False))


def ours(path, late=None):
    """Yields the modules of ours that a file imports."""
    for name, is_late in imports(path):
        if name.partition(".")[0] == PACKAGE and late in (None, is_late):
            yield name.removeprefix(PACKAGE).removeprefix(".")


def test_every_part_has_its_line_and_every_line_its_part():
    assert {name.partition(".")[0] for name in modules()} == set(PARTS)
    assert set(PARTS_LATE) | set(THEIRS) | set(THEIRS_LATE) <= set(modules())


def test_no_line_allows_what_nothing_imports():
    for part, allowed in PARTS.items():
        paths = [p for name, p in modules().items() if name.partition(".")[0] == part]
        used = {name for path in paths for name in tops(path, late=False)}
        assert allowed <= used, part
    for table, late in ((PARTS_LATE, True), (THEIRS, False), (THEIRS_LATE, True)):
        for module, allowed in table.items():
            assert allowed <= tops(modules()[module], late), module


def tops(path, late):
    """The parts of ours, and the packages, that a file imports at once or late."""
    return {
        name.removeprefix(f"{PACKAGE}.").partition(".")[0]
        for name, is_late in imports(path)
        if is_late == late
    }


@pytest.mark.parametrize("module", modules())
def test_parts_import_no_others_than_their_table_says(module):
    part = module.partition(".")[0]
    allowed = (
        PARTS[part] | SHOWN.get(module, set()) | {part, "arguments", "annotations"}
    )  # whoever has arguments checks them, and says their types
    for late in (False, True):
        allowed |= PARTS_LATE.get(module, set()) if late else set()
        for name in ours(modules()[module], late):
            assert name.partition(".")[0] in allowed, f"`{module}` imports {name}"


def test_modules_import_each_other_one_way():
    left = {name: set(ours(path, late=False)) for name, path in modules().items()}
    while left:
        free = {name for name, needs in left.items() if not needs & set(left)}
        assert free, f"these import each other in a circle: {sorted(left)}"
        left = {name: needs for name, needs in left.items() if name not in free}


def test_folders_of_layers_import_each_other_one_way():
    """Each those before it, and the modules beside the folders."""
    order = ["weights", "embedding", "attention", "transformer", "recurrent"]
    place = {f"layers.{folder}": number for number, folder in enumerate(order)}
    found = {name.rpartition(".")[0] for name in modules() if name.count(".") == 2}
    assert {name for name in found if name.startswith("layers.")} == set(place)

    def folder(module):
        return ".".join(module.split(".")[:2])

    for module, path in modules().items():
        for name in ours(path) if module.startswith("layers.") else ():
            highest = place.get(folder(module), -1)
            assert place.get(folder(name), -1) <= highest, f"{module} imports {name}"


@pytest.mark.parametrize("module", modules())
def test_others_are_imported_where_the_table_says(module):
    allowed = THEIRS.get(module, set()) | {"keras", "numpy"}
    allowed_late = allowed | THEIRS_LATE.get(module, set())
    for name, late in imports(modules()[module]):
        top = name.partition(".")[0]
        if top == PACKAGE:
            continue
        known = (allowed_late if late else allowed) | sys.stdlib_module_names
        assert top in known, f"`{module}` may not import {name}"
        assert not name.startswith("keras.src"), f"`{module}` reaches into {name}"


@pytest.mark.backends("torch")
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
