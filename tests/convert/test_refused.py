"""What is no model of ours is refused, with the reason."""

import json
import pickle
import shutil
import warnings

import numpy as np
import pytest
import torch

import keras_seqattn as ks
from keras_seqattn.convert import bart, llama, t5, translators
from keras_seqattn.convert.checkpoint import Checkpoint
from keras_seqattn.convert.refusal import NotConvertible
from tests.convert import families

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.filterwarnings("ignore:The model needs a target language"),
]

to_model = ks.convert.model_from_huggingface
to_translator = ks.convert.translator_from_huggingface


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folders = {}
    for name in ("marian", "marian_separate", "m2m", "nllb", "mbart", "t5", "llama"):
        folders[name] = tmp_path_factory.mktemp(name)
        getattr(families, name)(folders[name])
    return folders


@pytest.fixture
def copy(originals, tmp_path):
    def copied(name, **changes):
        folder = tmp_path / "copy"
        shutil.copytree(originals[name], folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        return folder

    return copied


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(ValueError, match="`source` must be the folder of a model"):
        to_model(tmp_path)
    with pytest.raises(ValueError, match="`source` must be a path. Received: source=3"):
        to_model(3)
    with pytest.raises(ValueError, match="`folder` must be a path. Received: folder=3"):
        to_translator(3)
    with pytest.raises(ValueError, match="`folder` must be the folder of a model"):
        to_translator(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="must hold 'config.json' as a JSON object"):
        to_model(tmp_path)


def test_an_unknown_architecture(copy):
    with pytest.raises(ValueError, match="one of the types .* model_type='bert'"):
        to_model(copy("marian", model_type="bert"))


def test_a_language_model_does_not_translate(copy):
    with pytest.raises(ValueError, match="that translates, .* model_type='llama'"):
        to_translator(copy("llama"))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("marian", {"decoder_attention_heads": 4}, "same 'attention_heads' in encoder"),
        ("marian", {"activation_function": "mish"}, "activation of .*'mish'"),
        ("marian", {"d_model": None}, "have the option 'd_model' in its config"),
        ("marian", {"decoder_layers": 1}, "without further weights.*one of 26"),
        ("marian", {"decoder_layers": 3}, "hold the tensor 'model.decoder.layers.2"),
        ("t5", {"feed_forward_proj": "double-gelu"}, "feed_forward_proj='double-gelu'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}},
            "'default', 'linear', 'llama3'.*Received: rope_type='yarn'",
        ),
    ],
)
def test_what_we_cannot_express(copy, name, changes, message):
    with pytest.raises(ValueError, match=message):
        to_model(copy(name, **changes))


def test_a_shape_that_does_not_fit(copy):
    message = r"of shape \(32, 16\), as its configuration has it. Received: shape \(24"
    with pytest.raises(ValueError, match=message):
        to_model(copy("marian", encoder_ffn_dim=32, decoder_ffn_dim=32))


def test_a_pickle_in_place_of_safetensors(copy):
    folder = copy("marian")
    weights = folder / "model.safetensors"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    for content in (pickle.dumps({"a": 1}), pointer, b"", b"\x02\0\0\0\0\0\0\0[]"):
        weights.write_bytes(content)
        message = "'model.safetensors', which is something .* a pointer of Git LFS"
        with pytest.raises(ValueError, match=message):
            to_model(folder)
    weights.unlink()
    with pytest.raises(ValueError, match="with 'model.safetensors'.* no such file"):
        to_model(folder)
    torch.save({"weight": torch.ones(1)}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds 'pytorch_model.bin', a pickle, and"):
        to_model(folder)


def test_damaged_safetensors(copy):
    folder = copy("marian")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-5])
    with pytest.raises(ValueError, match="'model.safetensors', which is cut off"):
        to_model(folder)
    weights.write_bytes(content.replace(b'"F32"', b'"I64"', 1))
    with pytest.raises(ValueError, match="a tensor of dtype 'I64'"):
        to_model(folder)


@pytest.mark.parametrize(
    "about",
    [
        3,
        {},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
        {"dtype": "F32", "shape": [1]},
    ],
)
def test_a_header_that_does_not_describe_its_tensors(copy, about):
    folder = copy("marian")
    header = json.dumps({"x": about}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="'model.safetensors', whose header does not"):
        to_model(folder)


