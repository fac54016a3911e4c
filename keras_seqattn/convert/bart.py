"""Marian, M2M-100, NLLB and mBART: one layout of tensors, three kinds of options."""

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
from keras_seqattn.layers import SinusoidalPositions
from keras_seqattn.models import TranslationTransformer

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
SHARED = "model.shared.weight"
SIDES = ("encoder", "decoder")
OUTPUT, BIAS = "lm_head.weight", "final_logits_bias"
# The first position of fairseq's models, which count from the id after padding.
FIRST_POSITION = 2


def marian_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns our options for a Marian model."""
    positions = SinusoidalPositions(layout="halves")
    own = {"positions": positions, "normalize_first": False}
    if not checkpoint.option("share_encoder_decoder_embeddings", default=True):
        own["target_vocabulary_size"] = checkpoint.option("decoder_vocab_size")
    return {**_options(checkpoint), **own}


def m2m_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns our options for an M2M-100 or NLLB model.

    Its slowest sinusoid has a rate of exactly 1 / 10000; ours ends one step above that.
    """
    half = checkpoint.option("d_model") // 2
    positions = SinusoidalPositions(
        base=10000.0 ** (half / (half - 1)),
        layout="halves",
        shift=checkpoint.option("pad_token_id", default=1) + 1,
    )
    options = _options(checkpoint, attention_dropout=0.1, scale_embedding=True)
    return {**options, "positions": positions}


def mbart_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns our options for an mBART model."""
    own = {"positions": "learned", "embedding_norm": True}
    # Its encoder and decoder have separate positions and norms. Ours have these only
    # with separate embedding tables, so its one table is copied to both.
    own["target_vocabulary_size"] = checkpoint.option("vocab_size")
    return {**_options(checkpoint), **own}


def _options(checkpoint, attention_dropout=0.0, scale_embedding=False):
    """Returns the options that the three have in common.

    Rates and `scale_embedding` are transformers' where a configuration leaves them out;
    the arguments are where the three differ.
    """
    option = checkpoint.option
    scaled = option("scale_embedding", default=scale_embedding)
    end_id = option("eos_token_id")
    return {
        "source_vocabulary_size": option("vocab_size"),
        "model_dim": option("d_model"),
        "num_heads": _of_both_sides(checkpoint, "attention_heads"),
        "encoder_layers": option("encoder_layers"),
        "decoder_layers": option("decoder_layers"),
        "intermediate_dim": _of_both_sides(checkpoint, "ffn_dim"),
        "dropout": option("dropout", default=0.1),
        "attention_dropout": option("attention_dropout", default=attention_dropout),
        "activation_dropout": option("activation_dropout", default=0.0),
        "activation": activation_of(option("activation_function")),
        "embedding_scale": None if scaled else 1.0,
        "tie_embeddings": option("tie_word_embeddings", default=True),
        "logits_bias": _has_bias(checkpoint),
        "max_length": option("max_position_embeddings"),
        "start_id": option("decoder_start_token_id", default=end_id),
        "end_id": end_id,
        "pad_id": option("pad_token_id"),
    }


def _of_both_sides(checkpoint, name):
    values = [checkpoint.option(f"{side}_{name}") for side in SIDES]
    if values[0] != values[1]:
        refuse(
            f"have the same {name!r} in encoder and decoder",
            f"encoder_{name}={values[0]}, decoder_{name}={values[1]}",
        )
    return values[0]


def _has_bias(checkpoint):
    """Returns whether the logits have a bias; mBART's, all zeros, does not count."""
    return checkpoint.has_tensor(BIAS) and bool(np.any(checkpoint.tensor(BIAS)))


def fill(checkpoint: Checkpoint, model: TranslationTransformer) -> None:
    """Fills a model with the tensors of a checkpoint."""
    config = model.config
    _fill_embeddings(checkpoint, model)
    for side in SIDES:
        for depth in range(getattr(config, f"{side}_layers")):
            _fill_block(
                checkpoint,
                f"model.{side}.layers.{depth}",
                model.get_layer(f"{side}_{depth}"),
            )
        if config.normalize_first:
            norm = model.get_layer(f"{side}_norm")
            fill_norm(checkpoint, f"model.{side}.layer_norm", norm)
    checkpoint.ignore("embed_positions.weight", "embed_positions.weights")


def _fill_embeddings(checkpoint, model):
    """Fills the tables; a shared one may be in a file under any of its names."""
    config = model.config
    source_names = ["model.encoder.embed_tokens.weight", SHARED]
    target_names = ["model.decoder.embed_tokens.weight", SHARED]
    if config.tie_embeddings:
        target_names.append(OUTPUT)
    # Whether our model has one table; theirs may also have one where ours has two.
    has_one = config.target_vocabulary_size is None and config.tie_embeddings
    if has_one or checkpoint.has_tensor(SHARED):
        source_names = target_names = [*source_names, *target_names]
    sides = {"encoder": ("source_embedding", source_names)}
    if not has_one:
        sides["decoder"] = ("target_embedding", target_names)
    output = model.get_layer("source_embedding" if has_one else "target_embedding")
    for side, (name, names) in sides.items():
        embedding = model.get_layer(name)
        checkpoint.fill(embedding.embeddings, names)
        if config.positions == "learned":
            _fill_positions(checkpoint, side, embedding.positions)
        if embedding.norm_layer is not None:
            norm_name = f"model.{side}.layernorm_embedding"
            fill_norm(checkpoint, norm_name, embedding.norm_layer)
    if not config.tie_embeddings:
        output = model.get_layer("output")
        fill_kernel(checkpoint, OUTPUT, output.kernel)
    if config.logits_bias:
        bias = output.bias_layer.bias if config.tie_embeddings else output.bias
        values = checkpoint.take(BIAS, (1, model.target_vocabulary_size))
        bias.assign(values[0])
    checkpoint.ignore(BIAS)


def _fill_positions(checkpoint, side, positions):
    """Fills learned positions; the checkpoint's table begins with unused rows."""
    length, width = positions.table.shape
    name = f"model.{side}.embed_positions.weight"
    table = checkpoint.take(name, (length + FIRST_POSITION, width))
    positions.table.assign(table[FIRST_POSITION:])


def _fill_block(checkpoint, name, block):
    residuals = {"self_attn": block.attention_residual}
    if block.cross_residual is not None:
        residuals["encoder_attn"] = block.cross_residual
    for part, residual in residuals.items():
        fill_attention(checkpoint, f"{name}.{part}", residual.sublayer, PROJECTIONS)
        fill_norm(checkpoint, f"{name}.{part}_layer_norm", residual.norm_layer)
    residual = block.feed_forward_residual
    fill_dense(checkpoint, f"{name}.fc1", residual.sublayer.hidden_dense)
    fill_dense(checkpoint, f"{name}.fc2", residual.sublayer.output_dense)
    fill_norm(checkpoint, f"{name}.final_layer_norm", residual.norm_layer)
