"""Fair rounds: each system in its own process, all alive, measured in turn.

A process has one Keras backend, and a machine has fast and slow minutes. So every
system starts and compiles once in its own process, then waits. A round asks each in
turn for one measure, and a ratio is taken between two measures of one round. Figures
are medians over the rounds.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = (
    "keras",
    "tensorflow",
    "jax",
    "torch",
    "keras-hub",
    "ctranslate2",
    "transformers",
    "numpy",
)


def note(message):
    """Prints a progress line, on stderr."""
    print(message, file=sys.stderr, flush=True)


def timed(function, *arguments):
    """Returns the seconds a call took and what it returned."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def peak_megabytes():
    """Returns the largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def own_megabytes(process="self"):
    """Returns the memory of a process alone, without pages of files (Linux).

    Args:
        process: Its number; by default the calling process.
    """
    status = pathlib.Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    (line,) = (x for x in status.splitlines() if x.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024 / 1e6


def serve(ready, measure):
    """Runs in a worker: answers stdin line by line with one JSON object each.

    Args:
        ready: The first object, written at once.
        measure: Maps the number on a line of stdin to the object that answers it.
    """
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(int(line))), flush=True)


# What `keras_seqattn.training.keep_freed_memory` does, for every system alike.
# Otherwise slow system calls for new pages would be measured, not the library.
KEPT_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
}


class Worker:
    """One system in a process of its own; `ready` is the first object it wrote."""

    def __init__(self, module, *arguments, variables=KEPT_MEMORY):
        """Starts `python -m module *arguments --worker` and waits until it is ready.

        Args:
            module: Name of the module.
            *arguments: Its arguments, strings.
            variables: Dict of environment variables, in addition to this process's.
        """
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=ROOT,
            env=os.environ | variables,
        )
        self.ready = self.answer()

    def ask(self, amount):
        """Asks for one measure, which `answer` returns."""
        with contextlib.suppress(BrokenPipeError):  # `answer` says how it ended.
            self.process.stdin.write(f"{amount}\n")
            self.process.stdin.flush()

    def measure(self, amount):
        """Asks for one measure and waits for it."""
        self.ask(amount)
        return self.answer()

    def answer(self):
        """Waits for the next JSON object, skipping anything a library prints."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.process.wait()
        self.errors.seek(0)
        status = self.process.returncode
        killed = status == -signal.SIGKILL
        raise RuntimeError(
            f"{shlex.join(self.process.args)} ended with status {status}"
            f"{' (killed: out of memory?)' * killed}:\n{self.errors.read()[-2000:]}"
        )

    def close(self):
        """Ends the process."""
        self.process.stdin.close()
        self.process.wait()


def start(module, systems, arguments=()):
    """Starts the systems one after the other; returns the workers by name.

    A system that cannot start, as without its package, is named and left out.
    """
    workers = {}
    for system in systems:
        try:
            seconds, worker = timed(
                Worker, module, "--system", system, *map(str, arguments)
            )
        except RuntimeError as error:
            note(f"{system}: left out. {error}")
            continue
        workers[system] = worker
        note(f"{system}: ready after {seconds:.0f} s")
    return workers


def alternate(workers, rounds, amount, together=False):
    """Yields `(round, system, measure)`, each round through all workers in turn.

    With `together`, all measure at the same time, and share the machine.
    """
    for number in range(1, rounds + 1):
        for worker in workers.values() if together else ():
            worker.ask(amount)
        for system, worker in workers.items():
            if not together:
                worker.ask(amount)
            yield number, system, worker.answer()
    for worker in workers.values():
        worker.close()


def grouped(measures, key="system"):
    """Returns the measures of each system, in order, by its name.

    Args:
        measures: Dicts.
        key: What of a measure to group by.
    """
    groups = {}
    for measure in measures:
        groups.setdefault(measure[key], []).append(measure)
    return groups


def compare(rates, pairs):
    """Formats the ratios of the systems of one kind to those of another.

    Args:
        rates: Per system, its rates in the order of the rounds.
        pairs: Pairs of kinds, given as prefixes of names. The system with the best
            median stands for its kind. A pair is left out if one of its kinds did not
            run.
    """

    def best(kind):
        # By whole words: "keras" is the kind of "keras-jax", not of "kerashub-jax".
        names = [name for name in rates if f"{name}-".startswith(f"{kind}-")]
        return max(names, key=lambda name: statistics.median(rates[name]), default=None)

    rows = []
    for ours, theirs in ((best(ours), best(theirs)) for ours, theirs in pairs):
        if ours and theirs:
            paired = zip(rates[ours], rates[theirs], strict=True)
            ratios = [a / b for a, b in paired]
            median, low, high = statistics.median(ratios), min(ratios), max(ratios)
            rows.append(
                [f"{ours} / {theirs}", f"{median:.2f}", f"{low:.2f}-{high:.2f}"]
            )
    # Different pairs of kinds may come to the same two systems.
    rows = [row for i, row in enumerate(rows) if row not in rows[:i]]
    return table(["Ratio in the same round", "median", "range"], rows) if rows else ""


