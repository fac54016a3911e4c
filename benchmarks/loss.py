"""How long does the loss over the vocabulary take, projection and gradient included?

There are three ways from the same vectors to the gradients of vectors and projection:
`MaskedCrossentropy` from the factors of the logits (what `fit` takes); the same from
the logits; and the same loss composed of Keras's `sparse_categorical_crossentropy` and
a smoothing term, differentiated by the backend. All run in turn in one process, on 128
x 32 positions of width 128, of which 37% are padding. Figures are milliseconds a call.

    python -m benchmarks.loss
    python -m benchmarks.loss --block-logits 10000000   # larger blocks of logits
"""

import os
import statistics

import numpy as np

from benchmarks import rounds

MODULE = "benchmarks.loss"
SYSTEMS = ("tensorflow", "tensorflow-jit", "jax")
KINDS = ("factors", "logits", "composed")
TOKENS, WIDTH, PADDING, SMOOTHING = (128, 32), 128, 0.37, 0.1


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments)
    options = ["--vocabulary-size", arguments.vocabulary_size]
    options += ["--block-logits", arguments.block_logits]
    workers = rounds.start(MODULE, arguments.systems, options)
    measures = []
    for number, system, measure in rounds.alternate(workers, arguments.rounds, 1):
        measures.append({"system": system, "round": number, **measure})
        rounds.note(f"round {number} {system}: {measure}")
        rounds.show(measures[-1], arguments)
    rounds.publish(MODULE, measures, [report(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    parser.add_argument("--vocabulary-size", type=rounds.count, default=10_000)
    parser.add_argument(
        "--block-logits",
        type=rounds.count,
        default=2_000_000,
        help="logits in a block of the loss from factors; default: the library's",
    )
    rounds.add_options(parser, default_rounds=7)
    rounds.add_worker_options(parser, SYSTEMS)
    return parser.parse_args()


def report(measures):
    """Formats the medians, and the ratios within each round."""
    rows = []
    for system, own in rounds.grouped(measures).items():
        times = {kind: [1e3 * m[kind] for m in own] for kind in KINDS}
        ratios = [
            [b / a for a, b in zip(times["factors"], times[kind], strict=True)]
            for kind in KINDS[1:]
        ]
        medians = map(statistics.median, times.values())
        ratios = map(statistics.median, ratios)
        rows.append(
            [system, *(f"{m:.0f}" for m in medians), *(f"{r:.2f}" for r in ratios)]
        )
    header = ["System", *(f"{kind}, ms" for kind in KINDS)]
    header += [f"{kind} / factors" for kind in KINDS[1:]]
    return rounds.table(header, rows)


def work(arguments):
    """Answers each line of stdin with the seconds of each way."""
    backend, _, jit = arguments.system.partition("-")
    os.environ["KERAS_BACKEND"] = backend
    from keras_seqattn.training import crossentropy

    crossentropy.BLOCK_LOGITS = arguments.block_logits
    rng = np.random.default_rng(0)
    labels = rng.integers(1, arguments.vocabulary_size, TOKENS).astype("int32")
    labels[rng.random(TOKENS) < PADDING] = 0
    factors = [
        rng.standard_normal(shape).astype("float32") / WIDTH**0.5
        for shape in ((*TOKENS, WIDTH), (WIDTH, arguments.vocabulary_size))
    ]
    programs = {
        kind: differentiated(loss, labels, factors, bool(jit))
        for kind, loss in losses().items()
    }
    for program in programs.values():
        program()  # Compiles.
    rounds.serve(
        {"system": arguments.system},
        lambda _: {kind: rounds.timed(programs[kind])[0] for kind in KINDS},
    )


def losses():
    """Makes the three losses, functions of labels, vectors and projection."""
    from keras import ops

    from keras_seqattn.layers.embedding.logits import keep_factors
    from keras_seqattn.training import MaskedCrossentropy

    loss = MaskedCrossentropy(label_smoothing=SMOOTHING)

    def factors(labels, hidden, kernel):
        logits = ops.matmul(hidden, kernel)
        return loss(labels, keep_factors(logits, hidden, kernel))

    def logits(labels, hidden, kernel):
        return loss(labels, ops.matmul(hidden, kernel))

    def composed(labels, hidden, kernel):
        logits = ops.matmul(hidden, kernel)
        label = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        everywhere = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
        real = ops.cast(labels != 0, "float32")
        smoothed = (1 - SMOOTHING) * label + SMOOTHING * everywhere
        return ops.sum(smoothed * real) / ops.sum(real)

    return {"factors": factors, "logits": logits, "composed": composed}


def differentiated(loss, labels, factors, jit):
    """Compiles loss and gradients; returns a function that runs them to the end.

    The labels are an argument of the program, as in `fit`: from constants, a compiler
    could compute in advance which positions are padding.
    """
    import keras

    if keras.backend.backend() == "jax":
        import jax

        program = jax.jit(
            jax.value_and_grad(lambda factors, labels: loss(labels, *factors))
        )
        given = jax.device_put((factors, labels))
        return lambda: jax.block_until_ready(program(*given))

    import tensorflow as tf

    @tf.function(jit_compile=jit)
    def program(labels, *factors):
        with tf.GradientTape() as tape:
            tape.watch(factors)
            value = loss(labels, *factors)
        return value, *tape.gradient(value, factors)

    given = [tf.constant(array) for array in (labels, *factors)]
    return lambda: [tensor.numpy() for tensor in program(*given)]


if __name__ == "__main__":
    main()
