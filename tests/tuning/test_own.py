"""`tune`: studies of a user's own `build(hp)`."""

import dataclasses
import functools
import itertools
import sys
import warnings
from types import SimpleNamespace

import keras
import keras_tuner
import numpy as np
import pytest
import tensorflow as tf

import keras_seqattn as ks
from keras_seqattn.training.variables import without_optimizers
from keras_seqattn.tuning import processes, records, trials, tuner
from keras_seqattn.tuning.tasks import CustomTask
from tests.pairs import slow

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

rng = np.random.default_rng(0)
X = rng.integers(1, 9, (48, 6))
Y = (X == 3).any(axis=1).astype("int32")
TRAIN, VALIDATION = (X[:32], Y[:32]), (X[32:], Y[32:])


def build(hp, use_ema=False):
    """Makes a classifier; asked for a wide one, it has a wider layer."""
    choice = ks.tuning.attention_choices(
        hp, model_dim=8, num_heads=(2, 1), key_dim=4, num_layers=(1, 2)
    )
    inputs = keras.Input((6,), dtype="int32")
    x = ks.layers.PositionalEmbedding(9, 8)(inputs)
    for _ in range(choice.num_layers):
        x = ks.layers.EncoderBlock(choice.num_heads, 8, key_dim=choice.key_dim)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    if hp.Boolean("wide"):
        with hp.conditional_scope("wide", [True]):
            x = keras.layers.Dense(hp.Choice("units", [500, 300]))(x)
    outputs = keras.layers.Dense(2, activation="softmax")(x)
    model = keras.Model(inputs, outputs)
    rate = hp.Float("learning_rate", 1e-3, 1e-1, sampling="log", default=0.01)
    options = {"use_ema": True, "ema_momentum": 0.5} if use_ema else {}
    model.compile(
        keras.optimizers.Adam(rate, **options),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


def tune(folder, build=build, train=TRAIN, validation=VALIDATION, **options):
    given = {"max_trials": 3, "epochs": 2, "verbose": False, "batch_size": 8}
    return ks.tuning.tune(build, train, validation, directory=folder, **given | options)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        part = slice(8 * index, 8 * index + 8)
        return X[part], Y[part]


@pytest.mark.parametrize(
    ("objective", "made"),
    [
        ("val_loss", build),
        ("val_accuracy", functools.partial(build, use_ema=True)),
        pytest.param(
            keras_tuner.Objective("val_accuracy", "max"), build, marks=pytest.mark.slow
        ),
    ],
)
def test_the_best_model_scores_what_the_study_says(tmp_path, objective, made):
    study = tune(tmp_path, made, objective=objective)
    name = study.objective.removeprefix("val_")
    with warnings.catch_warnings(action="error"):
        model = study.best_model()
    scores = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert scores[name] == pytest.approx(study.best_score, abs=1e-5)
    table = study.table()
    assert len(table) >= 3
    best = {"min": min, "max": max}[study.direction]
    assert study.best_score == best(table["score"])


def test_averages_are_scored_where_the_loss_is_scaled():
    keras.config.set_dtype_policy("mixed_float16")
    model = build(keras_tuner.HyperParameters(), use_ema=True)
    assert model.optimizer.use_ema is False  # that which scales
    task = CustomTask(build=build, train=TRAIN, validation=VALIDATION, batch_size=8)
    (average,) = task.callbacks(model, None, "val_loss")
    assert isinstance(average, keras.callbacks.SwapEMAWeights)


def build_several(hp):
    """Makes the same model, with an average of all weights but those of one layer."""
    model = build(hp)
    averaging = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    others = {"dense.*": keras.optimizers.SGD(0.1)}
    chosen = keras.optimizers.OptimizerMap(averaging, others)
    optimizer = keras.optimizers.MultiOptimizer(chosen)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def test_averages_of_one_of_several_optimizers_are_scored(tmp_path):
    study = tune(tmp_path, build_several, max_trials=1)
    model = study.best_model()
    task = CustomTask(build=build, train=TRAIN, validation=VALIDATION, batch_size=8)
    (average,) = task.callbacks(model, None, "val_loss")
    assert isinstance(average, keras.callbacks.SwapEMAWeights)
    scores = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert scores["loss"] == pytest.approx(study.best_score, abs=1e-5)


def test_the_first_trial_has_the_defaults_and_others_differ(tmp_path):
    table = tune(tmp_path, max_trials=5).table().set_index("trial")
    first = table.loc[0]
    assert (first["num_heads"], first["num_layers"], first["wide"]) == (2, 1, False)
    assert first["learning_rate"] == pytest.approx(0.01)
    drawn = table[table["continued_from"].isna()]
    assert len(drawn) == 5
    assert len(drawn.drop_duplicates(["num_heads", "num_layers", "learning_rate"])) > 2


def test_a_training_that_was_paused_goes_on(tmp_path):
    """The leader's, by another trial when all are drawn, to the most epochs."""
    study = tune(tmp_path, objective="val_accuracy", epochs=4)
    table = study.table().set_index("trial")
    later = table[table["continued_from"].notna()]
    assert len(later) and (later["epochs"] == 4).any()
    for trial, row in later.iterrows():
        assert row["epochs"] > table.loc[row["continued_from"], "epochs"], trial


def test_a_model_that_overfits_gets_more_dropout(tmp_path):
    """With labels that say nothing it begins to after an epoch or so."""

    def overfitting(hp):
        rate = hp.Choice("dropout", [0.0, 0.5])
        layers = [keras.layers.Dense(64, "relu"), keras.layers.Dropout(rate)]
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    noise = rng.normal(size=(2, 48))
    study = tune(
        *(tmp_path, overfitting, (X, noise[0]), (X, noise[1])),
        **{"max_trials": 1, "epochs": 40, "max_seconds": 600.0},
    )
    table = study.table()
    assert list(table["dropout"]) == [0.0, 0.5]
    assert list(table["status"]) == ["paused", "completed"]
    assert table["continued_from"][1] == 0
    before, after = records.load_records(tmp_path)
    assert after.epochs[: len(before.epochs)] == before.epochs
    assert len(after.epochs) > len(before.epochs)


@pytest.mark.parametrize("algorithm", ["halving", *slow("random")])
def test_a_callback_of_one_s_own_may_end_a_trial(tmp_path, algorithm):
    class Short(keras_tuner.HyperModel):
        def build(self, hp):
            return build(hp)

        def fit(self, hp, model, *args, callbacks, **options):
            def stop(epoch, logs):
                logs["val_loss"] = 1.0  # the first one leads
                model.stop_training = True

            stopping = keras.callbacks.LambdaCallback(on_epoch_end=stop)
            return model.fit(*args, callbacks=[stopping, *callbacks], **options)

    table = tune(tmp_path, Short(), algorithm=algorithm, epochs=6).table()
    assert set(table["epochs"]) == {1}
    if algorithm == "random":
        assert list(table["status"]) == ["completed"] * 3
    else:  # A rung is one epoch, too: the leader is continued once, in vain.
        assert list(table["status"]) == ["paused"] * 3 + ["completed"]


@pytest.mark.parametrize("algorithm", ["halving", *slow("random", "hyperband")])
def test_a_study_goes_on_as_if_it_had_never_stopped(tmp_path, algorithm, monkeypatch):
    """Interrupted in the middle of an epoch."""
    options = {"algorithm": algorithm, "epochs": 3, "max_trials": 3}
    whole = tune(tmp_path / "whole", **options).table()
    ended, count = trials.Recorder.on_train_batch_end, itertools.count(1)

    def interrupted(self, batch, logs=None):
        ended(self, batch, logs)
        if next(count) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trials.Recorder, "on_train_batch_end", interrupted)
        tune(tmp_path / "cut", **options)
    again = tune(tmp_path / "cut", **options).table()
    assert again["resumed"].sum() == 1
    same = ["trial", "status", "score", "epochs", "learning_rate", "num_heads"]
    assert again[same].equals(whole[same])