def count(text):
    """Reads a positive integer; a `type` of argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"must be a positive integer. Received: {text!r}."
        )
    return int(text)


def new_file(text):
    """Reads the path of a file to write, and makes its folder; a `type` of argparse."""
    path = pathlib.Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file. Received: {text!r}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"must be in a folder that can be made. Received: {text!r}. {error}"
        ) from None
    return path


def make_parser(module, description):
    """Makes a parser of `python -m module`, whose help keeps the lines as they are."""
    return argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_options(parser, default_rounds=3):
    """Adds the options of a benchmark in rounds."""
    number = f"measures of each system; default: {default_rounds}"
    parser.add_argument("--rounds", type=count, default=default_rounds, help=number)
    add_output_options(parser)


def add_output_options(parser):
    """Adds the options that every benchmark takes."""
    parser.add_argument("--output", type=new_file, help="file for the JSON lines")
    parser.add_argument(
        "--markdown", action="store_true", help="print tables and provenance alone"
    )


def add_translator_options(parser):
    """Adds the options of a benchmark that translates Multi30k with a saved model."""
    add = parser.add_argument
    add("--translator", required=True, help="file that Translator.save wrote")
    add("--data-dir", help="folder of Multi30k's files; default: download them")


def add_worker_options(parser, systems):
    """Adds the choice of systems, and the options that `Worker` passes on."""
    add = parser.add_argument
    add("--systems", nargs="+", choices=systems, default=systems, help="those to run")
    add("--system", choices=systems, help=argparse.SUPPRESS)
    add("--worker", action="store_true", help=argparse.SUPPRESS)


def show(measure, arguments):
    """Prints one measure as a JSON line, unless only the tables are wanted."""
    if not arguments.markdown:
        print(json.dumps(measure), flush=True)


def write(path, measures):
    """Writes measures to a file, a JSON line each."""
    replace(path, "".join(json.dumps(measure) + "\n" for measure in measures))


def replace(path, text):
    """Writes a text to a file; if that fails or is killed, the old file stays.

    The package can do this too, but a parent of workers imports no backend.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(text)
    unfinished.replace(path)


def publish(module, measures, sections, arguments):
    """Prints the closing tables, and writes the measures to `--output`, if given.

    Without a measure, since no system could start, both would be empty: then the
    benchmark ends with an error, and an older file stays.
    """
    if not measures:
        sys.exit(f"{module}: nothing was measured. The lines above say why.")
    if arguments.output:
        write(arguments.output, measures)
    if arguments.markdown:
        sections = [*sections, provenance(module)]
    print("\n\n".join(section for section in sections if section))


def table(header, rows):
    """Formats a Markdown table, columns aligned, numbers to the right."""
    cells = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = [
        [
            cell.ljust(widths[0]) if not i else cell.rjust(widths[i])
            for i, cell in enumerate(row)
        ]
        for row in (cells[0], rule, *cells[1:])
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def provenance(module):
    """Returns a paragraph that says how, where and when the run was made."""
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    if backend := os.environ.get("KERAS_BACKEND"):
        command = f"KERAS_BACKEND={backend} {command}"
    versions = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    machine = (
        f"{os.cpu_count()} cores ({_processor()}; a NumPy float32 matrix product "
        f"reaches {matmul_gflops():.0f} GFLOP/s), {platform.system()}"
    )
    date = datetime.date.today().isoformat()
    return f"`{command}`, {date}, on {machine}, with {', '.join(versions)}."


def matmul_gflops(size=2048, repeats=5):
    """Returns the best rate of a large matrix product, the machine's ceiling."""
    matrix = np.ones((size, size), "float32")
    seconds = min(timed(np.matmul, matrix, matrix)[0] for _ in range(repeats))
    return 2 * size**3 / seconds / 1e9


def _processor():
    """Returns the processor's name if the system tells it."""
    information = pathlib.Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
