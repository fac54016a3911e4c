"""What a search may vary of a translation model and its training.

A space is declared on KerasTuner's `HyperParameters`, so any of its tuners can search
it. Every combination can be built: the width of a head is chosen independently, and is
not `model_dim` divided by the number of heads.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from keras_seqattn import arguments
from keras_seqattn.models.config import POSITIONS, optional_size
from keras_seqattn.models.stacks import check_base_dim
from keras_seqattn.models.transformer import TranslationConfig
from keras_seqattn.recipes import RECIPES, Configuration

if TYPE_CHECKING:
    import keras_tuner


# Options of a model that drop something in training, and change nothing else.
DROPPING = ("dropout", "attention_dropout", "activation_dropout", "stochastic_depth")
HEADS, WIDTHS, DEPTHS = (2, 4, 8), (16, 32, 64), (1, 2, 3, 4, 6)


@dataclasses.dataclass(frozen=True)
class Range:
    """All numbers between two.

    Attributes:
        low: The least.
        high: The greatest.
        log: Whether to draw their logarithms uniformly, instead of the numbers.

    Raises:
        ValueError: If `low` is above `high`, or, with `log`, not above 0.

    Example:
        >>> Range(1e-4, 1e-2, log=True).low
        0.0001
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Checks the arguments."""
        arguments.boolean("log", self.log)
        low = arguments.number("low", self.low, above=0 if self.log else None)
        high = arguments.number("high", self.high)
        if low > high:
            raise ValueError(
                "`low` must be at most `high`. "
                f"Received: low={self.low!r}, high={self.high!r}."
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)


class AttentionChoices(NamedTuple):
    """How a stack attends; all are None in a conditional scope that is inactive.

    Attributes:
        num_heads: Number of heads H.
        key_dim: Width of a head.
        num_layers: Number of blocks.

    Example:
        >>> AttentionChoices(4, 32, 2).num_layers
        2
    """

    num_heads: int | None
    key_dim: int | None
    num_layers: int | None


def attention_choices(
    hp: "keras_tuner.HyperParameters",
    model_dim: int,
    num_heads: int | Sequence[int] = HEADS,
    key_dim: int | Sequence[int] | None = WIDTHS,
    num_layers: int | Sequence[int] = DEPTHS,
    prefix: str = "",
) -> AttentionChoices:
    """Chooses the number of heads, their width and the depth, in any `build(hp)`.

    Whatever is drawn can be built: heads of `key_dim` are projected back to
    `model_dim`, which they need not divide. Layers that have no argument for the width
    of a head, and split `model_dim` into heads, need `key_dim=None`. Then only numbers
    of heads that divide `model_dim` are drawn.

    Args:
        hp: KerasTuner's `HyperParameters`.
        model_dim: Width D of the vectors that attend.
        num_heads: Numbers of heads to choose among, or one number.
        key_dim: Widths of a head to choose among, one width, or None for `model_dim`
            divided by the heads.
        num_layers: Depths to choose among, or one depth.
        prefix: What the hyperparameters' names begin with, where a model has several
            stacks.

    Returns:
        An `AttentionChoices`. In a conditional scope of `hp` that is inactive it holds
        None, as KerasTuner returns there.

    Raises:
        ValueError: If an argument is out of range, or `key_dim` is None and no number
            of heads divides `model_dim`.

    Example:
        >>> import keras_tuner
        >>> attention_choices(keras_tuner.HyperParameters(), 96, num_layers=(2, 4))
        AttentionChoices(num_heads=2, key_dim=16, num_layers=2)
    """
    _check_hp(hp)
    arguments.positive_integer("model_dim", model_dim)
    num_heads = _checked_values("num_heads", num_heads)
    key_dim = _checked_values("key_dim", key_dim, optional=True)
    num_layers = _checked_values("num_layers", num_layers)
    arguments.text("prefix", prefix)
    if key_dim is None:
        given = choices_of(num_heads)
        num_heads = tuple(heads for heads in given if model_dim % heads == 0)
        if not num_heads:
            raise ValueError(
                f"`num_heads` must hold a divisor of `model_dim`, {model_dim}, where "
                f"`key_dim` is None. Received: num_heads={given!r}."
            )
    heads = declare(hp, f"{prefix}num_heads", num_heads)
    width = declare(hp, f"{prefix}key_dim", key_dim)
    depth = declare(hp, f"{prefix}num_layers", num_layers)
    return AttentionChoices(heads, width or (heads and model_dim // heads), depth)


@dataclasses.dataclass(frozen=True)
class TranslationSpace:
    """What a search may vary: each field is one value, or several to choose among.

    A tuple or a list lists choices, a `Range` is drawn from, anything else is fixed.
    `dataclasses.replace(space, num_heads=4)` makes a different space. The first trial
    of a study with "halving" is the one nearest to `center`.

    Attributes:
        model_dim: Width D of the vectors between blocks.
        encoder_layers: Number of encoder blocks.
        decoder_layers: Number of decoder blocks.
        num_heads: Number of attention heads.
        key_dim: Width of a head, independent of `model_dim`.
        feed_forward_ratio: Hidden width of the feed-forward layers over `model_dim`.
        dropout: Fraction dropped of embeddings and of each sublayer's output.
        label_smoothing: Share of the target spread over the vocabulary.
        normalize_first: Pre-norm (True) or post-norm.
        positions: Names of positions, as `TranslationTransformer` takes them.
        tie_embeddings: Whether one table serves all it can.
        learning_rate: Peak of `InverseSquareRoot`, with pre-norm.
        warmup_steps: Steps up to that peak, with pre-norm.
        post_norm_learning_rate: The peak with post-norm, which tolerates less.
        post_norm_warmup_steps: Steps up to that peak; post-norm needs more.
        ema_momentum: Share of the running average of the weights that a step keeps.
            The average is scored and saved; with None, the weights themselves.
        vocabulary_size: Entries of the tokenizer; None: what the study is given.
        optimizer: Names of optimizers, as `Configuration` takes them; None: the
            center's.
        options: Dict of further arguments of `TranslationTransformer`, which no field
            decides; they do not vary.
        center: A `Configuration` of a `TranslationTransformer`, by default
            `RECIPES["own"]`. Its values, or the nearest ones that a field has, are
            where "halving" begins, and the defaults of the hyperparameters. What is not
            a field, such as the factor of consistency, is the center's in every trial.
            The exception is how weights are averaged: wherever `ema_momentum` averages
            them, `ema_warmup` is True; "schedule_free" averages them by itself.

    Raises:
        ValueError: If a value is out of range, a field decides one of `options`,
            positions may be rotary and a `key_dim` is odd, or the model has a
            `base_dim` and an optimizer is not Adam.

    Example:
        >>> import keras_tuner
        >>> space = TranslationSpace(num_heads=4, encoder_layers=(2, 6))
        >>> chosen = space.choose(keras_tuner.HyperParameters(), vocabulary_size=500)
        >>> chosen.model.num_heads, chosen.model.encoder_layers
        (4, 2)
    """

    model_dim: Any = (128, 192, 256)
    encoder_layers: Any = DEPTHS
    decoder_layers: Any = (1, 2, 3, 4)
    num_heads: Any = HEADS
    key_dim: Any = WIDTHS
    feed_forward_ratio: Any = (1, 2, 4)
    dropout: Any = (0.0, 0.1, 0.2, 0.3)
    label_smoothing: Any = (0.0, 0.1)
    normalize_first: Any = (True, False)
    positions: Any = ("sinusoidal", "rotary", "relative")
    tie_embeddings: Any = True
    learning_rate: Any = Range(1e-3, 8e-3, log=True)
    warmup_steps: Any = (200, 400, 800)
    post_norm_learning_rate: Any = Range(5e-4, 3e-3, log=True)
    post_norm_warmup_steps: Any = (800, 1600)
    ema_momentum: Any = 0.999
    vocabulary_size: Any = None
    optimizer: Any = dataclasses.field(default=None, repr=False)
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    center: Configuration = dataclasses.field(default=RECIPES["own"], repr=False)

    def __post_init__(self) -> None:
        """Checks each value that a field may take."""
        arguments.instance("options", self.options, dict, "a dict")
        if not self.options.keys().isdisjoint((*_CHECKS, *_DERIVED)):
            wanted = "a dict without fields of the space, which are arguments of it, "
            wanted += "and without `intermediate_dim` and sizes of vocabularies"
            arguments.refuse("options", self.options, wanted)
        wanted = "a `Configuration` of a `TranslationTransformer`"
        arguments.instance("center", self.center, Configuration, wanted)
        if not isinstance(self.center.model, TranslationConfig):
            arguments.refuse("center", self.center, wanted)
        for name, check in _CHECKS.items():
            given, optional = getattr(self, name), name in _OPTIONAL
            values = _checked_values(name, given, check, optional)
            object.__setattr__(self, name, values)
        has_odd = any(width % 2 for width in choices_of(self.key_dim))
        if has_odd and "rotary" in choices_of(self.positions):
            raise ValueError(
                "`key_dim` must be even where `positions` may be rotary. Received: "
                f"key_dim={self.key_dim!r}, positions={self.positions!r}."
            )
        base_dim = self.options.get("base_dim", self.center.model.base_dim)
        check_base_dim(base_dim, self.optimizer or self.center.optimizer)

    @classmethod
    def around(cls, center: Configuration, **fields: Any) -> Self:
        """Returns a space that holds each value of a configuration, its center.

        Args:
            center: A `Configuration` of a `TranslationTransformer`, a recipe for
                example.
            **fields: Fields that differ from the defaults. To every field with several
                values, given or not, the center's value is added unless it is None.
                A field that is not given, and has one value by default, takes the
                center's.

        Returns:
            A `TranslationSpace`.

        Example:
            >>> from keras_seqattn.recipes import RECIPES
            >>> space = TranslationSpace.around(RECIPES["multi30k"], num_heads=(2, 8))
            >>> space.num_heads, space.warmup_steps
            ((2, 4, 8), (200, 400, 800, 1000))
        """
        space = cls(center=center, **fields)
        own = space.center_values()
        wider = {name: _with(getattr(space, name), own[name]) for name in own}
        # The fields that have one value by default, and a place in the center.
        free = {"tie_embeddings", "ema_momentum"} - fields.keys()
        wider |= {name: own[name] for name in free}
        return dataclasses.replace(space, **wider)

    def center_values(self) -> dict[str, Any]:
        """Returns the center's value of each field that it has one for."""
        center, model = self.center, self.center.model
        ratio = model.intermediate_dim / model.model_dim
        post_norm = {}
        if not model.normalize_first:
            post_norm = {
                "post_norm_learning_rate": center.learning_rate,
                "post_norm_warmup_steps": center.warmup_steps,
            }
        return {
            **post_norm,
            **{name: getattr(model, name) for name in _OPTIONS},
            "key_dim": model.key_dim or model.model_dim // model.num_heads,
            "feed_forward_ratio": int(ratio) if ratio.is_integer() else ratio,
            "vocabulary_size": model.source_vocabulary_size,
            **{name: getattr(center, name) for name in _OF_TRAINING},
        }

    def choose(
        self,
        hp: "keras_tuner.HyperParameters",
        vocabulary_size: int | None = None,
        target_vocabulary_size: int | None = None,
    ) -> Configuration:
        """Declares the space on `hp`, and returns what `hp` has chosen.

        Args:
            hp: KerasTuner's `HyperParameters`.
            vocabulary_size: Entries of the source's vocabulary where the space has no
                size of its own.
            target_vocabulary_size: Entries of the target's, None where it is shared.

        Returns:
            A `Configuration`.

        Raises:
            ValueError: If nothing says the vocabulary's size.
        """
        _check_hp(hp)
        optional_size("vocabulary_size", vocabulary_size)
        optional_size("target_vocabulary_size", target_vocabulary_size)
        near = self.center_values()

        def take(name):
            return declare(hp, name, getattr(self, name), near.get(name))

        size = take("vocabulary_size") or vocabulary_size
        if size is None:
            raise ValueError(
                "`vocabulary_size` must be given, or be a field of the space. "
                "Received: vocabulary_size=None."
            )
        model = {name: take(name) for name in _OPTIONS}
        ratio = take("feed_forward_ratio")
        training = {"label_smoothing": take("label_smoothing")}
        center = self.center
        optimizer = training["optimizer"] = take("optimizer") or center.optimizer
        others = {*choices_of(self.optimizer or optimizer)} - {"schedule_free"}
        if others and center.average_epochs is None:
            scope = hp.conditional_scope("optimizer", sorted(others))
            with contextlib.nullcontext() if self.optimizer is None else scope:
                momentum = take("ema_momentum")
            training |= {"ema_momentum": momentum, "ema_warmup": momentum is not None}
        if optimizer == "schedule_free":  # which averages the weights itself
            training |= {"ema_momentum": None, "average_epochs": None}
        # Two names, since KerasTuner loses values where two scopes use one.
        for pre_norm, prefix in ((True, ""), (False, "post_norm_")):
            with hp.conditional_scope("normalize_first", [pre_norm]):
                rate = take(f"{prefix}learning_rate")
                steps = take(f"{prefix}warmup_steps")
            if pre_norm == model["normalize_first"]:
                training |= {"learning_rate": rate, "warmup_steps": steps}
        sizes = {
            "source_vocabulary_size": size,
            "target_vocabulary_size": target_vocabulary_size,
            "intermediate_dim": round(ratio * model["model_dim"]),
        }
        options = {**center.model.options(), **sizes, **model, **self.options}
        return Configuration.of({**center.options(), **training, "model": options})