def test_the_batches_may_be_a_dataset_and_labels_have_weights(tmp_path):
    table = tune(tmp_path / "batches", train=Batches(), max_trials=1).table()
    assert (table["epochs"] == 2).all()
    weighted = (*TRAIN, np.zeros(32))
    study = tune(tmp_path / "weights", train=weighted, max_trials=1)
    assert [epoch["loss"] for epoch in study.best_trial.epochs] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (lambda: TRAIN, []),
        (Batches, []),
        (lambda: tf.data.Dataset.from_tensor_slices(TRAIN).batch(8), [False]),
    ],
)
def test_only_what_keras_can_shuffle_is_shuffled(tmp_path, monkeypatch, make, order):
    """Keras warns that it cannot shuffle a `tf.data.Dataset`."""
    given, fit = [], keras.Model.fit

    def noting(*args, **options):
        given.extend(value for name, value in options.items() if name == "shuffle")
        return fit(*args, **options)

    monkeypatch.setattr(keras.Model, "fit", noting)
    tune(tmp_path, train=make(), max_trials=1, epochs=1)
    assert given == order


def test_a_hypermodel_may_shuffle_itself(tmp_path):
    class Own(keras_tuner.HyperModel):
        def build(self, hp):
            return build(hp)

        def fit(self, hp, model, *args, **options):
            return model.fit(*args, shuffle=False, **options)

    data = tf.data.Dataset.from_tensor_slices(TRAIN).batch(8)
    table = tune(tmp_path, Own(), data, max_trials=1, epochs=1).table()
    assert table["status"].to_list() == ["completed"]


