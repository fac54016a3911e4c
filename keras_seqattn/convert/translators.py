"""`translator_from_huggingface`: a trained model with its tokenizers."""

import itertools
import pathlib
import re
import warnings
from collections.abc import Callable
from typing import Any

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.convert.checkpoint import Checkpoint, model_folder, read_json
from keras_seqattn.convert.languages import M2M_LANGUAGES
from keras_seqattn.convert.model import make_model, model_options
from keras_seqattn.convert.refusal import naming, refuse, valid
from keras_seqattn.decoding import BeamSearch
from keras_seqattn.translator import Translator

# File names of the SentencePiece model, in families with one for both sides.
SHARED_MODELS = ("sentencepiece.bpe.model", "spiece.model", "spm.model")
TOKENIZER_CONFIG = "tokenizer_config.json"
UNKNOWN = "<unk>"
# How the one language begins that all models of NLLB and mBART-50 were trained with.
ENGLISH = "en"
LANGUAGE = re.compile("[a-z]{2,3}_[A-Z][A-Za-z]+")  # of NLLB and mBART-50
SHOWN = 5  # names in a message
# What fairseq's vocabularies begin with, before the pieces of the SentencePiece model.
FAIRSEQ = ["<s>", "<pad>", "</s>", UNKNOWN]


def translator_from_huggingface(
    folder: Path,
    source: str | None = None,
    target: str | None = None,
    **options: Any,
) -> Translator:
    """Makes a translator from a trained model in Hugging Face's format.

    Its tokenizers split text by the folder's own SentencePiece models and have the
    trained model's ids. Special tokens written in a line, such as "</s>", are treated
    as plain text.

    Args:
        folder: Folder with `config.json`, `model.safetensors` and what the family's
            tokenizer has: `source.spm`, `target.spm` and `vocab.json` of Marian, and
            `target_vocab.json` if the target has its own vocabulary;
            `sentencepiece.bpe.model` and `vocab.json` of M2M-100;
            `sentencepiece.bpe.model` of NLLB and mBART-50, whose languages are read
            from `special_tokens_map.json` or `tokenizer_config.json`, and the ids of
            added ones from the latter, `added_tokens.json` or `tokenizer.json`;
            `spiece.model` of T5 and mT5.
        source: The source's language, as the model calls it ("en", "eng_Latn",
            "en_XX"), for M2M-100, NLLB and mBART-50, which need it.
        target: The target's language, for these and for a Marian model of several
            targets ("fra" for its token ">>fra<<"; a warning names some if it is None).
            For T5 and MADLAD, text put before each line: "translate English to German:
            ", "<2de> ".
        **options: Arguments of our model that replace the checkpoint's, as in
            `model_from_huggingface`.

    Returns:
        A `Translator`. Tokens that were added to the tokenizer, other than languages,
        are left out, with a warning. Its search is a `BeamSearch` with the `num_beams`
        and the `length_penalty` of the folder's `config.json` and
        `generation_config.json`; the second takes precedence. It is greedy if this
        `num_beams` is 1 or missing. Their other search options are ignored. The
        language that a translation begins with does not count in its length, unlike in
        transformers, so for short lines the `length_penalty` may choose a different
        translation.

    Raises:
        ValueError: If the folder does not hold a translation model, a file is missing
            or damaged, the vocabulary differs in size from the model's or does not fit
            the SentencePiece model, or a language is missing or unknown.
        ImportError: If sentencepiece, of the extra `text`, is not installed.

    Example:
        >>> translator_from_huggingface("no_such_folder")
        Traceback (most recent call last):
        ...
        ValueError: `folder` must be the folder of a model of transformers, ...
    """
    arguments.path("folder", folder)
    for name, value in (("source", source), ("target", target)):
        arguments.text(name, value, optional=True)
    with naming("folder"):
        path = model_folder(folder)
        kind = read_json(path / "config.json").get("model_type")
        if not isinstance(kind, str) or kind not in MAKERS:
            refuse(
                f"be a model that translates, of one of the types {tuple(MAKERS)} (of "
                "a language model, `model_from_huggingface` reads the model alone)",
                f"model_type={kind!r}",
            )
        checkpoint = Checkpoint.of(path)
        options = model_options(checkpoint, options)
        with valid("tokenizer"):
            tokenizers = MAKERS[kind](path, options, source, target)
            lost = _lost_tokens(path, tokenizers)
        if lost:
            warnings.warn(
                "Tokens that were added to the trained model's tokenizer are left out: "
                f"{_some(lost)}. In a line they are plain text, and a translation does "
                "not show them.",
                stacklevel=2,
            )
        with valid("search in its configuration"):
            search = _search(path)
        # Last, since it takes by far the longest.
        model = make_model(checkpoint, options)
        return Translator(model, *tokenizers, search=search)


