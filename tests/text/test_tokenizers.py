import io
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pandas
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from keras_seqattn.text import (
    ByteTokenizer,
    MappedSentencePieceTokenizer,
    SentencePieceTokenizer,
    subwords,
)

# It computes with TensorFlow on every backend; one more to see that it may.
pytestmark = pytest.mark.backends("tensorflow", "torch")

LINES = [
    "A man in a blue shirt is standing on a ladder.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter.",
    "Two young men are outside near many bushes.",
    "Zwei junge Männer sind im Freien in der Nähe vieler Büsche.",
] * 5
ODD = [
    "",
    " ",
    "  leading and  double   spaces ",
    "new\nlines\r\nand\ttabs",
    "emoji 🙂 👩‍👩‍👧 and e\u0301",
    "\u2581 is a mark, \u2581\u2581_",
    "\x10 is an escape, \x10_ and \x10\x10\u2581",
    "\x00 nul",
    "<s></s><pad><unk><0x41>",
    "no\u00a0break\u202fspaces\u2028",
    "日本語とعربى \u2585 \u2047",
]
TEXT = st.text() | st.text(alphabet=" \x10\u2581_aäe<>s/")


@pytest.fixture(scope="module", params=["bpe", "unigram", "bytes"])
def tokenizer(request):
    if request.param == "bytes":
        return ByteTokenizer()
    return SentencePieceTokenizer.train(LINES, 320, model_type=request.param)


@pytest.fixture(scope="module")
def bpe():
    return SentencePieceTokenizer.train(LINES, 320)


@pytest.mark.parametrize("line", ODD)
def test_odd_text_comes_back(tokenizer, line):
    assert tokenizer.detokenize(tokenizer.tokenize([line])) == [line]


@settings(deadline=None, max_examples=50)
@given(lines=st.lists(TEXT, max_size=5))
def test_any_text_comes_back(tokenizer, lines):
    ids = tokenizer.tokenize(lines)
    assert tokenizer.detokenize(ids) == lines
    assert all(3 < i < tokenizer.vocabulary_size for row in ids for i in row)


@settings(deadline=None, max_examples=20)
@given(lines=st.lists(TEXT, max_size=5), sampling=st.floats(0.05, 1.0))
def test_sampled_text_comes_back(bpe, lines, sampling):
    assert bpe.detokenize(bpe.tokenize(lines, sampling=sampling)) == lines


def test_subwords_are_learnt_and_sampling_varies_them(bpe):
    plain = bpe.tokenize(LINES)
    assert sum(map(len, plain)) < 0.7 * sum(len(line) for line in LINES)
    assert bpe.tokenize(LINES) == plain
    assert bpe.tokenize(LINES, sampling=0.3) != plain


def test_graph_equals_eager(tokenizer):
    dataset = tf.data.Dataset.from_tensor_slices(ODD).batch(4)
    rows = [
        row
        for ragged in dataset.map(tokenizer.tokenize)
        for row in ragged.with_row_splits_dtype("int64").to_list()
    ]
    assert rows == tokenizer.tokenize(ODD)
    ragged = tokenizer.tokenize(tf.constant(ODD))
    assert isinstance(ragged, tf.RaggedTensor)
    assert ragged.dtype == tf.int32


@pytest.mark.parametrize("seed", [None, 1])
def test_a_tensor_may_be_one_string(tokenizer, seed):
    ids = tokenizer.tokenize(tf.constant(LINES[1]), seed=seed)
    assert [ids.numpy().tolist()] == tokenizer.tokenize([LINES[1]])
    lines = tf.data.Dataset.from_tensor_slices(ODD)
    rows = [ids.numpy().tolist() for ids in lines.map(tokenizer.tokenize)]
    assert rows == tokenizer.tokenize(ODD)


def test_sampling_in_the_graph(bpe):
    dataset = tf.data.Dataset.from_tensors(LINES)
    (ragged,) = dataset.map(lambda lines: bpe.tokenize(lines, sampling=0.3))
    assert ragged.to_list() != bpe.tokenize(LINES)
    assert bpe.detokenize(ragged) == LINES