def test_the_data_may_be_made_of_batches(tmp_path):
    tokenizer = ks.text.ByteTokenizer()
    batches = ks.text.language_batches(
        ["one", "two"] * 8, tokenizer, batch_tokens=64, bucket_lengths=(8,)
    )
    data = batches.map(lambda x, y: (x, y))

    def build(hp):
        choice = hp.Choice("width", [8, 4])
        model = ks.models.LanguageModel(
            tokenizer.vocabulary_size, choice, 2, 1, intermediate_dim=8
        )
        model.compile("adam", ks.training.MaskedCrossentropy())
        return model

    study = ks.tuning.tune(
        build, data, data, max_trials=1, epochs=1, directory=tmp_path, verbose=False
    )
    assert study.table()["status"].to_list() == ["completed"]


def test_each_trial_begins_with_the_first_pass_over_batches(tmp_path):
    """So a study that goes on in a new process is as one that was never stopped."""
    tokenizer = ks.text.ByteTokenizer()
    lines = [f"{number} dogs" for number in range(24)]

    def study(name, *trials):
        train, validation = (
            ks.text.language_batches(
                lines, tokenizer, batch_tokens=64, bucket_lengths=(8,), **order
            )
            for order in ({}, {"shuffle": False})
        )
        for max_trials in trials:
            found = ks.tuning.tune(
                build,
                *(train, validation),
                **{"algorithm": "random", "prune": False, "epochs": 2},
                **{"directory": tmp_path / name, "verbose": False},
                max_trials=max_trials,
            )
        return [[epoch["loss"] for epoch in x.epochs] for x in found._records]

    def build(hp):
        hp.Choice("width", [8, 4])
        model = ks.models.LanguageModel(
            tokenizer.vocabulary_size, 8, 2, 1, intermediate_dim=8, dropout=0.0
        )
        model.compile(
            ks.training.Adam(hp.Float("learning_rate", 0.01, 0.1)),
            ks.training.MaskedCrossentropy(),
        )
        return model

    whole = study("whole", 2)
    study("cut", 1)
    assert study("cut", 2) == whole


def test_models_with_too_many_weights_are_not_trained(tmp_path, capsys):
    limits = {"max_parameters": 4000, "epochs": 1}
    study = tune(tmp_path, max_trials=12, verbose=True, **limits)
    printed = capsys.readouterr()
    assert "over budget (" in printed.out and "Traceback" not in printed.err
    table = study.table()
    over = table[table["status"] == "over budget"]
    assert len(over) and over["wide"].all() and (over["epochs"] == 0).all()
    assert over["reason"].str.contains("parameters, 4000 allowed").all()
    assert study.best_trial.parameters <= 4000
    table = tune(tmp_path, max_trials=12, epochs=1).table()
    assert "over budget" not in set(table["status"])


