"""Every command that the documents show: it parses, and in CI it runs."""

import argparse
import configparser
import functools
import gzip
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests import documents
from tests.documents import ROOT, words

EXAMPLES = sorted((ROOT / "examples").glob("**/*.py"))
LECTURES = sorted((ROOT / "examples" / "lectures").glob("lecture_*.py"))
COMMANDS = list(
    dict.fromkeys(
        command for page in documents.DOCUMENTS for command in documents.commands(page)
    )
)
IN_EXAMPLES = [
    command
    for path in EXAMPLES
    for command in documents.docstring_commands(path.read_text())
]
# Commands of no script with arguments. CI runs the first two, itself and the type
# checker, and a test the third, the build of the site. Another compares what the last
# but one writes. The last stands for a script of the reader's own.
OTHERS = {
    "bash .ci/run",
    "python -m tests.typed",
    "python -m mkdocs build --strict",
    "python -m mkdocs serve",
    "python -m tests -m slow",
    "KERAS_BACKEND=jax python -m tests.support",
    "KERAS_BACKEND=jax python train.py",
}
# What makes a script short. The last value of an option counts.
SHORT = {
    "translation.py": ("--preset", "smoke", "--epochs", "1"),
    "recurrence.py": ("--preset", "smoke", "--minutes", "0.02"),
    "tune.py": ("--preset", "smoke", "--minutes", "0.7", "--epochs", "1"),
    "serve.py": ("--port", "0"),
    "distributed.py": ("--pairs", "1000"),
    "fine_tune.py": ("--epochs", "1"),
}


class Parsed(Exception):
    """Stops a script once it has read its arguments."""


