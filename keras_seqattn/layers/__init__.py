"""Serializable Keras layers for attention, positions and Transformer blocks."""

from keras_seqattn.layers.attention.additive import (
    AdditiveAttention,
    additive_attention,
    additive_scores,
)
from keras_seqattn.layers.attention.functional import (
    attention_scores,
    choose_implementation,
    dot_product_attention,
)
from keras_seqattn.layers.attention.kv_cache import initial_ancestry, mark_ancestry
from keras_seqattn.layers.attention.masks import (
    causal_mask,
    combine_masks,
    padding_mask,
    window_mask,
)
from keras_seqattn.layers.attention.multi_head import MultiHeadAttention
from keras_seqattn.layers.attention.scaled_dot import ScaledDotProductAttention
from keras_seqattn.layers.distances import DistanceBias
from keras_seqattn.layers.embedding.learned import LearnedPositions
from keras_seqattn.layers.embedding.logits import TokenLogits
from keras_seqattn.layers.embedding.positional_embedding import PositionalEmbedding
from keras_seqattn.layers.embedding.relative import AlibiBias, RelativeBias
from keras_seqattn.layers.embedding.rotary import RotaryPositions
from keras_seqattn.layers.embedding.sinusoidal import (
    SinusoidalPositions,
    sinusoidal_table,
)
from keras_seqattn.layers.recurrent.attentive_decoder import AttentiveRecurrentDecoder
from keras_seqattn.layers.recurrent.cell import RecurrentCell
from keras_seqattn.layers.recurrent.encoder import RecurrentEncoder
from keras_seqattn.layers.recurrent.segment_memory import SegmentMemory
from keras_seqattn.layers.transformer.decoder_block import DecoderBlock
from keras_seqattn.layers.transformer.encoder_block import EncoderBlock
from keras_seqattn.layers.transformer.feed_forward import FeedForward
from keras_seqattn.layers.transformer.residual import Residual
from keras_seqattn.layers.transformer.stack import TransformerStack

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
    "TransformerStack",
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