def test_an_error_of_build_shows_its_line(tmp_path, capsys):
    def unsound(hp):
        if hp.Choice("width", [4, 3, 2, 1]) < 4:
            raise KeyError("no such width")
        return build(hp)

    options = {"algorithm": "random", "max_trials": 2, "epochs": 1}
    study = tune(tmp_path, unsound, verbose=True, **options)
    failed = (study.table()["status"] == "failed").sum()
    printed = capsys.readouterr()
    assert 0 < failed == printed.out.count("failed (KeyError: 'no such width')")
    assert failed == printed.err.count('raise KeyError("no such width")')


def test_other_arrays_on_the_same_folder_are_an_error(tmp_path):
    options = {"directory": tmp_path, "max_trials": 1, "epochs": 1, "verbose": False}
    tuning = functools.partial(ks.tuning.tune, build, **options)
    tuning(TRAIN, VALIDATION)
    others = (X[:32], 1 - Y[:32]), (X[32:], 1 - Y[32:])
    for data in ((others[0], VALIDATION), (TRAIN, others[1])):
        with pytest.raises(ValueError, match="of a study with a different `data`"):
            tuning(*data)


def test_another_build_on_the_same_folder_is_an_error(tmp_path):
    tune(tmp_path, max_trials=1)

    def other(hp):
        hp.Choice("more", [1, 2])
        return build(hp)

    def wider(hp):
        model = keras.Sequential([build(hp), keras.layers.Dense(2)])
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    with pytest.raises(ValueError, match="`directory` must be new.* different `space`"):
        tune(tmp_path, other, max_trials=1)
    with pytest.raises(ValueError, match="`directory` must be new.* different `build`"):
        tune(tmp_path, wider, max_trials=1)
    with pytest.raises(
        ValueError, match="`directory` must be new.* different `batch_size`"
    ):
        tune(tmp_path, max_trials=1, batch_size=16)
    with pytest.raises(ValueError, match="`task` must be given to make a model"):
        ks.tuning.Study(tmp_path).best_model()
    with pytest.raises(ValueError, match="`task` must be given, of strings"):
        ks.tuning.Study(tmp_path).best_translator()


