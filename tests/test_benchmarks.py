"""What benchmarks of hours keep when something goes wrong, and what some count."""

import importlib
import itertools
import pathlib
import sys
import time

import keras
import keras_tuner
import numpy as np
import pytest

from benchmarks import ablations, decoding_peers, drafts, own_model, rounds, searches

pytestmark = pytest.mark.backends("torch")


@pytest.fixture
def nothing_runs(monkeypatch):
    monkeypatch.setattr(rounds, "start", lambda *given: {})
    monkeypatch.setattr(rounds, "alternate", lambda *given: [])


@pytest.mark.parametrize("name", ["ablations", "learning", "precision", "tuning"])
def test_a_picture_that_fails_costs_no_measures(
    name, nothing_runs, monkeypatch, tmp_path
):
    module = importlib.import_module(f"benchmarks.{name}")
    options = ["--output", str(tmp_path / "results" / "measures.jsonl")]
    options += ["--picture", str(tmp_path / "pictures" / "picture.png")]
    if name == "ablations":
        options += ["--folder", str(tmp_path / "rows")]
        monkeypatch.setattr(module, "load", lambda *given: ([], []))
        monkeypatch.setattr(module, "train_rows", lambda arguments: None)
    publish = rounds.publish

    def publish_one(module, measures, *given):
        publish(module, [{"seconds": 1}], *given)

    monkeypatch.setattr(rounds, "publish", publish_one)

    def fail(*given):
        assert (tmp_path / "pictures").is_dir()
        raise ZeroDivisionError

    monkeypatch.setattr(module, "draw", fail)
    monkeypatch.setattr(sys, "argv", [name, *options])
    with pytest.raises(ZeroDivisionError):
        module.main()
    assert (tmp_path / "results" / "measures.jsonl").exists()


@pytest.mark.parametrize("name", ["attention", "loss", "tuning"])
def test_a_benchmark_that_measured_nothing_fails_and_keeps_an_older_file(
    name, nothing_runs, monkeypatch, tmp_path
):
    path = tmp_path / "measures.jsonl"
    rounds.write(path, [{"seconds": 1}])
    monkeypatch.setattr(sys, "argv", [name, "--output", str(path)])
    with pytest.raises(SystemExit, match=f"benchmarks.{name}: nothing was measured"):
        importlib.import_module(f"benchmarks.{name}").main()
    assert path.read_text() == '{"seconds": 1}\n'


def test_an_epoch_that_was_trained_again_counts_once(tmp_path):
    lines = "epoch,seconds", "0,2.0", "1,3.0", "1,4.0", "2,5.0"
    (tmp_path / "history.csv").write_text("\n".join(lines))
    history = ablations.read_history(tmp_path)
    assert [row["epoch"] for row in history] == ["0", "1", "2"]
    assert [row["seconds"] for row in history] == ["2.0", "4.0", "5.0"]


def test_a_folder_that_cannot_be_made_is_said_at_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "measures.jsonl")
    parser = rounds.make_parser("benchmarks.any", "")
    rounds.add_output_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--output", path])
    message = f"must be in a folder that can be made. Received: {path!r}"
    assert message in capsys.readouterr().err


def test_defaults_without_a_whole_epoch_have_no_model(tmp_path):
    def build(hp):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["accuracy"])
        return model

    names = dict.fromkeys(("train", "val"), (np.ones((2, 1)), np.ones((2, 1))))
    assert own_model.run_defaults(None, build, names, 0, tmp_path, 0) == (None, 1, {})


def search_shortly(system, build, folder):
    return searches.search(
        system,
        build,
        keras_tuner.Objective("loss", "min"),
        (np.ones((2, 1)), np.ones((2, 1))),
        {"epochs": 1},
        seconds=1,
        folder=folder,
    )


def make_line(hp):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(hp.Float("rate", 0.0, 0.1)), "mse")
    return model