@pytest.mark.parametrize(
    "index",
    [
        "{}",
        "[",
        '{"weight_map": []}',
        '{"weight_map": {"x": 1}}',
        '{"weight_map": {"x": "../model.safetensors"}}',
    ],
)
def test_an_index_that_does_not_name_files(copy, index):
    folder = copy("marian")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match="'model.safetensors.index.json', which does"):
        to_model(folder)


LLAMA_3 = {"bos_token_id": 50, "eos_token_id": [51, 52]}


def test_padding_is_not_a_word_of_the_vocabulary(copy):
    """Of Llama 3 the id 0 is "!"."""
    folder = copy("llama", **LLAMA_3)
    with pytest.raises(ValueError, match="`source` must have the option 'pad_token_id"):
        to_model(folder)
    model = to_model(folder, pad_id=53)
    assert (model.start_id, model.end_id, model.pad_id) == (50, 51, 53)


def test_padding_that_the_configuration_has(copy):
    assert to_model(copy("llama", **LLAMA_3, pad_token_id=54)).pad_id == 54


def test_padding_is_the_unknown_token_of_sentencepiece(copy):
    assert to_model(copy("llama")).pad_id == 0


@pytest.mark.parametrize("special", [1, 2])
def test_a_start_or_an_end_is_no_padding(copy, special):
    """Each text has them."""
    assert to_model(copy("llama", pad_token_id=special)).pad_id == 0


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("nllb", {"d_model": "16"}, "TypeError: "),
        ("t5", {"feed_forward_proj": 5, "dense_act_fn": None}, "AttributeError: 'int'"),
        ("llama", {"eos_token_id": []}, "IndexError: "),
        ("llama", {"num_attention_heads": 0}, "ZeroDivisionError: "),
    ],
)
def test_values_of_a_wrong_kind_in_the_configuration(copy, name, changes, message):
    wanted = "`source` must have a valid configuration. Received: "
    with pytest.raises(ValueError, match=wanted + message):
        to_model(copy(name, **changes))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", {"model_type": ["marian"]}, "that translates, .*'marian'"),
        ("vocab.json", {"a": 0, "b": None}, "have a valid tokenizer. Received: TypeE"),
        ("generation_config.json", {"num_beams": "4"}, "valid search .*: TypeError: "),
    ],
)
def test_values_of_a_wrong_kind_in_other_files(copy, name, content, message):
    folder = copy("marian")
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"`folder` must .*{message}"):
        to_translator(folder)


def test_a_vocabulary_that_does_not_fit(copy):
    folder = copy("marian")
    path = folder / "vocab.json"
    vocabulary = json.loads(path.read_text())
    other = {p if p == "<unk>" else f"x{p}": i for p, i in vocabulary.items()}
    path.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="vocabulary of this SentencePiece model"):
        to_translator(folder)
    path.write_text(json.dumps({**vocabulary, "extra": len(vocabulary)}))
    with pytest.raises(ValueError, match="have at most .* pieces in 'vocab.json'"):
        to_translator(folder)
    path.write_text(json.dumps({**vocabulary, "extra": 10**6}))
    with pytest.raises(ValueError, match="have ids from 0 on in 'vocab.json'"):
        to_translator(folder)
    path.unlink()
    with pytest.raises(
        ValueError, match="`folder` must hold 'vocab.json'. Received: '.*copy' w"
    ):
        to_translator(folder)


def test_a_sentencepiece_model_that_is_none(copy):
    folder = copy("marian")
    (folder / "source.spm").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="hold 'source.spm' as a SentencePiece model"):
        to_translator(folder)
    (folder / "source.spm").write_bytes(b"")
    with pytest.raises(ValueError, match="hold 'source.spm' as a SentencePiece model"):
        to_translator(folder)
    (folder / "source.spm").unlink()
    with pytest.raises(ValueError, match="`folder` must hold 'source.spm'. Received"):
        to_translator(folder)


def test_a_tokenizer_of_json_alone(copy):
    folder = copy("t5")
    (folder / "spiece.model").unlink()
    message = "'tokenizer.json', .* not enough: copy .* from the folder of the model"
    with pytest.raises(ValueError, match=message):
        to_translator(folder)


