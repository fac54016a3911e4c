"""Which training run goes on next: asynchronous successive halving around a leader.

A run is one training: a trial that was drawn, and the trials that go on from it, each
from where the one before it paused.

A run pauses at rungs, each three times as many target tokens, or seconds where they are
limited, as the one before. The best third of those that a rung has seen goes on to the
next rung, in another trial, from where it paused. A part of the time is spent so, if
that is enough for several; the rest belongs to the leader, the best at the highest rung
that any has reached, until it gets no better. The first trial is far on its way before
others begin: it leads, so that nothing of it is lost, and how fast it learns says how
the time is best spent.

What acts late (dropout, smoothing, depth, a lower rate, a longer warm-up) looks worse
than it is on a low rung, and what acts early, less of these or a higher rate, looks
better. So a rung promotes by groups: runs that act later or earlier than the first
trial compete only with their like. One that acts later leads as soon as it is ahead
nevertheless; one that acts earlier does not lead before the first trial has come to its
end. Where the loss of the leader's validation rises, is far above that of its training,
or is above it and has all but stopped falling, it overfits: it goes on, from its
weights and its optimizer's state, with more of what regularizes. A translation then
learns both directions for a while, and trains on two copies of each pair with a loss
that makes their predictions alike.

Reference:
    Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning" (ASHA).
    Differs: the leader's share of the time, the groups, and that a paused run is never
    repeated.
    Jaderberg et al. 2017, "Population Based Training of Neural Networks": a run that
    goes on with other hyperparameters. Differs: only with more that regularizes.
    Ding et al. 2021, "Improving Neural Machine Translation by Bidirectional Training".
    Differs: not from the start, but once the one direction overfits.
    Wu et al. 2021, "R-Drop". Differs: not from the start either.
"""

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from keras_seqattn.annotations import Path
from keras_seqattn.tuning import records
from keras_seqattn.tuning.draws import REGULARIZERS, regularize
from keras_seqattn.tuning.records import TrialRecord

if TYPE_CHECKING:
    import keras_tuner

# Of which the best goes on; and rungs between the first and the last.
REDUCTION, RUNGS = 3, 4
# Beside a trial's hyperparameters: the number of the rung at which it pauses.
RUNG = "tuner/rung"
# The epochs whose seconds are a trial's speed: the first one compiles.
TIMED = slice(1, 4)
# Rung to which the first trial goes before others begin, and new runs for which
# the others' share must have the time.
FIRST_RUNG, FEWEST_DRAWS = RUNGS - 2, 6
# Epochs without a better one after which a run is as good as it gets; or as many as
# those up to the best one, if that is more: where a score is noisy, as an accuracy is,
# several epochs are no better by chance alone, and even worse one after another.
PATIENCE = 8
# A run overfits so many epochs after the validation's loss was lowest; one that went on
# from no other, as soon as the training's loss is lower by this share of it, or by the
# smaller one if the validation's fell by no more than this share in as many epochs.
RISING, APART = 4, 0.25
STALLED_APART, STALLED = 0.1, 0.005
# How the names of hyperparameters end of which more acts late, and less does.
LATE_IF_MORE = (*REGULARIZERS, "layers", "warmup_steps")
LATE_IF_LESS = ("learning_rate", "lr")


