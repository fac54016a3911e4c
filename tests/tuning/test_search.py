"""What a study does with budgets, failures, larger budgets and wrong arguments."""

import dataclasses
import errno
import math
import threading
import time
from types import SimpleNamespace

import keras
import keras_tuner
import pandas
import pytest

from keras_seqattn import decoding, tuning
from keras_seqattn.models import LanguageModel
from keras_seqattn.tuning import (
    clock,
    halving,
    latency,
    objective,
    oracles,
    processes,
    records,
    settings,
    trials,
)
from keras_seqattn.tuning.progress import Progress
from tests.locks import held
from tests.tuning import conftest

pytestmark = [
    pytest.mark.backends("jax"),  # no backend computes anything here
    pytest.mark.usefixtures("simulated"),
]


def statuses(study):
    return [record.status for record in records.load_records(study.directory)]


def fail_where(monkeypatch, error_of):
    """Lets the simulated training raise what a function of the hyperparameters says."""

    def fit(model, hp, study, record, *more):
        error = error_of(hp.values, record)
        if error is not None:
            raise error
        return conftest.simulated_fit(model, hp, study, record, *more)

    monkeypatch.setattr(trials, "fit", fit)


@pytest.mark.parametrize("algorithm", ["halving", "random", "hyperband"])
def test_a_seed_decides_all(study, algorithm):
    options = {"algorithm": algorithm, "epochs": 3, "max_trials": 8}
    tables = [
        study(name, seed=seed, **options).table().drop(columns="finished_at")
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


@pytest.mark.parametrize("objective", ["val_loss", "val_bleu"])
def test_the_best_is_the_best_in_the_direction_of_the_objective(study, objective):
    found = study(objective=objective, algorithm="random", max_trials=5, prune=False)
    scores = found.table()["score"]
    best = scores.max() if objective == "val_bleu" else scores.min()
    assert found.best_score == best
    hp = found.best_hyperparameters
    assert isinstance(hp, keras_tuner.HyperParameters)
    row = found.table().loc[scores == best].iloc[0]
    assert hp.values["num_heads"] == row["num_heads"]
    assert found.best_trial.trial_id == str(row["trial"])


def test_each_score_has_its_direction():
    directions = {
        name: objective.of_translation(name).direction
        for name in ("val_loss", "val_token_crossentropy", "val_perplexity")
    }
    assert set(directions.values()) == {"min"}
    for name in ("val_bleu", "val_chrf"):
        assert objective.of_translation(name).direction == "max"


def test_what_is_over_budget_is_not_built(study, monkeypatch):
    built = []
    build = tuning.TranslationHyperModel.build
    monkeypatch.setattr(
        tuning.TranslationHyperModel,
        "build",
        lambda self, hp: build(self, built.append(self.configuration(hp)) or hp),
    )
    for algorithm in ("random", "hyperband", "bayesian"):
        built.clear()
        found = study(
            algorithm, algorithm=algorithm, max_trials=6, epochs=3, max_parameters=2600
        )
        table = found.table()
        tried = table[table["trial"].notna()]
        refused = table[table["trial"].isna()]
        assert len(tried) == 6
        assert (tried["parameters"] <= 2600).all()
        assert len(built) == tried["continued_from"].isna().sum() > 3
        assert all(chosen.count_parameters() <= 2600 for chosen in built)
        assert len(refused) > 6  # infeasible-heavy, and no failure
        assert set(refused["status"]) == {"over budget"}
        assert refused["reason"].str.contains("2600 allowed").all()


def test_a_space_with_nothing_within_the_budget_ends(study, monkeypatch):
    monkeypatch.setattr(oracles, "MOST_REJECTED", 30)
    found = study(algorithm="random", max_parameters=10)
    table = found.table()
    assert len(table) and table["trial"].isna().all()
    message = r"must hold a trial with a score.*trials \[\]. The .*, 10 allowed"
    with pytest.raises(ValueError, match=message):
        found.best_model()


def test_what_the_model_refuses_is_left_out_with_its_reason(study):
    space = dataclasses.replace(conftest.SPACE, feed_forward_ratio=(1, 0.01))
    table = study(algorithm="random", space=space, max_trials=6).table()
    refused = table[table["feed_forward_ratio"] == 0.01]
    assert len(refused) and refused["trial"].isna().all()
    reason = "`intermediate_dim` must be a positive integer"
    assert refused["reason"].str.startswith(reason).all()
    space = dataclasses.replace(conftest.SPACE, positions="learned")
    with pytest.raises(ValueError, match="`max_length` must be given for learned"):
        study("other", space=space)


def test_draws_are_further_from_a_leader_the_longer_it_leads(study, monkeypatch):
    fail_where(
        monkeypatch,
        lambda values, record: (
            trials.TrialEnded(records.NAN, "the loss is nan")
            if int(record.trial_id)
            else None
        ),
    )
    given, perturb = [], oracles.draws.perturb

    def noting(center, space, failures, random):
        given.append(failures)
        return perturb(center, space, failures, random)

    monkeypatch.setattr(oracles.draws, "perturb", noting)
    study(epochs=1, max_trials=5)
    assert given == [0, 1, 2, 3]


def test_a_draw_over_budget_takes_no_place_in_a_bracket(tmp_path):
    oracle = oracles.Hyperband(
        keras_tuner.Objective("val_loss", "min"),
        max_epochs=9,
        seed=1,
        admit=lambda values: None if values["size"] % 2 else "even",
        clock=settings.Clock(tmp_path),
        directory=tmp_path,
    )
    oracle._set_project_dir(str(tmp_path), "study")
    hp = oracle.get_space()
    hp.Int("size", 0, 99)
    oracle.update_space(hp)
    made = [oracle.create_trial(f"worker{number}") for number in range(9)]
    assert all(trial.hyperparameters.values["size"] % 2 for trial in made)
    assert oracle.rejected
    first = oracle.get_state()["brackets"][0]["rounds"][0]
    assert [drawn["id"] for drawn in first] == [trial.trial_id for trial in made]


@pytest.mark.parametrize(("target_length", "most"), [(16, 9), (5, 5)])
def test_a_latency_is_the_median_without_the_call_that_compiles(
    monkeypatch, target_length, most
):
    model = SimpleNamespace(encode=None, step=None, end_id=2, max_length=9)
    seconds, calls = iter([50.0, 1.0, 9.0, 2.0, 3.0, 4.0]), []

    def generate(model, ids, search, max_length):
        calls.append((ids.tolist(), search.min_length, max_length))
        return next(seconds)

    def repeat(run, number, repeat):
        return [run() for _ in range(repeat)]

    monkeypatch.setattr(latency, "generate", generate)
    monkeypatch.setattr(latency.timeit, "repeat", repeat)
    assert tuning.decode_latency(model, 3, target_length) == 3.0
    assert calls == 6 * [([[2, 2, 2]], most, most)]


@pytest.mark.parametrize(("limit", "longest"), [(24, 16), (12, 11)])
def test_a_latency_of_a_language_model_is_within_its_limit(monkeypatch, limit, longest):
    """Which holds for the prompt and the continuation together."""
    model = LanguageModel(50, 8, 2, 1, 12, max_length=limit)
    monkeypatch.setattr(latency, "REPETITIONS", 1)
    sizes = []

    def generate(model, ids, search, max_length):
        sizes.append((ids.shape[1], max_length))
        return decoding.generate(model, ids, search, max_length=max_length)

    monkeypatch.setattr(latency, "generate", generate)
    assert tuning.decode_latency(model) > 0
    assert set(sizes) == {(longest, limit - longest)}


# Two shapes, each with three rates of dropout.
TWO_SHAPES = tuning.TranslationSpace(
    encoder_layers=1,
    decoder_layers=1,
    num_heads=(1, 2),
    key_dim=4,
    model_dim=8,
    feed_forward_ratio=2,
    normalize_first=True,
    positions="rotary",
    tie_embeddings=True,
    dropout=(0.0, 0.1, 0.2),
    label_smoothing=0.0,
    ema_momentum=None,
    learning_rate=0.001,
    warmup_steps=10,
)


@pytest.fixture
def measured(monkeypatch):
    """The models whose latency was measured, each a hundredth above the last one's."""
    models = []

    def latency(model):
        models.append(model)
        return 0.01 * len(models)

    monkeypatch.setattr("keras_seqattn.tuning.tuner.decode_latency", latency)
    return models


def test_a_model_too_slow_is_over_budget_and_its_shape_not_drawn(study, measured):
    options = {"space": TWO_SHAPES, "max_trials": 6, "max_latency": 0.001}
    found = study(algorithm="random", **options)
    known = records.load_records(found.directory)
    assert [record.status for record in known] == ["over budget"] * 2
    assert [record.latency for record in known] == [0.01, 0.02]
    assert known[0].reason == "10.0 ms a sentence, 1 allowed"
    assert {record.values["num_heads"] for record in known} == {1, 2}


@pytest.mark.parametrize("algorithm", ["halving", "random", "hyperband"])
def test_what_was_too_slow_is_trained_under_a_larger_budget(study, measured, algorithm):
    options = {"space": TWO_SHAPES, "epochs": 3, "algorithm": algorithm}
    study(max_latency=0.001, max_trials=2, **options)
    assert {record.status for record in records.load_records(study.folder)} == {
        "over budget"
    }
    study(max_latency=0.015, max_trials=2, **options)
    known = records.load_records(study.folder)
    for record in known:
        assert (record.status == "over budget") == (record.latency > 0.015)
        assert (record.reason is None) == (record.latency < 0.015)
    assert known[0].latency == 0.01 and len(measured) == 2


@pytest.mark.parametrize("algorithm", ["random", "hyperband"])
def test_a_latency_is_measured_once_a_shape(simulated, study, measured, algorithm):
    """In trials that go on from others, too."""
    options = {"space": TWO_SHAPES, "epochs": 3, "max_latency": 9.0}
    study(algorithm=algorithm, max_trials=6, **options)
    known = records.load_records(study.folder)
    assert len(known) == 6 and len(measured) == 2
    latencies = {(r.values["num_heads"], r.latency) for r in known}
    assert len(latencies) == 2
    promoted = [r for r in known if r.continued_from is not None]
    assert bool(promoted) == (algorithm == "hyperband")


@pytest.mark.parametrize("algorithm", ["random", "hyperband", "bayesian"])
def test_a_trial_that_fails_is_noted_and_the_search_goes_on(
    study, monkeypatch, algorithm
):
    errors = {
        "nan": trials.TrialEnded(records.NAN, "the loss is nan"),
        "out of memory": MemoryError("no room"),
        "failed": ValueError("bad luck"),
    }

    def error_of(values, record):
        return {1: errors["nan"], 2: errors["out of memory"], 4: errors["failed"]}.get(
            int(record.trial_id)
        )

    fail_where(monkeypatch, error_of)
    found = study(algorithm=algorithm, max_trials=9, epochs=3, prune=False)
    noted = statuses(found)
    assert [noted[i] for i in (1, 2, 4)] == list(errors)
    table = found.table()
    assert table["score"].isna().sum() == 3
    assert table["reason"][2] == "MemoryError: no room"
    assert noted.count("completed") == 6
    assert math.isfinite(found.best_score)
    if algorithm == "hyperband":  # failures do not end a bracket
        assert table["continued_from"].notna().any()


@pytest.mark.parametrize("objective", ["val_loss", "val_bleu"])
def test_what_failed_is_the_worst_of_its_bracket(study, monkeypatch, objective):
    """Whichever direction is better: none of them is promoted."""
    bad = {1, 2, 5}  # not three in a row, which would end the study

    def error_of(values, record):
        return ValueError("bad luck") if int(record.trial_id) in bad else None

    fail_where(monkeypatch, error_of)
    options = {"algorithm": "hyperband", "max_trials": 14, "epochs": 9}
    known = records.load_records(study(objective=objective, **options).directory)
    assert {int(r.trial_id) for r in known if r.status == "failed"} == bad
    promoted = {int(r.values.get("tuner/trial_id", -1)) for r in known} - {-1}
    assert promoted and not promoted & bad


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes", "out of memory"),
        ("DefaultCPUAllocator: can't allocate memory", "out of memory"),
        ("an argument is wrong", "failed"),
    ],
)
def test_what_backends_say_of_memory_is_understood(message, status):
    with pytest.raises(trials.TrialEnded) as ended, trials.failures_as_ends():
        raise RuntimeError(message)
    assert ended.value.status == status