def test_languages(copy):
    folder = copy("nllb")
    with pytest.raises(ValueError, match="`source` must be one of .* source=None"):
        to_translator(folder)
    with pytest.raises(ValueError, match="`target` must be one of .* target='de'"):
        to_translator(folder, source="eng_Latn", target="de")
    (folder / "special_tokens_map.json").unlink()
    with pytest.raises(ValueError, match="languages as 'additional_special_tokens'"):
        to_translator(folder, source="eng_Latn", target="deu_Latn")


@pytest.mark.parametrize("options", [{}, {"source": "en_XX", "target": "xx"}])
def test_languages_are_checked_before_the_weights_are_read(copy, options, monkeypatch):
    monkeypatch.setattr(translators, "make_model", None)
    with pytest.raises(ValueError, match="must be one of .*'en_XX'"):
        to_translator(copy("mbart"), **options)


def test_several_targets_of_marian_of_which_none_is_chosen(copy):
    folder = copy("marian")
    message = r"`target` is None. Choose one of 'deu', 'fra'. In a line, '>>deu<<' is"
    with pytest.warns(UserWarning, match=message) as caught:
        to_translator(folder)
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize(
    ("name", "languages"),
    [("t5", {}), ("m2m", {"source": "en", "target": "de"}), ("marian_separate", {})],
)
def test_added_tokens_that_are_left_out(copy, name, languages):
    folder = copy(name)
    kept = {"<pad>": 1, "</s>": 0, "<extra_id_0>": 55, "<mask>": 56}
    (folder / "added_tokens.json").write_text(json.dumps(kept))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Tokens that were added")
        to_translator(folder, **languages)
    for file, content in (
        ("added_tokens.json", {**kept, "<x>": 57}),
        ("tokenizer.json", {"added_tokens": [{"id": 57, "content": "<x>"}]}),
    ):
        (folder / "added_tokens.json").write_text("{}")
        (folder / file).write_text(json.dumps(content))
        with pytest.warns(
            UserWarning, match="are left out: '<x>'. In a line"
        ) as caught:
            to_translator(folder, **languages)
        assert caught[-1].filename == __file__


def test_marian_has_one_source_and_known_targets(copy):
    folder = copy("marian")
    with pytest.raises(ValueError, match="`source` must be None for a Marian model"):
        to_translator(folder, source="en")
    with pytest.raises(ValueError, match="`target` must be one of .* target='xyz'"):
        to_translator(folder, target="xyz")
    path = folder / "vocab.json"
    path.write_text(path.read_text().replace(">>", "tag ").replace("<<", ""))
    with pytest.raises(ValueError, match="`target` must be None for a Marian.*='deu'"):
        to_translator(folder, target="deu")


@pytest.mark.parametrize(
    ("name", "about", "message"),
    [
        ("nllb", {"legacy_behaviour": True}, "before the text.*legacy_behaviour=true"),
        ("m2m", {"language_codes": "wmt21"}, "languages of M2M-100.*codes='wmt21'"),
        ("m2m", {"tokenizer_class": "SMALL100"}, "tokenizer_class='SMALL100'"),
    ],
)
def test_tokenizers_with_tags_elsewhere(copy, name, about, message):
    folder = copy(name)
    path = folder / "tokenizer_config.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **about}))
    with pytest.raises(ValueError, match=f"`folder` must have the .*{message}"):
        to_translator(folder, source="en", target="de")


def test_a_vocabulary_without_an_unknown_token(copy):
    folder = copy("marian")
    path = folder / "vocab.json"
    path.write_text(path.read_text().replace('"<unk>"', '"<other>"'))
    with pytest.raises(ValueError, match="`folder` must have a token '<unk>' in its"):
        to_translator(folder)


