"""Phrases and glossaries: what lines are to say, and translations that say it."""

import io
import re

import keras
import numpy as np
import pytest
import sentencepiece

import keras_seqattn as ks
from keras_seqattn import terminology
from keras_seqattn.decoding.constraints import Phrase, count_tokens
from keras_seqattn.terminology import Terms, continuing_ids
from tests.pairs import each_variant, named
from tests.small import translation_model
from tests.test_translator import make_model

pytestmark = pytest.mark.backends("torch")

TRAINING = ["two dogs run in a park", "a man in a blue shirt sings"] * 20
LINES = ["one dog", "", "a man. A dog!", "hotdog"]
GLOSSARY = {"dog": "blue dogs", "a man": ("two men", "a dog"), "dog eats": "park"}


@pytest.fixture(scope="module")
def pieces():
    return ks.text.SentencePieceTokenizer.train(TRAINING, vocabulary_size=290)


@pytest.fixture(scope="module")
def translators(pieces):
    keras.utils.set_random_seed(3)
    made = {}
    for name, tokenizer in (("pieces", pieces), ("bytes", ks.text.ByteTokenizer())):
        model = make_model(
            vocabulary_size=tokenizer.vocabulary_size, decoder_layers=1, max_length=48
        )
        search = ks.decoding.BeamSearch(width=3)
        made[name] = ks.Translator(model, tokenizer, search=search)
    return made


def has(phrase, text):
    """Whether a text has a phrase as whole words."""
    before, after = r"(?<!\w)", r"(?!\w)"
    return re.search(before + re.escape(phrase) + after, text) is not None


def test_phrases_are_tokenized_as_in_a_sentence(pieces):
    ((row,),) = Terms(pieces, None).rows(["x"], [["dogs"]])
    (within,), (alone,) = (pieces.tokenize([text]) for text in (" dogs", "dogs"))
    assert row == (Phrase(tuple(within)), Phrase(tuple(alone), is_first=True))
    # A script without spaces has no words: a phrase stands anywhere.
    ((row,),) = Terms(pieces, None).rows(["x"], [["狗"]])
    assert not row[0].is_first and not row[1].is_first


@pytest.mark.parametrize("letters", ["ab ", "ab' .", "a猫犬 ", "ae\u0301 -"])
def test_source_phrases_are_those_of_a_regular_expression(letters, rng):
    """With all phrases as alternatives, the longest first."""

    def text(most):
        return "".join(rng.choice([*letters], rng.integers(1, most)))

    letter = terminology.LETTER
    boundary = f"(?:(?<!{letter})|(?!{letter}))"
    count = 0
    for _ in range(200):
        phrases = {text(6).strip() or "a" for _ in range(4)}
        ways = map(re.escape, sorted(phrases, key=len, reverse=True))
        line, pattern = text(15), f"{boundary}(?:{'|'.join(ways)}){boundary}"
        terms = Terms(ks.text.ByteTokenizer(), {phrase: "x" for phrase in phrases})
        found = terms._sources(line)
        assert found == re.findall(pattern, line)
        count += len(found)
    assert count > 100


def test_a_glossary_is_tokenized_once(translators, monkeypatch):
    translator = translators["pieces"]
    own = ks.Translator(translator.model, translator.target_tokenizer)
    tokenize, count = translator.target_tokenizer.tokenize, []

    def counted(lines, *args, **options):
        count.extend(lines)
        return tokenize(lines, *args, **options)

    monkeypatch.setattr(own.target_tokenizer, "tokenize", counted)
    found = []
    for glossary in ({"dog": "blue dogs"}, {"dog": "blue dogs"}, {"dog": "park"}):
        count.clear()
        found.append(own.translate(["one dog"], glossary=glossary))
        found.append(sum("blue dogs" in line for line in count))
    assert found[0] == found[2] != found[4]
    assert (found[1], found[3], found[5]) == (3, 0, 0)


