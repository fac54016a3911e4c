"""Runs most benchmarks, one after the other, and writes each one's tables to a file.

    python -m benchmarks --output results
    python -m benchmarks --output results --data-dir DIRECTORY   # Multi30k's too

A benchmark whose file exists is skipped, so the same command resumes after a stop. They
take a night. Every benchmark also runs by itself: `python -m benchmarks.NAME`.
"""

import pathlib
import subprocess
import sys

from benchmarks import rounds

# The quick ones first. Not here: what needs a trained model, and what takes hours.
NAMES = (
    "imports",
    "loss",
    "paths",
    "precision",
    "attention",
    "training",
    "decoding",
    "scale",
    "corpus",
    "processes",
    "soak",
)
OF_MULTI30K = ("multi30k", "learning", "tuning")


def main():
    arguments = parse()
    arguments.output.mkdir(parents=True, exist_ok=True)
    names = [*NAMES, *OF_MULTI30K] if arguments.data_dir else NAMES
    failed = []
    for number, name in enumerate(names, start=1):
        progress = f"[{number}/{len(names)}] {name}"
        tables = arguments.output / f"{name}.md"
        if tables.exists():
            rounds.note(f"{progress}: done already, in {tables}")
            continue
        rounds.note(progress)
        seconds, done = rounds.timed(run, name, arguments)
        if done.returncode:
            failed.append(name)
            continue
        rounds.replace(tables, done.stdout)
        rounds.note(f"{progress}: {seconds / 60:.0f} min, in {tables}")
    sys.exit(f"Failed: {', '.join(failed)}." if failed else 0)


def parse():
    parser = rounds.make_parser("benchmarks", __doc__)
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=pathlib.Path("results"),
        help="folder for tables, JSON lines and pictures; default: results",
    )
    parser.add_argument("--data-dir", help="folder of Multi30k's files; none: left out")
    arguments = parser.parse_args()
    # The benchmarks run in the repository's folder.
    arguments.output = arguments.output.resolve()
    if arguments.data_dir:
        arguments.data_dir = pathlib.Path(arguments.data_dir).resolve()
    return arguments


def run(name, arguments):
    """Runs one benchmark; returns the process, with its tables as `stdout`."""
    options = ["--markdown", "--output", arguments.output / f"{name}.jsonl"]
    if name == "scale":
        options += ["--pictures", arguments.output]
    if name == "soak":  # A tenth of its hours.
        options += ["--scale", "0.1"]
    if name in ("precision", "learning", "tuning"):
        options += ["--picture", arguments.output / f"{name}.png"]
    if name in OF_MULTI30K:
        options += ["--data-dir", arguments.data_dir]
    command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, options)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=rounds.ROOT)


if __name__ == "__main__":
    main()