def test_three_errors_in_a_row_end_the_search(study, monkeypatch):
    fail_where(monkeypatch, lambda values, record: ValueError("wrong everywhere"))
    with pytest.raises(RuntimeError, match="3 trials in a row .*wrong everywhere"):
        study(algorithm="random")


def test_a_study_without_a_score_says_why(study, monkeypatch):
    fail_where(monkeypatch, lambda values, record: ValueError("bad luck"))
    found = study(algorithm="random", max_trials=2)
    with pytest.raises(ValueError, match="some epoch must end.*ValueError: bad luck"):
        found.best_trial  # noqa: B018


def test_errors_with_others_between_are_not_in_a_row(study, monkeypatch):
    def error_of(values, record):
        odd = int(record.trial_id) % 2
        return trials.TrialEnded(records.NAN, "nan") if odd else ValueError("bad luck")

    fail_where(monkeypatch, error_of)
    found = study(algorithm="random", max_trials=7)
    assert statuses(found) == [
        "failed",
        "nan",
        "failed",
        "nan",
        "failed",
        "nan",
        "failed",
    ]


def test_what_cannot_be_written_down_ends_the_search(study, monkeypatch):
    def save(record):
        raise OSError("no space left on device")

    monkeypatch.setattr(records.TrialRecord, "save", save)
    with pytest.raises(RuntimeError, match="trial 0+ ended in OSError: no space"):
        study(algorithm="random")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Can't decrement id ref count (errno = 28, 'No space left')"),
    ],
)
def test_a_full_disk_ends_the_search_and_no_trial(study, monkeypatch, error):
    fail_where(monkeypatch, lambda values, record: error)
    for _ in range(trials.MOST_FRUITLESS_STARTS + 1):
        with pytest.raises(RuntimeError, match="the search ended in .*No space left"):
            study(algorithm="random", max_trials=1)
    monkeypatch.setattr(trials, "fit", conftest.simulated_fit)
    assert statuses(study(algorithm="random", max_trials=1)) == ["completed"]


