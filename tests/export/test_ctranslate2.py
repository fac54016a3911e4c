"""CTranslate2: the same numbers for every option it can express, else an error."""

import inspect
import json
import re

import keras
import numpy as np
import pytest

import keras_seqattn as ks
from keras_seqattn.export import export_translator
from keras_seqattn.export.ctranslate2 import _number_of_positions, prepare
from tests.export.translators import make_translator
from tests.pairs import case_id, every_pair
from tests.small import make_sentencepiece

pytestmark = pytest.mark.backends("torch")

ctranslate2 = pytest.importorskip("ctranslate2")
sentencepiece = pytest.importorskip("sentencepiece")

SOURCES = [b"x", b"two dogs", b"a man in a blue shirt"]
MAX_LENGTH = 24


class AlternatePositions(keras.layers.Layer):
    """A user's own positions."""

    def call(self, x, start=0):
        return x


def attention(**options):
    return {"attention": options}


def llama3():
    numbers = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling = {**numbers, "original_max_position_embeddings": 64}
    return ks.layers.RotaryPositions(llama3_scaling=scaling)


@pytest.mark.parametrize(("max_length", "positions"), [(None, 2058), (24, 24)])
def test_positions_are_enough_for_the_longest_translation(max_length, positions):
    """Of 1,024 tokens, where the model has no limit: twice as many, and 10."""
    translator = make_translator(max_length=max_length)
    assert _number_of_positions(translator, None) == positions


CASES = [
    {},
    {"zero_id": ord("a") + 4},
    {"base_dim": 8},
    {"base_dim": 64, "tie_embeddings": False, "embedding_scale": 2.0},
    {
        **attention(num_key_value_heads=2),
        "activation": "silu",
        "gated": True,
        "key_dim": 6,
        "norm": "rms",
        "normalize_first": False,
        "positions": "learned",
    },
    {
        **attention(
            positions=ks.layers.RotaryPositions(base=500.0, scaling=2.0),
            use_bias=False,
            value_dim=7,
        ),
        "activation": "gelu",
        "positions": None,
        "tie_embeddings": False,
    },
    {
        **attention(num_key_value_heads=1),
        "activation": "tanh",
        "decoder_layers": 3,
        "positions": "relative",
        "share_layers": True,
        "target_vocabulary_size": 260,
    },
    {
        **attention(score="dot", value_dim=3),
        "normalize_first": False,
        "positions": None,
        "target_vocabulary_size": 260,
        "tie_embeddings": False,
    },
    {
        **attention(scale=0.3),
        "activation": "sigmoid",
        "gated": True,
        "norm": "rms",
        "positions": ks.layers.SinusoidalPositions(100.0, "odd"),
    },
]
PAIRS = every_pair(
    activation=["relu", "gelu", "silu"],
    attention=[
        None,
        {"num_key_value_heads": 2},
        {"num_key_value_heads": 1, "value_dim": 6},
        {"use_bias": False, "value_dim": 2},
        {"score": "dot"},
    ],
    gated=[False, True],
    key_dim=[None, 6],
    norm=["layer", "rms"],
    normalize_first=[False, True],
    positions=["sinusoidal", "learned", "rotary", None],
    share_layers=[False, True],
    target_vocabulary_size=[None, 260],
    tie_embeddings=[False, True],
)


def engine_of(translator, folder, **options):
    path = export_translator(translator, folder / "model", "ctranslate2", **options)
    return ctranslate2.Translator(str(path), inter_threads=1, intra_threads=1)


def pieces(text):
    return [f"<0x{byte:02X}>" for byte in text]