def _search(folder):
    """Returns the search that the folder asks for, or None."""
    found = {}
    for name in ("config.json", "generation_config.json"):
        found |= _read_if_there(folder / name)
    width = found.get("num_beams") or 1
    if width <= 1:
        return None
    penalty = found.get("length_penalty")
    return BeamSearch(width, length_penalty=1.0 if penalty is None else float(penalty))


def _vocabulary_size(options, side):
    """Returns the size of a side's vocabulary; the target's may be the source's."""
    size = options.get(f"{side}_vocabulary_size")
    return options["source_vocabulary_size"] if size is None else size


def _marian(folder, options, source, target):
    """Returns tokenizers of two SentencePiece models, with one vocabulary or two."""
    _check_no_language("source", source, "a Marian model, whose source is one language")
    vocabularies = [folder / "vocab.json"] * 2
    if options.get("target_vocabulary_size") is not None:
        vocabularies[1] = folder / "target_vocab.json"
    sides = []
    for side, path in zip(("source", "target"), vocabularies, strict=True):
        pieces = _in_order(path, _vocabulary_size(options, side))
        prefix = _target_prefix(pieces, target) if side == "source" else []
        special = [i for i, x in enumerate(pieces) if _is_tag(x)]
        spm, _ = _sentencepiece(folder / f"{side}.spm")
        sides.append(_tokenizer(spm, pieces, options, special, prefix, side=side))
    return sides


def _target_prefix(pieces, target):
    """Returns the ids that begin a source of a Marian model: the target's, if any."""
    tags = tuple(x[2:-2] for x in pieces if _is_tag(x))
    if not tags:
        _check_no_language("target", target, "a Marian model of one target")
        return []
    arguments.choice("target", target, tags, optional=True)
    if target is not None:
        return [pieces.index(f">>{target}<<")]
    warnings.warn(
        "The model needs a target language, and no line gets one, since `target` is "
        f"None. Choose one of {_some(tags)}. In a line, '>>{tags[0]}<<' is plain text.",
        stacklevel=4,
    )
    return []


def _m2m(folder, options, source, target):
    """Returns the tokenizers of M2M-100, with a vocabulary in JSON, or of NLLB."""
    if not (folder / "vocab.json").is_file():
        return _fairseq(folder, options, source, target)
    about = _read_if_there(folder / TOKENIZER_CONFIG)
    codes, name = about.get("language_codes", "m2m100"), _tokenizer_class(folder)
    if codes != "m2m100" or name not in (None, "M2M100Tokenizer"):
        refuse(
            "have the tokenizer and the 100 languages of M2M-100",
            f"tokenizer_class={name!r} with language_codes={codes!r}",
        )
    spm, _ = _sentencepiece(_shared_model(folder))
    pieces = _in_order(folder / "vocab.json")
    tags = {code: len(pieces) + i for i, code in enumerate(M2M_LANGUAGES)}
    return _tagged(spm, pieces, options, tags, source, target, "__{}__")


def _fairseq(folder, options, source, target):
    """Returns the tokenizers of NLLB or mBART-50: ids of pieces, then of languages."""
    if _read_if_there(folder / TOKENIZER_CONFIG).get("legacy_behaviour"):
        refuse(
            "have the source's language before the text, not behind its end, where a "
            "`Translator` puts nothing",
            "a tokenizer with legacy_behaviour=true",
        )
    spm, processor = _sentencepiece(_shared_model(folder))
    size = processor.vocab_size()
    # SentencePiece's first three, "<unk>", "<s>" and "</s>", are among fairseq's four.
    pieces = FAIRSEQ + [processor.id_to_piece(i) for i in range(3, size)]
    tags = _language_ids(folder, len(pieces))
    return _tagged(spm, pieces, options, tags, source, target)


