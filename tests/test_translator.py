"""Strings in, strings out: order, limits, errors, and one file for it all."""

import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import types
import warnings
import zipfile

import keras
import numpy as np
import pandas
import pytest

import keras_seqattn as ks
from keras_seqattn.scheduling import generation
from tests.decoding import test_ensemble as ensembles
from tests.evaluate import outputs
from tests.pairs import each_variant, named
from tests.small import make_sentencepiece, translation_model

LINES = ["one", "", "a longer line", "two"]


def make_model(vocabulary_size=260, **options):
    """A model of noise: its weights are large enough that no two tokens tie."""
    keras.utils.set_random_seed(0)
    sizes = {"model_dim": 16, "intermediate_dim": 16, "max_length": 24}
    model = translation_model(
        vocabulary_size, **{**sizes, "decoder_layers": 2, **options}
    )
    rng = np.random.default_rng(1)
    model.set_weights([w + rng.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def translator():
    return ks.Translator(make_model(), ks.text.ByteTokenizer())


@pytest.fixture(scope="module")
def sentencepiece():
    return make_sentencepiece()


@pytest.fixture
def echo(monkeypatch):
    """Makes every translation its source, the second best its first character.

    Returns the list of batches that were searched.
    """
    batches = []

    def searched(model, options, plan, sentences, to_the_end=True):
        real = (sentences.source_ids != 0).any(0)
        source_ids = sentences.source_ids[:, real]
        batches.append((source_ids, options.method))
        token_ids = np.stack([source_ids] * 2, axis=1)
        token_ids[token_ids == options.tokens.end_id] = 0
        token_ids[:, 1, 1:] = 0
        lengths = (token_ids > 0).sum(-1)
        return token_ids, -1.0 * lengths, np.ones(len(source_ids), "bool")

    monkeypatch.setattr(generation, "_search", searched)
    monkeypatch.setattr("keras_seqattn.backend.compile.num_threads", lambda: 1)
    return batches


def test_translations_come_in_the_order_of_the_lines(translator, echo):
    lines = [f"{'x' * (7 * i % 11)}{i}" for i in range(150)]
    assert translator(lines) == lines


def test_lines_of_one_length_are_searched_together(translator, echo):
    translator(["x" * (i % 20) + "." for i in range(150)])
    lengths = [(batch != 0).sum(-1) for batch, _ in echo]
    assert [len(batch) for batch in lengths] == [64, 64, 22]
    lengths = np.concatenate(lengths).tolist()
    assert lengths == sorted(lengths, reverse=True)
    for batch, _ in echo:
        assert batch.dtype == "int32"
        assert (batch == translator.model.end_id).sum(-1).tolist() == [1] * len(batch)
        assert batch[0, -1] == translator.model.end_id


def test_every_hypothesis_is_returned_with_its_score(translator, echo):
    assert translator.translate(["ab", "c"]) == [
        [("ab", -2.0), ("a", -1.0)],
        [("c", -1.0), ("c", -1.0)],
    ]


def test_empty_lines_and_no_lines(translator, echo):
    assert translator(["", "x", "\n "]) == ["", "x", ""]
    assert translator.translate(["", "\n "]) == [[("", 0.0)], [("", 0.0)]]
    assert translator([]) == []
    assert len(echo) == 1


def test_a_search_for_one_call_or_for_all(translator, echo):
    own, other = (ks.decoding.Greedy(min_length=n) for n in (1, 2))
    default = ks.decoding.Greedy()
    ks.Translator(translator.model, translator.source_tokenizer, search=own)(["x"])
    translator(["x"])
    translator(["x"], search=other)
    translator.translate(["x"])
    searches = [search for _, search in echo]
    calls = [dataclasses.replace(s, scored=False) for s in (own, default, other)]
    assert searches == [*calls, default]  # none but `translate` gives scores


def test_long_lines_are_cut_with_one_warning(translator, echo):
    lines = ["x" * 23, "x" * 24, "ok", "x" * 40]
    with pytest.warns(
        UserWarning, match=r"2 of 4 lines.*max_length=24.*lines\[1\]"
    ) as w:
        translations = translator(lines)
    assert len(w) == 1
    assert translations == ["x" * 23, "x" * 23, "ok", "x" * 23]


@pytest.fixture(scope="module")
def unlimited():
    """A translator whose model has no limit."""
    return ks.Translator(make_model(max_length=None), ks.text.ByteTokenizer())


def test_lines_may_be_an_array(translator, echo):
    assert translator(np.array(["ab", "c"])) == ["ab", "c"]
    column = pandas.Series(["ab", "c"], index=[3, 5])
    assert translator(column) == ["ab", "c"]
    for lines in ("ab", 3, {"ab": 1}, np.array([["ab"]])):
        with pytest.raises(ValueError, match="`lines` must be a list of strings; pass"):
            translator(lines)


@pytest.mark.slow_on("tensorflow")
def test_labels_forgotten_are_named(translator):
    translator.model.compile("adam", ks.training.MaskedCrossentropy())
    ids = np.ones((2, 3), "int32")
    with pytest.raises(ValueError, match="`y_true` must be the labels.*`y`"):
        translator.model.fit({"source_ids": ids, "target_ids": ids}, verbose=0)


def test_no_limit_no_warning(unlimited, echo):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert unlimited(["x" * 99]) == ["x" * 99]


def test_one_line_is_bounded_where_the_model_is_not(unlimited, echo):
    with pytest.warns(
        UserWarning, match=r"1 of 3 lines.*max_source_length=1024 tokens.*lines\[1\]"
    ) as w:
        translations = unlimited(["one", "x" * 200_000, "two"])
    assert len(w) == 1
    assert translations == ["one", "x" * 1023, "two"]
    assert max(batch.shape[1] for batch, _ in echo) == 1024


@pytest.mark.slow_on("tensorflow")
def test_long_lines_are_searched_few_at_once(unlimited, echo):
    """Those of a usual length are not, and each padded length has one size."""
    lines = ["x" * 1000] * 70 + ["x" * 60] * 70
    for search, rows in ((None, 32), (ks.decoding.BeamSearch(8), 4)):
        echo.clear()
        assert unlimited(lines, search=search) == lines
        sizes = [len(batch) for batch, _ in echo if batch.shape[1] > 900]
        assert max(sizes) == rows
        assert max(len(batch) for batch, _ in echo) > 32


@pytest.mark.parametrize("count", [20, 100])
def test_short_lines_do_not_wait_for_a_far_longer_one(unlimited, echo, count):
    lines = ["x" * 1000, *["x" * 9] * count]
    assert unlimited(lines) == lines
    longest = max(batch.shape[1] for batch, _ in echo)
    assert [len(batch) for batch, _ in echo if batch.shape[1] == longest] == [1]


@pytest.mark.parametrize("value", [1, 25, 2.0, True])
def test_a_limit_out_of_range(translator, value):
    message = rf"`max_source_length` must be .*\[2, 24\].*max_source_length={value}\."
    with pytest.raises(ValueError, match=message):
        ks.Translator(
            translator.model, ks.text.ByteTokenizer(), max_source_length=value
        )


@pytest.mark.backends("torch")
def test_everything_that_takes_a_line_cuts_it(unlimited):
    model, tokenizer = unlimited.model, unlimited.source_tokenizer
    translator = ks.Translator(model, tokenizer, max_source_length=8)
    long, short = "x" * 50, "y" * 7
    with pytest.warns(UserWarning, match=r"max_source_length=8.*lines\[1\]"):
        found = list(translator.stream(["a", long]))
    assert found == translator(["a", long[:7]])
    with pytest.warns(UserWarning) as w:
        scores = translator.score([long, "a"], ["b", long])
    cut = [str(one.message) for one in w if "were cut" in str(one.message)]
    assert [one.split()[-1] for one in cut] == ["sources[0].", "targets[1]."]
    assert scores == pytest.approx(translator.score([long[:7], "a"], ["b", "x" * 25]))
    with pytest.raises(ValueError, match=r"prefix\[0\]. must have at most 26 tokens"):
        translator.translate([short], prefix=[long])
    with pytest.warns(UserWarning) as w:
        looked = translator.attention(long, long)
    assert looked.weights.shape[2:] == (25 + 1, 8)
    assert sum("were cut" in str(one.message) for one in w) == 2


def test_prefixes_make_few_programs(unlimited):
    """Their lengths are powers of 2, as those of the sources are."""
    lengths = {
        generation._sentences(
            unlimited.model,
            [[1] * 4],
            16,
            limits=np.full(1, 18, "int32"),
            seeds=np.zeros(1, "int32"),
            prefixes=[[1] * length],
        ).prefix.shape[1]
        for length in range(1, 300, 7)
    }
    assert lengths == {16, 32, 64, 128, 256, 512}


def test_progress_is_shown_on_request(translator, echo, capsys):
    translator(LINES)
    assert not capsys.readouterr().out
    translator(LINES, verbose=True)
    assert "3/3" in capsys.readouterr().out
    list(translator.stream(LINES, verbose=True))
    printed = capsys.readouterr().out
    assert "4/Unknown" in printed and printed.endswith("\n")
    translator.score(["a"], ["b"], verbose=True)
    assert "1/1" in capsys.readouterr().out


def test_translates_what_the_model_generates(translator):
    ids = translator.source_tokenizer.tokenize(["two"])[0]
    found = translator.model.generate(np.array([[*ids, translator.model.end_id]]))
    text = translator.target_tokenizer.detokenize([found.sequence(0)])[0]
    [[(translation, score)]] = translator.translate(["two"])
    assert translation == text != ""
    assert score == pytest.approx(found.scores[0, 0], abs=1e-4)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("one", "`lines` must be a list of strings.*Received: lines='one'"),
        (iter(["one"]), r"`lines` must be .*iterable as list\(lines\).* lines=<"),
        (["one", 2], r"`lines` must hold strings only\..*Received: lines\[1\]=2"),
        (["one", b"two"], r"`lines` .* only; decode bytes.*lines\[1\]=b'two'"),
        (["\ud800"], r"valid Unicode.*Received: lines\[0\]="),
        ({"a": "b"}, "`lines` must be a list of strings.*Received: lines={'a': 'b'}"),
    ],
)
def test_what_is_no_list_of_strings_is_an_error(translator, lines, message):
    with pytest.raises(ValueError, match=message):
        translator(lines)