@pytest.fixture(scope="module")
def dummy_prefix():
    """A tokenizer of a model trained elsewhere, which begins each text with a space."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*TRAINING, "我喜欢狗和猫", "狗喜欢猫"] * 20),
        model_writer=model,
        vocab_size=50,
        hard_vocab_limit=False,
        add_dummy_prefix=True,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    return ks.text.MappedSentencePieceTokenizer(
        model.getvalue(),
        [*pieces, "<pad>", ">>en<<"],
        pad_id=len(pieces),
        start_id=1,
        end_id=2,
        unknown_id=0,
        prefix_ids=[len(pieces) + 1],
    )


def test_pieces_that_the_vocabulary_has_alone_are_text(dummy_prefix):
    """As a Marian model's target may hold the pieces of its source."""
    config = dummy_prefix.get_config()
    config["pieces"] = [*config["pieces"], "\u2581Smartphone"]
    foreign = len(config["pieces"]) - 1
    tokenizer = type(dummy_prefix).from_config(config)
    (ids,) = tokenizer.tokenize(["dogs"])
    word = [i for i in ids if i not in tokenizer.prefix_ids]
    found = tokenizer.detokenize([[foreign, *word], [*word, foreign], [foreign]])
    assert found == ["Smartphone dogs", "dogs Smartphone", "Smartphone"]


def test_without_spaces_a_phrase_follows_a_character(dummy_prefix):
    ((row, word),) = Terms(dummy_prefix, None).rows(["x"], [["狗", "dogs"]])
    spellings = [
        "".join(dummy_prefix.pieces[token] for token in phrase.ids) for phrase in row
    ]
    assert spellings == ["▁狗", "狗"]
    assert not any(phrase.is_first for phrase in row)
    assert len(word) == 1  # words follow a space, or stand at the beginning as after it


@pytest.mark.slow
def test_a_word_does_not_go_on_where_a_prefix_ends(pieces, translators):
    prefix = ["Der", "Der ", "", "(", "狗"]
    rows = Terms(pieces, None).rows(["x"] * 5, [["dogs"]] * 5, prefix)
    is_first = [any(way.is_first for way in ways) for (ways,) in rows]
    assert is_first == [False, True, True, True, True]
    for translator in translators.values():
        found = translator.translate(
            ["one dog"] * 2, prefix=["x", ""], constraints=[["dogs"]] * 2
        )
        assert all(has("dogs", text) for ((text, _),) in found), found


def test_tokens_that_continue_a_word(pieces):
    bits = np.unpackbits(np.frombuffer(continuing_ids(pieces), "uint8"))
    for token, text in enumerate(pieces.pieces):
        if token >= 260:
            assert bits[token] == text[0].isalnum(), text
    assert not bits[:4].any()


def test_words_are_told_apart_in_any_script():
    """Of a vocabulary without a Latin "a" too."""
    pieces = ["<pad>", "<s>", "</s>", "<unk>", "собака", "бежит", "##и", "."]
    tokenizer = ks.text.WordPieceTokenizer(pieces)
    bits = np.unpackbits(np.frombuffer(continuing_ids(tokenizer), "uint8"))
    assert bits[4:8].tolist() == [0, 0, 1, 0]
    ((row,),) = Terms(tokenizer, None).rows(["x"], [["бежит"]])
    assert row == (Phrase((5,)),)


def test_keys_of_a_glossary_that_differ_in_spaces_are_one():
    terms = Terms(ks.text.ByteTokenizer(), {"dog": "Hund", "dog ": "Dogge"})
    ((ways,),) = terms.rows(["a dog"])
    assert len({bytes(x - 4 for x in way.ids).strip() for way in ways}) == 2


@pytest.mark.parametrize(
    ("prefix", "count"),
    [("", 1), ("Hund ", 0), ("Hund bellt", 0), ("ein Hund,", 0), ("ein Hund", 1)],
)
@pytest.mark.parametrize("phrase", ["Hund", ("Hund", "Hund bellt")])
def test_what_a_prefix_says_need_not_be_said_again(prefix, count, phrase):
    terms = Terms(ks.text.ByteTokenizer(), None)
    (row,) = terms.rows(["x"], [[phrase]], [prefix])
    assert len(row) == count


