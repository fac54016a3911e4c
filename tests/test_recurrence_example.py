"""The comparison of a recurrent model with a Transformer: same time, both scored."""

import dataclasses
import json
import pathlib
import runpy
import subprocess
import sys

import pytest

import keras_seqattn as ks

pytestmark = pytest.mark.backends("torch")

ROOT = pathlib.Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "recurrence.py"
NUMBERS = {
    "weights",
    "seconds",
    "epochs",
    "target_tokens_per_second",
    "val_perplexity",
    "bleu",
    "chrf",
    "exact_match_percent",
}


def results(folder):
    """Checks that all was written; gives the numbers of both models."""
    assert {path.name for path in folder.iterdir()} == {
        "comparison.json",
        "comparison.png",
    }
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((folder / "comparison.json").read_text())
    both = [numbers[name] for name in ("recurrent", "Transformer")]
    assert all(set(one) == NUMBERS for one in both)
    return both


@pytest.fixture
def example(load_example, monkeypatch):
    """The script as a module, with recipes and a corpus that take seconds."""
    module = load_example("recurrence")
    tiny = {
        "smoke": {
            "model_dim": 8,
            "num_heads": 2,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "intermediate_dim": 8,
        },
        "gru-smoke": {"model_dim": 8},
    }
    for name, model in tiny.items():
        recipe = dataclasses.replace(
            ks.recipes.RECIPES[name],
            model={"source_vocabulary_size": 290, **model},
            batch_tokens=256,
            bucket_lengths=(16,),
        )
        monkeypatch.setitem(ks.recipes.RECIPES, name, recipe)

    def load_parallel(name, source, target, split, data_dir):
        numbers = range(40 if split == "train" else 3)
        pairs = [(f"{i} red dogs", f"{i} rote Hunde") for i in numbers]
        return tuple(map(list, zip(*pairs, strict=True)))

    monkeypatch.setattr(ks.text, "load_parallel", load_parallel)
    return module


@pytest.mark.slow
def test_both_models_have_the_same_time(example, monkeypatch, tmp_path, capsys):
    output = tmp_path / "out"
    options = ["--preset", "smoke", "--minutes", "0.05", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["recurrence.py", *options])
    example.main()
    printed = capsys.readouterr().out
    assert "Epoch 1/" in printed
    for name, one in zip(("recurrent", "Transformer"), results(output), strict=True):
        assert f"{name}: {one['weights']:,} weights, 0.05 minutes" in printed
        assert f"{one['target_tokens_per_second']:,}" in printed
        assert one["epochs"] > 0
        assert one["seconds"] >= 3


def test_an_output_that_is_no_folder_is_told_before_any_training(
    example, monkeypatch, tmp_path
):
    output = tmp_path / "out"
    output.write_text("")
    options = ["--preset", "smoke", "--minutes", "0.01", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["recurrence.py", *options])
    with pytest.raises(SystemExit, match="`--output` must be a new folder.*is a file"):
        example.main()


def test_ctrl_c_ends_it_with_a_word(monkeypatch, tmp_path):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(ks.text, "load_parallel", interrupted)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    monkeypatch.setattr(sys, "argv", ["recurrence.py", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="Stopped"):
        runpy.run_path(str(SCRIPT), run_name="__main__")


def test_defaults_follow_the_corpus(example, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["recurrence.py"])
    args = example.arguments()
    assert (args.preset, args.evaluate, args.minutes) == ("default", "test", 3.0)
    options = "recurrence.py --corpus multi30k --target fr --minutes 9".split()
    monkeypatch.setattr(sys, "argv", options)
    args = example.arguments()
    assert (args.preset, args.evaluate, args.minutes) == ("multi30k", "val", 9.0)
    assert args.output == pathlib.Path("runs/recurrence-multi30k-en-fr-multi30k")


@pytest.mark.slow
def test_the_smoke_preset_learns(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = ["--preset", "smoke", "--minutes", "0.6", "--output", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, SCRIPT, *options], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for one in results(tmp_path):
        assert one["exact_match_percent"] > 20