def test_detokenize_takes_rows_of_any_kind(tokenizer):
    ids = tokenizer.tokenize(["one two"])
    padded = np.array([[1, *ids[0], 2, 0, 0]])
    tensors = (padded, keras.ops.convert_to_tensor(padded), tf.constant(padded))
    for rows in (ids, tf.ragged.constant(ids), *tensors):
        assert tokenizer.detokenize(rows) == ["one two"]
    assert tokenizer.detokenize([[]]) == [""]
    assert tokenizer.detokenize([]) == []


def test_special_ids_are_left_out_and_nothing_is_cut(tokenizer):
    first, second = tokenizer.tokenize(["one", " two"])
    assert tokenizer.detokenize([[*first, 2, 0, 1, *second]]) == ["one two"]


def test_what_is_not_utf8_is_replaced(tokenizer):
    ids = tokenizer.tokenize(["é"])[0][-2:]
    broken = tokenizer.detokenize([[*ids, ids[0]]])
    assert broken == ["é\ufffd"]


def test_training_is_deterministic_and_quiet(capfd):
    first, second = (SentencePieceTokenizer.train(iter(LINES), 320) for _ in range(2))
    assert first.get_config()["model"] == second.get_config()["model"]
    assert capfd.readouterr() == ("", "")


def test_a_long_line_is_trained_on():
    tokenizer = SentencePieceTokenizer.train([" ".join(LINES * 50)], 320)
    assert sum(map(len, tokenizer.tokenize(LINES))) < 0.7 * sum(map(len, LINES))


@pytest.mark.parametrize("word", ["a" * 70_000, "\u2581" * 40_000], ids=["a", "mark"])
def test_a_long_word_does_not_end_the_process(word):
    """As it did in SentencePiece's trainer before version 0.2.3."""
    tokenizer = SentencePieceTokenizer.train([*LINES, word], 320)
    assert tokenizer.detokenize(tokenizer.tokenize([word])) == [word]


def test_lines_with_the_trainer_s_own_mark_are_trained_on():
    lines = ["zebra \u2585"] * 50
    tokenizer = SentencePieceTokenizer.train(lines, strict=False)
    assert "zebra" in tokenizer.pieces and "\u2585" not in tokenizer.pieces
    assert tokenizer.detokenize(tokenizer.tokenize(lines[:1])) == lines[:1]


@pytest.mark.parametrize("rest", [[], ["a b"]])
@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_spaces_come_back_where_the_text_has_few(model_type, rest):
    text = ["我们的狗在公园里" * 50] * 20
    tokenizer = SentencePieceTokenizer.train([*text, *rest], 300, model_type, False)
    lines = ["我们 的", "  a b ", "\u2581 \u2581"]
    for ids in (tokenizer.tokenize(lines), tokenizer.tokenize(lines, 0.3, seed=0)):
        assert tokenizer.detokenize(ids) == lines


def test_rare_characters_have_tokens_if_all_are_covered():
    lines = [*LINES * 50, "ქართული"]
    for coverage, is_covered in ((0.9995, False), (1, True)):
        tokenizer = SentencePieceTokenizer.train(
            lines, 400, strict=False, character_coverage=coverage
        )
        assert ("ქ" in tokenizer.pieces) == is_covered


def test_the_default_coverage_leaves_no_trace_in_the_model():
    """So tokenizers are the same as those of before it was an argument."""
    model = SentencePieceTokenizer.train(LINES, 320)._model
    spec = sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec
    assert not spec.HasField("character_coverage")


def test_configuration_round_trip(tokenizer):
    config = json.loads(json.dumps(tokenizer.get_config()))
    other = type(tokenizer).from_config(config)
    assert other.tokenize(ODD) == tokenizer.tokenize(ODD)
    assert other.vocabulary_size == tokenizer.vocabulary_size
    description = keras.saving.serialize_keras_object(tokenizer)
    assert description["registered_name"].startswith("keras_seqattn>")
    loaded = keras.saving.deserialize_keras_object(description)
    assert loaded.tokenize(ODD) == tokenizer.tokenize(ODD)


