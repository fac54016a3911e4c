"""An ensemble is the mean of its models' probabilities, whatever searches it."""

import itertools
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_seqattn as ks
from keras_seqattn import decoding, models
from keras_seqattn.decoding.protocol import abilities
from keras_seqattn.decoding.segmentations import SegmentationEnsemble, interleave
from tests.evaluate import outputs
from tests.layers.weights import randomize
from tests.pairs import each_variant
from tests.scheduling.test_continuous import both_ways, check_equal
from tests.small import translation_model

V, LIMIT = 6, 3
PAD, START, END = 0, 1, 2
SOURCES = np.array([[3, 5, 4, END], [5, END, PAD, PAD]], "int32")


def transformer(seed, vocabulary_size=V, **options):
    model = translation_model(vocabulary_size, intermediate_dim=12, **options)
    randomize(model, np.random.default_rng(seed))
    return model


def recurrent(seed, vocabulary_size=V, **options):
    model = models.TranslationRNN(vocabulary_size, model_dim=6, **options)
    randomize(model, np.random.default_rng(seed))
    return model


class Plain:
    """A model that is no Keras model: what it says depends on the source's first."""

    start_id, end_id, pad_id = START, END, PAD

    def __init__(self):
        table = np.random.default_rng(7).normal(0, 2, (V, V))
        self.table = keras.Variable(table.astype("float32"))
        self.variables = [self.table]

    def encode(self, source_ids):
        return source_ids[:, :1]

    def initial_state(self, memory, max_length, width=1):
        return {"beam": {}, "sentence": {"first": memory}}

    def step(self, token_ids, state, index):
        seen = token_ids + state["sentence"]["first"]
        return ops.take(self.table, seen % V, axis=0), state


def log_mean(models, source_ids, target_ids):
    """The log of the mean of the models' probabilities, `(B, T, V)`, in float64."""
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    total = 0.0
    for model in models:
        exponentials = np.exp(outputs(model, inputs).astype("float64"))
        total = total + exponentials / exponentials.sum(-1, keepdims=True)
    return np.log(total / len(models))


def sentences():
    """All sentences: as many words as the limit allows, those shorter with the end."""
    words = [token for token in range(V) if token not in (PAD, START, END)]
    for length in range(LIMIT):
        yield from ((*said, END) for said in itertools.product(words, repeat=length))
    yield from itertools.product(words, repeat=LIMIT)


def brute_force(models, source, length_penalty, count):
    """The best of all sentences, as pairs of their tokens and scores."""
    every = list(sentences())
    said = np.array([[*one, *[PAD] * (LIMIT - len(one))] for one in every], "int32")
    read = np.concatenate([np.full((len(said), 1), START), said[:, :-1]], 1)
    rows = np.repeat(source[None], len(said), axis=0)
    log_probs = log_mean(models, rows, read.astype("int32"))
    chosen = np.take_along_axis(log_probs, said[..., None], -1)[..., 0]
    totals = np.where(said != PAD, chosen, 0.0).sum(1)
    scores = totals / (said != PAD).sum(1) ** length_penalty
    best = np.argsort(-scores, kind="stable")[:count]
    return [([t for t in every[i] if t != END], scores[i]) for i in best]


@pytest.fixture(scope="module")
def pair():
    """Two models of different architectures."""
    return [transformer(0), recurrent(1)]


@pytest.mark.slow_on("jax")
def test_a_whole_pass_is_the_log_of_the_mean(pair):
    targets = np.array([[START, 4, 3], [START, 5, 5]], "int32")
    ensemble = decoding.Ensemble([*pair, transformer(2)])
    inputs = {"source_ids": SOURCES, "target_ids": targets}
    found = outputs(ensemble, inputs)
    expected = log_mean(ensemble.models, SOURCES, targets)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.exp(found).sum(-1), 1.0, rtol=1e-5)


def test_what_is_improbable_for_one_model_is_half_as_probable(pair):
    """The log of the mean, where a mean of logs would be far below."""
    ensemble = decoding.Ensemble(pair)
    logits = np.full((2, 1, 1, 2), 0.0, "float32")
    logits[0, ..., 1], logits[1, ..., 1] = 200.0, -200.0
    found = ops.convert_to_numpy(ensemble._mean([*map(ops.convert_to_tensor, logits)]))
    np.testing.assert_allclose(found[0, 0], np.log([0.5, 0.5]), rtol=1e-6)


