"""What a study prints while it runs."""

import datetime
import traceback
from typing import TextIO

from keras_seqattn.tuning import records
from keras_seqattn.tuning.records import TrialRecord
from keras_seqattn.tuning.settings import Settings


class Progress:
    """Prints a line for each start, each epoch and each end of a trial.

    The lines go to `stream`; with None, to what is the standard output at the time.
    """

    def __init__(self, settings: Settings, stream: TextIO | None = None) -> None:
        self._settings, self._stream = settings, stream

    def start(self, record: TrialRecord) -> None:
        """Prints a line of a trial that starts, or goes on, here or from its parent."""
        parent = record.values.get("tuner/trial_id")
        if len(record.epochs) > record.inherited_epochs:
            self._print(record, f"goes on after epoch {len(record.epochs)}")
        elif parent is not None:
            self._print(record, f"continues trial {int(parent)}")
        else:
            self._print(record, "starts")

    def epoch(self, record: TrialRecord) -> None:
        """Prints a line of an epoch that ended."""
        score, number = record.epochs[-1]["score"], len(record.epochs)
        name = self._settings.score_name
        self._print(record, f"epoch {number}, {name} {score:.4g}")

    def end(self, record: TrialRecord) -> None:
        """Prints a line of a trial that ended."""
        reason = f" ({record.reason.splitlines()[0]})" if record.reason else ""
        self._print(record, f"{record.status}{reason}")

    def failure(self, error: BaseException) -> None:
        """Prints where an error came from, such as one in a user's own `build`."""
        if self._settings.verbose:
            traceback.print_exception(error)

    def _print(self, record, what):
        if not self._settings.verbose:
            return
        known = records.load_records(self._settings.directory)
        plan = self._settings.plan
        # A plan limits new trials, not those that continue others.
        new = [x for x in known if plan is None or "tuner/trial_id" not in x.values]
        # Trials that other workers began after this one do not count.
        place = sum(int(one.trial_id) <= int(record.trial_id) for one in new)
        max_trials = self._settings.trials
        count = f" ({place} of {max_trials})" if max_trials else ""
        parts = [f"trial {int(record.trial_id)}{count}: {what}"]
        best = records.best_of(known, self._settings.objective.direction)
        if best is not None:
            parts.append(f"best {best.score:.4g} in trial {int(best.trial_id)}")
        left = self._time_left(known)
        if left is not None:
            parts.append(f"{datetime.timedelta(seconds=round(left))} left")
        print("; ".join(parts), file=self._stream, flush=True)

    def _time_left(self, known):
        """Returns the seconds left of the budget, or for the trials left if fewer.

        Those for a plan's trials are not known. None where nothing limits the study.
        """
        settings, clock = self._settings, self._settings.clock
        max_trials = settings.trials
        limits = [clock.left()] if clock.limit is not None else []
        ended = [record for record in known if record.finished_at is not None]
        if max_trials and ended and settings.plan is None:
            # As long a trial as those that ended. The one that runs has had its share.
            mean = max(record.finished_at for record in ended) / len(ended)
            # Those that have not begun take that long, however long the others run.
            least = mean * max(0, max_trials - len(known))
            limits.append(max(least, mean * max_trials - clock.elapsed()))
        return max(0.0, min(limits)) if limits else None
