"""Tests of `WordPieceTokenizer`, against a plain loop that takes the longest piece."""

import keras
import pytest
import tensorflow as tf

from keras_seqattn.text import WordPieceTokenizer, load_parallel, translation_batches

pytestmark = pytest.mark.backends("torch")  # TensorFlow computes it on every backend
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


@pytest.fixture(scope="module")
def lines():
    sources, targets = load_parallel("phrases", "en", "de")
    return [*sources[:1500], *targets[:1500]]


@pytest.fixture(scope="module")
def tokenizer(lines):
    return WordPieceTokenizer.train(lines, vocabulary_size=700)


def longest_first(word, vocabulary):
    """Takes from the left the longest piece that is known; unknown if none is."""
    pieces, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = "##" * (start > 0) + word[start:end]
            if piece in vocabulary:
                break
        else:
            return ["<unk>"]
        pieces.append(piece)
        start = end
    return pieces


def test_words_are_split_longest_piece_first(tokenizer, lines):
    known = set(tokenizer.vocabulary)
    words = sorted({word for line in lines for word in line.split() if word.isalpha()})
    assert len(words) > 300
    for word, ids in zip(words, tokenizer.tokenize(words), strict=True):
        pieces = [tokenizer.vocabulary[i] for i in ids]
        assert pieces == longest_first(word, known)


def test_training_fills_the_vocabulary_and_knows_its_text(tokenizer, lines):
    assert 600 < tokenizer.vocabulary_size <= 700
    assert tokenizer.vocabulary[:4] == SPECIAL
    ids = tokenizer.tokenize(lines)
    assert not any(tokenizer.unknown_id in row for row in ids)
    again = WordPieceTokenizer.train(lines, vocabulary_size=700)
    assert again.vocabulary == tokenizer.vocabulary


def test_what_comes_back_differs_in_spaces_alone(tokenizer, lines):
    back = tokenizer.detokenize(tokenizer.tokenize(lines))
    for line, other in zip(lines, back, strict=True):
        assert "".join(other.split()) == "".join(line.split())
    assert tokenizer.detokenize([[0, 1, 2, 3]]) == [""]


def test_marks_are_words_and_strangers_unknown():
    tokenizer = WordPieceTokenizer([*SPECIAL, "a", "dog", "##s", ".", "-"])
    assert tokenizer.tokenize(["a-dogs.", " dog\n", "", "cat dog"]) == [
        [4, 8, 5, 6, 7],
        [5],
        [],
        [3, 5],
    ]


def test_no_piece_joins_a_mark_to_another_character():
    """Since a text is split there, no such piece would ever be used."""
    lines = ["“red-dogs” x=dogs$ 犬中犬中"] * 20
    vocabulary = WordPieceTokenizer.train(lines, 60).vocabulary
    assert "dogs" in vocabulary and "犬" in vocabulary
    for piece in vocabulary[4:]:
        text = piece.removeprefix("##")
        assert len(text) == 1 or not set(text) & set("“”-=$犬中"), piece


def test_no_letter_of_the_text_is_left_out():
    letters = "".join(chr(0x4E00 + i) for i in range(1500))
    tokenizer = WordPieceTokenizer.train([*letters, "\u0e01" * 60], 4000)
    found = tokenizer.tokenize([letters, "\u0e01" * 60])
    assert all(3 not in ids for ids in found)


def test_a_word_may_be_long():
    tokenizer = WordPieceTokenizer([*SPECIAL, "a", "##a"])
    assert tokenizer.tokenize(["a" * 200]) == [[4, *[5] * 199]]


def test_it_tokenizes_batches_and_is_made_again_from_its_configuration(tokenizer):
    texts = ["Oct 24, 2004", "3 hours"]
    batches = translation_batches(texts, texts, tokenizer, shuffle=False)
    inputs, labels = next(iter(batches))
    assert labels[0].numpy()[:4].tolist() == tokenizer.tokenize(texts[:1])[0][:4]
    config = keras.saving.serialize_keras_object(tokenizer)
    again = keras.saving.deserialize_keras_object(config)
    assert again.tokenize(texts) == tokenizer.tokenize(texts)
    in_graph = tokenizer.tokenize(tf.constant(texts))
    assert in_graph.dtype == tf.int32
    assert in_graph.to_list() == tokenizer.tokenize(texts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WordPieceTokenizer(["a"]), r"`vocabulary` must begin.*\['a'\], 1"),
        (lambda: WordPieceTokenizer(SPECIAL), "have more pieces.*4 pieces"),
        (lambda: WordPieceTokenizer([*SPECIAL, "a", "a"]), "none twice.*6 pieces"),
        (
            lambda: WordPieceTokenizer.train(["abc def"], 5),
            "`vocabulary_size` must be at least 18.*vocabulary_size=5",
        ),
        (
            lambda: WordPieceTokenizer.train(["a"], 0),
            "`vocabulary_size` must be a positive.*vocabulary_size=0",
        ),
        (
            lambda: WordPieceTokenizer.train([" ", ""]),
            "`lines` must hold words.*2 lines",
        ),
        (
            lambda: WordPieceTokenizer([*SPECIAL, "a"]).tokenize(["a"], sampling=0.1),
            "`sampling` must be 0.*sampling=0.1",
        ),
    ],
)
def test_bad_input_is_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