def test_two_tokenizers_live_side_by_side_and_outlive_a_new_seed(bpe):
    other = SentencePieceTokenizer.train([line.upper() for line in LINES], 300)
    expected = [bpe.tokenize(ODD), other.tokenize(ODD)]
    assert expected[0] != expected[1]
    dataset = tf.data.Dataset.from_tensors(ODD)
    datasets = [dataset.map(one.tokenize) for one in (bpe, other)]
    keras.utils.set_random_seed(1)
    assert [bpe.tokenize(ODD), other.tokenize(ODD)] == expected
    assert [next(iter(ids)).to_list() for ids in datasets] == expected
    assert bpe.detokenize(expected[0]) == other.detokenize(expected[1]) == ODD


@keras.saving.register_keras_serializable(package="keras_seqattn_tests")
class Holder(keras.Model):
    def __init__(self, tokenizer, **kwargs):
        super().__init__(**kwargs)
        self.tokenizer = tokenizer

    def call(self, x):
        return x

    def build(self, input_shape):
        pass

    def get_config(self):
        tokenizer = keras.saving.serialize_keras_object(self.tokenizer)
        return {**super().get_config(), "tokenizer": tokenizer}

    @classmethod
    def from_config(cls, config):
        tokenizer = keras.saving.deserialize_keras_object(config.pop("tokenizer"))
        return cls(tokenizer, **config)


def test_it_travels_in_a_saved_model(tmp_path, bpe):
    """To a fresh process too: tests/test_contract.py, tests/test_translator.py."""
    path = tmp_path / "holder.keras"
    holder = Holder(bpe)
    holder(np.zeros((1, 1)))
    holder.save(path)
    loaded = keras.saving.load_model(path)
    assert loaded.tokenizer is not bpe
    assert loaded.tokenizer.tokenize(ODD) == bpe.tokenize(ODD)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("one", r"`lines` must be a list of strings, not one.* lines='one'"),
        (pathlib.Path("one"), "`lines` must be a list .* a path .*lines=.*'one'"),
        (pandas.DataFrame({"en": ["one"]}), "(?s)`lines` must be .* a table.*lines="),
        (b"one", r"`lines` must be a list of strings, not one.* lines=b'one'"),
        (["one", b"\xff"], r"`lines` must hold strings only.* lines\[1\]=b'\\xff'"),
        ([None], r"`lines` must hold strings only.* lines\[0\]=None"),
        (["\ud800"], r"`lines` must hold valid Unicode.* lines\[0\]='\\ud800'"),
    ],
)
def test_bad_lines(tokenizer, lines, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.tokenize(lines)
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(lines)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([5, 6], r"`ids` must be rows of integers.* ids\[0\]=5"),
        ([[5], [6.0]], r"`ids` must be rows of integers.* ids\[1\]=\[6.0\]"),
        ([["a"]], r"`ids` must be rows of integers.* ids\[0\]=\['a'\]"),
        ([[320]], r"`ids` must be at least 0 and below \d+.* ids\[0\]=\[320\]"),
        (None, "`ids` must be rows of integers.*ids=None"),
        (3, "`ids` must be rows of integers.*ids=3"),
        ([[[5], [5, 6]]], r"`ids` must be rows of integers.* ids\[0\]=\[\[5\], "),
        ([[-1]], r"`ids` must be at least 0 and below \d+.* ids\[0\]=\[-1\]"),
    ],
)
def test_bad_ids(tokenizer, ids, message):
    with pytest.raises(ValueError, match=message):
        tokenizer.detokenize(ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lines": []}, r"`lines` must hold text to train on.* 0 lines"),
        ({"lines": ["", ""]}, r"`lines` must hold text to train on.* 2 lines"),
        ({"lines": ["\n"]}, r"`lines` must hold text to train on.* 1 lines"),
        ({"lines": ["\0"]}, r"`lines` must hold text to train on.* 1 lines"),
        ({"vocabulary_size": 8000}, r"must be at most \d+ for .*_size=8000"),
        ({"vocabulary_size": 10**10}, r"must be at most \d+ for .*_size=10000000000"),
        ({"vocabulary_size": 100}, r"must be at least \d+ for .*_size=100"),
        ({"vocabulary_size": 3}, r"must be at least \d+ for .*_size=3"),
        ({"vocabulary_size": 0}, r"must be a positive integer.*vocabulary_size=0"),
        ({"vocabulary_size": 9.5}, r"must be a positive integer.*_size=9.5"),
        ({"model_type": "word"}, r"one of \('bpe', 'unigram'\).*model_type='word'"),
        ({"character_coverage": 0.9}, r"in \[0\.98, 1\]\. .*_coverage=0\.9"),
    ],
)
def test_bad_training(arguments, message):
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer.train(**{"lines": LINES, **arguments})


