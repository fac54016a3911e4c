"""`tune` and `tune_translation`: the one call that begins and continues a study."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from keras_seqattn import arguments
from keras_seqattn.annotations import Dataset, Lines, Path
from keras_seqattn.files import LOCK, lock_directory, release_lock
from keras_seqattn.tuning import processes, tuner
from keras_seqattn.tuning.objective import of_any, of_translation
from keras_seqattn.tuning.settings import Settings
from keras_seqattn.tuning.space import TranslationSpace
from keras_seqattn.tuning.study import Study
from keras_seqattn.tuning.tasks import CustomTask, TranslationTask

if TYPE_CHECKING:
    import keras
    import keras_tuner


def tune_translation(
    train: tuple[Lines, Lines] | Dataset,
    validation: tuple[Lines, Lines] | Dataset,
    *,
    objective: "str | keras_tuner.Objective" = "val_loss",
    algorithm: Literal["halving", "hyperband", "random", "bayesian"] = "halving",
    epochs: int | None = None,
    max_trials: int | None = None,
    max_seconds: float | None = None,
    finish: float | None = None,
    max_parameters: int | None = None,
    max_latency: float | None = None,
    directory: Path = "tuning",
    workers: int = 1,
    seed: int = 0,
    space: TranslationSpace | None = None,
    vocabulary_size: int | Sequence[int] | None = None,
    batch_tokens: int | None = None,
    bucket_lengths: Sequence[int] | None = None,
    prune: bool | None = None,
    warm_start: bool = False,
    verbose: bool = True,
) -> Study:
    """Searches for the hyperparameters that make a translation model best.

    Everything is kept in `directory`, and nothing there is ever half written: after a
    kill at any moment, the same call continues the study. Trials that ended are kept,
    and the one that ran continues from its last epoch with its optimizer, schedule,
    random state and order of data. A call whose study has ended returns at once; one
    with a larger `max_trials` or `max_seconds` continues it. `max_parameters`,
    `max_latency`, `finish`, `workers` and `verbose` may change too. A different value
    of any other argument, `epochs` included, makes a different study, which needs a
    `directory` of its own. With one worker, `seed` decides all, and a resumed study
    makes the same trials as one that was never interrupted. With "halving" and
    `max_seconds`, the result also depends on the speed of the machine.

    With `max_seconds`, a leader of "halving" that overfits goes on with more dropout
    and label smoothing. If the data are lists of strings, it also trains in both
    directions for a while, and on two copies of each pair with R-Drop's loss.

    Draws with more than `max_parameters` weights are not built and do not count. A
    trial that turns NaN, runs out of memory or is too slow is recorded with its reason,
    and the search goes on; three errors of another kind in a row end it.

    Args:
        train: Pair of lists of strings, sources and targets, on which the study trains
            a `SentencePieceTokenizer` (extra `text`); or a dataset of
            `text.translation_batches`.
        validation: The same, of what trials are scored on.
        objective: "val_loss" or "val_token_crossentropy" (both the unsmoothed
            cross-entropy per token, which compares trials with different label
            smoothing), "val_perplexity", or a `keras_tuner.Objective`. For lists of
            strings, with the extra `score`, also "val_bleu" or "val_chrf" of validation
            lines: a tenth as many as there are to train on, at least 200.
        algorithm: "halving", which starts from the space's `center`, draws near the
            best so far and promotes the best third; or KerasTuner's "hyperband",
            "random" or "bayesian".
        epochs: Most epochs of a trial. None: 9; no limit with "halving" and
            `max_seconds`.
        max_trials: Most trials (with "halving", most new ones). None: as many as fit
            into `max_seconds`; without that either, one iteration of Hyperband, or ten
            trials of the other algorithms.
        max_seconds: Wall-clock seconds for the study, those before a resumption
            included. The trial that runs when they are over counts by the epochs it
            has, and goes on if the same study is given more.
        finish: Share of `max_seconds`, in [0, 1), that "halving" keeps for the best
            trial, which trains on while it gets better. None: 0.75.
        max_parameters: Most weights of a model. With an `attention` among its options,
            one with more is built to be counted, and counts in `max_trials`.
        max_latency: Most seconds to translate one sentence of 16 tokens greedily. Each
            shape of model is measured once, before its first trial trains.
        directory: Folder of the study, new or its own.
        workers: Number of processes on this machine that run trials, under KerasTuner's
            own chief. Several need lists of strings. 1 where KerasTuner's variables
            make this process itself a chief or a worker.
        seed: Integer in [0, 2**31).
        space: A `TranslationSpace`; None: its defaults.
        vocabulary_size: Entries of the vocabulary that both languages share, or, with
            datasets, a pair where they do not; sizes of the space take precedence.
            None: its center's; with datasets it must be given.
        batch_tokens: As in `text.translation_batches`, for lists of strings. None: as
            the space's center has it.
        bucket_lengths: The same.
        prune: Whether a trial ends when it is worse than the median of the others;
            None: only with "random" and "bayesian". "halving" ignores it.
        warm_start: Whether a trial starts from the weights of the best smaller trial,
            extended to compute the same. This saves the seconds of that one, which the
            table shows, but scores then depend on more than the hyperparameters.
        verbose: Whether to print starts, epochs and ends of trials, the best score so
            far, and the time left.

    Returns:
        A `Study`.

    Raises:
        ValueError: If an argument is out of its range, or `directory` holds another
            study or is in use by another call.
        RuntimeError: If three trials in a row fail, or the workers die again and again.

    Reference:
        "halving": Li et al. 2020, "A System for Massively Parallel Hyperparameter
        Tuning". Differs: see `keras_seqattn.tuning.halving`.
    """
    given = dict(locals())
    sizes = _sizes(vocabulary_size)
    given["vocabulary_size"], given["target_vocabulary_size"] = sizes
    given["space"] = TranslationSpace() if space is None else space
    task = TranslationTask.of(given)
    return _study(task, {**given, "objective": of_translation(objective)})


def tune(
    build: "Callable[..., keras.Model] | keras_tuner.HyperModel",
    train: Any,
    validation: Any,
    *,
    objective: "str | keras_tuner.Objective" = "val_loss",
    algorithm: Literal["halving", "hyperband", "random", "bayesian"] = "halving",
    batch_size: int | None = None,
    epochs: int | None = None,
    max_trials: int | None = None,
    max_seconds: float | None = None,
    finish: float | None = None,
    max_parameters: int | None = None,
    directory: Path = "tuning",
    workers: int = 1,
    seed: int = 0,
    prune: bool | None = None,
    verbose: bool = True,
) -> Study:
    """Searches for the hyperparameters that make a model of your own best.

    Does for any `build(hp)` what `tune_translation` does for translation, and can be
    killed and called again like it. The first trial of "halving" has the defaults of
    the hyperparameters, and leads until another one is ahead where both can be
    compared.

    By the ends of their names, "halving" knows hyperparameters that look worse early
    than they are: more of "dropout", "dropout_rate", "smoothing", "decay" (a model that
    overfits gets more of these four), "layers" or "warmup_steps", and less of
    "learning_rate" or "lr". The model must be compiled, with the learning rate or
    schedule that it is to have; if it is not built, it is called on the first sample.
    If its optimizer averages the weights (`use_ema`), the average is scored, by a
    `SwapEMAWeights` that the study adds. A `fit` of your own must pass `callbacks` on
    to the model's, and add no second one.

    Args:
        build: Function of KerasTuner's `HyperParameters` that returns a compiled model,
            or a `keras_tuner.HyperModel`. It may call `attention_choices`.
        train: Tuple of inputs and labels, and of the labels' weights if there are any;
            or a dataset of them.
        validation: The same, of what trials are scored on.
        objective: "val_loss", "val_" and the name of another metric of Keras's, or a
            `keras_tuner.Objective` of anything that is logged.
        algorithm: As in `tune_translation`, like all later arguments that it has.
        batch_size: Samples per batch of arrays; None: 32.
        epochs: Most epochs of a trial.
        max_trials: Maximum number of trials, with "halving" of new ones.
        max_seconds: Seconds for the study.
        finish: Share of them for the best trial.
        max_parameters: Most weights of a model; one with more is built, but not
            trained, and counts in `max_trials`.
        directory: Folder of the study.
        workers: Number of processes; several import `build` from its module.
        seed: Integer in [0, 2**31).
        prune: Whether a trial worse than the median of the others ends.
        verbose: Whether to print progress.

    Returns:
        A `Study`.

    Raises:
        ValueError: If an argument is out of its range, or `directory` holds another
            study or is in use by another call.
        RuntimeError: If three trials in a row fail, or the workers die again and again.
    """
    given = dict(locals())
    return _study(CustomTask.of(given), {**given, "objective": of_any(objective)})


def _study(task, given):
    """Begins or continues the study of a task, and runs it to its end."""
    settings = Settings.of({**given, "task": task})
    role = os.environ.get("KERASTUNER_TUNER_ID")
    if settings.workers > 1 and (tuner.is_chief() or tuner.is_worker()):
        raise ValueError(
            "`workers` must be 1 where KerasTuner's variables make this process a "
            "chief or a worker: start each of the others with a name of its own. "
            f"Received: KERASTUNER_TUNER_ID={role}, with workers={settings.workers}."
        )
    if tuner.is_worker():  # of a call that holds the folder
        settings.claim()
        tuner.run(settings)
        return Study(settings.directory, task)
    lock_directory(settings.directory, "call")
    try:
        settings.claim()
        if settings.workers > 1:
            processes.run(settings)
        else:
            tuner.run(settings)
    finally:
        release_lock(settings.directory / LOCK)
    return Study(settings.directory, task)


def _sizes(vocabulary_size):
    """Returns the sizes of the source's and the target's vocabulary, or None."""
    if isinstance(vocabulary_size, tuple | list):
        wanted = "an integer, or a pair of integers"
        check = arguments.positive_integer
        sizes = arguments.sequence("vocabulary_size", vocabulary_size, wanted, check)
        if len(sizes) != 2:
            arguments.refuse("vocabulary_size", vocabulary_size, wanted)
        return tuple(sizes)
    arguments.positive_integer("vocabulary_size", vocabulary_size, optional=True)
    return vocabulary_size, None
