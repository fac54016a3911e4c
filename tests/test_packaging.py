"""What a clone promises before anything is imported: metadata, bounds, test runner."""

import configparser
import importlib
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
import yaml

import keras_seqattn
from tests import __main__ as runner
from tests import lowest

ROOT = pathlib.Path(__file__).parent.parent
REPORT = (
    '<testsuites><testsuite tests="7" skipped="2" failures="{failed}" '
    'errors="{failed}"/></testsuites>'
)


def test_the_base_needs_keras_and_numpy_alone():
    names = {re.split("[<>=]", line)[0] for line in lowest.declared()[""]}
    assert names == {"keras", "numpy"}


def test_extras_are_the_documented_ones():
    extras = "text score corpora tuning plot export serve docs test all".split()
    assert set(lowest.declared()) == {"", "tensorflow", "jax", "torch", *extras}


@pytest.mark.parametrize("extra", lowest.declared())
def test_every_dependency_has_a_lower_bound(extra):
    name, version = r"[\w.-]+", r"\d+(\.\d+)*"
    for line in lowest.declared()[extra]:
        assert re.fullmatch(
            rf"{name}>={version}|torch=={version}|keras_seqattn\[[\w,]+\]", line
        )


def test_windows_does_without_what_has_no_wheels_for_it():
    setup = (ROOT / "setup.cfg").read_text()
    (marker,) = re.findall(r"^    tensorflow-text>=[\d.]+; (.*)$", setup, re.M)
    assert marker == 'sys_platform != "win32"'
    assert any(line.startswith("tensorflow-text==") for line in lowest.constraints())


def test_constraints_pin_each_lower_bound():
    bounds = lowest.constraints()
    lines = {line for lines in lowest.declared().values() for line in lines}
    assert {bound.replace("==", ">=") for bound in bounds} <= lines
    assert len(bounds) == sum(">=" in line for line in lines)


def test_the_changelog_begins_with_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)[1]
    assert newest == keras_seqattn.__version__


def test_metadata_stands_in_setup_cfg_alone():
    with open(ROOT / "pyproject.toml", "rb") as file:
        pyproject = tomllib.load(file)
    assert set(pyproject) == {"build-system", "tool"}
    assert set(pyproject["tool"]) == {"ruff"}


def test_the_distribution_holds_every_package_and_the_licence():
    """`find:` leaves out, without a word, a folder that has no `__init__.py`."""
    package = ROOT / "keras_seqattn"
    folders = {path.parent for path in package.rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert (ROOT / config["metadata"]["license_files"]).exists()
    assert (package / config["options.package_data"]["keras_seqattn"].strip()).exists()


def test_the_source_distribution_holds_what_the_tests_read(monkeypatch):
    egg_info = pytest.importorskip("setuptools.command.egg_info")
    monkeypatch.chdir(ROOT)
    held = egg_info.FileList()
    for line in pathlib.Path("MANIFEST.in").read_text().splitlines():
        if line[0] != "#":
            held.process_template_line(line)
    folders = ".ci", ".github", "benchmarks", "docs", "examples", "tests"
    files = (path for folder in folders for path in pathlib.Path(folder).rglob("*"))
    written = {str(path) for path in files if path.is_file() and path.suffix != ".pyc"}
    assert written <= set(held.files)
    assert {"mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md"} <= set(held.files)
    assert not [path for path in held.files if path.endswith(".pyc")]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_a_missing_backend_is_named_with_the_remedy(backend):
    hidden = f"import sys; sys.modules[{backend!r}] = None; import keras_seqattn"
    done = subprocess.run(
        [sys.executable, "-c", hidden],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
    )
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: Keras computes with {backend} here, which")
    assert f"`pip install {backend}`" in message
    assert "KERAS_BACKEND" in message


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("part", "package", "extra"),
    [("text", "sentencepiece", "text"), ("tuning", "keras_tuner", "tuning")],
)
def test_a_part_names_the_extra_that_it_lacks(monkeypatch, part, package, extra):
    def lacking(name):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(importlib, "import_module", lacking)
    message = rf"`keras_seqattn.{part}` needs {package}: pip install \"\.\[{extra}\]\""
    with pytest.raises(ImportError, match=message):
        keras_seqattn.__getattr__(part)


def test_metadata_names_the_authors():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["author"] == "the keras_seqattn authors"


