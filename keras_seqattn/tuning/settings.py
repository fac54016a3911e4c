"""What a study was asked, in a form that travels to its workers, and its clock."""

import dataclasses
import functools
import pathlib
import threading
import time
from typing import Any

import keras_tuner

from keras_seqattn.tuning import records
from keras_seqattn.tuning.corpus import Batches, Corpus
from keras_seqattn.tuning.hypermodels import TranslationHyperModel
from keras_seqattn.tuning.oracles import ORACLES
from keras_seqattn.tuning.progress import Progress

DEFAULT_TRIALS = 10
TICK = 1.0  # seconds between two writes of the clock: what a kill may lose
# Trials drawn at random before the Gaussian process has its say. KerasTuner's three for
# each hyperparameter would be forty.
INITIAL_POINTS = 8
# What makes a study another one. Its budgets may change when it goes on.
IDENTITY = (
    "algorithm",
    "epochs",
    "seed",
    "prune",
    "warm_start",
    "vocabulary_size",
    "target_vocabulary_size",
)


class Clock:
    """Counts the wall-clock seconds in which a study ran, on disk.

    One process keeps the clock, that of the oracle; all others read it.

    Args:
        folder: The study's folder.
        limit: Seconds that the study may take, or None.

    Example:
        >>> clock = Clock("no/such/folder", limit=60)
        >>> clock.left(), clock.is_over()
        (60.0, False)
    """

    def __init__(self, folder, limit=None):
        self._path = pathlib.Path(folder) / "clock.json"
        self.limit = limit
        self._origin = None
        self._stopped = threading.Event()

    def __enter__(self):
        """Begins to count, from what was spent before."""
        self._origin = time.monotonic() - self.elapsed()
        self._stopped.clear()
        self._thread = threading.Thread(target=self._tick, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception):
        """Stops to count."""
        self._stopped.set()
        self._thread.join()
        self._write()
        self._origin = None

    def _tick(self):
        while not self._stopped.wait(TICK):
            self._write()

    def _write(self):
        records.write_json(self._path, {"seconds": self.elapsed()})

    def elapsed(self):
        """Returns the seconds spent so far."""
        if self._origin is not None:
            return time.monotonic() - self._origin
        return records.read_json(self._path, {"seconds": 0.0}, ("seconds",))["seconds"]

    def left(self):
        """Returns the seconds left, infinity without a limit."""
        return float("inf") if self.limit is None else self.limit - self.elapsed()

    def is_over(self):
        """Whether no time is left."""
        return self.left() <= 0


@dataclasses.dataclass
class Settings:
    """A study as it was asked for, and what its processes make of it.

    Attributes:
        directory: The study's folder, absolute.
        objective: A `keras_tuner.Objective`.
        algorithm: "hyperband", "random" or "bayesian".
        epochs: Most epochs of a trial.
        max_trials: Most trials, or None.
        max_seconds: Seconds of wall-clock, over all resumptions, or None.
        finish: Share of `max_seconds` in which the best trial trains on.
        max_parameters: Most weights of a model, or None.
        max_latency: Most seconds to translate a sentence, or None.
        seed: Integer.
        prune: Whether hopeless trials end early.
        warm_start: Whether trials start from the weights of smaller ones.
        verbose: Whether to print progress.
        space: A `TranslationSpace`.
        vocabulary_size: Entries of the source's vocabulary, or None.
        target_vocabulary_size: Entries of the target's, or None.
        train: Pair of lists of strings, or a dataset.
        validation: The same.
        batch_tokens: As in `text.translation_batches`.
        bucket_lengths: As in `text.translation_batches`.
    """

    directory: pathlib.Path
    objective: keras_tuner.Objective
    algorithm: str
    epochs: int
    max_trials: int | None
    max_seconds: float | None
    finish: float
    max_parameters: int | None
    max_latency: float | None
    seed: int
    prune: bool
    warm_start: bool
    verbose: bool
    space: Any
    vocabulary_size: int | None
    target_vocabulary_size: int | None
    train: Any
    validation: Any
    batch_tokens: int
    bucket_lengths: tuple

    def __getstate__(self):
        """Returns what travels: what was asked, and not what was made of it."""
        fields = dataclasses.fields(self)
        return {field.name: getattr(self, field.name) for field in fields}

    @functools.cached_property
    def clock(self):
        """The study's `Clock`, which ends the search before the finish."""
        limit = self.max_seconds
        return Clock(self.directory, limit and limit * (1 - self.finish))

    @functools.cached_property
    def progress(self):
        """The study's `Progress`."""
        return Progress(
            self.directory, self.objective, self.clock, self.max_trials, self.verbose
        )

    @functools.cached_property
    def hypermodel(self):
        """The study's `TranslationHyperModel`."""
        return TranslationHyperModel(
            self.vocabulary_size, self.target_vocabulary_size, self.space
        )

    @functools.cached_property
    def data(self):
        """The study's `Corpus`, or `Batches` of the user's own."""
        if not isinstance(self.train, tuple):
            return Batches(self.train, self.validation)
        sizes = (self.batch_tokens, self.bucket_lengths)
        return Corpus(self.train, self.validation, *sizes, seed=self.seed)

    def claim(self):
        """Makes the folder this study's own.

        Raises:
            ValueError: If it is another one's.
        """
        asked = {
            "objective": [self.objective.name, self.objective.direction],
            **{name: getattr(self, name) for name in IDENTITY},
            "space": repr(self.space),
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

    def make_oracle(self):
        """Makes the oracle that chooses the trials.

        Returns:
            One of `oracles.ORACLES`.
        """
        # KerasTuner takes a seed of 0 for none.
        arguments = {"objective": self.objective, "seed": self.seed + 1}
        budgeted = self.max_trials is not None or self.max_seconds is not None
        most = self.max_trials
        if self.algorithm == "hyperband":
            arguments["max_epochs"] = self.epochs
            arguments["hyperband_iterations"] = None if budgeted else 1
        elif not budgeted:
            most = DEFAULT_TRIALS
        if self.algorithm == "bayesian":
            arguments["num_initial_points"] = INITIAL_POINTS
        oracle = ORACLES[self.algorithm](
            **arguments,
            admit=self.refusal,
            clock=self.clock,
            directory=self.directory,
        )
        oracle.max_trials = most
        return oracle

    def refusal(self, values):
        """Returns what of a draw is over budget, before anything is built.

        Args:
            values: Dict of hyperparameters.

        Returns:
            The reason not to make a trial of it, or None.
        """
        hp = keras_tuner.HyperParameters()
        hp.values = dict(values)
        configuration = self.hypermodel.configuration(hp)
        count, most = configuration.count_parameters(), self.max_parameters
        if most is not None and count > most:
            return f"{count} parameters, {most} allowed"
        if self.max_latency is None:
            return None
        # A model of this shape may have been found too slow.
        for record in records.load_records(self.directory):
            same = record.configuration.get("model") == configuration.model
            if same and record.status == records.OVER_BUDGET:
                return record.reason
        return None