def test_the_tokenizer_of_mbart_25(copy):
    folder = copy("mbart")
    about = {"tokenizer_class": "MBartTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="have the tokenizer of mBART-50, with"):
        to_translator(folder, source="en_XX", target="de_DE")


def checkpoint(config, *tensors):
    """A checkpoint whose tensors are of one number each, as their names are given."""
    return Checkpoint(config, {name: np.array([number]) for name, number in tensors})


def test_the_output_of_t5_may_have_a_table_of_its_own():
    """MADLAD's files call the embedding's table by that of the decoder alone."""
    for table in (t5.SHARED, *t5.TABLES):
        for number in (1.0, 2.0):
            given = checkpoint({}, (table, 1.0), (t5.OUTPUT, number))
            assert t5._is_tied(given) == (number == 1.0)
    assert t5._is_tied(checkpoint({}, (t5.SHARED, 1.0)))


def test_tensors_that_should_be_one_and_differ():
    given = checkpoint({}, ("a", 1.0), ("b", 2.0), ("c", 1.0))
    assert given.take(["a", "c", "d"], (1,)) == [1.0]
    with pytest.raises(NotConvertible, match="share 'a' and 'b'.*tensors that differ"):
        given.take(["a", "b"], (1,))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"feed_forward_proj": "relu"}, (1.0, False)),
        ({"feed_forward_proj": "gated-gelu"}, (0.841192, True)),  # by tanh
        ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, (0.841345, True)),
        ({"feed_forward_proj": "relu", "is_gated_act": True}, (1.0, True)),
    ],
)
def test_the_activation_of_t5_is_that_which_transformers_takes(options, expected):
    sizes = {"num_layers": 1, "vocab_size": 9, "d_model": 4, "num_heads": 1}
    given = {**sizes, "d_kv": 4, "d_ff": 8, **options}
    found = t5.t5_options(checkpoint(given))
    of_one = float(found["activation"](np.ones((), "float32")))
    assert (round(of_one, 6), found["gated"]) == expected


LLAMA = {
    **{"num_attention_heads": 2, "hidden_size": 8, "vocab_size": 30},
    **{"num_hidden_layers": 1, "intermediate_size": 8, "hidden_act": "silu"},
    **{"rms_norm_eps": 1e-5, "max_position_embeddings": 64, "bos_token_id": 1},
    **{"eos_token_id": 2, "sliding_window": 4, "model_type": "llama"},
}


@pytest.mark.parametrize(
    ("given", "scaling"),
    [
        ({"rope_type": "default", "factor": 2.0}, 1.0),
        ({"rope_type": "linear", "factor": 2.0}, 2.0),
        ({"rope_type": "linear"}, None),
    ],
)
def test_the_factor_of_rotary_positions_is_that_of_linear_ones(given, scaling):
    given = checkpoint({**LLAMA, "rope_parameters": {**given, "rope_theta": 10.0}})
    if scaling is None:
        with pytest.raises(NotConvertible, match="have the factor of its linear pos"):
            llama.llama_options(given)
    else:
        positions = llama.llama_options(given)["attention"]["positions"]
        assert positions.scaling == scaling


def test_the_numbers_of_llama_3_may_leave_out_the_original_length():
    """It is the model's, as in transformers."""
    rotary = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    config = {**LLAMA, "rope_theta": 10.0, "rope_scaling": rotary}
    with pytest.raises(NotConvertible, match="have the numbers .*of its rotary"):
        llama.llama_options(checkpoint(config))
    rotary["high_freq_factor"] = 4.0
    positions = llama.llama_options(checkpoint(config))["attention"]["positions"]
    assert positions.base == 10.0
    assert positions.llama3_scaling["original_max_position_embeddings"] == 64


@pytest.mark.parametrize("end_id", [2, [2, 5]])
def test_an_end_is_no_padding(end_id):
    config = {**LLAMA, "eos_token_id": end_id, "pad_token_id": 2}
    options = llama.llama_options(checkpoint(config))
    assert options["end_id"] == 2
    assert options["pad_id"] == (0 if end_id == 2 else None)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_window_is_that_of_mistral(kind):
    options = llama.llama_options(checkpoint({**LLAMA, "model_type": kind}))
    assert ("sliding_window" in options["attention"]) == (kind == "mistral")