@dataclasses.dataclass(frozen=True)
class Step:
    """What is to be done next: a run that pauses at a rung, counted from 0.

    `continued` is the id of the trial that goes on, None for a new one; with
    `regularized` it goes on with more of what keeps it from overfitting, and with both
    directions until as many epochs as `bidirectional_epochs`.
    """

    rung: int
    continued: str | None = None
    regularized: bool = False
    bidirectional_epochs: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the time of a study is for.

    Attributes:
        direction: "min" or "max", of the score.
        tokens: How long an epoch of a trial is, in units that all trials share.
        seconds: Those that the study has, infinity without a limit.
        share: Share of them for the leader, in [0, 1).
        epochs: Most epochs of a trial.
        trials: Most new trials, infinity without a limit.
        workers: Number of processes that train at a time.
        regularize: Returns hyperparameters with more of what keeps a model from
            overfitting; the same where there is no more.
        bidirectional: Whether what overfits also learns the other direction, for as
            many epochs as it has had, or half of those that the time is for.
        consistency: Factor of the divergence between two copies of a pair with which
            what overfits goes on, in epochs that take twice as long; 0 for none.
    """

    direction: str
    tokens: Callable[[TrialRecord], float]
    seconds: float
    share: float
    epochs: int
    trials: float = math.inf
    workers: int = 1
    regularize: Callable[[dict[str, Any]], dict[str, Any]] = dict
    bidirectional: bool = False
    consistency: float = 0.0

    def within(self, hyperparameters: "keras_tuner.HyperParameters") -> Self:
        """Returns the plan that regularizes the hyperparameters of a space."""
        more = functools.partial(regularize, hyperparameters=hyperparameters)
        return dataclasses.replace(self, regularize=more)

    def pauses(self, rung: int, directory: Path) -> Callable[[TrialRecord], bool]:
        """Returns a function of a run's record: whether it pauses at its rung.

        It goes on in place where that is what is to be done next.
        """

        def pauses(record):
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

        return pauses


class Standing:
    """How far the runs of a study are, and what is to be done next.

    Of `known`, the records of all trials, those that are unfinished are being run.
    """

    def __init__(self, plan: Plan, known: Sequence[TrialRecord]) -> None:
        self._plan, self._known, self._runs = plan, known, latest_records(known)
        self._is_timed = math.isfinite(plan.seconds)
        # Those that have shown their speed, the first trial before others.
        self._timed = [record for record in known if record.epochs[TIMED]]
        ended = [record for record in known if has_plateaued(record)]
        self._longest = max(
            (len(record.epochs) * self._epoch_cost(record) for record in ended),
            default=math.inf,
        )

    def rung_epochs(self, record: TrialRecord) -> list[int] | None:
        """Returns the number of epochs after which a run has reached each rung.

        Rungs are tokens; with a limit of seconds they are seconds, so that a model is
        compared for what it becomes in the time, and not by what it learns from a
        token. The last is then the leader's share of them, or what the longest training
        needed that got no better; and none is shorter than what a first step costs,
        which compiles, or than three epochs of the first trial. None while that has not
        shown its speed.
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
        return [max(1, math.ceil(round(rung / epoch, 6))) for rung in rungs]

    def _epoch_cost(self, record):
        """Returns the seconds of an epoch where they are limited, else its tokens.

        Those of a run that has not shown its speed are guessed by the first's.
        """
        tokens = self._plan.tokens
        if not self._is_timed:
            return tokens(record)
        like = record if record.epochs[TIMED] else self._timed[0]
        seconds = statistics.median(epoch["seconds"] for epoch in like.epochs[TIMED])
        return seconds * tokens(record) / tokens(like)

    def is_due(self, record: TrialRecord, rung: int) -> bool:
        """Returns whether a run is to ask what is next: at a rung, or at its end.

        A leader that overfits asks, too.
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
        """Returns the best score up to a rung; None of a run not there yet."""
        epochs = self.rung_epochs(record)
        if epochs is None or not record.epochs:
            return None
        limit = epochs[rung]
        if is_over(record):
            limit = min(limit, len(record.epochs))
        return record.best_until(limit, self._plan.direction)

    def next_step(self, drawn: int | None = None) -> Step | None:
        """Returns what is to be done next; None where nothing is left.

        `drawn` is the number of trials that were drawn; None: those of the records.
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
            rung, epochs = leader.values.get(RUNG, RUNGS), self._bidirectional(leader)
            return Step(rung, leader.trial_id, True, epochs)
        alone = len(self._runs) == 1 and self._is_timed
        if goes_on and alone and self.score(leader, FIRST_RUNG) is None:
            return Step(FIRST_RUNG, leader.trial_id)
        step = self._promotion() or new
        if goes_on and (step is None or self._is_spent(step)):
            return Step(RUNGS, leader.trial_id)
        return step

    def continued(self, step: Step) -> dict[str, Any]:
        """Returns the values of the trial with which a run goes on, for a step."""
        source = self._source(step)
        values = records.trained_values(source.values)
        if step.regularized:
            values = self._regularized(source)
        bidirectional = step.bidirectional_epochs or source.bidirectional_epochs
        if bidirectional:
            values[records.BIDIRECTIONAL_EPOCHS] = bidirectional
        return {**values, "tuner/trial_id": source.trial_id, RUNG: step.rung}

    def _source(self, step):
        """Returns the record that a step goes on from."""
        return next(r for r in self._known if r.trial_id == step.continued)

    @functools.cached_property
    def leader(self) -> TrialRecord | None:
        """The best run at the highest rung that any has reached.

        Those that act earlier than the first trial count when that has come to its end.
        """
        able, known = self._runs, self._known
        first = [r for r in able if known[0] in lineage(r, known)]
        if first and not self._has_ended(first[0]):
            able = [r for r in able if not acts_early(r, known[0])]
        for rung in reversed(range(RUNGS)):
            found = self._ranked(able, rung)
            if found:
                return found[0]
        return records.best_of(able, self._plan.direction)

    def _has_ended(self, record):
        return is_over(record) or len(record.epochs) >= self._plan.epochs

    def _overfits(self, record):
        """Returns whether a run is to go on with more of what regularizes."""
        if not self._is_timed or has_plateaued(record):
            return False
        if not has_overfit(record):
            return False
        begin, last = record.epochs[0]["seconds"], self._regularized_seconds(record)
        if self._seconds_left < begin + PATIENCE * last:
            return False  # It would compile and be of no use.
        more = self._regularized(record)
        # If it was tried and failed, it would fail again.
        tried = [records.trained_values(other.values) for other in self._known]
        return more not in tried

    def _regularized(self, record):
        """Returns the values with which a run goes on that overfits."""
        values = records.trained_values(record.values)
        if self._plan.consistency:
            values[records.CONSISTENCY] = self._plan.consistency
        return values | self._plan.regularize(records.own_values(values))

    def _regularized_seconds(self, record):
        """Returns the seconds of an epoch of a run that then goes on so."""
        is_new = self._plan.consistency and not record.consistency
        return record.epochs[-1]["seconds"] * (2 if is_new else 1)

    @property
    def _seconds_left(self):
        spent = sum(record.seconds for record in self._known)
        return self._plan.seconds - spent / self._plan.workers

    def _bidirectional(self, record):
        """Returns until which epoch a run that overfits learns both directions."""
        if not self._plan.bidirectional or record.bidirectional_epochs:
            return 0
        count = len(record.epochs)
        left = self._seconds_left / self._regularized_seconds(record)
        return count + min(count, int(left / 2))

    def _ranked(self, runs, rung):
        """Returns the runs that a rung has seen, the best first.

        One that is slow may have come further than it was sent.
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
                kind = acts_late(record, first), acts_early(record, first)
                groups.setdefault(kind, []).append(record)
            for group in groups.values():
                for record in group[: len(group) // REDUCTION]:
                    if self._is_paused_at(record, rung):
                        return Step(rung + 1, record.trial_id)
        return None

    def _is_paused_at(self, record, rung):
        if record.status in records.UNFINISHED or is_over(record):
            return False
        if self.score(record, rung + 1) is None:
            return True
        return self._sent_to(record) == rung

    def _sent_to(self, record):
        """Returns the rung at which a run pauses, the last of those that are one.

        Rungs are one where they are after the same epoch of the first trial.
        """
        rung = min(record.values.get(RUNG, RUNGS), RUNGS - 1)
        epochs = self._rungs_of_first
        return max(r for r in range(RUNGS) if epochs[r] == epochs[rung])

    @functools.cached_property
    def _rungs_of_first(self):
        return self.rung_epochs(self._known[0])

    def _is_spent(self, step):
        """Returns whether a step takes more time than the leader's share leaves."""
        leader, plan = self.leader, self._plan
        if not self._is_timed or step.continued == leader.trial_id:
            return False
        own = sum(record.seconds for record in lineage(leader, self._known))
        others = sum(record.seconds for record in self._known) - own
        time = (plan.workers - plan.share) * plan.seconds
        if step.continued is None:
            epochs = self.rung_epochs(leader)[step.rung]
            cost = sum(epoch["seconds"] for epoch in leader.epochs[:epochs])
            return others + cost > time or FEWEST_DRAWS * cost > time
        source = self._source(step)
        epochs = self.rung_epochs(source)[step.rung]
        cost = (epochs - len(source.epochs)) * source.epochs[-1]["seconds"]
        return others + cost > time


