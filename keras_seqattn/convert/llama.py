"""Llama-shaped language models: Llama to 3.3, and Mistral with its window."""

from typing import Any

from keras_seqattn.convert.blocks import (
    activation_of,
    fill_attention,
    fill_dense,
    fill_kernel,
    fill_norm,
)
from keras_seqattn.convert.checkpoint import Checkpoint
from keras_seqattn.convert.refusal import refuse
from keras_seqattn.layers import RotaryPositions
from keras_seqattn.layers.embedding.rotary import LLAMA3_SCALING
from keras_seqattn.models import LanguageModel

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
TABLE, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
# What a configuration of Mistral leaves out is this in transformers.
MISTRAL = {"num_key_value_heads": 8, "sliding_window": 4096}
# The kinds of rotary positions in a configuration that ours can compute.
KINDS = ("default", "linear", "llama3")


def llama_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns our options for a Llama-shaped model."""
    option = checkpoint.option
    num_heads, model_dim = option("num_attention_heads"), option("hidden_size")
    biases = [option(f"{part}_bias", default=False) for part in ("attention", "mlp")]
    groups, window = _groups_and_window(checkpoint)
    attention = {
        "num_key_value_heads": num_heads if groups is None else groups,
        "positions": _rotary(checkpoint),
        "use_bias": biases[0],
    }
    if window is not None:
        attention["sliding_window"] = window
    start_id, end_id = option("bos_token_id"), option("eos_token_id")
    # Few of these models have padding. If SentencePiece numbered the special tokens,
    # id 0 is the unknown one, which occurs in no text; otherwise it is a word.
    unknown_id = 0 if (start_id, end_id) == (1, 2) else None
    ends = end_id if isinstance(end_id, list) else [end_id]
    pad_id = option("pad_token_id", default=unknown_id)
    # Fine-tuned models may use the start or the end token as padding. That cannot work
    # here: the token would be hidden wherever it occurs in a text.
    pad_id = unknown_id if pad_id in (start_id, *ends) else pad_id
    return {
        "vocabulary_size": option("vocab_size"),
        "model_dim": model_dim,
        "num_heads": num_heads,
        "num_layers": option("num_hidden_layers"),
        "key_dim": option("head_dim", default=model_dim // num_heads),
        "intermediate_dim": option("intermediate_size"),
        "dropout": 0.0,
        "attention_dropout": option("attention_dropout", default=0.0),
        "activation": activation_of(option("hidden_act")),
        "gated": True,
        "positions": None,
        "norm": "rms",
        "epsilon": option("rms_norm_eps"),
        "use_bias": biases[1],
        "embedding_scale": 1.0,
        "tie_embeddings": option("tie_word_embeddings", default=False),
        "attention": attention,
        "max_length": option("max_position_embeddings"),
        "start_id": start_id,
        # Of several ends the first is the model's; the rest are `stop_ids` of a search.
        "end_id": ends[0],
        "pad_id": pad_id,
    }


def _groups_and_window(checkpoint):
    """Returns the number of key-value heads and the window, None where there is none.

    For Mistral, to leave one out is not to set it to None.
    """
    names = ("num_key_value_heads", "sliding_window")
    # In transformers, the window in a Llama's configuration has no effect.
    if checkpoint.model_type != "mistral":
        return checkpoint.option(names[0], default=None), None
    usual = {name: MISTRAL[name] for name in names if not checkpoint.has_option(name)}
    return [checkpoint.option(name, default=usual.get(name)) for name in names]


def _rotary(checkpoint):
    given = checkpoint.option("rope_parameters", "rope_scaling", default={})
    kind = given.get("rope_type", given.get("type", "default"))
    if kind not in KINDS:
        refuse(f"have rotary positions of a kind in {KINDS}", f"rope_type={kind!r}")
    base = given.get("rope_theta")
    if base is None:
        base = checkpoint.option("rope_theta", default=10000.0)
    if kind == "llama3":
        length = checkpoint.option("max_position_embeddings")
        llama3 = {"original_max_position_embeddings": length, **given}
        if not {*LLAMA3_SCALING} <= {*llama3}:
            refuse(
                f"have the numbers {LLAMA3_SCALING} of its rotary positions",
                f"rope_parameters={given!r}",
            )
        return RotaryPositions(base=base, llama3_scaling=llama3)
    scaling = given.get("factor") if kind == "linear" else 1.0
    if scaling is None:
        refuse("have the factor of its linear positions", f"rope_parameters={given!r}")
    return RotaryPositions(base=base, scaling=scaling)


def fill(checkpoint: Checkpoint, model: LanguageModel) -> None:
    """Fills a model with the tensors of a checkpoint."""
    config = model.config
    names = [TABLE, OUTPUT] if config.tie_embeddings else [TABLE]
    checkpoint.fill(model.get_layer("embedding").embeddings, names)
    if not config.tie_embeddings:
        fill_kernel(checkpoint, OUTPUT, model.get_layer("output").kernel)
    for depth in range(config.num_layers):
        name, block = f"model.layers.{depth}", model.get_layer(f"decoder_{depth}")
        residual, forward = block.attention_residual, block.feed_forward_residual
        fill_attention(checkpoint, f"{name}.self_attn", residual.sublayer, PROJECTIONS)
        fill_norm(checkpoint, f"{name}.input_layernorm", residual.norm_layer)
        fill_norm(checkpoint, f"{name}.post_attention_layernorm", forward.norm_layer)
        for part, dense in (
            ("gate_proj", forward.sublayer.hidden_dense),
            ("up_proj", forward.sublayer.gate_dense),
            ("down_proj", forward.sublayer.output_dense),
        ):
            fill_dense(checkpoint, f"{name}.mlp.{part}", dense)
    fill_norm(checkpoint, "model.norm", model.get_layer("decoder_norm"))
    checkpoint.ignore("rotary_emb.inv_freq")
