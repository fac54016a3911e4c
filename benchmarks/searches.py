"""Trainings and KerasTuner's searches that end when a time is over.

Keras is imported inside the functions, since only the workers need it.
"""

import time


def make_watch(seconds, on_over, score):
    """Makes a callback that notes scores, and calls `on_over` when the time is over."""
    import keras

    class Watch(keras.callbacks.Callback):
        curve, begin = [], time.monotonic()

        def __deepcopy__(self, memo):
            return self  # KerasTuner copies callbacks for each trial.

        def on_train_batch_end(self, batch, logs=None):
            if time.monotonic() - self.begin > seconds:
                on_over(self.model)

        def on_epoch_end(self, epoch, logs=None):
            self.curve.append((time.monotonic() - self.begin, float(logs[score])))

    return Watch()


def train_until_over(model, objective, data, options, seconds, folder, callbacks=()):
    """Trains a compiled model until the time is over.

    The arguments are as in `search`, but `options` has no number of epochs. Returns the
    model, with the weights of its best epoch, and the scores over time. If no epoch has
    ended, the model is None. `callbacks` precede those that read scores.
    """
    import keras

    class TimeIsOver(Exception):
        pass

    def stop(model):
        raise TimeIsOver

    best = f"{folder}/best.weights.h5"
    watch = make_watch(seconds, stop, objective.name)
    saving = keras.callbacks.ModelCheckpoint(
        best,
        objective.name,
        save_best_only=True,
        save_weights_only=True,
        mode=objective.direction,
    )
    callbacks = [*callbacks, watch, saving]
    try:
        model.fit(*data, **options, epochs=10**6, callbacks=callbacks, verbose=0)
    except TimeIsOver:
        pass
    if not watch.curve:
        return None, []
    model.load_weights(best)
    return model, watch.curve


def search(system, build, objective, data, options, seconds, folder, seed=0, scores=()):
    """Searches by one of KerasTuner's tuners, until the time is over.

    Args:
        system: "random-search", "bayesian" or "hyperband".
        build: The `build(hp)`.
        objective: A `keras_tuner.Objective`.
        data: Tuple of the first arguments of `fit`, which it trains on.
        options: Dict of the other arguments of `fit`, including `epochs`.
        seconds: Seconds of the search.
        folder: An empty folder.
        seed: Integer.
        scores: Callbacks that log the objective; none if `fit` does.

    Returns:
        The model of the best trial that has ended, the scores over time, the number of
        trials, and the chosen values. If no trial has ended, the model is None and the
        values are {}.

    Raises:
        RuntimeError: If three trials in a row fail.
    """
    import keras_tuner

    # KerasTuner takes other errors for a failed trial, and goes on.
    class TimeIsOver(keras_tuner.errors.FatalError):
        pass

    def stop(model):
        raise TimeIsOver

    kind, limits = {
        "random-search": (keras_tuner.RandomSearch, {"max_trials": 10**6}),
        "bayesian": (keras_tuner.BayesianOptimization, {"max_trials": 10**6}),
        "hyperband": (
            keras_tuner.Hyperband,
            {"max_epochs": options["epochs"], "hyperband_iterations": 10**6},
        ),
    }[system]
    tuner = kind(
        build,
        objective=objective,
        seed=1 + seed,  # KerasTuner takes 0 for none, and draws one.
        directory=folder,
        project_name=system,
        **limits,
    )
    watch = make_watch(seconds, stop, objective.name)
    try:
        tuner.search(*data, **options, callbacks=[*scores, watch], verbose=0)
    except TimeIsOver:
        pass
    known = tuner.oracle.trials
    ended = [trial for trial in known.values() if trial.status == "COMPLETED"]
    if not ended:
        return None, watch.curve, len(known), {}
    best_of = {"min": min, "max": max}[objective.direction]
    best = best_of(ended, key=lambda trial: trial.score)
    return tuner.load_model(best), watch.curve, len(known), best.hyperparameters.values
