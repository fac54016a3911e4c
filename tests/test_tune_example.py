"""The tuning example: heads and depth within minutes, saved, and resumed."""

import csv
import json
import pathlib
import re
import runpy
import subprocess
import sys

import keras
import keras_tuner
import pytest

import keras_seqattn as ks
from keras_seqattn.tuning import records, trials
from keras_seqattn.tuning import study as studies
from tests.tuning import conftest

pytestmark = pytest.mark.backends("jax")

ROOT = pathlib.Path(__file__).parent.parent
WRITTEN = {"scores.json", "study", "study.csv", "study.png", "translator.keras"}


@pytest.fixture
def example(load_example, monkeypatch):
    module = load_example("tune")

    def run(*options, minutes=("--minutes", "10")):
        given = ("--objective", "val_loss", *minutes, *map(str, options))
        monkeypatch.setattr(sys, "argv", ["tune.py", *given])
        module.main()

    module.run = run
    return module


class Translator:
    """Stands for the trained one."""

    def __call__(self, lines):
        return lines

    def save(self, path):
        path.write_text("a model")


@pytest.fixture
def simulated(monkeypatch):
    """Studies of a number of trials that take milliseconds; returns its setter."""
    most = [9]

    def fit(model, hp, study, record, epochs, is_done, *more):
        if len(records.load_records(study.directory)) > most[0]:
            raise trials.OutOfTime("the time is over")
        return conftest.simulated_fit(model, hp, study, record, epochs, is_done)

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
    return most


def test_too_little_time_is_said_in_a_sentence(example, simulated, tmp_path):
    simulated[0] = -1
    with pytest.raises(SystemExit, match="Nothing was found yet; more --minutes may"):
        example.run("--output", tmp_path, "--epochs", 3)


def test_another_example_s_folder_is_left_alone(example, simulated, tmp_path):
    (tmp_path / "run.json").write_text("{}")  # of translation.py, which has just begun
    with pytest.raises(SystemExit, match="must be a new.*json but no study"):
        example.run("--output", tmp_path, "--epochs", 3)
    (tmp_path / "run.json").unlink()
    (tmp_path / "translator.keras").write_bytes(b"of translation.py")
    with pytest.raises(SystemExit, match="must be a new.*keras but no study"):
        example.run("--output", tmp_path, "--epochs", 3)
    assert (tmp_path / "translator.keras").read_bytes() == b"of translation.py"


def test_another_study_s_folder_is_refused_in_a_sentence(example, simulated, tmp_path):
    simulated[0] = 3
    example.run("--output", tmp_path, "--epochs", 3)
    with pytest.raises(SystemExit, match="different `seed`.*folder with --output"):
        example.run("--output", tmp_path, "--epochs", 3, "--seed", 1)


