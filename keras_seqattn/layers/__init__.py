"""Serializable Keras layers for attention, positions and Transformer blocks."""

from keras_seqattn.layers.additive import (
    AdditiveAttention,
    additive_attention,
    additive_scores,
)
from keras_seqattn.layers.attention import (
    attention_scores,
    choose_implementation,
    dot_product_attention,
)
from keras_seqattn.layers.blocks import EncoderBlock
from keras_seqattn.layers.cached import initial_ancestry, mark_ancestry
from keras_seqattn.layers.decoder_block import DecoderBlock
from keras_seqattn.layers.distances import DistanceBias
from keras_seqattn.layers.feed_forward import FeedForward
from keras_seqattn.layers.logits import TokenLogits
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
from keras_seqattn.layers.recurrent import RecurrentCell, RecurrentEncoder
from keras_seqattn.layers.recurrent_decoder import AttentiveRecurrentDecoder
from keras_seqattn.layers.relative import AlibiBias, RelativeBias
from keras_seqattn.layers.residual import Residual
from keras_seqattn.layers.rotary import RotaryPositions
from keras_seqattn.layers.scaled_dot import ScaledDotProductAttention
from keras_seqattn.layers.segment import SegmentMemory

__all__ = [
    "AdditiveAttention",
    "AlibiBias",
    "AttentiveRecurrentDecoder",
    "DecoderBlock",
    "DistanceBias",
    "EncoderBlock",
    "FeedForward",
    "LearnedPositions",
    "MultiHeadAttention",
    "PositionalEmbedding",
    "RecurrentCell",
    "RecurrentEncoder",
    "RelativeBias",
    "Residual",
    "RotaryPositions",
    "ScaledDotProductAttention",
    "SegmentMemory",
    "SinusoidalPositions",
    "TokenLogits",
    "additive_attention",
    "additive_scores",
    "attention_scores",
    "causal_mask",
    "choose_implementation",
    "combine_masks",
    "dot_product_attention",
    "initial_ancestry",
    "mark_ancestry",
    "padding_mask",
    "sinusoidal_table",
    "window_mask",
]