def test_the_sizes_that_errors_name_are_right():
    for size, words in ((8000, "at most"), (100, "at least")):
        with pytest.raises(ValueError, match=words) as error:
            SentencePieceTokenizer.train(LINES, size)
        named = int(str(error.value).split(words)[1].split()[0])
        assert SentencePieceTokenizer.train(LINES, named).vocabulary_size == named
    loose = SentencePieceTokenizer.train(iter(LINES), 8000, strict=False)
    with pytest.raises(ValueError, match=f"at most {loose.vocabulary_size} "):
        SentencePieceTokenizer.train(LINES, loose.vocabulary_size + 1)
    with pytest.raises(ValueError, match="at least"):
        SentencePieceTokenizer.train(LINES, 100, strict=False)


@pytest.mark.parametrize(
    "options", [{"model_type": "unigram"}, {"character_coverage": 0.98}], ids=str
)
def test_as_large_as_the_text_allows_is_trained_as_that_size(options):
    loose = SentencePieceTokenizer.train(LINES, 8000, strict=False, **options)
    size = loose.vocabulary_size
    exact = SentencePieceTokenizer.train(LINES, size, **options)
    assert loose.get_config()["model"] == exact.get_config()["model"]
    usual = SentencePieceTokenizer.train(LINES, 8000, strict=False)
    assert loose.get_config()["model"] != usual.get_config()["model"]


@pytest.mark.parametrize("model", [b"", b"no model", "text", None])
def test_bad_model(model):
    with pytest.raises(ValueError, match="`model` must be the bytes.*Received: model="):
        SentencePieceTokenizer(model)
    with pytest.raises(ValueError, match="`model` must be the bytes.*Received: model="):
        MappedSentencePieceTokenizer(model, ["a", "b", "c", "d"], 0, 1, 2, 3)


def test_a_model_with_other_special_ids_is_refused():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=60
    )
    message = r"`model` must begin with the pieces \('<pad>', .*model with \('<unk>', "
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer(model.getvalue())


def sentencepiece_model(lines, size):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        add_dummy_prefix=False,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return model.getvalue(), processor.id_to_piece(list(range(size)))


def test_characters_unknown_to_the_model_may_be_a_piece_of_the_vocabulary():
    """As in a Marian model's vocabulary of two languages, which has both models'."""
    model, pieces = sentencepiece_model(["two dogs run", "dogs in a park"], 30)
    _, foreign = sentencepiece_model(["北京", "上海"], 9)
    assert "北京" in foreign
    pieces = [*pieces, *(x for x in foreign if x not in pieces), "<pad>", "§§"]
    pad, special = len(pieces) - 2, len(pieces) - 1
    tokenizer = MappedSentencePieceTokenizer(
        model, pieces, pad, 1, 2, 0, special_ids=[special]
    )
    ids = tokenizer.tokenize(["dogs 北京", "北京 海 dogs", "京北", "§§", "dogs"])
    said = [[pieces[token] for token in row] for row in ids]
    assert said[0][-1] == "北京" and "".join(said[0][:-1]) == "dogs\u2581"
    assert said[1][0] == "北京" and "海" in said[1] and "<unk>" not in said[1]
    # What a special token spells is plain text.
    assert said[2] == said[3] == ["<unk>"]
    texts = tokenizer.detokenize(ids)
    assert texts[:2] == ["dogs 北京", "北京 海 dogs"] and texts[4] == "dogs"


