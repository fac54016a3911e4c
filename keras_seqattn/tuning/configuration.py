"""One point of a space: a model's arguments and how it is trained.

Shapes: V vocabulary, D model_dim, H heads, K key_dim, F intermediate_dim.
"""

import dataclasses
import inspect
from typing import Any

from keras_seqattn import arguments, layers, models, training
from keras_seqattn.layers.transformer.residual import NORMS
from keras_seqattn.models.config import POSITIONS_IN_ATTENTION
from keras_seqattn.models.stacks import check_names
from keras_seqattn.models.transformer import TranslationConfig


@dataclasses.dataclass(frozen=True)
class Configuration:
    """The arguments of a `TranslationTransformer`, and those of its training.

    Attributes:
        model: Dict of arguments of `TranslationTransformer`.
        learning_rate: Peak of `InverseSquareRoot`.
        warmup_steps: Steps up to the peak.
        label_smoothing: Share of the target spread over the vocabulary.
        ema_momentum: Share of the running average of the weights kept at a step, or
            None.

    Example:
        >>> chosen = Configuration({"source_vocabulary_size": 50}, 0.001, 100)
        >>> chosen.vocabulary_size
        50
    """

    model: dict
    learning_rate: float
    warmup_steps: int
    label_smoothing: float = 0.0
    ema_momentum: float | None = None

    def __post_init__(self):
        """Checks the arguments."""
        arguments.instance("model", self.model, dict, "a dict")
        arguments.number("learning_rate", self.learning_rate, above=0)
        arguments.positive_integer("warmup_steps", self.warmup_steps)
        arguments.fraction("label_smoothing", self.label_smoothing)
        arguments.fraction("ema_momentum", self.ema_momentum, optional=True)

    @property
    def vocabulary_size(self):
        """Entries of the source's vocabulary."""
        return self.model["source_vocabulary_size"]

    def make_model(self, weights=None):
        """Makes the model, compiled.

        Args:
            weights: Path of a file of its weights, or None.

        Returns:
            A `TranslationTransformer`, whose validation logs the loss, smoothed as in
            training, and `token_crossentropy` and `perplexity`, which are not smoothed.
        """
        arguments.path("weights", weights, optional=True)
        model = models.TranslationTransformer(**self.model)
        if weights is not None:
            model.load_weights(weights)
        averaged = self.ema_momentum is not None
        average = {"ema_momentum": self.ema_momentum} if averaged else {}
        model.compile(
            training.Adam(
                training.InverseSquareRoot(self.learning_rate, self.warmup_steps),
                beta_2=0.98,
                use_ema=averaged,
                **average,
            ),
            training.MaskedCrossentropy(label_smoothing=self.label_smoothing),
            metrics=[training.TokenCrossentropy(), training.Perplexity()],
        )
        return model

    def count_parameters(self):
        """Counts the model's weights without making any: see `count_parameters`."""
        return count_parameters(**self.model)


def count_parameters(**options: Any) -> int:
    """Counts the weights of a `TranslationTransformer` without building it.

    Args:
        **options: Arguments of `TranslationTransformer`; `positions` by name, and no
            `attention`.

    Returns:
        What `count_params` of the model gives.

    Raises:
        ValueError: If an option is unknown or out of range, or has weights that cannot
            be counted.

    Example:
        >>> count_parameters(source_vocabulary_size=100, model_dim=16, num_heads=2,
        ...                  encoder_layers=1, decoder_layers=1, intermediate_dim=32)
        7232
    """
    check_names(models.TranslationTransformer, options)
    config = TranslationConfig.of({"source_vocabulary_size": None, **options})
    arguments.choice("norm", config.norm, NORMS)
    names = ("sinusoidal", "learned", *POSITIONS_IN_ATTENTION)
    arguments.choice("positions", config.positions, names, optional=True)
    if config.positions == "learned" and config.max_length is None:
        raise ValueError(
            "`max_length` must be given for learned positions. "
            "Received: max_length=None."
        )
    if config.attention is not None:
        raise ValueError(
            "`attention` must be None for its weights to be counted. "
            f"Received: attention={config.attention!r}."
        )
    encoder_layers, decoder_layers = config.encoder_layers, config.decoder_layers
    if config.share_layers:
        encoder_layers = decoder_layers = 1
    norm = config.model_dim * (2 if config.norm == "layer" else 1)
    cross = _attention(config) + norm
    own = cross + _relative_bias(config)
    feed_forward = _feed_forward(config) + norm
    final_norms = 2 * norm if config.normalize_first else 0
    return (
        _embeddings(config)
        + encoder_layers * (own + feed_forward)
        + decoder_layers * (own + cross + feed_forward)
        + final_norms
    )


def _embeddings(config: TranslationConfig) -> int:
    """The tables of tokens (V, D) and of learned positions (L, D)."""
    source, target = config.source_vocabulary_size, config.target_vocabulary_size
    tied = config.tie_embeddings
    # Source; target unless it is the source's; the output's unless it is the target's.
    entries = [source]
    if target is not None or not tied:
        entries.append(target or source)
    if config.positions == "learned":
        entries += [config.max_length] * len(entries)
    if not tied:
        entries.append(target or source)
    return config.model_dim * sum(entries)


def _attention(config: TranslationConfig) -> int:
    """Query, key, value and output: kernels (D, H, K) and biases."""
    model_dim, num_heads = config.model_dim, config.num_heads
    width = num_heads * (config.key_dim or model_dim // num_heads)
    return 4 * model_dim * width + 3 * width + model_dim


def _relative_bias(config: TranslationConfig) -> int:
    """The table (buckets, H) of every self-attention."""
    if config.positions != "relative":
        return 0
    buckets = inspect.signature(layers.RelativeBias).parameters["num_buckets"].default
    return buckets * config.num_heads


def _feed_forward(config: TranslationConfig) -> int:
    """Kernels (D, F), twice where it is gated, and (F, D), with biases."""
    model_dim, hidden = config.model_dim, config.intermediate_dim
    entrances = 2 if config.gated else 1
    return entrances * (model_dim + 1) * hidden + (hidden + 1) * model_dim