def test_a_phrase_with_a_stop_token_is_an_error(translators):
    translator = translators["bytes"]
    (stop,) = translator.target_tokenizer.tokenize(["."])[0]
    search = ks.decoding.BeamSearch(stop_ids=(stop,))
    for given in ({"constraints": [["U.S."]]}, {"glossary": {"dog": "U.S."}}):
        with pytest.raises(ValueError, match="must hold phrases without a token of"):
            translator.translate(["a dog"], search=search, **given)
    with pytest.raises(ValueError, match="must hold phrases without a token of"):
        translator.stream(["a dog"], search=search, glossary={"dog": "U.S."})


def test_segmentations_need_a_tokenizer_that_draws(translators):
    with pytest.raises(ValueError, match="`segmentations` must be 1 where.*=2"):
        translators["bytes"].translate(["a dog"], segmentations=2)


def test_a_glossary_applies_to_whole_words_the_longest_first():
    tokenizer = ks.text.ByteTokenizer()

    def found(line, glossary):
        phrases = {}
        for source, target in glossary.items():
            ((row,),) = Terms(tokenizer, None).rows([line or "x"], [[target]])
            phrases[row] = source
        (row,) = Terms(tokenizer, glossary).rows([line])
        return [phrases[some] for some in row]

    glossary = {
        "dog": "Hund",
        "hot dog": "Hotdog",
        "a.b": "c",
        "犬": "Köter",
        "C++": "D",
        "कम": "less",
        "cafe": "Kaffee",
        "❤": "Herz",
        "می": "i",
        "co": "ko",
    }
    assert found("dogs, hotdog, Dog", glossary) == []
    assert found("hot dog", glossary) == ["hot dog"]
    assert found("dog-hot dog dog", glossary) == ["dog", "hot dog"]
    assert found("a.b axb", glossary) == ["a.b"]
    assert found("大犬小", glossary) == ["犬"]
    assert found("(C++)", glossary) == ["C++"]
    # A mark belongs to the letter before it, but not that of an emoji.
    assert found("कमाल cafe\u0301", glossary) == []
    assert found("कम, cafe", glossary) == ["कम", "cafe"]
    assert found("❤\ufe0fdog", glossary) == ["❤", "dog"]
    # Nor does a character that is not seen end a word.
    assert found("می\u200cخواهم co\u00adop co\u2060op \u0915\u200dco", glossary) == []


