"""What a study makes better: the name of a score, and which way is better."""

from typing import Any

import keras_tuner

from keras_seqattn import arguments

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
# Those that are means of tokens, or made of them.
OF_TOKENS = ("val_token_crossentropy", "val_perplexity")
# Those that `training.TranslationScore` logs.
DECODED = ("val_bleu", "val_chrf")


def of_translation(objective: str | keras_tuner.Objective) -> keras_tuner.Objective:
    """Returns the objective of a study of translation models, its direction known.

    Args:
        objective: "val_loss", "val_token_crossentropy", "val_perplexity", "val_bleu",
            "val_chrf", or a `keras_tuner.Objective` of anything else that is logged.

    Returns:
        A `keras_tuner.Objective`.

    Raises:
        ValueError: If it is another name.

    Example:
        >>> of_translation("val_bleu").direction
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


def of_any(objective: str | keras_tuner.Objective) -> keras_tuner.Objective:
    """Returns the objective of a study of any models.

    Args:
        objective: "val_" and the name of a metric of Keras's, whose direction
            KerasTuner knows, or a `keras_tuner.Objective` of anything that is logged.

    Returns:
        A `keras_tuner.Objective`.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> of_any("val_accuracy").direction
        'max'
    """
    wanted = (
        "a `keras_tuner.Objective`, or the name of a score whose direction "
        "KerasTuner knows"
    )
    if objective is None or isinstance(objective, list):
        arguments.refuse("objective", objective, wanted)
    return arguments.interpreted(
        "objective",
        objective,
        lambda given: keras_tuner.oracles.RandomSearchOracle(given).objective,
        wanted,
    )


def score_of(name: str, logs: dict[str, Any]) -> float:
    """Returns an epoch's score.

    Args:
        name: Its name in the logs.
        logs: Dict of the epoch's logs.

    Returns:
        A float.

    Raises:
        ValueError: If it was not logged.

    Example:
        >>> score_of("val_accuracy", {"val_loss": 3.0, "val_accuracy": 0.5})
        0.5
    """
    if name not in logs:
        raise ValueError(
            f"`objective` must be among what is logged, {sorted(logs)}. "
            f"Received: objective={name!r}."
        )
    return float(logs[name])