def test_a_folder_serves_one_call_at_a_time(study):
    study.folder.mkdir()
    refused = pytest.raises(ValueError, match="not be in use by another call.*other")
    with held(study.folder / "lock"), refused:
        study(algorithm="random", max_trials=1)
    assert not (study.folder / "study.json").exists()
    assert statuses(study(algorithm="random", max_trials=1)) == ["completed"]


def test_a_trial_waits_for_the_worker_that_still_has_it(study):
    """One that was taken for dead."""
    state = records.folder_of(study.folder, "0") / "state"
    state.mkdir(parents=True)
    with held(state / "lock") as let_go:
        timer = threading.Timer(1.0, let_go)
        timer.start()
        begin = time.monotonic()
        assert statuses(study(algorithm="random", max_trials=1)) == ["completed"]
        assert time.monotonic() - begin > 0.9


def test_what_another_trial_is_about_to_continue_is_running(study):
    """So that no other worker continues it, too."""
    found = study(algorithm="halving", epochs=27, max_trials=4)
    known = records.load_records(found.directory)
    later = next(record for record in known if record.continued_from)
    source = later.continued_from
    oracle = oracles.SuccessiveHalving(
        keras_tuner.Objective("val_loss", "min"),
        admit=lambda values: None,
        clock=settings.Clock(found.directory),
        directory=found.directory,
        plan=halving.Plan("min", lambda record: 1.0, math.inf, 0.75, 27),
    )
    oracle.reload()
    for status, running in (("running", True), ("failed", False)):
        later.status, later.continued_from = status, None
        later.save()
        (record,) = (r for r in oracle._known()[0] if r.trial_id == source)
        assert (record.status == records.RUNNING) == running


