"""What does a search find on Multi30k en-de in the time of one training run?

Every system has the same wall-clock time on the same machine, compilation included, and
the same text and tokenizer. All choose trials and epochs by the BLEU of validation
lines, a tenth as many as they train on but at least 200, translated greedily after each
epoch. They are judged by the BLEU of all validation lines, translated with 4 beams:

- default: the hand-picked recipe `multi30k`, trained for the whole time.
- tuned: `tuning.tune_translation` around that recipe, which is the first trial.
- random-search, bayesian, hyperband: KerasTuner's searches over a plain `build(hp)`, as
  in its guide, with the same layers and with Adam at a constant rate. A trial has at
  most `--epochs` epochs. One that is cut off when the time ends does not count, since
  KerasTuner offers no access to it.
- optuna: Optuna's TPE over the same `build`, with its pruner of asynchronous successive
  halving.

    python -m benchmarks.tuning --data-dir DIRECTORY --minutes 60
    python -m benchmarks.tuning --data-dir DIRECTORY --pairs 3000 --minutes 20
    python -m benchmarks.tuning --corpus phrases --pairs 500 --minutes 1  # a try

The systems run one after the other, with a new seed in each of `--rounds`. With
`--together` they run at the same time and share the machine, whose speed may vary from
hour to hour. The column "greedy" has the best score in the time, even if it is of a
trial that does not count. `--picture FILE` draws the best score over time, with a band
for the range of the seeds.
"""

import itertools
import math
import tempfile
import time

from benchmarks import pictures, rounds
from benchmarks.searches import make_watch, search, train_until_over

MODULE = "benchmarks.tuning"
COLOURS = {
    "default": "#64748b",
    "tuned": "#0f766e",
    "random-search": "#c2410c",
    "bayesian": "#7c3aed",
    "hyperband": "#b45309",
    "optuna": "#2563eb",
}
SYSTEMS = tuple(COLOURS)
SCORE, DIRECTION = "val_bleu", "max"
# The hyperparameters that are reported for the model each system has chosen.
TOLD = ("encoder_layers", "decoder_layers", "num_heads", "key_dim", "model_dim")
TOLD += ("feed_forward_ratio", "intermediate_dim", "dropout", "positions")


def main():
    arguments = parse()
    if arguments.worker:
        work(arguments)
        return
    options = ["--corpus", arguments.corpus, "--epochs", arguments.epochs]
    options += ["--source", arguments.source, "--target", arguments.target]
    options += ["--algorithm", arguments.algorithm, "--seed", arguments.seed]
    for name in ("data_dir", "pairs"):
        if getattr(arguments, name):
            options += [f"--{name.replace('_', '-')}", getattr(arguments, name)]
    workers = rounds.start(MODULE, arguments.systems, options)
    seconds, measures = math.ceil(60 * arguments.minutes), []
    for number, system, answer in rounds.alternate(
        workers, arguments.rounds, seconds, arguments.together
    ):
        measures.append(dict(system=system, round=number, **answer))
        rounds.note(f"round {number} {system}: BLEU {answer['bleu']:.2f}")
        rounds.show(measures[-1], arguments)
    rounds.publish(MODULE, measures, [report(measures)], arguments)
    if arguments.picture:
        draw(measures).savefig(arguments.picture, dpi=150)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add_corpus_options(parser)
    add("--minutes", type=float, default=60.0, help="for each system")
    epochs = "at most, in a trial of KerasTuner or Optuna; default: 9"
    add("--epochs", type=rounds.count, default=9, help=epochs)
    algorithm = "of tuned: halving (default), hyperband, random or bayesian"
    add("--algorithm", default="halving", help=algorithm)
    add("--seed", type=int, default=0, help="of the first round")
    add("--together", action="store_true", help="all systems at the same time")
    add("--picture", type=rounds.new_file, help="file for the picture")
    rounds.add_options(parser, default_rounds=1)
    rounds.add_worker_options(parser, SYSTEMS)
    return parser.parse_args()


def add_corpus_options(parser):
    """Adds the options that say which lines a `Task` has."""
    add = parser.add_argument
    add("--corpus", choices=("multi30k", "phrases"), default="multi30k")
    add("--data-dir", help="folder of multi30k's files; else downloaded")
    add("--pairs", type=rounds.count, help="only the first pairs: quicker")
    add("--source", default="en", help="language translated from; default: en")
    add("--target", default="de", help="language translated to; default: de")


def report(measures):
    """Formats the table: a row for each system and round."""
    rows = [
        [
            row["system"],
            row["round"],
            f"{row['bleu']:.2f}",
            f"{row['curve'][-1][1]:.2f}" if row["curve"] else "",
            row["trials"],
            f"{row['parameters'] / 1e6:.2f}",
            f"{row['seconds'] / 60:.1f}",
            row["chosen"],
        ]
        for row in measures
    ]
    header = ["System", "round", "val BLEU, 4 beams", "greedy", "trials"]
    return rounds.table([*header, "million weights", "minutes", "chosen"], rows)