def test_it_tells_saves_and_goes_on(example, simulated, tmp_path, capsys):
    example.run("--output", tmp_path, "--epochs", 3)
    printed = capsys.readouterr().out
    assert "trial 8: completed" in printed
    # Nine trials are too few to compare, and the one that was stopped does not run.
    assert "What mattered" not in printed
    assert "Warning: Fewer than 15 trials were trained for equally many" in printed
    assert "Warning: No trial got 3 epochs" not in printed
    assert "best 0." in printed and "val_loss" not in printed
    assert re.search(r"Best: trial \d+, val_token_crossentropy 0\.", printed)
    scores = (tmp_path / "scores.json").read_text()
    assert scores in printed and json.loads(scores)["split"] == "test"
    assert {path.name for path in tmp_path.iterdir()} == WRITTEN
    with open(tmp_path / "study.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert rows[-1]["status"] == "stopped"
    varied = ks.tuning.Study(tmp_path / "study").hyperparameters()
    assert varied and set(varied) <= set(example.HEADS_AND_DEPTH)

    example.run("--output", tmp_path, "--epochs", 3)
    assert "trial 8: completed" not in capsys.readouterr().out
    with open(tmp_path / "study.csv", newline="") as file:
        again = list(csv.DictReader(file))
    assert [row["score"] for row in again] == [row["score"] for row in rows]


def test_without_minutes_it_tries_ten_models(example, simulated, tmp_path):
    simulated[0] = 99
    for options, count in (((), 10), (("--trials", 12), 12)):
        example.run("--output", tmp_path, "--epochs", 3, *options, minutes=())
        table = ks.tuning.Study(tmp_path / "study").table()
        assert table["continued_from"].isna().sum() == count


def test_enough_trials_say_what_mattered(example, simulated, tmp_path, capsys):
    simulated[0] = 16
    options = ("--output", tmp_path, "--algorithm", "random", "--epochs")
    example.run(*options, 2)
    printed = capsys.readouterr().out
    assert "Warning: No trial got 3 epochs, the longest had 2: " in printed
    assert re.search(r"What mattered: \w+ \d+%", printed)
    assert "Fewer than 15" not in printed


def test_it_tunes_on_files_of_one_s_own(example, simulated, tmp_path, capsys):
    train, val = tmp_path / "mine.tsv", [tmp_path / "val.en", tmp_path / "val.de"]
    train.write_text("a b\tA B\n\na b\tA B\nc\tC\tnote\nd e\tD E\n")
    val[0].write_text("a b c d\n")
    val[1].write_text("a b c d\n")
    simulated[0] = 3
    options = ("--train", train, "--val", *val, "--output", tmp_path / "out")
    example.run(*options, "--epochs", 3)
    printed = capsys.readouterr().out
    assert "mine.tsv: 2 pairs of 5 lines; left out: 1 malformed (line 4)" in printed
    told = re.search(r"vocabulary of (\d+), .* place of the preset's 1000", printed)
    asked = (tmp_path / "out" / "study" / "study.json").read_text()
    assert f"vocabulary_size={told[1]}," in asked
    with pytest.raises(SystemExit, match="at most .*Choose another with --vocabulary"):
        example.run(*options, "--vocabulary-size", 9999)
    assert (
        "The first pair is 'a b' -> 'A B'; if it names the columns, add --header"
        in printed
    )
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert (scores["split"], scores["bleu"]) == ("val", 100.0)
    with pytest.raises(SystemExit):
        example.run("--train", train)
    assert "`train` and `val` must come together" in capsys.readouterr().err


def test_lines_that_are_all_too_long_are_refused(example, simulated, tmp_path):
    lines = tmp_path / "train.tsv"
    lines.write_text("".join(f"{i} {'dogs ' * 99}\t{i} Hunde\n" for i in range(9)))
    files = ("--train", lines, "--val", tmp_path / "val.tsv")
    files[-1].write_text("a dog\tein Hund\n")
    wanted = r"`bucket_lengths` must .*Received.* Split the lines into shorter ones"
    with pytest.raises(SystemExit, match=wanted):
        example.run(*files, "--preset", "smoke", "--output", tmp_path / "out")


def test_defaults_follow_the_corpus(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tune.py"])
    args = example.arguments()
    assert (args.preset, args.minutes, args.trials) == ("default", None, None)
    assert args.objective == "val_chrf"
    assert args.output == pathlib.Path("runs/tune-phrases-en-de")
    monkeypatch.setattr(sys, "argv", ["tune.py", "--corpus", "multi30k"])
    args = example.arguments()
    # Its test part is for a model that is final: look at it once.
    assert (args.preset, args.evaluate) == ("multi30k", "val")
    monkeypatch.setattr(sys, "argv", "tune.py --evaluate test".split())
    assert example.arguments().evaluate == "test"


def test_only_presets_that_can_be_the_center_are_offered(example, capsys):
    with pytest.raises(SystemExit):
        example.run("--preset", "gru-default")
    offered = re.search(r"choose from (.*)\)", capsys.readouterr().err)[1]
    offered = re.findall(r"[\w-]+", offered)
    assert {"default", "multi30k"} < set(offered) < set(ks.recipes.RECIPES)
    for name in offered:
        space = example.space_of(ks.recipes.RECIPES[name], 500)
        first = space.choose(keras_tuner.HyperParameters())
        own = space.center_values()
        assert {x: getattr(first.model, x) for x in example.HEADS_AND_DEPTH} == {
            x: own[x] for x in example.HEADS_AND_DEPTH
        }, name


def test_three_columns_are_to_be_chosen_from(example, tmp_path):
    files = []
    for name in ("train", "val"):
        path = tmp_path / f"{name}.tsv"
        path.write_text("a\tA\tnote\nb\tB\tnote\n")
        files += [f"--{name}", path]
    with pytest.raises(SystemExit, match="Choose two columns.*--columns 0 1"):
        example.run(*files, "--output", tmp_path / "out")


def test_an_objective_that_there_is_not_is_an_error(example, capsys):
    with pytest.raises(SystemExit):
        example.run("--objective", "bleu")
    assert "--objective: invalid choice: 'bleu'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused(example, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="`--output` must be .* cannot be made: "):
        example.run("--output", tmp_path / "file" / "out")


@pytest.mark.parametrize("name", ["tune", "distributed_tuning"])
def test_ctrl_c_ends_it_with_a_word(name, monkeypatch, tmp_path):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(ks.tuning, "tune_translation", interrupted)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for variable in ("TUNER_ID", "ORACLE_IP", "ORACLE_PORT"):
        monkeypatch.setenv(f"KERASTUNER_{variable}", "chief")
    options = {"tune": ["--output"], "distributed_tuning": []}[name]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options, str(tmp_path)])
    with pytest.raises(SystemExit, match="Stopped. The same command goes on"):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")


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


def test_the_distributed_example_says_which_variables_it_wants(
    load_example, monkeypatch, tmp_path
):
    module = load_example("distributed_tuning")
    monkeypatch.setattr(sys, "argv", ["distributed_tuning.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="Set KERASTUNER_TUNER_ID, KERASTUNER_ORACLE"):
        module.main()
