"""The number of weights of a `TranslationTransformer`, computed from its options.

Shapes: V vocabulary, D model_dim, H heads, K key_dim, F intermediate_dim.
"""

import inspect
from typing import Any

from keras_seqattn import arguments, layers
from keras_seqattn.layers.norms import NORMS
from keras_seqattn.layers.transformer.block import width_of_head
from keras_seqattn.models.config import POSITIONS
from keras_seqattn.models.stacks import check_names
from keras_seqattn.models.transformer import TranslationConfig, TranslationTransformer


def count_parameters(**options: Any) -> int:
    """Counts the weights of a `TranslationTransformer` without building it.

    Args:
        **options: Arguments of `TranslationTransformer`; `positions` by name, and no
            `attention` or `decoder_attention`.

    Returns:
        What `count_params` of the model returns.

    Raises:
        ValueError: If an option is unknown or has weights that cannot be counted, or if
            the model refuses it.

    Example:
        >>> count_parameters(source_vocabulary_size=100, model_dim=16, num_heads=2,
        ...                  encoder_layers=1, decoder_layers=1, intermediate_dim=32)
        7232
    """
    check_names(TranslationTransformer, options)
    config = TranslationConfig.of({"source_vocabulary_size": None, **options})
    arguments.choice("norm", config.norm, NORMS)
    arguments.choice("positions", config.positions, POSITIONS, optional=True)
    if config.positions == "learned" and config.max_length is None:
        raise ValueError(
            "`max_length` must be given for learned positions. "
            "Received: max_length=None."
        )
    for name in ("attention", "decoder_attention"):
        if getattr(config, name) is not None:
            raise ValueError(
                f"`{name}` must be None for its weights to be counted. "
                f"Received: {name}={getattr(config, name)!r}."
            )
    encoder_layers, decoder_layers = config.encoder_layers, config.decoder_layers
    if config.share_layers:
        encoder_layers = decoder_layers = 1
    norm = _norm(config)
    cross = _attention(config) + norm
    self_attention = cross + _relative_bias(config)
    feed_forward = _feed_forward(config) + norm
    final_norms = 2 * norm if config.normalize_first else 0
    return (
        _embeddings(config)
        + encoder_layers * (self_attention + feed_forward)
        + decoder_layers * (self_attention + cross + feed_forward)
        + final_norms
    )


def _norm(config: TranslationConfig) -> int:
    """Counts the scale (D,) of a norm, and the shift of layer norm."""
    return config.model_dim * (2 if config.norm == "layer" else 1)


def _embeddings(config: TranslationConfig) -> int:
    """Counts the tables of tokens (V, D) and of learned positions (L, D).

    The norms of the embeddings and the bias (V,) of the logits are included.
    """
    source, target = config.source_vocabulary_size, config.target_vocabulary_size
    tied = config.tie_embeddings
    # The source's table; the target's unless it shares that; and, added last, the
    # output's unless it shares the target's.
    entries = [source]
    if target is not None or not tied:
        entries.append(target or source)
    norms = len(entries) * _norm(config) if config.embedding_norm else 0
    if config.positions == "learned":
        entries += [config.max_length] * len(entries)
    if not tied:
        entries.append(target or source)
    bias = (target or source) if config.logits_bias else 0
    return config.model_dim * sum(entries) + norms + bias


def _attention(config: TranslationConfig) -> int:
    """Counts kernels (D, H, K) and biases of the query, key, value and output."""
    model_dim, num_heads = config.model_dim, config.num_heads
    head = width_of_head(model_dim, num_heads, config.key_dim)
    if config.positions == "rotary":
        layers.RotaryPositions().build((None, None, head))  # Refuses an odd width.
    width = num_heads * head
    biases = 3 * width + model_dim if config.use_bias else 0
    return 4 * model_dim * width + biases


def _relative_bias(config: TranslationConfig) -> int:
    """Counts the table (buckets, H) of every self-attention."""
    if config.positions != "relative":
        return 0
    buckets = inspect.signature(layers.RelativeBias).parameters["num_buckets"].default
    return buckets * config.num_heads


def _feed_forward(config: TranslationConfig) -> int:
    """Counts the kernels (D, F), two if it is gated, and (F, D), and the biases."""
    model_dim, hidden = config.model_dim, config.intermediate_dim
    entrances = 2 if config.gated else 1
    biases = entrances * hidden + model_dim if config.use_bias else 0
    return (entrances + 1) * model_dim * hidden + biases
