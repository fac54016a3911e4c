"""KerasTuner's oracles, made to survive a kill and to draw nothing over budget.

An oracle's whole state, its trials and random state included, is one file that is
replaced atomically. What KerasTuner writes beside it is not read again.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable
from random import Random
from typing import Any

import keras_tuner
import numpy as np
from keras_tuner.engine import trial as kt_trials

from keras_seqattn.annotations import Path
from keras_seqattn.tuning import draws, halving, records
from keras_seqattn.tuning.clock import Clock
from keras_seqattn.tuning.records import own_values, read_json, write_json

# The space counts as exhausted after MOST_REJECTED draws over budget, or more than
# MOST_REPEATED in a row that were drawn before. After MOST_REPEATED "halving" first
# draws MOST_SAMPLED times from the whole space. The Gaussian process has
# MOST_PREDICTIONS draws before one is at random.
MOST_REJECTED, MOST_REPEATED, MOST_SAMPLED, MOST_PREDICTIONS = 1000, 20, 300, 10


def _synchronized(method):
    """Lets one thread at a time into an oracle's methods, as KerasTuner's decorator.

    After an error that one keeps its lock, and other threads would wait for ever. The
    chief has several: one serves its workers, and one looks for their heartbeats.
    """

    @keras_tuner.synchronized
    @functools.wraps(method)
    def locked(*args, **kwargs):
        try:
            return method(*args, **kwargs), None
        except Exception as error:
            return None, error

    @functools.wraps(method)
    def run(*args, **kwargs):
        found, error = locked(*args, **kwargs)
        if error is not None:
            raise error
        return found

    return run


class Durable:
    """Makes an oracle of KerasTuner's, which keeps its own arguments, durable.

    `admit` returns why no trial may be made of some hyperparameters, or None.
    """

    def __init__(
        self,
        *args: Any,
        admit: Callable[[dict[str, Any]], str | None],
        clock: Clock,
        directory: Path,
        **kwargs: Any,
    ) -> None:
        # Infeasible trials are no failures; errors in a row are counted by `Tuner`.
        super().__init__(*args, max_consecutive_failed_trials=2**31, **kwargs)
        self.verbose = 0
        self.rejected = []
        self._waiting = []  # trials that lost their worker
        self._admit, self._clock = admit, clock
        self.state_path = pathlib.Path(directory) / "oracle.json"  # holds everything

    def save(self) -> None:
        """Replaces the file with the present state."""
        states = [trial.get_state() for trial in self.trials.values()]
        state = {
            "oracle": self.get_state(),
            "trials": states,
            "rejected": self.rejected,
            "waiting": self._waiting,
        }
        write_json(self.state_path, state)

    def reload(self) -> None:
        """Reads the file; trials that were running wait for their next worker."""
        state = read_json(self.state_path, keys=("oracle", "trials", "rejected"))
        loaded = [kt_trials.Trial.from_state(state) for state in state["trials"]]
        self.trials = {trial.trial_id: trial for trial in loaded}
        self.rejected = state["rejected"]
        self._waiting = state.get("waiting", [])
        self.set_state(state["oracle"])
        for tuner_id in sorted(self.ongoing_trials, reverse=True):
            self._give_back(tuner_id)

    @_synchronized
    def create_trial(self, tuner_id: str) -> Any:
        """Returns a trial, STOPPED at the end, IDLE while a worker may yet lose one."""
        if self._clock.is_over():
            self.release(tuner_id)  # The trial that it had waits for more time.
            return self._no_trial(kt_trials.TrialStatus.STOPPED)
        if self._waiting and tuner_id not in self.ongoing_trials:
            return self._take_over(tuner_id)
        trial = super().create_trial(tuner_id)
        if trial.status == kt_trials.TrialStatus.STOPPED and self.ongoing_trials:
            # If a worker dies, this one is to take its trial over.
            self.tuner_ids.add(tuner_id)
            return self._no_trial(kt_trials.TrialStatus.IDLE)
        return trial

    def _no_trial(self, status):
        return kt_trials.Trial(hyperparameters=self.get_space(), status=status)

    def _take_over(self, tuner_id):
        """Hands a worker a trial whose own worker died."""
        trial = self.trials[self._waiting.pop()]
        self.tuner_ids.add(tuner_id)
        self.ongoing_trials[tuner_id] = trial
        self.save()
        return trial

    @_synchronized
    def release(self, tuner_id: str) -> None:
        """Forgets a worker; a trial that it has goes to the next worker that asks."""
        self.tuner_ids.discard(tuner_id)
        if tuner_id in self.ongoing_trials:
            self._give_back(tuner_id)
            # If the disk is full for a moment, the next save writes this too.
            with contextlib.suppress(OSError):
                self.save()

    def _give_back(self, tuner_id):
        trial = self.ongoing_trials.pop(tuner_id)
        if trial.status == kt_trials.TrialStatus.RUNNING:
            self.put_back(trial.trial_id)

    @_synchronized
    def update_trial(self, *args: Any, **kwargs: Any) -> Any:
        """Records metrics of a trial."""
        return super().update_trial(*args, **kwargs)

    @_synchronized
    def end_trial(self, trial: Any) -> None:
        """Ends a trial."""
        super().end_trial(trial)

    def put_back(self, trial_id: str) -> None:
        """Lets a trial wait for a worker, as if it had reported nothing."""
        hp, running = self.trials[trial_id].hyperparameters, "RUNNING"
        self.trials[trial_id] = kt_trials.Trial(hp, trial_id, running)
        if trial_id not in self._waiting:
            self._waiting.append(trial_id)

    @property
    @_synchronized
    def workers(self) -> set[str]:
        """The names of all active workers."""
        return self.tuner_ids | set(self.ongoing_trials)

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns values within the budget, for as long as there are any."""
        response = self._populate_within_budget(trial_id, MOST_REJECTED)
        return response or {"status": kt_trials.TrialStatus.STOPPED, "values": None}

    def _populate_within_budget(self, trial_id, most_draws):
        """Draws until values are within the budget; returns None if none are."""
        repeated = 0
        for _ in range(most_draws):
            response, known = super().populate_space(trial_id), len(self.rejected)
            values = response.get("values")
            if values is None or self._admits(values):
                return response
            self._withdraw(trial_id)
            repeated = repeated + 1 if len(self.rejected) == known else 0
            if repeated > MOST_REPEATED:
                break
        return None

    def _admits(self, values):
        """Returns whether values are within the budget; notes those that are not."""
        values = own_values(values)
        reason = self._admit(values)
        known = [drawn for drawn in self.rejected if drawn["values"] == values]
        if reason is not None and not known:
            self.rejected.append({"values": values, "reason": reason})
        if reason is None and known:  # under a smaller budget
            self.rejected.remove(known[0])
        return reason is None

    def _withdraw(self, trial_id):
        """Forgets a trial whose values were not within the budget."""


