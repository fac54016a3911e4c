"""How fast are translations found, ours and the peers', greedily and with beams?

Every system decodes the same encoder-decoder Transformer (`benchmarks/shapes.py`, one
table for source, target and output): equal sizes, equal parameter count (checked),
random weights, float32 unless its name says otherwise. Sources have 32 tokens, and
every system generates exactly 32 tokens for each (checked), so the work does not depend
on the weights. A measure is wall time from ids to ids, over batches until `--seconds`
have passed. The first call of each case, with its tracing and compilation, is reported
separately. Every system has two threads. KerasHub is on TensorFlow with XLA.

With `--data-dir`, a last part has real lengths: the first 1,000 lines of Multi30k's
`val`, our `Translator` from strings to strings, and the same weights and tokens in
CTranslate2. The whole file is one call; then 100 of its lines are one call each (`-1`).
`--translator` names a trained one; without it the weights are random and every line
gets 16 tokens.

    python -m benchmarks.decoding
    python -m benchmarks.decoding --systems ours-jax kerashub --methods greedy
    python -m benchmarks.decoding --data-dir DIRECTORY --translator FILE.keras
"""

import argparse
import dataclasses
import itertools
import os
import statistics
import time

from benchmarks import decoding_peers, rounds
from benchmarks.shapes import SHAPES, random_batches

MODULE = "benchmarks.decoding"
SYSTEMS = (
    "ours-tensorflow",
    "ours-jax",
    "kerashub",
    "marian",
    "ctranslate2-float32",
    "ctranslate2-int8",
)
# The systems that can be measured with a saved translator.
FILE_SYSTEMS = tuple(s for s in SYSTEMS if s.startswith(("ours", "ctranslate2")))
PEERS = ("ctranslate2-float32", "ctranslate2-int8", "kerashub", "marian")
WIDTHS = {"greedy": 1, "beam4": 4, "beam5": 5}
BATCHES = 1, 32
# For the file: None is all lines in one call, 1 is one line per call.
FILE_BATCHES = None, 1
FILE = "file"
LENGTH = 32
# Pause before a measure: the previous system's threads may still spin for a while.
SETTLE_SECONDS = 0.3


