"""What a study writes on disk.

Its files are replaced atomically, so a kill leaves them consistent.

A study's folder holds `study.json` (its settings), `oracle.json` (the state of
KerasTuner's oracle), `clock.json` (the seconds spent) and `lock`. Each trial has a
folder `trial_<number>` with `record.json`, the state that its training resumes from,
and `best.weights.h5` (the weights of its best epoch).
"""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Iterable, Sequence
from typing import Any, Self

from keras_seqattn.annotations import Path
from keras_seqattn.files import LOCK, mapping, reading, replacing
from keras_seqattn.recipes import Configuration

# What an error says of a study's damaged file, and what to do: see `files.reading`.
_OF_A_STUDY = (
    "that a study wrote",
    "restore a copy of it, or begin a new study in another folder",
)
RUNNING, COMPLETED, PRUNED = "running", "completed", "pruned"
PAUSED = "paused"  # until another trial continues it
OVER_BUDGET, OUT_OF_MEMORY, NAN = "over budget", "out of memory", "nan"
KILLED, FAILED, STOPPED = "killed", "failed", "stopped"
# Statuses of trials whose best epoch counts.
SCORED = (COMPLETED, PRUNED, PAUSED)
# Statuses of trials that have not ended, and go on when the study goes on.
UNFINISHED = (RUNNING, STOPPED)
COUNTED = (*SCORED, *UNFINISHED)  # compared by the epochs that they have
# With fewer epochs, scores show which trials start fast, not which end well.
FEW_EPOCHS = 3
BEST = {"min": min, "max": max}  # of scores, by the direction of the objective
# Keys among a trial's values that are not hyperparameters; trials that continue it have
# them too.
BIDIRECTIONAL_EPOCHS = "tuner/bidirectional_epochs"
CONSISTENCY = "tuner/consistency"


def write_json(path: Path, content: Any) -> None:
    """Writes a file that holds its old or its new content, whenever a kill comes."""
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")


def read_json(path: Path, missing: Any = None, keys: Sequence[str] = ()) -> Any:
    """Returns the dict that `write_json` wrote, or `missing` where there is no file.

    A damaged file, or one that lacks some of `keys`, raises a `ValueError` that says
    what to do.
    """
    with reading(path, *_OF_A_STUDY):
        try:
            return mapping(json.loads(pathlib.Path(path).read_bytes()), keys)
        except FileNotFoundError:
            return missing