def test_a_token_that_begins_with_a_mark_continues_a_word():
    class Characters:
        texts = ["a", " ", "\u0301", "\u093e", ".", "犬", "\u0e34", "\ufe0f"]
        vocabulary_size = len(texts)

        def tokenize(self, lines):
            return [list(map(self.texts.index, line)) for line in lines]

        def detokenize(self, rows):
            return ["".join(self.texts[token] for token in row) for row in rows]

    bits = np.unpackbits(np.frombuffer(continuing_ids(Characters()), "uint8"))
    assert bits.tolist() == [1, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.backends("tensorflow", "jax", "torch")
@each_variant(
    "name",
    named("pieces", "bytes"),
    on_jax=[],
    on_tensorflow=[],
    on_torch=["pieces"],
)
def test_translations_hold_what_they_are_told(translators, name):
    translator = translators[name]
    constraints = [["dogs", "a man"], [], [("zwei Katzen", "park")], []]
    found = translator.translate(
        LINES, num_hypotheses=2, constraints=constraints, glossary=GLOSSARY
    )
    texts = [[text for text, _ in pairs] for pairs in found]
    for text in texts[0]:
        assert all(has(x, text) for x in ("dogs", "a man", "blue dogs"))
    assert texts[1] == [""]
    for text in texts[2]:
        assert has("park", text) or has("zwei Katzen", text)
        assert has("two men", text) or has("a dog", text)
        assert has("blue dogs", text)
    # What has no constraint is translated as ever.
    assert found[3] == translator.translate(LINES[3:], num_hypotheses=2)[0]


def noise_translator(seed):
    """A translator with random weights, some of which once led to no translation."""
    rng, tokenizer = np.random.default_rng(seed), ks.text.ByteTokenizer()
    model = translation_model(260, model_dim=16, intermediate_dim=16)
    for weight in model.weights:
        weight.assign(0.3 * rng.normal(size=weight.shape))
    return ks.Translator(model, tokenizer)


def test_a_word_ends_before_bytes_that_might_continue_it():
    """A byte of a Chinese character alone does not tell that it is no letter's."""
    rows = [["中", "国", "人"], ["Hund", "中"], ["-", "中"], [("' '", "中"), "国"]]
    for seed in (0, 30):
        found = noise_translator(seed).translate(["abc"] * 4, constraints=rows)
        for row, [(text, score)] in zip(rows, found, strict=True):
            assert np.isfinite(score)
            alternatives = [x if isinstance(x, tuple) else (x,) for x in row]
            assert all(any(x in text for x in some) for some in alternatives)


def test_the_limit_counts_a_token_that_ends_the_word_before():
    tokenizer = ks.text.ByteTokenizer()
    for bits, count in ((b"", 6), (continuing_ids(tokenizer), 8)):
        (row,) = Terms(tokenizer, None, (), bits).rows(["x"], [["中", "国"]])
        assert count_tokens(row) == count


@pytest.mark.parametrize("width", [1, 4])
def test_phrases_are_said_whatever_the_least_length(width):
    """A hypothesis ends where nothing else is possible."""
    search = ks.decoding.BeamSearch(width, min_length=30)
    translator = noise_translator(5)
    ((text, score),) = translator.translate(
        ["a"], search=search, glossary={"a": "Hund"}
    )[0]
    assert has("Hund", text) and np.isfinite(score)


def test_a_line_without_a_translation_is_told(translators, monkeypatch):
    def found(*given):
        return {0: [("", -np.inf)], 1: [("a", -1.0)]}

    monkeypatch.setattr("keras_seqattn.translator.ranked_texts", found)
    message = r"1 of 2 lines have no translation.*The first is lines\[0\]"
    with pytest.warns(UserWarning, match=message):
        translators["bytes"].translate(["a", "b"], constraints=[["x"], ["y"]])


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.slow
def test_a_glossary_is_a_file_or_streams(translators, tmp_path):
    path = tmp_path / "glossary.tsv"
    path.write_text("dog\tblue dogs\n\ndog\tpark\na man\ttwo men\n")
    translator = translators["pieces"]
    expected = translator.translate(
        LINES, glossary={"dog": ("blue dogs", "park"), "a man": "two men"}
    )
    assert translator.translate(LINES, glossary=path) == expected
    streamed = list(translator.stream(iter(LINES), glossary=str(path)))
    assert streamed == [pairs[0][0] for pairs in expected]


def test_what_a_glossary_adds_beyond_the_limit_is_left_out(translators):
    translator = translators["bytes"]
    glossary = {"EU": "a b c", "WHO": "x y " * 20, "UN": "d e"}
    message = r"1 of 2 lines have phrases of the glossary .*The first is lines\[1\]"
    with pytest.warns(UserWarning, match=message):
        found = translator.translate(["UN EU", "UN WHO EU"], glossary=glossary)
    for ((text, _),) in found:
        assert has("d e", text) and has("a b c", text)
    with pytest.warns(UserWarning, match=message):
        streamed = list(translator.stream(["UN EU", "UN WHO EU"], glossary=glossary))
    assert streamed == [pairs[0][0] for pairs in found]
    # What the caller gives is there, and leaves the glossary less room.
    given = {"constraints": [["z " * 6]], "glossary": {"EU": "a b c"}}
    with pytest.warns(UserWarning, match=r"1 of 1 lines have phrases"):
        (((text, _),),) = translator.translate(["EU"], **given)
    assert has("z z z z z z", text) and not has("a b c", text)


def test_what_a_glossary_adds_may_fill_the_limit():
    terms = Terms(ks.text.ByteTokenizer(), {"EU": "a b c"})
    (row,) = terms.rows(["EU"])
    most = count_tokens(row)
    assert terms.rows(["EU"], room=[most]) == [row]
    with pytest.warns(UserWarning, match="1 of 1 lines have phrases"):
        assert terms.rows(["EU"], room=[most - 1]) == [[]]


def test_a_prefix_leaves_a_glossary_less_room(translators):
    """Of the 16 tokens of this line's translation."""
    options = {"glossary": {"EU": "a b c"}, "prefix": ["x" * 12]}
    with pytest.warns(UserWarning, match="1 of 1 lines have phrases of the glossary"):
        (((text, _),),) = translators["bytes"].translate(["EU"], **options)
    assert text.startswith("x" * 12)


def test_a_stream_s_warnings_count_lines_from_its_first(translators, monkeypatch):
    monkeypatch.setattr(ks.translator, "LINES_IN_A_BLOCK", 2)
    translator, lines = translators["bytes"], ["a", "b", "c", "WHO"]
    with pytest.warns(UserWarning, match=r"1 of 2 lines have phr.*is lines\[3\]"):
        list(translator.stream(lines, glossary={"WHO": "x y " * 20}))
    nothing = [("", -np.inf)]
    monkeypatch.setattr(
        "keras_seqattn.translator.ranked_texts", lambda *_: {0: nothing, 1: nothing}
    )
    with pytest.warns(UserWarning, match=r"1 of 2 lines have no tr.*is lines\[3\]"):
        list(translator.stream(lines, glossary={"WHO": "x"}))


def test_lines_without_constraints_get_beams_too(translators):
    translator, glossary = translators["bytes"], {"dog": "x"}
    found = translator.translate(
        ["a dog", "a cat"], ks.decoding.Greedy(), glossary=glossary
    )
    beams = ks.decoding.BeamSearch()
    assert found[1] == translator.translate(["a cat"], beams)[0]
    assert found[1] != translator.translate(["a cat"], ks.decoding.Greedy())[0]


def test_a_glossary_is_not_for_a_part_of_a_word_that_was_cut():
    terms = Terms(ks.text.ByteTokenizer(), {"dog": "Hund", "a": "ein"})
    (row,) = terms.rows(["a dogma"], read=["a dog"])
    assert [row] == terms.rows(["a"])


def test_a_glossary_is_not_for_what_was_cut_off(translators):
    model, tokenizer = translators["bytes"].model, ks.text.ByteTokenizer()
    translator = ks.Translator(model, tokenizer, max_source_length=10)
    read = translator.translate(["dog and c"], glossary={"dog": "x"})
    with pytest.warns(UserWarning, match="were cut there"):
        found = translator.translate(["dog and cat"], glossary={"dog": "x", "cat": "y"})
    assert found == read


@pytest.mark.parametrize("limit", [6, 7])
def test_a_glossary_is_for_a_line_that_just_fits(limit):
    """Its tokens may not say what the line says."""
    words = ["<pad>", "<s>", "</s>", "<unk>", "U", ".", "S", "the", "dog"]
    tokenizer = ks.text.WordPieceTokenizer(words)
    model = ks.models.TranslationTransformer(9, model_dim=8, num_heads=2)
    translator = ks.Translator(model, tokenizer, max_source_length=limit)
    ((found, _),) = translator.translate(["the U.S."], glossary={"U.S.": "dog"})[0]
    assert "dog" in found


@pytest.mark.backends("tensorflow", "jax", "torch")
@pytest.mark.slow
def test_hypotheses_of_different_texts(translators):
    """Twice as many are found, and the best of each text are kept."""

    class Rough(ks.text.ByteTokenizer):
        """Has four texts and the empty one, so that of six some are the same."""

        def detokenize(self, ids):
            return ["abcd"[int(row[-1]) % 4] if len(row) else "" for row in ids]

    translator = ks.Translator(translators["bytes"].model, Rough())
    found = translator.translate(LINES, num_hypotheses=3, distinct=True)
    search = ks.decoding.BeamSearch(3, num_hypotheses=3)  # of which there may be more
    assert translator.translate(LINES, search=search, distinct=True) == found
    six = translator.translate(LINES, num_hypotheses=6)
    for pairs in (six[0], *six[2:]):
        assert len({text for text, _ in pairs}) < len(pairs) == 6

    for pairs, every in zip(found, six, strict=True):
        best = {}
        for text, score in every:
            best.setdefault(text, score)
        assert pairs == list(best.items())[:3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"constraints": [["a"]]}, "as many rows as `lines`, 4.*constraints of 1 rows"),
        ({"constraints": "a"}, "`constraints` must be a list of phrases, or of tuples"),
        (
            {"constraints": [["a"], ["b"], [], []]},
            "`constraints` must hold an empty list for an.*1.=.'b",
        ),
        (
            {"constraints": [[""], [], [], []]},
            r"`constraints` must hold phrases.*constraints.0..0.=",
        ),
        (
            {"constraints": [[()], [], [], []]},
            r"`constraints` must hold phrases.*constraints.0..0.=",
        ),
        (
            {"constraints": ["a", [], [], []]},
            "`constraints` must hold a list of phrases.*0.='a'",
        ),
        (
            {"constraints": [["x " * 40], [], [], []]},
            r"`constraints.0.` must have at most 25 tokens together, for a limit "
            r"of 26 tokens with the end's. Received: constraints.0. of 80 tokens",
        ),
        ({"glossary": 3}, "`glossary` must be a dict of source phrases.*or None.*=3"),
        ({"glossary": {"": "a"}}, "`glossary` must be a dict of source phrases"),
        (
            {"constraints": [["\ud800"], [], [], []]},
            r"`constraints` must hold valid Unicode.*constraints.0..0.='.ud800'",
        ),
        ({"glossary": {"a": "\ud800"}}, r"`glossary` must hold valid Unicode.*'a'"),
        ({"glossary": "none.tsv"}, "`glossary` must be .*that exists.*='none.tsv'"),
        ({"glossary": {"a": 3}}, r"`glossary` must hold phrases.*glossary.'a'.=3"),
        (
            {"glossary": {"a": "b"}, "search": ks.decoding.Sample()},
            "`search` must be a",
        ),
        ({"distinct": 1}, "`distinct` must be True or False.*=1"),
    ],
)
def test_bad_constraints_and_glossaries(translators, options, message):
    with pytest.raises(ValueError, match=message):
        translators["bytes"].translate(LINES, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog\tHund\ncat Katze\n", "a tab and.*glossary.tsv', line 2: 'cat Katze'"),
        ("dog\t\ncat\tKatze\n", "a tab and.*glossary.tsv', line 1: 'dog.t'"),
        ("dog\tHund\tTier\n", "a tab and.*line 1: 'dog.tHund.tTier'"),
        ("\n", "a file that holds phrases.*glossary.tsv'"),
        ("", "a file that holds phrases.*glossary.tsv'"),
        ("dog\tH\udcfc", "be UTF-8.*glossary.tsv', line 1: .*0xfc"),
    ],
)
def test_a_glossary_has_a_pair_in_each_line(tmp_path, text, message):
    path = tmp_path / "glossary.tsv"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"`glossary` must .*{message}"):
        Terms(ks.text.ByteTokenizer(), path)


