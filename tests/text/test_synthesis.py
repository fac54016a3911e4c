"""Corpora that a translator makes: which pairs are left out, and how it resumes."""

import json
import types

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.text import ByteTokenizer, synthesis, synthesize
from tests.decoding.test_ensemble import Plain
from tests.locks import held
from tests.small import translation_model

pytestmark = pytest.mark.backends("torch")

TEXTS = {
    "one": ["eins", "ein"],
    "two": ["zwei"],
    "same": ["SAME "],
    "long": ["l" * 40],
    "broken": ["zer\nbrochen"],
    "silent": [""],
    "": [""],
    "zwo": ["zwei"],
    "blank": [" \t "],
    "Straße": ["STRASSE"],
    "wide": ["  weit" + " " * 40],
}
SCORES = {"eins": -1.0, "ein": -6.0, "zwei": -2.0, "l" * 40: -41.0, "zer brochen": -24}


class Scripted:
    """Translates what the table holds, and counts the lines."""

    target_tokenizer = ByteTokenizer()

    def __init__(self):
        self.lines = []
        self.options = []

    def translate(self, lines, **options):
        if "kill" in lines:
            raise KeyboardInterrupt
        self.lines += lines
        self.options.append(options)
        count = options["num_hypotheses"]
        return [[(text, -1.0) for text in TEXTS[line][:count]] for line in lines]

    def score(self, sources, targets):
        return np.array([SCORES.get(text, -1.0) for text in targets], "float32")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(synthesis, "LINES_IN_A_BLOCK", 2)


def pairs(corpus):
    return list(zip(*corpus, strict=True))


def test_what_is_left_out_and_counted():
    lines = ["one", "same", "", "two\n", "silent", "one", "long", "broken"]
    corpus = synthesize(Scripted(), lines, max_length_ratio=3)
    expected = [("one", "eins"), ("two", "zwei"), ("broken", "zer brochen")]
    assert pairs(corpus) == expected
    assert corpus.num_lines == 8
    assert corpus.found == {
        "empty": [3, 5],
        "copy": [2],
        "length ratio": [7],
        "low score": [],
        "duplicate": [6],
    }
    assert corpus.report.startswith(
        "3 pairs of 8 lines; left out: 2 empty (lines 3, 5)"
    )
    corpus = synthesize(Scripted(), lines, skip_copies=False)
    assert ("same", "SAME ") in pairs(corpus) and ("long", "l" * 40) in pairs(corpus)


def test_neither_spaces_nor_case_make_a_translation():
    lines = ["blank", "Straße", "wide"]
    corpus = synthesize(Scripted(), lines, max_length_ratio=3, min_score=-9.0)
    assert corpus[0] == ["wide"]
    assert (corpus.found["empty"], corpus.found["copy"]) == ([1], [2])


def test_a_forced_language_is_no_token_of_the_mean(tmp_path):
    class Language(ByteTokenizer):
        prefix_ids = [7]

        def tokenize(self, lines):
            """Returns the ids with the language's first."""
            return [[*self.prefix_ids, *row] for row in super().tokenize(lines)]

    translator, path = Scripted(), tmp_path / "pairs.jsonl"
    translator.target_tokenizer = Language()
    synthesize(translator, ["one"], path=path)
    assert json.loads(path.read_text("utf-8"))["score"] == -0.2  # 4 bytes and the end


def test_scores_are_means_over_tokens_and_the_end():
    lines = ["one", "two", "long", "broken"]  # -0.2 (eins), -0.4, -1.0, -2.0
    corpus = synthesize(Scripted(), lines, min_score=-1.0)
    assert corpus[0] == ["one", "two", "long"]
    assert corpus.found["low score"] == [4]
    corpus = synthesize(Scripted(), lines, keep=0.5)
    assert corpus[0] == ["one", "two"]
    assert corpus.found["low score"] == [3, 4]
    assert synthesize(Scripted(), lines, keep=0.51)[0] == ["one", "two", "long"]


def test_lines_left_out_for_their_scores_are_told_in_order():
    lines = ["broken", "one", "two", "long"]  # -2.0, -0.2, -0.4, -1.0
    corpus = synthesize(Scripted(), lines, keep=0.5)
    assert corpus[0] == ["one", "two"]
    assert corpus.found["low score"] == [1, 4]


