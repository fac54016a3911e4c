"""KerasTuner's oracles, made to survive a kill, and to draw nothing over budget.

An oracle's whole state, its trials and random state included, is one file that is
replaced at once. What KerasTuner writes beside it is not read again.
"""

import pathlib

import keras_tuner
import numpy as np
from keras_tuner.engine import trial as trials

from keras_seqattn.tuning.records import read_json, write_json

# Draws in a row that may be over budget before the space is taken for exhausted.
MOST_REJECTED = 1000


class Durable:
    """What is added to each of KerasTuner's oracles.

    Args:
        *args: The oracle's own arguments.
        admit: A function of a dict of hyperparameters, that gives None where a trial
            may be made of them, else the reason why not.
        clock: The study's `Clock`.
        **kwargs: The oracle's own arguments.
    """

    def __init__(self, *args, admit, clock, **kwargs):
        # What is not feasible is no failure, nor is one trial's loss that of all.
        super().__init__(*args, max_consecutive_failed_trials=2**31, **kwargs)
        self.verbose = 0
        self.rejected = []
        self._admit, self._clock = admit, clock

    @property
    def state_path(self):
        """The file that holds everything."""
        return pathlib.Path(self._project_dir) / "oracle.json"

    def save(self):
        """Replaces the file."""
        states = [trial.get_state() for trial in self.trials.values()]
        state = {
            "oracle": self.get_state(),
            "trials": states,
            "rejected": self.rejected,
        }
        write_json(self.state_path, state)

    def reload(self):
        """Reads the file; trials that were running wait for their next worker."""
        state = read_json(self.state_path, keys=("oracle", "trials", "rejected"))
        loaded = [trials.Trial.from_state(state) for state in state["trials"]]
        self.trials = {trial.trial_id: trial for trial in loaded}
        self.rejected = state["rejected"]
        self.set_state(state["oracle"])
        for tuner_id in sorted(self.ongoing_trials, reverse=True):
            self._give_back(tuner_id)

    @keras_tuner.synchronized
    def create_trial(self, tuner_id):
        """Returns a trial: none when time is over, none yet while one may come back."""
        if self._clock.is_over():
            return self._no_trial(tuner_id, trials.TrialStatus.STOPPED)
        trial = super().create_trial(tuner_id)
        if trial.status == trials.TrialStatus.STOPPED and self.ongoing_trials:
            # Should their worker die, this one is to take over.
            return self._no_trial(tuner_id, trials.TrialStatus.IDLE)
        return trial

    def _no_trial(self, tuner_id, status):
        stopped = status == trials.TrialStatus.STOPPED
        (self.tuner_ids.discard if stopped else self.tuner_ids.add)(tuner_id)
        return trials.Trial(hyperparameters=self.get_space(), status=status)

    @keras_tuner.synchronized
    def release(self, tuner_id):
        """Forgets a worker that died, whose trial goes to the next that asks.

        Args:
            tuner_id: The worker's name.
        """
        self.tuner_ids.discard(tuner_id)
        if tuner_id in self.ongoing_trials:
            self._give_back(tuner_id)
            self.save()

    def _give_back(self, tuner_id):
        """Puts a running trial back in the queue, as if nothing was reported of it."""
        trial = self.ongoing_trials.pop(tuner_id)
        if trial.status == trials.TrialStatus.RUNNING:
            fresh = trials.Trial(trial.hyperparameters, trial.trial_id, trial.status)
            self.trials[trial.trial_id] = fresh
            self._retry_queue.append(trial.trial_id)

    @property
    @keras_tuner.synchronized
    def workers(self):
        """The names of all workers that are at it."""
        return self.tuner_ids | set(self.ongoing_trials)

    def _random_values(self):
        """Draws values within the budget; None where there are none left."""
        for _ in range(MOST_REJECTED):
            values = super()._random_values()
            if values is None or self._admits(values):
                return values
        return None

    def _admits(self, values):
        reason = self._admit(values)
        if reason is not None:
            self.rejected.append({"values": dict(values), "reason": reason})
            self._tried_so_far.add(self._compute_values_hash(values))
        return reason is None


class RandomSearch(Durable, keras_tuner.oracles.RandomSearchOracle):
    """Draws at random."""


class BayesianOptimization(Durable, keras_tuner.oracles.BayesianOptimizationOracle):
    """Draws where a Gaussian process of the scores so far expects most."""

    def populate_space(self, trial_id):
        """Returns values within the budget, at random where the process knows none."""
        for _ in range(10):
            response = super().populate_space(trial_id)
            values = response.get("values")
            if values is None or self._admit(values) is None:
                return response
            self._admits(values)
        return self._random_populate_space()

    def get_state(self):
        """Adds the random state, which KerasTuner forgets."""
        name, keys, *rest = self._random_state.get_state()
        return {**super().get_state(), "random_state": [name, keys.tolist(), *rest]}

    def set_state(self, state):
        """Sets the random state too."""
        super().set_state(state)
        name, keys, *rest = state["random_state"]
        self._random_state.set_state((name, np.array(keys, "uint32"), *rest))


class Hyperband(Durable, keras_tuner.oracles.HyperbandOracle):
    """Trains many trials for few epochs, and the best of them for more."""

    @keras_tuner.synchronized
    def end_trial(self, trial):
        """Ends a trial; one that failed counts as the worst.

        KerasTuner fills a round of trials only where enough of the last one have
        scores, so that a few failures would end a bracket.
        """
        if trial.status != trials.TrialStatus.COMPLETED:
            trial.status = trials.TrialStatus.COMPLETED
        super().end_trial(trial)

    def score_trial(self, trial):
        """Scores a trial, one without a score as the worst."""
        if trial.metrics.exists(self.objective.name):
            super().score_trial(trial)
        else:
            worst = float("inf")
            trial.score = worst if self.objective.direction == "min" else -worst


ORACLES = {
    "random": RandomSearch,
    "bayesian": BayesianOptimization,
    "hyperband": Hyperband,
}
