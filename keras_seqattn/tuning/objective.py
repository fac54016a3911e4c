"""The objective of a study: the name of a score, and which direction is better."""

from typing import Any

import keras_tuner
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.tuning.records import BEST

# The logged score that stands for an objective. The loss contains each trial's label
# smoothing, and is a mean over batches. The cross-entropy is unsmoothed, a mean over
# tokens, and so compares all trials.
MONITORS = {"val_loss": "val_token_crossentropy"}
DIRECTIONS = {
    "val_loss": "min",
    "val_token_crossentropy": "min",
    "val_perplexity": "min",
    "val_bleu": "max",
    "val_chrf": "max",
}
# Scores that are means over tokens, or computed from one.
OF_TOKENS = ("val_token_crossentropy", "val_perplexity")
# Scores that `training.TranslationScore` logs.
DECODED = ("val_bleu", "val_chrf")


def of_translation(objective: str | keras_tuner.Objective) -> keras_tuner.Objective:
    """Returns the objective of a name in `DIRECTIONS`, or the one given."""
    if isinstance(objective, keras_tuner.Objective):
        return _of_one_score(objective)
    if not isinstance(objective, str) or objective not in DIRECTIONS:
        wanted = f"one of {tuple(DIRECTIONS)}, or a `keras_tuner.Objective`"
        arguments.refuse("objective", objective, wanted)
    return keras_tuner.Objective(objective, DIRECTIONS[objective])


def of_any(objective: str | keras_tuner.Objective) -> keras_tuner.Objective:
    """Returns the objective of a name that KerasTuner knows, or the one given."""
    wanted = (
        "a `keras_tuner.Objective`, or the name of a score whose direction "
        "KerasTuner knows"
    )
    if objective is None or isinstance(objective, list):
        arguments.refuse("objective", objective, wanted)
    found = arguments.interpreted(
        "objective",
        objective,
        lambda given: keras_tuner.oracles.RandomSearchOracle(given).objective,
        wanted,
    )
    return _of_one_score(found)


def _of_one_score(objective):
    """Returns an objective if it has one score and a known direction."""
    if hasattr(objective, "objectives") or objective.direction not in BEST:
        wanted = 'a `keras_tuner.Objective` of one score, with "min" or "max"'
        raise ValueError(f"`objective` must be {wanted}. Received: {objective}.")
    return objective


def score_of(name: str, logs: dict[str, Any]) -> float:
    """Returns an epoch's score; raises an error if it was not logged as a number."""
    if name not in logs:
        raise ValueError(
            f"`objective` must be among what is logged, {sorted(logs)}. "
            f"Received: objective={name!r}."
        )
    if np.ndim(logs[name]):
        raise ValueError(
            "`objective` must be a number in the logs, not an array. "
            f"Received: objective={name!r}, of shape {tuple(logs[name].shape)}."
        )
    return float(logs[name])
