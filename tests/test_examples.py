"""The main job: trains, scores, saves; goes on after a stop; never trains twice."""

import argparse
import csv
import dataclasses
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import types

import keras
import pytest

import keras_seqattn as ks

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "translation.py"
WRITTEN = {
    "attention.png",
    "history.csv",
    "learning_curve.png",
    "run.json",
    "scores.json",
    "translations.txt",
    "translator.keras",
}


@pytest.fixture(autouse=True)
def importable_from_a_script(monkeypatch):
    """Lets a process of its own import the package, whether installed or not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def command(*options):
    return [sys.executable, SCRIPT, *map(str, options)]


def epochs(folder):
    with open(folder / "history.csv", newline="") as file:
        return list(csv.DictReader(file))


def copy_of(path):
    """Returns another file of the same lines, since the same one is refused."""
    copy = path.with_name(f"copy_of_{path.name}")
    copy.write_bytes(path.read_bytes())
    return copy


def assert_finished(folder, output, teachers=()):
    """Checks that everything was written, and that the scores were printed too."""
    assert {path.name for path in folder.iterdir()} == WRITTEN.union(teachers)
    for name in ("attention.png", "learning_curve.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    scores = (folder / "scores.json").read_text()
    assert scores in output
    assert "tok:13a" in scores
    return json.loads(scores)


@pytest.fixture
def example(load_example, monkeypatch):
    """The script as a module, with a recipe and a corpus that take seconds."""
    module = load_example("translation")
    tiny = {
        "model": {
            "source_vocabulary_size": 290,
            "model_dim": 8,
            "num_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "intermediate_dim": 8,
        },
        "batch_tokens": 512,
        "bucket_lengths": (16,),
        "epochs": 3,
    }
    recipe = dataclasses.replace(ks.recipes.RECIPES["smoke"], **tiny)
    monkeypatch.setitem(ks.recipes.RECIPES, "smoke", recipe)

    def load_parallel(name, source, target, split, data_dir):
        loaded.append((name, source, target, split, data_dir))
        numbers = range(40 if split == "train" else 3)
        pairs = [(f"{i} red dogs", f"{i} rote Hunde") for i in numbers]
        return tuple(map(list, zip(*pairs, strict=True)))

    loaded = module.loaded = []
    monkeypatch.setattr(ks.text, "load_parallel", load_parallel)

    def run(*options):
        arguments = ["translation.py", "--preset", "smoke", *map(str, options)]
        monkeypatch.setattr(sys, "argv", arguments)
        module.main()

    module.run = run
    return module


def test_ctrl_c_resumes_and_a_finished_run_is_only_evaluated(
    example, monkeypatch, tmp_path, capsys
):
    begin = example.Stopwatch.on_epoch_begin

    def interrupt(stopwatch, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt
        begin(stopwatch, epoch)

    def interrupt_save(translator, path):
        raise KeyboardInterrupt

    output = ("--output", tmp_path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(example.Stopwatch, "on_epoch_begin", interrupt)
        example.run(*output)
    assert len(epochs(tmp_path)) == 2
    capsys.readouterr()

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ks.Translator, "save", interrupt_save)
        example.run(*output)
    printed = capsys.readouterr().out
    assert "Epoch 3/3" in printed
    assert "Epoch 2/3" not in printed
    assert not (tmp_path / "translator.keras").exists()

    example.run(*output)
    printed = capsys.readouterr().out
    assert "Epoch" not in printed
    rows = epochs(tmp_path)
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    minutes = [float(row["minutes"]) for row in rows]
    assert minutes == sorted(minutes)
    losses = [float(row["val_loss"]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    scores = assert_finished(tmp_path, printed)
    assert scores["split"] == "test"
    assert scores["minutes"] == round(minutes[-1], 1)

    example.run(*output)
    printed = capsys.readouterr().out
    assert "Already trained" in printed
    assert "Epoch" not in printed
    assert assert_finished(tmp_path, printed) == scores
    assert epochs(tmp_path) == rows

    with pytest.raises(SystemExit, match="`--output` must be .*Received: --output="):
        example.run(*output, "--seed", 1)


def test_multi30k_is_scored_on_val_and_minutes_stop_the_training(
    example, tmp_path, capsys
):
    example.run(
        *("--corpus", "multi30k", "--data-dir", "a_folder", "--target", "fr"),
        *("--output", tmp_path, "--minutes", 0.0001),
    )
    assert len(epochs(tmp_path)) == 1
    assert assert_finished(tmp_path, capsys.readouterr().out)["split"] == "val"
    splits = ["val", "train", "val", "val"]  # what is scored, at the beginning, too
    assert example.loaded == [
        ("multi30k", "en", "fr", split, "a_folder") for split in splits
    ]


@pytest.mark.slow
def test_a_recipe_with_all_it_can_ask_for_trains(
    example, monkeypatch, tmp_path, capsys
):
    """A cutoff and views of a second copy, teachers, a tuned search."""
    recipe = dataclasses.replace(
        ks.recipes.RECIPES["smoke"],
        model={**ks.recipes.RECIPES["smoke"].model.options(), "zero_id": 3},
        repeat_batch=2,
        cutoff=0.1,
        sampling=0.1,
        views=("plain", "sampled"),
        consistency=3.0,
        bidirectional_epochs=1,
        teacher_epochs=1,
        ema_warmup=True,
        beam_widths=(2, 3),
        epochs=2,
    )
    monkeypatch.setitem(ks.recipes.RECIPES, "smoke", recipe)
    example.run("--output", tmp_path)
    printed = capsys.readouterr().out
    assert_finished(tmp_path, printed, teachers=("forward", "backward"))
    assert len(re.findall(r"width [23], length penalty", printed)) == 30
    search = ks.Translator.load(tmp_path / "translator.keras").search
    assert search.width in (2, 3)
    json.loads((tmp_path / "run.json").read_text())
    example.run("--output", tmp_path)  # The same recipe, so the same run.


@pytest.mark.slow
def test_teachers_translate_the_pairs_both_ways(example, monkeypatch, tmp_path, capsys):
    """Stopped between them, the same command trains none of them again."""
    several = {"teacher_epochs": 2, "teachers": 2}
    recipe = dataclasses.replace(ks.recipes.RECIPES["smoke"], **several)
    monkeypatch.setitem(ks.recipes.RECIPES, "smoke", recipe)
    synthesize, fit = ks.text.synthesize, example.fit
    fitted = []

    def stopped(*args, **options):
        if options["reverse"]:
            raise KeyboardInterrupt
        return synthesize(*args, **options)

    def fit_and_tell(args, recipe, sources, targets, tokenizer):
        fitted.append((args, recipe, sources, targets))
        return fit(args, recipe, sources, targets, tokenizer)

    monkeypatch.setattr(example, "fit", fit_and_tell)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ks.text, "synthesize", stopped)
        example.run("--output", tmp_path)
    example.run("--output", tmp_path)
    teachers = ("forward", "backward", "forward-2", "backward-2")
    scores = assert_finished(tmp_path, capsys.readouterr().out, teachers)
    names = [args.output.name for args, *_ in fitted]
    assert names == [*teachers, tmp_path.name]
    assert [recipe.epochs for _, recipe, *_ in fitted] == [2, 2, 2, 2, 3]
    assert [args.seed for args, *_ in fitted] == [1, 1, 2, 2, 0]

    corpus = [(f"{i} red dogs", f"{i} rote Hunde") for i in range(40)]
    pairs = [list(zip(*lines, strict=True)) for _, _, *lines in fitted]
    assert pairs[:4] == 2 * [corpus, [pair[::-1] for pair in corpus]]
    made = pairs[4][len(corpus) :]
    assert pairs[4][: len(corpus)] == corpus
    sources, targets = map(set, zip(*corpus, strict=True))
    assert all(pair[0] in sources or pair[1] in targets for pair in made)
    assert len(set(pairs[4])) == len(pairs[4]) > len(corpus)
    histories = [tmp_path / name for name in ("", *teachers)]
    minutes = sum(float(epochs(folder)[-1]["minutes"]) for folder in histories)
    assert scores["minutes"] == round(minutes, 1)


def test_defaults_follow_the_corpus(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["translation.py"])
    args = example.arguments()
    assert (args.preset, args.evaluate) == ("default", "test")
    assert args.output == pathlib.Path("runs/phrases-en-de-default")
    options = "translation.py --corpus multi30k --evaluate test --target fr".split()
    monkeypatch.setattr(sys, "argv", options)
    args = example.arguments()
    assert (args.preset, args.evaluate) == ("multi30k", "test")
    assert args.output == pathlib.Path("runs/multi30k-en-fr-multi30k")
    example.load(args, "test")
    assert example.loaded[-1][3] == "test_2016_flickr"


def test_it_trains_on_files_of_one_s_own(example, monkeypatch, tmp_path, capsys):
    train, val = tmp_path / "mine.tsv", [tmp_path / "val.en", tmp_path / "val.de"]
    pairs = [f"{i} red dogs\t{i} rote Hunde\n" for i in range(40)]
    header = "\ufeffEnglish\tGerman\n"
    train.write_text(header + "".join(pairs) + "\nlone\n" + pairs[0], "utf-8")
    val[0].write_text("1 red dogs\n1 red dogs\n\n")
    val[1].write_text("1 rote Hunde\n1 rote Hunde\n\n")
    options = ("--train", train, "--val", *val, "--output", tmp_path / "out")
    options += ("--header",)
    example.run(*options, "--epochs", 1)
    printed = capsys.readouterr().out
    assert (
        "mine.tsv: 40 pairs of 44 lines; left out: 1 malformed (line 43), " in printed
    )
    assert (
        "val.de: 2 pairs of 3 lines; left out: 1 empty (line 3); kept: 1 dup" in printed
    )
    assert assert_finished(tmp_path / "out", printed)["split"] == "val"
    assert example.loaded == []

    example.run(*options, "--epochs", 1, "--test", *val)
    printed = capsys.readouterr().out
    assert "Already trained" in printed
    assert assert_finished(tmp_path / "out", printed)["split"] == "test"
    val[0].write_text("2 red dogs\n1 red dogs\n\n")
    with pytest.raises(SystemExit, match="`--output` must be .*Received: --output="):
        example.run(*options, "--epochs", 1)
    monkeypatch.setattr(sys, "argv", ["translation.py", *map(str, options[:5])])
    assert example.arguments().output == pathlib.Path("runs/mine-own")


def test_a_run_that_an_early_version_began_goes_on(example, tmp_path):
    recipe = ks.recipes.RECIPES["default"]
    golden = ROOT / "tests" / "golden" / "recipes-0.1.0.json"
    given = {"corpus": "phrases", "source": "en", "target": "de", "seed": 0}
    run = {**given, "recipe": json.loads(golden.read_text())["default"]}
    (tmp_path / "run.json").write_text(json.dumps(run, indent=2))
    (tmp_path / "backup").mkdir()
    args = types.SimpleNamespace(**given, train=None, devices=1, output=tmp_path)
    for _ in range(2):  # as it was written, and as it is written now
        example.claim_output(args, recipe)
    with pytest.raises(SystemExit, match="must be a new folder, or that of the same"):
        example.claim_output(args, dataclasses.replace(recipe, epochs=3))


def test_a_folder_of_other_files_is_left_alone(example, tmp_path):
    kept = tmp_path / "backup" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("a year of work")
    with pytest.raises(SystemExit, match="must be a new.*, which holds backup but no"):
        example.run("--output", tmp_path)
    assert kept.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]
    (tmp_path / "study").mkdir()  # that of `tune.py`
    with pytest.raises(SystemExit, match="must be a new.*, which holds backup but no"):
        example.run("--output", tmp_path)
    (tmp_path / "backup").rename(tmp_path / "old")
    with pytest.raises(SystemExit, match="must be a new.*, which holds study but no"):
        example.run("--output", tmp_path)
    (tmp_path / "run.json").write_text('{"preset": "smoke"}')  # another example's
    with pytest.raises(
        SystemExit, match="of another run, with other .*: see .*or delete it"
    ):
        example.run("--output", tmp_path)


def test_a_log_may_be_in_the_folder_from_the_beginning(load_example, tmp_path):
    claim = load_example("outputs").claim
    (tmp_path / "log.txt").touch()
    for seed in (1, 2):  # until something else is written, the command may change
        claim(tmp_path, {"seed": seed}, ["scores.json"])
    (tmp_path / "scores.json").touch()
    claim(tmp_path, {"seed": 2}, ["scores.json"])
    with pytest.raises(SystemExit, match=r"with other seed: see .*run\.json"):
        claim(tmp_path, {"seed": 3}, ["scores.json"])


def test_a_long_line_is_shown_in_part(load_example):
    corpora = load_example("corpora")
    assert corpora.shortened("x" * 60) == repr("x" * 60)
    assert corpora.shortened("it's " + "x" * 99) == repr("it's " + "x" * 52 + "...")


@pytest.mark.slow
def test_a_small_file_is_read_again(example, monkeypatch, tmp_path, capsys):
    """Until the learning rate has risen, and has fallen for four times as long."""
    recipe = dataclasses.replace(ks.recipes.RECIPES["smoke"], warmup_steps=3)
    monkeypatch.setitem(ks.recipes.RECIPES, "own", recipe)
    train = tmp_path / "mine.tsv"
    train.write_text("".join(f"{i} red dogs\t{i} rote Hunde\n" for i in range(40)))
    files = ("--train", train, "--val", copy_of(train))
    example.run("--preset", "own", *files, "--output", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "The first pair is '0 red dogs' -> '0 rote Hunde'; if it names" in printed
    steps = int(re.search(r"(\d+)/\1\b", printed)[1])
    assert len(epochs(tmp_path / "out")) == -(-15 // steps)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", "a"), "`train` and `val` must come together"),
        (("--test", "a"), "`train` and `val` must come together"),
        (("--train", "a", "--val", "none"), "`val` must be a file. Received: none"),
        (("--train", "a", "a", "a"), "`train` must be one file or two. Received:"),
        (("--train", "a", "--val", "a", "--evaluate", "test"), "`test` must be given"),
        (("--train", "a", "a", "--val", "a", "a", "--header"), "must come with a TSV"),
        (("--columns", "0", "1"), "`columns` and `header` must come with a TSV"),
        (("--train", "a", "--val", "a"), "`--val` must be of other lines than `--tr"),
        (
            ("--train", "a", "--val", "b", "--test", "a"),
            "than `--train`. Received: --test=a. Move some lines",
        ),
        (
            ("--train", "a", "--val", "b", "--source", "de", "--target", "en"),
            "Received: --source=de, --target=en. To translate the other way, choose",
        ),
        (
            ("--train", "a", "--val", "b", "--corpus", "multi30k"),
            "must be left out with `--train`. Received: --corpus=multi30k, --data-dir",
        ),
    ],
)
def test_files_that_make_no_corpus_are_errors(
    example, monkeypatch, tmp_path, capsys, options, message
):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("one\teins\n")
    with pytest.raises(SystemExit):
        example.run(*options)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_language_that_the_corpus_lacks_is_an_error(load_example, side):
    options = {"corpus": "phrases", "data_dir": None, "source": "en", "target": "de"}
    args = argparse.Namespace(**options | {side: "xx"})
    with pytest.raises(SystemExit, match=f"`{side}` must be one of .*{side}='xx'"):
        load_example("corpora").load(args, "train")


def test_a_corpus_that_is_not_there_is_said_in_a_sentence(load_example, tmp_path):
    options = {"corpus": "multi30k", "source": "en", "target": "de"}
    args = argparse.Namespace(**options, data_dir=str(tmp_path))
    with pytest.raises(SystemExit, match=r"`data_dir` must hold train\.en\.gz"):
        load_example("corpora").load(args, "train")


def test_devices_that_are_not_there_are_an_error(example, tmp_path):
    with pytest.raises(SystemExit, match="`--devices` must be 1 or.*--devices=64"):
        example.run("--output", tmp_path, "--devices", 64)


@pytest.mark.slow
@pytest.mark.backends("jax")
def test_two_devices_share_its_batches(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    options = command("--preset", "smoke", "--output", tmp_path, "--devices", 2)
    done = subprocess.run(options, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert assert_finished(tmp_path, done.stdout)["exact_match_percent"] > 25


@pytest.mark.slow
@pytest.mark.parametrize("waits_for", ["history.csv", "backup/state.npz"])
def test_a_kill_loses_at_most_one_epoch(waits_for, tmp_path):
    options = command("--preset", "smoke", "--epochs", 3, "--output", tmp_path)
    with subprocess.Popen(options, stdout=subprocess.DEVNULL) as process:
        while not (path := tmp_path / waits_for).exists() or not path.stat().st_size:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    again = subprocess.run(options, capture_output=True, text=True, check=True)
    assert "Epoch 2/3" in again.stdout
    # The backup comes after the history: before it, the epoch is the one that is lost.
    assert waits_for == "history.csv" or "Epoch 1/3" not in again.stdout
    assert {row["epoch"] for row in epochs(tmp_path)} == {"0", "1", "2"}
    scores = assert_finished(tmp_path, again.stdout)
    assert scores["exact_match_percent"] > 50


# Continuous integration runs the same command by itself; here its score is judged.
@pytest.mark.slow
def test_the_smoke_preset_learns(tmp_path):
    options = command("--preset", "smoke", "--output", tmp_path)
    done = subprocess.run(options, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert assert_finished(tmp_path, done.stdout)["exact_match_percent"] > 50


def test_a_corpus_that_needs_an_option_names_it(example, monkeypatch, tmp_path, capsys):
    three = tmp_path / "three.tsv"
    three.write_text("".join(f"{i}\t{i} red dogs\t{i} rote Hunde\n" for i in range(40)))
    files = ("--train", three, "--val", copy_of(three), "--output", tmp_path / "out")
    with pytest.raises(SystemExit, match="line 1, with 3: .*such as --columns 0 1"):
        example.run(*files)
    columns = ("--columns", 1, 2, "--epochs", 1)
    with pytest.raises(SystemExit, match="Received: vocabulary_size=9999.*-size"):
        example.run(*files, *columns, "--vocabulary-size", 9999)
    recipe = ks.recipes.RECIPES["smoke"].with_vocabulary(9999)
    monkeypatch.setitem(ks.recipes.RECIPES, "smoke", recipe)
    example.run(*files, *columns)
    assert "in place of the preset's 9999." in capsys.readouterr().out
    assert (tmp_path / "out" / "translator.keras").exists()


def test_lines_that_are_all_too_long_are_an_error(example, tmp_path):
    long = tmp_path / "long.tsv"
    words = " ".join("red dogs" for _ in range(30))
    long.write_text("".join(f"{i} {words}\t{i} {words}\n" for i in range(9)))
    files = ("--train", long, "--val", copy_of(long), "--output", tmp_path / "out")
    wanted = r"`bucket_lengths` must .*=\(16,\)\. Split the lines into shorter ones"
    with pytest.raises(SystemExit, match=wanted):
        example.run(*files)


def own_files(folder, **contents):
    """Writes files, and returns the options that name them."""
    options = []
    for split, content in contents.items():
        path = folder / f"{split}.tsv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        options += [f"--{split}", path]
    return [*options, "--output", folder / "out"]


PAIRS = "".join(f"{i} red dogs\t{i} rote Hunde\n" for i in range(40))


@pytest.fixture
def trainings(example, monkeypatch):
    """Collects what would be trained, in place of it."""
    found = []
    monkeypatch.setattr(example, "train", lambda args, recipe: found.append(args))
    monkeypatch.setattr(example, "evaluate", lambda args, translator: None)
    monkeypatch.setattr(ks.Translator, "load", lambda path: None)
    return found


def test_pairs_to_validate_on_that_were_trained_on_are_counted(
    example, trainings, tmp_path, capsys
):
    val = "1 red dogs\t1 rote Hunde\n99 red dogs\t99 rote Hunde\n"
    example.run(*own_files(tmp_path, train=PAIRS, val=val, test="x\ty\n"))
    printed = capsys.readouterr().out
    assert "Warning: 1 of the 2 pairs of --val are in --train too." in printed
    assert "pairs of --test" not in printed
    assert len(trainings) == 1


def test_the_first_malformed_line_is_shown(example, trainings, tmp_path, capsys):
    train = PAIRS.encode() + b"Stra\xdfe\tstreet\n"
    example.run(*own_files(tmp_path, train=train, val="a\tb\n"))
    printed = capsys.readouterr().out
    assert "left out: 1 malformed (line 41)" in printed
    assert re.search(r"first malformed line: .* must be UTF-8\. .*, line 41: ", printed)
    assert "--columns" not in printed


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (b"a\tb\n" + b"\xe4\ta\n" * 3, "More than half .* first: .* UTF-8.*line 2: "),
        ("a\tb\n" + "a,b\n" * 3, r"More than half .*line 2, with 1: .* has no tab"),
        ("a,b\n" * 3, r"line 1, with 1: \['a,b'\]\. The line has no tab: columns must"),
        ("a\tb\n" + "a\tb\tc\n" * 3, r"More than half .*with 3: .*--columns 0 1"),
        (
            PAIRS.encode("utf-16"),
            r"must be UTF-8\. .*train\.tsv, which looks like UTF-16",
        ),
        ("", "must hold lines. Received: empty '.*train.tsv'.$"),
    ],
)
def test_a_file_that_is_no_corpus_ends_it_before_anything_is_written(
    example, trainings, tmp_path, train, message
):
    with pytest.raises(SystemExit, match=message):
        example.run(*own_files(tmp_path, train=train, val="x\ty\n"))
    assert not (tmp_path / "out").exists()


def test_a_wrong_test_file_is_told_before_the_training(example, trainings, tmp_path):
    options = own_files(tmp_path, train=PAIRS, val="x\ty\n", test="x\ty\nlone\n")
    with pytest.raises(SystemExit, match=r"test\.tsv', line 2, with 1: "):
        example.run(*options)
    assert trainings == []


def test_a_part_that_is_not_there_is_told_before_the_training(
    example, trainings, monkeypatch, tmp_path
):
    def load_parallel(name, source, target, split, data_dir):
        raise FileNotFoundError(f"no {split}")

    monkeypatch.setattr(ks.text, "load_parallel", load_parallel)
    with pytest.raises(SystemExit, match="no test_2016_flickr"):
        example.run("--corpus", "multi30k", "--evaluate", "test", "--output", tmp_path)
    assert trainings == []


def test_another_run_s_folder_is_refused_with_what_differs(
    example, trainings, tmp_path
):
    options = own_files(tmp_path, train=PAIRS, val="x\ty\nz\tz\n")
    example.run(*options)
    (tmp_path / "out" / "history.csv").touch()
    example.run(*options)
    for other, name in (
        (("--header",), "header"),
        (("--seed", 1), "seed"),
        (("--epochs", 7), r"recipe\.epochs"),
    ):
        with pytest.raises(SystemExit, match=f"with other {name}: see .*or delete it"):
            example.run(*options, *other)


def test_a_folder_that_cannot_be_made_is_refused(load_example, tmp_path):
    (tmp_path / "file").touch()
    wanted = "`--output` must be .*Received: --output=.*out, which cannot be made: "
    with pytest.raises(SystemExit, match=wanted):
        load_example("outputs").claim(tmp_path / "file" / "out", {}, [])


def test_a_second_run_in_the_folder_ends_in_a_sentence(load_example):
    alone = load_example("outputs").alone
    training = "`directory` must not be in use by another run. Received: it."
    translating = "`path` must be unused by other processes. Received: it."
    for message in (training, translating):
        with pytest.raises(SystemExit, match="Received: it.*choose another --output"):
            with alone():
                raise ValueError(message)
    with pytest.raises(ValueError, match="else"), alone():
        raise ValueError("something else")


def test_an_interrupted_import_ends_without_a_traceback(load_example):
    options = load_example("options")
    with pytest.raises(SystemExit, match="Stopped"), options.installed(__doc__):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("translation", "matplotlib"),
        ("tune", "matplotlib"),
        ("recurrence", "matplotlib"),
        ("fine_tune", "sacrebleu"),
        ("serve", "flask"),
        ("distributed", "sacrebleu"),
        ("distributed_tuning", "pandas"),
    ],
)
def test_what_is_not_installed_is_named_with_the_command(
    load_example, monkeypatch, name, module
):
    for loaded in [part for part in sys.modules if part.startswith(f"{module}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "corpora", raising=False)
    wanted = rf'{module}.*Run this in a clone.*: pip install "\.\[[\w,]+\]"$'
    with pytest.raises(SystemExit, match=wanted):
        load_example(name)


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_the_command_installs_the_backend_that_is_chosen(
    load_example, monkeypatch, backend
):
    options = load_example("options")
    monkeypatch.setenv("KERAS_BACKEND", backend)
    with pytest.raises(SystemExit, match=rf'pip install "\.\[{backend},text\]"$'):
        with options.installed('`pip install ".[tensorflow,text]"`'):
            raise ModuleNotFoundError("No module named 'x'")


@pytest.mark.parametrize(
    ("name", "backend", "message"),
    [
        (
            "serve",
            "tensorflow",
            "ImportError: Keras computes with tensorflow here, which is not",
        ),
        (
            "translate_file",
            "pytorch",
            r"ValueError: `KERAS_BACKEND` must .*KERAS_BACKEND=pytorch\.",
        ),
    ],
)
def test_examples_say_what_to_do_without_a_backend(monkeypatch, name, backend, message):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    script = ROOT / "examples" / f"{name}.py"
    program = "import runpy, sys; sys.modules['tensorflow'] = None; "
    program += f"sys.path.insert(0, {str(script.parent)!r}); "
    program += f"runpy.run_path({str(script)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert re.match(message, done.stderr.splitlines()[-1])


def test_a_backend_that_is_chosen_too_late_is_told():
    program = "import keras, os; os.environ['KERAS_BACKEND'] = 'numpy'; "
    program += "import keras_seqattn"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    used = keras.backend.backend()
    assert f"'numpy' after Keras had been imported, so Keras computes with {used}" in (
        done.stderr
    )


def test_a_letter_that_the_output_does_not_have_is_replaced(load_example, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "cp1252"))
    load_example("options").print_all_scripts()
    print("Příliš жлуть", flush=True)
    assert b"?" in written.getvalue()
