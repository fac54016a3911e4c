"""What does each special path of a training step or of a search gain, alone?

A special path is code that is there for speed: a plainer way, most often Keras's own,
leads to the same result. For each path, the same model trains with all paths and with
all except this one, in one process, a few steps of each in turn. Without "factors"
there is nothing for "metrics" to take, so that both are missing. "unscored", "best"
and "sampling" are measured by a search of a batch instead: greedy, with 4 beams, and
with `Sample(top_p=0.9)`. Seconds are
processor time of all threads, which other work on the machine changes little. A path
that nowhere gains 5% of a step is not worth its code.

    python -m benchmarks.paths
    python -m benchmarks.paths --systems tensorflow --shapes T1 --paths factors dropout
"""

import argparse
import contextlib
import ctypes
import functools
import os
import statistics
import sys
import time
import unittest.mock

from benchmarks import rounds
from benchmarks.shapes import SHAPES, random_batches

MODULE = "benchmarks.paths"
SYSTEMS = ("tensorflow", "tensorflow-jit", "jax")
PATHS = {
    "factors": "the loss, from the factors of the logits and not from the logits",
    "metrics": "metrics that take the crossentropies of the loss",
    "unpad": "stacks that compute real tokens alone",
    "dropout": "dropout by a hash, in a program of XLA",
    "projections": "projections as one product of two matrices",
    "unscored": "greedy search that computes no scores",
    "best": "the best tokens of all beams, found in blocks of the vocabulary",
    "sampling": "the most probable tokens to draw from, found without sorting",
    "memory": "freed memory that the process keeps for the next step",
}
ALL = "with all"
# The paths that a search shows, and what a search with all of them is called.
SEARCHES = {
    "unscored": "greedy search with all",
    "best": "beam search with all",
    "sampling": "sampling with all",
}
STEPS = 5


def main():
    arguments = parse()
    if arguments.worker:
        work(arguments)
        return
    measures, sections = [], []
    for shape in arguments.shapes:
        options = ["--shape", shape, "--paths", *arguments.paths]
        workers = rounds.start(MODULE, arguments.systems, options)
        for number, system, seconds in rounds.alternate(
            workers, arguments.rounds, STEPS
        ):
            measure = {"shape": shape, "system": system, "round": number, **seconds}
            measures.append(measure)
            rounds.note(f"{shape} round {number} {system}")
            rounds.show(measure, arguments)
        sections.append(report(shape, measures, workers))
    rounds.publish(MODULE, measures, sections, arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["T1"])
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    rounds.add_options(parser, default_rounds=9)
    rounds.add_worker_options(parser, SYSTEMS)
    parser.add_argument("--shape", choices=SHAPES, help=argparse.SUPPRESS)
    return parser.parse_args()


def report(shape, measures, workers):
    """Formats a row for each path: how long steps and first steps take without it."""
    rows = []
    for system, worker in workers.items():
        own = [m for m in measures if (m["shape"], m["system"]) == (shape, system)]
        first = worker.ready["first_s"]
        for path in [path for path in PATHS if path in first]:
            whole = SEARCHES.get(path, ALL)
            ratios = [m[path] / m[whole] for m in own]
            median, low, high = statistics.median(ratios), min(ratios), max(ratios)
            rows.append(
                [f"{system}: {path}", f"{median:.2f}", f"{low:.2f}-{high:.2f}"]
                + [f"{first[path]:.1f} / {first[whole]:.1f}"]
            )
    header = [f"{shape}, without", "step without / with", "range"]
    return rounds.table([*header, "first step, s"], rows)


