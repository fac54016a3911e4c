"""`TranslationScore`: sacreBLEU's figures, of the weights that are validated."""

import keras
import numpy as np
import pandas
import pytest
import sacrebleu

from keras_seqattn import Translator
from keras_seqattn.decoding import BeamSearch
from keras_seqattn.models import EncoderModel, LanguageModel
from keras_seqattn.text import ByteTokenizer, translation_batches
from keras_seqattn.training import MaskedCrossentropy, TranslationScore
from tests.small import make_sentencepiece, translation_model

SOURCES = ["a dog", "", "two", "more than the model's longest"]
REFERENCES = ["ein roter Hund lief", "", "zwei", "zu lang"]
X = np.ones((2, 1))


def make_model(tokenizer):
    return translation_model(tokenizer.vocabulary_size, num_heads=1, max_length=8)


def make_line(**options):
    """Makes a model of one weight and a bias, which `TranslationScore` can watch."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, **options), "mse")
    model.encode = model.initial_state = model.step = print  # never called
    model.start_id, model.end_id, model.pad_id = 1, 2, 0
    return model


@pytest.mark.backends("torch")
def test_the_lines_are_translated_as_a_translator_does_by_the_averaged_weights():
    tokenizer = ByteTokenizer()
    model = make_model(tokenizer)
    model.compile(
        keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.9), MaskedCrossentropy()
    )
    data = translation_batches(
        ["two"] * 8, ["zwei"] * 8, tokenizer, batch_tokens=8, bucket_lengths=(8,)
    )
    raw, score = (
        TranslationScore(SOURCES, REFERENCES, tokenizer, every=9) for _ in range(2)
    )
    model.fit(
        data,
        validation_data=data,
        shuffle=False,
        verbose=0,
        callbacks=[raw, keras.callbacks.SwapEMAWeights(), score],
    )
    # When `fit` ends the averages of the last epoch are in the model.
    with pytest.warns(UserWarning, match="1 of 4 lines are longer"):
        translations = Translator(model, tokenizer)(SOURCES)
    assert score.translations == translations != raw.translations
    assert translations[1] == ""
    assert any(translations)


@pytest.mark.backends("torch")
def test_line_breaks_at_the_end_do_not_count():
    tokenizer, lines = ByteTokenizer(), ["a dog\n", "two\r\n", "\n"]
    score = TranslationScore(lines, ["x", "y", "z"], tokenizer)
    assert score.sources == ["a dog", "two", ""]
    model = make_model(tokenizer)
    assert score._translate(model) == Translator(model, tokenizer)(lines)


def test_lines_are_taken_evenly():
    sources = [str(i) for i in range(10)]
    score = TranslationScore(sources, sources[::-1], ByteTokenizer(), lines=4)
    assert score.sources == ["0", "2", "5", "7"]
    assert score.references == ["9", "7", "4", "2"]
    column = pandas.Series(sources, index=range(5, 15))
    score = TranslationScore(column, column, ByteTokenizer(), lines=4)
    assert score.sources == score.references == ["0", "2", "5", "7"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a"], []), "Received: 1 sources and 0 references"),
        (([], []), "Received: 0 sources and 0 references"),
        ((["a"], ["b"], 0), "Received: every=0"),
        ((["a"], ["b"], 1, -1), "Received: lines=-1"),
    ],
)
def test_bad_arguments(arguments, message):
    names = ("sources", "references", "every", "lines")
    given = dict(zip(names, arguments, strict=False))
    with pytest.raises(ValueError, match=message):
        TranslationScore(source_tokenizer=ByteTokenizer(), **given)


def test_the_logs_have_sacrebleu_s_figures(monkeypatch):
    translations = ["ein roter Hund lief", "", "zwei", "viel zu lang"]
    scored = []

    def translated(self, model):
        scored.append(model)
        return translations

    monkeypatch.setattr(TranslationScore, "_translate", translated)
    model = make_line()
    score = TranslationScore(SOURCES, REFERENCES, ByteTokenizer(), every=2)
    fit = {"epochs": 4, "callbacks": [score], "verbose": 0}
    logs = model.fit(X, X, **fit).history  # Without validation: at the epoch's end.
    assert scored == [model] * 3  # In epochs 0, 2 and 3.
    bleu = sacrebleu.corpus_bleu(translations, [REFERENCES])
    chrf = sacrebleu.corpus_chrf(translations, [REFERENCES])
    assert logs["val_bleu"] == [bleu.score] * 4
    assert logs["val_chrf"] == [chrf.score] * 4
    assert 0 < chrf.score < 100
    assert "tok:13a" in score.bleu_signature
    assert "nc:6" in score.chrf_signature
    model.evaluate(X, X, callbacks=[score], verbose=0)  # No epoch's validation.
    assert len(scored) == 3


def test_the_first_epoch_of_a_fit_is_scored_whatever_its_number(monkeypatch):
    scored = []

    def translated(self, model):
        scored.append(model)
        return REFERENCES

    monkeypatch.setattr(TranslationScore, "_translate", translated)
    score = TranslationScore(SOURCES, REFERENCES, ByteTokenizer(), every=4)
    fit = {"initial_epoch": 1, "epochs": 3, "callbacks": [score], "verbose": 0}
    for model in (make_line(), make_line()):
        logs = model.fit(X, X, **fit).history
        assert len(logs["val_bleu"]) == 2
        assert scored == [model] * 2  # in its first epoch and its last
        scored.clear()


def test_bleu_is_computed_by_the_given_metric(monkeypatch):
    translations, references = ["我喜欢猫。", "他有狗。"], ["我很喜欢猫。", "他有狗。"]
    monkeypatch.setattr(TranslationScore, "_translate", lambda *_: translations)
    bleu = sacrebleu.BLEU(tokenize="zh")
    score = TranslationScore(["a", "b"], references, ByteTokenizer(), bleu=bleu)
    logs = make_line().fit(X, X, callbacks=[score], verbose=0).history
    expected = sacrebleu.corpus_bleu(translations, [references], tokenize="zh").score
    assert logs["val_bleu"] == [expected]
    assert "tok:zh" in score.bleu_signature


def callbacks_of_averages(monkeypatch, *best, **options):
    """Makes an average, a score, and what keeps the best weights."""
    monkeypatch.setattr(TranslationScore, "_translate", lambda *_: REFERENCES)
    score = TranslationScore(SOURCES, REFERENCES, ByteTokenizer())
    return [keras.callbacks.SwapEMAWeights(**options), score, *best]


@pytest.mark.parametrize(
    "best",
    [
        keras.callbacks.ModelCheckpoint("x.keras", "val_bleu", save_best_only=True),
        keras.callbacks.EarlyStopping("val_bleu", restore_best_weights=True),
    ],
    ids=["save_best_only", "restore_best_weights"],
)
def test_what_keeps_trained_weights_by_the_averages_score_is_refused(best, monkeypatch):
    model = make_line(use_ema=True)
    callbacks = callbacks_of_averages(monkeypatch, best)
    fit = {"validation_data": (X, X), "callbacks": callbacks, "verbose": 0}
    message = "must be without `.*_best.* beside `SwapEMA.*True.*swap_on_epoch=True"
    with pytest.raises(ValueError, match=message):
        model.fit(X, X, **fit)


def test_averages_that_stay_until_the_epoch_has_ended_can_be_saved(
    tmp_path, monkeypatch
):
    path = str(tmp_path / "best.weights.h5")
    options = {"save_best_only": True, "save_weights_only": True, "mode": "max"}
    best = keras.callbacks.ModelCheckpoint(path, "val_bleu", **options)
    callbacks = callbacks_of_averages(monkeypatch, best, swap_on_epoch=True)
    model = make_line(use_ema=True)
    fit = {"validation_data": (X, X), "callbacks": callbacks, "verbose": 0}
    model.fit(X, X, batch_size=1, **fit)
    averages = model.get_weights()
    model.load_weights(path)
    np.testing.assert_equal(model.get_weights(), averages)


@pytest.mark.backends("torch")
def test_what_cannot_be_translated_is_refused_before_an_epoch():
    bytes_, other = ByteTokenizer(), make_sentencepiece()
    size, wrong = bytes_.vocabulary_size, other.vocabulary_size
    two = translation_model(size, target_vocabulary_size=wrong)
    message = "`{0}_tokenizer` must be .* of {1} entries.*{0}_tokenizer.*={2}"
    one = translation_model(size, end_id=3, start_id=2)
    for model, tokenizers, expected in (
        (make_model(bytes_), [other], message.format("source", size, wrong)),
        (two, [bytes_], message.format("target", wrong, size)),
        (two, [other, bytes_], message.format("source", size, wrong)),
        (one, [bytes_], "`source_tokenizer` must have the model's `end_id`, 3"),
        (EncoderModel(9, model_dim=8), [bytes_], "`model` must be .* decoding prot"),
        (LanguageModel(size, model_dim=8), [bytes_], "`model` must be a translation"),
    ):
        score = TranslationScore(["a"], ["b"], *tokenizers)
        score.set_model(model)
        with pytest.raises(ValueError, match=expected):
            score.on_train_begin()


@pytest.mark.backends("torch")
def test_the_language_that_a_tokenizer_puts_first_is_forced():
    class Forced(ByteTokenizer):
        prefix_ids = (7,)

    tokenizer = Forced()
    model = make_model(tokenizer)
    score = TranslationScore(["a dog", "two"], ["x", "y"], tokenizer)
    translations = score._translate(model)
    assert translations == Translator(model, tokenizer)(["a dog", "two"])
    plain = TranslationScore(["a dog", "two"], ["x", "y"], ByteTokenizer())
    assert translations != plain._translate(model)


@pytest.mark.backends("torch")
def test_the_search_and_the_tokenizer_of_the_targets_are_those_given():
    class Spelled(ByteTokenizer):
        """Shows each byte as its number, so that all texts differ."""

        def detokenize(self, ids):
            return [" ".join(str(int(i)) for i in row) for row in ids]

    tokenizer, spelled, lines = ByteTokenizer(), Spelled(), ["a dog", "two"]
    model, references = make_model(tokenizer), ["x", "y"]
    given = (tokenizer, spelled, BeamSearch(4, length_penalty=0.0))
    score = TranslationScore(lines, references, *given)
    translations = score._translate(model)
    assert translations == Translator(model, *given[:2], search=given[2])(lines)
    greedy = TranslationScore(lines, references, *given[:2])._translate(model)
    assert translations != greedy == Translator(model, *given[:2])(lines)
