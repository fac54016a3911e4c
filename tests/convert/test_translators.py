"""Folders become translators: the same token ids, translations, files and exports."""

import json
import shutil

import numpy as np
import pytest
import sentencepiece
import transformers

import keras_seqattn as ks
from keras_seqattn.convert import translators
from keras_seqattn.decoding import BeamSearch, Greedy
from tests.convert import families
from tests.pairs import slow

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:The model needs a target language"),
]

# One by default: the models' own searches, and all tokenizers, are tried for all.
SEARCHED = ["marian", *slow(*(x for x in families.TRANSLATORS if x != "marian"))]
LINES = ["zwei Hunde rennen", "a man sings", "two dogs run in a blue shirt"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    found = {}

    def make(name):
        if name not in found:
            folder = tmp_path_factory.mktemp(name)
            function, options = families.TRANSLATORS[name]
            theirs = function(folder)
            ours = ks.convert.translator_from_huggingface(folder, **options)
            found[name] = folder, theirs, ours
        return found[name]

    return make


def their_ids(name, folder, lines):
    """Tokenizes lines as transformers does, or by the formula of its documentation."""
    if name.startswith("marian"):
        vocabularies = ["vocab.json"] * 2
        if name == "marian_separate":
            vocabularies[1] = "target_vocab.json"
        tokenizer = transformers.MarianTokenizer(
            str(folder / "source.spm"),
            str(folder / "target.spm"),
            str(folder / vocabularies[0]),
            target_vocab_file=str(folder / vocabularies[1]),
            separate_vocabs=name == "marian_separate",
        )
        tag = ">>deu<<" if name == "marian_tag" else ""
        source = tokenizer([tag + line for line in lines]).input_ids
        return source, tokenizer(text_target=lines).input_ids
    if name == "m2m":
        tokenizer = transformers.M2M100Tokenizer(
            str(folder / "vocab.json"),
            str(folder / "sentencepiece.bpe.model"),
            src_lang="en",
        )
        source = tokenizer(lines).input_ids
        tokenizer.src_lang = "de"
        return source, tokenizer(lines).input_ids
    processor = sentencepiece.SentencePieceProcessor()
    if name in ("nllb", "mbart"):
        # Fairseq: one id more than SentencePiece's, and the languages at the end.
        processor.load(str(folder / "sentencepiece.bpe.model"))
        languages = families.NLLB if name == "nllb" else families.MBART
        options = families.TRANSLATORS[name][1]
        rows = [[3 if x == 0 else x + 1 for x in processor.encode(y)] for y in lines]
        tags = [
            processor.vocab_size() + 1 + languages.index(options[side])
            for side in ("source", "target")
        ]
        return [[[tag, *row, 2] for row in rows] for tag in tags]
    processor.load(str(folder / "spiece.model"))
    before = families.TRANSLATORS[name][1].get("target", "")
    source = [[*processor.encode(before + line), 1] for line in lines]
    return source, [[*processor.encode(line), 1] for line in lines]


@pytest.mark.parametrize("name", families.TRANSLATORS)
def test_token_ids_are_equal(name, made):
    check_ids(name, made, 400)


@pytest.mark.slow
@pytest.mark.parametrize("name", families.TRANSLATORS)
def test_token_ids_of_ten_thousand_lines_are_equal(name, made):
    check_ids(name, made, 10_000)


def check_ids(name, made, number):
    folder, theirs, ours = made(name)
    lines = families.sentences(number)
    end = theirs.config.eos_token_id
    for side, expected in zip(
        ("source", "target"), their_ids(name, folder, lines), strict=True
    ):
        found = getattr(ours, f"{side}_tokenizer").tokenize(lines)
        for line, left, right in zip(lines, found, expected, strict=True):
            assert [*left, end] == right, (side, line)


SAVED = {
    "m2m_100": (transformers.NllbTokenizer, "sentencepiece.bpe.model", families.NLLB),
    "mbart": (transformers.MBart50Tokenizer, "sentencepiece.bpe.model", ["en_XX"]),
}


@pytest.mark.parametrize("kind", SAVED)
def test_a_language_is_added_and_saved_by_transformers_5(kind, tmp_path):
    """Its folder has no SentencePiece model, which is copied from the original's."""
    tokenizer_class, file, languages = SAVED[kind]
    spm = families.make_spm(model_type="bpe" if kind == "m2m_100" else "unigram")
    (tmp_path / file).write_bytes(spm)
    theirs = tokenizer_class.from_pretrained(str(tmp_path))
    theirs.add_special_tokens({"extra_special_tokens": languages})
    theirs.add_special_tokens({"extra_special_tokens": ["new_XX"]})
    folder = tmp_path / "saved"
    theirs.save_pretrained(folder)
    assert not (folder / file).exists()
    shutil.copy(tmp_path / file, folder)
    options = {"source_vocabulary_size": len(theirs) + 5}
    options |= {"pad_id": 1, "start_id": 2, "end_id": 2}
    pair = ("new_XX", languages[0])
    tokenizers = translators.MAKERS[kind](folder, options, *pair)
    for language, ours in zip(pair, tokenizers, strict=True):
        theirs.src_lang = language
        for line, ids in zip(LINES, ours.tokenize(LINES), strict=True):
            assert [*ids, 2] == theirs(line).input_ids


@pytest.mark.parametrize("name", SEARCHED)
def test_translations_are_those_of_transformers(name, made):
    _, theirs, ours = made(name)
    tokenizer = ours.target_tokenizer
    prefix = tokenizer.prefix_ids[0] if tokenizer.prefix_ids else None
    for search in (Greedy(), BeamSearch(4, patience=None)):
        for line in LINES:
            ids = [*ours.source_tokenizer.tokenize([line])[0], ours.model.end_id]
            limit = min(2 * len(ids) + 10, ours.model.max_length or 100)
            width = getattr(search, "width", 1)
            (found,) = families.generated(theirs, [ids], width, limit, prefix)
            (expected,) = tokenizer.detokenize([found])
            assert ours([line], search=search) == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHED)