def test_a_clock_that_cannot_write_goes_on():
    count = 0

    def failing():
        nonlocal count
        count += 1
        raise OSError("no space left on device")

    with clock.repeating(0.001, failing):
        begin = time.monotonic()
        while count < 3 and time.monotonic() - begin < 10:
            time.sleep(0.001)
    assert count >= 3


def test_a_trial_that_takes_its_process_with_it_is_given_up(study, monkeypatch):
    fail_where(
        monkeypatch,
        lambda values, record: conftest.Killed() if record.trial_id == "1" else None,
    )
    options = {"algorithm": "random", "max_trials": 3}
    for _ in range(trials.MOST_FRUITLESS_STARTS):
        with pytest.raises(conftest.Killed):
            study(**options)
    found = study(**options)
    assert statuses(found) == ["completed", "killed", "completed"]
    assert found.table()["resumed"][1] == trials.MOST_FRUITLESS_STARTS - 1


def test_a_first_trial_that_is_given_up_does_not_end_halving(study, monkeypatch):
    """Rungs are tokens of a vocabulary's size, of the first trial's too."""

    fail_where(
        monkeypatch,
        lambda values, record: None if int(record.trial_id) else conftest.Killed(),
    )
    monkeypatch.setattr(
        "keras_seqattn.tuning.corpus.Corpus._count_tokens",
        lambda self, size, pairs=None: 1000 - size,
    )
    space = dataclasses.replace(conftest.SPACE, vocabulary_size=(50, 60))
    options = {"max_trials": 4, "epochs": 3, "space": space, "vocabulary_size": None}
    for _ in range(trials.MOST_FRUITLESS_STARTS):
        with pytest.raises(conftest.Killed):
            study(**options)
        (first,) = records.load_records(study.folder)
        assert first.configuration.vocabulary_size == 60  # nearest to the center's
    found = study(**options)
    assert statuses(found)[0] == "killed"
    assert max(found.table()["epochs"]) == 3


