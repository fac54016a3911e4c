"""How many real target tokens a second does `model.fit` learn from on Multi30k en-de?

Real tokens are the target's tokens with their end tokens, without padding. A measure is
one epoch through `model.fit`, data pipeline included. The systems:

- ours: `TranslationTransformer` of the sizes of the recipe `multi30k`, with sinusoidal
  positions, on `translation_batches` with its tight buckets, and a token budget that
  makes batches of 64 pairs on average.
- kerashub-fixed: the method of the guide "English-to-Spanish translation with KerasHub"
  of keras.io: KerasHub's layers, batches of 64 pairs, every side padded to 40 tokens,
  `SparseCategoricalCrossentropy`, `jit_compile="auto"`.
- kerashub-fixed-jit: the same with `jit_compile=True`, which the guide leaves out.
- kerashub-buckets: KerasHub's layers on our batches, to separate the layers' share of
  the ratio from the batches' share.

The guide's own model (one layer of width 256, two vocabularies of 15,000) would learn
something else. Here all have the recipe's tokenizer, width, depth and tied table, the
same parameter count, and Adam, so that the ratio depends only on layers, loss and
batching. KerasHub also applies its dropout to attention weights, without an option;
ours, by the recipe, does not.

    python -m benchmarks.multi30k --data-dir DIRECTORY
    python -m benchmarks.multi30k --data-dir DIRECTORY --pairs 8000 --rounds 1
"""

import functools
import statistics
from typing import NamedTuple

from benchmarks import rounds
from benchmarks.shapes import PAD_ID, Shape

MODULE = "benchmarks.multi30k"
SYSTEMS = ("ours", "kerashub-fixed", "kerashub-fixed-jit", "kerashub-buckets")
COMPARISONS = (("ours", "kerashub-fixed"), ("ours", "kerashub-buckets"))
WARM_UP_STEPS = 3
GUIDE_BATCH_SIZE, GUIDE_LENGTH = 64, 40