@pytest.mark.parametrize("seed", [None, 0])
def test_drawn_subwords_of_a_mapped_model_know_no_text_of_another(seed):
    model, pieces = sentencepiece_model(["two dogs run", "dogs in a park"], 30)
    pieces = [*pieces, "北京", "<pad>"]
    tokenizer = MappedSentencePieceTokenizer(model, pieces, len(pieces) - 1, 1, 2, 0)
    assert tokenizer.tokenize(["北京 北京"])[0].count(len(pieces) - 2) == 2
    for _ in range(9):
        (ids,) = tokenizer.tokenize(["dogs 北京"], sampling=0.5, seed=seed)
        assert ids[-1] == tokenizer.unknown_id == 0
        assert tokenizer.detokenize([ids]) == ["dogs "]


def test_a_piece_of_another_model_begins_with_no_space():
    """As the source's pieces do, where they are in a Marian model's vocabulary."""
    model, pieces = sentencepiece_model(["two dogs run", "dogs in a park"], 30)
    pieces = [*pieces, "\u2581北京", "<pad>"]
    pad, foreign = len(pieces) - 1, len(pieces) - 2
    tokenizer = MappedSentencePieceTokenizer(model, pieces, pad, 1, 2, 0)
    assert tokenizer.detokenize([[foreign], [foreign, foreign]]) == [
        "北京",
        "北京 北京",
    ]


def test_draws_come_from_a_seed(tokenizer):
    sampling = 0.0 if isinstance(tokenizer, ByteTokenizer) else 0.3
    first, again, other = (
        tokenizer.tokenize([*LINES, *ODD], sampling, seed) for seed in (7, 7, 8)
    )
    assert first == again
    assert (first != other) == bool(sampling)
    assert first[0] != first[4] or not sampling  # Lines that are equal draw apart.
    for ids in (first, other):
        assert tokenizer.detokenize(ids) == [*LINES, *ODD]
    tensor = tokenizer.tokenize(tf.constant([*LINES, *ODD]), sampling, 7)
    assert tensor.to_list() == first and tensor.dtype == tf.int32


@pytest.mark.slow
def test_a_seed_draws_the_same_in_another_process(bpe):
    code = """
import json, sys
from keras_seqattn.text import SentencePieceTokenizer
config, lines = json.load(sys.stdin)
tokenizer = SentencePieceTokenizer.from_config(config)
print(json.dumps(tokenizer.tokenize(lines, 0.3, seed=7)))
"""
    config = {"model": bpe.get_config()["model"]}
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([config, LINES]),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == bpe.tokenize(LINES, 0.3, seed=7)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_seeded_draws_are_as_sentencepiece_s_own(model_type):
    lines = [*LINES[:4], *ODD] * 400
    tokenizer = SentencePieceTokenizer.train(LINES, 320, model_type)
    plain = tokenizer.tokenize(lines)
    if model_type == "bpe":  # Of no strength they are the plain segmentation.
        for sampling in (1e-12, 1e-20):
            assert tokenizer.tokenize(lines, sampling, seed=1) == plain
    for sampling in (0.1, 0.5):
        shares = []
        for seed in (1, None):
            rows = tokenizer.tokenize(lines, sampling, seed)
            length = sum(map(len, rows)) / sum(map(len, plain))
            alike = np.mean([a == b for a, b in zip(rows, plain, strict=True)])
            shares.append((length, alike))
        np.testing.assert_allclose(*shares, atol=0.03)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_words_that_are_known_are_bounded(model_type, monkeypatch):
    tokenizer = SentencePieceTokenizer.train(LINES, 320, model_type)
    expected = tokenizer.tokenize(LINES, 0.3, seed=7)
    monkeypatch.setattr(subwords, "MOST_KNOWN", 9)
    tokenizer = tokenizer.from_config(tokenizer.get_config())
    assert tokenizer.tokenize(LINES, 0.3, seed=7) == expected
    known = tokenizer._subwords._known
    longest = max(len(word) + 1 for line in LINES for word in line.split())
    assert sum(len(word) for word, _ in known) <= max(9, longest)


def test_bad_seeds(bpe):
    with pytest.raises(ValueError, match="`seed` must be .* at least 0.*seed=-1"):
        bpe.tokenize(["a"], 0.1, seed=-1)
    with pytest.raises(ValueError, match="`seed` must be None in a .*seed=3"):
        tf.data.Dataset.from_tensors(["a"]).map(lambda x: bpe.tokenize(x, 0.1, 3))


