"""Small random models of transformers, as folders with tokenizers of sentencepiece."""

import io
import json
import random

import numpy as np
import sentencepiece
import torch
import transformers
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

LINES = ["a man in a blue shirt sings", "two dogs run in a park", "Hello, World!"]
LINES += ["ein Mann im blauen Hemd singt", "zwei Hunde rennen im Park", "Über 12 Äpfel"]
WORDS = sorted({word for line in LINES for word in line.split()})
NLLB = ["eng_Latn", "deu_Latn", "fra_Latn"]
MBART = ["ar_AR", "de_DE", "en_XX"]
SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
}
T5_SIZES = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 2, "num_heads": 3}
LLAMA_SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def sentences(number):
    """Draws lines of known words, and some of unknown characters and spaces."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(number)]
    odd = ["", "  two  dogs ", "日本 run", "e\u0301 ﬁne", "x" * 30, "\ttab", "naïve"]
    return [*lines[: max(0, number - len(odd))], *odd][:number]


def make_spm(**options):
    """Trains a SentencePiece model; returns its bytes."""
    model = io.BytesIO()
    options = {"vocab_size": 80, "model_type": "unigram", **options}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 40),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def pieces_of(spm):
    """Returns the pieces of a SentencePiece model by number."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def set_options(path, **options):
    """Sets options of a JSON file, which it makes if there is none."""
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **options}))


def drawn(model_class, config):
    """Makes a model of the same weights each time, on every backend of Keras."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return model_class(config)


def noise(model, scale=0.2):
    """Fills a model with noise, its bias of the logits too; returns it."""
    generator = torch.Generator().manual_seed(0)
    values = [p for p in model.parameters() if p.requires_grad]
    values += [x for name, x in model.named_buffers() if name == "final_logits_bias"]
    with torch.no_grad():
        for value in values:
            value += torch.randn(value.shape, generator=generator) * scale
    return model.eval()


def marian(folder=None, separate=False, tags=(">>deu<<", ">>fra<<")):
    """Makes a Marian model of two SentencePiece models and one vocabulary, or two."""
    spms = [make_spm(), make_spm(vocab_size=60)]
    sides = [pieces_of(spm)[3:] for spm in spms]
    shared = [*sides[0], *(x for x in sides[1] if x not in sides[0])]
    made = [
        {x: i for i, x in enumerate(["</s>", "<unk>", *tags, *part, "<pad>"])}
        for part in (sides if separate else [shared])
    ]
    pad_id = len(made[0]) - 1
    options = {}
    if separate:
        # Padding has one id for both sides.
        for piece in [f"spare{i}" for i in range(len(made[0]) - len(made[1]))]:
            made[1][piece] = len(made[1]) - 1
        made[1]["<pad>"] = pad_id
        options = {
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": len(made[1]),
            "tie_word_embeddings": False,
        }
    config = transformers.MarianConfig(
        vocab_size=len(made[0]),
        pad_token_id=pad_id,
        decoder_start_token_id=pad_id,
        eos_token_id=0,
        scale_embedding=True,
        activation_function="swish",
        **{**SIZES, "encoder_layers": 1},
        **options,
    )
    model = noise(drawn(transformers.MarianMTModel, config))
    # CTranslate2 leaves padding out of its softmax, ours has it there.
    model.final_logits_bias[0, pad_id] = -100.0
    if folder is not None:
        model.save_pretrained(folder)
        (folder / "vocab.json").write_text(json.dumps(made[0]))
        if separate:
            (folder / "target_vocab.json").write_text(json.dumps(made[1]))
        for side, spm in zip(("source", "target"), spms, strict=True):
            (folder / f"{side}.spm").write_bytes(spm)
    return model


def m2m(folder=None):
    """Makes an M2M-100 model."""
    spm = make_spm()
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces_of(spm)[3:]]
    config = transformers.M2M100Config(
        vocab_size=len(pieces) + 100 + 8, scale_embedding=True, **SIZES
    )
    model = noise(drawn(transformers.M2M100ForConditionalGeneration, config))
    if folder is not None:
        model.save_pretrained(folder)
        (folder / "sentencepiece.bpe.model").write_bytes(spm)
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return model


def _fairseq(folder, model_type, languages, about):
    """Makes a model whose folder holds `about` in its files, as published."""
    spm = make_spm()
    size = len(pieces_of(spm)) + 1 + len(languages) + 1
    if model_type == "mbart":
        config = transformers.MBartConfig(
            vocab_size=size, decoder_start_token_id=2, scale_embedding=True, **SIZES
        )
        model = noise(drawn(transformers.MBartForConditionalGeneration, config))
    else:
        config = transformers.M2M100Config(
            vocab_size=size, scale_embedding=True, **SIZES
        )
        model = noise(drawn(transformers.M2M100ForConditionalGeneration, config))
    if folder is not None:
        model.save_pretrained(folder)
        (folder / "sentencepiece.bpe.model").write_bytes(spm)
        for name, options in about.items():
            set_options(folder / name, **options)
        special = {"additional_special_tokens": languages}
        (folder / "special_tokens_map.json").write_text(json.dumps(special))
    return model


def nllb(folder=None):
    """Makes an NLLB model, which has M2M-100's architecture."""
    about = {"tokenizer_config.json": {"tokenizer_class": "NllbTokenizer"}}
    return _fairseq(folder, "m2m_100", NLLB, about)