@pytest.mark.slow_on("jax")
def test_steps_are_the_rows_of_a_whole_pass(pair):
    ensemble = decoding.Ensemble(pair)
    targets = np.array([[START, 4, 3], [START, 5, 5]], "int32")
    expected = log_mean(pair, SOURCES, targets)
    state = ensemble.initial_state(ensemble.encode(SOURCES), max_length=3)
    for index in range(3):
        logits, state = ensemble.step(targets[:, index, None], state, index)
        found = ops.convert_to_numpy(logits)[:, 0]
        np.testing.assert_allclose(found, expected[:, index], rtol=1e-4, atol=1e-5)


@each_variant(
    "length_penalty",
    {"sum": 0.0, "mean": 1.0},
    on_jax=[],
    on_tensorflow=[],
)
def test_a_wide_beam_finds_the_best_of_all_sentences(pair, length_penalty):
    ensemble = decoding.Ensemble(pair)
    width, count = 27, 4
    search = decoding.BeamSearch(width, length_penalty, num_hypotheses=count)
    found = decoding.generate(ensemble, SOURCES, search, max_length=LIMIT)
    for row, source in enumerate(SOURCES):
        expected = brute_force(pair, source, length_penalty, count)
        for rank, (tokens, score) in enumerate(expected):
            assert found.sequence(row, rank) == tokens
            np.testing.assert_allclose(found.scores[row, rank], score, rtol=1e-4)


@pytest.mark.slow_on("tensorflow", "jax")
def test_the_best_of_the_ensemble_are_not_the_best_of_its_models(pair):
    """So the test above can fail."""
    first, second, both = (
        [tokens for tokens, _ in brute_force(some, SOURCES[0], 1.0, 4)]
        for some in (pair[:1], pair[1:], pair)
    )
    assert both not in (first, second)


@pytest.mark.slow_on("tensorflow", "jax")
def test_models_without_anything_to_reorder():
    model = Plain()
    model.initial_state = lambda memory, max_length, width: {
        "sentence": {"first": memory}
    }
    expected = decoding.generate(Plain(), SOURCES)
    found = decoding.generate(decoding.Ensemble([model, model]), SOURCES)
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_model_twice_is_the_model():
    model = transformer(3, vocabulary_size=11)
    search = decoding.BeamSearch(3, num_hypotheses=2)
    source_ids = np.array([[5, 9, 3, END]])
    expected = decoding.generate(model, source_ids, search)
    for count in (1, 2):
        found = decoding.generate(
            decoding.Ensemble([model] * count), source_ids, search
        )
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


def sources(rng, count=45):
    """Source ids of more sentences than a program has rows, of 1 to 16 tokens."""
    real = np.arange(16) < rng.integers(1, 17, size=(count, 1))
    ids = np.where(real, rng.integers(3, V, size=real.shape), PAD)
    return ids.astype("int32")


SEARCHES = {
    "greedy": decoding.Greedy(),
    "samples": decoding.Sample(seed=3, num_hypotheses=2),
    "coverage": decoding.BeamSearch(2, coverage_penalty=0.2, num_hypotheses=2),
}


@each_variant("search", SEARCHES, on_jax=[], on_tensorflow=[], on_torch=["samples"])
def test_continuous_batching_finds_what_a_static_batch_finds(pair, rng, search):
    check_equal(*both_ways(decoding.Ensemble(pair), sources(rng), search))


@pytest.mark.slow
def test_segmentations_are_batched_continuously_too(pair, rng):
    rows = [interleave(some, PAD) for some in sources(rng, 135).reshape(45, 3, 16)]
    ensemble = SegmentationEnsemble(pair[0], 3)
    found = both_ways(ensemble, np.array(rows, "int32"), decoding.BeamSearch(2))
    check_equal(*found)


@pytest.mark.slow_on("tensorflow", "jax")
def test_coverage_is_the_mean_of_the_models(pair):
    state = [m.initial_state(m.encode(SOURCES), 2, coverage=True) for m in pair]
    ensemble = decoding.Ensemble(pair)
    joined = ensemble.initial_state(ensemble.encode(SOURCES), 2, coverage=True)
    started = np.full((2, 1), START, "int32")
    for index in range(2):
        for i, model in enumerate(pair):
            state[i] = model.step(started, state[i], index)[1]
        joined = ensemble.step(started, joined, index)[1]
    each = [ops.convert_to_numpy(one["beam"]["coverage"]) for one in state]
    found = ops.convert_to_numpy(joined["beam"]["coverage"])
    np.testing.assert_allclose(found, np.mean(each, axis=0), rtol=1e-4)