@pytest.mark.parametrize("options", [{"min_score": -9.0}, {"keep": 0.5}], ids=str)
def test_a_score_that_is_nan_is_low(tmp_path, options):
    """As of a model whose numbers overflow; in a file that is read again, too."""

    class Overflowing(Scripted):
        def score(self, sources, targets):
            return [np.nan if text == "zwei" else -1.0 for text in targets]

    for _ in range(2):
        path = tmp_path / "pairs.jsonl"
        corpus = synthesize(Overflowing(), ["two", "one"], path=path, **options)
        assert corpus[0] == ["one"]
        assert corpus.found["low score"] == [1]


def test_shares_and_ratios_are_not_rounded():
    class Longer(Scripted):
        def translate(self, lines, **options):
            return [[(line.ljust(115, "."), -1.0)] for line in lines]

    assert 0.07 * 100 > 7 and 1.15 * 100 < 115
    lines = [f"{number:0>100}" for number in range(100)]
    corpus = synthesize(Longer(), lines, max_length_ratio=1.15, keep=0.07)
    assert corpus[0] == lines[:7]
    assert synthesize(Longer(), [], keep=0.07) == ([], [])


def test_what_is_cut_has_the_mean_of_what_is_scored(tmp_path):
    translator, path = Scripted(), tmp_path / "pairs.jsonl"
    translator.max_target_length = 20
    synthesize(translator, ["long"], path=path)  # of 40 bytes, whose score is -41
    assert json.loads(path.read_text("utf-8"))["score"] == pytest.approx(-41 / 20)


def test_several_hypotheses_and_reverse():
    translator = Scripted()
    corpus = synthesize(translator, ["one", "two", "zwo"], "beam", 2, reverse=True)
    expected = [("eins", "one"), ("ein", "one"), ("zwei", "two"), ("zwei", "zwo")]
    assert pairs(corpus) == expected
    assert translator.options[0] == {"search": "beam", "num_hypotheses": 2}


def test_a_generator_is_read_block_by_block():
    translator, read = Scripted(), []

    def lines():
        for line in ["one", "two", "long"]:
            read.append((line, len(translator.lines)))
            yield line

    synthesize(translator, lines())
    assert read == [("one", 0), ("two", 0), ("long", 2)]


@pytest.mark.parametrize("torn", [False, True])
def test_it_goes_on_where_it_was_killed(tmp_path, torn):
    path, lines = tmp_path / "made" / "pairs.jsonl", ["one", "two", "long", "same"]
    whole = synthesize(Scripted(), [*lines, "broken"], min_score=-1.5)
    with pytest.raises(KeyboardInterrupt):
        synthesize(Scripted(), [*lines, "kill"], path=path)
    assert len(path.read_text().splitlines()) == 4
    if torn:
        with open(path, "a") as file:
            file.write('{"line": 5, "sou')
    translator = Scripted()
    corpus = synthesize(translator, iter([*lines, "broken"]), path=path, min_score=-1.5)
    assert translator.lines == ["broken"]
    assert pairs(corpus) == pairs(whole) and corpus.found == whole.found
    rows = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
    assert rows[4] == {
        "line": 5,
        "source": "broken",
        "target": "zer brochen",
        "score": -2.0,
    }
    translator = Scripted()  # Other filters, and a longer list, which goes on.
    corpus = synthesize(translator, [*lines, "broken", "zwo"], path=path, keep=0.5)
    assert translator.lines == ["zwo"]
    assert corpus[0] == ["one", "two", "zwo"]


def test_sources_that_are_made_of_targets_go_on_too(tmp_path):
    path = tmp_path / "pairs.jsonl"
    options = {"num_hypotheses": 2, "reverse": True, "path": path}
    synthesize(Scripted(), ["one", "two"], **options)
    translator = Scripted()
    corpus = synthesize(translator, ["one", "two", "zwo"], **options)
    assert translator.lines == ["zwo"]
    expected = [("eins", "one"), ("ein", "one"), ("zwei", "two"), ("zwei", "zwo")]
    assert pairs(corpus) == expected


