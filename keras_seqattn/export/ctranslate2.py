"""A translator as a folder for CTranslate2, a C++ engine that runs without Keras."""

import base64
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_seqattn import arguments
from keras_seqattn.decoding.protocol import default_max_length, length_limit
from keras_seqattn.export.transformer_spec import refuse, transformer_spec
from keras_seqattn.models import TranslationTransformer
from keras_seqattn.scheduling.generation import source_limit
from keras_seqattn.text import (
    ByteTokenizer,
    MappedSentencePieceTokenizer,
    SentencePieceTokenizer,
)

if TYPE_CHECKING:
    from keras_seqattn.translator import Translator


QUANTIZATIONS = (None, "float32", "int8", "int8_float32", "int16", "float16")
WITH_MODELS = (SentencePieceTokenizer, MappedSentencePieceTokenizer)


def prepare(
    translator: "Translator",
    path: pathlib.Path,
    quantization: str | None = None,
    max_length: int | None = None,
) -> Callable[[pathlib.Path], None]:
    r"""Returns the function that writes a CTranslate2 folder to the path it is given.

    The folder holds the weights (`model.bin`), the vocabularies, and the SentencePiece
    models as `source.spm` and `target.spm`. To translate with it, CTranslate2 and
    sentencepiece suffice:

    ```python
    engine = ctranslate2.Translator("folder")
    source = sentencepiece.SentencePieceProcessor(model_file="folder/source.spm")
    target = sentencepiece.SentencePieceProcessor(model_file="folder/target.spm")
    lines = [line.rstrip("\r\n") for line in lines]
    found = engine.translate_batch(source.encode(lines, out_type=str), beam_size=4)
    translations = [target.decode(one.hypotheses[0]) for one in found]
    ```

    The engine adds the end token to the source and the start token to the target by
    itself. The padding and start tokens are never generated. The translator's search is
    not exported: `keras_seqattn.export` says which arguments make the engine find the
    same. With a `ByteTokenizer` there are no SentencePiece models; the token of byte b
    is then `f"<0x{b:02X}>"`. With a `MappedSentencePieceTokenizer` the text of a
    hypothesis, without the pieces `prefix` that it was made to begin with, is
    `target.decode(hypothesis[len(prefix):]).replace("\u2581", " ").strip()`. Special
    pieces that the engine generates behind it, such as "<unk>", are part of that text;
    a `Translator` drops them.

    In float32 the engine computes what the model does, up to rounding. With int8 the
    weights are rounded here, and by default the engine also computes in int8, which is
    coarser; `ctranslate2.Translator(..., compute_type="float32")` avoids that. Its
    scores are over the tokens that may be generated, without the small probability that
    the model gives to padding and start. A mixed-precision model is exported with its
    float32 weights.

    `Translator.export` says what the options mean.
    """
    arguments.choice("quantization", quantization, QUANTIZATIONS)
    arguments.package("ctranslate2", "export", '`format="ctranslate2"`')
    model = translator.model
    if type(model) is not TranslationTransformer:
        refuse("be a `TranslationTransformer`", f"a {type(model).__name__}")
    tokenizers = {
        side: getattr(translator, f"{side}_tokenizer") for side in ("source", "target")
    }
    pieces = {side: _pieces(side, tokenizers[side]) for side in tokenizers}
    spec = transformer_spec(model, _number_of_positions(translator, max_length))
    spec.register_source_vocabulary(pieces["source"])
    spec.register_target_vocabulary(pieces["target"])
    _fill_config(spec.config, model, pieces, tokenizers["source"].unknown_id)
    spec.validate()
    spec.optimize(quantization)

    def write(folder):
        folder.mkdir()
        spec.save(str(folder))
        for side, tokenizer in tokenizers.items():
            if isinstance(tokenizer, WITH_MODELS):
                content = base64.b64decode(tokenizer.get_config()["model"])
                pathlib.Path(folder, f"{side}.spm").write_bytes(content)

    return write


def _number_of_positions(translator, max_length):
    """Returns the number of positions that `Translator.export` promises."""
    limit = length_limit(translator.model)
    if max_length is not None:
        return arguments.integer("max_length", max_length, least=1, most=limit)
    if limit is not None:
        return limit
    # A translation of the longest line may be longer than the line.
    longest = max(source_limit(translator.model), translator.max_source_length)
    return default_max_length(longest)


def _fill_config(config, model, pieces, unknown_id):
    """Tells the engine the special tokens, which it then adds by itself."""
    ends = {side: pieces[side][model.end_id] for side in pieces}
    if ends["source"] != ends["target"]:
        refuse("have one end token for source and target", f"{ends!r}")
    config.unk_token = pieces["source"][unknown_id]
    config.bos_token = pieces["target"][model.start_id]
    config.eos_token = pieces["target"][model.end_id]
    config.decoder_start_token = config.bos_token
    config.add_source_eos = True


def _pieces(side, tokenizer):
    """Returns the text of each token id, by which CTranslate2 identifies tokens."""
    if not isinstance(tokenizer, (*WITH_MODELS, ByteTokenizer)):
        raise ValueError(
            f"`{side}_tokenizer` must be a `SentencePieceTokenizer`, a "
            "`MappedSentencePieceTokenizer` or a `ByteTokenizer` for CTranslate2, "
            "which has to know the pieces. "
            f"Received: {side}_tokenizer of class {type(tokenizer).__name__}."
        )
    return tokenizer.pieces
