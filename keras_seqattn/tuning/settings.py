"""What a study was asked, in a form that travels to its workers."""

import dataclasses
import functools
import math
import pathlib
from typing import Any

import keras_tuner

from keras_seqattn import arguments
from keras_seqattn.models.config import Config, option, optional_size
from keras_seqattn.recipes import RECIPES, Recipe
from keras_seqattn.tuning import records
from keras_seqattn.tuning.clock import Clock
from keras_seqattn.tuning.corpus import Batches, Corpus
from keras_seqattn.tuning.halving import Plan
from keras_seqattn.tuning.hypermodels import TranslationHyperModel
from keras_seqattn.tuning.objective import DECODED, make_objective
from keras_seqattn.tuning.oracles import ORACLES
from keras_seqattn.tuning.progress import Progress
from keras_seqattn.tuning.space import TranslationSpace

DEFAULT_TRIALS = 10
# Of a trial, by default: with a limit of the study's seconds there is none.
EPOCHS, MOST_EPOCHS = 9, 10**6
LEADERS_SHARE = 0.75  # of the seconds, by default
# Trials drawn at random before the Gaussian process has its say. KerasTuner's three for
# each hyperparameter would be forty.
INITIAL_POINTS = 8
# What makes a study another one. Its budgets may change when it goes on.
IDENTITY = ("algorithm", "epochs", "seed", "prune", "warm_start")
IDENTITY += ("vocabulary_size", "target_vocabulary_size")

_space = functools.partial(
    arguments.instance, types=TranslationSpace, wanted="a `TranslationSpace`"
)
_limit = functools.partial(arguments.number, above=0, optional=True)


def _lengths(name: str, value: Any) -> Any:
    return None if value is None else Recipe.checks()["bucket_lengths"](name, value)


def _one(vocabulary_size: int) -> int:
    """Counts the tokens of an epoch in epochs, where all trials have one vocabulary."""
    return 1


def _objective(name: str, value: Any) -> keras_tuner.Objective:
    return make_objective(value)


def _folder(name: str, value: Any) -> pathlib.Path:
    return pathlib.Path(arguments.path(name, value)).resolve()


