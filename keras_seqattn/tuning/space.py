"""What a search may vary of a translation model and its training.

A space is declared on KerasTuner's `HyperParameters`, so any of its tuners searches it.
Every combination can be built: the width of a head is chosen by itself, not as what
`model_dim` divided by the heads leaves over.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_seqattn import arguments
from keras_seqattn.models.config import optional_size
from keras_seqattn.models.transformer import TranslationConfig
from keras_seqattn.recipes import Configuration

if TYPE_CHECKING:
    import keras_tuner


HEADS, WIDTHS, DEPTHS = (2, 4, 8), (16, 32, 64), (1, 2, 3, 4, 6)


@dataclasses.dataclass(frozen=True)
class Range:
    """All numbers between two.

    Attributes:
        low: The least.
        high: The greatest.
        log: Whether their logarithms are drawn evenly, and not they themselves.

    Example:
        >>> Range(1e-4, 1e-2, log=True).low
        0.0001
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        """Checks the arguments."""
        arguments.number("low", self.low)
        arguments.number("high", self.high)
        arguments.boolean("log", self.log)


class AttentionChoices(NamedTuple):
    """How a stack attends.

    Attributes:
        num_heads: Number of heads H.
        key_dim: Width of a head.
        num_layers: Number of blocks.

    Example:
        >>> AttentionChoices(4, 32, 2).num_layers
        2
    """

    num_heads: int
    key_dim: int
    num_layers: int


