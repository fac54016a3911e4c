"""The tuner of a study: KerasTuner's, over trials that outlive their process.

`Tuner` asks an oracle for trials, here or over KerasTuner's own connection to a chief,
and runs them: one that a kill interrupted is continued, one that ended is not repeated.
"""

import contextlib
import os
import time
from typing import Any, TextIO

import keras
import keras_tuner
from keras_tuner.engine import trial as kt_trials

from keras_seqattn import training
from keras_seqattn.files import LOCK, release_lock, take_lock
from keras_seqattn.training.run_directory import adapt
from keras_seqattn.tuning import (
    draws,
    halving,
    heartbeats,
    records,
    runs,
    trials,
    warm,
)
from keras_seqattn.tuning.clock import repeating
from keras_seqattn.tuning.latency import decode_latency
from keras_seqattn.tuning.progress import Progress
from keras_seqattn.tuning.settings import Settings

IDLE_SECONDS = 0.5  # between two requests of a worker that has nothing to do
FAILURES_IN_A_ROW = 3  # after which the fault is probably not in one trial
# Most weights in all of the models that stay compiled for trials that continue others:
# with them a study of short trials takes 0.95 of the time
# (benchmarks/results/2026-11-28.md).
KEPT_WEIGHTS = 20_000_000


class Tuner(keras_tuner.Tuner):
    """Runs the trials of a study, in this process."""

    def __init__(self, settings: Settings, stream: TextIO | None = None) -> None:
        self._settings, self._progress = settings, Progress(settings, stream)
        self._failures = 0
        # By the id of a trial: the values that it trained with, its model and its size.
        self._kept = {}
        oracle, folder = settings.make_oracle(), settings.directory
        hp = oracle.get_space()
        self._task = task = settings.task
        known = task.configuration(hp) is not None  # if so, it has declared the space
        oracle.update_space(hp)
        super().__init__(
            oracle,
            # Given a hypermodel, KerasTuner builds models to find the space.
            hypermodel=None if known else task.hypermodel,
            directory=str(folder.parent),
            project_name=folder.name,
        )
        self.hypermodel = task.hypermodel
        if not is_worker() and oracle.state_path.exists():
            oracle.reload()
            # Budgets may be larger now. The last to be put back is the first to run.
            for record in reversed(records.load_records(folder)):
                excess = settings.excess(record.parameters, record.latency)
                if record.status == records.OVER_BUDGET and excess is None:
                    oracle.put_back(record.trial_id)

    def save(self) -> None:
        """Saves the oracle's state; a tuner has none of its own."""
        if not is_worker():
            self.oracle.save()

    def search(self) -> None:
        """Runs trials until the oracle has no more; a chief serves them to workers.

        KerasTuner's own loop prints a traceback for each trial without a score, one
        that is over budget included. `OutOfTime` ends the search.
        """
        if is_chief():
            super().search()
            return
        self.save()  # A kill may end the first trial.
        while True:
            trial = self.oracle.create_trial(self.tuner_id)
            if trial.status == kt_trials.TrialStatus.STOPPED:
                break
            if trial.status == kt_trials.TrialStatus.IDLE:
                time.sleep(IDLE_SECONDS)
                continue
            score = self.run_trial(trial)
            if score is None:
                trial.status = kt_trials.TrialStatus.FAILED
            else:
                metrics = {self._settings.objective.name: score}
                self.oracle.update_trial(trial.trial_id, metrics)
                trial.status = kt_trials.TrialStatus.COMPLETED
            self.oracle.end_trial(trial)
            self.save()
        self.save()  # The last request may have drawn values over budget.

    def leave(self) -> None:
        """Asks for trials until the worker is told to stop; then its chief can end."""
        stopped = kt_trials.TrialStatus.STOPPED
        while is_worker() and self.oracle.create_trial(self.tuner_id).status != stopped:
            time.sleep(IDLE_SECONDS)

    def run_trial(self, trial: Any) -> float | None:
        """Runs a trial from where it stands to its end; returns its score, or None."""
        path = records.folder_of(self._settings.directory, trial.trial_id)
        record = records.TrialRecord.load(path)
        if record is None:
            values = dict(trial.hyperparameters.values)
            record = records.TrialRecord(trial.trial_id, values=values, path=path)
        if record.status in (*records.UNFINISHED, records.OVER_BUDGET):
            try:
                self._run(trial.hyperparameters, record)
            except keras_tuner.errors.FatalError:
                raise
            except Exception as error:  # For example, a record that cannot be written.
                raise keras_tuner.errors.FatalRuntimeError(
                    f"trial {record.trial_id} ended in {type(error).__name__}: {error}"
                ) from error
        return record.score if record.status in records.SCORED else None

    def _run(self, hp, record):
        try:
            with trials.failures_as_ends():
                try:
                    ended_early = self._train(hp, record)
                finally:  # `build` and `fit` may have declared more.
                    record.values = hp.values | record.values
            self._end(record, *self._outcome(record, ended_early))
        except trials.TrialEnded as ended:
            self._end(record, ended.status, ended.reason)
            has_failed = ended.status == records.FAILED
            self._failures = self._failures + 1 if has_failed else 0
            if has_failed:
                self._progress.failure(ended.__cause__ or ended)
            if self._failures == FAILURES_IN_A_ROW:
                raise keras_tuner.errors.FatalRuntimeError(
                    f"{self._failures} trials in a row failed, the last one with "
                    f"{ended.reason}"
                ) from ended
            return
        except (trials.OutOfTime, KeyboardInterrupt, RuntimeError) as error:  # or disk
            # This start did not kill its process.
            record.fruitless_starts = max(0, record.fruitless_starts - 1)
            record.status = records.STOPPED
            record.save()
            if isinstance(error, trials.OutOfTime):
                self._progress.end(record)
            raise
        finally:
            release_lock(record.state / LOCK)
        self._failures = 0

    def _outcome(self, record, ended_early):
        """Returns the status and the reason of a trial that ran."""
        if not ended_early or runs.has_plateaued(record):
            return records.COMPLETED, None
        if self._settings.plan is not None:
            return records.PAUSED, None
        return records.PRUNED, "worse than the median of the others"

    def _end(self, record, status, reason):
        record.status, record.reason = status, reason
        record.finished_at = self._settings.clock.elapsed()
        record.save()
        record.last_weights.unlink(missing_ok=True)
        self._progress.end(record)

    def _train(self, hp, record):
        """Makes the model and trains it; returns whether it ended early."""
        settings = self._settings
        # Before the record is first saved: other processes use its vocabulary's size.
        record.configuration = self._task.configuration(hp)
        if record.configuration is not None:
            record.parameters = record.configuration.count_parameters()
        self._begin(record)
        self._progress.start(record)
        keras.utils.clear_session()
        # Each trial has its own seed, whatever the process ran before.
        keras.utils.set_random_seed(settings.seed + int(record.trial_id))
        parent = hp.values.get("tuner/trial_id")
        model = self._make_model(hp, parent)
        self._measure(model, record)
        if parent is not None:
            self._promote(record, parent, model)
        excess = settings.excess(record.parameters, record.latency)
        if excess is not None:
            raise trials.TrialEnded(records.OVER_BUDGET, excess)
        if settings.warm_start and parent is None and not record.epochs:
            warm.start(model, record, settings)
            record.save()
        epochs = hp.values.get("tuner/epochs", settings.trial_epochs)
        is_done = self._is_below_median
        if settings.plan is not None:
            plan = settings.plan.within(self.oracle.get_space())
            is_done = plan.pauses(hp.values[halving.RUNG], settings.directory)
        ended_early = trials.fit(
            model, hp, settings, record, epochs, is_done, self._progress
        )
        has_plain_fit = type(self.hypermodel).fit is keras_tuner.HyperModel.fit
        if has_plain_fit and (ended_early or "tuner/epochs" in hp.values):
            self._keep_model(hp, record, model)
        return ended_early

    def _make_model(self, hp, parent):
        """Makes a trial's model, or takes that of the trial that it continues.

        A model that is taken need not be compiled again; `Resume` restores its state.
        """
        values, model, _ = self._kept.pop(parent, (None, None, 0))
        is_same = values == records.trained_values(hp.values)
        return model if is_same else self._task.make_model(hp)

    def _keep_model(self, hp, record, model):
        """Keeps the compiled model of a trial that another may continue."""
        values = records.trained_values(hp.values)
        self._kept[record.trial_id] = values, model, record.parameters
        while sum(size for *_, size in self._kept.values()) > KEPT_WEIGHTS:
            del self._kept[next(iter(self._kept))]

    def _is_below_median(self, record):
        settings = self._settings
        if not settings.prune:
            return False
        others = records.load_records(settings.directory)
        return trials.is_below_median(record, others, settings.objective.direction)

    @property
    def _owner(self):
        return f"{self.tuner_id}-{os.getpid()}"

    def _begin(self, record):
        """Records a start before making the model, which may kill the process."""
        if record.fruitless_starts >= trials.MOST_FRUITLESS_STARTS:
            raise trials.TrialEnded(
                records.KILLED,
                f"its process died {record.fruitless_starts} times within an epoch",
            )
        record.status, record.reason = records.RUNNING, None
        record.finished_at = None  # if it was over a smaller budget
        record.starts += 1
        record.fruitless_starts += 1
        record.owner = self._owner
        record.save()
        # A worker that was wrongly taken for dead lets go when its epoch ends.
        record.state.mkdir(exist_ok=True)
        while take_lock(record.state / LOCK) is not None:
            if self._settings.clock.is_over():
                raise trials.OutOfTime("the time is over")
            time.sleep(IDLE_SECONDS)

    def _promote(self, record, parent, model):
        """Lets a trial go on from the last epoch of another, its parent.

        Hyperparameters that do not change the shapes of the weights may differ.
        """
        path = records.folder_of(self._settings.directory, parent)
        before = records.TrialRecord.load(path)
        if before.status not in records.SCORED:
            raise trials.TrialEnded(before.status, f"as trial {parent} ended before it")
        if record.continued_from is not None:
            return
        record.inherit(before)
        trained = records.trained_values
        if trained(before.values) != trained(record.values):
            hp = draws.hyperparameters_of(before.values)
            adapt(record.state, self._task.make_model(hp), model)
        record.save()

    def _measure(self, model, record):
        """Records how many weights a trial's model has, and how slow it is.

        The latency of each shape is measured once, and only if there is a limit.
        """
        settings = self._settings
        if record.parameters is None:
            record.parameters = model.count_params()
        if settings.max_latency is not None and record.latency is None:
            known = settings.known_latency(record.configuration)
            record.latency = decode_latency(model) if known is None else known
            record.save()


def run(settings: Settings, stream: TextIO | None = None) -> None:
    """Runs a study here: alone, or as the chief or worker that variables name.

    Progress is printed to `stream`; with None, to the standard output.
    """
    training.keep_freed_memory()
    tuner, folder = Tuner(settings, stream), settings.directory
    with contextlib.ExitStack() as stack:
        if is_worker():
            stack.enter_context(heartbeats.heartbeat(folder, tuner.tuner_id))
        else:
            stack.enter_context(settings.clock.running())
        if is_chief():
            check = heartbeats.Heartbeats(settings.directory, tuner.oracle).check
            stack.enter_context(repeating(heartbeats.CHECK_SECONDS, check))
        try:
            tuner.search()
        except trials.OutOfTime:
            tuner.leave()


def is_worker() -> bool:
    """Returns whether KerasTuner's variables make this process a worker of a chief."""
    return "KERASTUNER_ORACLE_IP" in os.environ and not is_chief()


def is_chief() -> bool:
    """Returns whether KerasTuner's variables make this process the chief."""
    name = os.environ.get("KERASTUNER_TUNER_ID", "")  # KerasTuner says if it is missing
    return "KERASTUNER_ORACLE_IP" in os.environ and "chief" in name
