"""Tries every system on every backend, kernel and export, and writes `docs/support.md`.

    KERAS_BACKEND=jax python -m tests.support

tries all on one backend and writes its part of the page; the tests compare the page
with what works.
"""

import functools
import pathlib
import re
import tempfile

import keras
import numpy as np

import keras_seqattn as ks

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "support.md"
NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
KERNELS = ("explicit", "fused", "chunked")
FORMATS = ("saved_model", "ctranslate2", "onnx")
# By row, arguments of `MultiHeadAttention`, and of its call.
ATTENTION = {
    "scaled dot product": ({}, {}),
    "unscaled dot product": ({"score": "dot"}, {}),
    "additive score": ({"score": "additive"}, {}),
    "rotary positions": ({"positions": "rotary"}, {}),
    "ALiBi": ({"positions": "alibi"}, {}),
    "relative bias of T5": ({"positions": "relative"}, {}),
    "grouped key and value heads": ({"num_key_value_heads": 1}, {}),
    "values wider than keys": ({"value_dim": 6}, {}),
    "QK-norm": ({"qk_norm": True}, {}),
    "gate": ({"use_gate": True}, {}),
    "sliding window": ({"sliding_window": 2}, {}),
    "causal mask": ({}, {"use_causal_mask": True}),
    "an `attention_mask`": ({}, {"attention_mask": np.tri(5, dtype=bool)[None]}),
    "dropout while training": ({"dropout": 0.5}, {"training": True}),
    "returned scores": ({}, {"return_attention_scores": True}),
}
SIZES = {"model_dim": 16, "num_heads": 2, "intermediate_dim": 16}
STACKS = {**SIZES, "encoder_layers": 1, "decoder_layers": 1, "max_length": 16}
TRANSFORMER = functools.partial(ks.models.TranslationTransformer, 260, **STACKS)
# By row, the translation models that are trained, searched and exported.
TRANSLATION = {
    "`TranslationTransformer`": TRANSFORMER,
    "the same, rotary positions": functools.partial(TRANSFORMER, positions="rotary"),
    "the same, relative positions": functools.partial(
        TRANSFORMER, positions="relative"
    ),
    "the same, ALiBi": functools.partial(TRANSFORMER, positions="alibi"),
    "the same, grouped heads": functools.partial(
        TRANSFORMER, attention={"num_key_value_heads": 1}
    ),
    "the same, additive score": functools.partial(
        TRANSFORMER, attention={"score": "additive"}
    ),
    "the same, gated, RMS norm": functools.partial(
        TRANSFORMER, gated=True, activation="silu", norm="rms"
    ),
    "`TranslationRNN`": functools.partial(
        ks.models.TranslationRNN, 260, model_dim=16, max_length=16
    ),
}
OTHERS = {
    "`LanguageModel`": functools.partial(
        ks.models.LanguageModel, 260, num_layers=1, **SIZES
    ),
    "the same, with a memory": functools.partial(
        ks.models.LanguageModel, 260, num_layers=1, memory_length=4, **SIZES
    ),
    "`EncoderModel`": functools.partial(
        ks.models.EncoderModel, 260, num_layers=1, **SIZES
    ),
}
# Of the errors of combinations that do not work: the argument that is refused, or the
# method that the model lacks.
REFUSED = r"`(implementation|dropout|score|positions|format|model)` must|'generate'"
USES = ("fit", "greedy", "beams", "mixed_bfloat16")
HEADERS = {
    "Kernels": ("attention", KERNELS),
    "Models": ("model", USES),
    "Exports": ("model", FORMATS),
}
ROWS = {
    "Kernels": ATTENTION,
    "Models": TRANSLATION | OTHERS,
    "Exports": TRANSLATION,
}


def works(table, row, column):
    """Whether one cell's combination works on this backend."""
    try:
        {"Kernels": _attend, "Models": _use, "Exports": _export}[table](row, column)
    except (ValueError, AttributeError) as error:
        if not re.search(REFUSED, str(error)):
            raise
        return False
    return True


def _attend(row, kernel):
    options, call = ATTENTION[row]
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
    layer = ks.layers.MultiHeadAttention(2, 4, implementation=kernel, **options)
    layer(x, x, **call)


def _use(row, use):
    if use == "mixed_bfloat16":
        keras.config.set_dtype_policy(use)
    try:
        model = ROWS["Models"][row]()
    finally:
        keras.config.set_dtype_policy("float32")
    ids = np.array([[1, 5, 7, 2], [1, 6, 2, 0]], "int32")
    translates = row in TRANSLATION
    if use in ("greedy", "beams"):
        search = ks.decoding.BeamSearch(width=2) if use == "beams" else None
        model.generate(ids, search, max_length=3)
    else:
        inputs = {"source_ids": ids, "target_ids": ids} if translates else ids
        model.compile(ks.training.Adam(0.01), ks.training.MaskedCrossentropy())
        model.fit(inputs, ids, verbose=0)


def _export(row, form):
    translator = ks.Translator(TRANSLATION[row](), ks.text.ByteTokenizer())
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model{'.onnx' if form == 'onnx' else ''}"
        translator.export(path, format=form)


def read():
    """Maps table, row and column to the backends that the page names."""
    found = {}
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    for table, (_, columns) in HEADERS.items():
        part = re.search(rf"^## {table}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
        for line in part[1].splitlines() if part else ():
            name, *cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
            if name in ROWS[table]:
                for column, cell in zip(columns, cells, strict=True):
                    found[table, name, column] = set(re.findall(r"\w+", cell))
    return found


def table_of(name, found):
    """Writes one table of the page."""
    title, columns = HEADERS[name]
    lines = [f"| {title} | {' | '.join(f'`{c}`' for c in columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for row in ROWS[name]:
        cells = (found.get((name, row, column), set()) for column in columns)
        texts = (", ".join(x for x in NAMES.values() if x in cell) for cell in cells)
        lines.append(f"| {row} | {' | '.join(text or '-' for text in texts)} |")
    return "\n".join(lines)


def write():
    """Tries all on this backend, and writes its part of the page."""
    found, name = read(), NAMES[keras.backend.backend()]
    for table, rows in ROWS.items():
        for row in rows:
            for column in HEADERS[table][1]:
                cell = found.setdefault((table, row, column), set())
                cell.discard(name)
                if works(table, row, column):
                    cell.add(name)
                print(table, row, column, sorted(cell), flush=True)
    text = PAGE.read_text("utf-8")
    for table in HEADERS:
        text = re.sub(
            rf"(^## {table}\n.*?)(^\|.*?\n)(?=\n|\Z)",
            lambda match, table=table: f"{match[1]}{table_of(table, found)}\n",
            text,
            flags=re.M | re.S,
        )
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
