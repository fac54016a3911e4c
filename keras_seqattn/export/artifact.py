"""One call that writes a translator for another runtime, whole or not at all."""

import contextlib
import importlib
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

from keras_seqattn import arguments
from keras_seqattn.annotations import ExportFormat, Path

if TYPE_CHECKING:
    from keras_seqattn.translator import Translator


FORMATS = ("saved_model", "ctranslate2", "onnx")


def export_translator(
    translator: "Translator",
    path: Path,
    format: ExportFormat = "saved_model",
    *,
    overwrite: bool = False,
    verbose: bool = False,
    **options: Any,
) -> pathlib.Path:
    """Writes a translator so that a program without this library can run it.

    `Translator.export` calls this, and names the formats and their options.

    What the format cannot express is refused before anything is written. The files are
    made beside `path` and moved there at the end, so `path` never holds half an export.

    Args:
        translator: A `keras_seqattn.Translator`.
        path: Where to write: a folder; for "onnx" a file that ends in ".onnx".
        format: "saved_model", "ctranslate2" or "onnx".
        overwrite: Whether to replace what is at `path`.
        verbose: Whether to print what is being done.
        **options: Options of the format.

    Returns:
        `path` as a `pathlib.Path`.

    Raises:
        ValueError: If `format` or an option is unknown or out of range, `path` exists
            already, or the format cannot express the translator.
        ImportError: If a package that the format needs is missing.

    Example:
        >>> import tempfile
        >>> from keras_seqattn import Translator
        >>> from keras_seqattn.models import TranslationTransformer
        >>> from keras_seqattn.text import ByteTokenizer
        >>> model = TranslationTransformer(260, model_dim=8, num_heads=2, max_length=9)
        >>> translator = Translator(model, ByteTokenizer())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_translator(translator, f"{folder}/x", "ctranslate2")
        ...     sorted(file.name for file in path.iterdir())
        ['config.json', 'model.bin', 'shared_vocabulary.json']
    """
    wanted = "a `Translator`"
    arguments.offers("translator", translator, ("translate", "model"), wanted)
    arguments.path("path", path)
    arguments.choice("format", format, FORMATS)
    arguments.boolean("overwrite", overwrite)
    arguments.boolean("verbose", verbose)
    path = pathlib.Path(path)
    if os.path.lexists(path) and not overwrite:
        raise ValueError(
            "`path` must not exist, unless `overwrite=True`. "
            f"Received: path={str(path)!r}."
        )
    exporter = importlib.import_module(f"keras_seqattn.export.{format}")
    if verbose:
        print(f"Preparing the translator for {format}.")
    names = set(arguments.names_of(exporter.prepare)) - {"translator", "path"}
    arguments.known(options, sorted(names), f"export(format={format!r})")
    write = exporter.prepare(translator, path=path, **options)
    with _replaced(path) as made:
        write(made)
    if verbose:
        print(f"Wrote {path}: {_bytes_of(path) / 1e6:.1f} MB.")
    return path


@contextlib.contextmanager
def _replaced(path):
    """Yields a path beside `path` to write to, and then moves the result to `path`.

    What was at `path` is removed last. After an error everything is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=path.parent) as folder:
        made, old = pathlib.Path(folder, "new", path.name), pathlib.Path(folder, "old")
        made.parent.mkdir()
        yield made
        try:
            if os.path.lexists(path):  # even a link to nothing
                path.rename(old)
            made.rename(path)
        except BaseException:  # Ctrl-C, too
            if os.path.lexists(old) and not os.path.lexists(path):
                old.rename(path)
            raise


def _bytes_of(path):
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())
