"""How many tokens would a pass keep if heads guessed the next ones of greedy search?

    python -m benchmarks.drafts --translator FILE.keras --data-dir DIRECTORY

In blockwise decoding (Stern et al. 2018, arXiv:1811.03115), heads guess the tokens
after the next one from the same hidden vector, and the model's next pass checks all
guesses at once. It keeps only what greedy search finds. Here heads are trained on a
translator's own greedy translations of Multi30k's training sources, with its weights
frozen, and evaluated on the first lines of `val`. A head is a feed-forward block with a
residual connection and a norm; all share the translator's output table. End tokens
count as tokens, so a search without guesses keeps one a pass. Guesses past the end of a
line do not count as right or wrong.

The speed of one sentence with such drafts is at most the number of tokens that a pass
keeps, times the speed of a batch of `--tokens` sentences by `benchmarks.decoding`,
divided by `--tokens`.
"""

import keras
import numpy as np

from benchmarks import rounds

MODULE = "benchmarks.drafts"
BATCH_SIZE = 64
# Lengths to which batches are padded, so that few shapes are compiled.
MULTIPLE = 8
MAX_LENGTH = 64  # of a translation, its end token included


def main():
    arguments = parse()
    from keras_seqattn import Translator, text

    translator = Translator.load(arguments.translator)
    sides = {
        split: text.load_parallel(
            "multi30k", "en", "de", split=split, data_dir=arguments.data_dir
        )[0][:count]
        for split, count in (("train", arguments.train), ("val", arguments.count))
    }
    found = {split: translated(translator, lines) for split, lines in sides.items()}
    heads = make_heads(translator.model, arguments.tokens - 1)
    pad_id = translator.model.pad_id
    hidden, labels = training_data(found["train"], arguments.tokens, pad_id)
    heads.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
    heads.fit(hidden, labels, batch_size=1024, epochs=arguments.epochs, verbose=2)

    measure = evaluated(heads, found["val"], arguments.tokens, pad_id)
    rounds.show(measure, arguments)
    rounds.publish(MODULE, [measure], [as_table(measure)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    rounds.add_translator_options(parser)
    parser.add_argument("--train", type=rounds.count, default=29_000, help="lines")
    parser.add_argument("--count", type=rounds.count, default=1000, help="val's lines")
    tokens = "of a pass, at least 2; default: 4"
    parser.add_argument("--tokens", type=rounds.count, default=4, help=tokens)
    parser.add_argument("--epochs", type=rounds.count, default=3, help="of the heads")
    rounds.add_output_options(parser)
    arguments = parser.parse_args()
    if arguments.tokens < 2:
        parser.error(f"--tokens must be at least 2. Received: {arguments.tokens}.")
    return arguments


def translated(translator, lines):
    """Searches greedily; returns each line's tokens and the vectors that found them."""
    from keras_seqattn import decoding

    model = translator.model
    (decoder,) = (part for part in model.operations if part.name == "decoder")
    to_vectors = keras.Model(model.inputs, decoder.output)
    rows = [[*ids, model.end_id] for ids in translator.source_tokenizer.tokenize(lines)]
    rows.sort(key=len)
    found = []
    for at in range(0, len(rows), BATCH_SIZE):
        some = rows[at : at + BATCH_SIZE]
        sources = padded(some + [some[0]] * (BATCH_SIZE - len(some)), model.pad_id)
        search = decoding.Greedy(scored=False)
        best = decoding.generate(model, sources, search=search, max_length=MAX_LENGTH)
        targets = [
            [*best.sequence(row), model.end_id][:MAX_LENGTH]
            for row in range(BATCH_SIZE)
        ]
        inputs = padded([[model.start_id, *ids[:-1]] for ids in targets], model.pad_id)
        vectors = np.asarray(
            to_vectors.predict_on_batch({"source_ids": sources, "target_ids": inputs})
        )
        found += [
            (np.array(ids), rows[: len(ids)])
            for ids, rows in zip(targets[: len(some)], vectors, strict=False)
        ]
    return found


def padded(rows, pad_id):
    """Pads rows of ids to one array, whose length is a multiple of `MULTIPLE`."""
    length = -(-max(map(len, rows)) // MULTIPLE) * MULTIPLE
    return np.array([[*ids, *[pad_id] * (length - len(ids))] for ids in rows], "int32")


def evaluated(heads, found, tokens, pad_id):
    """Returns how often each head is right, and how many tokens a pass keeps."""
    hits, guesses = np.zeros((2, tokens - 1))
    kept = passes = 0
    for ids, vectors in found:
        # Of a single head, Keras returns no list.
        outputs = keras.tree.flatten(heads.predict_on_batch(vectors))
        guessed = np.stack(outputs, axis=1).argmax(axis=-1)
        labels = shifted(ids, tokens, pad_id)
        right = guessed == labels
        hits = hits + (right & (labels != pad_id)).sum(axis=0)
        guesses = guesses + (labels != pad_id).sum(axis=0)
        kept, passes = kept + len(ids), passes + count_passes(right)
    return {
        "lines": len(found),
        "right": (hits / guesses).tolist(),
        "tokens_a_pass": kept / passes,
    }


def shifted(ids, tokens, pad_id):
    """Returns for each position the tokens after the next one, padding past the end."""
    ids = np.concatenate([ids, np.full(tokens, pad_id)])
    return np.stack([ids[k : len(ids) - tokens + k] for k in range(1, tokens)], axis=1)


def training_data(found, tokens, pad_id):
    """Returns the vectors of all positions, and each head's tokens."""
    labels = np.concatenate([shifted(ids, tokens, pad_id) for ids, _ in found])
    return np.concatenate([vectors for _, vectors in found]), list(labels.T)


def make_heads(model, count):
    """Makes a model from a hidden vector to the distributions of `count` tokens."""
    table = keras.ops.transpose(model.get_layer("source_embedding").embeddings)
    width = table.shape[0]
    vector = keras.Input((width,))
    outputs = []
    for _ in range(count):
        inner = keras.layers.Dense(4 * width, activation="relu")(vector)
        moved = keras.layers.Dense(width)(inner) + vector
        moved = keras.layers.LayerNormalization()(moved)
        outputs.append(keras.ops.softmax(keras.ops.matmul(moved, table)))
    return keras.Model(vector, outputs)


def count_passes(right):
    """Counts the passes of a line: one for its first token, then one for each block.

    A block is the guesses that are kept, and the token that the pass itself finds.

    Args:
        right: Booleans `(L, K)`: for each of L tokens, which of the K guesses of the
            tokens after it are right.
    """
    at, passes = 0, 1
    while at < len(right) - 1:
        at += 1 + int(np.logical_and.accumulate(right[at]).sum())
        passes += 1
    return passes


def as_table(measure):
    header = (
        "lines",
        *(f"token {k} right" for k in range(2, 2 + len(measure["right"]))),
    )
    row = (measure["lines"], *(f"{share:.2f}" for share in measure["right"]))
    return rounds.table(
        (*header, "tokens a pass"), [(*row, f"{measure['tokens_a_pass']:.2f}")]
    )


if __name__ == "__main__":
    main()
