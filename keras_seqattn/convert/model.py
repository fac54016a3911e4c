"""`model_from_huggingface`: a trained model as one of ours."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras

from keras_seqattn.convert import bart, llama, t5
from keras_seqattn.convert.checkpoint import Checkpoint
from keras_seqattn.convert.refusal import naming, refuse, valid
from keras_seqattn.models import LanguageModel, TranslationTransformer


class Family(NamedTuple):
    """How models of one architecture become ours: by class, arguments and weights."""

    model: type
    options: Callable[[Checkpoint], dict[str, Any]]
    fill: Callable[[Checkpoint, Any], None]


FAMILIES = {
    "marian": Family(TranslationTransformer, bart.marian_options, bart.fill),
    "m2m_100": Family(TranslationTransformer, bart.m2m_options, bart.fill),
    "mbart": Family(TranslationTransformer, bart.mbart_options, bart.fill),
    "t5": Family(TranslationTransformer, t5.t5_options, t5.fill),
    "mt5": Family(TranslationTransformer, t5.t5_options, t5.fill),
    "llama": Family(LanguageModel, llama.llama_options, llama.fill),
    "mistral": Family(LanguageModel, llama.llama_options, llama.fill),
}


def model_from_huggingface(source: Any, **options: Any) -> keras.Model:
    """Makes one of our models from a trained model in Hugging Face's format.

    Token ids stay the same, and so do the logits, up to rounding. Architectures that
    our models cannot represent are refused. Rates, `scale_embedding` and Mistral's
    window have transformers' defaults where a configuration leaves them out;
    `layerdrop`, which skips layers in training, is ignored.

    Args:
        source: A folder with `config.json` and `model.safetensors` (or its parts, with
            their index), as `save_pretrained` of transformers writes it and the Hub has
            it; or the transformers model itself. The types "marian", "m2m_100" (also
            NLLB's), "mbart", "t5" and "mt5" become a `TranslationTransformer`, "llama"
            and "mistral" a `LanguageModel`.
        **options: Arguments of our model that replace the checkpoint's, such as
            `dropout`, `dtype` or `name`; of an `attention` or `decoder_attention`,
            those in the dict. A configuration without padding, such as Llama 3's, needs
            `pad_id`: the id of a token that no text has (128004 of Llama 3.1 to 3.3).

    Returns:
        A `TranslationTransformer` or a `LanguageModel`, float32 unless `dtype` is
        given. Copying takes as much memory again as the model. The one embedding table
        of mBART, mT5 and version 1.1 of T5 becomes two, of source and target, which
        takes more memory and, when trained further, changes them apart. If the
        configuration has several end tokens, the first is the model's; the others are
        for the `stop_ids` of a search. Tokenizers of language models are not read: make
        token ids with theirs, such as `Tokenizer.from_file("tokenizer.json")` of the
        package `tokenizers` for Llama 3.

    Raises:
        ValueError: If `source` is not such a model, has a different architecture or no
            safetensors, has no padding where `pad_id` is not given, or has tensors that
            are missing, have a different shape, or have no place in our model.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:  # holds no model
        ...     model_from_huggingface(folder)
        Traceback (most recent call last):
        ...
        ValueError: `source` must be the folder of a model of transformers, ...
    """
    with naming("source"):
        checkpoint = Checkpoint.of(source)
        return make_model(checkpoint, model_options(checkpoint, options))


def model_options(checkpoint: Checkpoint, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of our model: the checkpoint's, but for those given."""
    if checkpoint.model_type not in FAMILIES:
        refuse(
            f"be a model of one of the types {tuple(FAMILIES)}",
            f"model_type={checkpoint.model_type!r}",
        )
    with valid("configuration"):
        own = FAMILIES[checkpoint.model_type].options(checkpoint)
    # What is given of an attention leaves its other options, such as the positions.
    merged = {
        name: {**own[name], **given[name]}
        for name in ("attention", "decoder_attention")
        if isinstance(own.get(name), dict) and isinstance(given.get(name), dict)
    }
    options = {**own, **given, **merged}
    if options["pad_id"] is None:
        refuse(
            "have the option 'pad_token_id' in its configuration, or `pad_id` be "
            "given, the id of a token that no text has",
            f"a configuration of model_type={checkpoint.model_type!r} without it",
        )
    return options


def make_model(checkpoint: Checkpoint, options: dict[str, Any]) -> keras.Model:
    """Makes a model with these arguments, and the checkpoint's weights."""
    family = FAMILIES[checkpoint.model_type]
    model = family.model(**options)
    family.fill(checkpoint, model)
    checkpoint.check_all_read()
    return model