def draw(measures):
    """Draws the best score over time: the seeds' median, and a band for their range."""
    import numpy as np

    figure, panel = pictures.begin()
    measures = [row for row in measures if row["curve"]]
    for system, rows in rounds.grouped(measures).items():
        minutes = np.linspace(0, max(row["seconds"] for row in rows) / 60, 400)
        curves = [score_at(minutes, row["curve"]) for row in rows]
        bleu = np.median([row["bleu"] for row in rows])
        panel.plot(
            minutes,
            np.median(curves, axis=0),
            drawstyle="steps-post",
            color=COLOURS[system],
            label=f"{system}: BLEU {bleu:.1f}",
        )
        panel.fill_between(
            minutes,
            np.min(curves, axis=0),
            np.max(curves, axis=0),
            step="post",
            color=COLOURS[system],
            alpha=0.15,
            linewidth=0,
        )
    panel.set_xlabel("minutes")
    panel.set_ylabel("best BLEU of the validation so far, greedy search")
    panel.legend(frameon=False)
    return figure


def score_at(minutes, curve):
    """Returns a curve's score at each of the minutes, NaN before its first score."""
    import numpy as np

    seconds, scores = zip(*curve, strict=True)
    begun = np.searchsorted(seconds, 60 * minutes, side="right")
    return np.array([math.nan, *scores])[begun]


def work(arguments):
    """Runs one system in this process, for as many seconds as stdin asks."""
    import keras

    from keras_seqattn import training

    training.keep_freed_memory()
    task, seeds = Task(arguments), itertools.count(arguments.seed)
    run = dict.fromkeys(SYSTEMS, run_keras_tuner)
    run |= {"default": run_default, "tuned": run_tuned, "optuna": run_optuna}

    def answer(seconds):
        begin = time.monotonic()
        task.seed = next(seeds)
        keras.utils.set_random_seed(task.seed)
        with tempfile.TemporaryDirectory() as folder:
            model, curve, trials, chosen = run[arguments.system](task, seconds, folder)
            spent = time.monotonic() - begin
            return dict(
                seconds=spent,
                curve=best_so_far(curve),
                trials=trials,
                chosen=" ".join(
                    f"{key}={chosen[key]}" for key in TOLD if key in chosen
                ),
                parameters=model.count_params() if model else 0,
                bleu=task.bleu(model) if model else 0.0,
            )

    rounds.serve({"pairs": len(task.train[0])}, answer)


class Task:
    """The text, the tokenizer and the recipe that all systems have."""

    def __init__(self, arguments):
        """Loads the corpus and trains the tokenizer."""
        from keras_seqattn.recipes import RECIPES
        from keras_seqattn.text import SentencePieceTokenizer, load_parallel

        self.arguments, self.seed = arguments, 0
        name = "multi30k" if arguments.corpus == "multi30k" else "default"
        self.recipe = RECIPES[name]
        load = dict(data_dir=arguments.data_dir)
        languages = arguments.source, arguments.target
        train = load_parallel(arguments.corpus, *languages, **load)
        self.train = tuple(side[: arguments.pairs] for side in train)
        self.validation = load_parallel(
            arguments.corpus, *languages, split="val", **load
        )
        self.tokenizer = SentencePieceTokenizer.train(
            [*self.train[0], *self.train[1]], self.recipe.vocabulary_size
        )

    def batches(self):
        """Makes the batches of both parts."""
        from keras_seqattn.text import translation_batches

        options = self.recipe.batch_options() | {"seed": self.seed}
        train = translation_batches(*self.train, self.tokenizer, **options)
        options = self.recipe.batch_options(training=False)
        return train, translation_batches(
            *self.validation, self.tokenizer, shuffle=False, **options
        )

    def score(self):
        """Makes a callback that logs `SCORE`."""
        from keras_seqattn import training
        from keras_seqattn.tuning.corpus import most_scored

        class Score(training.TranslationScore):
            def __deepcopy__(self, memo):
                return self  # KerasTuner copies callbacks for each trial.

        lines = most_scored(len(self.train[0]))
        return Score(*self.validation, self.tokenizer, lines=lines)

    def bleu(self, model):
        """Returns the BLEU of a model's beam search on the validation lines."""
        import sacrebleu

        from keras_seqattn import Translator, decoding

        translator = Translator(model, self.tokenizer)
        translations = translator(self.validation[0], decoding.BeamSearch(4))
        return sacrebleu.corpus_bleu(translations, [self.validation[1]]).score


def run_default(task, seconds, folder):
    """Trains the recipe; returns its model of the best epoch, and its scores."""
    import keras
    import keras_tuner

    recipe = task.recipe
    made = recipe.make_model(task.tokenizer.vocabulary_size)
    train, validation = task.batches()
    # On epochs, too: `ModelCheckpoint` then saves the averages.
    averaging = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    model, curve = train_until_over(
        made,
        keras_tuner.Objective(SCORE, DIRECTION),
        (train,),
        dict(validation_data=validation, shuffle=False),
        seconds,
        folder,
        [averaging, task.score()],
    )
    return model, curve, 1, recipe.model.options() if model else {}