def test_a_trial_that_only_lacked_time_is_not_given_up(study, monkeypatch):
    fail_where(monkeypatch, lambda values, record: trials.OutOfTime("no time"))
    for _ in range(trials.MOST_FRUITLESS_STARTS + 1):
        found = study(algorithm="random", max_trials=1)
    assert statuses(found) == ["stopped"]
    monkeypatch.setattr(trials, "fit", conftest.simulated_fit)
    assert statuses(study(algorithm="random", max_trials=1)) == ["completed"]


def test_an_interruption_after_an_epoch_counts_as_no_start(study, monkeypatch):
    def fit(model, hp, settings, record, epochs, is_done, *more):
        conftest.simulated_fit(model, hp, settings, record, 1, is_done)
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "fit", fit)
    with pytest.raises(KeyboardInterrupt):
        study(algorithm="random", max_trials=1)
    (record,) = records.load_records(study.folder)
    assert (record.status, record.fruitless_starts) == ("stopped", 0)


def test_a_space_in_which_all_was_tried_ends_the_draws_of_halving(study):
    """What was begun goes on to its end."""
    fixed = {"encoder_layers": 1, "decoder_layers": 1, "num_heads": 1, "key_dim": 4}
    fixed |= {"feed_forward_ratio": 1, "dropout": 0.1, "label_smoothing": 0.1}
    fixed |= {"normalize_first": True, "positions": "rotary", "learning_rate": 0.001}
    fixed |= {"warmup_steps": 200, "post_norm_learning_rate": None}
    fixed |= {"post_norm_warmup_steps": None, "tie_embeddings": (True, False)}
    space = dataclasses.replace(conftest.SPACE, **fixed)
    table = study(space=space, max_trials=9, epochs=9).table()
    drawn = table[table["continued_from"].isna()]
    assert sorted(drawn["tie_embeddings"]) == [False, True]
    assert table["epochs"].max() == 9
    # Nor does a leader wait for draws of which none is within the budget.
    table = study("small", max_trials=9, epochs=9, max_parameters=1830).table()
    assert table["epochs"].max() == 9


@pytest.mark.parametrize("algorithm", ["halving", "random"])
def test_what_was_too_large_is_drawn_under_a_larger_budget(study, algorithm):
    fixed = dataclasses.replace(conftest.SPACE, model_dim=(8, 64))
    options = {"space": fixed, "algorithm": algorithm}
    first = study(max_parameters=2000, max_trials=2, **options).table()
    assert 64 not in set(first[first["status"] != "over budget"]["model_dim"])
    more = study(max_trials=12, **options).table()
    assert 64 in set(more[more["status"] != "over budget"]["model_dim"])


def test_halving_continues_once_what_a_smaller_budget_excludes(study, monkeypatch):
    """And trains it under the larger one again."""
    populate = oracles.SuccessiveHalving.populate_space

    def stop_at(number):
        def populate_before(self, trial_id):
            if int(trial_id) == number:
                raise RuntimeError("enough trials")
            return populate(self, trial_id)

        monkeypatch.setattr(
            oracles.SuccessiveHalving, "populate_space", populate_before
        )

    stop_at(2)
    with pytest.raises(RuntimeError, match="enough trials"):
        study(max_trials=3, epochs=9)
    begun = records.load_records(study.folder)
    least = min(record.parameters for record in begun)
    stop_at(50)  # not to go on without end
    study(max_trials=2, epochs=9, max_parameters=least - 1)
    known = records.load_records(study.folder)
    over = [record for record in known if record.status == "over budget"]
    assert {record.continued_from for record in over} == {r.trial_id for r in begun}
    assert len(over) == len(begun) == 2
    assert "over budget" not in statuses(study(max_trials=3, epochs=9))


def test_a_study_goes_on_with_larger_budgets(study):
    first = study(algorithm="random", max_trials=4).table()
    same = study(algorithm="random", max_trials=4).table()
    assert same.equals(first)
    more = study(algorithm="random", max_trials=6).table()
    assert more[:4].to_csv() == first.to_csv()
    assert len(more) == 6


