"""The options of models, each on one line with its type, its default and its check.

The docstring of a model says what its options mean. An option without a check here is
checked by the one layer that takes it.

Shapes: D model_dim, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

from keras_seqattn import arguments
from keras_seqattn.layers.embedding import relative
from keras_seqattn.layers.embedding.rotary import RotaryPositions
from keras_seqattn.layers.norms import EPSILON
from keras_seqattn.layers.transformer.block import checked_attention

# Names of positions that are applied inside attention, not added to the embedding.
POSITIONS_IN_ATTENTION = tuple(relative.LAYERS)
POSITIONS = ("sinusoidal", "learned", *POSITIONS_IN_ATTENTION)  # of all kinds


def option(check: Callable[[str, Any], Any], default: Any = dataclasses.MISSING) -> Any:
    """Returns a field of a `Config`; without a default it must be given.

    `check` is called with the option's name and value. It returns the value as plain
    Python or raises a `ValueError`.
    """
    return dataclasses.field(default=default, metadata={"check": check})


def optional_size(name: str, value: Any) -> int | None:
    """Returns `value` if it is a positive integer or None."""
    return arguments.positive_integer(name, value, optional=True)


def attention_option(name: str, value: Any) -> dict[str, Any] | None:
    """Returns `value` if it is a dict of arguments of an attention layer, or None."""
    arguments.instance(name, value, dict, "a dict", optional=True)
    return checked_attention(name, value)


def _activation(name: str, value: Any) -> Any:
    arguments.keras_object(name, value)
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """The checked arguments of a constructor; its fields are the options.

    Raises:
        ValueError: If an option is out of range.
    """

    def __post_init__(self) -> None:
        """Checks each option, and stores it as plain Python."""
        for name, check in self.checks().items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        options = self.options()
        sizes = [options[name] for name in options if name.endswith("vocabulary_size")]
        smallest = min((size for size in sizes if size is not None), default=None)
        for name in ("start_id", "end_id", "pad_id", "zero_id"):
            if name in options and smallest is not None:
                token_id = arguments.integer(
                    name, options[name], 0, smallest - 1, optional=name == "zero_id"
                )
                object.__setattr__(self, name, token_id)
        if "pad_id" in options and options["pad_id"] == options.get("end_id"):
            raise ValueError(
                "`pad_id` must be a token other than the end, `end_id`, which would be "
                f"hidden as padding. Received: pad_id={options['pad_id']!r}."
            )
        zero_id = options.get("zero_id")
        if zero_id is not None and zero_id == options.get("pad_id"):
            raise ValueError(
                "`zero_id` must be a token other than padding, `pad_id`. "
                f"Received: zero_id={options['zero_id']!r}."
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Returns the configuration of a constructor's arguments, such as `locals()`.

        Names that are not options are ignored.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: given[name] for name in names if name in given})

    @classmethod
    def checks(cls) -> dict[str, Callable[[str, Any], Any]]:
        """Returns the check of each option that has one."""
        fields = dataclasses.fields(cls)
        return {
            field.name: field.metadata["check"] for field in fields if field.metadata
        }

    def options(self) -> dict[str, Any]:
        """Returns the options by name."""
        names = [field.name for field in dataclasses.fields(self)]
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(Config):
    """The options that a model passes to each of its blocks under the same name."""

    num_heads: int = option(arguments.positive_integer, 4)
    intermediate_dim: int = option(arguments.positive_integer, 1024)
    dropout: float = option(arguments.fraction, 0.1)
    key_dim: int | None = option(optional_size, None)
    attention_dropout: float = option(arguments.fraction, 0.0)
    activation: Any = option(_activation, "relu")
    gated: bool = option(arguments.boolean, False)
    norm: str = "layer"
    normalize_first: bool = option(arguments.boolean, True)
    attention: dict[str, Any] | None = option(attention_option, None)
    activation_dropout: float = option(arguments.fraction, 0.0)
    epsilon: float = option(functools.partial(arguments.number, above=0.0), EPSILON)
    use_bias: bool = option(arguments.boolean, True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(BlockConfig):
    """The options that all Transformer models have in common."""

    model_dim: int = option(arguments.positive_integer, 256)
    positions: Any = "sinusoidal"
    tie_embeddings: bool = option(arguments.boolean, True)
    max_length: int | None = option(optional_size, None)
    pad_id: int = 0
    stochastic_depth: float = option(arguments.fraction, 0.0)
    share_layers: bool = option(arguments.boolean, False)
    embedding_scale: float | None = option(
        functools.partial(arguments.number, above=0.0, optional=True), None
    )
    embedding_norm: bool = option(arguments.boolean, False)
    logits_bias: bool = option(arguments.boolean, False)
    base_dim: int | None = option(optional_size, None)

    def __post_init__(self) -> None:
        """Checks the options, and refuses rotary positions with the additive score."""
        super().__post_init__()
        if isinstance(self.positions, str) and self.positions not in POSITIONS:
            wanted = f"one of {POSITIONS}, a layer or None"
            arguments.refuse("positions", self.positions, wanted)
        for name in ("attention", "decoder_attention"):
            options = self.block_options(getattr(self, name, None))["attention"] or {}
            positions = options.get("positions")
            is_rotary = isinstance(positions, RotaryPositions) or positions == "rotary"
            if is_rotary and options.get("score") == "additive":
                raise ValueError(
                    "`positions` must not be rotary with the additive score, which "
                    "they make depend on more than the distance of two tokens. "
                    f"Received: positions={positions!r}, {name}={options!r}."
                )

    @property
    def _attention_has_positions(self) -> bool:
        """Whether attention applies the positions, so that the embedding adds none."""
        given = self.positions
        if isinstance(given, str):
            return given in POSITIONS_IN_ATTENTION
        return hasattr(given, "rotate") and hasattr(given, "bias")

    @property
    def embedding_positions(self) -> Any:
        """The positions that the embedding adds; None where attention applies them."""
        return None if self._attention_has_positions else self.positions

    @property
    def width_factor(self) -> float:
        """The muP factor of the logits and of kernels' learning rates: base / width."""
        return (self.base_dim or self.model_dim) / self.model_dim

    def embedding_options(self) -> dict[str, Any]:
        """Returns the arguments that the embeddings of all models have in common."""
        scale, initial = self.embedding_scale, {}
        # muP: the embedding has the entries and the scale of a model of that width.
        if self.base_dim is not None:
            scale = self.base_dim**0.5 if scale is None else scale
            # A configuration, not an object: each embedding draws with its own seed.
            config = {"stddev": self.base_dim**-0.5}
            normal = {"class_name": "RandomNormal", "config": config}
            initial = {"embeddings_initializer": normal}
        return {
            **initial,
            "positions": self.embedding_positions,
            "max_length": self.max_length,
            "dropout": self.dropout,
            "embedding_scale": scale,
            "norm": self.norm if self.embedding_norm else None,
            "epsilon": self.epsilon,
            "logits_bias": self.logits_bias and self.tie_embeddings,
        }

    def block_options(self, attention: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the arguments of all blocks; None takes the model's `attention`."""
        attention = self.attention if attention is None else attention
        names = [field.name for field in dataclasses.fields(BlockConfig)]
        options = {name: getattr(self, name) for name in names}
        if self._attention_has_positions:
            attention = {"positions": self.positions} | (attention or {})
        return {**options, "attention": attention}

    def cross_attention(self) -> dict[str, Any]:
        """Returns the options of the attention between source and target.

        Source and target positions are counted separately, so options that depend on
        their distance are left out.
        """
        given = self.attention or {}
        counting = ("sliding_window", "positions")
        return {name: given[name] for name in given if name not in counting}