def _lines_or_batches(name: str, given: Any) -> Any:
    """Returns a pair of lists of strings, or a dataset as it is."""
    if not isinstance(given, tuple | list):
        wanted = "a dataset, or a pair of lists of strings"
        if isinstance(given, str | dict):
            arguments.refuse(name, given, wanted)
        return arguments.offers(name, given, ("__iter__",), wanted)
    if len(given) != 2 or not all(isinstance(side, list | tuple) for side in given):
        raise ValueError(
            f"`{name}` must be a dataset, or a pair of lists of strings, sources and "
            f"targets. Received: {name}={given!r:.80}."
        )
    return tuple(list(side) for side in given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """A study as it was asked for, and what its processes make of it.

    The options are the arguments of `tune_translation`, which says what they mean; the
    two of a pair of vocabularies are apart.
    """

    train: Any = option(_lines_or_batches)
    validation: Any = option(_lines_or_batches)
    objective: keras_tuner.Objective = option(_objective)
    algorithm: str = option(functools.partial(arguments.choice, choices=(*ORACLES,)))
    epochs: int | None = option(optional_size)
    max_trials: int | None = option(optional_size)
    max_seconds: float | None = option(_limit)
    finish: float | None = option(functools.partial(arguments.fraction, optional=True))
    max_parameters: int | None = option(optional_size)
    max_latency: float | None = option(_limit)
    directory: pathlib.Path = option(_folder)
    workers: int = option(arguments.positive_integer, 1)
    seed: int = option(functools.partial(arguments.integer, least=0))
    space: TranslationSpace = option(_space)
    vocabulary_size: int | None = option(optional_size)
    target_vocabulary_size: int | None = option(optional_size)
    batch_tokens: int | None = option(optional_size)
    bucket_lengths: tuple[int, ...] | None = option(_lengths)
    prune: bool | None = option(functools.partial(arguments.boolean, optional=True))
    warm_start: bool = option(arguments.boolean)
    verbose: bool = option(arguments.boolean)

    def __post_init__(self) -> None:
        """Checks the options, and which go together."""
        super().__post_init__()
        center, halves = self.space.center, self.algorithm == "halving"
        if self.space.vocabulary_size is None and self.vocabulary_size is None:
            self._default("vocabulary_size", center.vocabulary_size)
        self._default("prune", self.algorithm in ("random", "bayesian"))
        self._default("epochs", MOST_EPOCHS if halves and self.max_seconds else EPOCHS)
        self._default("finish", LEADERS_SHARE if halves and self.max_seconds else 0.0)
        if self.finish and self.max_seconds is None:
            raise ValueError(
                "`finish` must be 0.0 where `max_seconds` is None: it is a share of "
                f"them. Received: finish={self.finish!r}."
            )
        if self.workers > 1 and type(self.space).__module__ == "__main__":
            raise ValueError(
                "`space` must be of a class that the workers can import: put it in a "
                f"module. Received: space of {type(self.space)!r}."
            )
        decoded, sizes = self.objective.name in DECODED, self.space.vocabulary_size
        lines = isinstance(self.train, tuple)
        if not lines and (decoded or self.workers > 1 or sizes is not None):
            raise ValueError(
                "`train` must be lists of strings for an objective that is decoded, "
                "for several workers, or for a space with sizes of vocabularies. "
                f"Received: a dataset, with objective={self.objective.name!r}, "
                f"workers={self.workers!r}, space.vocabulary_size={sizes!r}."
            )

    def _default(self, name, value):
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what travels: what was asked, and not what was made of it."""
        return self.options()

    @functools.cached_property
    def clock(self) -> Clock:
        """The study's `Clock`, which ends the search before the finish."""
        limit = self.max_seconds
        if self.plan is None and limit:
            limit *= 1 - self.finish
        return Clock(self.directory, limit)

    @functools.cached_property
    def plan(self) -> Plan | None:
        """The study's `Plan` of rungs; None of another algorithm."""
        if self.algorithm != "halving":
            return None
        budgeted = self.max_trials is not None or self.max_seconds is not None
        sizes = self.space.vocabulary_size
        return Plan(
            direction=self.objective.direction,
            tokens=_one if sizes is None else self.data.count_tokens,
            seconds=self.max_seconds or math.inf,
            share=self.finish,
            epochs=self.epochs,
            trials=(self.max_trials or math.inf) if budgeted else DEFAULT_TRIALS,
            workers=self.workers,
        )

    @functools.cached_property
    def progress(self) -> Progress:
        """The study's `Progress`."""
        return Progress(self)

    @functools.cached_property
    def hypermodel(self) -> TranslationHyperModel:
        """The study's `TranslationHyperModel`."""
        return TranslationHyperModel(
            self.vocabulary_size, self.target_vocabulary_size, self.space
        )

    @functools.cached_property
    def data(self) -> Corpus | Batches:
        """The study's `Corpus`, or `Batches` of the user's own."""
        if not isinstance(self.train, tuple):
            return Batches(self.train, self.validation)
        asked = {
            name: getattr(self, name) for name in ("batch_tokens", "bucket_lengths")
        }
        given = {name: value for name, value in asked.items() if value is not None}
        center = self.space.center
        recipe = center if isinstance(center, Recipe) else RECIPES["own"]
        return Corpus(
            self.train,
            self.validation,
            {**recipe.batch_options(), **given},
            {**recipe.batch_options(training=False), **given},
            seed=self.seed,
        )

    def claim(self) -> None:
        """Makes the folder this study's own.

        Raises:
            ValueError: If it is another one's.
        """
        center = self.space.center
        asked = {
            "objective": [self.objective.name, self.objective.direction],
            **{name: getattr(self, name) for name in IDENTITY},
            "space": repr(self.space),
            "center": None if center == RECIPES["own"] else repr(center),
            "corpus": self.data.fingerprint(),
        }
        path = self.directory / "study.json"
        self.directory.mkdir(parents=True, exist_ok=True)
        known = records.read_json(path, missing=asked)
        different = [name for name in asked if known.get(name) != asked[name]]
        if different:
            raise ValueError(
                "`directory` must be new, or that of the same study. Received: "
                f"directory={str(self.directory)!r}, of a study with another "
                f"{' and another '.join(different)}."
            )
        records.write_json(path, asked)

    def make_oracle(self) -> Any:
        """Makes the oracle that chooses the trials.

        Returns:
            One of `oracles.ORACLES`.
        """
        budgeted = self.max_trials is not None or self.max_seconds is not None
        max_trials, options = self.max_trials, {}
        if self.plan is not None:
            max_trials, options["plan"] = None, self.plan  # which counts new ones
        elif self.algorithm == "hyperband":
            options["max_epochs"] = self.epochs
            options["hyperband_iterations"] = None if budgeted else 1
        elif not budgeted:
            max_trials = DEFAULT_TRIALS
        if self.algorithm == "bayesian":
            options["num_initial_points"] = INITIAL_POINTS
        oracle = ORACLES[self.algorithm](
            objective=self.objective,
            seed=self.seed + 1,  # KerasTuner takes a seed of 0 for none.
            admit=self.refusal,
            clock=self.clock,
            directory=self.directory,
            **options,
        )
        oracle.max_trials = max_trials
        return oracle

    def refusal(self, values: dict[str, Any]) -> str | None:
        """Returns what of a draw is over budget, before anything is built.

        Args:
            values: Dict of hyperparameters.

        Returns:
            The reason not to make a trial of it, or None.
        """
        hp = keras_tuner.HyperParameters()
        hp.values = dict(values)
        configuration = self.hypermodel.configuration(hp)
        count, limit = configuration.count_parameters(), self.max_parameters
        if limit is not None and count > limit:
            return f"{count} parameters, {limit} allowed"
        if self.max_latency is None:
            return None
        # A model of this shape may have been found too slow.
        for record in records.load_records(self.directory):
            slow = record.status == records.OVER_BUDGET
            if slow and record.configuration.model == configuration.model:
                return record.reason
        return None