def test_the_time_is_counted_over_resumptions(study, monkeypatch):
    elapsed = 0.0

    def fit(model, hp, settings, record, epochs, is_done, *more):
        nonlocal elapsed
        if elapsed >= settings.max_seconds:
            raise trials.OutOfTime("the time is over")
        elapsed += 10.0
        return conftest.simulated_fit(model, hp, settings, record, 2, is_done)

    monkeypatch.setattr(trials, "fit", fit)
    monkeypatch.setattr(settings.Clock, "elapsed", lambda self: elapsed)
    options = {"algorithm": "random", "epochs": 2}
    found = study(**options, max_seconds=35)
    assert statuses(found) == ["completed"] * 4  # no fifth one is begun
    assert len(study(**options, max_seconds=35).table()) == 4
    assert len(study(**options, max_seconds=55).table()) == 6


def test_the_clock_goes_on_where_it_stopped(tmp_path):
    for _ in range(2):
        with settings.Clock(tmp_path, limit=100).running() as running:
            before = running.elapsed()
            while running.elapsed() < before + 0.02:
                pass
    assert 0.04 <= settings.Clock(tmp_path).elapsed() < 5
    assert not settings.Clock(tmp_path, limit=5).is_over()
    assert settings.Clock(tmp_path, limit=0.01).is_over()


def test_trials_below_the_median_end_early():
    def record(number, *scores):
        epochs = [{"score": score} for score in scores]
        return records.TrialRecord(str(number), epochs=epochs)

    others = [record(i, 5.0, 4.0 + i) for i in range(1, 5)]  # medians 5 and 5 at most
    assert trials.is_below_median(record(9, 6.0, 5.5), others, "min")
    assert not trials.is_below_median(record(9, 6.0, 4.0), others, "min")
    assert not trials.is_below_median(record(9, 6.0), others, "min")  # too early
    assert not trials.is_below_median(record(9, 6.0, 5.5), others[:3], "min")  # too few
    assert trials.is_below_median(record(9, 1.0, 2.0), others, "max")


@pytest.mark.parametrize(
    ("algorithm", "prune", "ends"),
    [
        ("random", True, True),
        ("random", False, False),
        ("hyperband", True, True),
        ("halving", True, False),
    ],
)
def test_only_pruning_ends_trials_below_the_median(study, algorithm, prune, ends):
    found = study(algorithm=algorithm, prune=prune, epochs=6, max_trials=12)
    assert ("pruned" in statuses(found)) == ends
    for record in records.load_records(found.directory):
        if record.status == "pruned":
            assert len(record.epochs) < 6
            assert record.reason == "worse than the median of the others"


def test_random_and_bayesian_prune_by_default(study):
    prunes = {}
    for algorithm in ("random", "bayesian", "hyperband", "halving"):
        found = study(algorithm, algorithm=algorithm, epochs=1, max_trials=1)
        asked = records.read_json(found.directory / "study.json")
        prunes[algorithm] = asked["prune"]
    assert [name for name in prunes if prunes[name]] == ["random", "bayesian"]