def test_it_can_do_what_all_its_models_can(pair):
    assert decoding.Ensemble(pair).abilities == {"grow", "start", "coverage"}
    plain = Plain()
    assert abilities(plain) == decoding.Ensemble([*pair, plain]).abilities == set()
    with pytest.raises(ValueError, match="`search` must have a `coverage_penalty` of"):
        search = decoding.BeamSearch(coverage_penalty=0.1)
        decoding.generate(decoding.Ensemble([*pair, plain]), SOURCES, search)


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_model_that_is_no_keras_model(pair):
    """And a batch large enough that models which can would begin with less."""
    plain = Plain()
    ensemble = decoding.Ensemble([pair[0], plain])
    assert any(variable is plain.table for variable in ensemble.variables)
    source_ids = np.repeat(SOURCES, 16, axis=0)
    found = decoding.generate(ensemble, source_ids, max_length=1)
    start = np.full((2, 1), START, "int32")
    logits = ops.convert_to_numpy(plain.table)[(SOURCES[:, 0] + START) % V]
    chances = np.exp(log_mean(pair[:1], SOURCES, start)[:, 0])
    exponentials = np.exp(logits.astype("float64"))
    chances = (chances + exponentials / exponentials.sum(-1, keepdims=True)) / 2
    chances[:, [PAD, START]] = 0.0
    np.testing.assert_allclose(
        found.scores[[0, -1], 0], np.log(chances.max(-1)), rtol=1e-4
    )


@pytest.mark.slow_on("tensorflow")
def test_weights_that_change_are_seen(pair):
    model = recurrent(5)
    ensemble = decoding.Ensemble([pair[0], model])
    before = decoding.scored(ensemble, SOURCES, [[4, END], [5, END]])
    model.set_weights(recurrent(6).get_weights())
    after = decoding.scored(ensemble, SOURCES, [[4, END], [5, END]])
    assert (before != after).all()


@pytest.mark.slow_on("tensorflow", "jax")
def test_language_models_continue_texts_together():
    first, second = (
        models.LanguageModel(260, 8, 2, 1, 12, max_length=limit) for limit in (20, 30)
    )
    ensemble = decoding.Ensemble([first, second])
    assert ensemble.max_length == 20 and ensemble.most_generated(6) == 14
    generator = ks.TextGenerator(ensemble, ks.text.ByteTokenizer())
    (text,) = generator(["Hello"], max_length=4)
    assert "".join(generator.stream("Hello", max_length=4)) == text


@pytest.mark.backends("torch")
def test_a_model_without_a_limit_leaves_that_of_another():
    limited = transformer(0, max_length=7)
    ensemble = decoding.Ensemble([Plain(), limited])
    assert ensemble.max_length == ensemble.most_generated(5) == 7
    ensemble = decoding.Ensemble([Plain()])
    assert ensemble.max_length is ensemble.most_generated(5) is None


LINES = ["one", "", "a longer line", "two"]


@pytest.fixture(scope="module")
def translator():
    own = [transformer(8, 260, max_length=24), recurrent(9, 260, max_length=32)]
    return ks.Translator(decoding.Ensemble(own), ks.text.ByteTokenizer())


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_translator_of_an_ensemble(translator):
    assert translator.max_source_length == 24
    found = translator.translate(LINES, decoding.BeamSearch(2), num_hypotheses=2)
    assert [len(each) for each in found] == [2, 1, 2, 2]
    # Of letters, whose tokens the text tells, and ended before the limit by a bias;
    # no score counts what was told.
    told = {"banned_ids": (0, 1, 3, *range(132, 260)), "min_length": 4}
    ending = decoding.BeamSearch(2, biased_ids={translator.model.end_id: 9.0}, **told)
    ((text, score),) = translator.translate(["one"], ending)[0]
    length = len(text.encode()) + 1
    assert 4 < length < 17
    (log_prob,) = translator.score(["one"], [text])
    np.testing.assert_allclose(score, log_prob / length, rtol=1e-3)


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_saved_ensemble_translates_the_same(translator, tmp_path):
    translator.save(tmp_path / "both.keras")
    loaded = ks.Translator.load(tmp_path / "both.keras")
    kinds = [type(model).__name__ for model in loaded.model.models]
    assert kinds == ["TranslationTransformer", "TranslationRNN"]
    assert loaded(LINES) == translator(LINES)


@pytest.mark.backends("torch")
def test_the_file_of_ensembles_holds_no_optimizers(tmp_path):
    tokenizer = ks.text.ByteTokenizer()
    model = transformer(3, tokenizer.vocabulary_size)
    whole = decoding.Ensemble([decoding.Ensemble([model])])
    sizes = []
    for _ in range(2):
        ks.Translator(whole, tokenizer).save(tmp_path / "whole.keras")
        sizes.append((tmp_path / "whole.keras").stat().st_size)
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    assert sizes[1] < 1.1 * sizes[0]
    assert model.optimizer is not None
    loaded = ks.Translator.load(tmp_path / "whole.keras").model
    assert not loaded.models[0].models[0].compiled


