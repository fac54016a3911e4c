"""What does training in 16 bits lose and gain, compared with float32?

The model of one recipe is trained under each dtype policy, on the same batches in the
same order, by Adam at the recipe's rate without label smoothing or an average of the
weights, with a new seed for weights and dropout in each round. float32 itself differs
from seed to seed: a policy whose losses lie within that noise loses nothing. Every
system is a policy on a backend, and has its own process for each seed.

    python -m benchmarks.precision
    python -m benchmarks.precision --systems mixed_bfloat16-jax float32-jax --rounds 2
"""

import argparse
import os
import statistics

from benchmarks import pictures, rounds

MODULE = "benchmarks.precision"
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
SYSTEMS = tuple(
    f"{policy}-{backend}" for backend in ("tensorflow", "jax") for policy in POLICIES
)
DEFAULT_SYSTEMS = SYSTEMS[: len(POLICIES)]
# One point of a curve is the mean loss of this many steps.
POINT = 20
COLORS = ("#334155", "#c2410c", "#0e7490", "#7c3aed", "#15803d", "#be185d")


def main():
    arguments = parse()
    if arguments.worker:
        return work(arguments)
    measures = measure(arguments)
    rounds.publish(MODULE, measures, [report(measures)], arguments)
    if arguments.picture:
        draw(measures).savefig(arguments.picture, dpi=150)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    presets = ("smoke", "default", "multi30k")
    parser.add_argument("--preset", default="smoke", choices=presets, help="its recipe")
    points = f"of {POINT} steps, at least 2; default: 20"
    parser.add_argument("--points", type=rounds.count, default=20, help=points)
    parser.add_argument("--picture", type=rounds.new_file, help="file for the curves")
    rounds.add_options(parser)
    rounds.add_worker_options(parser, SYSTEMS)
    parser.set_defaults(systems=DEFAULT_SYSTEMS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.points < 2:
        parser.error("`--points` must be at least 2: the first step compiles.")
    return arguments


def measure(arguments):
    """Trains each system with each seed; prints and returns a dict for each run."""
    measures = []
    for seed in range(arguments.rounds):
        options = "--preset", arguments.preset, "--seed", seed
        for system, worker in rounds.start(MODULE, arguments.systems, options).items():
            answer = worker.measure(arguments.points)
            worker.close()
            measures.append(dict(system=system, seed=seed, **worker.ready, **answer))
            rounds.note(f"seed {seed} {system}: validation loss {answer['val_loss']}")
            rounds.show(measures[-1], arguments)
    return measures


def report(measures):
    """Formats the table of systems."""
    rows = []
    for system, runs in rounds.grouped(measures).items():
        losses = [run["val_loss"] for run in runs]
        seconds = statistics.median(run["step_s"] for run in runs)
        rows.append(
            [
                system,
                f"{statistics.mean(losses):.3f}",
                f"{min(losses):.3f}-{max(losses):.3f}",
                f"{1000 * seconds:.0f}",
            ]
        )
    header = ["system", "validation loss, mean", "range of seeds", "ms a step"]
    return rounds.table(header, rows)


def draw(measures):
    """Draws the loss of each system over the steps, a band from seed to seed."""
    figure, axes = pictures.begin()
    systems = rounds.grouped(measures).items()
    for color, (system, runs) in zip(COLORS, systems, strict=False):
        points = list(zip(*(run["losses"] for run in runs), strict=True))
        steps = [POINT * (i + 1) for i in range(len(points))]
        means = [statistics.mean(point) for point in points]
        axes.plot(steps, means, color=color, label=system)
        low, high = map(min, points), map(max, points)
        axes.fill_between(steps, [*low], [*high], color=color, alpha=0.15, lw=0)
    axes.set_xlabel("steps")
    axes.set_ylabel("training loss, nats a token")
    axes.set_yscale("log")
    axes.legend(frameon=False)
    return figure


def work(arguments):
    """Trains in this process for as many points as a line of stdin asks."""
    policy, _, backend = arguments.system.partition("-")
    os.environ["KERAS_BACKEND"] = backend
    import keras

    from benchmarks.peers import Stopwatch
    from keras_seqattn import recipes, text, training

    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(arguments.seed)
    recipe = recipes.RECIPES[arguments.preset]
    lines = text.load_parallel(recipe.corpus, "en", "de")
    tokenizer = text.SentencePieceTokenizer.train(
        [*lines[0], *lines[1]], recipe.vocabulary_size
    )

    def batches(pairs, **options):
        return text.translation_batches(
            *pairs, tokenizer, batch_tokens=recipe.batch_tokens, **options
        )

    data = batches(lines, bucket_lengths=recipe.bucket_lengths).repeat()
    validation = batches(
        text.load_parallel(recipe.corpus, "en", "de", split="val"), shuffle=False
    )
    model = recipe.make_model(tokenizer.vocabulary_size)
    schedule = training.InverseSquareRoot(recipe.learning_rate, recipe.warmup_steps)
    model.compile(
        training.Adam(schedule, beta_2=0.98),
        training.MaskedCrossentropy(),
        metrics=[training.TokenCrossentropy()],
    )

    def fit(points):
        stopwatch = Stopwatch()
        history = model.fit(
            data, steps_per_epoch=POINT, epochs=points, verbose=0, callbacks=[stopwatch]
        )
        return stopwatch.seconds, history.history["token_crossentropy"]

    first_s, losses = fit(1)

    def answer(points):
        seconds, more = fit(points - 1)
        logs = model.evaluate(validation, verbose=0, return_dict=True)
        return dict(
            losses=losses + more,
            val_loss=round(logs["token_crossentropy"], 4),
            step_s=seconds / len(more) / POINT,
            peak_mb=rounds.peak_megabytes(),
        )

    rounds.serve(dict(first_s=first_s), answer)


if __name__ == "__main__":
    main()