def attention_choices(
    hp: "keras_tuner.HyperParameters",
    model_dim: int,
    num_heads: int | Sequence[int] = HEADS,
    key_dim: int | Sequence[int] | None = WIDTHS,
    num_layers: int | Sequence[int] = DEPTHS,
    prefix: str = "",
) -> AttentionChoices:
    """Chooses heads, their width and the depth, for anyone's `build(hp)`.

    What it gives can be built whatever is drawn: heads of `key_dim` are projected back
    to `model_dim`, which they need not divide. Layers that know no width of a head, and
    cut `model_dim` into heads, want `key_dim=None`: then only numbers of heads that
    divide `model_dim` are drawn.

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
        An `AttentionChoices`.

    Raises:
        ValueError: If `key_dim` is None and no number of heads divides `model_dim`.

    Example:
        >>> import keras_tuner
        >>> attention_choices(keras_tuner.HyperParameters(), 96, num_layers=(2, 4))
        AttentionChoices(num_heads=2, key_dim=16, num_layers=2)
    """
    _check_hp(hp)
    arguments.positive_integer("model_dim", model_dim)
    _check_values("num_heads", num_heads)
    _check_values("key_dim", key_dim)
    _check_values("num_layers", num_layers)
    arguments.text("prefix", prefix)
    if key_dim is None:
        given = num_heads if isinstance(num_heads, tuple | list) else (num_heads,)
        num_heads = tuple(heads for heads in given if model_dim % heads == 0)
        if not num_heads:
            raise ValueError(
                f"`num_heads` must hold a divisor of `model_dim`, {model_dim}, where "
                f"`key_dim` is None. Received: num_heads={given!r}."
            )
    heads = declare(hp, f"{prefix}num_heads", num_heads)
    width = declare(hp, f"{prefix}key_dim", key_dim)
    depth = declare(hp, f"{prefix}num_layers", num_layers)
    return AttentionChoices(heads, width or model_dim // heads, depth)


@dataclasses.dataclass(frozen=True)
class TranslationSpace:
    """What a search may vary, each field one value or several to choose among.

    A tuple is what is chosen among, a `Range` a stretch of numbers, anything else is
    fixed. `dataclasses.replace(space, num_heads=4)` gives another space.

    Attributes:
        model_dim: Width D of the vectors between blocks.
        encoder_layers: Number of encoder blocks.
        decoder_layers: Number of decoder blocks.
        num_heads: Number of attention heads.
        key_dim: Width of a head, independent of `model_dim`.
        feed_forward_ratio: Width of the feed-forwards' hidden layers, in `model_dim`s.
        dropout: Fraction dropped of embeddings and of each sublayer's output.
        label_smoothing: Share of the target spread over the vocabulary.
        normalize_first: Pre-norm (True) or post-norm.
        positions: Names of positions, as `TranslationTransformer` takes them.
        tie_embeddings: Whether one table serves all it can.
        learning_rate: Peak of `InverseSquareRoot`, with pre-norm.
        warmup_steps: Steps up to that peak, with pre-norm.
        post_norm_learning_rate: The peak with post-norm, which bears less.
        post_norm_warmup_steps: Steps up to that peak, of which post-norm needs more.
        ema_momentum: Share of the running average of the weights kept at a step, which
            is what is scored and saved; None for the weights themselves.
        vocabulary_size: Entries of the tokenizer; None: what the study is given.
        options: Dict of further arguments of `TranslationTransformer`, which do not
            vary.

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
    ema_momentum: Any = None
    vocabulary_size: Any = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks each value that a field may take."""
        arguments.instance("options", self.options, dict, "a dict")
        for name, check in _CHECKS.items():
            _check_values(name, getattr(self, name), check)

    def choose(
        self,
        hp: "keras_tuner.HyperParameters",
        vocabulary_size: int | None = None,
        target_vocabulary_size: int | None = None,
    ) -> Configuration:
        """Declares the space on `hp`, and gives what `hp` has chosen.

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
        take = functools.partial(self._take, hp)
        size = take("vocabulary_size") or vocabulary_size
        if size is None:
            raise ValueError(
                "`vocabulary_size` must be given, or be a field of the space. "
                "Received: vocabulary_size=None."
            )
        model = {name: take(name) for name in _OPTIONS}
        ratio = take("feed_forward_ratio")
        training = {name: take(name) for name in ("label_smoothing", "ema_momentum")}
        # KerasTuner loses values where two scopes have hyperparameters of one name.
        for first, prefix in ((True, ""), (False, "post_norm_")):
            with hp.conditional_scope("normalize_first", [first]):
                rate = take(f"{prefix}learning_rate")
                steps = take(f"{prefix}warmup_steps")
            if first == model["normalize_first"]:
                training |= {"learning_rate": rate, "warmup_steps": steps}
        return Configuration(
            model={
                "source_vocabulary_size": size,
                "target_vocabulary_size": target_vocabulary_size,
                **model,
                "intermediate_dim": ratio * model["model_dim"],
                **self.options,
            },
            **training,
        )

    def _take(self, hp, name):
        return declare(hp, name, getattr(self, name))


# The options of the model that may vary, in the order in which they are declared.
_OPTIONS = (
    *("model_dim", "encoder_layers", "decoder_layers", "num_heads", "key_dim"),
    *("dropout", "normalize_first", "positions", "tie_embeddings"),
)
_SIZES = ("feed_forward_ratio", "warmup_steps", "post_norm_warmup_steps")
_SIZES += ("vocabulary_size",)
_RATES = ("learning_rate", "post_norm_learning_rate")
_TRAINING = Configuration.checks()
_CHECKS = {
    # A name of positions is checked further by the model.
    **{name: TranslationConfig.checks().get(name, arguments.text) for name in _OPTIONS},
    **dict.fromkeys(_SIZES, arguments.positive_integer),
    **{name: _TRAINING[name] for name in ("label_smoothing", "ema_momentum")},
    **dict.fromkeys(_RATES, _TRAINING["learning_rate"]),
}


def _check_hp(hp):
    arguments.offers("hp", hp, ("Choice", "Fixed"), "KerasTuner's `HyperParameters`")


def _check_values(name, values, check=arguments.positive_integer):
    """Checks what a hyperparameter may be: a `Range`, None, one value or several."""
    if values is None or isinstance(values, Range):
        return  # None declares nothing
    several = values if isinstance(values, tuple | list) else (values,)
    if not several:
        arguments.refuse(name, values, "one value, or several in a tuple")
    for value in several:
        if value is not None:
            check(name, value)


def declare(hp: "keras_tuner.HyperParameters", name: str, values: Any) -> Any:
    """Declares one hyperparameter, and gives its value.

    Args:
        hp: KerasTuner's `HyperParameters`.
        name: Its name.
        values: A tuple or list to choose among, a `Range`, None, which declares
            nothing, or one value.

    Returns:
        The value, a number drawn from a `Range` to three significant digits; None
        where it is inactive, in a conditional scope.

    Example:
        >>> import keras_tuner
        >>> declare(keras_tuner.HyperParameters(), "depth", (3, 5))
        3
    """
    if values is None:
        return None
    if isinstance(values, Range):
        sampling = "log" if values.log else "linear"
        value = hp.Float(name, values.low, values.high, sampling=sampling)
        return None if value is None else float(f"{value:.3g}")
    if not isinstance(values, tuple | list):
        return hp.Fixed(name, values)
    if set(values) == {True, False} and isinstance(values[0], bool):
        return hp.Boolean(name, default=values[0])
    value = hp.Choice(name, list(values))
    # What travels between processes is rounded to 32 bits.
    return float(f"{value:.6g}") if isinstance(value, float) else value