def latest_records(known: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Returns, of each run that counts, the record that holds all its epochs.

    A trial that failed with other values than the one it went on from leaves that one
    to go on; with the same values that would fail again.
    """
    by_id = {record.trial_id: record for record in known}
    continued = {
        record.continued_from
        for record in known
        if record.continued_from is not None
        and (
            record.status in records.COUNTED
            or records.trained_values(record.values)
            == records.trained_values(by_id[record.continued_from].values)
        )
    }
    return [
        record
        for record in known
        if record.trial_id not in continued and record.status in records.COUNTED
    ]


def has_plateaued(record: TrialRecord) -> bool:
    """Returns whether a run's best epoch is long past.

    Epochs of both directions are no sign of it.
    """
    best = record.best_epoch or 0
    begin = max(best, record.bidirectional_epochs)
    return len(record.epochs) - begin >= max(PATIENCE, best)


def is_over(record: TrialRecord) -> bool:
    """Returns whether a run goes on no more: a callback may have ended it, too."""
    return record.status == records.COMPLETED or has_plateaued(record)


def has_overfit(record: TrialRecord) -> bool:
    """Returns whether the losses of a run's own epochs say that it overfits.

    Those of both directions do not count.
    """
    begin = max(record.inherited_epochs, record.bidirectional_epochs)
    own = record.epochs[begin:]
    losses = [epoch["val_loss"] for epoch in own if "val_loss" in epoch]
    if not losses:
        return False
    if len(losses) - losses.index(min(losses)) > RISING:
        return True
    if record.inherited_epochs:
        return False
    last = abs(losses[-1])
    gap = losses[-1] - own[-1].get("loss", losses[-1])
    before = losses[-1 - RISING] if len(losses) > RISING else math.inf
    has_stalled = before - losses[-1] <= STALLED * last
    return gap > (STALLED_APART if has_stalled else APART) * last


def lineage(record: TrialRecord, known: Sequence[TrialRecord]) -> Iterator[TrialRecord]:
    """Yields the records of a run, the last first: those that it goes on from."""
    by_id = {each.trial_id: each for each in known}
    while record is not None:
        yield record
        record = by_id.get(record.continued_from)


def acts_late(record: TrialRecord, first: TrialRecord) -> bool:
    """Returns whether a trial has more of what shows late than the study's first."""
    for name in record.values.keys() & first.values.keys():
        value, other = record.values[name], first.values[name]
        if not isinstance(value, int | float) or not isinstance(other, int | float):
            continue
        if name.endswith(LATE_IF_MORE) and value > other:
            return True
        if name.endswith(LATE_IF_LESS) and value < other:
            return True
    return False


def acts_early(record: TrialRecord, first: TrialRecord) -> bool:
    """Returns whether a trial has less of what shows late than the study's first."""
    return acts_late(first, record)
