"""The settings of a study, in a form that is sent to its workers."""

import dataclasses
import functools
import math
import pathlib
from typing import Any

import keras_tuner

from keras_seqattn import arguments
from keras_seqattn.models.config import Config, option, optional_size
from keras_seqattn.recipes import Configuration
from keras_seqattn.tuning import records
from keras_seqattn.tuning.clock import Clock
from keras_seqattn.tuning.draws import hyperparameters_of
from keras_seqattn.tuning.halving import Plan
from keras_seqattn.tuning.oracles import ORACLES
from keras_seqattn.tuning.tasks import Task, checked_seed, shape_of

DEFAULT_TRIALS = 10
# Most epochs of a trial by default; MOST_EPOCHS is no limit, for studies with one of
# seconds.
EPOCHS, MOST_EPOCHS = 9, 10**6
LEADERS_SHARE = 0.75  # of the seconds, by default
# Trials drawn at random before the Gaussian process draws. KerasTuner's default, three
# for each hyperparameter, would be forty.
INITIAL_POINTS = 8
# Settings that tell one study from another. Budgets may change when a study goes on.
IDENTITY = ("algorithm", "epochs", "seed", "prune", "warm_start")

_limit = functools.partial(arguments.number, above=0, optional=True)


def _folder(name: str, value: Any) -> pathlib.Path:
    return pathlib.Path(arguments.path(name, value)).resolve()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Config):
    """The settings of a study, and what its processes make of them.

    The options are the arguments of `tune_translation`, which explains them, except
    those of the `Task`.
    """

    task: Task
    objective: keras_tuner.Objective
    algorithm: str = option(functools.partial(arguments.choice, choices=(*ORACLES,)))
    epochs: int | None = option(optional_size)
    max_trials: int | None = option(optional_size)
    max_seconds: float | None = option(_limit)
    finish: float | None = option(functools.partial(arguments.fraction, optional=True))
    max_parameters: int | None = option(optional_size)
    max_latency: float | None = option(_limit, None)
    directory: pathlib.Path = option(_folder)
    workers: int = option(arguments.positive_integer, 1)
    seed: int = option(checked_seed)
    prune: bool | None = option(functools.partial(arguments.boolean, optional=True))
    warm_start: bool = option(arguments.boolean, False)
    verbose: bool = option(arguments.boolean)

    def __post_init__(self) -> None:
        """Checks the options and their combinations."""
        super().__post_init__()
        halves = self.algorithm == "halving"
        self._default("prune", self.algorithm in ("random", "bayesian"))
        keeps = halves and self.max_seconds is not None
        self._default("finish", LEADERS_SHARE if keeps else 0.0)
        if self.finish and not keeps:
            raise ValueError(
                '`finish` must be 0.0 except for "halving" with `max_seconds`: it is '
                "the share of them that is kept for the best trial. Received: "
                f"finish={self.finish!r}, algorithm={self.algorithm!r}, "
                f"max_seconds={self.max_seconds!r}."
            )
        self.task.check(self.objective.name, self.workers)

    def _default(self, name, value):
        if getattr(self, name) is None:
            object.__setattr__(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is sent to workers: the options, not what was made of them."""
        return self.options()

    @property
    def trial_epochs(self) -> int:
        """Most epochs of a trial."""
        return self.epochs or self._default_epochs

    @property
    def _default_epochs(self):
        is_timed = self.algorithm == "halving" and self.max_seconds
        return MOST_EPOCHS if is_timed else EPOCHS

    @property
    def trials(self) -> int | None:
        """Most trials (with "halving", most new ones); None without a limit."""
        is_bounded = self.max_seconds is not None or self.algorithm == "hyperband"
        return self.max_trials or (None if is_bounded else DEFAULT_TRIALS)

    @functools.cached_property
    def clock(self) -> Clock:
        """The study's `Clock`."""
        return Clock(self.directory, self.max_seconds)

    @functools.cached_property
    def plan(self) -> Plan | None:
        """The study's `Plan` of rungs; None unless the algorithm is "halving"."""
        if self.algorithm != "halving":
            return None
        return Plan(
            direction=self.objective.direction,
            tokens=self.task.epoch_tokens,
            seconds=self.max_seconds or math.inf,
            share=self.finish,
            epochs=self.trial_epochs,
            trials=self.trials or math.inf,
            workers=self.workers,
            bidirectional=self.task.bidirectional,
            consistency=self.task.consistency,
        )

    @property
    def score_name(self) -> str:
        """The name in the logs of the score by which trials are compared."""
        return self.task.monitors.get(self.objective.name, self.objective.name)

    def claim(self) -> None:
        """Makes the folder this study's own, or raises if it is another study's.

        A new study is only made if its data suit its trials.
        """
        asked = {
            "objective": [self.objective.name, self.objective.direction],
            **{name: getattr(self, name) for name in IDENTITY},
            **self.task.identity,
        }
        path = self.directory / "study.json"
        # Early versions wrote fewer names, and the default of `epochs`.
        known = {**asked, **records.read_json(path, missing={})}
        if (known["epochs"] or self._default_epochs) == self.trial_epochs:
            known["epochs"] = self.epochs
        different = [name for name in asked if known[name] != asked[name]]
        if different:
            raise ValueError(
                "`directory` must be new, or that of the same study. Received: "
                f"directory={str(self.directory)!r}, of a study with a different "
                f"`{different[0]}`."
            )
        if not path.exists():
            self.task.prepare()
        # A worker on another machine may come before its chief.
        self.directory.mkdir(parents=True, exist_ok=True)
        records.write_json(path, asked)

    def make_oracle(self) -> Any:
        """Makes the oracle that chooses the trials, one of `oracles.ORACLES`."""
        options = {}
        if self.plan is not None:
            options["plan"] = self.plan
        elif self.algorithm == "hyperband":
            options["max_epochs"] = self.trial_epochs
            is_bounded = self.max_trials or self.max_seconds
            options["hyperband_iterations"] = None if is_bounded else 1
        elif self.algorithm == "bayesian":
            options["num_initial_points"] = INITIAL_POINTS
        oracle = ORACLES[self.algorithm](
            objective=self.objective,
            seed=self.seed + 1,  # KerasTuner takes a seed of 0 for none.
            admit=self.over_budget_reason,
            clock=self.clock,
            directory=self.directory,
            **options,
        )
        oracle.max_trials = None if self.plan else self.trials  # A plan has its own.
        return oracle

    def excess(self, parameters: int | None, latency: float | None) -> str | None:
        """Returns by how much a model exceeds a budget, or None.

        What is None is not yet known, and exceeds none.
        """
        if (parameters or 0) > (self.max_parameters or math.inf):
            return f"{parameters} parameters, {self.max_parameters} allowed"
        if (latency or 0) > (self.max_latency or math.inf):
            allowed = f"{1000 * self.max_latency:g} allowed"
            return f"{1000 * latency:.1f} ms a sentence, {allowed}"
        return None

    def known_latency(self, configuration: Configuration) -> float | None:
        """Returns the latency measured in a trial of the same shape, or None."""
        shape = shape_of(configuration)
        for record in records.load_records(self.directory):
            if record.latency is not None and shape_of(record.configuration) == shape:
                return record.latency
        return None

    def over_budget_reason(self, values: dict[str, Any]) -> str | None:
        """Returns why values are over budget, before anything is built; None if not.

        Values that the model refuses are left out in the same way.
        """
        try:
            configuration = self.task.configuration(hyperparameters_of(values))
            if configuration is None:
                return None  # Only the built model can tell.
            parameters = configuration.count_parameters()
        except ValueError as error:
            return str(error)
        latency = self.known_latency(configuration) if self.max_latency else None
        return self.excess(parameters, latency)