def log_probs(model, sources, targets, left_out=(0, 1)):
    """Gives the model's own, for given byte strings, over all tokens but a few."""
    source_ids = np.zeros((len(sources), max(map(len, sources)) + 1), "int32")
    target_ids = np.zeros((len(sources), max(map(len, targets)) + 1), "int32")
    target_ids[:, 0] = 1
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        source_ids[row, : len(source) + 1] = [*(b + 4 for b in source), 2]
        target_ids[row, 1 : len(target) + 1] = [b + 4 for b in target]
    logits = model({"source_ids": source_ids, "target_ids": target_ids})
    logits = keras.ops.convert_to_numpy(logits).astype("float64")
    logits[..., list(left_out)] = -np.inf  # by default padding and start
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def assert_same(translator, folder, sources):
    """Checks that the engine's scores are the model's, and its choices the best."""
    engine = engine_of(translator, folder)
    batch = [pieces(source) for source in sources]
    limits = {"max_decoding_length": MAX_LENGTH - 1, "max_input_length": 0}
    found = engine.translate_batch(batch, beam_size=1, **limits)
    chosen = [
        bytes(int(piece[3:5], 16) for piece in one.hypotheses[0]) for one in found
    ]
    scores = engine.score_batch(batch, [pieces(text) for text in chosen])
    expected = log_probs(translator.model, sources, chosen)
    assert max(map(len, chosen)) > 0
    for row, (text, score) in enumerate(zip(chosen, scores, strict=True)):
        ids = [*(byte + 4 for byte in text), 2]
        own = expected[row, : len(ids)]
        best = own.argmax(-1).tolist()
        assert best[: len(text)] == ids[:-1]
        assert best[-1] == 2 or len(text) == MAX_LENGTH - 1
        np.testing.assert_allclose(
            score.log_probs, own[np.arange(len(ids)), ids], atol=1e-4
        )


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_attention": {"num_key_value_heads": 1}},
        {"attention": {"num_key_value_heads": 2}, "decoder_attention": {}},
        {"decoder_attention": {"num_heads": 2}},
        {"decoder_attention": {"key_dim": 6}},
    ],
)
def test_heads_that_differ_are_refused(options, tmp_path):
    with pytest.raises(ValueError, match="as many heads .* in both attentions"):
        engine_of(make_translator(seed=5, **options), tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("case", CASES, ids=map(str, range(len(CASES))))
def test_computes_what_the_model_does(tmp_path, case):
    assert_same(make_translator(seed=5, **case), tmp_path, SOURCES)


@pytest.mark.slow
@pytest.mark.parametrize("case", PAIRS, ids=case_id)
def test_computes_what_the_model_does_for_every_pair(tmp_path, case):
    assert_same(make_translator(encoder_layers=2, **case), tmp_path, SOURCES)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_positions_far_apart(tmp_path, bidirectional):
    """The buckets are logarithmic from a distance of 8 or 16 on, up to 128."""
    positions = ks.layers.RelativeBias(bidirectional=bidirectional)
    case = {**attention(positions=positions), "positions": None}
    translator = make_translator(decoder_layers=1, max_length=200, **case)
    sources = [bytes(range(40, 200)), b"x"]
    engine = engine_of(translator, tmp_path)
    targets = [bytes(range(50, 190)), b"y"]
    scores = engine.score_batch(*([pieces(x) for x in y] for y in (sources, targets)))
    expected = log_probs(translator.model, sources, targets)
    for row, (target, score) in enumerate(zip(targets, scores, strict=True)):
        ids = [*(byte + 4 for byte in target), 2]
        own = expected[row, np.arange(len(ids)), ids]
        np.testing.assert_allclose(score.log_probs, own, atol=1e-3)


def test_the_folder_translates_as_the_translator_does(tmp_path):
    source, target = make_sentencepiece(), make_sentencepiece(300)
    translator = make_translator(None, source, target)
    engine = engine_of(translator, tmp_path)
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {
        "config.json",
        "model.bin",
        "source.spm",
        "source_vocabulary.json",
        "target.spm",
        "target_vocabulary.json",
    }
    processors = [
        sentencepiece.SentencePieceProcessor(
            model_file=str(tmp_path / "model" / f"{side}.spm")
        )
        for side in ("source", "target")
    ]
    lines = ["two dogs run", "a man in a blue é 🙂", "_ park"]
    found = engine.translate_batch(
        processors[0].encode(lines, out_type=str),
        beam_size=1,
        max_decoding_length=MAX_LENGTH,
    )
    texts = [processors[1].decode(one.hypotheses[0]) for one in found]
    # What does not end stops at another length: ours at twice the source's and 10.
    for ours, theirs in zip(translator(lines), texts, strict=True):
        assert theirs[: len(ours)] == ours != ""
    vocabulary = json.loads((tmp_path / "model/source_vocabulary.json").read_text())
    assert vocabulary[:4] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert vocabulary[4 + 0x41] == "<0x41>"


def test_the_documented_program_takes_lines_with_their_breaks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    translator = make_translator(None, make_sentencepiece(), max_length=None)
    export_translator(translator, tmp_path / "folder", "ctranslate2")
    (block,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(prepare), re.S)
    found = []
    for end in ("", "\n", "\r\n"):
        names = {"ctranslate2": ctranslate2, "sentencepiece": sentencepiece}
        names["lines"] = [line + end for line in ("two dogs run", "park")]
        exec(block, names)
        found.append(names["translations"])
    assert found[0] == found[1] == found[2] != ["", ""]


def test_the_documented_text_of_a_mapped_tokenizer_s_hypotheses(tmp_path):
    """The target's has pieces that its model lacks, and begins with a language."""
    source = make_sentencepiece()
    spelled = [*source.pieces, *(f"\u2581word{i}" for i in range(2000)), ">>de<<"]
    language = len(spelled) - 1
    target = ks.text.MappedSentencePieceTokenizer(
        source._model, spelled, 0, 1, 2, 3, prefix_ids=[language]
    )
    translator = make_translator(None, source, target, scale=0.2)
    engine = engine_of(translator, tmp_path)
    source, target = (
        sentencepiece.SentencePieceProcessor(
            model_file=str(tmp_path / "model" / f"{side}.spm")
        )
        for side in ("source", "target")
    )
    (code,) = re.findall(r"`(target\.decode.*)`", inspect.getdoc(prepare))
    lines, prefix, texts = ["two dogs run", "a man in a blue", "park"], [">>de<<"], []
    for cut in source.encode(lines, out_type=str):
        (one,) = engine.translate_batch(
            [cut],
            target_prefix=[prefix],
            beam_size=1,
            min_decoding_length=0,
            max_decoding_length=min(2 * (len(cut) + 1) + 10, MAX_LENGTH),
        )
        names = {"target": target, "hypothesis": one.hypotheses[0], "prefix": prefix}
        texts.append(eval(code, names))
    assert texts == [text.strip() for text in translator(lines)]
    assert any("word" in text for text in texts)


@pytest.mark.parametrize(
    ("search", "options"),
    [
        (ks.decoding.Greedy(), {"beam_size": 1, "length_penalty": 0}),
        (
            ks.decoding.BeamSearch(width=3, length_penalty=0.7, patience=1.0),
            {"beam_size": 3, "length_penalty": 0.7, "patience": 1},
        ),
    ],
)
def test_the_documented_arguments_find_the_same(tmp_path, search, options):
    translator = make_translator(search, make_sentencepiece(), scale=0.2)
    model = translator.model
    engine = engine_of(translator, tmp_path)
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "model" / "source.spm")
    )
    lines = ["two dogs run", "a man in a blue", "park", "a", "dogs dogs dogs"]
    found = []
    for pieces in processor.encode(lines, out_type=str):
        limit = min(2 * (len(pieces) + 1) + 10, model.max_length)
        (one,) = engine.translate_batch(
            [pieces],
            min_decoding_length=0,
            max_decoding_length=limit,
            max_input_length=model.max_length,
            return_scores=True,
            **options,
        )
        found.append((processor.decode(one.hypotheses[0]), one.scores[0]))
    ours = [best for (best,) in translator.translate(lines)]
    assert [text for text, _ in ours] == [text for text, _ in found]
    np.testing.assert_allclose(
        [score for _, score in ours], [score for _, score in found], rtol=0.01
    )


