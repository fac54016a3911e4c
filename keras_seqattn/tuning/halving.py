"""Which training run goes on next: asynchronous successive halving around a leader.

A run is one training: a trial that was drawn, and the trials that continue it, each
from where the previous one paused.

A run pauses at rungs. Each rung is three times as long as the one before, in epochs of
the run or, where seconds are limited, in seconds. Of the runs that a rung has seen, the
best third of each kind (see below) is promoted: each continues to the next rung, in
another trial if it has paused.

Where seconds are limited, the first trial trains far before others begin, if there is
one worker: how fast it learns shows how the time is best spent. The leader is the best
run on the highest rung that any has reached, where one that has ended counts on every
rung, unless a run on a lower rung has a better score already. A share of the time is
kept for it. Promotions come first and new draws second, as long as they stay within the
rest, and draws only if all of the rest is enough for several, or if the leader overfits
(see below) in a space where nothing regularizes. Otherwise the leader trains on, until
it gets no better; only if it has ended, or runs already, are they taken all the same.
Without a limit of seconds others begin at once, and the leader goes on when nothing
else is left.

Hyperparameters that act late (more dropout, smoothing or depth, a lower rate, a longer
warm-up) look worse on a low rung than they are. Those that act early (less of these, or
a higher rate) look better. So a rung promotes by kinds: by its present values a run
acts later than the first trial, or earlier, or both, or neither, and it competes only
with runs of the same kind. A kind of fewer than three runs promotes none. All the same,
one that acts only later leads as soon as it is ahead; one that acts earlier in anything
does not lead before the run of the first trial has ended.

The leader overfits when its latest trial had its lowest validation loss some epochs
ago; in a trial that continues no other, also when that loss is clearly above the
training loss (see `runs`). Where seconds are limited it then goes on with more
regularization, in another trial, from its last epoch: the weights and the optimizer's
state. A translation model also learns both directions for a while, and trains on two
copies of each pair with a loss that makes their predictions alike.

Reference:
    Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (ASHA).
    Differs: the leader has a share of the time, runs compete by kinds, and a paused
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

# One in REDUCTION of a kind's runs that a rung has seen is promoted. The rungs are 0 to
# RUNGS - 1; a run sent to the rung RUNGS pauses nowhere.
REDUCTION, RUNGS = 3, 4
# Key among a trial's values: the number of the rung at which it pauses.
RUNG = "tuner/rung"
# The epochs that measure a trial's speed; the first one compiles.
TIMED = slice(1, 4)
# The first trial trains to FIRST_RUNG before others begin. While the leader can go on
# and learns, none is drawn unless all of the time that is not its share allows
# FEWEST_DRAWS.
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
        epochs: Most epochs of a run.
        trials: Most new trials, infinity without a limit.
        workers: Least number of processes that train at a time; others may run on
            other machines.
        regularize: Function that returns hyperparameters with more regularization, or
            the same ones where there is no more.
        bidirectional: Whether a leader that overfits also learns the other direction,
            for as many epochs as it has had, but at most half of those that the time
            left is enough for.
        consistency: Factor of the divergence between two copies of a pair, with which
            a leader that overfits goes on. Its epochs then take twice as long. 0 for
            none.
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

        When it `is_due` it pauses, unless the next step is to continue this very run as
        it is. Then it goes on in place, and the function notes the new rung in the
        record's values. A trial that is resumed begins with the rung that it was made
        for, since the study may have more time now; one made for RUNGS asks only at its
        end, or when it overfits.
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
        # Trials whose speed is known, in order: the first trial leads, if it is one.
        self._timed = [record for record in known if record.epochs[TIMED]]
        flat = [record for record in known if has_plateaued(record)]
        self._longest = max(
            (len(record.epochs) * self._epoch_cost(record) for record in flat),
            default=math.inf,
        )

    def rung_epochs(self, record: TrialRecord) -> list[int] | None:
        """Returns the number of epochs after which a run has reached each rung.

        The last rung is at most `Plan.epochs` of the run's epochs, and no longer than
        the longest training that has plateaued. With a limit of seconds it is also at
        most the leader's share, and rungs are seconds, at the speed of a run's first
        epochs, so that models are compared by what they become in the time, not by what
        they learn from a token. Whatever that allows, no rung is then shorter than
        three epochs of the first trial, or than what its compilation took; and None is
        returned while no trial's speed is known.
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

        A leader that overfits also asks, to be regularized or to wait for others.
        """
        epochs = self.rung_epochs(record)
        if epochs is None:
            return False
        limit = min(epochs[rung] if rung < RUNGS else math.inf, self._plan.epochs)
        if len(record.epochs) >= limit or has_plateaued(record):
            return True
        leader = self.leader
        leads = leader is not None and leader.trial_id == record.trial_id
        return leads and (self._is_to_regularize(record) or self._is_stuck(record))

    def score(self, record: TrialRecord, rung: int) -> float | None:
        """Returns a run's best score up to a rung, or up to its end if it is over.

        None if it has reached neither.
        """
        epochs = self.rung_epochs(record)
        if epochs is None or not record.epochs:
            return None
        limit = epochs[rung]
        if is_over(record):
            limit = min(limit, len(record.epochs))
        return record.best_until(limit, self._plan.direction)

    def next_step(self, drawn: float | None = None) -> Step | None:
        """Returns what is to be done next; None where nothing is left.

        The first that applies: where seconds are limited, a leader that overfits goes
        on with more regularization, and a first trial that is alone trains to
        FIRST_RUNG; a run is promoted; a new one is drawn. If neither of the last two is
        possible, or the first possible one `_is_too_long`, the leader goes on. If it is
        running or has ended, that one is returned all the same.

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
        if goes_on and self._is_to_regularize(leader):
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
        """The best run on the highest rung that any has reached, or one ahead of it.

        Runs that act earlier than the first trial count only once it has ended.
        """
        able, known = self._runs, self._known
        first = [r for r in able if known[0] in lineage(r, known)]
        if first and not self._has_ended(first[0]):
            able = [r for r in able if not acts_later(known[0], than=r)]
        for rung in reversed(range(RUNGS)):
            found = self._ranked(able, rung)
            if found:
                below = [r for r in able if r not in found]
                return records.best_of([found[0], *below], self._plan.direction)
        return records.best_of(able, self._plan.direction)

    def _has_ended(self, record):
        """Returns whether a run goes no further, by itself or by `Plan.epochs`."""
        return is_over(record) or len(record.epochs) >= self._plan.epochs

    def _is_to_regularize(self, record):
        """Returns whether a run is to go on with more regularization."""
        if not self._is_timed or has_plateaued(record) or not has_overfit(record):
            return False
        begin, last = record.epochs[0]["seconds"], self._regularized_seconds(record)
        if self._seconds_left < begin + PATIENCE * last:
            return False  # Compiling again would not pay off.
        more = self._regularized(record)
        # What was tried has failed, or its own trial would stand for this run.
        tried = [records.trained_values(other.values) for other in self._known]
        return more not in tried

    def _is_stuck(self, record):
        """Returns whether a run overfits in its first trial, and nothing regularizes.

        In a later one it has waited for others, or was regularized. Where seconds are
        not limited, others come first in any case.
        """
        if not self._is_timed or record.inherited_epochs or not has_overfit(record):
            return False
        return self._regularized(record) == records.trained_values(record.values)

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
        """Returns the epoch up to which a regularized run learns both directions."""
        if not self._plan.bidirectional:
            return 0
        count = len(record.epochs)
        left = self._seconds_left / self._regularized_seconds(record)
        return count + min(count, int(left / 2))

    def _ranked(self, runs, rung):
        """Returns the runs that a rung has seen, the best first.

        A run that is over counts on every rung. Another one counts on those that it was
        sent to; with long epochs it may pass others, which have not seen it.
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
            kinds = {}
            for record in self._ranked(self._runs, rung):
                kind = acts_later(record, than=first), acts_later(first, than=record)
                kinds.setdefault(kind, []).append(record)
            for alike in kinds.values():
                for record in alike[: len(alike) // REDUCTION]:
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
        """Returns the rung that a run trains to, the last one if it pauses nowhere.

        Rungs that the first trial reaches after the same epoch count as one; the last
        of them is returned.
        """
        rung = min(record.values.get(RUNG, RUNGS), RUNGS - 1)
        epochs = self.rung_epochs(self._known[0])
        return max(r for r in range(RUNGS) if epochs[r] == epochs[rung])

    def _is_too_long(self, step):
        """Returns whether the time outside the leader's share is too short for a step.

        For a draw, it must be enough for `FEWEST_DRAWS` in all, since one shows little;
        for this one alone if the leader `_is_stuck`.
        """
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
            fewest = 1 if self._is_stuck(leader) else FEWEST_DRAWS
            return others + cost > time or fewest * cost > time
        source = self._source(step)
        epochs = self.rung_epochs(source)[step.rung]
        cost = (epochs - len(source.epochs)) * source.epochs[-1]["seconds"]
        return others + cost > time
