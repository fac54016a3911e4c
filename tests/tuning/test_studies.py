"""Real studies: KerasTuner, models that train, processes that are killed."""

import collections
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import types

import keras_tuner
import numpy as np
import pytest
import sacrebleu

import keras_seqattn as ks
from keras_seqattn import tuning
from keras_seqattn.recipes import RECIPES
from keras_seqattn.tuning import processes, records, tuner
from keras_seqattn.tuning.corpus import Corpus
from keras_seqattn.tuning.tasks import TranslationTask
from tests.tuning import program

ROOT = pathlib.Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "study-0.1.0"  # two trials, of one the weights


def start(folder, variables=(), **options):
    command = [sys.executable, "-m", "tests.tuning.program", folder]
    env = os.environ | dict(variables)
    return subprocess.Popen([*command, json.dumps(options)], cwd=ROOT, env=env)


def found(folder):
    return [
        (record.trial_id, record.status, record.values, record.score)
        for record in records.load_records(folder)
    ]


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.05)


def children(process_id):
    lists = pathlib.Path(f"/proc/{process_id}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def living(process_ids):
    """Returns the set of a study's processes; one that has ended has no command."""
    found = set()
    for process_id in process_ids:
        with contextlib.suppress(OSError):
            command = pathlib.Path(f"/proc/{process_id}/cmdline").read_bytes()
            if b"keras_seqattn.tuning.processes" in command:
                found.add(process_id)
    return found


@pytest.mark.slow_on("tensorflow", "jax")
def test_a_study_finds_a_model_that_scores_what_it_says(tmp_path):
    space = {"ema_momentum": 0.5, "dropout": 0.1, "encoder_layers": 1}
    study = program.study(tmp_path, space, max_trials=1)
    assert study.best_trial.status == "completed"
    translator = study.best_translator()
    search = ks.decoding.BeamSearch(2)
    assert study.best_translator(search).search == search
    assert study.best_trial.parameters == translator.model.count_params()
    _, validation = study._task.corpus.batches(290)
    logs = translator.model.evaluate(validation, return_dict=True, verbose=0)
    assert math.isclose(logs["token_crossentropy"], study.best_score, rel_tol=1e-5)
    study.plot(tmp_path / "study.png")
    assert (tmp_path / "study.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "study.csv").read_text().startswith("trial,status,score")
    cold = tuning.Study(tmp_path)
    with pytest.raises(ValueError, match="`task` must be given.*Received: task=No"):
        cold.best_translator()


@pytest.mark.slow
@pytest.mark.backends("torch")
@pytest.mark.parametrize("objective", ["val_loss", "val_perplexity"])
def test_scores_of_trials_with_other_vocabularies_compare(tmp_path, objective):
    """A score is of the text, whatever tokens it is cut into."""
    sizes = {"vocabulary_size": (290, 300), "ema_momentum": None}
    study = program.study(
        *(tmp_path, sizes),
        **{"max_trials": 4, "epochs": 1, "prune": False, "objective": objective},
        **{"vocabulary_size": None, "batch_tokens": 512, "bucket_lengths": (32,)},
    )
    known = records.load_records(tmp_path)
    assert {record.configuration.vocabulary_size for record in known} == {290, 300}
    corpus = study._task.corpus
    # That of the first trial, the nearest to the center's.
    tokens = corpus.tokenizer(300).tokenize(corpus.validation[1])
    count = sum(len(line) + 1 for line in tokens)
    for record in known:
        model = record.configuration.make_model(weights=record.best_weights)
        tokenizer = corpus.tokenizer(model.source_vocabulary_size)
        found = ks.Translator(model, tokenizer).score(*corpus.validation)
        nats = -sum(found) / count
        score = math.exp(nats) if objective == "val_perplexity" else nats
        assert math.isclose(record.score, score, rel_tol=1e-4)


@pytest.mark.backends("torch")
def test_a_study_of_an_early_version_is_read_and_goes_on(tmp_path):
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    known = records.load_records(tmp_path)
    assert [record.configuration.dtype for record in known] == ["float32"] * 2
    model = tuning.Study(tmp_path).best_model()
    assert model.config == known[1].configuration.model
    assert model.config.activation == "gelu"
    assert len(tuning.Study(tmp_path).table()) == 2
    space = {"options": {"activation": "gelu", "dtype": "float32"}}
    study = program.study(
        tmp_path, space | {"ema_momentum": 0.5}, max_trials=3, epochs=1, max_latency=9e9
    )
    assert records.load_records(tmp_path)[:2] == known
    assert len(study.table()) == 3


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.parametrize("algorithm", ["random", "hyperband", "halving"])
def test_ten_kills_at_random_moments_change_nothing(tmp_path, algorithm):
    options = {"algorithm": algorithm, "max_trials": 4, "epochs": 3}
    begin = time.monotonic()
    assert start(tmp_path / "whole", **options).wait() == 0
    seconds = time.monotonic() - begin
    expected = found(tmp_path / "whole")
    trials = records.load_records(tmp_path / "whole")
    if algorithm == "halving":  # whose `max_trials` counts new ones alone
        trials = [trial for trial in trials if trial.continued_from is None]
    assert len(trials) == 4
    rng, kills, studies = random.Random(0), 0, 0
    while kills < 10:
        studies += 1
        folder, running = tmp_path / f"killed_{studies}", True
        while running:
            process = start(folder, **options)
            # The first one may well come in the first trial, before an epoch has ended.
            if kills < 10:
                time.sleep(rng.uniform(0.1, 0.5) * seconds)
                running = process.poll() is None
                kills += running
                process.kill()
                print(f"kill {kills} at {[t[:2] for t in found(folder)]}", flush=True)
            else:
                running = process.wait() != 0
            process.wait()
        resumed = found(folder)
        assert [trial[:3] for trial in resumed] == [trial[:3] for trial in expected]
        for one, other in zip(resumed, expected, strict=True):
            assert math.isclose(one[3], other[3], rel_tol=1e-5)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_two_workers_of_which_one_is_killed(tmp_path):
    options = {"max_trials": 4, "epochs": 3, "prune": False}
    assert start(tmp_path / "alone", **options).wait() == 0
    process = start(tmp_path / "two", workers=2, **options)
    wait_for(tmp_path / "two" / "trial_0" / "best.weights.h5", process)
    record = records.TrialRecord.load(tmp_path / "two" / "trial_0")
    family = living(children(process.pid))
    os.kill(int(record.owner.rpartition("-")[2]), signal.SIGKILL)
    while len(family) < 4:  # the chief, two workers, and that which comes instead
        assert process.poll() is None
        time.sleep(0.05)
        family |= living(children(process.pid))
    assert process.wait(timeout=600) == 0
    pairs = zip(found(tmp_path / "two"), found(tmp_path / "alone"), strict=True)
    for one, other in pairs:
        assert one[:2] == other[:2] == (other[0], "completed")
        assert math.isclose(one[3], other[3], rel_tol=1e-4)
    assert sum(r.starts for r in records.load_records(tmp_path / "two")) == 5
    assert not living(family)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_a_chief_on_another_machine_ends_when_the_time_is_over(tmp_path):
    """Also where a worker comes first, to a folder that is not there."""
    ip, port = processes.ADDRESS, str(processes._free_port())
    variables = {"KERASTUNER_ORACLE_IP": ip, "KERASTUNER_ORACLE_PORT": port}
    options = {"epochs": 10_000, "max_seconds": 40}
    running = []
    for name in ("worker0", "chief"):
        variables["KERASTUNER_TUNER_ID"] = name
        running.append(start(tmp_path / "new" / "study", variables, **options))
        time.sleep(5)
    try:
        assert [process.wait(timeout=150) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    (record,) = records.load_records(tmp_path / "new" / "study")
    assert record.status == "stopped"
    assert record.owner.startswith("worker0")


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_two_workers_halve_trials_of_two_vocabularies(tmp_path):
    options = {"vocabulary_size": None, "batch_tokens": 512, "bucket_lengths": (32,)}
    study = program.study(
        *(tmp_path, {"vocabulary_size": (290, 300)}),
        **{"algorithm": "halving", "workers": 2, "max_trials": 4, "epochs": 3},
        **options,
    )
    table = study.table()
    assert set(table["vocabulary_size"]) == {290, 300}
    assert set(table["status"]) <= {"completed", "paused"}
    assert table["continued_from"].isna().sum() == 4
    assert table["epochs"].max() == 3


def runs_for(process, seconds):
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_a_hundred_kills_of_parent_chief_and_workers_change_nothing(tmp_path):
    options = {"max_trials": 4, "epochs": 3, "prune": False}
    begin = time.monotonic()
    assert start(tmp_path / "alone", **options).wait() == 0
    seconds = time.monotonic() - begin
    expected = found(tmp_path / "alone")
    rng, killed, studies = random.Random(0), collections.Counter(), 0
    while killed.total() < 100:
        studies += 1
        folder, status = tmp_path / f"killed_{studies}", None
        while status != 0:
            process = start(folder, workers=2, **options)
            while killed.total() < 100 and runs_for(
                process, rng.uniform(0.1, 0.7) * seconds
            ):
                family = [process.pid, *children(process.pid)]
                victim = rng.choice(family)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed["parent" if victim == process.pid else "child"] += 1
                    print(dict(killed), [t[:2] for t in found(folder)], flush=True)
            status = process.wait(timeout=600)
        for one, other in zip(found(folder), expected, strict=True):
            assert one[:2] == other[:2]
            assert math.isclose(one[3], other[3], rel_tol=1e-4)
    print(f"{dict(killed)} killed in {studies} studies", flush=True)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_nothing_outlives_a_killed_parent(tmp_path):
    process = start(tmp_path, workers=2, max_trials=9, epochs=50)
    wait_for(tmp_path / "trial_0" / "best.weights.h5", process)
    family = living(children(process.pid))
    assert len(family) == 3  # the chief and two workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(3)
    assert not living(family)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_a_trial_turns_nan_and_the_others_do_not_mind(tmp_path):
    space = {"normalize_first": True, "learning_rate": (1e-3, 1e30)}
    study = program.study(tmp_path, space, max_trials=6)
    table = study.table()
    broken = table["learning_rate"] == 1e30
    assert set(table[broken]["status"]) == {"nan"}
    assert set(table[~broken]["status"]) <= {"completed", "pruned"}
    assert table[broken]["reason"].str.contains("the loss is|crossentropy is").all()


@pytest.mark.parametrize(
    ("trained_on", "held_out", "scored"),
    [(30, 150, 150), (30, 900, 200), (5000, 900, 500), (5000, 300, 300)],
)
def test_scoring_takes_a_tenth_of_the_time(trained_on, held_out, scored):
    train, validation = ([["a"] * n, ["b"] * n] for n in (trained_on, held_out))
    corpus = Corpus(train, validation, {}, {}, seed=0)
    corpus.tokenizer = lambda size: ks.text.ByteTokenizer()
    assert len(corpus.score(300, None).sources) == scored


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_one_model_translates_for_all_trials_of_a_shape(tmp_path):
    """By each trial's weights, whatever it drops while it trains."""
    space = {"dropout": (0.0, 0.2), "encoder_layers": 1, "key_dim": 4}
    space |= {"normalize_first": True}
    study = program.study(
        *(tmp_path, space | {"learning_rate": 0.02}),
        **{"objective": "val_chrf", "max_trials": 3, "epochs": 2},
    )
    task, known = study._task, records.load_records(tmp_path)
    shapes = {record.configuration.model.num_heads for record in known}
    models = task._translating.cache_info().currsize
    assert len(shapes) == models < len(known)
    sources, references = task.corpus.validation
    tokenizer = task.corpus.tokenizer(290)
    for record in known:
        model = record.configuration.make_model(weights=record.best_weights)
        found = ks.Translator(model, tokenizer)(sources)
        score = sacrebleu.corpus_chrf(found, [references]).score
        assert math.isclose(record.score, score, abs_tol=1e-6)
    assert len({record.score for record in known}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["halving", "hyperband"])
def test_a_trial_goes_on_with_the_compiled_model(algorithm, tmp_path, monkeypatch):
    built, build = [], tuning.TranslationHyperModel.build

    def counted(self, hp):
        built.append(hp)
        return build(self, hp)

    monkeypatch.setattr(tuning.TranslationHyperModel, "build", counted)
    outcomes = []
    for kept in (tuner.KEPT_WEIGHTS, 0):
        monkeypatch.setattr(tuner, "KEPT_WEIGHTS", kept)
        folder, options = tmp_path / f"kept {kept}", {"max_trials": 4, "epochs": 3}
        program.study(folder, {"dropout": (0.0, 0.2)}, algorithm=algorithm, **options)
        known = records.load_records(folder)
        scores = [[epoch["score"] for epoch in record.epochs] for record in known]
        outcomes.append((len(built), scores))
        built.clear()
    (builds, scores), (all_builds, expected) = outcomes
    assert scores == expected
    went_on = sum(record.continued_from is not None for record in known)
    assert all_builds == len(known) == builds + went_on > builds


@pytest.mark.parametrize(
    ("options", "asked"), [({}, 2), ({"bidirectional_epochs": 2}, 1)]
)
def test_the_first_epochs_of_a_trial_may_train_both_directions(options, asked):
    """As many as the trial asks for, or the options of the study, if these are more."""
    lines = [["a" * n for n in range(1, 9)], ["b" * n for n in range(1, 9)]]
    corpus = Corpus(lines, lines, options, {}, seed=0)
    tokenizer = ks.text.ByteTokenizer()
    corpus.tokenizer = lambda size: tokenizer
    (a,), (b,) = tokenizer.tokenize(["a", "b"])
    batches, validation = corpus.batches(300, bidirectional_epochs=asked)

    def begin(batches):
        begins = [np.array(inputs["source_ids"])[:, 0] for inputs, _ in batches]
        return set(np.concatenate(begins)) - {tokenizer.pad_id}

    assert [begin(batches) for _ in range(3)] == [{a, b}, {a, b}, {a}]
    assert begin(validation) == {a}


def test_a_trial_that_asks_for_both_directions_trains_them():
    options = {"vocabulary_size": 290, "target_vocabulary_size": None, "seed": 0}
    task = TranslationTask(
        train=program.lines(range(32)),
        validation=program.lines(range(32)),
        space=tuning.TranslationSpace(),
        **{"batch_tokens": 64, "bucket_lengths": (16,)} | options,
    )
    record = records.TrialRecord(
        "0",
        values={records.BIDIRECTIONAL_EPOCHS: 1},
        configuration=task.configuration(keras_tuner.HyperParameters()),
    )
    model = types.SimpleNamespace(source_vocabulary_size=290)
    batches = task.fit_arguments(model, record)["x"]

    def languages():
        ids = [row for inputs, _ in batches for row in np.array(inputs["source_ids"])]
        return {line.split()[1] for line in task.corpus.tokenizer(290).detokenize(ids)}

    assert [languages(), languages()] == [{"red", "rote"}, {"red"}]


def test_batches_and_vocabularies_are_as_the_center_has_them():
    """Where a study is given no others: the batches for training have its sampling."""
    model = dataclasses.replace(RECIPES["own"].model, source_vocabulary_size=290)
    sizes = {"bucket_lengths": (24,), "batch_tokens": 96}
    center = dataclasses.replace(RECIPES["own"], model=model, sampling=0.3, **sizes)
    lines = program.lines(range(32))
    task = TranslationTask(
        train=lines,
        validation=lines,
        space=tuning.TranslationSpace(center=center),
        **{"vocabulary_size": None, "target_vocabulary_size": None, "seed": 0},
        **{"batch_tokens": None, "bucket_lengths": None},
    )
    assert task.vocabulary_size == 290
    record = records.TrialRecord("0", values={})
    model = types.SimpleNamespace(source_vocabulary_size=290)
    data = task.fit_arguments(model, record)
    tokenizer = task.corpus.tokenizer(290)
    plain = {tuple(row) for row in tokenizer.tokenize(lines[1])}
    for batches, is_sampled in ((data["x"], True), (data["validation_data"], False)):
        labels = [np.array(labels) for _, labels in batches]
        assert {array.shape for array in labels} == {(4, 24)}
        rows = np.concatenate(labels).tolist()
        assert set(tokenizer.detokenize(rows)) - {""} == set(lines[1])
        found = {tuple(token for token in row if token > 2) for row in rows} - {()}
        assert (found != plain) == is_sampled


@pytest.mark.parametrize("views", [None, ("plain", "sampled")])
def test_views_of_the_center_are_compared_by_the_pieces_of_the_tokenizer(views):
    copies = {"views": views, "sampling": 0.1, "consistency": 3.0, "repeat_batch": 2}
    task = TranslationTask(
        train=program.lines(range(32)),
        validation=program.lines(range(32)),
        space=tuning.TranslationSpace(
            center=dataclasses.replace(RECIPES["own"], **copies)
        ),
        **{"vocabulary_size": 290, "target_vocabulary_size": None, "seed": 0},
        **{"batch_tokens": None, "bucket_lengths": None},
    )
    pieces = task.hypermodel.pieces
    if views is None:
        assert pieces is None
    else:
        assert pieces(290) == task.corpus.tokenizer(290).pieces


def test_a_trial_may_train_on_two_copies_of_each_pair():
    lines = [["a" * n for n in range(1, 9)], ["b" * n for n in range(1, 9)]]
    corpus = Corpus(lines, lines, {}, {}, seed=0)
    corpus.tokenizer = lambda size: ks.text.ByteTokenizer()
    for copies in (1, 2):
        train, validation = corpus.batches(300, copies=copies)
        lengths = collections.Counter()
        for _, labels in train:
            lengths.update(np.count_nonzero(np.array(labels), axis=1))
        assert set(lengths.values()) - {lengths[0]} == {copies}
        (labels,) = (np.array(labels) for _, labels in validation)
        assert np.count_nonzero(labels.any(axis=1)) == 8


ONE_VIEW = {"sampling": 0.1, "views": ("sampled",)}


@pytest.mark.parametrize(
    ("options", "copied"),
    [
        ({}, True),
        ({"batch_tokens": 31}, False),  # no room for two of 16 tokens
        ({"center": RECIPES["multi30k-wide"]}, False),  # which has copies itself
        ({"center": dataclasses.replace(RECIPES["own"], **ONE_VIEW)}, False),
        ({"space": {"dropout": 0.0}}, False),  # copies would be alike
        ({"space": {"dropout": 0.0, "options": {"attention_dropout": 0.1}}}, True),
        ({"train": range(0), "validation": range(0)}, False),  # batches
    ],
)
def test_what_can_be_trained_on_two_copies(options, copied):
    options = dict(options)
    center = options.pop("center", RECIPES["own"])
    space = options.pop("space", {})
    lines = (["a"], ["b"])
    given = {"train": lines, "validation": lines, "vocabulary_size": 50} | options
    task = TranslationTask(
        space=tuning.TranslationSpace(center=center, **space),
        target_vocabulary_size=None,
        **{"bucket_lengths": (16,), "batch_tokens": 32, "seed": 0} | given,
    )
    assert bool(task.consistency) == copied
    hp = keras_tuner.HyperParameters()
    own = task.configuration(hp).consistency
    hp.values[records.CONSISTENCY] = 0.5
    assert own == center.consistency
    assert task.configuration(hp).consistency == 0.5


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocabulary_size": 9999}, "`vocabulary_size` must .*vocabulary_size=9999"),
        ({"space": {"vocabulary_size": (290, 9)}}, ".*Received: vocabulary_size=9"),
        ({"bucket_lengths": (2, 3)}, "`bucket_lengths` must have room for some pair"),
    ],
)
def test_what_suits_no_trial_is_refused_before_the_first(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        program.study(tmp_path / "new", **options)
    assert not (tmp_path / "new" / "study.json").exists()


@pytest.mark.backends("torch")
def test_a_study_around_a_consistency_makes_two_copies():
    """Such as one around the best of an earlier study."""
    (one,) = records.load_records(GOLDEN)[:1]
    center = dataclasses.replace(one.configuration, consistency=1.0)
    task = TranslationTask(
        train=program.lines(range(32)),
        validation=program.lines(range(32)),
        space=tuning.TranslationSpace(center=center),
        **{"vocabulary_size": 290, "target_vocabulary_size": None, "seed": 0},
        **{"batch_tokens": 31, "bucket_lengths": (16,)},
    )
    with pytest.raises(ValueError, match="`batch_tokens` must be at least 32"):
        task.check("val_loss", 1)
    task = dataclasses.replace(task, batch_tokens=64)
    hp = keras_tuner.HyperParameters()
    record = records.TrialRecord("0", configuration=task.configuration(hp))
    assert record.consistency == 1.0
    model = types.SimpleNamespace(source_vocabulary_size=290)
    for _, labels in task.fit_arguments(model, record)["x"]:
        rows = np.array(labels).tolist()
        assert rows[::2] == rows[1::2]


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_a_translation_that_overfits_goes_on_with_two_copies(tmp_path):
    """With a validation of other words it does so soon."""
    sources, targets = program.lines(range(32))
    space = program.SPACE | {"dropout": (0.0, 0.2), "learning_rate": 0.02}
    study = tuning.tune_translation(
        (sources, targets),
        (sources[:8], ["XYZ"] * 8),
        space=tuning.TranslationSpace(**space),
        **{"vocabulary_size": 290, "batch_tokens": 256, "bucket_lengths": (16,)},
        **{"epochs": 30, "max_trials": 1, "max_seconds": 300, "verbose": False},
        directory=tmp_path,
    )
    table = study.table()
    assert list(table["consistency"]) == [0.0, 1.0]
    assert list(table["dropout"]) == [0.0, 0.2]
    before, after = records.load_records(tmp_path)
    assert after.epochs[: len(before.epochs)] == before.epochs
    assert len(after.epochs) > len(before.epochs)
    assert after.configuration.consistency == 1.0


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.parametrize("objective", ["val_bleu", "val_chrf"])
def test_scores_of_translations(tmp_path, objective):
    study = program.study(
        tmp_path, objective=objective, max_trials=2, max_latency=100.0
    )
    table = study.table()
    assert table["score"].between(0, 100).all()
    assert (table["latency"] > 0).all()


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_the_time_is_kept_and_the_running_trial_counts(tmp_path):
    begin = time.monotonic()
    study = program.study(tmp_path, epochs=10_000, max_seconds=40)
    assert time.monotonic() - begin < 60
    assert study.best_trial.status == "stopped"
    assert study.seconds < 50
    epochs = study.best_trial.epochs
    study = program.study(tmp_path, epochs=10_000, max_seconds=70)
    assert study.best_trial.epochs[: len(epochs)] == epochs
    assert len(study.best_trial.epochs) > len(epochs)


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
def test_warm_starts_begin_where_the_smaller_one_ended(tmp_path):
    space = {"normalize_first": True, "dropout": 0.0, "key_dim": 4, "num_heads": 1}
    study = program.study(
        tmp_path, space, max_trials=4, epochs=6, warm_start=True, prune=False
    )
    table = study.table()
    warm = table[table["warm_started_from"].notna()]
    assert len(warm)
    assert (warm["inherited_seconds"] > 0).all()
    known = {r.trial_id: r for r in records.load_records(tmp_path)}
    for record in known.values():
        if record.warm_started_from is not None:
            before = known[record.warm_started_from]
            assert record.epochs[0]["score"] < before.epochs[0]["score"]
