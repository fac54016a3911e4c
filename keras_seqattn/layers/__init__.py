"""Serializable Keras layers for attention, positions and Transformer blocks."""

from keras_seqattn.layers.attention import (
    ScaledDotProductAttention,
    attention_scores,
    choose_implementation,
    dot_product_attention,
)
from keras_seqattn.layers.blocks import DecoderBlock, EncoderBlock
from keras_seqattn.layers.feed_forward import FeedForward
from keras_seqattn.layers.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
    window_mask,
)
from keras_seqattn.layers.multi_head import MultiHeadAttention
from keras_seqattn.layers.positions import (
    LearnedPositions,
    PositionalEmbedding,
    SinusoidalPositions,
    sinusoidal_table,
)
from keras_seqattn.layers.residual import Residual

__all__ = [
    "DecoderBlock",
    "EncoderBlock",
    "FeedForward",
    "LearnedPositions",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "Residual",
    "ScaledDotProductAttention",
    "SinusoidalPositions",
    "attention_scores",
    "causal_mask",
    "choose_implementation",
    "combine_masks",
    "dot_product_attention",
    "padding_mask",
    "sinusoidal_table",
    "window_mask",
]
