"""A trained model of another library goes on with lines of one's own."""

import csv
import json
import re
import sys

import numpy as np
import pytest

import keras_seqattn as ks
from tests.convert import families

pytestmark = pytest.mark.backends("torch")

PAIRS = list(zip(families.LINES[:3], families.LINES[3:], strict=True))
OPTIONS = ("--batch-tokens", "256", "--learning-rate", "0.01")


@pytest.fixture
def run(load_example, monkeypatch, tmp_path):
    """Runs the script on a small random model of Marian."""
    families.marian(tmp_path / "opus-mt")
    for name, pairs in (("all", PAIRS), ("few", PAIRS[:1])):
        lines = "".join("\t".join(pair) + "\n" for pair in pairs)
        (tmp_path / f"{name}.tsv").write_text(lines)
    example = load_example("fine_tune")
    monkeypatch.chdir(tmp_path)

    def run(*options):
        argv = ["fine_tune.py", "opus-mt", *OPTIONS, "--output", "out", *options]
        monkeypatch.setattr(sys, "argv", argv)
        example.main()
        return tmp_path / "out"

    return run


ALL = ("--train", "all.tsv", "--val", "all.tsv")


def rows(out):
    return list(csv.DictReader((out / "history.csv").open()))


def test_it_learns_and_saves(run):
    out = run(*ALL, "--epochs", "6")
    perplexities = [float(row["val_perplexity"]) for row in rows(out)]
    assert perplexities == sorted(perplexities, reverse=True)
    assert perplexities[-1] < perplexities[0] / 2
    scores = json.loads((out / "scores.json").read_text())
    assert scores["before"]["all"]["chrf"] < scores["after"]["all"]["chrf"]
    with pytest.raises(SystemExit, match="`--output` must be a new folder"):
        run(*ALL, "--epochs", "6", "--lora", "2")


def test_columns_are_chosen_and_a_header_is_left_out(run, tmp_path, capsys):
    rows = ["id\tsource\ttarget", *(f"{i}\t{a}\t{b}" for i, (a, b) in enumerate(PAIRS))]
    (tmp_path / "new.tsv").write_text("\n".join([*rows, ""]))
    files = ("--train", "new.tsv", "--val", "new.tsv", "--epochs", "1")
    with pytest.raises(SystemExit, match="with 3: .*such as --columns 0 1"):
        run(*files)
    assert (run(*files, "--columns", "1", "2", "--header") / "scores.json").exists()
    printed = capsys.readouterr().out
    assert f"new.tsv: {len(PAIRS)} pairs of " in printed
    assert re.search(r"Warning: \d+ of the \d+ pairs of --val are in --train", printed)


def test_a_run_of_before_there_were_columns_goes_on(run):
    out = run(*ALL, "--epochs", "1")
    path = out / "run.json"
    old = json.loads(path.read_text())
    del old["columns"], old["header"]
    path.write_text(json.dumps(old))
    run(*ALL, "--epochs", "1")


@pytest.mark.slow
def test_a_command_that_failed_can_be_corrected(run, tmp_path):
    """A folder is a run's own once something was scored or trained, not before."""
    with pytest.raises(SystemExit, match="`source` must be None"):
        run("--source", "en", *ALL, "--epochs", "1")
    for name, options in (
        ("val", ("--train", "all.tsv", "--val", "new.tsv", "--epochs", "1")),
        ("train", ("--train", "new.tsv", "--val", "all.tsv", "--epochs", "1")),
    ):
        (tmp_path / "new.tsv").write_text(f"{name} without a tab\n")
        with pytest.raises(SystemExit, match="new.tsv"):
            run(*options)
    assert (run(*ALL, "--epochs", "1") / "scores.json").exists()


def test_another_example_s_folder_is_left_alone(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "translator.keras").write_bytes(b"of tune.py")
    with pytest.raises(SystemExit, match="must be a new.*translator.keras but no run"):
        run(*ALL, "--epochs", "1")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["translator.keras"]


@pytest.mark.slow
def test_lora_goes_on_after_a_crash(run, monkeypatch):
    save = ks.training.Resume.on_epoch_end

    def crash(self, epoch, logs=None):
        save(self, epoch, logs)
        raise RuntimeError("the machine went down")

    with monkeypatch.context() as patched:
        patched.setattr(ks.training.Resume, "on_epoch_end", crash)
        with pytest.raises(RuntimeError, match="went down"):
            run(*ALL, "--lora", "2", "--epochs", "2")
    out = run(*ALL, "--lora", "2", "--epochs", "2")
    assert [row["epoch"] for row in rows(out)] == ["0", "1"]
    model = ks.Translator.load(out / "translator.keras").model
    original = ks.convert.model_from_huggingface("opus-mt")
    frozen = [x for x in model.non_trainable_variables if "kernel" in x.path]
    kernels = [x for x in original.trainable_variables if "kernel" in x.path]
    assert len(frozen) == len(kernels) > 0
    for left, right in zip(frozen, kernels, strict=True):
        np.testing.assert_array_equal(left.numpy(), right.numpy())


@pytest.mark.slow
def test_several_languages_have_a_tag_and_a_score_each(run):
    files = ("<de>=all.tsv", "<x>=few.tsv")
    out = run("--train", *files, "--val", *files, "--epochs", "1", "--temperature", "5")
    scores = json.loads((out / "scores.json").read_text())
    assert list(scores["after"]) == ["<de>", "<x>"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", "no.tsv", "--val", "all.tsv"), "`train` must be a file.*no.tsv"),
        (("--train", "all.tsv", "few.tsv", "--val", "all.tsv"), "TAG=FILE of several"),
        (
            ("--train", "<a>=all.tsv", "<b>=few.tsv", "--val", "all.tsv"),
            r"`val` must have the tags.*\[None\], where --train has \['<a>', '<b>'\]",
        ),
        (("--train", "=all.tsv", "--val", "all.tsv"), "`train` must be a file.*=all"),
        (("--output", "all.tsv", *ALL), "`--output` must be a new folder.*is a file"),
        (("--source", "en", *ALL), "`source` must be None for a Marian model"),
        (("--batch-tokens", "9", *ALL), "`batch_tokens` must be at least .*Received"),
        (("--temperature", "0.5", *ALL), "`temperature` must be .*Received"),
    ],
)
def test_what_does_not_fit_is_said(options, message, run, capsys):
    with pytest.raises(SystemExit) as stopped:
        run(*options)
    assert re.search(message, f"{stopped.value}{capsys.readouterr().err}")
