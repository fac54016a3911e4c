"""How long does the loss over the vocabulary take, forward and backward?

Ours (`MaskedCrossentropy`, its gradient written by hand) against the same loss composed
of Keras's `sparse_categorical_crossentropy` and the smoothing term, differentiated by
the backend. Both in one process, in turn; 4,096 tokens, milliseconds a call.

    python -m benchmarks.loss
    python -m benchmarks.loss --vocabulary-size 5000 --rounds 9
"""

import argparse
import os
import statistics

import numpy as np

from benchmarks import rounds

MODULE = "benchmarks.loss"
SYSTEMS = ("tensorflow", "tensorflow-jit", "jax")
TOKENS, SMOOTHING = (128, 32), 0.1


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments)
    workers = rounds.start(
        MODULE, arguments.systems, ["--vocabulary-size", arguments.vocabulary_size]
    )
    measures = []
    for number, system, measure in rounds.alternate(workers, arguments.rounds, 1):
        measures.append({"system": system, "round": number, **measure})
        rounds.note(f"round {number} {system}: {measure}")
        rounds.show(measures[-1], arguments)
    rounds.publish(MODULE, measures, [report(measures)], arguments)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocabulary-size", type=rounds.count, default=10_000)
    rounds.add_options(parser, default_rounds=7)
    rounds.add_worker_options(parser, SYSTEMS)
    return parser.parse_args()


def report(measures):
    """Formats the medians, and the ratio within each round."""
    rows = []
    for system in dict.fromkeys(measure["system"] for measure in measures):
        ours, composed = (
            [1e3 * m[kind] for m in measures if m["system"] == system]
            for kind in ("ours_s", "composed_s")
        )
        ratios = [b / a for a, b in zip(ours, composed, strict=True)]
        medians = map(statistics.median, (ours, composed, ratios))
        rows.append([system, *(f"{median:.1f}" for median in medians)])
    return rounds.table(["System", "ours, ms", "composed, ms", "ratio"], rows)


def work(arguments):
    """Answers each line of stdin with the seconds of both losses."""
    backend, _, jit = arguments.system.partition("-")
    os.environ["KERAS_BACKEND"] = backend
    size = arguments.vocabulary_size
    rng = np.random.default_rng(0)
    labels = rng.integers(1, size, TOKENS).astype("int32")
    logits = rng.standard_normal((*TOKENS, size)).astype("float32")
    ours, composed = (
        differentiated(loss, labels, logits, bool(jit)) for loss in losses()
    )
    for gradient in (ours, composed):
        gradient()  # Compiles.
    rounds.serve(
        {"system": arguments.system},
        lambda _: {
            "ours_s": rounds.timed(ours)[0],
            "composed_s": rounds.timed(composed)[0],
        },
    )


def losses():
    """Makes our loss, and the same composed of Keras's."""
    from keras import ops

    from keras_seqattn.training import MaskedCrossentropy

    def composed(labels, logits):
        label = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        everywhere = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
        return ops.mean((1 - SMOOTHING) * label + SMOOTHING * everywhere)

    return MaskedCrossentropy(label_smoothing=SMOOTHING), composed


def differentiated(loss, labels, logits, jit):
    """Compiles loss and gradient; returns a function that runs them to the end."""
    import keras

    if keras.backend.backend() == "jax":
        import jax

        program = jax.jit(jax.value_and_grad(lambda x: loss(labels, x)))
        return lambda: jax.block_until_ready(program(logits))

    import tensorflow as tf

    @tf.function(jit_compile=jit)
    def program(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(labels, x)
        return value, tape.gradient(value, x)

    logits = tf.constant(logits)
    return lambda: [tensor.numpy() for tensor in program(logits)]


if __name__ == "__main__":
    main()
