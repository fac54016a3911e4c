"""How long does attention over long sequences take, and how much memory?

One sequence, 8 heads of width 64, float32, forward and backward: our kernels on each
backend against the attention of `keras.layers.MultiHeadAttention`
(`keras.ops.dot_product_attention`) on the same backend, and against torch's
`scaled_dot_product_attention`. Each system has its own process; the memory is the
growth of the process's peak in its first call, compilation included.

    python -m benchmarks.attention
    python -m benchmarks.attention --lengths 4096 --causal --window 256
    python -m benchmarks.attention --systems chunked-tensorflow torch-sdpa --rounds 3
"""

import os
import statistics

import numpy as np

from benchmarks import rounds

MODULE = "benchmarks.attention"
HEADS, KEY_DIM = 8, 64
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
# Systems of the DENSE kinds hold about DENSE_TENSORS tensors of all scores at their
# peak. Lengths at which these take more than MOST_MEGABYTES are left out.
DENSE, DENSE_TENSORS, MOST_MEGABYTES = ("explicit", "keras"), 3, 8000
SYSTEMS = (
    "chunked-tensorflow",
    "chunked-tensorflow-jit",
    "chunked-jax",
    "chunked-torch",
    "explicit-tensorflow",
    "explicit-tensorflow-jit",
    "explicit-jax",
    "explicit-torch",
    "fused-jax",
    "fused-torch",
    "keras-tensorflow",
    "keras-tensorflow-jit",
    "keras-jax",
    "torch-sdpa",
)
PAIRS = tuple(
    (f"chunked-{backend}", f"{peer}-{backend}")
    for backend in ("tensorflow", "tensorflow-jit", "jax", "torch")
    for peer in ("explicit", "keras", "fused")
) + (("chunked-torch", "torch-sdpa"), ("fused-torch", "torch-sdpa"))


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments)
    sections, measures = [], []
    for length in arguments.lengths:
        chosen = [name for name in arguments.systems if fits(name, length)]
        left_out = [name for name in arguments.systems if name not in chosen]
        if left_out:
            rounds.note(f"{length}: left out, past {MOST_MEGABYTES} MB: {left_out}")
        options = ["--lengths", length]
        options += ["--causal"] if arguments.causal else []
        options += ["--window", arguments.window] if arguments.window else []
        workers = rounds.start(MODULE, chosen, options)
        ready = {name: worker.ready for name, worker in workers.items()}
        of_length = []
        for number, system, measure in rounds.alternate(workers, arguments.rounds, 1):
            measure = {**ready[system], "round": number, **measure}
            of_length.append(measure)
            rounds.note(f"round {number} {system} {length}: {measure['seconds']:.3f} s")
            rounds.show(measure, arguments)
        measures += of_length
        sections += report(length, of_length, left_out)
    rounds.publish(MODULE, measures, sections, arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    parser.add_argument("--lengths", nargs="+", type=rounds.count, default=LENGTHS)
    causal = "query i sees the keys j <= i"
    parser.add_argument("--causal", action="store_true", help=causal)
    window = "query i sees the keys j with |i - j| < WINDOW"
    parser.add_argument("--window", type=rounds.count, help=window)
    rounds.add_options(parser)
    rounds.add_worker_options(parser, SYSTEMS)
    return parser.parse_args()


def fits(system, length):
    """Returns whether a system that holds all scores stays under `MOST_MEGABYTES`."""
    if not system.startswith(DENSE):
        return True
    return DENSE_TENSORS * HEADS * length**2 * 4 / 1e6 <= MOST_MEGABYTES


def report(length, measures, left_out):
    """Formats one length: medians, and the ratios of speeds within a round."""
    rows, rates = [], {}
    for system, own in rounds.grouped(measures).items():
        seconds = [measure["seconds"] for measure in own]
        rates[system] = [1.0 / x for x in seconds]
        first, memory = own[0]["first_s"], own[0]["growth_mb"]
        median = statistics.median(seconds)
        rows.append([system, f"{median:.2f}", f"{first:.1f}", f"{memory:.0f}"])
    header = [f"{length} tokens", "seconds", "first call, s", "memory growth, MB"]
    rows += [[system, "left out", "", ""] for system in left_out]
    return [rounds.table(header, rows), rounds.compare(rates, PAIRS)]


def work(arguments):
    """Answers each line of stdin with the seconds of one forward and backward pass."""
    name, _, how = arguments.system.partition("-")
    backend, _, jit = how.partition("-")
    backend = "torch" if name == "torch" else backend
    os.environ["KERAS_BACKEND"] = backend
    length = arguments.lengths[0]
    rng = np.random.default_rng(0)
    shape = (4, 1, length, HEADS, KEY_DIM)
    *inputs, upstream = rng.standard_normal(shape, "float32")
    attend = kernel(name, length, arguments.causal, arguments.window)
    run = DIFFERENTIATED[backend](attend, inputs, upstream, bool(jit))
    before = rounds.peak_megabytes()
    first, _ = rounds.timed(run)
    growth = rounds.peak_megabytes() - before
    rounds.serve(
        {
            "system": arguments.system,
            "length": length,
            "first_s": first,
            "growth_mb": growth,
        },
        lambda _: {"seconds": rounds.timed(run)[0]},
    )


def kernel(name, length, causal, window):
    """Makes the function of query, key and value that a system computes."""
    from keras import ops

    from keras_seqattn import layers

    if name in ("keras", "torch"):
        mask = None
        if window is not None:
            mask = layers.window_mask(length, length, window)
        if name == "keras":
            causal_mask = layers.causal_mask(length) if causal else None
            mask = layers.combine_masks(mask, causal_mask)
            options = {"mask": None if mask is None else mask[None, None]}
            return lambda *x: ops.dot_product_attention(*x, **options)
        return lambda *x: sdpa(*x, mask, causal)
    options = {"causal": causal, "window": window, "implementation": name}
    return lambda *x: layers.dot_product_attention(*x, **options)


def sdpa(query, key, value, mask, causal):
    """Calls torch's own kernel."""
    import torch

    if mask is not None and causal:
        mask, causal = torch.tril(mask), False
    tensors = (x.transpose(1, 2) for x in (query, key, value))
    output = torch.nn.functional.scaled_dot_product_attention(
        *tensors, attn_mask=mask, is_causal=causal
    )
    return output.transpose(1, 2)


def differentiated_tensorflow(attend, inputs, upstream, jit):
    """Makes a function that runs forward and backward, and waits for the results."""
    import tensorflow as tf

    @tf.function(jit_compile=jit, autograph=False)
    def program(inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = attend(*inputs)
        return tape.gradient(output, inputs, upstream)

    inputs, upstream = [tf.constant(x) for x in inputs], tf.constant(upstream)
    return lambda: [gradient.numpy() for gradient in program(inputs, upstream)]


def differentiated_jax(attend, inputs, upstream, jit):
    """Does the same on JAX, always compiled."""
    import jax

    @jax.jit
    def program(inputs, upstream):
        return jax.vjp(attend, *inputs)[1](upstream)

    inputs, upstream = jax.device_put((inputs, upstream))
    return lambda: jax.block_until_ready(program(inputs, upstream))


def differentiated_torch(attend, inputs, upstream, jit):
    """Does the same on torch, eagerly."""
    import torch

    inputs = [torch.tensor(x, requires_grad=True) for x in inputs]
    upstream = torch.tensor(upstream)
    return lambda: torch.autograd.grad(attend(*inputs), inputs, upstream)


DIFFERENTIATED = {
    "tensorflow": differentiated_tensorflow,
    "jax": differentiated_jax,
    "torch": differentiated_torch,
}


if __name__ == "__main__":
    main()