def test_a_file_that_is_being_written_is_refused(tmp_path):
    path = tmp_path / "pairs.jsonl"
    message = "`path` must be unused by .*Received: path=.*pairs.jsonl', .*other"
    with held(tmp_path / "pairs.jsonl.lock"):
        with pytest.raises(ValueError, match=message):
            synthesize(Scripted(), ["one"], path=path)
    assert pairs(synthesize(Scripted(), ["one"], path=path)) == [("one", "eins")]


@pytest.mark.parametrize("path", [None, "pairs.jsonl"])
def test_progress_ends_its_line(tmp_path, capsys, path):
    path = path and tmp_path / path
    known, unknown = (["one", ""], "2/2"), (iter(["one", ""]), "2/Unknown")
    for lines, last in (known, unknown):
        synthesize(Scripted(), lines, path=path, verbose=True)
        printed = capsys.readouterr().out
        assert last in printed and printed.endswith("\n")


class Silent(Scripted):
    """Has no hypotheses where `Scripted` has an empty one."""

    def translate(self, lines, **options):
        found = super().translate(lines, **options)
        return [[pair for pair in pairs if pair[0]] for pairs in found]


def test_progress_counts_lines_without_a_translation(capsys):
    synthesize(Silent(), iter(["one", "silent"]), verbose=True)
    printed = capsys.readouterr().out
    assert "2/Unknown" in printed and "1/Unknown" not in printed


def test_lines_without_a_translation_count_too(tmp_path):
    path = tmp_path / "pairs.jsonl"
    synthesize(Silent(), ["one", "silent"], path=path)
    translator = Silent()
    corpus = synthesize(translator, ["one", "silent", "two", "silent"], path=path)
    assert translator.lines == ["two", "silent"]
    assert corpus.num_lines == 4
    rows = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
    assert [row["line"] for row in rows] == [1, 3]


def test_a_file_of_other_work_is_refused(tmp_path):
    path = tmp_path / "pairs.jsonl"
    synthesize(Scripted(), ["one", "two"], path=path)
    with pytest.raises(ValueError, match="`lines` must be those .*line 2, 'long'"):
        synthesize(Scripted(), ["one", "long"], path=path)
    with pytest.raises(ValueError, match="`lines` must be .*line 2, which is missing"):
        synthesize(Scripted(), ["one"], path=path)
    with pytest.raises(ValueError, match="`path` must be new.*with other reverse"):
        synthesize(Scripted(), ["one", "two"], path=path, reverse=True)
    with pytest.raises(ValueError, match="with other num_hypotheses"):
        synthesize(Scripted(), ["one", "two"], path=path, num_hypotheses=2)
    search = ks.decoding.BeamSearch(width=3)
    with pytest.raises(ValueError, match="with other search"):
        synthesize(Scripted(), ["one", "two"], search, path=path)
    other = Scripted()
    other.target_tokenizer = ks.text.WordPieceTokenizer(
        ["<pad>", "<s>", "</s>", "<unk>", "one"]
    )
    with pytest.raises(ValueError, match="with other tokenizers"):
        synthesize(other, ["one", "two"], path=path)
    shorter = Scripted()
    shorter.max_source_length = 8
    with pytest.raises(ValueError, match="with other max_source_length"):
        synthesize(shorter, ["one", "two"], path=path)
    path.write_text("")
    with pytest.raises(ValueError, match="`path` must be whole, of .*of 0; delete"):
        synthesize(Scripted(), ["one", "two"], path=path)
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(ValueError, match="`path` must be new.*of other work"):
        synthesize(Scripted(), ["one"], path=other)
    assert other.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length_ratio": 0.5}, "`max_length_ratio` must.*=0.5"),
        ({"min_score": 0.1}, "`min_score` must.*=0.1"),
        ({"keep": 0.0}, "`keep` must.*=0.0"),
        ({"keep": 1.1}, "`keep` must.*=1.1"),
        ({"num_hypotheses": 0}, "`num_hypotheses` must"),
        ({"lines": "one"}, "`lines` must be a list of strings.*'one'"),
        ({"lines": ["one", 2]}, r"`lines` must hold strings only.*lines\[1\]=2"),
        ({"translator": 3}, "`translator` must be a translator"),
        ({"translator": "one"}, "`translator` must be a translator.*='one'"),
        ({"path": ""}, "`path` must be a path"),
    ],
    ids=str,
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        synthesize(**{"translator": Scripted(), "lines": ["one"], **arguments})


