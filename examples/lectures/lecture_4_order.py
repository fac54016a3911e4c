"""Lecture 4: the order of words, by positions or by recurrence.

    python examples/lectures/lecture_4_order.py    # about a minute on 2 cores

With `--steps 0` it trains nothing, and takes seconds.

Attention alone knows no order. A recurrent network gets it from its state, h[t] =
g(W_h [x[t]; h[t-1]] + b), one step after the other. A Transformer adds sines and
cosines of the position, and reads all positions at once. They are shown with the base
and the exponents of Vaswani et al. 2017, and with some that are printed elsewhere. Then
both models learn to reverse a row of digits.

It needs `pip install ".[tensorflow,plot]"`.
"""

import functools

import blackboard
import keras
import numpy as np

import keras_seqattn as ks

DIGITS, LENGTH, START, END, FIRST = 8, 6, 1, 2, 3
VOCABULARY = FIRST + DIGITS
MODELS = {
    "GRU with attention": ks.models.TranslationRNN,
    "Transformer": functools.partial(
        ks.models.TranslationTransformer, num_heads=2, intermediate_dim=64
    ),
}


def main():
    args = blackboard.arguments(__doc__, steps=300)
    print("Positions added to a vector of 4 zeros.")
    variants = {
        "as printed (base 1000, odd)": {"base": 1000.0, "cosine_exponent": "odd"},
        "standard (base 10000, even)": {},
    }
    for name, options in variants.items():
        table = ks.layers.SinusoidalPositions(**options)(np.zeros((1, 3, 4)))[0]
        for position in (1, 2):
            blackboard.show(f"{name}, position {position}", table[position])

    print("The recurrent cell: tanh, W_hx = 0.5, W_hh = 0.1, b = 0, x = (1, 1).")
    blackboard.show("h[1] and h[2]", recurrence())

    print(f"{LENGTH} digits backwards, {args.steps} steps each:")
    models = MODELS if args.steps else {}
    losses = {name: learn(name, make, args.steps) for name, make in models.items()}
    blackboard.save(picture(losses), args.output / "4_order.png")


def recurrence():
    """Runs the worked example: two inputs of 1 through a cell of one unit."""
    cell = ks.layers.RecurrentCell(1)
    network = keras.layers.RNN(cell, return_sequences=True)
    network(np.zeros((1, 2, 1)))
    cell.kernel.assign([[0.5], [0.1]])  # W_hx above W_hh, in the order of [x; h].
    return network(np.ones((1, 2, 1)))


def pairs(count, rng):
    """Makes (inputs, labels) from rows of digits and the same rows backwards."""
    rows = rng.integers(FIRST, VOCABULARY, (count, LENGTH)).astype("int32")
    source = np.pad(rows, ((0, 0), (0, 1)), constant_values=END)
    target = np.pad(rows[:, ::-1], ((0, 0), (1, 1)), constant_values=END)
    target[:, 0] = START
    return {"source_ids": source, "target_ids": target[:, :-1]}, target[:, 1:]


def learn(name, make, steps):
    """Trains a small model; returns its loss in each step."""
    keras.utils.set_random_seed(0)
    model = make(
        VOCABULARY, model_dim=32, encoder_layers=1, decoder_layers=1, dropout=0.0
    )
    model.compile(keras.optimizers.Adam(3e-3), ks.training.MaskedCrossentropy())
    inputs, labels = pairs(64 * steps, np.random.default_rng(0))
    losses = []
    for step in range(steps):
        batch = slice(64 * step, 64 * (step + 1))
        arrays = {key: array[batch] for key, array in inputs.items()}
        # `train_on_batch` returns the mean loss since the last reset.
        model.reset_metrics()
        losses.append(float(model.train_on_batch(arrays, labels[batch])))
    unseen, answers = pairs(100, np.random.default_rng(1))
    found = model.generate(unseen["source_ids"], max_length=LENGTH + 1).token_ids[:, 0]
    found = np.pad(found, ((0, 0), (0, LENGTH)))[:, :LENGTH]  # It may be shorter.
    count = (found == answers[:, :-1]).all(axis=1).sum()
    print(
        f"  {name}: {model.count_params():,} weights, loss {losses[-1]:.3f}, "
        f"{count} of 100 unseen rows right"
    )
    return losses


def picture(losses):
    """Draws the positions, and how both models learned."""
    figure, (table, curves) = blackboard.panels(2, width=4.6, height=3.4)
    image = table.imshow(
        blackboard.array(ks.layers.sinusoidal_table(60, 64)), cmap="RdBu", aspect="auto"
    )
    table.set_xlabel("dimension")
    table.set_ylabel("position")
    table.set_title("Sinusoidal positions", fontsize=10)
    figure.colorbar(image, ax=table)
    for name, values in losses.items():
        curves.plot(range(1, 1 + len(values)), values, label=name)
        curves.legend(frameon=False)
    curves.set_xlabel("steps of training")
    curves.set_ylabel("loss (nats per token)")
    curves.set_title(f"{LENGTH} digits backwards", fontsize=10)
    curves.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    main()