@pytest.fixture
def pytest_runs(monkeypatch):
    """Stands in for pytest: notes each run, and writes a report without failures."""
    runs = []

    def run(command, cwd, env):
        fixed = len(runner.PYTEST)
        assert tuple(command[:fixed]) == runner.PYTEST
        runs.append((env["KERAS_BACKEND"], command[fixed:-1]))
        report = pathlib.Path(command[-1].removeprefix("--junitxml="))
        report.write_text(REPORT.format(failed=0))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(runner.subprocess, "run", run)
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: name)
    return runs


def test_runner_visits_every_backend_and_passes_arguments_on(pytest_runs, capsys):
    assert runner.main(["tests/layers", "-x"]) == 0
    assert pytest_runs == [
        (backend, ["tests/layers", "-x"]) for backend in ("tensorflow", "jax", "torch")
    ]
    assert capsys.readouterr().out.endswith("\ntotal: 15 passed, 0 failed, 6 skipped\n")


def test_runner_visits_the_chosen_backend_alone(pytest_runs):
    assert runner.main(["--backend", "jax"]) == 0
    assert pytest_runs == [("jax", [])]


@pytest.mark.parametrize(
    ("statuses", "expected"), [((5, 0, 5), 0), ((5, 5, 5), 1), ((0, 1, 5), 1)]
)
def test_runner_needs_tests_on_one_backend_alone(statuses, expected, monkeypatch):
    """Pytest ends with 5 where none of the chosen tests is for the backend."""
    ended = iter(statuses)

    def run(backend, arguments):
        return runner.Result(backend, 0, 0, 0, 1.0, next(ended))

    monkeypatch.setattr(runner, "run_backend", run)
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: name)
    assert runner.main(["tests/test_serve.py"]) == expected


def test_runner_without_choice_needs_tests_on_all(monkeypatch):
    def run(backend, arguments):
        return runner.Result(backend, 0, 0, 0, 1.0, 5 if backend == "jax" else 0)

    monkeypatch.setattr(runner, "run_backend", run)
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: name)
    assert runner.main([]) == 1


def test_runner_counts_failures_and_errors(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(REPORT.format(failed=1))
    assert runner.read_report(report) == (3, 2, 2)


@pytest.mark.backends("torch")
def test_runner_fails_when_pytest_fails_on_one_backend(tmp_path):
    broken = tmp_path / "test_broken.py"
    broken.write_text("def test_broken():\n    assert False\n")
    done = subprocess.run(
        [sys.executable, *"-m tests --backend torch -q -n 0".split(), str(broken)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout.endswith("\ntotal: 0 passed, 1 failed, 0 skipped\n")


def test_runner_refuses_a_backend_that_is_not_installed(monkeypatch, capsys):
    monkeypatch.setattr(runner.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        runner.main(["--backend", "torch"])
    assert "Received: backend='torch'." in capsys.readouterr().err


def test_ci_takes_nothing_from_earlier_runs_or_the_shell():
    text = (ROOT / ".ci/run").read_text()
    trainings = re.findall(r"^.*examples/translation\.py.*$", text, re.M)
    assert len(trainings) == 2
    assert all('--output "$work/' in line for line in trainings)
    begin = text[: text.index("python examples")]
    assert "export KERAS_BACKEND=tensorflow\n" in begin
    assert begin.index("rm -rf build\n") < begin.index("pip install")


def test_ci_gives_the_python_that_it_looks_for():
    (found,) = re.findall(
        r"find_python \"\$turn\".*", (ROOT / ".ci/run").read_text(), re.S
    )
    entered = re.findall(r"^ +enter (.*)$", found, re.M)
    assert entered == ['lowest-versions "$python"', '"python-$turn" "$python"']


def test_the_workflow_runs_what_a_clone_can_run():
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    workflow = yaml.safe_load(text)
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    used = [step["uses"].split("@")[0] for step in job["steps"] if "uses" in step]
    assert used == ["actions/checkout", "actions/setup-python"]
    clone, python = (step["with"] for step in job["steps"] if "with" in step)
    assert clone == {"fetch-depth": 0}  # `.ci/run` counts the commits.
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    oldest = config["options"]["python_requires"].removeprefix(">=")
    versions = re.findall(r"Python :: (3\.\d+)", config["metadata"]["classifiers"])
    found = python["python-version"].split()
    assert sorted(found) == sorted(versions) and found[-1] == oldest