def run_tuned(task, seconds, folder):
    """Runs our study; returns its best model, and all epochs' scores."""
    from keras_seqattn import tuning
    from keras_seqattn.tuning import records

    recipe, arguments = task.recipe, task.arguments
    study = tuning.tune_translation(
        task.train,
        task.validation,
        objective=SCORE,
        algorithm=arguments.algorithm,
        max_seconds=seconds,
        directory=folder,
        verbose=False,
        seed=task.seed,
        space=tuning.TranslationSpace.around(
            recipe, vocabulary_size=recipe.vocabulary_size
        ),
    )
    known = records.load_records(folder)
    if not any(record.epochs for record in known):
        return None, [], len(known), {}
    curve = [
        (epoch["at"], epoch["score"])
        for record in known
        for epoch in record.epochs[record.inherited_epochs :]
    ]
    best = study.best_trial
    return study.best_model(), curve, len(known), best.configuration.model.options()


def make_build(task):
    """Returns a plain `build(hp)` of the same layers, as in KerasTuner's guide."""
    import keras

    from keras_seqattn import models, training

    def build(hp):
        model_dim = hp.Choice("model_dim", [128, 192])
        model = models.TranslationTransformer(
            task.tokenizer.vocabulary_size,
            model_dim=model_dim,
            num_heads=hp.Choice("num_heads", [2, 4, 8]),
            encoder_layers=hp.Choice("encoder_layers", [2, 3, 4, 6]),
            decoder_layers=hp.Choice("decoder_layers", [1, 2, 3, 4]),
            intermediate_dim=model_dim * hp.Choice("feed_forward_ratio", [1, 2, 4]),
            dropout=hp.Choice("dropout", [0.1, 0.15, 0.2, 0.3]),
        )
        rate = hp.Float("learning_rate", 1e-4, 1e-2, sampling="log")
        model.compile(
            keras.optimizers.Adam(rate),
            training.MaskedCrossentropy(label_smoothing=0.1),
            metrics=[training.TokenCrossentropy()],
        )
        return model

    return build


def run_keras_tuner(task, seconds, folder):
    """Runs one of KerasTuner's own searches over the plain `build(hp)`."""
    import keras_tuner

    arguments = task.arguments
    train, validation = task.batches()
    return search(
        arguments.system,
        make_build(task),
        keras_tuner.Objective(SCORE, DIRECTION),
        (train,),
        dict(validation_data=validation, epochs=arguments.epochs, shuffle=False),
        seconds,
        folder,
        task.seed,
        [task.score()],
    )


class Suggestions:
    """An Optuna trial that serves as the `hp` of a `build`."""

    def __init__(self, trial):
        """Keeps the trial."""
        self._trial = trial

    def Choice(self, name, values):  # noqa: N802
        """Chooses one of several values."""
        return self._trial.suggest_categorical(name, values)

    def Float(self, name, low, high, sampling):  # noqa: N802
        """Draws a number between two."""
        return self._trial.suggest_float(name, low, high, log=sampling == "log")


def run_optuna(task, seconds, folder):
    """Runs Optuna's TPE with its pruner of successive halving over the same `build`."""
    import keras
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    build = make_build(task)
    train, validation = task.batches()
    best, best_weights = (-math.inf, None, {}), f"{folder}/best.weights.h5"

    def stop(model):
        model.stop_training = True

    watch = make_watch(seconds, stop, SCORE)

    def objective(trial):
        keras.utils.clear_session()
        model = build(Suggestions(trial))

        def report(epoch, logs):
            nonlocal best
            if logs[SCORE] > best[0]:
                model.save_weights(best_weights)
                best = logs[SCORE], trial.number, trial.params
            trial.report(logs[SCORE], epoch + 1)
            model.stop_training |= trial.should_prune()

        history = model.fit(
            train,
            validation_data=validation,
            epochs=task.arguments.epochs,
            shuffle=False,
            verbose=0,
            callbacks=[
                task.score(),
                watch,
                keras.callbacks.LambdaCallback(on_epoch_end=report),
            ],
        )
        scores = history.history.get(SCORE)
        if not scores or trial.should_prune():
            raise optuna.TrialPruned
        return max(scores)

    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=task.seed),
        pruner=optuna.pruners.SuccessiveHalvingPruner(),
    )
    study.optimize(objective, timeout=seconds)
    _, number, chosen = best
    if number is None:
        return None, watch.curve, len(study.trials), {}
    model = build(Suggestions(optuna.trial.FixedTrial(chosen)))
    model.load_weights(best_weights)
    return model, watch.curve, len(study.trials), chosen


def best_so_far(curve):
    """Keeps each (seconds, score) that was better than all before."""
    best = []
    for seconds, score in sorted(curve):
        if not best or score > best[-1][1]:
            best.append((seconds, score))
    return best


if __name__ == "__main__":
    main()