def test_a_build_may_draw_seeds(tmp_path):
    seeds = itertools.count()

    def drawing(hp):
        hp.Choice("more", [1, 2])
        dropout = keras.layers.Dropout(0.1, seed=next(seeds))
        model = keras.Sequential([keras.Input((6,)), dropout, keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    for _ in range(2):
        tune(tmp_path, drawing, max_trials=1, epochs=1)
    path = tmp_path / "study.json"
    asked = records.read_json(path)
    del asked["build"]  # as early versions wrote it
    records.write_json(path, asked)
    tune(tmp_path, drawing, max_trials=1, epochs=1)


def test_the_batches_of_a_dataset_may_change_with_each_pass(tmp_path):
    class Turning(Batches):
        passes = 0

        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return np.roll(x, self.passes, axis=0), y

        def on_epoch_end(self):
            self.passes += 1

    batches = Turning()
    for _ in range(2):
        tune(tmp_path, dense, validation=batches, max_trials=1, epochs=1)
    assert batches.passes


def dense(hp, metrics=(), outputs=1):
    """Makes a model that is not built."""
    hidden = keras.layers.Dense(hp.Choice("epochs", [2, 3, 4]))
    model = keras.Sequential([hidden, keras.layers.Dense(outputs)])
    model.compile("adam", "mse", metrics=list(metrics))
    return model


class Subclassed(keras.Model):
    """Has inputs by name."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs["x"])


def subclassed(hp):
    hp.Choice("u", [1, 2])
    model = Subclassed()
    model.compile("adam", "mse")
    return model


@pytest.mark.parametrize(
    ("made", "train", "validation"),
    [
        (dense, TRAIN, VALIDATION),
        (dense, Batches(), VALIDATION),
        (subclassed, ({"x": X[:32]}, Y[:32]), ({"x": X[32:]}, Y[32:])),
    ],
)
def test_a_model_that_is_not_built_is(tmp_path, made, train, validation):
    study = tune(tmp_path, made, train, validation, max_trials=2)
    model = study.best_model()
    assert study.best_trial.parameters == model.count_params()
    loss = model.evaluate(*validation, verbose=0)
    assert loss == pytest.approx(study.best_score, rel=1e-5)


def test_a_metric_may_be_an_array(tmp_path):
    labels = np.eye(2)[Y].astype("float32")
    data = (X[:32], labels[:32]), (X[32:], labels[32:])
    made = functools.partial(dense, metrics=[keras.metrics.F1Score()], outputs=2)
    study = tune(tmp_path / "loss", made, *data, max_trials=1)
    assert study.best_trial.epochs[0].keys() >= {"loss", "val_loss"}
    assert "val_f1_score" not in study.best_trial.epochs[0]
    objective = keras_tuner.Objective("val_f1_score", "max")
    study = tune(tmp_path / "f1", made, *data, objective=objective, max_trials=1)
    reason = r"ValueError: `objective` must be a number .*of shape \(2,\)"
    assert study.table()["reason"].str.match(reason).all()


def test_a_hyperparameter_leaves_other_columns_their_names(tmp_path):
    def named(hp):
        hp.Float("score", 7, 8)
        return dense(hp)

    study = tune(tmp_path, named, algorithm="random", max_trials=16, epochs=1)
    table = study.table()
    assert set(table["epochs"]) == {1} and table["score"].min() == study.best_score
    assert set(table["hp/epochs"]) == {2, 3, 4}
    assert table["hp/score"].between(7, 8).all()
    assert set(study.hyperparameters()) == {"hp/epochs", "hp/score"}
    assert study.importance().keys() == {"hp/epochs", "hp/score"}
    assert study.best_hyperparameters.values.keys() == {"epochs", "score"}


class Declaring(keras_tuner.HyperModel):
    """Declares more while it builds and fits."""

    def build(self, hp):
        model = keras.Sequential([keras.Input((6,))])
        for i in range(hp.Int("layers", 1, 3)):
            model.add(keras.layers.Dense(hp.Int(f"units_{i}", 1, 4, default=2)))
        model.add(keras.layers.Dense(1))
        model.compile("adam", "mse")
        return model

    def fit(self, hp, model, *args, **options):
        options["batch_size"] = hp.Choice("batch", [4, 16])
        return model.fit(*args, **options)


@pytest.mark.parametrize("algorithm", ["random", *slow("halving", "hyperband")])
def test_what_a_trial_declares_is_recorded(tmp_path, algorithm):
    tune(tmp_path, Declaring(), algorithm=algorithm, max_trials=4)
    known = [records.own_values(one.values) for one in records.load_records(tmp_path)]
    if algorithm == "random":  # which draws the same whatever the scores are
        assert max(values["layers"] for values in known) == 3
    for values in known:
        units = {f"units_{i}" for i in range(values["layers"])}
        assert values.keys() >= {"layers", "batch", *units}


class Silent(Declaring):
    """Keeps the callbacks of a study to itself."""

    def fit(self, hp, model, *args, callbacks, **options):
        return model.fit(*args, **options)


def test_a_fit_without_the_callbacks_of_the_study_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="3 trials .*passes `callbacks` on"):
        tune(tmp_path, Silent())


class Unvalidated(Declaring):
    """Validates every other epoch."""

    def fit(self, hp, model, *args, **options):
        return model.fit(*args, validation_freq=2, **options)


class Averaged(Declaring):
    """Averages the last epochs' weights."""

    def fit(self, hp, model, *args, callbacks, **options):
        own = [ks.training.CheckpointAverage(3)]
        return model.fit(*args, callbacks=[*own, *callbacks], **options)


def test_an_average_of_one_s_own_fit_is_saved_where_it_is_scored(tmp_path):
    study = tune(tmp_path, Averaged(), max_trials=1, epochs=3)
    score = study.best_model().evaluate(*VALIDATION, verbose=0, return_dict=True)
    assert score["loss"] == pytest.approx(study.best_score, abs=1e-5)


class Swapped(keras_tuner.HyperModel):
    """Swaps the averages in, as the study does too."""

    def build(self, hp):
        return build(hp, use_ema=True)

    def fit(self, hp, model, *args, callbacks, **options):
        own = [keras.callbacks.SwapEMAWeights()]
        return model.fit(*args, callbacks=[*own, *callbacks], **options)


def test_averages_that_are_swapped_in_twice_are_refused(tmp_path):
    """The second would take out what the first has put in."""
    with pytest.raises(RuntimeError, match="`fit` must be without a `SwapEMAWeights`"):
        tune(tmp_path, Swapped())


class Stepping(keras.Model):
    """Trains by an optimizer of its own, or by none."""

    def __init__(self, own):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")
        self.own = own

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        step, bias = keras.ops.ones((1,)), self.dense.bias
        if self.own is None:
            bias.assign_sub(step)
        else:
            self.own.apply([step], [bias])
        return {"loss": 1.0}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("own", [None, keras.optimizers.SGD])
def test_a_model_may_be_compiled_without_an_optimizer(tmp_path, own):
    def stepping(hp):
        hp.Choice("width", [1, 2])
        model = Stepping(own and own(1.0, momentum=1e-9))
        model.compile(optimizer=None, loss="mse")
        return model

    study = tune(tmp_path, stepping, max_trials=1, objective="loss")
    assert study.best_trial.best_epoch == 1
    with warnings.catch_warnings(action="error"):
        model = study.best_model()
    assert model.dense.bias.numpy() == pytest.approx(-4.0)


def test_an_epoch_without_a_validation_has_its_own_weights(tmp_path):
    study = tune(tmp_path, Unvalidated(), objective="loss", max_trials=1, epochs=3)
    assert study.best_trial.best_epoch == 3
    saved = study.best_model().get_weights()
    model = study._task.make_model(study.best_hyperparameters)
    state = ks.training.Resume(study.best_trial.state)
    study._task.hypermodel.fit(
        *(study.best_hyperparameters, model, *TRAIN),
        **{"validation_data": VALIDATION, "verbose": 0},
        **{"epochs": 3, "callbacks": [state]},
    )
    np.testing.assert_equal(model.get_weights(), saved)


def test_an_epoch_keeps_no_weights_of_the_one_before(tmp_path):
    """Of one that was validated but not the best, whose weights were left."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile()
    record = records.TrialRecord("0", path=tmp_path)
    callback = trials.SaveScoredWeights(record)
    callback.set_model(model)
    for epoch, has_validation in ((0, True), (1, False)):
        callback.on_epoch_begin(epoch)
        model.set_weights([np.full((1, 1), 1.0 + epoch), np.zeros(1)])
        if has_validation:
            callback.on_test_batch_begin(0)
        callback.on_epoch_end(epoch)
    with without_optimizers(model):
        model.load_weights(record.last_weights)
    assert model.get_weights()[0] == 2.0


@pytest.fixture
def recorded(tmp_path):
    """A trial of which an epoch took 5 seconds, where 4 are left, and its recorder."""
    record = records.TrialRecord("0", path=tmp_path, owner="worker0")
    record.note_epoch(0, {}, 1.0, "min", 5.0)
    settings = SimpleNamespace(
        clock=SimpleNamespace(left=lambda: 4.0, elapsed=lambda: 6.0),
        task=SimpleNamespace(score=lambda name, logs, record: logs[name]),
        objective=SimpleNamespace(direction="min"),
        score_name="val_loss",
    )
    return record, settings.clock, trials.Recorder(record, settings, None)


def test_no_epoch_begins_that_would_not_end_in_time(recorded):
    _, clock, recorder = recorded
    with pytest.raises(trials.OutOfTime, match="no time is left for another epoch"):
        recorder.on_epoch_begin(1)
    clock.left = lambda: 6.0
    recorder.on_epoch_begin(1)


def test_a_trial_that_another_worker_has_taken_over_is_left_to_it(recorded):
    record, _, recorder = recorded
    dataclasses.replace(record, owner="worker1").save()
    with pytest.raises(trials.SearchInterrupted, match="trial 0 is now run by worker1"):
        recorder.on_epoch_end(1, {"val_loss": 0.5})
    kept = records.TrialRecord.load(record.path)
    assert (kept.owner, len(kept.epochs)) == ("worker1", 1)


class Several(keras_tuner.Objective):
    """An objective of several scores, like KerasTuner's."""

    def __init__(self):
        super().__init__("several", "min")
        self.objectives = []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"build": 3}, "`build` must be a function of `hp`.*build=3"),
        ({"build": keras.Sequential()}, "`build` must be a function of `hp`.*=<Seq"),
        ({"train": "lines"}, "`train` must be a dataset, or a tuple.*train='lines'"),
        ({"validation": (X,)}, "`validation` must be a dataset, or a tuple"),
        ({"objective": "val_nothing"}, "`objective` must be .*'val_nothing'"),
        ({"objective": ["val_loss"]}, r"`objective` must be .*\['val_loss'\]"),
        (
            {"objective": keras_tuner.Objective("val_loss", "down")},
            r"""`objective` must be a .*, with "min" or "max".*direction="down"\)""",
        ),
        ({"objective": Several()}, "`objective` must be .* of one score"),
        ({"train": (X[:0], Y[:0])}, "`train` must hold as many .*arrays of 0, 0 sam"),
        ({"validation": (X, Y[:3])}, "`validation` must hold as many .* of 48, 3 sam"),
        ({"train": iter([TRAIN])}, "`train` must be a dataset, or .*train=<"),
        ({"validation": X}, "`validation` must be a dataset, or a tuple"),
        ({"build": lambda hp: None}, "`build` must return a compiled .*returned None"),
        (
            {"build": lambda hp: keras.Sequential([keras.Input((6,))])},
            "`build` must return a compiled .*returned <Sequential",
        ),
        ({"batch_size": 0}, "`batch_size` must be .*batch_size=0"),
        ({"build": lambda hp: None, "workers": 2}, "`build` must be what the workers"),
    ],
)
def test_wrong_arguments_are_errors(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        tune(tmp_path, **options)


class Unsendable:
    """Stands for a dataset of TensorFlow's, which raises an error of its own."""

    def __iter__(self):
        return iter([TRAIN])

    def __reduce__(self):
        raise NotImplementedError("variant")


def test_what_cannot_be_sent_to_workers_is_refused(tmp_path, monkeypatch):
    def own(hp):
        return build(hp)

    own.__module__, own.__qualname__ = "__main__", "own"
    monkeypatch.setattr(sys.modules["__main__"], "own", own, raising=False)
    monkeypatch.setattr(processes, "run", lambda settings: None)
    with pytest.raises(ValueError, match="`build` must be .*own.* is of `__main__`"):
        tune(tmp_path, build=functools.partial(own), workers=2)
    with pytest.raises(ValueError, match="be sent.*NotImplementedError: variant"):
        tune(tmp_path, train=Unsendable(), workers=2)


def test_a_worker_without_a_name_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    monkeypatch.setenv("KERASTUNER_ORACLE_PORT", "8000")
    monkeypatch.delenv("KERASTUNER_TUNER_ID", raising=False)
    with pytest.raises(RuntimeError, match="KERASTUNER_TUNER_ID"):
        tune(tmp_path)


@pytest.mark.parametrize("role", ["chief", "worker0"])
def test_a_process_with_a_role_starts_no_workers(role, tmp_path, monkeypatch):
    """It would be the chief of a study on a port that others do not know."""
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    monkeypatch.setenv("KERASTUNER_ORACLE_PORT", "8000")
    monkeypatch.setenv("KERASTUNER_TUNER_ID", role)
    for module in (processes, tuner):
        monkeypatch.setattr(module, "run", lambda settings: None)
    message = rf"`workers` must be 1 .*KERASTUNER_TUNER_ID={role}.* workers=2"
    with pytest.raises(ValueError, match=message):
        tune(tmp_path, workers=2)


@pytest.mark.slow
@pytest.mark.backends("jax")
def test_workers_share_the_trials(tmp_path):
    study = tune(tmp_path, algorithm="random", workers=2, max_trials=4)
    assert (study.table()["status"] == "completed").sum() == 4
    assert study.best_model().evaluate(*VALIDATION, verbose=0, return_dict=True)[
        "loss"
    ] == pytest.approx(study.best_score, abs=1e-5)