def test_a_tokenizer_of_another_model_is_an_error(translator, sentencepiece):
    message = "`source_tokenizer` must be .* of 260 entries. Received: .*=290"
    with pytest.raises(ValueError, match=message):
        ks.Translator(translator.model, sentencepiece)
    with pytest.raises(ValueError, match="`target_tokenizer` must be .*=290"):
        ks.Translator(translator.model, ks.text.ByteTokenizer(), sentencepiece)


@pytest.mark.backends("torch")
def test_special_tokens_that_the_model_lacks_are_an_error(translator, monkeypatch):
    class Other(ks.text.ByteTokenizer):
        start_id, unknown_id = 3, 1

    model, tokenizer = translator.model, translator.source_tokenizer
    ks.Translator(model, Other(), tokenizer)  # no start is put before a source
    with pytest.raises(ValueError, match="`target_tokenizer` must have the .*start_id"):
        ks.Translator(model, tokenizer, Other())
    monkeypatch.setattr(Other, "pad_id", 9)
    monkeypatch.setattr(Other, "start_id", model.start_id)
    for name, given in (
        ("source_tokenizer", (Other(), tokenizer)),
        ("target_tokenizer", (tokenizer, Other())),
    ):
        message = f"`{name}` must have the model's `pad_id`, 0. .*{name}.pad_id=9"
        with pytest.raises(ValueError, match=message):
            ks.Translator(model, *given)
    Other.end_id = 7
    message = "`source_tokenizer` must have the model's `end_id`, 2. .*end_id=7. Build"
    with pytest.raises(ValueError, match=message):
        ks.Translator(model, Other(), tokenizer)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.backends("tensorflow", "torch")