def test_bad_sampling(bpe):
    with pytest.raises(ValueError, match="`sampling` must be .*sampling=-0.1"):
        bpe.tokenize(["a"], sampling=-0.1)
    with pytest.raises(ValueError, match=r"must be 0 for bytes.*sampling=0.1"):
        ByteTokenizer().tokenize(["a"], sampling=0.1)
    with pytest.raises(ValueError, match="must be at most 1: a share.*sampling=10"):
        bpe.tokenize(["a"], sampling=10, seed=0)  # percent


def test_a_call_is_refused(tokenizer):
    for lines in ("one", ["one"], np.ones((2, 3))):
        with pytest.raises(ValueError, match=r"`tokenize` must.* a call of \w+Tok"):
            tokenizer(lines)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_drawn_subwords_keep_symbols_and_runs_of_unknown_characters(kind):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["two red dogs run", "a dog sleeps"] * 20),
        model_writer=model,
        vocab_size=40,
        hard_vocab_limit=False,
        model_type=kind,
        user_defined_symbols=["<2de>"],
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    known = subwords.Subwords(model.getvalue(), processor.unk_id())
    lines = ["<2de> two dogs", "日本 dogs", "a <2de>"]
    normalized = processor.normalize(lines)
    strength = 1e-9 if kind == "bpe" else 1e3  # the plain segmentation
    assert known.draw(normalized, strength, 0) == processor.encode(lines)
    symbol = processor.piece_to_id("<2de>")
    for seed in range(9):
        drawn = known.draw(normalized, 0.5, seed)
        assert [row.count(symbol) for row in drawn] == [1, 0, 1]


def trained_elsewhere(lines, size, **options):
    """Makes a SentencePiece model with options of its own, and its processor."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    model = model.getvalue()
    return model, sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_drawn_subwords_keep_the_longest_symbol_as_it_is_spelled(kind):
    """Though one begins with another, and spells what would be an expression."""
    symbols = ["[d]", "[d]o+", "(?"]
    model, processor = trained_elsewhere(
        ["two red dogs", "a dog"], 40, model_type=kind, user_defined_symbols=symbols
    )
    known = subwords.Subwords(model, processor.unk_id())
    lines = ["a [d]o+g (?", "[d]og dood"]
    expected = processor.encode(lines)
    assert processor.piece_to_id("[d]o+") in expected[0]
    strength = 1e-9 if kind == "bpe" else 1e3  # the plain segmentation
    assert known.draw(processor.normalize(lines), strength, 0) == expected


@pytest.mark.backends("torch")
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_drawn_pieces_may_span_words_and_lines_break_between_them(kind):
    model, processor = trained_elsewhere(
        ["in new york", "new york city", "to new york"],
        60,
        model_type=kind,
        split_by_whitespace=False,
        normalization_rule_name="identity",
    )
    known = subwords.Subwords(model, processor.unk_id())
    lines = ["in new york", "new york\nin new york"]
    expected = processor.encode(lines)
    pieces = processor.id_to_piece(expected[0])
    assert any("\u2581" in piece.strip("\u2581") for piece in pieces)
    assert processor.unk_id() in expected[1]  # the line break
    strength = 1e-9 if kind == "bpe" else 1e3  # the plain segmentation
    assert known.draw(processor.normalize(lines), strength, 0) == expected


@pytest.mark.backends("torch")
def test_a_seed_may_be_numpy_s():
    lines = ["a man in a blue shirt"]
    tokenizer = SentencePieceTokenizer.train(lines * 50, 280, strict=False)
    drawn = [tokenizer.tokenize(lines, 0.1, seed) for seed in (3, np.int64(3))]
    assert drawn[0] == drawn[1]


@pytest.mark.backends("torch")
def test_of_a_whole_corpus_an_error_shows_how_it_begins():
    sides = (["one", "two"] * 1000,) * 2
    with pytest.raises(ValueError, match="`lines` must hold strings only") as error:
        SentencePieceTokenizer.train(sides, 270)
    assert len(str(error.value)) < 2000
