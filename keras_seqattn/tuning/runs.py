"""What the records of a study tell about its runs.

A run is one training: a trial that was drawn, and the trials that continue it, each
from where the previous one paused.
"""

import math
from collections.abc import Iterator, Sequence

from keras_seqattn.tuning import records
from keras_seqattn.tuning.draws import REGULARIZERS
from keras_seqattn.tuning.records import TrialRecord

# A run has plateaued after PATIENCE epochs that are not better, or after as many as it
# took to its best epoch, if that is more: a noisy score, such as an accuracy, may by
# chance alone fail to improve, or even get worse, for several epochs in a row.
PATIENCE = 8
# A run overfits RISING epochs after the lowest validation loss of its latest trial. If
# that continues no other, it also overfits once its training loss is below the
# validation loss by more than the share APART of the latter. STALLED_APART is enough if
# the validation loss fell by no more than the share STALLED in the last RISING epochs.
RISING, APART = 4, 0.25
STALLED_APART, STALLED = 0.1, 0.005
# Name endings of hyperparameters that act late if they are larger, or if smaller.
LATE_IF_MORE = (*REGULARIZERS, "layers", "warmup_steps")
LATE_IF_LESS = ("learning_rate", "lr")


def latest_records(known: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Returns, for each run that counts, the record that holds all its epochs.

    If a trial failed with values different from those of the trial that it continued,
    that one can still go on. With the same values it would only fail again.
    """
    by_id = {record.trial_id: record for record in known}
    trained, continued = records.trained_values, set()
    for record in known:
        if record.status in records.COUNTED:
            continued.add(record.continued_from)
            continue
        # It may have failed before it took over any epochs.
        source = by_id.get(record.values.get("tuner/trial_id"))
        if source is not None and trained(source.values) == trained(record.values):
            continued.add(source.trial_id)
    return [
        record
        for record in known
        if record.trial_id not in continued and record.status in records.COUNTED
    ]


def has_plateaued(record: TrialRecord) -> bool:
    """Returns whether a run's best epoch is long past.

    Epochs that train both directions do not count.
    """
    best = record.best_epoch or 0
    begin = max(best, record.bidirectional_epochs)
    return len(record.epochs) - begin >= max(PATIENCE, best)


def is_over(record: TrialRecord) -> bool:
    """Returns whether a run goes no further; a callback may also have ended it."""
    return record.status == records.COMPLETED or has_plateaued(record)


def has_overfit(record: TrialRecord) -> bool:
    """Returns whether the losses of its latest trial show that a run overfits.

    Epochs that train both directions do not count.
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
    """Yields a record, then in turn each record that it continues."""
    by_id = {each.trial_id: each for each in known}
    while record is not None:
        yield record
        record = by_id.get(record.continued_from)


def acts_later(record: TrialRecord, than: TrialRecord) -> bool:
    """Returns whether a trial has more of what acts late than a different one."""
    for name in record.values.keys() & than.values.keys():
        value, other = record.values[name], than.values[name]
        if not isinstance(value, int | float) or not isinstance(other, int | float):
            continue
        if name.endswith(LATE_IF_MORE) and value > other:
            return True
        if name.endswith(LATE_IF_LESS) and value < other:
            return True
    return False
