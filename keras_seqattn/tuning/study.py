"""`Study`: what a search found, read from its folder."""

import pathlib
from typing import TYPE_CHECKING, Any

import keras
import keras_tuner

from keras_seqattn import arguments
from keras_seqattn.annotations import Path
from keras_seqattn.decoding.methods import Search, checked_search
from keras_seqattn.training.variables import without_optimizers
from keras_seqattn.tuning import records
from keras_seqattn.tuning.clock import Clock
from keras_seqattn.tuning.objective import MONITORS
from keras_seqattn.tuning.records import TrialRecord
from keras_seqattn.tuning.tasks import OWN

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from keras_seqattn.translator import Translator


TREES, REPETITIONS = 100, 5  # of the forest that `importance` trains
# With fewer trials of equally many epochs, chance decides which hyperparameters matter.
COMPARABLE = 15


class Study:
    """What a search has found so far; it may still be running in another process.

    Args:
        directory: The study's folder.
        task: The `Task` of the study, which `tune` and `tune_translation` pass on.
            `best_translator` needs it, and so does `best_model` of a user's `build`.

    Attributes:
        directory: The study's folder, a `pathlib.Path`.
        objective: Name of the logged score by which trials are compared; in a study of
            translation "val_token_crossentropy" for "val_loss".
        direction: "min" or "max", which is better.

    Raises:
        ValueError: If the folder holds no study.
    """

    def __init__(self, directory: Path, task: Any = None) -> None:
        arguments.path("directory", directory)
        wanted = "the `Task` of the study"
        arguments.offers("task", task, ("hypermodel",), wanted, optional=True)
        self.directory: pathlib.Path = pathlib.Path(directory)
        asked = records.read_json(self.directory / "study.json", keys=("objective",))
        if asked is None:
            raise ValueError(
                "`directory` must be the folder of a study. "
                f"Received: directory={str(directory)!r}."
            )
        name, direction = asked["objective"]
        self.direction: str = direction
        is_own = asked.get("task") == OWN
        self.objective: str = name if is_own else MONITORS.get(name, name)
        self._task = task

    @property
    def _records(self):
        return records.load_records(self.directory)

    @property
    def _rejected(self):
        """The draws that were over budget, each with its values and the reason."""
        path, none = self.directory / "oracle.json", {"rejected": []}
        return records.read_json(path, none, keys=("rejected",))["rejected"]

    @property
    def seconds(self) -> float:
        """Seconds of wall-clock spent, over all resumptions."""
        return Clock(self.directory).elapsed()

    @property
    def idle_seconds(self) -> float:
        """Seconds in which no trial trained or was scored, in a study of one worker."""
        return self.seconds - sum(record.seconds for record in self._records)

    @property
    def best_trial(self) -> TrialRecord:
        """The record of the best trial.

        It has `trial_id`, `status`, `values`, `configuration`, `parameters`, `epochs`
        (a dict of logs for each), `best_epoch`, `score` and `seconds` among its
        attributes.

        Raises:
            ValueError: If no trial has a score.
        """
        known = self._records
        best = records.best_of(known, self.direction)
        if best is None:
            statuses = [record.status for record in known]
            reasons = [one["reason"] for one in self._rejected]
            reasons += [record.reason for record in known if record.reason is not None]
            why = f" The last reason: {reasons[-1]}" if reasons else ""
            raise ValueError(
                "`directory` must hold a trial with a score: some epoch must end. "
                f"Received: directory={str(self.directory)!r}, of trials {statuses}."
                f"{why}"
            )
        return best

    @property
    def best_hyperparameters(self) -> keras_tuner.HyperParameters:
        """The best trial's `keras_tuner.HyperParameters`.

        Raises:
            ValueError: If no trial has a score.
        """
        best = self.best_trial
        hp = keras_tuner.HyperParameters()
        for name, value in records.own_values(best.values).items():
            hp.Fixed(name, value)
        return hp

    @property
    def best_score(self) -> float:
        """The best score.

        Raises:
            ValueError: If no trial has a score.
        """
        return self.best_trial.score

    def best_model(self) -> keras.Model:
        """Returns the best trial's model, with the weights of its best epoch.

        Returns:
            A compiled model.

        Raises:
            ValueError: If no trial has a score, or the model comes from a user's own
                `build`, which the folder does not hold. Call `tune` with the same
                arguments: it returns at once, and its study has the model.
        """
        best = self.best_trial
        if best.configuration is None:
            if self._task is None:
                raise ValueError(
                    "`task` must be given to make a model of your own: call `tune` "
                    "again, which returns a finished study at once. Received: "
                    "task=None."
                )
            model = self._task.make_model(self.best_hyperparameters)
            with without_optimizers(model):
                model.load_weights(best.best_weights)
            return model
        return best.configuration.make_model(weights=best.best_weights)

    def best_translator(self, search: Search | None = None) -> "Translator":
        """Returns the best model with its tokenizer: strings in, strings out.

        Args:
            search: A search of `keras_seqattn.decoding`; None: `Greedy()`.

        Returns:
            A `Translator`.

        Raises:
            ValueError: If no trial has a score, or the study was not returned by
                `tune_translation` on lists of strings. A call with the same arguments
                returns it at once.
        """
        from keras_seqattn.translator import Translator

        checked_search("search", search)
        corpus = getattr(self._task, "corpus", None)
        if corpus is None:
            raise ValueError(
                "`task` must be given, of strings, to make a translator: call "
                "`tune_translation` again, which returns a finished study at once. "
                f"Received: task={self._task!r:.80}."
            )
        model = self.best_model()
        tokenizer = corpus.tokenizer(model.source_vocabulary_size)
        return Translator(model, tokenizer, search=search)

    def table(self) -> "pandas.DataFrame":
        """Lists all trials, and the draws that were over budget.

        Returns:
            A pandas frame with a row per trial, in the order in which they were made:
            `trial`, `status` ("running", "completed", "paused" until it is promoted,
            "pruned", "over budget", "out of memory", "nan", "killed", "failed", or
            "stopped" since the study ended first), `score`, `epochs`, `best_epoch`,
            `seconds` (of its training), `first_step` (seconds of the first step since
            its latest start, compiling included), `finished_at` (in seconds of the
            study), `parameters`, `latency` (seconds per sentence, if measured),
            `continued_from`, `warm_started_from`, `inherited_seconds` (of other trials'
            training that it builds on), `bidirectional_epochs` (the epoch up to which
            it trains both directions, after epochs of one), `consistency` (the factor
            of the loss between two copies of each pair; 0 without copies), `resumed`
            (how often, after a kill), `reason`, and each hyperparameter. One that has
            the name of another column, such as "epochs", has the column "hp/epochs".
        """
        import pandas

        refused = {"status": records.OVER_BUDGET}
        rows = [_row(record) for record in self._records]
        rows += [
            {**refused, "reason": one["reason"], **_columns_of(one["values"])}
            for one in self._rejected
        ]
        names = dict.fromkeys((*_COLUMNS, *(name for row in rows for name in row)))
        return pandas.DataFrame(rows, columns=[*names]).astype(_TYPES)

    def hyperparameters(self) -> list[str]:
        """Lists the names of the hyperparameters that differ between trials.

        Returns:
            List of strings, the names of their columns in `table`.
        """
        values = [_columns_of(record.values) for record in self._records]
        names = dict.fromkeys(name for row in values for name in row)
        return [name for name in names if len({row.get(name) for row in values}) > 1]

    def importance(self) -> dict[str, float]:
        """Computes which hyperparameters mattered.

        A random forest learns to predict the scores from the hyperparameters. A
        hyperparameter mattered if predictions get worse when its column is shuffled.
        The scores are the best within the same number of epochs, the largest number
        that at least fifteen trials have trained.

        Returns:
            Dict of names, as in `table`, to shares, greatest first, that sum to 1, or
            are all 0; empty where fewer than fifteen trials can be compared, or nothing
            differs.

        Reference:
            Breiman 2001, section 10. Differs: uses the training rows, and the ranks of
            the scores.
        """
        names = self.hyperparameters()
        scores = self._comparable()
        if not scores or not names:
            return {}
        import pandas

        known = [record for record in self._records if record.trial_id in scores]
        frame = pandas.DataFrame([_columns_of(record.values) for record in known])
        frame["score"] = [scores[record.trial_id] for record in known]
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.inspection import permutation_importance

        columns = frame.reindex(columns=names).apply(_numbers)
        scores = frame["score"].astype("float64").rank()  # so that no outlier decides
        forest = RandomForestRegressor(TREES, random_state=0).fit(columns, scores)
        found = permutation_importance(
            forest, columns, scores, n_repeats=REPETITIONS, random_state=0
        )
        shares = found.importances_mean.clip(min=0.0)
        shares = shares / (shares.sum() or 1.0)
        ranked = sorted(zip(names, shares, strict=True), key=lambda pair: -pair[1])
        return {name: float(share) for name, share in ranked}

    def _comparable(self):
        """Returns the score of each trial that can be compared; none if too few can."""
        known = [r for r in self._records if r.status in records.COUNTED]
        # A trial that continues another is one training together with it.
        trained = {len(r.epochs) for r in known if len(r.epochs) > r.inherited_epochs}
        for epochs in sorted(trained, reverse=True):
            scores = {
                record.trial_id: record.best_until(epochs, self.direction)
                for record in known
                if record.inherited_epochs < epochs <= len(record.epochs)
            }
            if len(scores) >= COMPARABLE:
                return scores
        return {}

    def doubts(self) -> list[str]:
        """Lists reasons not to trust the result.

        Returns:
            List of sentences: that no trial has had three epochs, or that too few can
            be compared to know what mattered. It is empty if neither holds.
        """
        longest = max((len(record.epochs) for record in self._records), default=0)
        doubts = []
        if longest < records.FEW_EPOCHS:
            doubts.append(
                f"No trial got {records.FEW_EPOCHS} epochs, the longest had {longest}: "
                "its model is hardly trained. Give the study more epochs or seconds, "
                "less text or smaller models."
            )
        if not self._comparable():
            doubts.append(
                f"Fewer than {COMPARABLE} trials were trained for equally many epochs: "
                "too few to know which hyperparameters mattered."
            )
        return doubts

    def plot(self, path: Path | None = None) -> "Figure":
        """Draws the study: see `keras_seqattn.plotting.study`.

        Args:
            path: Where to save the figure, for example as a ".png"; the table is saved
                beside it as a ".csv". None: nothing is saved.

        Returns:
            A `matplotlib.figure.Figure`.
        """
        from keras_seqattn import plotting

        arguments.path("path", path, optional=True)
        figure = plotting.study(self)
        if path is not None:
            figure.savefig(path, dpi=150)
            self.table().to_csv(pathlib.Path(path).with_suffix(".csv"), index=False)
        return figure


