"""What do batches of a corpus cost if its token ids are on disk, not in memory?

    python -m benchmarks.corpus
    python -m benchmarks.corpus --pairs 10_000_000 --systems disk
    KERAS_BACKEND=jax python -m benchmarks.corpus --systems memory without-tensorflow

Sentence pairs of the built-in corpus are written to a gzip file, with the number of the
pair added to both sides, and read from there. Each system has its own process:

- memory: `translation_batches` of two lists, which are read first.
- disk: `translation_batches` of two `TextLines` with a `cache`.
- without-tensorflow: the lists again, where TensorFlow cannot be imported, so that
  batches come without tf.data. It needs a backend other than TensorFlow.

Reported are the time until the first batch, for the first call and, from disk, also for
the next one; the real target tokens per second in a pass through the batches, from the
second on; and the largest memory above that of the imports and the tokenizer. The
memory is that of the process alone, and that with the pages of the file which the
operating system keeps while there is room.
"""

import argparse
import gzip
import itertools
import pathlib
import statistics
import sys
import tempfile
import threading
import time

import numpy as np

from benchmarks import rounds

MODULE = "benchmarks.corpus"
WITHOUT = "without-tensorflow"
SYSTEMS = ("memory", "disk", WITHOUT)
BATCHES = 3000  # in a pass, at most


def main():
    arguments = parse()
    if arguments.worker:
        return work(*arguments.systems, arguments.pairs[0], arguments.folder)
    measures = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for pairs in arguments.pairs:
            write(pairs, pathlib.Path(folder, f"{pairs}.tsv.gz"))
            measures += measure(pairs, folder, arguments)
    rounds.publish(MODULE, measures, [as_table(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    parser.add_argument(
        "--pairs", type=int, nargs="+", default=[100_000, 1_000_000], help="sizes"
    )
    parser.add_argument(
        "--systems", nargs="+", choices=SYSTEMS, default=["memory", "disk"]
    )
    parser.add_argument("--folder", help="where the files are written; default: /tmp")
    rounds.add_options(parser)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def write(pairs, path):
    """Writes a corpus, one pair a line."""
    from keras_seqattn import text

    corpus = zip(*text.load_parallel("phrases", "en", "de"), strict=True)
    lines = enumerate(itertools.islice(itertools.cycle(corpus), pairs))
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        for number, (source, target) in lines:
            file.write(f"{source} {number}\t{target} {number}\n")
    rounds.note(f"{pairs:,} pairs: {path.stat().st_size / 1e6:.0f} MB of gzip")


def measure(pairs, folder, arguments):
    """Measures the systems in turn on one size; returns a dict for each."""
    workers = {
        system: rounds.Worker(
            MODULE, "--folder", folder, "--systems", system, "--pairs", str(pairs)
        )
        for system in arguments.systems
    }
    rates, memory = {system: [] for system in workers}, {}
    for _ in range(arguments.rounds):
        for system, worker in workers.items():
            answer = worker.measure(1)
            rates[system].append(answer["tokens_s"])
            memory[system] = answer["memory"]
    measures = []
    for system, worker in workers.items():
        worker.close()
        measures.append(
            {
                **worker.ready,
                "system": system,
                "pairs": pairs,
                "tokens_s": statistics.median(rates[system]),
                "of_memory": of_memory(rates, system),
                **memory[system],
            }
        )
        rounds.show(measures[-1], arguments)
    return measures


def of_memory(rates, system):
    """Returns a system's speed relative to "memory"; None if that did not run."""
    if "memory" not in rates:
        return None
    pairs = zip(rates[system], rates["memory"], strict=True)
    return statistics.median(own / other for own, other in pairs)


def work(system, pairs, folder):
    """Makes batches, and passes through them once for each line of stdin."""
    if system == WITHOUT:
        sys.modules["tensorflow"] = None  # Importing it then fails.
    from keras_seqattn import text

    path = pathlib.Path(folder, f"{pairs}.tsv.gz")
    sides = [text.TextLines(path, column=column) for column in (0, 1)]
    sample = itertools.chain.from_iterable(itertools.islice(x, 20_000) for x in sides)
    tokenizer = text.SentencePieceTokenizer.train(sample, 8000)
    imports = {"own_mb": rounds.own_megabytes(), "peak_mb": rounds.peak_megabytes()}
    largest = {"own_mb": 0}
    threading.Thread(target=watch, args=(largest,), daemon=True).start()

    def make():
        cache = pathlib.Path(folder, f"{pairs}.cache") if system == "disk" else None
        lines = sides if cache else [list(side) for side in sides]
        batches = text.translation_batches(*lines, tokenizer, cache=cache)
        next(iter(batches))
        return batches

    first, batches = rounds.timed(make)
    ready = {"first_s": first}
    if system == "disk":
        ready["again_s"], batches = rounds.timed(make)

    def answer(_):
        in_epoch = iter(batches)
        next(in_epoch)  # It takes the planning of the epoch, and does not count.
        tokens, start = 0, time.perf_counter()
        for _, labels in itertools.islice(in_epoch, BATCHES):
            tokens += int((np.asarray(labels) > 0).sum())
        seconds = time.perf_counter() - start
        now = largest | {"peak_mb": rounds.peak_megabytes()}
        memory = {name: now[name] - imports[name] for name in now}
        return {"tokens_s": tokens / seconds, "memory": memory}

    return rounds.serve(ready, answer)


def watch(largest):
    """Records the largest memory of the process alone, 50 times a second."""
    while True:
        largest["own_mb"] = max(largest["own_mb"], rounds.own_megabytes())
        time.sleep(0.02)


def as_table(measures):
    header = (
        *("pairs", "ids in", "first batch, s", "first of the next call, s"),
        *("real target tokens a second", "divided by memory's"),
        *("own memory, MB", "with the file, MB"),
    )
    rows = [
        (
            f"{m['pairs']:,}",
            m["system"],
            f"{m['first_s']:.1f}",
            f"{m['again_s']:.1f}" if "again_s" in m else "",
            f"{m['tokens_s']:,.0f}",
            f"{m['of_memory']:.2f}" if m["of_memory"] else "",
            f"{m['own_mb']:.0f}",
            f"{m['peak_mb']:.0f}",
        )
        for m in measures
    ]
    return rounds.table(header, rows)


if __name__ == "__main__":
    main()
