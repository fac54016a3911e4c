"""Prompts in, continuations out: whole, scored, streamed, and saved in one file."""

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn import text_generator, text_model
from keras_seqattn.scheduling.streaming import stream_tokens
from tests.pairs import each_variant
from tests.small import translation_model

torch = pytest.mark.backends("torch")
PROMPTS = ["one", "", "a longer prompt é", "two\n"]
SUBWORDS = ["two dogs run in a park", "a man in a blue shirt sings ▁ \x10"] * 20


def make_model(**options):
    """A model of noise: its weights are large enough that no two tokens tie."""
    sizes = {"model_dim": 16, "num_heads": 2, "num_layers": 1, "intermediate_dim": 16}
    model = ks.models.LanguageModel(**{"vocabulary_size": 260, **sizes, **options})
    rng = np.random.default_rng(1)
    weights = model.get_weights()
    noise = [rng.normal(0, 0.3, w.shape) + (w if w.ndim == 1 else 0) for w in weights]
    model.set_weights(noise)
    return model


@pytest.fixture(scope="module")
def generator():
    return ks.TextGenerator(make_model(max_length=32), ks.text.ByteTokenizer())


@torch
def test_continues_as_the_model_does(generator):
    tokenizer, model = generator.tokenizer, generator.model
    alone = []
    for ids in tokenizer.tokenize(PROMPTS):
        found = model.generate([[model.start_id, *ids]], max_length=6)
        alone += tokenizer.detokenize([found.sequence(0)])
    assert generator(PROMPTS, max_length=6) == alone
    assert generator([]) == []
    assert len(set(alone)) > 1


@torch
@pytest.mark.parametrize("limit", [None, 1, 40])
def test_a_prompt_does_not_depend_on_its_neighbours(generator, limit):
    prompts = [*PROMPTS, "x" * 30]
    assert generator(prompts, limit) == [generator([p], limit)[0] for p in prompts]


@torch
def test_hypotheses_are_scored(generator):
    found = generator.generate(PROMPTS, num_hypotheses=3, max_length=4)
    assert [len(pairs) for pairs in found] == [3] * 4
    for pairs in found:
        scores = [score for _, score in pairs]
        assert scores == sorted(scores, reverse=True)
    beam = ks.decoding.BeamSearch(2)
    with_beams = ks.TextGenerator(generator.model, generator.tokenizer, beam)
    texts = [pairs[0][0] for pairs in generator.generate(PROMPTS, beam, max_length=4)]
    assert with_beams(PROMPTS, 4) == generator(PROMPTS, 4, beam) == texts


@torch
def test_scores_are_of_the_whole_line(generator):
    lines = ["ab", "", "a longer line"]
    scores = generator.score(lines)
    for line, score in zip(lines, scores, strict=True):
        (ids,) = generator.tokenizer.tokenize([line])
        logits = generator.model(np.array([[1, *ids]]))
        log_probs = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits))[0]
        expected = sum(row[i] for row, i in zip(log_probs, [*ids, 2], strict=True))
        assert score == pytest.approx(expected, rel=1e-4)
    assert generator.score([]).shape == (0,)


def test_a_line_that_fills_the_model_is_scored(generator):
    """With the start it has as many tokens as there are positions; nothing follows."""
    longest = generator.model.max_length - 1
    assert generator.score(["x" * longest])[0] < 0.0
    with pytest.raises(ValueError, match=f"must have at most {longest} tokens. Rec"):
        generator.score(["x" * (longest + 1)])
    with pytest.raises(ValueError, match=f"must have at most {longest - 1} tokens."):
        generator(["x" * longest])


@each_variant(
    "search",
    {"greedy": None, "sample": ks.decoding.Sample(top_p=0.9, seed=3)},
    on_jax=[],
    on_tensorflow=[],
)
def test_a_stream_is_the_call_piece_by_piece(generator, search):
    for prompt in ("one", ""):
        pieces = list(generator.stream(prompt, 12, search))
        assert "".join(pieces) == generator([prompt], 12, search)[0]
        assert all(pieces)
    assert "".join(generator.stream("one")) == generator(["one"])[0]


@torch
def test_a_stream_makes_two_programs_whatever_its_length(generator):
    generator = ks.TextGenerator(make_model(), generator.tokenizer)
    for prompt, limit in (("one", 9), ("another", 12)):
        list(generator.stream(prompt, limit))
    programs = ks.decoding.programs(generator.model)
    assert [program.num_programs for program in programs] == [1, 1]


@torch
def test_a_stream_comes_token_by_token(generator, monkeypatch):
    steps = []
    take_step = ks.decoding.loop.take_step
    monkeypatch.setattr(
        "keras_seqattn.decoding.loop.take_step",
        lambda *given, **more: steps.append(1) or take_step(*given, **more),
    )
    search = ks.decoding.Greedy(min_length=12)
    next(stream_tokens(generator.model, [1, 7], search, 12))
    assert len(steps) == 1


@pytest.fixture(scope="module")
def tokenizers():
    return [
        ks.text.ByteTokenizer(),
        ks.text.SentencePieceTokenizer.train(SUBWORDS, vocabulary_size=300),
        ks.text.WordPieceTokenizer.train(SUBWORDS, vocabulary_size=90),
    ]