# The options of the model that may vary, in the order in which they are declared.
_OPTIONS = (
    *("model_dim", "encoder_layers", "decoder_layers", "num_heads", "key_dim"),
    *("dropout", "normalize_first", "positions", "tie_embeddings"),
)
# Arguments of the model that follow from fields, or that the study is given.
_DERIVED = ("intermediate_dim", "source_vocabulary_size", "target_vocabulary_size")
_OF_TRAINING = (
    *("label_smoothing", "learning_rate", "warmup_steps", "ema_momentum", "optimizer"),
)
# Fields that may be None: no positions, no average of the weights, a value that is
# given elsewhere, or one that only post-norm models have.
_OPTIONAL = (
    *("positions", "ema_momentum", "vocabulary_size", "optimizer"),
    *("post_norm_learning_rate", "post_norm_warmup_steps"),
)
_CHECKS = {
    "positions": functools.partial(arguments.choice, choices=POSITIONS),
    **{
        name: TranslationConfig.checks()[name]
        for name in _OPTIONS
        if name != "positions"
    },
    **{name: Configuration.checks()[name] for name in _OF_TRAINING},
    "post_norm_learning_rate": Configuration.checks()["learning_rate"],
    "post_norm_warmup_steps": arguments.positive_integer,
    "feed_forward_ratio": functools.partial(arguments.number, above=0),
    "vocabulary_size": arguments.positive_integer,
}


