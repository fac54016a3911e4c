"""What does `import keras_seqattn` add to `import keras`?

For each backend, several fresh processes import keras, then this library. They report
the seconds of each, and which heavy packages the second import loads. The figures are
medians.

    python -m benchmarks.imports
    python -m benchmarks.imports --backends jax --rounds 9
"""

import json
import os
import statistics
import subprocess
import sys

from benchmarks import rounds

MODULE = "benchmarks.imports"
BACKENDS = ("tensorflow", "jax", "torch")
HEAVY = (
    "tensorflow",
    "tensorflow_text",
    "jax",
    "torch",
    "keras_tuner",
    "keras_hub",
    "matplotlib",
    "sentencepiece",
    "sacrebleu",
    "babel",
    "pandas",
    "scipy",
    "sklearn",
)
PROGRAM = f"""
import json, sys, time
start = time.perf_counter()
import keras
middle = time.perf_counter()
before = set(sys.modules)
import keras_seqattn
end = time.perf_counter()
heavy = [name for name in {HEAVY} if name in sys.modules and name not in before]
print(json.dumps(dict(keras_s=middle - start, added_s=end - middle, heavy=heavy)))
"""


def main():
    arguments = parse()
    measures = []
    for number in range(1, arguments.rounds + 1):
        for backend in arguments.backends:
            result = dict(backend=backend, round=number, **measure(backend))
            rounds.note(f"round {number} {backend}: {1e3 * result['added_s']:.0f} ms")
            rounds.show(result, arguments)
            measures.append(result)
    rounds.publish(MODULE, measures, [report(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    rounds.add_options(parser, default_rounds=5)
    return parser.parse_args()


def measure(backend):
    """Imports both in a fresh process with this backend."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"KERAS_BACKEND": backend},
        cwd=rounds.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(process.stderr[-2000:])
    return json.loads(process.stdout.splitlines()[-1])


def report(measures):
    """Formats one row for each backend."""
    rows = []
    for backend, own in rounds.grouped(measures, "backend").items():
        keras = statistics.median(row["keras_s"] for row in own)
        added = statistics.median(row["added_s"] for row in own)
        ratio = statistics.median(1 + row["added_s"] / row["keras_s"] for row in own)
        heavy = ", ".join(own[-1]["heavy"]) or "none"
        rows.append([backend, f"{keras:.2f}", f"{added:.3f}", f"{ratio:.3f}", heavy])
    header = ["Backend", "import keras, s", "added, s", "ratio", "heavy packages added"]
    return rounds.table(header, rows)


if __name__ == "__main__":
    main()