def test_progress_says_what_is_left(study, capsys):
    study(algorithm="random", max_trials=2, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trial 0 (1 of 2): starts"
    assert lines[1].startswith("trial 0 (1 of 2): completed; best ")
    assert lines[-1].endswith("; 0:00:00 left")
    study("default", algorithm="random", verbose=True)  # of ten trials
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "trial 0 (1 of 10): starts"
    assert lines[-1].endswith("; 0:00:00 left")


def test_progress_says_how_a_trial_starts_and_that_the_time_left_falls(
    tmp_path, capsys
):
    def trial(number, **fields):
        path = records.folder_of(tmp_path, str(number))
        record = records.TrialRecord(str(number), path=path, **fields)
        record.save()
        return record

    trial(0, status="completed", finished_at=10.0)
    trial(2)  # of another worker, later
    seconds = iter([10.0, 13.0, 31.0])
    given = SimpleNamespace(
        verbose=True,
        directory=tmp_path,
        plan=None,
        trials=3,
        objective=SimpleNamespace(direction="min"),
        clock=SimpleNamespace(limit=None, elapsed=lambda: next(seconds)),
    )
    epoch = {"score": 1.0}
    Progress(given).start(trial(1))
    inherited = {"inherited_epochs": 1, "values": {"tuner/trial_id": "0"}}
    Progress(given).start(trial(1, epochs=[epoch], **inherited))
    Progress(given).start(trial(1, epochs=[epoch] * 2, **inherited))
    assert capsys.readouterr().out.splitlines() == [
        "trial 1 (2 of 3): starts; 0:00:20 left",
        "trial 1 (2 of 3): continues trial 0; 0:00:17 left",
        "trial 1 (2 of 3): goes on after epoch 2; 0:00:00 left",
    ]


def test_progress_says_the_last_score_the_best_so_far_and_which_limit_comes_first(
    tmp_path, capsys
):
    scores = ([1.0], [3.0], [5.0, 2.0])
    for number, each in enumerate(scores):
        path = records.folder_of(tmp_path, str(number))
        record = records.TrialRecord(str(number), path=path)
        for epoch, score in enumerate(each):
            record.note_epoch(epoch, {}, score, "min" if number else "max", 1.0)
        if number < 2:
            record.status, record.finished_at = "completed", 10.0 * (1 + number)
        record.save()
    given = SimpleNamespace(
        verbose=True,
        directory=tmp_path,
        plan=None,
        trials=3,
        score_name="val_bleu",
        objective=SimpleNamespace(direction="max"),
    )
    for left in (4.0, 40.0):
        given.clock = SimpleNamespace(
            limit=60, left=lambda left=left: left, elapsed=lambda: 20.0
        )
        Progress(given).epoch(record)
    told = "trial 2 (3 of 3): epoch 2, val_bleu 2; best 3 in trial 1; 0:00:"
    assert capsys.readouterr().out.splitlines() == [f"{told}04 left", f"{told}10 left"]


def test_progress_says_that_the_time_ended_a_trial(study, monkeypatch, capsys):
    fail_where(monkeypatch, lambda values, record: trials.OutOfTime("no time"))
    study(algorithm="random", max_trials=1, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["trial 0 (1 of 1): starts", "trial 0 (1 of 1): stopped"]


def test_progress_counts_the_new_trials_of_halving(study, capsys):
    study(max_trials=9, epochs=9, verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 9  # some go on in another trial
    assert all(int(line.split(" (")[1].split()[0]) <= 9 for line in lines)
    assert [line.split(" (")[1][:6] for line in (lines[0], lines[-1])] == [
        "1 of 9",
        "9 of 9",
    ]
    assert not any("left" in line for line in lines)  # of no draw is known how long


def test_what_a_record_cannot_hold_is_refused(study):
    for change in (
        {"options": {"activation": keras.activations.gelu}},
        {"options": {"dtype": keras.DTypePolicy("mixed_bfloat16")}},
    ):
        space = dataclasses.replace(conftest.SPACE, **change)
        with pytest.raises(ValueError, match="`space` must have `options`.*Received"):
            study(space=space)
    assert not study.folder.exists()


@pytest.mark.parametrize(
    ("options", "least"),
    [({}, 128), ({"bucket_lengths": (4, 9)}, 9)],
)
def test_batches_without_room_for_a_pair_are_refused(study, options, least):
    message = f"`batch_tokens` must be at least {least}, .*batch_tokens=8"
    with pytest.raises(ValueError, match=message):
        study(batch_tokens=8, **options)
    assert not study.folder.exists()


def test_a_directory_is_no_file(study):
    study.folder.write_text("mine")
    message = "`directory` must be a folder, or new.*study', where a file is"
    with pytest.raises(ValueError, match=message):
        study(max_trials=1)
    assert study.folder.read_text() == "mine"


def test_a_folder_is_one_study_s(study):
    study(algorithm="random", max_trials=1)
    with pytest.raises(ValueError, match="`directory` must be new.* different `seed`"):
        study(algorithm="random", max_trials=1, seed=1)
    with pytest.raises(ValueError, match="different `space`"):
        study(algorithm="random", max_trials=1, space=tuning.TranslationSpace())
    space = dataclasses.replace(conftest.SPACE, optimizer=("adam", "muon"))
    with pytest.raises(ValueError, match="different `optimizer`"):
        study(algorithm="random", max_trials=1, space=space)
    for options in ({"batch_tokens": 999}, {"bucket_lengths": (8,)}, {"epochs": 3}):
        with pytest.raises(
            ValueError, match=f"of a study with a different `{[*options][0]}`.$"
        ):
            study(algorithm="random", max_trials=1, **options)


def test_a_folder_is_of_one_center_one_vocabulary_and_one_corpus(study):
    options = {"algorithm": "random", "max_trials": 1}
    study(**options)
    center = dataclasses.replace(conftest.SPACE.center, label_smoothing=0.2)
    space = dataclasses.replace(conftest.SPACE, center=center)
    for name, change in (
        ("center", {"space": space}),
        ("vocabulary_size", {"vocabulary_size": 60}),
    ):
        with pytest.raises(ValueError, match=f"with a different `{name}`"):
            study(**options | change)
    other = [*map(list, conftest.LINES)]
    other[1][0] = "ein rotes Pferd"
    options |= {"space": conftest.SPACE, "vocabulary_size": 50, "verbose": False}
    for lines in ((other, conftest.LINES), (conftest.LINES, other)):
        with pytest.raises(ValueError, match="with a different `corpus`"):
            tuning.tune_translation(*lines, directory=study.folder, **options)


def test_a_space_that_workers_cannot_import_is_refused(study, monkeypatch):
    class Own(tuning.TranslationSpace):
        __module__ = "__main__"

    monkeypatch.setattr(processes, "run", lambda settings: None)
    space = Own(model_dim=8)
    with pytest.raises(ValueError, match="`space` must be of a class that the workers"):
        study(space=space, workers=2)
    assert not study.folder.exists()
    study(space=space, algorithm="random", max_trials=1)


def test_a_budget_of_another_kind_continues_a_study(study):
    study(max_trials=2)
    assert len(study(max_trials=2, max_seconds=600).table()) >= 2
    file = study.folder / "study.json"
    asked = records.read_json(file)
    del asked["batch_tokens"]  # as an early version wrote it
    records.write_json(file, asked | {"epochs": settings.MOST_EPOCHS})
    study(max_trials=2, max_seconds=600)
    assert records.read_json(file)["epochs"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "val_accuracy"}, "`objective` must be one .*'val_accuracy'"),
        ({"objective": keras_tuner.Objective("loss", "low")}, 'must be .*="low"'),
        ({"algorithm": "grid"}, "`algorithm` must be one .*algorithm='grid'"),
        ({"max_seconds": 0}, "`max_seconds` must be .*max_seconds=0"),
        ({"epochs": 0}, "`epochs` must be .*epochs=0"),
        ({"workers": 0}, "`workers` must be .*workers=0"),
        ({"seed": 2**32}, "`seed` must be an integer in .*0, 2147483647.*=4294967296"),
        ({"finish": 0.5}, "`finish` must be 0.0 except.*finish=0.5.*max_seconds=None"),
        (
            {"finish": 0.5, "algorithm": "random", "max_seconds": 9},
            "`finish` must be 0.0 except.*algorithm='random'",
        ),
        (
            {"vocabulary_size": (50, 40)},
            r"`vocabulary_size` must be one integer.*vocabulary_size=\(50, 40\)",
        ),
    ],
)
def test_wrong_arguments_are_errors(study, options, message):
    with pytest.raises(ValueError, match=message):
        study(**options)