@torch
def test_no_piece_is_changed_by_a_later_token(tokenizers):
    rng = np.random.default_rng(0)
    for tokenizer in tokenizers:
        rows = tokenizer.tokenize(["é 🙂 two▁dogs \x10\x10▁ \ufffd in a blue park, 🙂"])
        rows += rng.integers(3, tokenizer.vocabulary_size, (20, 12)).tolist()
        for ids in rows:
            pieces = list(text_generator._pieces(tokenizer, [], ids))
            assert "".join(pieces) == tokenizer.detokenize([ids])[0]
            assert all(pieces)
    byte = tokenizers[0]
    (ids,) = byte.tokenize(["é🙂!"])
    assert list(text_generator._pieces(byte, [], ids)) == ["é", "🙂", "!"]
    cut = list(text_generator._pieces(byte, [], ids[:-2]))
    assert cut == ["é", "\ufffd"]


@torch
def test_a_continuation_begins_with_the_space_that_is_its_own(tokenizers):
    """Which a tokenizer leaves out at the beginning of a text."""
    word_piece = tokenizers[2]
    whole, prompt = word_piece.tokenize(["two dogs run", "two dogs"])
    assert whole[: len(prompt)] == prompt
    rest = whole[len(prompt) :]
    assert text_model.continuations(word_piece, [prompt], [rest]) == [" run"]
    assert "".join(text_generator._pieces(word_piece, prompt, rest)) == " run"


@torch
def test_a_continuation_that_changes_the_prompt_s_text_is_decoded_alone(tokenizers):
    """As the last byte of a character does."""
    byte = tokenizers[0]
    first, *rest = byte.tokenize(["éa"])[0]
    assert text_model.continuations(byte, [[first]], [rest]) == ["\ufffda"]


@torch
def test_a_prompt_that_holds_padding_is_refused():
    class Words(ks.text.ByteTokenizer):
        def _encode(self, lines, sampling, seed):
            return [[0] if line == "?" else [9] for line in lines]

    generator = ks.TextGenerator(make_model(max_length=32), Words())
    with pytest.raises(ValueError, match=r"`prompts\[1\]` must have no token of pad"):
        generator(["a", "?"])


@torch
@pytest.mark.parametrize(
    "search", [ks.decoding.BeamSearch(1), ks.decoding.Sample(num_hypotheses=2)]
)
def test_a_stream_of_several_hypotheses_is_an_error(generator, search):
    with pytest.raises(ValueError, match="`search` must be a `Greedy`.*Received: sea"):
        generator.stream("one", search=search)


@torch
def test_a_prompt_that_is_too_long_is_an_error(generator):
    assert len(generator(["x" * 30])) == 1
    message = r"`prompts\[1\]` must have at most 30 tokens.*prompts\[1\] of 31 tokens"
    with pytest.raises(ValueError, match=message):
        generator(["x", "x" * 31])
    with pytest.raises(ValueError, match="`prompt` must have.*of 31 tokens"):
        generator.stream("x" * 31)
    unlimited = ks.TextGenerator(make_model(), ks.text.ByteTokenizer())
    message = r"`lines\[0\]` must have at most 1023 tokens.* Build .* `max_length`;"
    with pytest.raises(ValueError, match=message):
        unlimited.score(["x" * 200_000])


@torch
def test_what_does_not_fit_is_an_error(generator, tokenizers):
    with pytest.raises(ValueError, match="of 260 entries. Received: .*=300"):
        ks.TextGenerator(generator.model, tokenizers[1])
    with pytest.raises(ValueError, match="must be a tokenizer. Received: tokenizer=<c"):
        ks.TextGenerator(generator.model, ks.text.ByteTokenizer)
    with pytest.raises(ValueError, match="`model` must be a language model"):
        ks.TextGenerator(translation_model(260), generator.tokenizer)
    with pytest.raises(ValueError, match="`prompts` must be a list.*prompts='one'"):
        generator("one")
    with pytest.raises(ValueError, match="`prompt` must be a string.*prompt=.'one'."):
        generator.stream(["one"])


class Fairseq(ks.text.ByteTokenizer):
    start_id, pad_id, end_id, unknown_id = range(4)


@torch
def test_special_tokens_that_the_model_lacks_are_an_error(generator):
    message = "`tokenizer` must have the model's `start_id`, 1. .*tokenizer.start_id=0"
    with pytest.raises(ValueError, match=message):
        ks.TextGenerator(generator.model, Fairseq())
    model = make_model(max_length=32, start_id=0, pad_id=1)
    assert len(ks.TextGenerator(model, Fairseq())(["one"], 4)) == 1


@torch
def test_save_and_load(generator, tokenizers, tmp_path):
    path = tmp_path / "g.keras"
    search = ks.decoding.Sample(seed=3)
    model = make_model(vocabulary_size=300)
    for saved in (generator, ks.TextGenerator(model, tokenizers[1], search)):
        saved.save(path)
        loaded = ks.TextGenerator.load(path)
        assert loaded.search == saved.search
        assert loaded(PROMPTS, 6) == saved(PROMPTS, 6)
    wrote = "`path` must be a file that `Translator.save` wrote.*TextGeneratorFile"
    with pytest.raises(ValueError, match=wrote):
        ks.Translator.load(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(ValueError, match="that `TextGenerator.save` wrote"):
        ks.TextGenerator.load(path)
    with pytest.raises(ValueError, match='`path` must end in ".keras".*g.h5'):
        generator.save(tmp_path / "g.h5")