def test_scores_differ_by_what_the_model_gives_to_padding_and_start(tmp_path):
    translator = make_translator(ks.decoding.Greedy())
    engine = engine_of(translator, tmp_path)
    for source in SOURCES:
        limit = min(2 * (len(source) + 1) + 10, MAX_LENGTH)
        (found,) = engine.translate_batch(
            [pieces(source)],
            beam_size=1,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=limit,
            return_scores=True,
        )
        ids = [int(piece[3:5], 16) + 4 for piece in found.hypotheses[0]]
        target = bytes(token - 4 for token in ids)
        ids = (ids + [2])[:limit]
        ((_, score),) = translator.translate([source.decode()])[0]
        for own, left_out in ((score, ()), (found.scores[0], (0, 1))):
            expected = log_probs(translator.model, [source], [target], left_out)[0]
            expected = expected[np.arange(len(ids)), ids].sum()
            np.testing.assert_allclose(own, expected, rtol=1e-4)
        assert found.scores[0] > score


def test_the_documented_end_tokens_stop_as_stop_ids_do(tmp_path):
    stop_ids = tuple(range(4 + 60, 4 + 120))
    translator = make_translator(ks.decoding.Greedy(stop_ids=stop_ids))
    engine = engine_of(translator, tmp_path)
    lines = ["x", "two dogs", "a man in a blue shirt"]
    ends = [*pieces(range(60, 120)), "</s>"]
    found = [
        engine.translate_batch(
            [pieces(line.encode())],
            beam_size=1,
            length_penalty=0,
            min_decoding_length=0,
            max_decoding_length=min(2 * (len(line) + 1) + 10, MAX_LENGTH),
            return_scores=True,
            end_token=ends,
        )[0]
        for line in lines
    ]
    ours = [best for (best,) in translator.translate(lines)]
    texts = [
        bytes(int(piece[3:5], 16) for piece in one.hypotheses[0]).decode(
            errors="replace"
        )
        for one in found
    ]
    assert [text for text, _ in ours] == texts
    np.testing.assert_allclose(
        [score for _, score in ours], [one.scores[0] for one in found], rtol=0.02
    )
    translator.search = ks.decoding.Greedy()
    assert translator(lines) != texts