@dataclasses.dataclass
class TrialRecord:
    """What became of one trial, and the files of its folder.

    Attributes:
        trial_id: The trial's number, a string.
        status: "running", "completed", "paused", "pruned", "over budget", "out of
            memory", "nan", "killed" (its process died again and again), "failed", or
            "stopped" (the study ended first; the trial goes on when the study does).
        reason: What led to the status, in words.
        values: Dict of the hyperparameters.
        configuration: The `Configuration`; None until the trial has begun, and always
            for a user's own `build`.
        parameters: Number of weights.
        latency: Seconds to translate a sentence, or None.
        epochs: List of dicts of logs, one per epoch.
        best_epoch: Number of epochs after which the score was best.
        score: The best score, or None.
        seconds: Seconds of its own training, scoring included.
        first_step: Seconds from its latest start to the end of the first step, which
            compiles; None before that.
        continued_from: Id of the trial that it continues, as after a promotion.
        warm_started_from: Id of the trial that its first weights come from.
        inherited_epochs: How many of the epochs are those of the trial it continues.
        inherited_seconds: Seconds of other trials' training that it builds on.
        starts: How often it was begun, resumptions included.
        fruitless_starts: How often it was begun since its last epoch ended.
        owner: Name of the process that runs it.
        finished_at: Seconds of the study when it ended.
        path: The trial's folder, which is not saved.
    """

    trial_id: str
    status: str = RUNNING
    reason: str | None = None
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    configuration: Configuration | None = None
    parameters: int | None = None
    latency: float | None = None
    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    best_epoch: int | None = None
    score: float | None = None
    seconds: float = 0.0
    first_step: float | None = None
    continued_from: str | None = None
    warm_started_from: str | None = None
    inherited_epochs: int = 0
    inherited_seconds: float = 0.0
    starts: int = 0
    fruitless_starts: int = 0
    owner: str | None = None
    finished_at: float | None = None
    path: pathlib.Path | None = dataclasses.field(default=None, compare=False)

    @property
    def bidirectional_epochs(self) -> int:
        """The epoch up to which its run trains both directions; 0 for none."""
        return self.values.get(BIDIRECTIONAL_EPOCHS, 0)

    @property
    def consistency(self) -> float:
        """The factor of consistency between two copies of each pair; 0 for none."""
        return getattr(self.configuration, "consistency", 0.0)

    @property
    def best_seconds(self) -> float:
        """Seconds up to the best epoch, those of the trial it continues included."""
        return sum(epoch["seconds"] for epoch in self.epochs[: self.best_epoch])

    @property
    def best_weights(self) -> pathlib.Path:
        """The file of the weights of the best epoch."""
        return self.path / "best.weights.h5"

    @property
    def last_weights(self) -> pathlib.Path:
        """The file of the weights with which the current epoch was scored."""
        return self.path / "last.weights.h5"

    @property
    def state(self) -> pathlib.Path:
        """The folder that the training resumes from."""
        return self.path / "state"

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Returns the record in a trial's folder, or None where there is none."""
        folder = pathlib.Path(folder)
        path = folder / "record.json"
        fields = read_json(path)
        if fields is None:
            return None
        with reading(path, *_OF_A_STUDY):
            fields.pop("best_seconds", None)  # which early versions wrote
            record = cls(**fields, path=folder)
            chosen = record.configuration  # early versions wrote {} for None
            record.configuration = Configuration(**chosen) if chosen else None
            return record

    def save(self) -> None:
        """Writes the record into the trial's folder."""
        fields = dataclasses.asdict(self)
        del fields["path"]
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.path / "record.json", fields)

    def note_epoch(
        self,
        epoch: int,
        logs: dict[str, Any],
        score: float,
        direction: str,
        seconds: float,
        at: float = 0.0,
    ) -> bool:
        """Notes an epoch, counted from 0; returns whether it is the best so far.

        What an interrupted run may have noted of this epoch is replaced. `at` is the
        study's seconds when the epoch ended.
        """
        del self.epochs[epoch:]
        self.epochs.append({**logs, "score": score, "seconds": seconds, "at": at})
        trained = self.epochs[self.inherited_epochs :]
        self.seconds = sum(epoch["seconds"] for epoch in trained)
        scores = [epoch["score"] for epoch in self.epochs]
        self.score = BEST[direction](scores)
        self.best_epoch = 1 + scores.index(self.score)
        self.fruitless_starts = 0
        return self.best_epoch == epoch + 1

    def inherit(self, other: "TrialRecord") -> None:
        """Copies another trial's best weights, training state and epochs into this one.

        The caller must `save` the record; only then does this trial continue the other.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        # Not the lock: this trial's own is held by the process that runs it.
        states = [path for path in other.state.iterdir() if path.name != LOCK]
        copies = [(path, self.state / path.name) for path in states]
        for source, target in [(other.best_weights, self.best_weights), *copies]:
            with replacing(target) as unfinished:
                shutil.copyfile(source, unfinished)
        self.continued_from = other.trial_id
        self.epochs = list(other.epochs)
        self.inherited_epochs = len(other.epochs)
        self.inherited_seconds = other.seconds + other.inherited_seconds
        self.best_epoch, self.score = other.best_epoch, other.score

    def best_until(self, num_epochs: int, direction: str) -> float | None:
        """Returns the best score of the first epochs; None if it has fewer epochs."""
        if len(self.epochs) < num_epochs:
            return None
        return BEST[direction](epoch["score"] for epoch in self.epochs[:num_epochs])


def own_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the hyperparameters without what an oracle adds to them."""
    return {name: values[name] for name in values if not name.startswith("tuner/")}


def trained_values(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the hyperparameters, and the consistency if the study has added one."""
    added = {CONSISTENCY: values[CONSISTENCY]} if CONSISTENCY in values else {}
    return own_values(values) | added


def folder_of(folder: Path, trial_id: str) -> pathlib.Path:
    """Returns the folder of a trial in a study's folder."""
    return pathlib.Path(folder) / f"trial_{trial_id}"


def load_records(folder: Path) -> list[TrialRecord]:
    """Returns the records of all trials in a study's folder, in order of number."""
    records = [TrialRecord.load(path) for path in pathlib.Path(folder).glob("trial_*")]
    found = [record for record in records if record is not None]
    return sorted(found, key=lambda record: int(record.trial_id))


def best_of(known: Iterable[TrialRecord], direction: str) -> TrialRecord | None:
    """Returns the best of the records, the first among equals; None without a score.

    A trial that still runs, or ran out of the study's time, counts by its epochs so
    far.
    """
    scored = [
        record
        for record in known
        if record.score is not None and record.status in COUNTED
    ]
    return BEST[direction](scored, key=lambda record: record.score, default=None)
