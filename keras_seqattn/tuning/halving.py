"""Which training run goes on next: asynchronous successive halving around a leader.

A run is one training: a trial that was drawn, and the trials that continue it, each
from where the previous one paused.

A run pauses at rungs. Each rung is three times as long as the one before, in epochs of
the run or, where seconds are limited, in seconds. The best third of the runs that a
rung has seen is promoted: each continues to the next rung, in another trial, from where
it paused.

Where seconds are limited, the first trial trains far before others begin, if there is
one worker: it leads, so none of that is wasted, and how fast it learns shows how the
time is best spent. Then promotions come first and new draws second, as long as they
stay within the time that is not the leader's share. New ones are drawn only if that
time is enough for several. Otherwise the leader trains on, the best run on the highest
rung that any has reached, until it gets no better. Without a limit of seconds others
begin at once, and the leader goes on when nothing else is left.

Hyperparameters that act late (more dropout, smoothing or depth, a lower rate, a longer
warm-up) look worse on a low rung than they are. Those that act early (less of these, or
a higher rate) look better. So a rung promotes by groups: runs that act later or earlier
than the first trial, or both, compete only with runs of the same kind, and a kind of
fewer than three runs promotes none. All the same, one that acts later leads as soon as
it is ahead; one that acts earlier does not lead before the first trial has come to its
end.

The leader overfits when its validation loss rises; in a trial that continues no other,
also when that is far above the training loss, or above it and has almost stopped
falling. Where seconds are limited it then goes on with more regularization, from its
weights and its optimizer's state. A translation model also learns both directions for a
while, and trains on two copies of each pair with a loss that makes their predictions
alike.

Reference:
    Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (ASHA).
    Differs: the leader has a share of the time, runs compete in groups, and a paused
    run is never repeated.
    Jaderberg et al. 2017, "Population Based Training of Neural Networks": a run that
    goes on with different hyperparameters. Differs: only with more regularization.
    Ding et al. 2021, "Improving Neural Machine Translation by Bidirectional Training".
    Differs: not from the start, but once training in one direction overfits.
    Wu et al. 2021, "R-Drop". Differs: not from the start either.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from keras_seqattn.annotations import Path
from keras_seqattn.tuning import records
from keras_seqattn.tuning.draws import regularize
from keras_seqattn.tuning.records import TrialRecord
from keras_seqattn.tuning.runs import (
    PATIENCE,
    acts_later,
    has_overfit,
    has_plateaued,
    is_over,
    latest_records,
    lineage,
)

if TYPE_CHECKING:
    import keras_tuner

# One in REDUCTION of the runs that a rung has seen is promoted. The rungs are 0 to
# RUNGS - 1; a run sent to the rung RUNGS pauses nowhere.
REDUCTION, RUNGS = 3, 4
# Key among a trial's values: the number of the rung at which it pauses.
RUNG = "tuner/rung"
# The epochs that measure a trial's speed; the first one compiles.
TIMED = slice(1, 4)
# The first trial trains to FIRST_RUNG before others begin. New runs are drawn only if
# the time that is not the leader's is enough for FEWEST_DRAWS of them.
FIRST_RUNG, FEWEST_DRAWS = RUNGS - 2, 6


@dataclasses.dataclass(frozen=True)
class Step:
    """What is to be done next: a run trains until it pauses at a rung, counted from 0.

    The rung `RUNGS`, one past the last, means that it pauses nowhere. `continued` is
    the id of the trial to continue, None for a new one. With `regularized` it goes on
    with more regularization.
    """

    rung: int
    continued: str | None = None
    regularized: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the time of a study is spent.

    Attributes:
        direction: "min" or "max", of the score.
        tokens: Function of a record that returns how long an epoch of its trial is, in
            a unit that all trials share.
        seconds: The seconds that the study has, infinity without a limit.
        share: Share of these seconds for the leader, in [0, 1).
        epochs: Most epochs of a trial.
        trials: Most new trials, infinity without a limit.
        workers: Least number of processes that train at a time; others may run on
            other machines.
        regularize: Function that returns hyperparameters with more regularization, or
            the same ones where there is no more.
        bidirectional: Whether a run that overfits also learns the other direction, for
            as many epochs as it has had, but at most half of those that the time left
            is enough for.
        consistency: Factor of the divergence between two copies of a pair, with which
            a run that overfits goes on. Its epochs then take twice as long. 0 for none.
    """

    direction: str
    tokens: Callable[[TrialRecord], float]
    seconds: float
    share: float
    epochs: int
    trials: float = math.inf
    workers: int = 1
    regularize: Callable[[dict[str, Any]], dict[str, Any]] = dict  # a copy: no more
    bidirectional: bool = False
    consistency: float = 0.0

    def within(self, hyperparameters: "keras_tuner.HyperParameters") -> Self:
        """Returns the plan whose `regularize` knows the hyperparameters of a space."""
        more = functools.partial(regularize, hyperparameters=hyperparameters)
        return dataclasses.replace(self, regularize=more)

    def pauses(self, rung: int, directory: Path) -> Callable[[TrialRecord], bool]:
        """Returns a function that tells from a run's record whether the run pauses.

        At its rung it pauses, unless the next step is to continue this very run. Then
        it goes on in place, and the function notes the new rung in the record's values.
        A run that is resumed begins with the rung it was sent to, since the study may
        have more time now; one sent to RUNGS asks only at its end, or when it overfits.
        """

        def is_paused(record):
            nonlocal rung
            known = [
                dataclasses.replace(record, status=records.PAUSED)
                if other.trial_id == record.trial_id
                else other
                for other in records.load_records(directory)
            ]
            standing = Standing(self, known)
            if not standing.is_due(record, rung):
                return False
            step = standing.next_step()
            if step is None or step.continued != record.trial_id or step.regularized:
                return True
            record.values[RUNG] = rung = step.rung
            return False

        return is_paused