def _check_hp(hp):
    arguments.offers("hp", hp, ("Choice", "Fixed"), "KerasTuner's `HyperParameters`")


def _checked_values(name, values, check=arguments.positive_integer, optional=False):
    """Returns what a hyperparameter may be: a `Range`, one value or several.

    None, which declares nothing, is returned if it is `optional`.
    """
    if values is None and optional:
        return None
    if isinstance(values, Range):
        for value in (values.low, values.high):
            check(name, value)
        try:  # Draws are floats, which an option of integers refuses.
            check(name, (values.low + values.high) / 2)
        except ValueError:
            wanted = "one integer, or several in a tuple: a `Range` is of floats"
            arguments.refuse(name, values, wanted)
        return values
    several = [None if one is None else check(name, one) for one in choices_of(values)]
    if not several or None in several:
        arguments.refuse(name, values, "one value, or several in a tuple, not None")
    if isinstance(values, tuple):
        return tuple(several)
    return several if isinstance(values, list) else several[0]


def choices_of(values: Any) -> Sequence[Any]:
    """Returns the values to choose among, or one value alone, as a sequence."""
    return values if isinstance(values, tuple | list) else (values,)


def _are_numbers(values):
    return all(type(value) in (int, float) for value in values)


def _with(values, value):
    """Returns a hyperparameter's values, with `value` added if there are several."""
    if value is None:  # no hyperparameter may be None
        return values
    if isinstance(values, Range):
        low, high = min(values.low, value), max(values.high, value)
        return dataclasses.replace(values, low=low, high=high)
    if not isinstance(values, tuple | list) or value in values:
        return values
    wider = (*values, value)
    return tuple(sorted(wider)) if _are_numbers(wider) else wider