def test_attention_of_the_own_translation(translator):
    source, target, weights = translator.attention("a dog")
    assert source == [*"a dog", "</s>"]
    assert len(target) > 1
    assert weights.shape == (2, 2, len(target), len(source))
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


@pytest.mark.backends("torch")
def test_attention_of_the_longest_translation_fits_the_model(translator):
    """The start token is read too: the last of 24 generated tokens is not."""
    model, tokenizer = translator.model, translator.source_tokenizer
    search = ks.decoding.Greedy(min_length=model.max_length)
    looked = ks.Translator(model, tokenizer, search=search).attention("x" * 20)
    assert len(looked.target_tokens) == model.max_length == 24
    np.testing.assert_allclose(looked.weights.sum(-1), 1, atol=1e-5)


@pytest.mark.backends("torch")
def test_an_alignment_is_by_the_mean_of_all_layers_and_heads():
    """No layer and no head alone tells it."""
    first = np.array([[[0.9, 0.4], [1.0, 0.1]], [[0.0, 0.9], [0.2, 0.8]]])
    weights = np.stack([first, 1.0 - first], axis=-1)  # (layers, heads, T, S)
    looked = ks.sentence_attention.AttentionWeights(["a", "b"], ["B", "A"], weights)
    assert looked.alignment() == [(0, 0), (1, 0)]