def test_a_saved_translator_translates_the_same(name, made, tmp_path):
    _, _, ours = made(name)
    ours.save(tmp_path / "translator.keras")
    loaded = ks.Translator.load(tmp_path / "translator.keras")
    assert loaded.translate(LINES) == ours.translate(LINES)
    for side in ("source", "target"):
        tokenizers = [getattr(x, f"{side}_tokenizer") for x in (ours, loaded)]
        left, right = (tokenizer.tokenize(LINES) for tokenizer in tokenizers)
        assert left == right


@pytest.mark.slow
@pytest.mark.parametrize("name", families.TRANSLATORS)
def test_ctranslate2_finds_the_same_tokens(name, made, tmp_path):
    ctranslate2 = pytest.importorskip("ctranslate2")
    _, _, ours = made(name)
    ours.export(tmp_path / "engine", format="ctranslate2")
    engine = ctranslate2.Translator(str(tmp_path / "engine"), compute_type="float32")
    source, target = ours.source_tokenizer, ours.target_tokenizer
    for width in (1, 4):
        for line in LINES:
            (ids,) = source.tokenize([line])
            (found,) = engine.translate_batch(
                [[source.pieces[token] for token in ids]],
                target_prefix=[[target.pieces[token] for token in target.prefix_ids]],
                beam_size=width,
                max_decoding_length=10,
                min_decoding_length=0,
                length_penalty=float(width > 1),
                patience=100,
            )
            search = BeamSearch(width, patience=None) if width > 1 else Greedy()
            expected = ours.model.generate(
                [[*ids, source.end_id]],
                search,
                max_length=10,
                prefix=[target.prefix_ids] if target.prefix_ids else None,
            )
            pieces = [target.pieces[token] for token in expected.sequence(0)]
            assert found.hypotheses[0] == pieces


def test_training_batches_have_the_ids_of_the_model(made):
    _, _, ours = made("marian")
    batches = ks.text.translation_batches(
        LINES, LINES, ours.source_tokenizer, ours.target_tokenizer, shuffle=False
    )
    model, pad_id = ours.model, ours.model.pad_id
    for inputs, labels in batches:
        starts, labels = np.array(inputs["target_ids"])[:, 0], np.array(labels)
        assert pad_id != 0 and (starts == model.start_id).all()
        ended = (labels == model.end_id).sum(axis=1)
        assert ended.tolist() == (labels[:, 0] != pad_id).astype(int).tolist()
    model.compile("adam", ks.training.MaskedCrossentropy(pad_id=pad_id))
    weights = model.get_weights()
    model.fit(batches, epochs=1, shuffle=False, verbose=0)
    assert any(
        (x != y).any() for x, y in zip(weights, model.get_weights(), strict=True)
    )
    model.set_weights(weights)


def test_the_search_is_what_the_folder_asks_for(made, tmp_path):
    folder, _, ours = made("marian")
    assert ours.search is None
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    beams = {"num_beams": 6, "length_penalty": 2.0}
    for old, new, wanted in (
        ({}, {"num_beams": 3, "length_penalty": 0.6}, BeamSearch(3, 0.6)),
        (beams, {"num_beams": 3, "length_penalty": 0.0}, BeamSearch(3, 0.0)),
        (beams, {}, BeamSearch(6, 2.0)),
        (beams, {"length_penalty": None}, BeamSearch(6, 1.0)),
        (beams, {"num_beams": 1}, None),
    ):
        families.set_options(tmp_path / "config.json", **old)
        (tmp_path / "generation_config.json").write_text(json.dumps(new))
        assert ks.convert.translator_from_huggingface(tmp_path).search == wanted


def test_a_prefix_follows_the_language(made):
    _, _, ours = made("m2m")
    text = ours.translate(["two dogs"], prefix=["zwei"])[0][0][0]
    assert text.startswith("zwei") and "__" not in text


def test_drawn_segmentations_have_the_same_text(made):
    _, _, ours = made("marian")
    tokenizer = ours.source_tokenizer
    plain = tokenizer.tokenize(LINES)
    for seed in (None, 3):
        drawn = tokenizer.tokenize(LINES, sampling=0.2, seed=seed)
        assert drawn != plain
        assert tokenizer.detokenize(drawn) == tokenizer.detokenize(plain)


@pytest.mark.parametrize("name", ["marian", "m2m", "t5"])
def test_a_graph_of_tensorflow_has_the_same_ids(name, made):
    tensorflow = pytest.importorskip("tensorflow")
    for side in ("source", "target"):
        tokenizer = getattr(made(name)[2], f"{side}_tokenizer")
        found = tokenizer.tokenize(tensorflow.constant(LINES))
        assert found.to_list() == tokenizer.tokenize(LINES)