def work(arguments):
    """Answers each line of stdin with the seconds of a step, with and without paths."""
    backend, _, jit = arguments.system.partition("-")
    os.environ["KERAS_BACKEND"] = backend
    from benchmarks import peers

    jit_compile = backend == "jax" or bool(jit)
    shape, runs, first = SHAPES[arguments.shape], {}, {}
    batches = random_batches(shape)
    paths = [path for path in arguments.paths if path not in SEARCHES]
    # The one-time costs of a process must not count for any path.
    peers.trainer("ours", shape, batches, jit_compile, True)[1](1)
    for path in (ALL, *paths):
        with without(path):
            _, runs[path] = peers.trainer("ours", shape, batches, jit_compile, True)
            first[path], _ = rounds.timed(runs[path], 1)
        runs[path](2)
    for path in [path for path in SEARCHES if path in arguments.paths]:
        searcher(path, False, peers.ours(shape), batches[0][0])(1)
        for name in (SEARCHES[path], path):
            with without(name):
                model = peers.ours(shape)
                runs[name] = searcher(path, name == path, model, batches[0][0])
                first[name] = runs[name](1)[0]

    def answer(steps):
        seconds = {}
        for path, run in runs.items():
            with memory_given_back() if path == "memory" else contextlib.nullcontext():
                start = time.process_time()
                run(steps)
                seconds[path] = (time.process_time() - start) / steps
        return seconds

    rounds.serve({"first_s": first}, answer)


def searcher(path, is_plain, model, source_ids):
    """Returns a function that searches a batch some times, and returns the seconds."""
    from keras_seqattn import decoding

    length = source_ids.shape[1]
    search = decoding.BeamSearch(width=4, min_length=length)
    if path == "sampling":
        search = decoding.Sample(top_p=0.9, seed=0, min_length=length)
    if path == "unscored":
        search = decoding.Greedy(min_length=length, scored=is_plain)
    search_once = functools.partial(
        decoding.generate, model, source_ids[:32], search, max_length=length
    )

    def run(times):
        return rounds.timed(lambda: [search_once() for _ in range(times)])

    return run


@contextlib.contextmanager
def without(path):
    """Makes programs that are traced within it do without a path."""
    with contextlib.ExitStack() as stack:
        for target, name, plain in plain_ways(path):
            stack.enter_context(unittest.mock.patch.object(target, name, plain))
        yield


def plain_ways(path):
    """Yields what replaces a path: an object, its attribute, and the plain way."""
    import keras

    from keras_seqattn.decoding import processors
    from keras_seqattn.layers import TransformerStack, dropout
    from keras_seqattn.layers.attention.projections import Projection
    from keras_seqattn.training import losses, metrics

    if path == "factors":
        yield losses, "factors_of", lambda logits: None
    if path == "metrics":
        yield metrics, "crossentropies_of", lambda *given: None
    if path == "best":
        yield from everywhere(processors.best_of_all, "best_of_all", best_of_all)
    if path == "sampling":
        yield processors, "keep_top_p", keep_top_p
    if path == "unpad":
        yield TransformerStack, "_unpads", lambda *given: False
    if path == "dropout":
        plain = keras.random.dropout
        yield from everywhere(dropout.drop, "drop", lambda x, p, s: plain(x, p, seed=s))
    if path == "projections":
        yield Projection, "call", keras.layers.EinsumDense.call


def best_of_all(values, count):
    """Does what that of `decoding.processors` does, with Keras's `top_k`."""
    from keras import ops

    batch_size, width, size = ops.shape(values)
    return ops.top_k(ops.reshape(values, (batch_size, width * size)), count)


def keep_top_p(log_probs, p):
    """Does what that of `decoding.processors` does, by sorting the vocabulary."""
    from keras import ops

    from keras_seqattn.decoding.processors import FORBIDDEN

    ordered = ops.flip(ops.sort(log_probs, axis=-1), axis=-1)
    probs = ops.exp(ordered)
    before = ops.cumsum(probs, axis=-1) - probs
    least = ops.min(ops.where(before < p, ordered, 0.0), axis=-1, keepdims=True)
    return ops.where(log_probs >= least, log_probs, FORBIDDEN)


def everywhere(function, name, plain):
    """Yields the modules that have a function, its name there, and the plain way."""
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is function:
            yield module, name, plain


@contextlib.contextmanager
def memory_given_back():
    """Makes the C library give freed memory back to the system, as it does by default.

    The parameters are mallopt(3)'s M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD.
    """
    from keras_seqattn.training import keep_freed_memory

    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((-4, 65_536), (-1, 128 * 1024), (-2, 0)):
        mallopt(parameter, value)
    try:
        yield
    finally:
        keep_freed_memory()


if __name__ == "__main__":
    main()
