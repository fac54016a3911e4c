"""Runs the tests once for each backend of Keras: `python -m tests`.

`--backend NAME` chooses one, and may be given again; every other argument goes to
pytest, so `python -m tests --backend jax tests/layers -x` is a part of the tests on
JAX. Ends with a table, and with an error if a test failed on any backend, or none
ran.
"""

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
BACKENDS = ("tensorflow", "jax", "torch")
# A process for each core: the tests are small, and spend their time tracing. Each
# begins with its share of the files, whose tests share what they build and compile, and
# takes tests from others when it has none left.
PYTEST = (sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal")
NO_TESTS = 5  # with which pytest ends where it selects none


class Result(NamedTuple):
    """What one run of pytest came to."""

    backend: str
    passed: int
    failed: int
    skipped: int
    seconds: float
    status: int


def run_backend(backend, arguments):
    """Runs pytest in a process of its own, its output unchanged."""
    print(f"\n{f' {backend} ':=^88}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        status = subprocess.run(
            [*PYTEST, *arguments, f"--junitxml={report}"],
            cwd=ROOT,
            env=os.environ | {"KERAS_BACKEND": backend},
        ).returncode
        counts = read_report(report) if report.exists() else (0, 0, 0)
    return Result(backend, *counts, time.monotonic() - start, status)


def read_report(path):
    """Returns how many tests passed, failed and were skipped."""
    suites = list(xml.etree.ElementTree.parse(path).iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(count)) for suite in suites)
        for count in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return tests - failed - skipped, failed, skipped


def print_table(results):
    """Prints a row for each backend, then all of them in one line."""
    print(f"\n{'backend':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for backend, passed, failed, skipped, seconds, status in results:
        row = f"{backend:<12}{passed:>8}{failed:>8}{skipped:>9}{seconds:>9.1f}"
        ended = status in (0, NO_TESTS)
        print(row if ended else f"{row}  pytest ended with status {status}")
    passed, failed, skipped = (
        sum(getattr(result, count) for result in results)
        for count in ("passed", "failed", "skipped")
    )
    print(f"\ntotal: {passed} passed, {failed} failed, {skipped} skipped", flush=True)


def main(arguments=None):
    """Returns the exit status: 0 if tests ran, and all passed that did."""
    parser = argparse.ArgumentParser("python -m tests", allow_abbrev=False)
    parser.add_argument("--backend", action="append", choices=BACKENDS)
    options, pytest_arguments = parser.parse_known_args(arguments)
    backends = options.backend or BACKENDS
    for backend in backends:
        if importlib.util.find_spec(backend) is None:
            parser.error(
                f"`backend` must be installed: pip install '.[test]'. "
                f"Received: backend={backend!r}."
            )
    results = [run_backend(backend, pytest_arguments) for backend in backends]
    print_table(results)
    statuses = {result.status for result in results}
    # Chosen files may have no test for a backend, or none that is slow there.
    allowed = {0, NO_TESTS} if pytest_arguments else {0}
    return int(0 not in statuses or not statuses <= allowed)


if __name__ == "__main__":
    sys.exit(main())