FILES = ("model", "--train", "README.md", "--val", "README.md")


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "command",
    [
        ("translation", "--epochs", "0"),
        ("translation", "--vocabulary-size", "0"),
        ("translation", "--minutes", "nan"),
        ("tune", "--minutes", "0"),
        ("tune", "--vocabulary-size", "0"),
        ("tune", "--epochs", "1.5"),
        ("tune", "--workers", "-1"),
        ("fine_tune", *FILES, "--epochs", "0"),
        ("fine_tune", *FILES, "--lora", "0"),
        ("fine_tune", *FILES, "--batch-tokens", "0"),
        ("distributed", "--processes", "0"),
        ("distributed", "--pairs", "-5"),
        ("recurrence", "--minutes", "0"),
        ("translation", "--seed", "-1"),
    ],
    ids=" ".join,
)
def test_a_number_that_is_too_small_is_said_in_a_sentence(
    command, load_example, monkeypatch, capsys
):
    monkeypatch.chdir(ROOT)
    name, *options = command
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
    with pytest.raises(SystemExit):
        load_example(name).arguments()
    wanted = "must be (a positive (integer|number)|an integer from 0 to [0-9]+)"
    message = f"argument {options[-2]}: {wanted}. Received: {options[-1]}"
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("command", [*COMMANDS, *IN_EXAMPLES])
def test_a_command_is_one_that_its_script_takes(command, monkeypatch):
    import keras

    if command in OTHERS:
        return
    program, *arguments = words(command)
    if program == "pip":
        assert arguments[0] == "install"
        return check_requirement(arguments[1:])
    if program == "pytest":
        return  # `tests/test_docs.py` looks for its files and its tests.
    assert program == "python"
    if arguments[0] == "-c":
        compile(arguments[1], command, "exec")
        return
    for name in ("parse_args", "parse_known_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, parse_and_stop(name))
    if arguments[0] == "-m":
        script, options = module_path(arguments[1]), arguments[2:]
    else:
        script, options = ROOT / arguments[0], arguments[1:]
    for folder in (ROOT, script.parent):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    # Undone when the test ends, even if the script chooses a backend.
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    with pytest.raises(Parsed):
        runpy.run_path(str(script), run_name="__main__")


def test_every_command_of_no_script_is_shown():
    assert set(COMMANDS) >= OTHERS


def module_path(name):
    """Returns the file that `python -m name` runs."""
    path = ROOT / name.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def parse_and_stop(name):
    """A parser's method that reads the arguments, and does no more."""
    parse = getattr(argparse.ArgumentParser, name)

    def parse_then_stop(parser, *arguments):
        parse(parser, *arguments)
        raise Parsed

    return parse_then_stop


def check_requirement(requirements):
    """Checks what pip is told to install: this clone, with extras, or a dependency."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    declared = set(extras)
    packages = set(re.findall(r"^[\w-]+", "\n".join(extras.values()), re.M))
    files = [word for word in requirements if word.endswith(".txt")]
    assert all((ROOT / file).exists() for file in files)
    names = [word for word in requirements if word[0] != "-" and word not in files]
    for name in names:
        clone = re.fullmatch(r"\.(?:\[(.*)\])?", name)
        assert clone or name.partition("==")[0] in packages, name
        if clone and clone[1]:
            assert set(clone[1].split(",")) <= declared


# What CI runs, once for all that a command needs: in a fresh environment, at length
# of minutes, what takes hours in full.


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with what the commands name: a translator, a text, a small Multi30k."""
    folder = tmp_path_factory.mktemp("workplace")
    trained = folder / "trained" / "translator.keras"
    command = [sys.executable, "examples/translation.py", "--preset", "smoke"]
    run([*command, "--output", str(trained.parent)], ROOT)
    main_job = folder / "runs" / "phrases-en-de-default"
    main_job.mkdir(parents=True)
    for path in (folder / "FILE.keras", main_job / "translator.keras"):
        path.write_bytes(trained.read_bytes())
    for name in ("examples", "docs", "keras_seqattn", "tests"):
        (folder / name).symlink_to(ROOT / name)
    from keras_seqattn import text
    from tests.convert import families

    (folder / "DIRECTORY").mkdir()
    for split, length in (("train", 2000), ("val", 50)):
        pairs = text.load_parallel("phrases", "en", "de", split)
        pairs = [lines[:length] for lines in pairs]
        # What the lines say does not matter, so French has those of German.
        for language, lines in zip(("en", "de", "fr"), (*pairs, pairs[1]), strict=True):
            data = "".join(f"{line}\n" for line in lines).encode()
            path = folder / "DIRECTORY" / f"{split}.{language}.gz"
            path.write_bytes(gzip.compress(data))
        rows = (f"{source}\t{target}\n" for source, target in zip(*pairs, strict=True))
        (folder / f"{split}.tsv").write_text("".join(rows), encoding="utf-8")
        (folder / f"{split}.fr.tsv").write_bytes((folder / f"{split}.tsv").read_bytes())
    families.marian(folder / "opus-mt-en-de", tags=())
    families.t5(folder / "t5-small")
    (folder / "news.en.gz").write_bytes(
        (folder / "DIRECTORY" / "val.en.gz").read_bytes()
    )
    return folder


def run(command, folder, variables=None):
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment() | (variables or {}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr}"
    for warning in ("UserWarning", "RuntimeWarning", "retracing"):
        assert warning not in done.stderr, done.stderr
    return done.stdout


def environment():
    return os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"}


def is_of_an_example(command):
    """Whether it runs by itself, without another machine."""
    others = "distributed_tuning", "--coordinator"
    return "examples/" in command and not any(word in command for word in others)


SHOWN = [command for command in COMMANDS if is_of_an_example(command)]
SHOWN += [command for command in COMMANDS if command.startswith("python -c")]
SHOWN += [f"python {path.relative_to(ROOT)}" for path in LECTURES]
SHOWN = list(dict.fromkeys(SHOWN))


@pytest.mark.slow
@pytest.mark.parametrize("command", SHOWN)
def test_a_command_runs(command, workplace, tmp_path):
    variables = documents.variables(command)
    _, *arguments = words(command)
    script = pathlib.Path(arguments[0]).name
    command = [sys.executable, *arguments, *SHORT.get(script, ())]
    if script in ("translation.py", "distributed.py", "fine_tune.py"):
        # Two short commands would train in the same folder, which is refused.
        command += ["--output", str(tmp_path / "run")]
    if script == "serve.py":
        serve_one_line(command, workplace)
    else:
        assert run(command, workplace, variables) or "-c" in arguments


def read_until(word, stream):
    """Returns all that a process wrote up to the line with a word, or to its end."""
    text = ""
    for line in stream:
        text += line
        if word in line:
            break
    return text


def serve_one_line(command, folder):
    """Starts the server, loads its page, and ends it as Ctrl-C does."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        # What a shell runs in the background ignores Ctrl-C, and so would the server.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        address = re.search(r"Open (http://\S+)", read_until("Open", process.stdout))[1]
        with urllib.request.urlopen(address, timeout=60) as page:
            assert b"Translator" in page.read()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        process.stdout.close()
