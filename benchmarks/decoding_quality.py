"""Does beam search find what CTranslate2 finds, and is an exact stop worth its steps?

    python -m benchmarks.decoding_quality --translator FILE.keras --lines FILE

Both engines search the same lines with the same weights, in float32, with the same
width, length penalty and limit. CTranslate2 searches until `width` hypotheses have
ended. Our search does the same once (`patience=1.0`), and once searches until nothing
better can come (`patience=None`). The best hypotheses of a sentence are compared as
token ids. Where they differ, one scorer judges both: the model's own log-probability
(`model.score`), with the same length penalty.
"""

import functools
import gzip
import itertools
import pathlib
import tempfile

import numpy as np

from benchmarks import rounds
from benchmarks.decoding_file import named, read_vocabulary, source_ids

MODULE = "benchmarks.decoding_quality"
# Smaller differences of scores do not count: the engines round in different orders.
TOLERANCE = 1e-4
BATCH_SIZE = 32
PATIENCES = (1.0, None)


def main():
    arguments = parse()
    from keras_seqattn import Translator

    translator = Translator.load(arguments.translator)
    lines = read_lines(arguments.lines, arguments.count)
    sources = source_ids(translator, lines)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder, "model")
        translator.export(folder, "ctranslate2", quantization="float32")
        engine = ctranslate2(folder)
    measures = []
    for limit in arguments.limits:
        score = functools.partial(
            scored, translator.model, sources, limit, arguments.length_penalty
        )
        theirs = engine(sources, limit, arguments)
        their_scores = score(theirs)
        for patience in PATIENCES:
            ours = searched(translator.model, sources, limit, patience, arguments)
            measure = {
                "limit": limit,
                "patience": patience,
                **compared(ours, theirs, score(ours), their_scores),
            }
            measures.append(measure)
            rounds.show(measure, arguments)
    rounds.publish(MODULE, measures, [as_table(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    file = "file that Translator.save wrote"
    parser.add_argument("--translator", required=True, help=file)
    parser.add_argument("--lines", required=True, help="text file, may end in .gz")
    parser.add_argument("--count", type=rounds.count, default=500, help="first lines")
    parser.add_argument("--width", type=rounds.count, default=4)
    parser.add_argument("--length-penalty", type=float, default=1.0)
    parser.add_argument(
        "--limits",
        type=rounds.count,
        nargs="+",
        default=[64],
        help="numbers of generated tokens at most, each compared by itself",
    )
    rounds.add_output_options(parser)
    return parser.parse_args()


def read_lines(path, count):
    """Reads the first lines that are not empty."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = (line.strip() for line in file)
        return list(itertools.islice(filter(None, lines), count))


def ctranslate2(folder):
    """Loads the engine; returns a function from sources to their best token ids."""
    import ctranslate2

    engine = ctranslate2.Translator(str(folder), compute_type="float32")
    names, adds_end = read_vocabulary(folder)
    numbers = {name: number for number, name in enumerate(names)}

    def search(sources, limit, arguments):
        found = engine.translate_batch(
            named(sources, names, adds_end),
            max_batch_size=BATCH_SIZE,
            beam_size=arguments.width,
            length_penalty=arguments.length_penalty,
            patience=PATIENCES[0],
            max_decoding_length=limit,
            min_decoding_length=0,
            max_input_length=0,
        )
        return [[numbers[token] for token in one.hypotheses[0]] for one in found]

    return search


def searched(model, sources, limit, patience, arguments):
    """Returns the best token ids that our search finds for each source."""
    from keras_seqattn import decoding

    search = decoding.BeamSearch(
        arguments.width, arguments.length_penalty, patience=patience
    )
    found = decoding.generate(model, sources, search, max_length=limit)
    return [found.sequence(row) for row in range(len(sources))]


def scored(model, sources, limit, length_penalty, targets):
    """Returns the model's score of each target; one that the limit cut has no end."""
    targets = [
        [*ids, model.end_id] if len(ids) < limit else list(ids) for ids in targets
    ]
    lengths = np.array([len(ids) for ids in targets])
    return model.score(sources, targets) / lengths**length_penalty


def compared(ours, theirs, our_scores, their_scores):
    """Counts sentences with equal hypotheses, and those where ours score otherwise."""
    equal = np.array([a == b for a, b in zip(ours, theirs, strict=True)])
    gain = np.where(equal, 0.0, our_scores - their_scores)
    return {
        "sentences": len(equal),
        "equal": int(equal.sum()),
        "better": int((gain > TOLERANCE).sum()),
        "worse": int((gain < -TOLERANCE).sum()),
        "mean_gain": float(gain.mean()),
    }


def as_table(measures):
    header = ["ours / CTranslate2", "limit", "equal", "better", "worse", "mean gain"]
    rows = [
        [
            f"patience={m['patience']}",
            m["limit"],
            f"{m['equal']} of {m['sentences']}",
            m["better"],
            m["worse"],
            f"{m['mean_gain']:.4f}",
        ]
        for m in measures
    ]
    return rounds.table(header, rows)


if __name__ == "__main__":
    main()