class RandomSearch(Durable, keras_tuner.oracles.RandomSearchOracle):
    """Draws at random."""


class BayesianOptimization(Durable, keras_tuner.oracles.BayesianOptimizationOracle):
    """Draws where a Gaussian process of the scores so far expects the best score."""

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns values within the budget, at random if the process finds none."""
        response = self._populate_within_budget(trial_id, MOST_PREDICTIONS)
        if response is not None:
            return response
        number = self.num_initial_points
        self.num_initial_points = len(self.trials) + 1  # so that it draws at random
        try:
            return super().populate_space(trial_id)
        finally:
            self.num_initial_points = number

    def get_state(self) -> dict[str, Any]:
        """Returns the state, with the random state that KerasTuner leaves out."""
        name, keys, *rest = self._random_numbers().get_state()
        return {**super().get_state(), "random_state": [name, keys.tolist(), *rest]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the state, with the random state."""
        super().set_state(state)
        name, keys, *rest = state["random_state"]
        self._random_numbers().set_state((name, np.array(keys, "uint32"), *rest))

    def _random_numbers(self):
        """Returns KerasTuner's random generator, its only attribute of this type."""
        kind = np.random.RandomState
        return next(x for x in vars(self).values() if isinstance(x, kind))


class Hyperband(Durable, keras_tuner.oracles.HyperbandOracle):
    """Trains many trials for few epochs, and the best of them for more."""

    def _admits(self, values):
        """Returns whether values are within the budget; promoted ones always are."""
        return "tuner/trial_id" in values or super()._admits(values)

    def _withdraw(self, trial_id):
        """Takes a trial out of the bracket that it was drawn for."""
        state = self.get_state()
        for bracket in state["brackets"]:
            drawn = bracket["rounds"][0]
            bracket["rounds"][0] = [each for each in drawn if each["id"] != trial_id]
        self.set_state(state)

    @_synchronized
    def end_trial(self, trial: Any) -> None:
        """Ends a trial; one that failed counts as the worst.

        KerasTuner fills a round of trials only if enough of the previous round have
        scores, so a few failures would end a bracket.
        """
        trial.status = kt_trials.TrialStatus.COMPLETED
        super().end_trial(trial)

    def score_trial(self, trial: Any) -> None:
        """Scores a trial; one without a score counts as the worst."""
        if trial.metrics.exists(self.objective.name):
            super().score_trial(trial)
        else:
            worst = float("inf")
            trial.score = worst if self.objective.direction == "min" else -worst


