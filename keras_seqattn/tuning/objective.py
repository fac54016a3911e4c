"""What a study makes better: the name of a score, and which way is better."""

from typing import Any

import keras_tuner

# Of all trials alike: the loss is smoothed as each trial's training is, and a mean of
# batches, while the cross-entropy is of the text itself, a mean of tokens.
MONITORS = {"val_loss": "val_token_crossentropy"}
DIRECTIONS = {
    "val_loss": "min",
    "val_token_crossentropy": "min",
    "val_perplexity": "min",
    "val_bleu": "max",
    "val_chrf": "max",
}
# Those that `training.TranslationScore` logs.
DECODED = ("val_bleu", "val_chrf")


def make_objective(objective: str | keras_tuner.Objective) -> keras_tuner.Objective:
    """Makes KerasTuner's objective, its direction known.

    Args:
        objective: "val_loss", "val_token_crossentropy", "val_perplexity", "val_bleu",
            "val_chrf", or a `keras_tuner.Objective` of anything else that is logged.

    Returns:
        A `keras_tuner.Objective`.

    Raises:
        ValueError: If it is another name.

    Example:
        >>> make_objective("val_bleu").direction
        'max'
    """
    if isinstance(objective, keras_tuner.Objective):
        return objective
    if not isinstance(objective, str) or objective not in DIRECTIONS:
        raise ValueError(
            f"`objective` must be one of {tuple(DIRECTIONS)}, or a "
            f"keras_tuner.Objective. Received: objective={objective!r}."
        )
    return keras_tuner.Objective(objective, DIRECTIONS[objective])


def score_name(objective: str) -> str:
    """Returns the name, in the logs, of what trials are scored by.

    Args:
        objective: Name of an objective.

    Returns:
        A string.

    Example:
        >>> score_name("val_loss"), score_name("val_bleu")
        ('val_token_crossentropy', 'val_bleu')
    """
    return MONITORS.get(objective, objective)


def score_of(objective: keras_tuner.Objective, logs: dict[str, Any]) -> float:
    """Returns an epoch's score.

    Args:
        objective: A `keras_tuner.Objective`.
        logs: Dict of the epoch's logs.

    Returns:
        A float: of "val_loss" the unsmoothed cross-entropy a token.

    Raises:
        ValueError: If it was not logged.

    Example:
        >>> logs = {"val_loss": 3.0, "val_token_crossentropy": 2.5}
        >>> score_of(make_objective("val_loss"), logs)
        2.5
    """
    name = score_name(objective.name)
    if name not in logs:
        raise ValueError(
            f"`objective` must be among what is logged, {sorted(logs)}. "
            f"Received: objective={objective.name!r}."
        )
    return float(logs[name])
