"""What bounds the translation of a file: how much of its time do products take?

    python -m benchmarks.bound --translator FILE.keras --data-dir DIRECTORY

The first 1,000 lines of Multi30k's `val` are translated greedily, as in
`benchmarks.decoding`, on JAX. Reported are its seconds; the share of them in which
compiled programs run; and the seconds that the matrix products with weights take on
their own. These are the products of one step for each token found and of one pass over
each source. XLA computes them in as many threads, with the search's rows and blocks,
and nothing between them. The rest of the time is attention over the previous tokens,
norms, the choice of tokens, the exchange of finished sentences, and padding.

For a single sentence of the shapes T1 and T2, with random weights, it also times a step
of the model, and of one with a single decoder layer, as a draft of the next tokens
would have.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import statistics
import threading
import time
import unittest.mock

from benchmarks import rounds
from benchmarks.shapes import SHAPES, random_batches

MODULE = "benchmarks.bound"
REPEATS = 200
# The time of a step is the difference between searches of these two numbers of tokens,
# divided by theirs. Each search is timed TURNS times.
SHORT_AND_LONG, TURNS = (8, 40), 30


def main():
    arguments = parse()
    os.environ["KERAS_BACKEND"] = "jax"
    from benchmarks.decoding_file import load_lines, load_translator
    from keras_seqattn import decoding, training
    from keras_seqattn.backend import compile

    training.keep_freed_memory()
    translator = load_translator(arguments.translator, arguments.data_dir)
    lines = load_lines(arguments.data_dir)
    search = decoding.Greedy(scored=False)
    for _ in range(2):  # compiles, and allocates the memory that is kept
        found = translator(lines, search=search)
    model, threads = translator.model, compile.num_threads()
    sources = sum(map(len, translator.source_tokenizer.tokenize(lines))) + len(lines)
    targets = sum(map(len, translator.target_tokenizer.tokenize(found))) + len(lines)
    step, encode = products(model)
    measures = []
    for number in range(1, arguments.rounds + 1):
        whole, _ = rounds.timed(lambda: translator(lines, search=search))
        with watched() as seconds:
            watched_whole, _ = rounds.timed(lambda: translator(lines, search=search))
        share = sum(seconds) / threads / watched_whole
        alone = targets * step(threads) + sources * encode(threads)
        measures.append(
            dict(round=number, seconds=whole, in_programs=share, products_s=alone)
        )
        rounds.show(measures[-1], arguments)
    steps = [step_of_a_draft(SHAPES[name]) for name in ("T1", "T2")]
    for measure in steps:
        rounds.show(measure, arguments)
    tables = [as_table(measures), table_of_steps(steps)]
    rounds.publish(MODULE, measures + steps, tables, arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    rounds.add_translator_options(parser)
    rounds.add_options(parser, default_rounds=5)
    return parser.parse_args()


@contextlib.contextmanager
def watched():
    """Yields a list to which the seconds of each run of a program are added."""
    import jax

    from keras_seqattn.backend import compile

    plain, seconds = compile.CompiledFunction.__call__, []

    def call(*arguments):
        taken, result = rounds.timed(lambda: jax.block_until_ready(plain(*arguments)))
        seconds.append(taken)
        return result

    with unittest.mock.patch.object(compile.CompiledFunction, "__call__", call):
        yield seconds


def products(model):
    """Returns functions of threads: seconds per target token, and per source token."""
    import jax
    import numpy as np

    from keras_seqattn.scheduling.continuous import BLOCK_TOKENS
    from keras_seqattn.scheduling.generation import BATCH_SIZE_PER_THREAD

    random = np.random.default_rng(0)

    def weights(rows, columns):
        values = random.normal(size=(rows, columns)) / rows**0.5
        return jax.numpy.asarray(values.astype("float32"))

    config = model.get_config()
    width, hidden = config["model_dim"], config["intermediate_dim"]
    square = [weights(width, width) for _ in range(6)]
    wide, narrow = weights(width, hidden), weights(hidden, width)
    table = weights(width, model.target_vocabulary_size)

    def block(x, count):
        """Computes `count` square products, and a feed-forward."""
        for kernel in square[:count]:
            x = x @ kernel
        return (x @ wide) @ narrow

    def step(x):
        # Query, key, value and output; query and output of the cross-attention.
        for _ in range(config["decoder_layers"]):
            x = block(x, 6)
        return x + jax.numpy.max(x @ table, axis=-1, keepdims=True)

    def encode(x):
        for _ in range(config["encoder_layers"]):
            x = block(x, 4)
        # Key and value for each layer of the decoder.
        for _ in range(config["decoder_layers"]):
            x = (x @ square[0]) @ square[1]
        return x

    return (
        timer(step, jax.numpy.ones((BATCH_SIZE_PER_THREAD[1], width))),
        timer(encode, jax.numpy.ones((BLOCK_TOKENS, width))),
    )


def timer(function, x):
    """Returns a function of threads: the seconds that a row of `x` takes in them all.

    The function is repeated on its own output, which has the shape of `x`.
    """
    import jax

    @jax.jit
    def repeat(x):
        def once(_, x):  # Clipped, so that the values stay finite.
            return jax.numpy.clip(function(x), -1, 1)

        return jax.lax.fori_loop(0, REPEATS, once, x)

    def run():
        jax.block_until_ready(repeat(x))

    run()  # Compiles.

    def seconds(threads):
        running = [threading.Thread(target=run) for _ in range(threads)]
        start = time.perf_counter()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return (time.perf_counter() - start) / (REPEATS * len(x) * threads)

    return seconds


def step_of_a_draft(shape):
    """Measures a step for one sentence, with all decoder layers and with one."""
    from benchmarks import peers
    from keras_seqattn import decoding

    (source_ids,), _, _ = random_batches(dataclasses.replace(shape, batch_size=1), 1)
    runs = {}
    for layers, length in itertools.product((shape.decoder_layers, 1), SHORT_AND_LONG):
        part = dataclasses.replace(shape, tied=True, decoder_layers=layers)
        search = decoding.Greedy(min_length=length, scored=False)
        given = peers.ours(part), source_ids, search, length
        runs[layers, length] = functools.partial(decoding.generate, *given)
        runs[layers, length]()
    seconds = {key: [] for key in runs}
    for _ in range(TURNS):
        for key, run in runs.items():
            seconds[key].append(rounds.timed(run)[0])
    short, long = SHORT_AND_LONG
    median = {key: statistics.median(values) for key, values in seconds.items()}
    whole, draft = (
        (median[layers, long] - median[layers, short]) / (long - short)
        for layers in (shape.decoder_layers, 1)
    )
    return dict(shape=shape.name, step_s=whole, draft_step_s=draft)


def table_of_steps(measures):
    header = ("one sentence", "a step, ms", "with one layer, ms", "of all")
    rows = [
        (
            m["shape"],
            f"{1000 * m['step_s']:.3f}",
            f"{1000 * m['draft_step_s']:.3f}",
            f"{m['draft_step_s'] / m['step_s']:.2f}",
        )
        for m in measures
    ]
    return rounds.table(header, rows)


def as_table(measures):
    names = ("seconds", "in_programs", "products_s")
    median = {name: statistics.median(m[name] for m in measures) for name in names}
    header = ("1,000 lines, s", "in programs", "products alone, s", "of all")
    row = (
        f"{median['seconds']:.3f}",
        f"{median['in_programs']:.0%}",
        f"{median['products_s']:.3f}",
        f"{median['products_s'] / median['seconds']:.0%}",
    )
    return rounds.table(header, [row])


if __name__ == "__main__":
    main()
