"""The encoder-only model, which predicts masked tokens or classes.

Shapes: B batch, T length, D model_dim, V vocabulary, C classes.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.layers import EncoderBlock, padding_mask
from keras_seqattn.layers.norms import EPSILON
from keras_seqattn.layers.weights.lora import Dense
from keras_seqattn.models import stacks
from keras_seqattn.models.config import TransformerConfig, option, optional_size


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TransformerConfig):
    """The options of `EncoderModel`."""

    vocabulary_size: int = option(arguments.positive_integer)
    num_classes: int | None = option(optional_size, None)
    num_layers: int = option(arguments.positive_integer, 3)
    pooling: str = option(
        functools.partial(arguments.choice, choices=("mean", "first")), "mean"
    )

    def embedding_options(self) -> dict[str, Any]:
        """Returns the arguments of the embedding, which computes no classes."""
        options = super().embedding_options()
        return options if self.num_classes is None else options | {"logits_bias": False}


@keras.saving.register_keras_serializable(package="keras_seqattn")
class EncoderModel(stacks.Configured, keras.Model):
    """Computes logits of a text's masked tokens, or of its classes.

    A functional model: token ids (B, T) -> (B, T, V), or with `num_classes` (B, C).
    Every position attends to all real ones; padding is masked automatically.
    Shapes: B batch, T length, D model_dim, V vocabulary, C num_classes.

    Args:
        vocabulary_size: Number of token ids V.
        num_classes: Number of classes C; None for the logits of the tokens.
        model_dim: Width D of the vectors between blocks.
        num_heads: Number of attention heads per block.
        num_layers: Number of blocks.
        intermediate_dim: Width of the feed-forwards' hidden layers.
        dropout: Fraction dropped of embeddings, of each sublayer's output and of the
            pooled vector that classes are predicted from, while training.
        positions: "sinusoidal" or "learned" (takes `max_length`), added to the
            embedding; "rotary", "alibi" or "relative", inside attention; a layer, which
            has the methods `rotate` and `bias` if it works inside attention; or None.
        tie_embeddings: Whether the embedding's table also computes the logits of
            tokens.
        pooling: What the classes are predicted from: "mean", over real positions, or
            "first", the first position, if each text begins with a token for this.
        key_dim: Width of a head; `model_dim` / `num_heads` when None.
        attention_dropout: Fraction of the attention weights dropped while training.
        activation: Activation of the feed-forwards.
        gated: Whether the feed-forwards are gated.
        norm: "layer" or "rms".
        normalize_first: Pre-norm (True), with a norm after the stack, or post-norm.
        attention: A dict of further `MultiHeadAttention` arguments.
        max_length: Number of learned positions, which is the longest text; None with
            other positions, which have no limit.
        pad_id: The id that fills a batch.
        activation_dropout: Fraction of the feed-forwards' hidden layers dropped while
            training.
        stochastic_depth: Fraction of the samples that skip a sublayer of the last block
            while training; block i of N, counted from 1, has i / N of it.
        share_layers: Whether one block's weights are used at every depth;
            `stochastic_depth` is then the same at every depth.
        epsilon: Number added to the variance of each norm, positive; 1e-5 by default.
            The norms of `qk_norm` have 1e-6.
        use_bias: Whether the projections of attentions and feed-forwards have biases.
        embedding_scale: Factor of the embedding's vectors; sqrt(`model_dim`) when None.
        embedding_norm: Whether a norm follows the embedding.
        logits_bias: Whether the logits of tokens have a bias; those of classes do.
        base_dim: Width at which the learning rate was tuned, to be used at `model_dim`
            by the muP rules; see `learning_rate_factors`. None: muP is off.
        **kwargs: `name`, `dtype`.

    Call arguments:
        inputs: Int32 tensor `(B, T)`.

    Returns:
        Float tensor of logits in the compute dtype: `(B, T, V)`, with the mask of the
        real tokens, or `(B, C)`, without.

    Raises:
        ValueError: If a size is not positive, `num_heads` does not divide `model_dim`
            and `key_dim` is None, positions are rotary and the score is additive, or
            another option is out of range.

    Example:
        >>> import numpy as np
        >>> options = {"model_dim": 16, "intermediate_dim": 32}
        >>> ids = np.array([[5, 7, 2, 0]])
        >>> tuple(EncoderModel(50, **options)(ids).shape)
        (1, 4, 50)
        >>> tuple(EncoderModel(50, num_classes=3, **options)(ids).shape)
        (1, 3)

    Reference:
        Devlin et al. 2019, section 3; `share_layers`: Lan et al. 2020, without their
        factors of the embedding. Differs: by default pre-norm, sinusoidal positions,
        ReLU, embeddings times sqrt(`model_dim`), the mean for `num_classes`, and no
        dropout of attention weights; no layer between the blocks and the logits; no
        segment embedding.
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_classes: int | None = None,
        model_dim: int = 256,
        num_heads: int = 4,
        num_layers: int = 3,
        intermediate_dim: int = 1024,
        dropout: float = 0.1,
        positions: str | keras.layers.Layer | None = "sinusoidal",
        tie_embeddings: bool = True,
        pooling: str = "mean",
        key_dim: int | None = None,
        attention_dropout: float = 0.0,
        activation: str | Callable = "relu",
        gated: bool = False,
        norm: str = "layer",
        normalize_first: bool = True,
        attention: dict[str, Any] | None = None,
        max_length: int | None = None,
        pad_id: int = 0,
        activation_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        share_layers: bool = False,
        epsilon: float = EPSILON,
        use_bias: bool = True,
        embedding_scale: float | None = None,
        embedding_norm: bool = False,
        logits_bias: bool = False,
        base_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        stacks.check_names(EncoderModel, kwargs)
        config = EncoderConfig.of(locals())
        dtype = kwargs.get("dtype")
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        super().__init__(token_ids, _read(token_ids, config, dtype), **kwargs)
        self.configure(config, dtype)
        self.vocabulary_size = config.vocabulary_size
        self.num_classes = config.num_classes
        self.max_length, self.pad_id = config.max_length, config.pad_id


def _read(token_ids: Any, config: EncoderConfig, dtype: Any) -> Any:
    """Makes the layers, and returns the logits that they compute."""
    embedding = stacks.make_embedding(config, dtype)
    stack = stacks.make_stack(EncoderBlock, "encoder", config.num_layers, config, dtype)
    mask = padding_mask(token_ids, config.pad_id)
    x = stack(embedding(token_ids), mask=mask)
    if config.num_classes is not None:
        x = x[:, 0] if config.pooling == "first" else _mean(x, mask)
        x = keras.layers.Dropout(config.dropout, dtype=dtype)(x)
        x = stacks.scaling(config.width_factor, dtype)(x)
        return Dense(config.num_classes, name="classes", dtype=dtype)(x)
    return stacks.Logits(embedding, config, dtype)(x)


def _mean(x, mask):
    """Averages over real positions; the mean of a text without any is 0."""
    weights = ops.cast(mask, "float32")[..., None]
    total = ops.sum(ops.cast(x, "float32") * weights, axis=1)
    count = ops.maximum(ops.sum(weights, axis=1), 1.0)
    return ops.cast(total / count, x.dtype)