def _nearest(values, value):
    """Returns the value among several, or in a `Range`, that is nearest to `value`."""
    if isinstance(values, Range):
        if value is None:
            return values.low
        return min(max(value, values.low), values.high)
    if value in values:
        return value
    if value is None or not _are_numbers((*values, value)):
        return values[0]
    return min(values, key=lambda one: abs(one - value))


def declare(
    hp: "keras_tuner.HyperParameters", name: str, values: Any, near: Any = None
) -> Any:
    """Declares a hyperparameter and returns its value, None where it is inactive.

    `values` is a tuple or list to choose among, a `Range`, whose numbers are rounded to
    three significant digits, one value, or None, which declares nothing. The default is
    the value nearest to `near`, or the first.

    Example:
        >>> import keras_tuner
        >>> declare(keras_tuner.HyperParameters(), "depth", (3, 5), near=6)
        5
    """
    if values is None:
        return None
    if isinstance(values, Range):
        sampling = "log" if values.log else "linear"
        default = _nearest(values, near)
        value = hp.Float(
            name, values.low, values.high, sampling=sampling, default=default
        )
        if value is None:
            return None
        return min(max(float(f"{value:.3g}"), values.low), values.high)
    if not isinstance(values, tuple | list):
        return hp.Fixed(name, values)
    if _are_numbers(values) and float in map(type, values):
        values = [float(value) for value in values]  # KerasTuner wants one type.
    default = _nearest(values, near)
    if all(isinstance(value, bool) for value in values):  # A choice makes them 0 and 1.
        several = len(set(values)) > 1
        return hp.Boolean(name, default) if several else hp.Fixed(name, default)
    return hp.Choice(name, list(values), default=default)