@pytest.mark.backends("torch")
def test_attention_of_an_empty_line_is_of_its_empty_translation(translator):
    assert translator(["  "]) == [""]
    looked = translator.attention("  ")
    assert looked.weights.shape[2] == len(looked.target_tokens) == 1


@pytest.mark.backends("tensorflow", "torch")
def test_attention_of_a_given_translation(sentencepiece):
    model = make_model(vocabulary_size=290)
    found = ks.Translator(model, sentencepiece).attention("two dogs", "a shirt")
    assert "".join(found.source_tokens) == "two dogs</s>"
    assert "".join(found.target_tokens) == "a shirt</s>"
    source_ids = [*sentencepiece.tokenize(["two dogs"])[0], 2]
    target_ids = [1, *sentencepiece.tokenize(["a shirt"])[0]]
    scores = model.attention_scores(np.array([source_ids]), np.array([target_ids]))
    scores = keras.ops.convert_to_numpy(scores)[0]
    np.testing.assert_allclose(found.weights, scores, atol=1e-6)


@pytest.mark.backends("torch")
def test_tokens_without_a_text_of_their_own_are_named(translator):
    found = translator.attention("schön", "狗")
    names = ["s", "c", "h", "<0xC3>", "<0xB6>", "n", "</s>"]
    assert found.source_tokens == names
    assert found.target_tokens == ["<0xE7>", "<0x8B>", "<0x97>", "</s>"]


@pytest.mark.backends("torch")
def test_a_tokenizer_may_know_its_vocabulary_by_text(translator):
    own = translator.source_tokenizer
    tokenizer = types.SimpleNamespace(
        tokenize=own.tokenize,
        detokenize=own.detokenize,
        vocabulary={"<0xC3>": 199},
        vocabulary_size=own.vocabulary_size,
    )
    found = ks.Translator(translator.model, tokenizer).attention("é")
    assert found.source_tokens == ["\ufffd", "\ufffd", "</s>"]


@pytest.mark.backends("torch")
def test_attention_is_computed_at_few_lengths(sentencepiece, monkeypatch):
    model, shapes = make_model(vocabulary_size=290, max_length=40), set()
    translator, computed = ks.Translator(model, sentencepiece), model.attention_scores

    def attention_scores(source_ids, target_ids, kind):
        shapes.add((source_ids.shape, target_ids.shape))
        return computed(source_ids, target_ids, kind)

    monkeypatch.setattr(model, "attention_scores", attention_scores)
    for source, target in (
        ("a", "b c"),
        ("a b", "c"),
        ("a " * 15, "b"),
        ("a " * 18, "b"),
        ("a " * 34, "b"),
    ):
        translator.attention(source, target)
    assert shapes == {((1, length), (1, 16)) for length in (16, 32, 40)}


@pytest.mark.slow_on("tensorflow")
@pytest.mark.backends("tensorflow", "torch")
def test_save_and_load(translator, sentencepiece, tmp_path):
    two = ks.Translator(
        make_model(target_vocabulary_size=290),
        ks.text.ByteTokenizer(),
        sentencepiece,
        search=ks.decoding.Greedy(),
        max_source_length=20,
    )
    for saved in (translator, two):
        saved.save(tmp_path / "t.keras")
        loaded = ks.Translator.load(tmp_path / "t.keras")
        assert loaded.search == saved.search
        assert loaded.max_source_length == saved.max_source_length
        shared = loaded.source_tokenizer is loaded.target_tokenizer
        assert shared == (saved is translator)
        assert loaded.target_tokenizer.detokenize([[110]]) == (
            saved.target_tokenizer.detokenize([[110]])
        )
        ids = {"source_ids": np.array([[5, 7, 2]]), "target_ids": np.array([[1, 9]])}
        np.testing.assert_array_equal(
            keras.ops.convert_to_numpy(loaded.model(ids)),
            keras.ops.convert_to_numpy(saved.model(ids)),
        )