@pytest.mark.backends("torch")
def test_a_model_that_is_in_several_ensembles_is_saved_once(tmp_path):
    model, other = transformer(3), transformer(4)
    inner = decoding.Ensemble([model, other])
    decoding.Ensemble([inner, model, inner]).save(tmp_path / "e.keras")
    first, second, third = keras.saving.load_model(tmp_path / "e.keras").models
    assert first is third and first.models[0] is second
    for before, after in ((model, second), (other, first.models[1])):
        np.testing.assert_equal(before.get_weights(), after.get_weights())


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
def test_an_ensemble_quantizes_each_model_once_and_whole(tmp_path):
    model, other = transformer(3, 50), transformer(4, 50)
    inner = decoding.Ensemble([model, Plain()])
    ensemble = decoding.Ensemble([model, other, model])
    before = decoding.generate(ensemble, SOURCES)
    decoding.Ensemble([ensemble, inner, model]).quantize("int8")
    for one in (model, other):
        modes = {part.quantization_mode for part in one._flatten_layers()}
        assert modes == {None, "int8"}
        assert one.get_layer("source_embedding").quantization_mode == "int8"
    found = decoding.generate(ensemble, SOURCES)
    assert (found.scores != before.scores).any()
    ensemble.save(tmp_path / "e.keras")
    loaded = keras.saving.load_model(tmp_path / "e.keras")
    again = decoding.generate(loaded, SOURCES)
    np.testing.assert_allclose(again.scores, found.scores, rtol=1e-5)


def test_attention_is_that_of_one_model(translator):
    message = "`model` must be a single model, with attention to show.*Ensemble"
    with pytest.raises(ValueError, match=message):
        translator.attention("one")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda one: [], "`models` must be a list of models .*Received: models=[]."),
        (lambda one: one, "`models` must be a list of models .*Received: models=<Tr"),
        (
            lambda one: [one, keras.layers.Dense(2)],
            "Received: models[1]=<Dense name=",
        ),
        (
            lambda one: [one, models.LanguageModel(V, model_dim=8)],
            "`models` must all be language models, or none.*Received: a language model "
            "at models[1], none at models[0].",
        ),
        (
            lambda one: [one, transformer(0, target_vocabulary_size=9)],
            "`models` must have one `target_vocabulary_size`. Received: "
            "models[0].target_vocabulary_size=6, models[1].target_vocabulary_size=9.",
        ),
        (
            lambda one: [one, recurrent(0, 9)],
            "`models` must have one `source_vocabulary_size`. Received: "
            "models[0].source_vocabulary_size=6, models[1].source_vocabulary_size=9.",
        ),
        *(
            (
                lambda one, name=name: [one, recurrent(0, **{name: 4})],
                f"`models` must have one `{name}`. Received: "
                f"models[0].{name}={value}, models[1].{name}=4.",
            )
            for name, value in (("start_id", 1), ("end_id", 2), ("pad_id", 0))
        ),
    ],
)
def test_models_that_do_not_go_together(pair, wrong, message):
    pattern = ".*".join(map(re.escape, message.split(".*")))
    with pytest.raises(ValueError, match=f"(?s){pattern}"):
        decoding.Ensemble(wrong(pair[0]))


@pytest.mark.slow_on("tensorflow")
def test_logits_of_different_sizes_are_named(pair):
    plain = Plain()
    plain.table = keras.Variable(np.zeros((V, V + 1), "float32"))
    ensemble = decoding.Ensemble([pair[0], plain])
    message = r"`models` must have logits of one voc.*logits of \[6, 7\] tokens"
    with pytest.raises(ValueError, match=message):
        decoding.generate(ensemble, SOURCES)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("whole", [False, True])
def test_what_a_state_lacks_is_named_with_coverage_too(monkeypatch, whole):
    model = transformer(1)
    step = model.step

    def forgets(*given):
        logits, state = step(*given)
        sentence = {k: x for k, x in state.pop("sentence").items() if k != "mask"}
        return logits, state if whole else {**state, "sentence": sentence}

    monkeypatch.setattr(model, "step", forgets)
    search = decoding.BeamSearch(2, coverage_penalty=0.3)
    message = r"a state without state\['sentence'\]\['0'\]\['"
    with pytest.raises(ValueError, match=message):
        decoding.generate(decoding.Ensemble([model, model]), SOURCES, search)
