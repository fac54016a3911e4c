"""The tuning example: heads and depth within minutes, saved, and resumed."""

import csv
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_seqattn as ks
from keras_seqattn.tuning import records, trials
from keras_seqattn.tuning import study as studies
from tests.tuning import conftest

ROOT = pathlib.Path(__file__).parent.parent
WRITTEN = {"study", "study.csv", "study.png", "translator.keras"}


@pytest.fixture
def example(load_example, monkeypatch):
    module = load_example("tune")

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["tune.py", *map(str, options)])
        module.main()

    module.run = run
    return module


class Translator:
    """Stands for the trained one."""

    def __call__(self, lines):
        return lines

    def save(self, path):
        path.write_text("a model")


@pytest.mark.backends("jax")
def test_it_tells_saves_and_goes_on(example, monkeypatch, tmp_path, capsys):
    def fit(model, hp, study, record, folder, epochs, is_done):
        if len(records.load_records(study.directory)) > 9:
            raise trials.OutOfTime("the time is over")
        return conftest.simulated_fit(model, hp, study, record, folder, epochs, is_done)

    monkeypatch.setattr(trials, "fit", fit)
    monkeypatch.setattr(studies, "TREES", 5)
    monkeypatch.setattr(keras.utils, "clear_session", lambda: None)
    monkeypatch.setattr(ks.tuning.TranslationHyperModel, "build", lambda self, hp: None)
    monkeypatch.setattr(
        ks.tuning.Study, "best_translator", lambda self, search=None: Translator()
    )
    monkeypatch.setattr(
        ks.text, "load_parallel", lambda *args, **options: conftest.LINES
    )
    example.run("--output", tmp_path, "--epochs", 3)
    printed = capsys.readouterr().out
    assert "trial 8: completed" in printed
    assert "What mattered: " in printed
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN
    with open(tmp_path / "study.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    varied = ks.tuning.Study(tmp_path / "study").hyperparameters()
    assert set(varied) <= set(example.HEADS_AND_DEPTH)

    example.run("--output", tmp_path, "--epochs", 3)
    assert "trial 8: completed" not in capsys.readouterr().out
    with open(tmp_path / "study.csv", newline="") as file:
        again = list(csv.DictReader(file))
    assert [row["score"] for row in again] == [row["score"] for row in rows]


@pytest.mark.backends("jax")
def test_defaults_follow_the_corpus(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tune.py"])
    args = example.arguments()
    assert (args.preset, args.minutes) == ("default", 10)
    assert args.output == pathlib.Path("runs/tune-phrases-en-de")
    monkeypatch.setattr(sys, "argv", ["tune.py", "--corpus", "multi30k"])
    assert example.arguments().preset == "multi30k"


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_one_minute_of_it_for_real(tmp_path):
    script = ROOT / "examples" / "tune.py"
    options = ["--minutes", "1.5", "--preset", "smoke", "--epochs", "2"]
    done = subprocess.run(
        [sys.executable, script, *options, "--output", tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN
    assert len(ks.Translator.load(tmp_path / "translator.keras")(["1 May"])) == 1


@pytest.mark.backends("jax")
def test_the_distributed_example_says_which_variables_it_wants(
    load_example, monkeypatch, tmp_path
):
    module = load_example("distributed_tuning")
    monkeypatch.setattr(sys, "argv", ["distributed_tuning.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="Set KERASTUNER_TUNER_ID, KERASTUNER_ORACLE"):
        module.main()
