"""What does tuning find for your own model in ten minutes?

    python -m benchmarks.own_model --minutes 10
    python -m benchmarks.own_model --minutes 0.5 --languages 4  # a try

The task is to tell in which language a name is written. The names of countries,
languages and currencies in 24 languages of the Latin alphabet are those of Unicode's
CLDR, which the package Babel ships. All names of one code are in the same part, so that
the test names things that training has not seen. The model, of `EncoderBlock`s over
characters, is made by an ordinary `build(hp)` that asks `tuning.attention_choices` for
heads and depth. Every system has the same minutes, compilation included, and a new seed
in each of `--rounds`. It is judged by the test accuracy of its model with the best
validation accuracy:

- defaults: the values that `hp` has by default, trained for the whole time.
- tuned: `tuning.tune` over that `build(hp)`.
- random-search, bayesian, hyperband: KerasTuner's tuners over it. A trial that is cut
  off when the time ends does not count, as for any of their users.
"""

import hashlib
import itertools
import math
import tempfile

from benchmarks import rounds
from benchmarks.searches import search, train_until_over

MODULE = "benchmarks.own_model"
SYSTEMS = ("defaults", "tuned", "random-search", "bayesian", "hyperband")
LANGUAGES = "en de fr es it pt nl sv da nb fi pl cs sk hu ro hr sl et lv lt tr id vi"
MODEL_DIM, LENGTH, BATCH_SIZE = 64, 32, 128
SCORE = "val_accuracy"
PARTS = ("train", "val", "test")


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments)
    options = ["--languages", arguments.languages, "--epochs", arguments.epochs]
    workers = rounds.start(MODULE, arguments.systems, options)
    sizes = [worker.ready for worker in workers.values()][0]
    rounds.note(f"names: {sizes}")
    measures = []
    for number, system, answer in rounds.alternate(
        workers, arguments.rounds, math.ceil(60 * arguments.minutes), arguments.together
    ):
        measures.append({"system": system, "round": number, **answer})
        rounds.show(measures[-1], arguments)
    rounds.publish(MODULE, measures, [as_table(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="for each system")
    add("--languages", type=rounds.count, default=len(LANGUAGES.split()))
    epochs = "at most, in a trial of KerasTuner; default: 9"
    add("--epochs", type=rounds.count, default=9, help=epochs)
    add("--together", action="store_true", help="all systems at the same time")
    rounds.add_options(parser, default_rounds=1)
    rounds.add_worker_options(parser, SYSTEMS)
    return parser.parse_args()


def as_table(measures):
    rows = [
        [
            m["system"],
            m["round"],
            f"{100 * m['test']:.2f}",
            f"{100 * m['validation']:.2f}",
            m["trials"],
            f"{m['parameters']:,}",
            m["chosen"],
        ]
        for m in measures
    ]
    header = ["system", "round", "test accuracy, %", "validation, %", "trials"]
    return rounds.table([*header, "weights", "chosen"], rows)


def load_names(count):
    """Returns each part's ids `(N, LENGTH)`, of characters or 0, and its languages."""
    import babel
    import numpy as np

    known = {}
    for label, language in enumerate(LANGUAGES.split()[:count]):
        locale = babel.Locale(language)
        for kind in ("territories", "languages", "currencies"):
            for code, name in getattr(locale, kind).items():
                known.setdefault(name, set()).add((label, code))
    # Names that several languages share are left out: nobody could tell.
    names = {
        name: min(found)
        for name, found in known.items()
        if len({label for label, _ in found}) == 1
    }
    parts = {part: ([], []) for part in PARTS}
    for name, (label, code) in sorted(names.items()):
        tenth = int(hashlib.sha256(code.encode()).hexdigest(), 16) % 10
        ids, labels = parts[{0: "val", 1: "test"}.get(tenth, "train")]
        # The characters of these alphabets lie below 0x2000: 8,191 is for all others.
        numbers = [min(ord(character), 8191) for character in name[:LENGTH]]
        ids.append(numbers + [0] * (LENGTH - len(numbers)))
        labels.append(label)
    return {part: tuple(map(np.array, found)) for part, found in parts.items()}


def make_build(num_classes):
    """Returns a `build(hp)` as a user would write it."""
    import keras

    import keras_seqattn as ks

    def build(hp):
        heads, key_dim, depth = ks.tuning.attention_choices(
            hp, MODEL_DIM, num_heads=(4, 2, 8), key_dim=(16, 32), num_layers=(2, 1, 3)
        )
        dropout = hp.Choice("dropout", [0.0, 0.1, 0.2, 0.3], default=0.1)
        rate = hp.Float("learning_rate", 3e-4, 6e-3, sampling="log", default=1e-3)
        inputs = keras.Input((LENGTH,), dtype="int32")
        x = ks.layers.PositionalEmbedding(8192, MODEL_DIM, dropout=dropout)(inputs)
        for _ in range(depth):
            block = ks.layers.EncoderBlock(
                heads, 2 * MODEL_DIM, key_dim=key_dim, dropout=dropout
            )
            x = block(x)
        x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
        outputs = keras.layers.Dense(num_classes, activation="softmax")(x)
        model = keras.Model(inputs, outputs)
        model.compile(
            keras.optimizers.Adam(rate),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        return model

    return build


def work(arguments):
    """Runs one system in this process, for as many seconds as stdin asks."""
    import keras

    from keras_seqattn import training

    training.keep_freed_memory()
    names, seeds = load_names(arguments.languages), itertools.count()
    build = make_build(arguments.languages)
    run = {"defaults": run_defaults, "tuned": run_tuned}
    run = run.get(arguments.system, run_tuner)

    def answer(seconds):
        seed = next(seeds)  # a new one for each round
        keras.utils.set_random_seed(seed)
        with tempfile.TemporaryDirectory() as folder:
            model, trials, chosen = run(arguments, build, names, seconds, folder, seed)
            if model is None:
                return dict.fromkeys(("test", "validation", "parameters"), 0) | {
                    "trials": trials,
                    "chosen": "",
                }
            accuracy = {
                part: model.evaluate(*names[part], verbose=0, return_dict=True)
                for part in ("val", "test")
            }
            return {
                "test": accuracy["test"]["accuracy"],
                "validation": accuracy["val"]["accuracy"],
                "trials": trials,
                "parameters": model.count_params(),
                "chosen": " ".join(f"{key}={chosen[key]}" for key in chosen),
            }

    rounds.serve({part: len(names[part][0]) for part in PARTS}, answer)


def options_of_fit(names):
    return {"validation_data": names["val"], "batch_size": BATCH_SIZE}


def run_defaults(arguments, build, names, seconds, folder, seed):
    """Trains with the default values; returns the model of the best epoch."""
    import keras_tuner

    hp = keras_tuner.HyperParameters()
    model, objective = build(hp), keras_tuner.Objective(SCORE, "max")
    data, options = names["train"], options_of_fit(names)
    model, _ = train_until_over(model, objective, data, options, seconds, folder)
    return model, 1, hp.values if model else {}


def run_tuned(arguments, build, names, seconds, folder, seed):
    """Runs our study; returns its best model."""
    from keras_seqattn import tuning
    from keras_seqattn.tuning import records

    study = tuning.tune(
        build,
        names["train"],
        names["val"],
        objective=SCORE,
        batch_size=BATCH_SIZE,
        max_seconds=seconds,
        directory=folder,
        seed=seed,
        verbose=False,
    )
    if not any(record.epochs for record in records.load_records(folder)):
        return None, len(study.table()), {}
    chosen = study.best_hyperparameters.values
    return study.best_model(), len(study.table()), chosen


def run_tuner(arguments, build, names, seconds, folder, seed):
    """Runs one of KerasTuner's tuners; returns the model of the best trial."""
    import keras_tuner

    objective = keras_tuner.Objective(SCORE, "max")
    options = options_of_fit(names) | {"epochs": arguments.epochs}
    data = names["train"]
    model, _, trials, chosen = search(
        arguments.system, build, objective, data, options, seconds, folder, seed
    )
    chosen = {name: chosen[name] for name in chosen if not name.startswith("tuner/")}
    return model, trials, chosen


if __name__ == "__main__":
    main()