def main():
    arguments = parse()
    if arguments.worker:
        work(arguments)
        return
    measures, sections = [], []
    names = [*arguments.shapes, *([FILE] if arguments.data_dir else [])]
    for name in names:
        measures += measure(name, arguments)
        sections.append(report(name, [m for m in measures if m["shape"] == name]))
    rounds.publish(MODULE, measures, sections, arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add("--shapes", nargs="*", choices=SHAPES, default=list(SHAPES))
    add("--methods", nargs="+", choices=WIDTHS, default=list(WIDTHS))
    add("--batches", nargs="+", type=rounds.count, default=list(BATCHES))
    add("--seconds", type=float, default=2.0, help="at least, of a measure")
    add("--data-dir", help="folder with Multi30k's files, for the part on real lengths")
    add("--translator", help="file of Translator.save, for the same part")
    rounds.add_options(parser)
    rounds.add_worker_options(parser, SYSTEMS)
    add("--shape", choices=[*SHAPES, FILE], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.translator and not arguments.data_dir:
        parser.error("`--translator` must come with `--data-dir`. Received: none.")
    return arguments


def cases(name, arguments):
    """Returns the pairs of a method and a batch size that a part measures."""
    batches = FILE_BATCHES if name == FILE else arguments.batches
    return list(itertools.product(arguments.methods, batches))


def measure(name, arguments):
    """Runs all systems on one part; prints and returns one dict per measure."""
    systems = [s for s in arguments.systems if name != FILE or s in FILE_SYSTEMS]
    options = ["--shape", name, "--seconds", arguments.seconds]
    options += ["--methods", *arguments.methods, "--batches", *arguments.batches]
    if name == FILE:
        options += ["--data-dir", arguments.data_dir]
        if arguments.translator:
            options += ["--translator", arguments.translator]
    workers = rounds.start(MODULE, systems, options)
    numbers, places = range(1, arguments.rounds + 1), range(len(cases(name, arguments)))
    measures = []
    # A round measures all systems on one case before it goes to the next.
    for number, case, system in itertools.product(numbers, places, workers):
        worker = workers[system]
        answer = worker.ready["cases"][case] | worker.measure(case)
        answer["sentences_per_s"] = answer["sentences"] / answer["batch_s"]
        answer["tokens_per_s"] = answer["tokens"] / answer["batch_s"]
        measures.append(dict(shape=name, system=system, round=number, **answer))
        rounds.note(
            f"{name} round {number} {answer['case']} {system}: "
            f"{answer['tokens_per_s']:.0f} tokens/s"
        )
        rounds.show(measures[-1], arguments)
    for worker in workers.values():
        worker.close()
    return measures


def report(name, measures):
    """Formats the table of systems and the table of ratios of one part."""
    rates, last = {}, {}
    for row in measures:
        label = f"{row['case']} {row['system']}"
        rates.setdefault(label, []).append(row["sentences_per_s"])
        last[label] = row
    rows = []
    for label, values in rates.items():
        rate, row = statistics.median(values), last[label]
        tokens = rate * row["tokens"] / row["sentences"]
        rows.append(
            [label, f"{rate:.1f}", f"{tokens:.0f}", f"{row['first_call_s']:.1f}"]
        )
    title = "Multi30k val" if name == FILE else name
    parameters = f"{measures[0]['parameters']:,} parameters" if measures else "nothing"
    columns = ["sentences/s", "tokens/s", "first call, s"]
    header = [f"{title}: {parameters}", *columns]
    pairs = [
        (f"{case} ours", f"{case} {peer}")
        for case in dict.fromkeys(row["case"] for row in measures)
        for peer in PEERS
    ]
    return "\n\n".join([rounds.table(header, rows), rounds.compare(rates, pairs)])


def work(arguments):
    """Prepares one system in this process; measures the case that each line names."""
    use_cores(decoding_peers.THREADS)
    library, _, variant = arguments.system.partition("-")
    os.environ["KERAS_BACKEND"] = variant if library == "ours" else "tensorflow"
    part = file_part if arguments.shape == FILE else fixed_part
    parameters, prepare = part(library, variant, arguments)
    ready, runs = [], []
    for method, batch in cases(arguments.shape, arguments):
        sentences, run, count = prepare(method, batch)
        first, found = rounds.timed(run)
        case = f"{method}-{batch}" if batch else method
        tokens = count(found)
        if arguments.shape != FILE:
            check_tokens(arguments.system, case, tokens, sentences)
        sizes = dict(sentences=sentences, tokens=tokens, parameters=parameters)
        ready.append(dict(case=case, first_call_s=first, **sizes))
        runs.append(run)

    def answer(case):
        time.sleep(SETTLE_SECONDS)
        start, calls = time.perf_counter(), 0
        while not calls or time.perf_counter() - start < arguments.seconds:
            runs[case]()
            calls += 1
        seconds = (time.perf_counter() - start) / calls
        return dict(batch_s=seconds, peak_mb=rounds.peak_megabytes())

    rounds.serve(dict(cases=ready), answer)


def use_cores(count):
    """Limits this process, and all threads it will start, to `count` cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def fixed_part(library, variant, arguments):
    """Builds a system on a shape; prepares batches of one length."""
    sizes = dict(batch_size=max(arguments.batches), length=LENGTH, min_length=LENGTH)
    shape = dataclasses.replace(SHAPES[arguments.shape], tied=True, **sizes)
    options = [variant] if library == "ctranslate2" else []
    parameters, decoder = decoding_peers.LIBRARIES[library](shape, *options)
    shape.check(arguments.system, parameters)
    ((source_ids,), _, _) = random_batches(shape, count=1)

    def prepare(method, batch):
        return batch, *decoder(source_ids[:batch], WIDTHS[method])

    return parameters, prepare


def file_part(library, variant, arguments):
    """Builds a system from the translator; prepares the file."""
    from benchmarks import decoding_file

    files = arguments.translator, arguments.data_dir
    if library == "ctranslate2":
        parameters, decoder = decoding_file.ctranslate2(*files, variant)
    else:
        parameters, decoder = decoding_file.ours(*files)

    def prepare(method, batch):
        count = decoding_file.ALONE if batch else decoding_file.LINES
        return count, *decoder(WIDTHS[method], alone=batch is not None)

    return parameters, prepare


def check_tokens(system, case, tokens, sentences):
    """Raises ValueError unless a system generated `LENGTH` tokens a sentence."""
    if tokens != sentences * LENGTH:
        raise ValueError(
            f"`{system}` must generate {LENGTH} tokens a sentence in {case}. "
            f"Received: {tokens} tokens of {sentences} sentences."
        )


if __name__ == "__main__":
    main()