class SuccessiveHalving(Durable, keras_tuner.Oracle):
    """Draws near the best so far, and promotes good trials: see `halving`."""

    def __init__(self, *args: Any, plan: halving.Plan, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plan = plan

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Returns the next trial's values: new ones, or those of one to continue."""
        known, drawn = self._known()
        standing = halving.Standing(self._plan.within(self.hyperparameters), known)
        step = standing.next_step(drawn)
        if step is not None and step.continued is None:
            values = self._draw(standing.leader, known, drawn)
            if values is not None:
                return self._to_run({**values, halving.RUNG: step.rung})
            step = standing.next_step(math.inf)  # Only what was begun goes on.
        if step is None:
            return {"status": kt_trials.TrialStatus.STOPPED, "values": None}
        return self._to_run(standing.values_to_continue(step))

    def _to_run(self, values):
        return {"status": kt_trials.TrialStatus.RUNNING, "values": values}

    def _known(self):
        """Returns all records, and the number of draws, also those just handed out.

        A trial that was handed out has no record at first. Until it says which trial it
        continues, that one counts as running, so that no second trial continues it.
        """
        known = records.load_records(self.state_path.parent)
        settled = {
            record.trial_id
            for record in known
            if record.continued_from or record.status not in records.UNFINISHED
        }
        handed_out = [x for key, x in self.trials.items() if key not in settled]
        sources = {
            trial.hyperparameters.values.get("tuner/trial_id") for trial in handed_out
        }
        known = [
            dataclasses.replace(record, status=records.RUNNING)
            if record.trial_id in sources
            else record
            for record in known
        ]
        values = [trial.hyperparameters.values for trial in self.trials.values()]
        return known, sum("tuner/trial_id" not in each for each in values)

    def _draw(self, leader, known, drawn):
        """Returns values within the budget that were not tried; None if none are left.

        The first trial has the defaults, which are the center's. Later ones are near
        the leader: the further away, the more trials followed the leader's, and the
        more draws were refused.
        """
        space, center, failures = self.hyperparameters, {}, 0
        if leader is not None:
            center = own_values(leader.values)
            failures = sum(int(r.trial_id) > int(leader.trial_id) for r in known)
        elif drawn == 0:
            values, failures = draws.defaults(space), 1
            if self._admits(values):
                return values
        tried = [own_values(t.hyperparameters.values) for t in self.trials.values()]
        for nearest in range(failures, failures + MOST_REJECTED):
            random = Random(f"{self.seed} {drawn} {len(self.rejected)} {nearest}")
            near = range(nearest, nearest + MOST_REPEATED)  # ever further away
            drawing = itertools.chain(
                (draws.perturb(center, space, count, random) for count in near),
                (draws.sample(space, random) for _ in range(MOST_SAMPLED)),
            )
            values = next((one for one in drawing if one not in tried), None)
            if values is None or self._admits(values):
                return values
        return None


ORACLES = {
    "halving": SuccessiveHalving,
    "random": RandomSearch,
    "bayesian": BayesianOptimization,
    "hyperband": Hyperband,
}