def test_what_a_configuration_leaves_out_is_as_in_transformers():
    sides = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": 8 for side in ("encoder", "decoder")}
    sides |= {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 9}
    sizes = {**sides, "vocab_size": 9, "d_model": 4, "num_layers": 1, "num_heads": 1}
    special = {"eos_token_id": 2, "pad_token_id": 1, "activation_function": "relu"}
    given = checkpoint({**sizes, **special, "d_kv": 4, "d_ff": 8})
    wanted = {"marian": (0.1, 0.0), "m2m": (0.1, 0.1), "mbart": (0.1, 0.0)}
    wanted["t5"] = (0.1, 0.1)
    for name, rates in wanted.items():
        module = t5 if name == "t5" else bart
        found = getattr(module, f"{name}_options")(given)
        assert (found["dropout"], found["attention_dropout"]) == rates
        is_scaled = found["embedding_scale"] is None
        assert is_scaled == (name == "m2m")


def test_rates_are_those_of_the_configuration():
    rates = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
    hub = families.transformers
    for read, config, expected in (
        (bart.marian_options, hub.MarianConfig(**rates), rates),
        (t5.t5_options, hub.T5Config(dropout_rate=0.3), dict.fromkeys(rates, 0.3)),
        (llama.llama_options, hub.LlamaConfig(attention_dropout=0.2), {}),
    ):
        found = read(checkpoint(config.to_dict()))
        expected = {"attention_dropout": 0.2, **expected}
        assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "groups", "window"),
    [
        ({}, 8, 4096),
        ({"sliding_window": None, "num_key_value_heads": None}, 16, None),
        ({"sliding_window": 4, "num_key_value_heads": 2}, 2, 4),
    ],
)
def test_mistral_has_a_window_unless_it_is_none(given, groups, window):
    config = {k: v for k, v in LLAMA.items() if k != "sliding_window"}
    config |= {
        "model_type": "mistral",
        "hidden_size": 64,
        "num_attention_heads": 16,
        **given,
    }
    found = llama.llama_options(checkpoint(config))["attention"]
    assert found["num_key_value_heads"] == groups
    assert found.get("sliding_window") == window


def special(*tokens):
    listed = {str(i): {"content": x, "special": True} for i, x in tokens}
    return {"added_tokens_decoder": listed}


@pytest.mark.parametrize(
    ("listed", "about", "added", "expected"),
    [
        # None is hidden by one that was added, and each has its own id.
        (
            ["grt_Latn"],
            special((50, "en_XX"), (51, "ar_AR"), (52, "<mask>"), (53, "grt_Latn")),
            {},
            {"grt_Latn": 53, "en_XX": 50, "ar_AR": 51},
        ),
        # Other tokens are no languages, and both files have ids.
        (
            ["[NE]", "en_XX", "ar_AR", "grt_Latn"],
            special((54, "[NE]"), (55, "dog")) | {"tokenizer_class": "x"},
            {"grt_Latn": 53, "<mask>": 52},
            {"en_XX": 50, "ar_AR": 51, "grt_Latn": 53},
        ),
        # Too few of the trained model's languages: which ids have they?
        (["grt_Latn", "en_XX", "hi_IN"], {}, {"grt_Latn": 60}, "first those of"),
        # The others are counted without it.
        (
            ["xx_XX", "ar_AR", "en_XX"],
            {},
            {"xx_XX": 53, "<mask>": 52},
            {"xx_XX": 53, "ar_AR": 50, "en_XX": 51},
        ),
        (["en_XX", "ar_AR"], special((50, "ar_AR")), {}, {"en_XX": 51, "ar_AR": 50}),
        # Without English, all ids must be known.
        (["ar_AR"], special((50, "ar_AR")), {}, {"ar_AR": 50}),
        (["grt_Latn"], {}, {"grt_Latn": 53}, "first those of .*a folder with 'grt_Lat"),
        (["grt_Latn"], {}, {}, "first those of .*a folder with 'grt_Latn'"),
        ([], {}, {}, "hold the languages .*a folder with none"),
    ],
)
def test_languages_have_their_own_ids(tmp_path, listed, about, added, expected):
    for name, content in (
        ("special_tokens_map.json", {"additional_special_tokens": listed}),
        ("tokenizer_config.json", about),
        ("added_tokens.json", added),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    if isinstance(expected, str):
        with pytest.raises(NotConvertible, match=expected):
            translators._language_ids(tmp_path, 50)
    else:
        assert translators._language_ids(tmp_path, 50) == expected