@pytest.mark.parametrize("system", ["random-search", "hyperband"])
def test_a_search_takes_all_of_its_time(system, tmp_path):
    begin = time.monotonic()
    model, curve, trials, values = search_shortly(system, make_line, tmp_path)
    assert time.monotonic() - begin > 1
    assert model and trials > 1
    assert "rate" in values


@pytest.mark.parametrize(
    ("error", "times"), [(KeyError, 3), (keras_tuner.errors.FatalValueError, 1)]
)
def test_a_search_whose_trials_fail_says_so(error, times, tmp_path):
    calls = itertools.count()

    def build(hp):
        if 3 <= next(calls) < 3 + times:  # after a trial, or two
            raise error("This build fails.")
        return make_line(hp)

    with pytest.raises((RuntimeError, error), match=r"This build fails\."):
        search_shortly("random-search", build, tmp_path)


@pytest.mark.parametrize(
    ("right", "passes"),
    [
        ([[0, 0]] * 5, 5),  # as without guesses
        ([[1, 1]] * 5, 3),  # 1 token, then 3, then the last
        ([[1, 1]] * 4, 2),
        ([[0, 1], [1, 0], [0, 0], [0, 0]], 3),  # a wrong guess ends its block
        ([[0, 0]], 1),
    ],
)
def test_passes_of_a_line_with_drafts_are_counted(right, passes):
    assert drafts.count_passes(np.array(right, bool)) == passes


def test_guesses_past_the_end_of_a_line_do_not_count():
    class Heads:
        def predict_on_batch(self, vectors):
            return [np.eye(10)[[6, 7, 9, 0]], np.eye(10)[[7, 9, 0, 0]]]

    line = np.array([5, 6, 7, 2]), np.zeros((4, 1))
    found = drafts.evaluated(Heads(), [line], tokens=3, pad_id=0)
    assert found == {"lines": 1, "right": [2 / 3, 1 / 2], "tokens_a_pass": 2.0}


def test_a_system_that_was_killed_between_two_measures_is_named(tmp_path, monkeypatch):
    killed = "import os\nprint('{}', flush=True)\nos.kill(os.getpid(), 9)\n"
    (tmp_path / "a_system.py").write_text(killed)
    monkeypatch.setattr(rounds, "ROOT", tmp_path)
    worker = rounds.Worker("a_system")
    worker.process.wait()
    measures = rounds.alternate({"ours": worker}, rounds=1, amount=1)
    with pytest.raises(RuntimeError, match=r"a_system .* -9 \(killed: out of memory"):
        next(measures)


@pytest.mark.parametrize("backend", ["jax", None])
def test_a_run_says_which_backend_it_was_given(backend, monkeypatch):
    monkeypatch.setattr(rounds, "matmul_gflops", lambda: 1.0)
    monkeypatch.setattr(sys, "argv", ["soak.py", "--parts", "training"])
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if backend:
        monkeypatch.setenv("KERAS_BACKEND", backend)
    command = "python -m benchmarks.soak --parts training`, "
    begin = "`KERAS_BACKEND=jax " if backend else "`"
    assert rounds.provenance("benchmarks.soak").startswith(begin + command)


def test_measures_are_kept_where_the_next_ones_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "measures.jsonl"
    rounds.write(path, [{"seconds": 1}])

    def full(self, text):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        rounds.write(path, [{"seconds": 1}, {"seconds": 2}])
    assert path.read_text() == '{"seconds": 1}\n'


def test_only_tokens_that_were_generated_are_counted():
    found = np.array([[1, 5, 0, 6], [1, 7, -1, -1]])
    assert decoding_peers.count_after_start(found, unused=-1) == 4


def test_a_row_says_for_how_long_both_directions_are_trained(monkeypatch):
    row = {"bidirectional_epochs": 5}, {}, ablations.AVERAGED
    monkeypatch.setitem(ablations.ROWS, "bidirectional", row)
    for epochs, both_ways in ((25, 5), (50, 10), (1, 0)):
        recipe = ablations.recipe_of("bidirectional", epochs)
        assert recipe.bidirectional_epochs == both_ways
