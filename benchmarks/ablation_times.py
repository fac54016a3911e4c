"""How long does an epoch of each row of the ablation take?

    python -m benchmarks.ablation_times --data-dir DIRECTORY
    python -m benchmarks.ablation_times --pairs 300 --rows averaging heads-1  # a try

The rows of `benchmarks.ablations` are trained at different times, often beside other
work, so their minutes say little. Here all rows are in one process, and each round
trains a few steps of each in turn, on batches of one length. The time of an epoch is
that of a step times the number of steps, without making the batches; its ratio to that
of `averaging`, the unchanged recipe, is taken between measures of one round. Seconds
are processor time of all threads, which other work on the machine changes less than
wall time.
"""

import itertools
import statistics
import time

from benchmarks import ablations, rounds
from benchmarks.tuning import add_corpus_options

MODULE = "benchmarks.ablation_times"
ROWS, AVERAGED = ablations.ROWS, ablations.AVERAGED
# All steps are on batches of one length; few pairs are longer.
STEPS, LENGTH, LONGEST = 4, 24, 64


def main():
    arguments = parse()
    train = ablations.load(arguments, "train")
    names = list(dict.fromkeys([AVERAGED, *arguments.rows]))
    epochs = {name: make_epoch(name, train, arguments) for name in names}
    measures = []
    for number in range(1, 1 + arguments.rounds):
        seconds = {name: round(epoch(), 3) for name, epoch in epochs.items()}
        measures.append({"round": number, **seconds})
        rounds.note(f"round {number} of {arguments.rounds}")
        rounds.show(measures[-1], arguments)
    rounds.publish(MODULE, measures, [report(names, measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add_corpus_options(parser)
    add("--rows", nargs="+", choices=ROWS, default=[*ROWS], help="default: all")
    rounds.add_options(parser, default_rounds=7)
    return parser.parse_args()


def make_epoch(name, train, arguments):
    """Compiles a row's step; returns a function that estimates an epoch's seconds."""
    recipe = ablations.recipe_of(name, ablations.EPOCHS, (LENGTH, LONGEST))
    _, batches, model = ablations.prepare(recipe, train)
    full = (batch for batch in batches if batch[1].shape[1] == LENGTH)
    some = list(itertools.islice(full, STEPS))
    rounds.note(f"{name}: {len(batches)} steps an epoch")

    def train_some():
        for x, y in some:
            model.train_on_batch(x, y)

    for _ in range(2):  # The second time, the optimizer's variables exist already.
        train_some()

    def epoch():
        start = time.process_time()
        train_some()
        return (time.process_time() - start) / len(some) * len(batches)

    return epoch


def report(names, measures):
    """Formats a row for each row: how long its epoch takes, and against `averaging`."""
    rows = []
    for name in names:
        ratios = [measure[name] / measure[AVERAGED] for measure in measures]
        low, high = min(ratios), max(ratios)
        rows.append([name, f"{statistics.median(ratios):.2f}", f"{low:.2f}-{high:.2f}"])
    return rounds.table(["Row", f"an epoch / `{AVERAGED}`", "range"], rows)


if __name__ == "__main__":
    main()
