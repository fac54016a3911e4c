"""T5 and its version 1.1, such as MADLAD, and mT5."""

from typing import Any

import numpy as np

from keras_seqattn.convert.blocks import (
    activation_of,
    fill_attention,
    fill_dense,
    fill_kernel,
    fill_norm,
)
from keras_seqattn.convert.checkpoint import Checkpoint
from keras_seqattn.convert.refusal import refuse
from keras_seqattn.layers import RelativeBias
from keras_seqattn.models import TranslationTransformer

PROJECTIONS = ("q", "k", "v", "o")
SHARED, OUTPUT = "shared.weight", "lm_head.weight"
TABLES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
MT5 = "mt5"


def t5_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns our options for a T5 model, with one relative bias for each stack."""
    option = checkpoint.option
    usual = "gated-gelu" if checkpoint.model_type == MT5 else "relu"
    activation, gated = _feed_forward(option("feed_forward_proj", default=usual))
    # What transformers has derived from that option takes precedence over it.
    activation = option("dense_act_fn", default=activation)
    gated = option("is_gated_act", default=gated)
    dropout = option("dropout_rate", default=0.1)
    encoder_layers, tied = option("num_layers"), _is_tied(checkpoint)
    biases = {
        side: RelativeBias(
            option("relative_attention_num_buckets", default=32),
            option("relative_attention_max_distance", default=128),
            bidirectional=side == "encoder",
            name=f"{side}_positions",
        )
        for side in ("encoder", "decoder")
    }
    return {
        "source_vocabulary_size": option("vocab_size"),
        "model_dim": option("d_model"),
        "num_heads": option("num_heads"),
        "key_dim": option("d_kv"),
        "encoder_layers": encoder_layers,
        "decoder_layers": option("num_decoder_layers", default=encoder_layers),
        "intermediate_dim": option("d_ff"),
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
        "activation": activation_of(activation),
        "gated": gated,
        "positions": None,
        "norm": "rms",
        "epsilon": option("layer_norm_epsilon", default=1e-6),
        "use_bias": False,
        "embedding_scale": 1.0,
        "tie_embeddings": tied,
        "attention": {"score": "dot", "positions": biases["encoder"]},
        "decoder_attention": {"score": "dot", "positions": biases["decoder"]},
        "start_id": option("decoder_start_token_id", "pad_token_id", default=0),
        "end_id": option("eos_token_id", default=1),
        "pad_id": option("pad_token_id", default=0),
    }


def _is_tied(checkpoint):
    """Returns whether output and embedding share a table, as before version 1.1.

    A configuration does not tell: transformers writes that every model is tied.
    """
    table = next(filter(checkpoint.has_tensor, (SHARED, *TABLES)), None)
    if not checkpoint.has_tensor(OUTPUT) or table is None:
        return True
    output, shared = (checkpoint.tensor(name) for name in (OUTPUT, table))
    return output.shape == shared.shape and np.array_equal(output, shared)


def _feed_forward(name):
    """Returns an activation's name, and whether it is gated: "relu", "gated-gelu"."""
    gated, _, activation = name.rpartition("-")
    if gated not in ("", "gated"):
        refuse(
            "have a feed-forward such as 'relu' or 'gated-gelu'",
            f"feed_forward_proj={name!r}",
        )
    # What T5 calls a gated "gelu" is the approximation by tanh.
    is_tanh = gated and activation == "gelu"
    return "gelu_new" if is_tanh else activation, bool(gated)


def fill(checkpoint: Checkpoint, model: TranslationTransformer) -> None:
    """Fills a model with the tensors of a checkpoint."""
    config = model.config
    names = [SHARED, *TABLES, *([OUTPUT] if config.tie_embeddings else [])]
    # If the output has its own table, our source and target have one each.
    sides = ("source",) if config.tie_embeddings else ("source", "target")
    for name in (f"{side}_embedding" for side in sides):
        checkpoint.fill(model.get_layer(name).embeddings, names)
    if not config.tie_embeddings:
        fill_kernel(checkpoint, OUTPUT, model.get_layer("output").kernel)
    for side in ("encoder", "decoder"):
        for depth in range(getattr(config, f"{side}_layers")):
            block = model.get_layer(f"{side}_{depth}")
            _fill_block(checkpoint, f"{side}.block.{depth}", block)
        positions = model.get_layer(f"{side}_0").attention_residual.sublayer.positions
        checkpoint.fill(positions.table, f"{side}.block.0.{BIAS}")
        norm = model.get_layer(f"{side}_norm")
        fill_norm(checkpoint, f"{side}.final_layer_norm", norm)
    if _scales_outputs(checkpoint):  # by a factor that goes into the norm before them
        norm = model.get_layer("decoder_norm")
        norm.scale.assign(norm.scale * config.model_dim**-0.5)
    # Early files have a bias of the cross-attention, which the model never had.
    checkpoint.ignore("EncDecAttention.relative_attention_bias.weight")


def _scales_outputs(checkpoint):
    """Returns whether the decoder's outputs are scaled, as mT5's never are.

    Newer configurations of T5 say it; in older ones it goes with `tie_word_embeddings`.
    """
    names = ("scale_decoder_outputs", "tie_word_embeddings")
    return checkpoint.model_type != MT5 and checkpoint.option(*names, default=True)


def _fill_block(checkpoint, name, block):
    residuals = {"SelfAttention": block.attention_residual}
    if block.cross_residual is not None:
        residuals["EncDecAttention"] = block.cross_residual
    for number, (part, residual) in enumerate(residuals.items()):
        layer = f"{name}.layer.{number}"
        fill_attention(checkpoint, f"{layer}.{part}", residual.sublayer, PROJECTIONS)
        fill_norm(checkpoint, f"{layer}.layer_norm", residual.norm_layer)
    residual, layer = block.feed_forward_residual, f"{name}.layer.{len(residuals)}"
    forward = residual.sublayer
    denses = {"wi_0" if forward.gated else "wi": forward.hidden_dense}
    if forward.gated:
        denses["wi_1"] = forward.gate_dense
    denses["wo"] = forward.output_dense
    for part, dense in denses.items():
        fill_dense(checkpoint, f"{layer}.DenseReluDense.{part}", dense)
    fill_norm(checkpoint, f"{layer}.layer_norm", residual.norm_layer)