def mbart(folder=None):
    """Makes an mBART-50 model."""
    about = {
        "config.json": {"tokenizer_class": "MBart50Tokenizer"},
        "tokenizer_config.json": {"language_codes": "ML50"},
    }
    return _fairseq(folder, "mbart", MBART, about)


T5_CLASSES = {
    "t5": (transformers.T5Config, transformers.T5ForConditionalGeneration),
    "mt5": (transformers.MT5Config, transformers.MT5ForConditionalGeneration),
}


def _t5(folder, tied=True, multilingual=False, **options):
    spm = make_spm(
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=["<2de>"]
    )
    options = {**T5_SIZES, "decoder_start_token_id": 0, **options}
    config_class, model_class = T5_CLASSES["mt5" if multilingual else "t5"]
    config = config_class(vocab_size=len(pieces_of(spm)) + 10, **options)
    model = drawn(model_class, config)
    if not tied:
        # transformers ties all that it makes, and none that it loads untied.
        table = torch.zeros_like(model.shared.weight)
        model.lm_head.weight = torch.nn.Parameter(table)
        config.tie_word_embeddings = False
    noise(model, scale=0.1)
    if folder is not None:
        model.save_pretrained(folder)
        (folder / "spiece.model").write_bytes(spm)
    return model


def t5(folder=None, **options):
    """Makes a T5 model, whose output has the embedding's table."""
    return _t5(folder, **options)


def t5_v11(folder=None):
    """Makes a T5 model of version 1.1."""
    options = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    return _t5(folder, tied=False, **options)


def mt5(folder=None):
    """Makes an mT5 model, whose configuration leaves out what is usual for mT5."""
    model = _t5(folder, tied=False, multilingual=True)
    model.config.tie_word_embeddings = True  # as transformers 5 has it for all
    if folder is not None:
        usual = ("feed_forward_proj", "dense_act_fn", "is_gated_act")
        left_out = dict.fromkeys(usual)
        set_options(folder / "config.json", tie_word_embeddings=True, **left_out)
    return model


def llama(folder=None, **options):
    """Makes a Llama model."""
    config = transformers.LlamaConfig(vocab_size=60, **LLAMA_SIZES, **options)
    model = noise(drawn(transformers.LlamaForCausalLM, config))
    if folder is not None:
        model.save_pretrained(folder)
    return model


def llama3(folder=None):
    """Makes a model shaped as Llama 3.2's: one table, and angles of all three kinds."""
    rotary = {
        "rope_type": "llama3",
        "rope_theta": 100.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = transformers.LlamaConfig(
        vocab_size=60,
        tie_word_embeddings=True,
        head_dim=8,
        rope_parameters=rotary,
        **LLAMA_SIZES,
    )
    model = noise(drawn(transformers.LlamaForCausalLM, config))
    if folder is not None:
        model.save_pretrained(folder)
    return model


def mistral(folder=None):
    """Makes a Mistral model, with a window and a width of heads of its own."""
    config = transformers.MistralConfig(
        vocab_size=60, sliding_window=4, head_dim=6, **LLAMA_SIZES
    )
    model = noise(drawn(transformers.MistralForCausalLM, config))
    if folder is not None:
        model.save_pretrained(folder)
    return model


def marian_separate(folder=None):
    """Makes a Marian model of two vocabularies."""
    return marian(folder, separate=True)


TRANSLATORS = {
    "marian": (marian, {}),
    "marian_tag": (marian, {"target": "deu"}),
    "marian_separate": (marian_separate, {}),
    "m2m": (m2m, {"source": "en", "target": "de"}),
    "nllb": (nllb, {"source": "eng_Latn", "target": "deu_Latn"}),
    "mbart": (mbart, {"source": "en_XX", "target": "de_DE"}),
    "t5": (t5, {"target": "<2de> "}),
    "t5_v11": (t5_v11, {}),
    "mt5": (mt5, {}),
}
LANGUAGE_MODELS = {"llama": llama, "llama3": llama3, "mistral": mistral}


def random_ids(model, number, seed=0):
    """Draws sources `(N, S)`, padded, each with its end."""
    rng = np.random.default_rng(seed)
    config = model.config
    special = {config.pad_token_id, config.eos_token_id, config.decoder_start_token_id}
    words = [token for token in range(config.vocab_size) if token not in special]
    ids = np.full((number, 12), config.pad_token_id, "int32")
    for row in ids:
        length = rng.integers(1, 11)
        row[:length] = rng.choice(words, length)
        row[length] = config.eos_token_id
    return ids


def start_of(config):
    """Returns the id that targets start with."""
    start = config.decoder_start_token_id
    return config.eos_token_id if start is None else start


def generated(model, ids, beams, max_length, prefix=None):
    """Returns what transformers generates for sources, a list of lists of ids."""
    config = model.config
    start = start_of(config)
    never = {config.pad_token_id, start} - {config.eos_token_id}
    ids = torch.tensor(ids)
    found = model.generate(
        input_ids=ids,
        attention_mask=(ids != config.pad_token_id).long(),
        num_beams=beams,
        do_sample=False,
        max_new_tokens=max_length,
        suppress_tokens=sorted(never) or None,
        decoder_start_token_id=start,
        forced_bos_token_id=prefix,
        early_stopping="never",
    )
    return [ended(row, config) for row in found[:, 1:].tolist()]


def ended(row, config):
    """Returns the ids before a sentence's end."""
    ends = (config.eos_token_id, config.pad_token_id)
    length = next((i for i, x in enumerate(row) if x in ends), len(row))
    return row[:length]