@pytest.mark.slow_on("tensorflow")
@pytest.mark.backends("tensorflow", "torch")
def test_the_file_leaves_the_training_behind(translator, tmp_path):
    translator.save(tmp_path / "before.keras")
    model = make_model()
    model.compile("adam", ks.training.MaskedCrossentropy())
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    ks.Translator(model, ks.text.ByteTokenizer()).save(tmp_path / "after.keras")
    assert model.optimizer is optimizer
    sizes = [(tmp_path / f"{n}.keras").stat().st_size for n in ("before", "after")]
    assert sizes[1] < 1.1 * sizes[0]
    assert not ks.Translator.load(tmp_path / "after.keras").model.compiled


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_a_fresh_process_needs_the_package_alone(sentencepiece, tmp_path):
    translator = ks.Translator(make_model(vocabulary_size=290), sentencepiece)
    translator.save(tmp_path / "t.keras")
    program = (
        "import sys, json, keras_seqattn as ks;"
        "print(json.dumps(ks.Translator.load(sys.argv[1])(json.loads(sys.argv[2]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "t.keras", json.dumps(LINES)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == translator(LINES)


def test_the_file_is_safe_to_load(translator, tmp_path):
    translator.save(tmp_path / "t.keras")
    with zipfile.ZipFile(tmp_path / "t.keras") as file:
        assert "__lambda__" not in file.read("config.json").decode()


@pytest.mark.parametrize("search", ["beam", ks.decoding.Greedy])
def test_no_file_is_written_that_would_not_load(
    translator, search, tmp_path, monkeypatch
):
    monkeypatch.setattr(translator, "search", search)
    with pytest.raises(ValueError, match="`search` must be a `Greedy`, `Sample` or"):
        translator.save(tmp_path / "translator.keras")
    assert not list(tmp_path.iterdir())


@pytest.mark.backends("torch")
def test_no_file_is_written_without_the_variables_of_a_model(tmp_path):
    class Plain(ensembles.Plain):
        source_vocabulary_size = target_vocabulary_size = 260

        def get_config(self):
            return {}

    for model in (Plain(), ks.decoding.Ensemble([Plain()])):
        translator = ks.Translator(model, ks.text.ByteTokenizer())
        with pytest.raises(ValueError, match="`model` must be a Keras model to be"):
            translator.save(tmp_path / "translator.keras")
    assert not list(tmp_path.iterdir())


@pytest.mark.backends("torch")
def test_what_a_model_calls_its_models_is_its_own_matter(tmp_path):
    model = ks.models.TranslationTransformer(260, model_dim=8, num_heads=2)
    model.models = {"own": None}
    translator = ks.Translator(model, ks.text.ByteTokenizer())
    translator.save(tmp_path / "one.keras")
    assert ks.Translator.load(tmp_path / "one.keras")(["a"]) == translator(["a"])


@pytest.mark.backends("torch")
def test_a_save_that_fails_leaves_the_old_file(translator, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match='`path` must end in ".keras".*t.h5'):
        translator.save(tmp_path / "t.h5")
    path = tmp_path / "t.keras"
    translator.save(path)
    content = path.read_bytes()

    def fail(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        translator.save(path)
    assert path.read_bytes() == content
    assert [found.name for found in tmp_path.iterdir()] == ["t.keras"]


@pytest.mark.backends("torch")
def test_a_save_that_fails_leaves_the_optimizer(tmp_path, monkeypatch):
    """So that training can go on after a disk was full."""
    model = make_model()
    model.compile("adam", ks.training.MaskedCrossentropy())
    optimizer = model.optimizer
    monkeypatch.setattr(os, "fsync", None)
    with pytest.raises(TypeError):
        ks.Translator(model, ks.text.ByteTokenizer()).save(tmp_path / "t.keras")
    assert model.optimizer is optimizer


WROTE = "`path` must be a file that `Translator.save` wrote, whole and unchanged; "


def test_a_file_of_something_else_is_an_error(tmp_path):
    path = tmp_path / "other.keras"
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(path)
    remedy = "Load another with `keras.saving.load_model`.*other.keras.*a Sequential"
    with pytest.raises(ValueError, match=remedy):
        ks.Translator.load(path)
    for path in ("hf://someone/model", tmp_path):  # Keras would download the first.
        with pytest.raises(ValueError, match=WROTE):
            ks.Translator.load(path)
    message = f"{WROTE}.*missing.keras', which does not exist"
    with pytest.raises(ValueError, match=message):
        ks.Translator.load(tmp_path / "missing.keras")


@pytest.mark.backends("torch")
def test_a_truncated_file_is_one_error(translator, tmp_path):
    path = tmp_path / "t.keras"
    translator.save(path)
    whole = path.read_bytes()
    cuts = np.linspace(0, len(whole) - 1, 12).astype(int)
    for content in (*(whole[:cut] for cut in cuts), b"\0" * 99):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{WROTE}.*t.keras', .*not a zip file"):
            ks.Translator.load(path)


def changed(path, name, content):
    """Writes a file of the archive anew; None leaves it out."""
    with zipfile.ZipFile(path) as archive:
        files = {one: archive.read(one) for one in archive.namelist()}
    files[name] = content
    with zipfile.ZipFile(path, "w") as archive:
        for one, data in files.items():
            if data is not None:
                archive.writestr(one, data)


def nested_config(config, *keys):
    for key in keys[:-2]:
        config = config[key]
    config[keys[-2]] = keys[-1]


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "change",
    [
        None,
        "",
        "[]",
        "{",
        "null",
        "[" * 10_000,
        ("config", "model", None),
        ("config", "model", "config", None),
        ("config", "model", "config", "model_dim", "wide"),
        ("config", "model", "config", "num_heads", 0),
        ("config", "model", {"class_name": "Unknown"}),
        ("config", "source_tokenizer", 3),
        ("config", "search", "beam"),
        ("config", "max_source_length", []),
        ("class_name", "Dense"),
        ("config", []),
    ],
    ids=repr,
)
def test_a_tampered_configuration_is_one_error(translator, tmp_path, change):
    path = tmp_path / "t.keras"
    translator.save(path)
    if isinstance(change, tuple):
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        nested_config(config, *change)
        if change == ("class_name", "Dense"):
            config |= {"module": "keras.layers", "registered_name": None}
        change = json.dumps(config)
    changed(path, "config.json", change)
    with pytest.raises(ValueError, match=f"(?s){WROTE}.*t.keras'"):
        ks.Translator.load(path)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("content", [None, b"", b"no weights"])
def test_tampered_weights_are_one_error(translator, tmp_path, content):
    path = tmp_path / "t.keras"
    translator.save(path)
    changed(path, "model.weights.h5", content)
    with pytest.raises(ValueError, match=f"(?s){WROTE}.*t.keras'"):
        ks.Translator.load(path)


@pytest.mark.backends("torch")
def test_more_hypotheses_make_the_search_a_beam(translator):
    [found] = translator.translate(["two"], num_hypotheses=3)
    scores = [score for _, score in found]
    assert len(found) == 3 and scores == sorted(scores, reverse=True)
    beam = ks.decoding.BeamSearch(width=4, num_hypotheses=3)
    assert found == translator.translate(["two"], search=beam)[0]


@pytest.mark.backends("torch")
def test_samples_do_not_depend_on_the_lines_beside(translator):
    search = ks.decoding.Sample(seed=1)
    lines = [f"{i}" * (1 + i % 4) for i in range(6)]
    together = translator(lines, search=search)
    shuffled = translator([*lines[:3], "x" * 20, *lines[4:]], search=search)
    assert together[:3] + together[4:] == shuffled[:3] + shuffled[4:]


@pytest.mark.backends("torch")
def test_of_several_samples_a_call_takes_the_best(translator):
    search = ks.decoding.Sample(seed=1, num_hypotheses=3)
    found = translator.translate(["one", "two"], search)
    assert translator(["one", "two"], search) == [pairs[0][0] for pairs in found]


@pytest.mark.backends("torch")
def test_samples_of_a_stream_are_those_of_a_call(translator, monkeypatch):
    """Equal lines in different blocks have different samples too."""
    monkeypatch.setattr(ks.translator, "LINES_IN_A_BLOCK", 2)
    search = ks.decoding.Sample(seed=1)
    expected = translator(["two"] * 5, search)
    assert len({*expected}) > 2
    assert list(translator.stream(["two"] * 5, search)) == expected


@pytest.mark.backends("torch")
def test_a_search_of_nothing_draws_no_seed(translator):
    before = random.getstate()
    assert translator(["", " "], search=ks.decoding.Sample()) == ["", ""]
    assert random.getstate() == before


@pytest.mark.backends("torch")
def test_translations_begin_as_they_are_told(translator):
    found = translator.translate(["two", "dogs"], prefix=["ab", ""])
    assert found[0][0][0].startswith("ab")
    assert found[1][0][0] == translator(["dogs"])[0]


@pytest.mark.backends("torch")
def test_a_stream_is_translated_block_by_block(translator, monkeypatch):
    monkeypatch.setattr(ks.translator, "LINES_IN_A_BLOCK", 2)
    read = []

    def lines():
        for line in ("one\n", "\n", "two\r\n", "three", "four\n"):
            read.append(line)
            yield line

    stream = translator.stream(lines())
    first = next(stream)
    assert len(read) == 2, "no more is read than is translated"
    expected = translator(["one", "", "two", "three", "four"])
    assert [first, *stream] == expected


@pytest.mark.parametrize("lines", ["abc", b"abc", {"a": "b"}, {"a", "b"}, 3, None])
def test_what_is_no_sequence_of_lines_is_no_stream(translator, lines):
    message = "`lines` must be a list of strings, an open file.*Received: lines="
    with pytest.raises(ValueError, match=message + re.escape(repr(lines))):
        translator.stream(lines)


def test_a_stream_counts_lines_from_its_first(translator, echo, monkeypatch):
    monkeypatch.setattr(ks.translator, "LINES_IN_A_BLOCK", 2)
    for wrong, message in ((b"x", "strings"), ("\ud800", "valid Unicode")):
        with pytest.raises(ValueError, match=rf"must hold {message}.*: lines\[3\]="):
            list(translator.stream(["a", "b", "c", wrong]))
    with pytest.warns(UserWarning, match=r"1 of 1 lines.*The first is lines\[4\]"):
        list(translator.stream(["a", "b", "c", "d", "e" * 30]))


def test_a_line_break_at_the_end_is_no_part_of_a_line(translator, echo):
    lines = ["a\r\n", "b\r", "c\n", "d"]
    assert translator(lines) == list(translator.stream(lines)) == list("abcd")
    assert [best[0][0] for best in translator.translate(lines)] == list("abcd")


@pytest.mark.parametrize("search", ["beam", 4, ks.decoding.BeamSearch])
def test_what_is_no_search_is_an_error(translator, search):
    message = "`search` must be a `Greedy`.*Received: search=" + re.escape(repr(search))
    for call in (
        lambda: ks.Translator(
            translator.model, translator.source_tokenizer, search=search
        ),
        lambda: translator(["a"], search=search),
        lambda: translator.translate(["a"], search=search),
        lambda: translator.stream(["a"], search=search),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="`num_hypotheses` must be a pos.*=0"):
        translator.translate(["a"], num_hypotheses=0)


@pytest.mark.slow_on("tensorflow", "jax")
def test_score_is_the_log_probability_of_the_whole_target(translator):
    """A loop over the tokens, in float64, of the logits of one pass."""
    sources, targets = ["two dogs", "x", ""], ["ab", "a longer target", ""]
    scores = translator.score(sources, targets)
    model, tokenizer = translator.model, translator.source_tokenizer
    for source, target, score in zip(sources, targets, scores, strict=True):
        (source_ids,), (target_ids,) = map(tokenizer.tokenize, ([source], [target]))
        said = [*target_ids, model.end_id]
        ids = {
            "source_ids": np.array([[*source_ids, model.end_id]]),
            "target_ids": np.array([[model.start_id, *target_ids]]),
        }
        logits = outputs(model, ids)[0].astype("float64")
        total = np.log(np.exp(logits).sum(-1))
        expected = sum(logits[i, token] - total[i] for i, token in enumerate(said))
        np.testing.assert_allclose(score, expected, rtol=1e-4)


class Language(ks.text.ByteTokenizer):
    """Begins each text with an id that a translator forces to come first."""

    prefix_ids = [7]

    def _encode(self, lines, sampling, seed):
        rows = super()._encode(lines, sampling, seed)
        return [[*self.prefix_ids, *row] for row in rows]

    def _decode(self, rows):
        return super()._decode([row[1:] for row in rows])


@pytest.mark.backends("torch")
def test_the_language_of_a_translation_is_not_scored(translator):
    model, plain = translator.model, translator.source_tokenizer
    (score,) = ks.Translator(model, plain, Language()).score(["dogs"], ["ab"])
    (source_ids,), (target_ids,) = map(plain.tokenize, (["dogs"], ["ab"]))
    source_ids = np.array([[*source_ids, model.end_id]])
    (whole,) = model.score(source_ids, [[7, *target_ids, model.end_id]])
    ids = {"source_ids": source_ids, "target_ids": np.array([[model.start_id]])}
    logits = outputs(model, ids)[0, 0].astype("float64")
    language = logits[7] - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(score, whole - language, rtol=1e-4)


@pytest.mark.backends("torch")
def test_attention_of_a_translation_begins_with_its_language(translator):
    model, plain = translator.model, translator.source_tokenizer
    looked = ks.Translator(model, plain, Language()).attention("dogs")
    assert looked.target_tokens[0] == plain.pieces[7]


class Bare:
    """A model that says nothing of some attributes."""

    def __init__(self, model, *without):
        self._model, self._without = model, without

    def __getattr__(self, name):
        if name in self._without:
            raise AttributeError(name)
        return getattr(self._model, name)

    def __call__(self, inputs):
        return self._model(inputs)


@pytest.mark.backends("torch")
def test_a_model_need_not_have_a_limit(unlimited):
    tokenizer = unlimited.source_tokenizer
    translator = ks.Translator(Bare(unlimited.model, "max_length"), tokenizer)
    assert translator.max_source_length == 1024
    lines = ["one", ""]
    assert translator(lines) == unlimited(lines)
    np.testing.assert_array_equal(
        translator.score(lines, lines), unlimited.score(lines, lines)
    )


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name", ["target_vocabulary_size", "end_id", "initial_state", "variables"]
)
def test_what_a_model_lacks_is_named(translator, name):
    message = f"`model` must be a translation model, with `{name}`. Received: model="
    with pytest.raises(ValueError, match=message):
        ks.Translator(Bare(translator.model, name), translator.source_tokenizer)


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_translation_has_the_score_that_was_returned(translator):
    model = translator.model
    # ASCII alone, and the end before the limit.
    banned = (0, 1, 3, *range(132, model.target_vocabulary_size))
    search = ks.decoding.Greedy(
        biased_ids={model.end_id: 9.0}, min_length=4, banned_ids=banned
    )
    [[(text, score)]] = translator.translate(["dogs"], search=search)
    assert 3 <= len(text) < 19
    np.testing.assert_allclose(translator.score(["dogs"], [text]), [score], rtol=1e-3)


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (
            ["a"],
            ["b", "c"],
            "`targets` must .* as many lines as `sources`, 1.*2 lines",
        ),
        ("a", ["b"], "`sources` must be a list of strings.*sources='a'"),
    ],
)
def test_bad_pairs_to_score(translator, sources, targets, message):
    with pytest.raises(ValueError, match=message):
        translator.score(sources, targets)