class Standing:
    """How far the runs of a study are, and what is to be done next.

    `known` holds the records of all trials; the unfinished ones count as running.
    """

    def __init__(self, plan: Plan, known: Sequence[TrialRecord]) -> None:
        self._plan, self._known, self._runs = plan, known, latest_records(known)
        self._is_timed = math.isfinite(plan.seconds)
        # Trials whose speed is known, in order, so the first trial stands first.
        self._timed = [record for record in known if record.epochs[TIMED]]
        ended = [record for record in known if has_plateaued(record)]
        self._longest = max(
            (len(record.epochs) * self._epoch_cost(record) for record in ended),
            default=math.inf,
        )

    def rung_epochs(self, record: TrialRecord) -> list[int] | None:
        """Returns the number of epochs after which a run has reached each rung.

        Without a limit of seconds the last rung is `Plan.epochs` of the run's own
        epochs. With one, rungs are seconds, so that models are compared by what they
        become in the time, not by what they learn from a token. The last rung is then
        at most the leader's share of the seconds; no rung is shorter than three epochs
        of the first trial, or than what its compilation took; None is returned while no
        trial's speed is known. In both cases the last rung is no longer than the
        longest training that has plateaued.
        """
        plan, least = self._plan, 0.0
        if self._is_timed and not self._timed:
            return None
        epoch = self._epoch_cost(record)
        last = min(plan.epochs * epoch, self._longest)
        if self._is_timed:
            last = min(last, plan.share * plan.seconds)
            first = self._epoch_cost(self._timed[0])
            compiling = self._timed[0].epochs[0]["seconds"] - first
            least = max(compiling, records.FEW_EPOCHS * first)
        rungs = [max(last / REDUCTION**i, least) for i in reversed(range(RUNGS))]
        # Rounded first, so that 3.0000000001 epochs are not 4.
        return [max(1, math.ceil(round(rung / epoch, 6))) for rung in rungs]

    def _epoch_cost(self, record):
        """Returns the seconds of an epoch where they are limited, else its tokens.

        Until a run's own speed is known, the first trial's serves as an estimate.
        """
        tokens = self._plan.tokens
        if not self._is_timed:
            return tokens(record)
        like = record if record.epochs[TIMED] else self._timed[0]
        seconds = statistics.median(epoch["seconds"] for epoch in like.epochs[TIMED])
        return seconds * tokens(record) / tokens(like)

    def is_due(self, record: TrialRecord, rung: int) -> bool:
        """Returns whether a run is to ask what is next: at its rung, or at its end.

        A leader that overfits is also to ask.
        """
        epochs = self.rung_epochs(record)
        if epochs is None:
            return False
        limit = min(epochs[rung] if rung < RUNGS else math.inf, self._plan.epochs)
        if len(record.epochs) >= limit or has_plateaued(record):
            return True
        leader = self.leader
        leads = leader is not None and leader.trial_id == record.trial_id
        return leads and self._overfits(record)

    def score(self, record: TrialRecord, rung: int) -> float | None:
        """Returns a run's best score up to a rung; None if it is not there yet."""
        epochs = self.rung_epochs(record)
        if epochs is None or not record.epochs:
            return None
        limit = epochs[rung]
        if is_over(record):
            limit = min(limit, len(record.epochs))
        return record.best_until(limit, self._plan.direction)

    def next_step(self, drawn: int | None = None) -> Step | None:
        """Returns what is to be done next; None where nothing is left.

        The first that applies: where seconds are limited, a leader that overfits goes
        on with more regularization, and a first trial that is alone trains to
        FIRST_RUNG; a run is promoted; a new one is drawn. If neither of the last two is
        possible, or the first possible one takes more than `_is_too_long` allows, the
        leader goes on, unless it is running or has come to its end.

        `drawn` is the number of trials that were drawn; None counts the records.
        """
        if drawn is None:
            drawn = sum(record.continued_from is None for record in self._known)
        new = Step(0) if drawn < self._plan.trials else None
        leader = self.leader
        if leader is None:
            return new
        is_running = leader.status in records.UNFINISHED
        goes_on = not is_running and not self._has_ended(leader)
        if goes_on and self._overfits(leader):
            return Step(leader.values.get(RUNG, RUNGS), leader.trial_id, True)
        alone = len(self._runs) == 1 and self._is_timed
        if goes_on and alone and self.score(leader, FIRST_RUNG) is None:
            return Step(FIRST_RUNG, leader.trial_id)
        step = self._promotion() or new
        if goes_on and (step is None or self._is_too_long(step)):
            return Step(RUNGS, leader.trial_id)
        return step

    def values_to_continue(self, step: Step) -> dict[str, Any]:
        """Returns the values of the trial that continues a run, for a step."""
        source = self._source(step)
        values = records.trained_values(source.values)
        bidirectional = source.bidirectional_epochs
        if step.regularized:
            values = self._regularized(source)
            bidirectional = bidirectional or self._bidirectional(source)
        if bidirectional:
            values[records.BIDIRECTIONAL_EPOCHS] = bidirectional
        return {**values, "tuner/trial_id": source.trial_id, RUNG: step.rung}

    def _source(self, step):
        """Returns the record that a step goes on from."""
        return next(r for r in self._known if r.trial_id == step.continued)

    @functools.cached_property
    def leader(self) -> TrialRecord | None:
        """The best run on the highest rung that any has reached.

        Runs that act earlier than the first trial count only once it has ended.
        """
        able, known = self._runs, self._known
        first = [r for r in able if known[0] in lineage(r, known)]
        if first and not self._has_ended(first[0]):
            able = [r for r in able if not acts_later(known[0], than=r)]
        for rung in reversed(range(RUNGS)):
            found = self._ranked(able, rung)
            if found:
                return found[0]
        return records.best_of(able, self._plan.direction)

    def _has_ended(self, record):
        """Returns whether a run goes no further, by itself or by `Plan.epochs`."""
        return is_over(record) or len(record.epochs) >= self._plan.epochs

    def _overfits(self, record):
        """Returns whether a run is to go on with more regularization."""
        if not self._is_timed or has_plateaued(record) or not has_overfit(record):
            return False
        begin, last = record.epochs[0]["seconds"], self._regularized_seconds(record)
        if self._seconds_left < begin + PATIENCE * last:
            return False  # Compiling again would not pay off.
        more = self._regularized(record)
        # If it was tried and failed, it would fail again.
        tried = [records.trained_values(other.values) for other in self._known]
        return more not in tried

    def _regularized(self, record):
        """Returns the values with which a run that overfits goes on."""
        values = records.trained_values(record.values)
        if self._plan.consistency:
            values[records.CONSISTENCY] = self._plan.consistency
        return values | self._plan.regularize(records.own_values(values))

    def _regularized_seconds(self, record):
        """Returns the seconds that an epoch takes once it goes on regularized."""
        # Two copies of each pair take twice the time.
        is_new = self._plan.consistency and not record.consistency
        return record.epochs[-1]["seconds"] * (2 if is_new else 1)

    @property
    def _seconds_left(self):
        """The seconds after the last epoch that any process has noted."""
        epochs = (epoch for record in self._known for epoch in record.epochs)
        return self._plan.seconds - max(epoch.get("at", 0.0) for epoch in epochs)

    def _bidirectional(self, record):
        """Returns the epoch up to which a run that overfits learns both directions."""
        if not self._plan.bidirectional:
            return 0
        count = len(record.epochs)
        left = self._seconds_left / self._regularized_seconds(record)
        return count + min(count, int(left / 2))

    def _ranked(self, runs, rung):
        """Returns the runs that a rung has seen, the best first.

        A run with long epochs may also pass rungs that it was not sent to, which have
        not seen it.
        """
        scores = {r.trial_id: self.score(r, rung) for r in runs}
        seen = [
            r
            for r in runs
            if scores[r.trial_id] is not None
            and (is_over(r) or self._sent_to(r) >= rung)
        ]
        reverse = self._plan.direction == "max"
        return sorted(seen, key=lambda r: scores[r.trial_id], reverse=reverse)

    def _promotion(self):
        """Returns the step that promotes a paused run, the highest rung first."""
        first = self._known[0]
        for rung in reversed(range(RUNGS - 1)):
            groups = {}
            for record in self._ranked(self._runs, rung):
                kind = acts_later(record, than=first), acts_later(first, than=record)
                groups.setdefault(kind, []).append(record)
            for group in groups.values():
                for record in group[: len(group) // REDUCTION]:
                    if self._is_paused_at(record, rung):
                        return Step(rung + 1, record.trial_id)
        return None

    def _is_paused_at(self, record, rung):
        """Returns whether a run waits at a rung to be promoted from it.

        Either it has not reached the next rung, or its epochs are so long that it
        passed that rung without being sent there.
        """
        if record.status in records.UNFINISHED or is_over(record):
            return False
        if self.score(record, rung + 1) is None:
            return True
        return self._sent_to(record) == rung

    def _sent_to(self, record):
        """Returns the rung at which a run pauses.

        Rungs that the first trial reaches after the same epoch count as one; the last
        of them is returned.
        """
        rung = min(record.values.get(RUNG, RUNGS), RUNGS - 1)
        epochs = self.rung_epochs(self._known[0])
        return max(r for r in range(RUNGS) if epochs[r] == epochs[rung])

    def _is_too_long(self, step):
        """Returns whether a step takes more time than the leader's share leaves."""
        leader, plan = self.leader, self._plan
        if not self._is_timed or step.continued == leader.trial_id:
            return False
        own = sum(record.seconds for record in lineage(leader, self._known))
        others = sum(record.seconds for record in self._known) - own
        # All workers have `workers * seconds`, of which the leader, on one of them,
        # keeps `share * seconds`. Each trains one run; this one asks for its next.
        running = sum(record.status == records.RUNNING for record in self._known)
        time = (max(plan.workers, 1 + running) - plan.share) * plan.seconds
        if step.continued is None:
            # A draw costs about what the leader took to reach that rung.
            epochs = self.rung_epochs(leader)[step.rung]
            cost = sum(epoch["seconds"] for epoch in leader.epochs[:epochs])
            # One draw alone shows little: there must be time for FEWEST_DRAWS.
            return others + cost > time or FEWEST_DRAWS * cost > time
        source = self._source(step)
        epochs = self.rung_epochs(source)[step.rung]
        cost = (epochs - len(source.epochs)) * source.epochs[-1]["seconds"]
        return others + cost > time