@pytest.mark.parametrize("options", [{"keep": 0.5}, {"min_score": -1.0}], ids=str)
def test_a_translator_without_scores_is_refused_before_it_translates(options):
    translator = types.SimpleNamespace(translate=lambda lines, **options: lines)
    lines = iter(["one"])
    with pytest.raises(ValueError, match="`translator` must be a translator"):
        synthesize(translator, lines, **options)
    assert next(lines) == "one"


def test_a_translator_makes_a_corpus(tmp_path):
    keras.utils.set_random_seed(0)
    tokenizer = ByteTokenizer()
    model = translation_model(tokenizer.vocabulary_size, intermediate_dim=16)
    translator = ks.Translator(model, tokenizer)
    lines = [f"line {number}" for number in range(5)]
    search = ks.decoding.Sample(temperature=0.5, seed=1)
    path = tmp_path / "pairs.jsonl"
    corpus = synthesize(translator, lines, search, path=path, verbose=True)
    assert pairs(corpus) == pairs(synthesize(translator, lines, search))
    rows = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
    for row in rows:
        (total,) = translator.score([row["source"]], [row["target"]])
        tokens = len(row["target"].encode()) + 1
        assert row["score"] == pytest.approx(total / tokens, rel=1e-4)
    model.set_weights([1.1 * weight for weight in model.get_weights()])
    with pytest.raises(ValueError, match="with other translator"):
        synthesize(translator, lines, search, path=path)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in an ensemble"])
def test_a_model_that_is_no_keras_model_is_told_from_another(tmp_path, alone):
    plain = Plain()
    translator, path = Scripted(), tmp_path / "pairs.jsonl"
    translator.model = plain if alone else ks.decoding.Ensemble([plain])
    count = np.int64(1)  # which JSON cannot hold
    synthesize(translator, ["one"], num_hypotheses=count, path=path)
    plain.table.assign(-plain.table)
    with pytest.raises(ValueError, match="with other translator"):
        synthesize(translator, ["one"], path=path)


@pytest.mark.parametrize("seed", [1, np.int64(1)], ids=["int", "int64"])
def test_each_line_has_its_own_draws(tmp_path, seed):
    keras.utils.set_random_seed(0)
    tokenizer, search = ByteTokenizer(), ks.decoding.Sample(seed=seed)
    model = translation_model(tokenizer.vocabulary_size, intermediate_dim=16)
    translator = ks.Translator(model, tokenizer, search=search)
    lines = ["line"] * 6  # in three blocks
    whole, begun = tmp_path / "whole.jsonl", tmp_path / "begun.jsonl"
    synthesize(translator, lines, path=whole)
    rows = [json.loads(row) for row in whole.read_text("utf-8").splitlines()]
    assert len({row["target"] for row in rows}) == len(lines)
    for some in (lines[:2], lines):  # as after an interruption
        synthesize(translator, some, search, path=begun)
    assert begun.read_text("utf-8") == whole.read_text("utf-8")


def test_the_search_of_an_own_translator_stays_its_own():
    class Own(Scripted):
        search = types.SimpleNamespace(seed=1)

    translator = Own()
    synthesize(translator, ["one", "two", "long"])  # in two blocks
    assert [options["search"] for options in translator.options] == [None, None]


def test_a_search_is_refused_before_the_file_is_made(tmp_path):
    tokenizer = ByteTokenizer()
    model = translation_model(tokenizer.vocabulary_size, intermediate_dim=16)
    path = tmp_path / "pairs.jsonl"
    with pytest.raises(ValueError, match="`search` must be a `Greedy`.*'beam'"):
        synthesize(ks.Translator(model, tokenizer), ["one"], "beam", path=path)
    assert not list(tmp_path.iterdir())