def test_what_attention_is_asked_for_is_checked_before_a_search(
    translator, monkeypatch
):
    monkeypatch.setattr(ks.decoding, "generate", None)
    with pytest.raises(ValueError, match="`kind` must be one of.*Received: kind='x'"):
        translator.attention("a", kind="x")
    recurrent = ks.models.TranslationRNN(260, model_dim=4)
    only_cross = r"`kind` must be one of \('cross',\).*Received: kind='encoder'"
    with pytest.raises(ValueError, match=only_cross):
        ks.Translator(recurrent, ks.text.ByteTokenizer()).attention("a", kind="encoder")
    with pytest.raises(ValueError, match="`source` must be a string. .*=3"):
        translator.attention(3)
    with pytest.raises(ValueError, match="`target` must be a string or None. .*=3"):
        translator.attention("a", 3)


def test_bad_prefix(translator):
    with pytest.raises(
        ValueError, match="`prefix` .* as many lines as `lines`, 2.*1 lines"
    ):
        translator.translate(["a", "b"], prefix=["c"])


@each_variant("kind", named("cross", "encoder", "decoder"), on_jax=[])
def test_attention_of_every_kind_is_normalized(translator, kind):
    looked = translator.attention("two", "ab", kind=kind)
    sizes = {"cross": (3, 4), "encoder": (4, 4), "decoder": (3, 3)}[kind]
    assert (len(looked.target_tokens), len(looked.source_tokens)) == sizes
    assert looked.weights.shape[2:] == sizes
    np.testing.assert_allclose(looked.weights.sum(-1), 1.0, atol=1e-5)
    if kind == "decoder":
        assert looked.source_tokens[0] == "<s>"
        assert not np.triu(looked.weights, k=1).any()
    assert len(looked.alignment()) == sizes[0]


@pytest.mark.slow_on("tensorflow")
def test_what_was_compiled_is_counted(translator):
    translator(["two"])
    report = translator.compile_report()
    assert report.num_programs >= 1 and report.seconds > 0.0
    translator(["six"])
    assert translator.compile_report() == report