def test_only_without_a_least_length_is_a_translation_empty(tmp_path):
    translator = make_translator(tie_embeddings=False)
    model = translator.model
    model.get_layer("decoder_norm").set_weights([np.zeros(16), np.ones(16)])
    (kernel,) = model.get_layer("output").get_weights()
    kernel[:, model.end_id] = 10.0  # the end token wins at once
    model.get_layer("output").set_weights([kernel])
    assert translator(["two dogs"]) == [""]
    engine = engine_of(translator, tmp_path)
    batch = [pieces(b"two dogs")]
    (empty,) = engine.translate_batch(batch, beam_size=1, min_decoding_length=0)
    (one,) = engine.translate_batch(batch, beam_size=1)
    assert empty.hypotheses == [[]]
    assert len(one.hypotheses[0]) == 1


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_lora_and_mixed_precision_are_exported_as_float32(tmp_path, tie_embeddings):
    """The factors merged, without rounding to the dtype that the model computes in."""
    options = {"tie_embeddings": tie_embeddings}
    plain = make_translator(**options)
    ks.training.enable_lora(plain.model, 2, alpha=4.0)
    rng = np.random.default_rng(2)
    for weight in plain.model.trainable_weights:
        weight.assign(rng.normal(0, 0.3, weight.shape))
    mixed = make_translator(dtype="mixed_bfloat16", **options)
    ks.training.enable_lora(mixed.model, 2, alpha=4.0)
    mixed.model.set_weights(plain.model.get_weights())
    files = [
        export_translator(translator, tmp_path / name, "ctranslate2") / "model.bin"
        for name, translator in (("plain", plain), ("mixed", mixed))
    ]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert_same(plain, tmp_path / "same", SOURCES)