def test_wrong_data_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="`train` must be a dataset, or a pair"):
        tuning.tune_translation(("one", "two"), conftest.LINES, directory=tmp_path)
    with pytest.raises(ValueError, match="Received: a dataset, with .*'val_bleu'"):
        tuning.tune_translation(
            range(2), range(2), objective="val_bleu", directory=tmp_path
        )
    with pytest.raises(ValueError, match="`vocabulary_size` must be given.*size=None"):
        tuning.tune_translation(range(2), range(2), directory=tmp_path)
    with pytest.raises(ValueError, match="`train` must be lists of strings.*workers=2"):
        tuning.tune_translation(
            range(2), range(2), vocabulary_size=50, workers=2, directory=tmp_path
        )
    mixed = "`validation` must be lists of strings where `train` is.*range"
    for train, validation in (
        (conftest.LINES, range(2)),
        (range(2), conftest.LINES),
    ):
        with pytest.raises(ValueError, match=mixed):
            tuning.tune_translation(
                train, validation, vocabulary_size=50, directory=tmp_path
            )
    for lines, message in (
        ((["a"], ["b", "c"]), "`train` must hold as many .* 1 sources, 2 targets"),
        (
            (pandas.Series(["a"]), pandas.Series(["b", "c"])),
            "`train` must hold as many .* 1 sources, 2 targets",
        ),
        (([], []), "`train` must hold as many .* 0 sources, 0 targets"),
        ((["a"], [3]), r"`train\[1\]` must hold strings only.*: train\[1\]\[0\]=3"),
        (iter([1]), "`train` must be a dataset, or a pair"),
    ):
        with pytest.raises(ValueError, match=message):
            tuning.tune_translation(lines, conftest.LINES, directory=tmp_path)
    with pytest.raises(ValueError, match="must be the folder of a study.*nowhere"):
        tuning.Study(tmp_path / "nowhere")