def main():
    arguments = parse()
    if arguments.worker:
        work(arguments.system, arguments.data_dir, arguments.pairs)
        return
    measures = measure(arguments)
    rounds.publish(MODULE, measures, [report(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    parser.add_argument(
        "--data-dir", help="folder with train.en.gz, train.de.gz; else downloaded"
    )
    parser.add_argument(
        "--pairs",
        type=rounds.count,
        help="only the first pairs: quicker, but our last batches are emptier",
    )
    rounds.add_options(parser)
    rounds.add_worker_options(parser, SYSTEMS)
    return parser.parse_args()


def measure(arguments):
    """Runs all systems; prints and returns one dict per measure."""
    options = []
    if arguments.data_dir:
        options += ["--data-dir", arguments.data_dir]
    if arguments.pairs:
        options += ["--pairs", arguments.pairs]
    workers = rounds.start(MODULE, arguments.systems, options)
    measures = []
    for number, system, answer in rounds.alternate(workers, arguments.rounds, 1):
        ready = workers[system].ready
        rate = ready["target_tokens"] / answer["epoch_s"]
        measures.append(
            dict(system=system, round=number, **ready, **answer, tokens_per_s=rate)
        )
        rounds.note(f"round {number} {system}: {rate:.0f} real target tokens/s")
        rounds.show(measures[-1], arguments)
    return measures


def report(measures):
    """Formats the table of systems and the table of ratios."""
    rows, rates = [], {}
    for system, own in rounds.grouped(measures).items():
        rates[system] = [m["tokens_per_s"] for m in own]
        last = own[-1]
        rows.append(
            [
                system,
                f"{statistics.median(rates[system]):.0f}",
                last["steps"],
                f"{100 * last['target_tokens'] / last['positions']:.0f}%",
                f"{last['first_steps_s']:.1f}",
                f"{last['peak_mb']:.0f}",
            ]
        )
    header = [
        "Multi30k en-de",
        "real target tokens/s",
        "steps an epoch",
        "filled",
        "first steps, s",
        "peak memory, MB",
    ]
    return "\n\n".join([rounds.table(header, rows), rounds.compare(rates, COMPARISONS)])


def work(system, data_dir, pairs):
    """Trains one system here, for as many epochs as each line of stdin asks."""
    from benchmarks import peers

    run = prepare(system, data_dir, pairs)

    def answer(epochs):
        seconds, loss = peers.timed_fit(run.model, run.data, epochs=epochs)
        return dict(
            epoch_s=seconds / epochs, loss=loss, peak_mb=rounds.peak_megabytes()
        )

    ready = dict(
        parameters=run.shape.parameters,
        first_steps_s=run.first_steps_s,
        steps=len(run.labels),
        positions=sum(batch.size for batch in run.labels),
        target_tokens=sum(int((batch != PAD_ID).sum()) for batch in run.labels),
    )
    rounds.serve(ready, answer)


class Run(NamedTuple):
    """A system that has taken its first steps; `labels` are those of an epoch."""

    model: object
    data: object
    labels: list
    tokenizer: object
    shape: Shape
    first_steps_s: float


def prepare(system, data_dir, pairs=None):
    """Builds and compiles one system, and makes its batches; returns a `Run`."""
    from benchmarks import peers
    from keras_seqattn.recipes import RECIPES
    from keras_seqattn.text import SentencePieceTokenizer, load_parallel

    recipe = RECIPES["multi30k"]
    sources, targets = load_parallel("multi30k", "en", "de", data_dir=data_dir)
    tokenizer = SentencePieceTokenizer.train(
        sources + targets, vocabulary_size=recipe.vocabulary_size
    )
    corpus = sources[:pairs], targets[:pairs]
    if system.startswith("kerashub-fixed"):
        data = fixed_batches(*corpus, tokenizer)
    else:
        data = bucketed_batches(*corpus, tokenizer, recipe)
    labels = [labels.numpy() for _, labels in data]
    library, shape = system.partition("-")[0], shape_of(recipe)
    jit_compile = True if system.endswith("-jit") else "auto"
    model = peers.compiled(library, shape, jit_compile)
    shape.check(system, peers.parameter_count(model))
    data = data.map(functools.partial(peers.example, library))
    first, _ = rounds.timed(peers.timed_fit, model, data.take(WARM_UP_STEPS))
    return Run(model, data, labels, tokenizer, shape, first)


def shape_of(recipe):
    """Describes the recipe's model."""
    names = ("model_dim", "num_heads", "encoder_layers", "decoder_layers")
    names += ("intermediate_dim", "dropout", "attention_dropout")
    return Shape(
        "multi30k",
        recipe.vocabulary_size,
        batch_size=GUIDE_BATCH_SIZE,
        length=GUIDE_LENGTH,
        min_length=1,
        tied=True,
        **{name: getattr(recipe.model, name) for name in names},
    )


def bucketed_batches(sources, targets, tokenizer, recipe):
    """Makes our batches, with the recipe's options, but as many a pass as the guide's.

    All systems have one Adam, to which larger batches, and fewer steps, would be a
    disadvantage that layers, loss and batching are not to blame for.
    """
    from keras_seqattn.text import translation_batches

    options = recipe.batch_options()
    found = translation_batches(sources, targets, tokenizer, **options)
    pairs = len(sources) / len(found)  # in a batch, on average
    options["batch_tokens"] = int(recipe.batch_tokens * GUIDE_BATCH_SIZE / pairs)
    return translation_batches(sources, targets, tokenizer, **options)


def fixed_batches(sources, targets, tokenizer):
    """Makes the guide's batches: all sides padded, or cut, to one length."""
    import tensorflow as tf

    def batch(sources, targets):
        labels = packed(tokenizer, targets)
        shifted = tf.roll(labels, 1, axis=1)
        first = tf.range(GUIDE_LENGTH) == 0
        target_ids = tf.where(first, tokenizer.start_id, shifted)
        inputs = {"source_ids": packed(tokenizer, sources), "target_ids": target_ids}
        return inputs, labels

    data = tf.data.Dataset.from_tensor_slices((sources, targets))
    data = data.batch(GUIDE_BATCH_SIZE).map(batch, num_parallel_calls=tf.data.AUTOTUNE)
    # In the guide's order, which caches the first shuffle.
    return data.shuffle(2048).prefetch(16).cache()


def packed(tokenizer, lines):
    """Tokenises lines, each padded or cut to the guide's length, end included."""
    import tensorflow as tf

    tokens = tokenizer.tokenize(lines)
    end = tf.fill((tokens.nrows(), 1), tokenizer.end_id)
    tokens = tf.concat([tokens, end], axis=1)[:, :GUIDE_LENGTH]
    return tokens.to_tensor(PAD_ID, shape=(None, GUIDE_LENGTH))


if __name__ == "__main__":
    main()