def _read_if_there(path):
    """Returns what a JSON file holds, an empty dict where there is none."""
    return read_json(path) if path.is_file() else {}


def _tokenizer_class(folder):
    """Returns the name of a tokenizer's class, which either configuration may have."""
    for name in (TOKENIZER_CONFIG, "config.json"):
        found = _read_if_there(folder / name).get("tokenizer_class")
        if found:
            return found
    return None


def _mbart(folder, options, source, target):
    """Returns the tokenizers of mBART-50."""
    name = _tokenizer_class(folder) or ""
    if not name.startswith("MBart50"):
        refuse(
            "have the tokenizer of mBART-50, with the language before the text; that "
            "of mBART-25 puts it behind the end, where a `Translator` puts nothing "
            "(`model_from_huggingface` reads the model)",
            f"tokenizer_class={name!r}",
        )
    return _fairseq(folder, options, source, target)


def _t5(folder, options, source, target):
    """Returns the tokenizers of one SentencePiece model, with its own ids."""
    _check_no_language("source", source, "T5; `target` is the text before each line")
    spm, processor = _sentencepiece(_shared_model(folder))
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    own = _tokenizer(spm, pieces, options, [], text_prefix=target or "")
    return own, (_tokenizer(spm, pieces, options, []) if target else None)


def _lost_tokens(folder, tokenizers):
    """Returns the added tokens that the tokenizers do not have."""
    known = {piece for one in tokenizers if one is not None for piece in one.pieces}
    known |= {*FAIRSEQ, "<mask>"}
    return [
        token
        for token in _added_ids(folder)[0]
        if token not in known and not token.startswith("<extra_id_")
    ]


def _tagged(spm, pieces, options, tags, source, target, template="{}"):
    """Returns the tokenizers of two languages of a multilingual model.

    `tags` has the id of each language; `template` formats its name as a token.
    """
    for name, value in (("source", source), ("target", target)):
        arguments.choice(name, value, tuple(tags))
    texts = {number: template.format(tag) for tag, number in tags.items()}
    _check_size(options, "source", 1 + max(texts))  # before so many pieces are made
    behind = range(len(pieces), 1 + max(texts))
    pieces = [*pieces, *(texts.get(i, f"<unused_{i}>") for i in behind)]
    special = sorted({*texts, *behind})
    return [
        _tokenizer(spm, pieces, options, special, [tags[language]])
        for language in (source, target)
    ]


def _check_size(options, side, count):
    """Returns the size of a side's vocabulary, if the model has room for `count`."""
    size = _vocabulary_size(options, side)
    if count > size:
        refuse(
            f"have a vocabulary of at most {size} entries, as many as its model",
            f"{count} entries",
        )
    return size


def _tokenizer(spm, pieces, options, special, prefix=(), text_prefix="", side="source"):
    from keras_seqattn.text import MappedSentencePieceTokenizer

    size = _check_size(options, side, len(pieces))
    # The model may have rows for further ids, which no text has.
    spare = range(len(pieces), size)
    special = [*special, *spare]
    pieces = [*pieces, *(f"<unused_{i}>" for i in spare)]
    if UNKNOWN not in pieces:
        refuse(f"have a token {UNKNOWN!r} in its vocabulary", "a vocabulary without it")
    return MappedSentencePieceTokenizer(
        spm,
        pieces,
        pad_id=options["pad_id"],
        start_id=options["start_id"],
        end_id=options["end_id"],
        unknown_id=pieces.index(UNKNOWN),
        special_ids=special,
        prefix_ids=prefix,
        text_prefix=text_prefix,
    )


def _check_no_language(name, value, what):
    if value is not None:
        arguments.refuse(name, value, f"None for {what}")


def _some(names):
    """Returns names as text, of many only the first."""
    shown = ", ".join(map(repr, names[:SHOWN]))
    further = len(names) - SHOWN
    return f"{shown} and {further} more" if further > 0 else shown


def _is_tag(piece):
    return piece.startswith(">>") and piece.endswith("<<")


