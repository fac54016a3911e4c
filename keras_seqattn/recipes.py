"""A model's options and how it is trained, in one record; presets of it by name.

`RECIPES["default"]` is a `Recipe`; `dataclasses.replace(recipe, epochs=3)` varies it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import keras

from keras_seqattn import arguments, models, training
from keras_seqattn.models.config import Config, option, optional_size
from keras_seqattn.models.parameters import count_parameters
from keras_seqattn.models.recurrent import RecurrentConfig
from keras_seqattn.models.stacks import check_base_dim, check_names
from keras_seqattn.models.transformer import TranslationConfig

# The options of each model that translates, by the name of its class.
CONFIGS = {
    "TranslationTransformer": TranslationConfig,
    "TranslationRNN": RecurrentConfig,
}
OPTIMIZERS = ("adam", "muon", "schedule_free")


def _dtype(name: str, value: Any) -> Any:
    policy = keras.dtype_policies.get
    arguments.interpreted(name, value, policy, "the name of a dtype", optional=True)
    return value


def _lengths(name: str, value: Any) -> tuple[int, ...]:
    return tuple(arguments.increasing(name, value))


def _widths(name: str, value: Any) -> tuple[int, ...] | None:
    wanted, check = "a list of positive integers", arguments.positive_integer
    value = arguments.sequence(name, value, wanted, check, optional=True)
    return None if value is None else tuple(value)


def _views(name: str, value: Any) -> tuple[str, ...] | None:
    wanted = 'a list of "plain" and "sampled"'
    check = partial(arguments.choice, choices=("plain", "sampled"))
    value = arguments.sequence(name, value, wanted, check, optional=True)
    return None if value is None else tuple(value)


@dataclasses.dataclass(frozen=True)
class Configuration(Config):
    """The options of a model that translates, and of how it is trained.

    Attributes:
        model: Dict of the model's arguments, `source_vocabulary_size` among them. It
            is kept as a record with an attribute for every argument.
        learning_rate: Peak of `InverseSquareRoot`.
        warmup_steps: Steps in which the rate rises to its peak.
        label_smoothing: Probability taken from the true token and spread over all.
        ema_momentum: Share of the running average of the weights that a step keeps;
            None for no average.
        architecture: Name of a model of `keras_seqattn.models` that translates.
        dtype: Dtype policy of the model; None for Keras's own.
        consistency: Factor of the divergence between two copies of a pair, as
            `MaskedCrossentropy` has it; 0 for none.
        optimizer: "adam"; "muon", which is Adam for all weights but the kernels of
            feed-forward layers and of attention's projections; or Keras's
            "schedule_free", whose rate stays at its peak once it has risen.
        average_epochs: Number of the last epochs whose weights are averaged; None for
            none. Use at most one of this, `ema_momentum` and "schedule_free".
        ema_warmup: Whether the average is over a time that grows with the steps (see
            `training.Adam`), so that it is worth validating from the first epoch.

    Raises:
        ValueError: If an argument is out of range, two averages are asked for, or the
            model has a `base_dim` and the optimizer is not Adam.

    Example:
        >>> chosen = Configuration({"source_vocabulary_size": 50}, 0.001, 100)
        >>> chosen.vocabulary_size, chosen.model.num_heads
        (50, 4)
    """

    model: Any
    learning_rate: float = option(partial(arguments.number, above=0))
    warmup_steps: int = option(arguments.positive_integer)
    label_smoothing: float = option(arguments.fraction, 0.0)
    ema_momentum: float | None = option(
        partial(arguments.fraction, optional=True), None
    )
    architecture: str = option(
        partial(arguments.choice, choices=tuple(CONFIGS)), "TranslationTransformer"
    )
    dtype: Any = option(_dtype, None)
    consistency: float = option(partial(arguments.number, least=0), 0.0)
    optimizer: str = option(partial(arguments.choice, choices=OPTIMIZERS), "adam")
    average_epochs: int | None = option(optional_size, None)
    ema_warmup: bool = option(arguments.boolean, False)

    def __post_init__(self) -> None:
        """Checks the arguments, and keeps the model's as its typed configuration."""
        given = self.model
        # Among a model's arguments `dtype` is no option of its config.
        if isinstance(given, dict) and "dtype" in given:
            if self.dtype is not None:
                arguments.refuse("dtype", self.dtype, "None where `model` has a dtype")
            object.__setattr__(self, "dtype", given["dtype"])
        super().__post_init__()
        config = CONFIGS[self.architecture]
        if isinstance(given, dict):
            check_names(getattr(models, self.architecture), given)
            given = config.of({"source_vocabulary_size": None, **given})
            object.__setattr__(self, "model", given)
        arguments.instance("model", given, config, "a dict")
        check_base_dim(getattr(given, "base_dim", None), self.optimizer)
        averages = (
            self.ema_momentum is not None,
            self.average_epochs is not None,
            self.optimizer == "schedule_free",
        )
        if sum(averages) > 1:
            raise ValueError(
                '`ema_momentum`, `average_epochs` and `optimizer="schedule_free"` must '
                f"not be combined. Received: ema_momentum={self.ema_momentum}, "
                f"average_epochs={self.average_epochs}, optimizer={self.optimizer!r}."
            )

    @property
    def vocabulary_size(self) -> int:
        """Entries of the source's vocabulary."""
        return self.model.source_vocabulary_size

    def with_vocabulary(self, vocabulary_size: int) -> Self:
        """Returns the same configuration with a vocabulary of a different size.

        Args:
            vocabulary_size: Entries of the source's vocabulary.

        Returns:
            A `Configuration`; for a `Recipe`, a `Recipe`.

        Example:
            >>> RECIPES["smoke"].with_vocabulary(290).vocabulary_size
            290
        """
        arguments.positive_integer("vocabulary_size", vocabulary_size)
        model = dataclasses.replace(self.model, source_vocabulary_size=vocabulary_size)
        return dataclasses.replace(self, model=model)

    def make_model(
        self,
        vocabulary_size: int | None = None,
        weights: Any = None,
        metrics: list[Any] | None = None,
        pieces: Sequence[str] | None = None,
    ) -> keras.Model:
        """Makes the model, compiled for its training.

        Args:
            vocabulary_size: Entries that the tokenizer has; None for as many as
                configured.
            weights: Path of a file of the model's weights, or None.
            metrics: What is logged in addition to the loss, which is label-smoothed;
                None: `TokenCrossentropy` and `Perplexity`, which are not.
            pieces: The tokenizer's `pieces`, where the copies of a pair may be
                segmented differently; see `MaskedCrossentropy`. None: they are not.

        Returns:
            A Keras model.
        """
        arguments.path("weights", weights, optional=True)
        arguments.sequence("metrics", metrics, "a list of metrics", optional=True)
        config = self.model
        if vocabulary_size is not None:
            config = self.with_vocabulary(vocabulary_size).model
        make = getattr(models, self.architecture)
        model = make(**config.options(), dtype=self.dtype)
        if weights is not None:
            model.load_weights(weights)
        if metrics is None:
            metrics = [training.TokenCrossentropy(), training.Perplexity()]
        model.compile(
            self._make_optimizer(model),
            training.MaskedCrossentropy(
                self.label_smoothing, self.consistency, pieces=pieces
            ),
            metrics=metrics,
        )
        return model

    def _make_optimizer(self, model):
        """Makes the optimizer, with its schedule and its moving average."""
        schedule = training.InverseSquareRoot(self.learning_rate, self.warmup_steps)
        average = {"ema_warmup": self.ema_warmup}
        if self.ema_momentum is not None:
            average |= {"use_ema": True, "ema_momentum": self.ema_momentum}
        if self.optimizer == "muon":
            # Excludes the logits' kernel, where it is not the target's embedding.
            options = {"adam_beta_2": 0.98, "exclude_layers": ["^output/"]}
            return training.Muon(schedule, **options, **average)
        if self.optimizer == "schedule_free":
            return keras.optimizers.ScheduleFreeAdamW(
                self.learning_rate, beta_2=0.98, warmup_steps=self.warmup_steps
            )
        return training.Adam(
            schedule,
            learning_rate_factors=model.learning_rate_factors(),
            beta_2=0.98,
            **average,
        )

    def average_callbacks(self) -> list[keras.callbacks.Callback]:
        """Makes the callback that validates, scores and keeps averaged weights.

        The model has the averages only while it is validated and when `fit` ends. So
        use no callback with `restore_best_weights`, or with `save_best_only` by a
        validation score, beside it: what they keep are trained weights.

        Returns:
            List of one callback, which comes before all others in `fit`, except
            `TerminateOnDivergence`; empty without averages.

        Example:
            >>> RECIPES["smoke"].average_callbacks()[0].__class__.__name__
            'SwapEMAWeights'
        """
        if self.ema_momentum is not None:
            return [keras.callbacks.SwapEMAWeights()]
        if self.average_epochs is not None:
            return [training.CheckpointAverage(self.average_epochs)]
        if self.optimizer == "schedule_free":
            return [training.ScheduleFreeAverage()]
        return []

    def count_parameters(self) -> int | None:
        """Counts the weights of a `TranslationTransformer` without making any.

        Returns:
            Their number; None for other architectures, and where options of the
            attention are given: these weights only the model itself can count.

        Raises:
            ValueError: If the positions are not given by name, or if the model refuses
                an option.
        """
        if self.architecture != "TranslationTransformer":
            return None
        if self.model.attention is None and self.model.decoder_attention is None:
            return count_parameters(**self.model.options())
        return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Configuration):
    """A `Configuration` with all else that a training run needs: batches and epochs.

    Attributes:
        corpus: Name of the corpus that the numbers were chosen on.
        batch_tokens: Most tokens in a batch, padding included.
        bucket_lengths: Lengths in tokens that batches are padded to; a longer pair is
            left out of training.
        epochs: Passes over the training pairs.
        repeat_batch: Copies of each pair in a batch, at least 2 with a `consistency`.
            For this, `cutoff`, `sampling`, `views` and `bidirectional_epochs` see
            `text.translation_batches`.
        cutoff: Share in [0, 1) of the tokens of all copies but the first that are cut
            off.
        sampling: Strength of subword sampling, at least 0.
        views: Whether the subwords of each copy are "plain" or "sampled", or None.
        bidirectional_epochs: How many of the first epochs train both directions.
        teacher_epochs: Epochs of the teachers, models of both directions that are
            trained first, in the same way. Their translations of the pairs are trained
            on as well (data diversification, Nguyen et al. 2020). 0 for no teachers.
        teachers: Number of teachers for each direction, which differ in their seeds.
        beam_widths: Beam widths among which `Translator.tune_search` chooses on the
            validation lines when training has ended; None for greedy search.

    Example:
        >>> RECIPES["multi30k"].model.encoder_layers
        4
    """

    corpus: str = option(arguments.text)
    batch_tokens: int = option(arguments.positive_integer)
    bucket_lengths: tuple[int, ...] = option(_lengths)
    epochs: int = option(arguments.positive_integer)
    repeat_batch: int = option(arguments.positive_integer, 1)
    cutoff: float = option(arguments.fraction, 0.0)
    sampling: float = option(partial(arguments.number, least=0), 0.0)
    views: tuple[str, ...] | None = option(_views, None)
    bidirectional_epochs: int = option(partial(arguments.integer, least=0), 0)
    teacher_epochs: int = option(partial(arguments.integer, least=0), 0)
    teachers: int = option(arguments.positive_integer, 1)
    beam_widths: tuple[int, ...] | None = option(_widths, None)

    def __post_init__(self) -> None:
        """Checks the arguments."""
        super().__post_init__()
        if self.consistency and self.repeat_batch == 1:
            arguments.refuse("repeat_batch", 1, "at least 2 with a `consistency`")

    def batch_options(self, training: bool = True) -> dict[str, Any]:
        """Returns the arguments of `text.translation_batches` that make its batches.

        Args:
            training: Whether they are for training. In validation each pair comes once,
                and nothing is cut off or sampled.

        Returns:
            A dict by name.

        Example:
            >>> RECIPES["smoke"].batch_options(training=False)
            {'batch_tokens': 1024, 'bucket_lengths': (8, 12, 16, 32)}
        """
        arguments.boolean("training", training)
        names = ["batch_tokens", "bucket_lengths"]
        if training:
            names += ["repeat_batch", "cutoff", "sampling", "views"]
            names += ["bidirectional_epochs"]
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Makes a recipe from what `dataclasses.asdict` returned, as JSON keeps it.

        Args:
            config: A dict of the fields. In dicts of early versions, the vocabulary's
                size may be a field of its own, outside the model's arguments, and the
                rate may be named `peak_learning_rate`.

        Returns:
            A `Recipe`.

        Raises:
            ValueError: If `config` is no dict, lacks a field or has one that is unknown
                or out of range.
        """
        arguments.instance("config", config, Mapping, "a dict")
        config = dict(config)
        if "peak_learning_rate" in config:
            config["learning_rate"] = config.pop("peak_learning_rate")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        arguments.known(config, (*fields, "vocabulary_size"), cls.__name__)
        required = [x for x in fields if fields[x].default is dataclasses.MISSING]
        if missing := [name for name in required if name not in config]:
            wanted = f"a dict of a recipe's fields, with {', '.join(missing)}"
            arguments.refuse("config", config, wanted)
        if "vocabulary_size" in config:
            arguments.instance("model", config["model"], Mapping, "a dict")
            size = {"source_vocabulary_size": config.pop("vocabulary_size")}
            config["model"] = {**size, **config["model"]}
        return cls(**config)


RECIPES = {
    # Shows only that everything runs: under a minute in all on two cores.
    "smoke": Recipe(
        corpus="phrases",
        model={
            "source_vocabulary_size": 1000,
            "model_dim": 64,
            "num_heads": 4,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "intermediate_dim": 128,
            "dropout": 0.0,
        },
        batch_tokens=1024,
        bucket_lengths=(8, 12, 16, 32),
        learning_rate=0.005,
        warmup_steps=50,
        label_smoothing=0.0,
        ema_momentum=0.95,
        epochs=1,
    ),
    # About five minutes on two cores.
    "default": Recipe(
        corpus="phrases",
        model={
            # Small, so that numbers are spelt by digits rather than known by heart.
            "source_vocabulary_size": 1000,
            "model_dim": 128,
            "num_heads": 4,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "intermediate_dim": 256,
            "dropout": 0.1,
        },
        batch_tokens=2048,
        bucket_lengths=(8, 12, 16, 32),
        learning_rate=0.004,
        warmup_steps=400,
        label_smoothing=0.1,
        ema_momentum=0.99,
        epochs=10,
    ),
    # 35 minutes on two cores. The shape is that of Wu et al. 2021, "Good for
    # Misconceived Reasons", who found larger ones worse on this corpus.
    "multi30k": Recipe(
        corpus="multi30k",
        model={
            # Half of theirs: half the cost of the logits, and pieces seen more often.
            "source_vocabulary_size": 5000,
            "model_dim": 128,
            "num_heads": 4,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "intermediate_dim": 256,
            # Less than their 0.3, which takes several times as many epochs to pay.
            "dropout": 0.2,
            # A point of BLEU ahead of sinusoidal ones after as many epochs.
            "positions": "rotary",
        },
        batch_tokens=4096,
        # Tight, so that little of a batch is padding: captions have about 18 tokens.
        bucket_lengths=(11, 13, 15, 17, 19, 21, 24, 28, 36, 64),
        learning_rate=0.004,
        warmup_steps=1000,
        label_smoothing=0.1,
        # A mean over about 2,000 steps (some 14 epochs), and over fewer before that.
        ema_momentum=0.9995,
        ema_warmup=True,
        epochs=30,
    ),
}
# For hours on a CPU. Two more models, one of each direction, are trained first. Their
# translations of the training pairs are pairs too (data diversification).
RECIPES["multi30k-best"] = dataclasses.replace(
    RECIPES["multi30k"], teacher_epochs=30, epochs=50, beam_widths=(5,)
)
# For a GPU. Two copies of each pair, one with a cutoff, keep a model of twice the width
# from overfitting (SimCut with half its factor); they would only slow the ones above.
RECIPES["multi30k-wide"] = dataclasses.replace(
    RECIPES["multi30k"],
    model={
        **RECIPES["multi30k"].model.options(),
        "model_dim": 256,
        "intermediate_dim": 512,
        "dropout": 0.25,
        # Its scores were measured with these; rotary ones are not yet measured.
        "positions": "sinusoidal",
        "zero_id": 3,
    },
    repeat_batch=2,
    cutoff=0.05,
    consistency=3.0,
    # Some 190 pairs, each with its copy, which share a batch.
    batch_tokens=8192,
    # Few, since each is one more program to compile, which takes longest on a GPU.
    bucket_lengths=(15, 21, 28, 64),
    learning_rate=0.003,
    epochs=36,
    beam_widths=(5,),
)
# For a user's own lines, which may be longer than those of `default`.
RECIPES["own"] = dataclasses.replace(
    RECIPES["default"], corpus="own", bucket_lengths=(12, 16, 24, 32, 48, 64, 128)
)


def _recurrent(recipe: Recipe, model_dim: int, **options: Any) -> Recipe:
    """Returns a recipe's recurrent counterpart; `model_dim` makes it about as large."""
    kept = ("source_vocabulary_size", "dropout")
    same = {name: getattr(recipe.model, name) for name in kept}
    return dataclasses.replace(
        recipe,
        architecture="TranslationRNN",
        model={**same, "model_dim": model_dim, **options},
        learning_rate=0.003,
        ema_warmup=False,
    )


RECIPES["gru-smoke"] = _recurrent(RECIPES["smoke"], 58)
RECIPES["gru-default"] = _recurrent(RECIPES["default"], 156)
RECIPES["gru-multi30k"] = dataclasses.replace(
    _recurrent(RECIPES["multi30k"], 192, dropout=0.15),
    # The values with which its scores were measured.
    batch_tokens=2048,
    warmup_steps=500,
    ema_momentum=0.999,
)