def test_int8_is_smaller_and_close(tmp_path):
    # Without noise: with it attention is so sharp that it follows every rounding.
    translator = make_translator(scale=0.0, model_dim=64, intermediate_dim=128)
    engine = engine_of(translator, tmp_path, quantization="int8")
    assert engine.compute_type.startswith("int8")
    path = export_translator(translator, tmp_path / "float32", "ctranslate2")
    sizes = [(tmp_path / n / "model.bin").stat().st_size for n in ("model", "float32")]
    assert sizes[0] < 0.4 * sizes[1]
    given = [pieces(b"two dogs")], [pieces(b"a man")]
    # Computed in float32, what is compared is the weights alone: the engine's int8
    # products differ from processor to processor.
    scores = [
        ctranslate2.Translator(str(folder), compute_type="float32").score_batch(*given)
        for folder in (path, tmp_path / "model")
    ]
    exact, rounded = (score[0].log_probs for score in scores)
    np.testing.assert_allclose(rounded, exact, atol=0.1)
    assert rounded != exact


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (attention(score="additive"), "option `score`.*Received: score='additive'"),
        (attention(use_gate=True), "without the option `use_gate`.*use_gate=True"),
        (attention(qk_norm=True), "without the option `qk_norm`.*qk_norm=True"),
        (attention(sliding_window=3), "`sliding_window`.*sliding_window=3"),
        ({"positions": "alibi"}, "relative positions, or none.*positions=AlibiBias"),
        ({"positions": "relative"}, "same table .*Received: 2 tables in the decoder"),
        ({"activation": "elu"}, "an activation of .*Received: activation='elu'"),
        # Keras's operation approximates what its activation of this name computes.
        ({"activation": keras.ops.gelu}, "activation='gelu' of keras.*ops"),
        (
            {"positions": AlternatePositions()},
            "sinusoidal, learned.*positions=AlternatePositions",
        ),
        (
            {"positions": None, **attention(positions=llama3())},
            "without `llama3_scaling` for.*Received: llama3_scaling=.*'factor': 8.0",
        ),
        (
            attention(positions="rotary"),
            "on the embedding or inside.*SinusoidalPositions with RotaryPositions",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused(tmp_path, case, message):
    translator = make_translator(**case)
    with pytest.raises(ValueError, match=f"`model` must .*{message}"):
        export_translator(translator, tmp_path / "model", "ctranslate2")
    assert not list(tmp_path.iterdir())


def test_another_model_is_refused(tmp_path):
    model = ks.models.TranslationRNN(260, model_dim=8, max_length=9)
    translator = ks.Translator(model, ks.text.ByteTokenizer())
    with pytest.raises(ValueError, match="Received: a TranslationRNN"):
        export_translator(translator, tmp_path / "model", "ctranslate2")


def test_a_quantized_model_is_refused(tmp_path):
    translator = make_translator()
    block = translator.model.get_layer("decoder_1")
    block.feed_forward_residual.sublayer.output_dense.quantize("int8")
    with pytest.raises(ValueError, match="not be quantized yet.*Received: layer 'out"):
        export_translator(translator, tmp_path / "model", "ctranslate2")


def test_another_tokenizer_is_refused(tmp_path):
    translator = make_translator()
    translator.target_tokenizer = keras.layers.Identity()
    with pytest.raises(ValueError, match="Received: target_tokenizer of class Iden"):
        export_translator(translator, tmp_path / "model", "ctranslate2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantization": "int4"}, "`quantization` must .*quantization='int4'"),
        ({"max_length": 25}, r"an integer in \[1, 24\]. .*max_length=25"),
        ({"max_length": 0}, "`max_length` must be .*max_length=0"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export_translator(
            make_translator(), tmp_path / "model", "ctranslate2", **options
        )


@pytest.mark.slow
def test_a_trained_model_translates_a_thousand_lines_alike(tmp_path):
    sources, targets = ks.text.load_parallel("phrases", "en", "de")
    sources, targets = list(sources[:4000]), list(targets[:4000])
    tokenizer = ks.text.SentencePieceTokenizer.train(sources + targets, 600)
    batches = ks.text.translation_batches(
        sources, targets, tokenizer, batch_tokens=1024
    )
    model = ks.models.TranslationTransformer(
        tokenizer.vocabulary_size,
        model_dim=64,
        encoder_layers=2,
        decoder_layers=2,
        intermediate_dim=128,
        max_length=48,
    )
    model.compile(keras.optimizers.Adam(2e-3), ks.training.MaskedCrossentropy())
    model.fit(batches, epochs=8, verbose=0)
    translator = ks.Translator(model, tokenizer)
    lines = list(ks.text.load_parallel("phrases", "en", "de", "test")[0])[:1000]
    assert len(lines) == 1000
    engine = engine_of(translator, tmp_path)
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(tmp_path / "model" / "source.spm")
    )
    pieces = processor.encode(lines, out_type=str)
    found = engine.translate_batch(
        pieces, beam_size=1, max_decoding_length=48, max_batch_size=64
    )
    # Those that end by themselves: at this length ours are cut, and the engine's later.
    ended = [
        (line, processor.decode(one.hypotheses[0]))
        for line, given, one in zip(lines, pieces, found, strict=True)
        if len(one.hypotheses[0]) < 2 * len(given) + 10
    ]
    lines, texts = zip(*ended, strict=True)
    assert len(set(texts)) > 500  # it has learned something
    same = sum(map(str.__eq__, translator(list(lines)), texts))
    assert same >= 0.99 * len(texts)