def _in_order(path: pathlib.Path, size: int | None = None) -> list[str]:
    """Returns the pieces of a JSON vocabulary by id."""
    if not path.is_file():
        refuse(f"hold {path.name!r}", f"{str(path.parent)!r} without it")
    ids = read_json(path)
    pieces = sorted(ids, key=ids.get)
    if sorted(ids.values()) != list(range(len(ids))):
        refuse(
            f"have ids from 0 on in {path.name!r}, each once",
            f"{len(ids)} pieces with ids up to {max(ids.values(), default=None)}",
        )
    if size is not None and len(pieces) > size:
        refuse(
            f"have at most {size} pieces in {path.name!r}, as its model has",
            f"{len(pieces)} pieces",
        )
    return pieces


def _language_ids(folder, first):
    """Returns the id of each language of NLLB or mBART-50.

    A folder lists the ids of all languages, of those that were added later (behind
    other tokens, such as "<mask>"), or of none. The rest have the free ids from `first`
    on. In the list of languages, those that were added may replace the others.
    """
    added, special = _added_ids(folder)
    found = dict.fromkeys([*_listed_languages(folder), *special])
    languages = [token for token in found if LANGUAGE.fullmatch(token)]
    taken = {*added.values()}
    free = (number for number in itertools.count(first) if number not in taken)
    ids = {x: added[x] if x in added else next(free) for x in languages}
    # Ids that are listed with all special tokens are complete. Else the languages
    # without one are the trained model's, if English is among them and they reach the
    # tokens that were added; "<mask>" may stand between.
    is_complete = {*languages} <= {*special}
    unlisted = [x for x in languages if x not in added]
    last = max((ids[x] for x in unlisted), default=0)
    beyond = min((number for number in taken if number > last), default=last + 1)
    has_english = any(language.startswith(ENGLISH) for language in unlisted)
    is_base = has_english and beyond <= last + 2
    if not languages or not (is_complete or is_base):
        refuse(
            "hold the languages as 'additional_special_tokens' in "
            "'special_tokens_map.json' or 'tokenizer_config.json', first those of the "
            "model that it was fine-tuned from",
            f"a folder with {_some(languages) or 'none'}",
        )
    return ids


def _listed_languages(folder):
    """Returns a tokenizer's additional special tokens in order."""
    for name in ("special_tokens_map.json", TOKENIZER_CONFIG):
        found = _read_if_there(folder / name)
        for key in ("additional_special_tokens", "extra_special_tokens"):
            if found.get(key):
                return [x if isinstance(x, str) else x["content"] for x in found[key]]
    return []


def _added_ids(folder):
    """Returns the ids of added tokens as far as files list them, and the special ones.

    transformers 5 lists them in `tokenizer.json`, earlier versions in others.
    """
    tokens = list(_read_if_there(folder / "tokenizer.json").get("added_tokens") or [])
    listed = _read_if_there(folder / TOKENIZER_CONFIG).get("added_tokens_decoder") or {}
    tokens += [{**token, "id": int(number)} for number, token in listed.items()]
    ids = {token["content"]: token["id"] for token in tokens}
    special = [token["content"] for token in tokens if token.get("special")]
    return ids | _read_if_there(folder / "added_tokens.json"), special


def _shared_model(folder):
    for name in SHARED_MODELS:
        if (folder / name).is_file():
            return folder / name
    refuse(
        f"hold its SentencePiece model, one of {SHARED_MODELS} ('tokenizer.json', "
        "which transformers 5 writes in its place, is not enough: copy the file from "
        "the folder of the model that it was fine-tuned from)",
        repr(str(folder)),
    )


def _sentencepiece(path):
    """Returns the bytes of a SentencePiece model, and its processor."""
    from keras_seqattn.text.tokenizers import processor_of

    if not path.is_file():
        refuse(f"hold {path.name!r}", f"{str(path.parent)!r} without it")
    content = path.read_bytes()
    try:
        return content, processor_of(content)
    except RuntimeError:
        refuse(f"hold {path.name!r} as a SentencePiece model", "a file that is not one")


# By a configuration's `model_type`: the function that makes both tokenizers.
MAKERS: dict[str, Callable[..., Any]] = {
    "marian": _marian,
    "m2m_100": _m2m,
    "mbart": _mbart,
    "t5": _t5,
    "mt5": _t5,
}