def test_words_that_the_tokenizer_does_not_know():
    class Words:
        unknown_id, vocabulary_size = 3, 9

        def tokenize(self, lines):
            known = {"a": 4, "dog": 5}
            return [[known.get(word, 3) for word in line.split()] for line in lines]

    message = (
        "`constraints` must hold words that the target's tok.*constraints.0..1.='cat'"
    )
    with pytest.raises(ValueError, match=message):
        Terms(Words(), None).rows(["x"], [["a dog", "cat"]])
    with pytest.raises(ValueError, match="`glossary` must hold words.*.'x'.='cat'"):
        Terms(Words(), {"x": "cat"})


@pytest.mark.parametrize("alone", [3, 6])
def test_no_way_to_say_a_phrase_is_an_unknown_token_or_ends_it(alone):
    class Spaced:
        """Knows a character after a space alone, or has another token for it."""

        unknown_id, vocabulary_size = 3, 7

        def tokenize(self, lines):
            known = {"a": 4, " 狗": 5, "狗": alone}
            split = (re.findall(" ?.", line) for line in lines)
            return [[known.get(piece, 3) for piece in line] for line in split]

    ((row,),) = Terms(Spaced(), None, stop_ids=[6]).rows(["x"], [["狗"]])
    assert row == (Phrase((5,)),)