_COLUMNS = ("trial", "status", "score", "epochs", "best_epoch", "seconds")
_COLUMNS += ("first_step", "finished_at", "parameters", "latency", "continued_from")
_COLUMNS += ("warm_started_from", "inherited_seconds", "bidirectional_epochs")
_COLUMNS += ("consistency", "resumed", "reason")
# Types of columns in which some rows, or all, may be empty.
_TYPES = dict.fromkeys(("trial", "continued_from", "warm_started_from"), "Int64")
_TYPES |= dict.fromkeys(("score", "latency", "finished_at", "first_step"), "float64")


def _row(record):
    """Returns a record's row of the table."""
    values = vars(record) | {"trial": record.trial_id, "epochs": len(record.epochs)}
    values["resumed"] = max(0, record.starts - 1)
    values["bidirectional_epochs"] = record.bidirectional_epochs
    values["consistency"] = record.consistency
    if record.status not in records.COUNTED:
        values["score"] = None
    for name in ("trial", "continued_from", "warm_started_from"):
        values[name] = None if values[name] is None else int(values[name])
    return {name: values[name] for name in _COLUMNS} | _columns_of(record.values)


def _columns_of(values):
    """Returns the hyperparameters by the names of their columns in the table."""
    own = records.own_values(values)
    return {f"hp/{name}" if name in _COLUMNS else name: own[name] for name in own}


def _numbers(column):
    """Returns a column as numbers: names by their place in the alphabet."""
    if column.dtype.kind in "biuf":
        return column.astype("float64").fillna(-1.0)
    return column.astype("str").astype("category").cat.codes.astype("float64")
