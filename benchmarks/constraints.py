"""What do phrases that must occur cost, and do they all occur?

    python -m benchmarks.constraints --translator FILE.keras --data-dir DIRECTORY

The first lines of Multi30k's validation part are translated with beams: without
constraints, and with random words of each reference as constraints. Only whole words
count as present. Seconds are processor time of all threads, the median over the rounds.
Each round runs all searches in turn; a first one, which compiles, does not count.
"""

import re
import statistics
import time

import numpy as np

from benchmarks import rounds

MODULE = "benchmarks.constraints"


def main():
    arguments = parse()
    import sacrebleu

    from keras_seqattn import Translator, decoding, text

    translator = Translator.load(arguments.translator)
    sources, references = (
        side[: arguments.count]
        for side in text.load_parallel(
            "multi30k", "en", "de", split="val", data_dir=arguments.data_dir
        )
    )
    search = decoding.BeamSearch(width=arguments.width)
    wanted = {count: drawn(references, count) for count in (0, *arguments.words)}
    seconds = {count: [] for count in wanted}
    texts = {}
    for number in range(arguments.rounds + 1):
        for count, words in wanted.items():
            start = time.process_time()
            found = translator.translate(
                sources, search, constraints=words if count else None
            )
            if number:
                seconds[count].append(time.process_time() - start)
            texts[count] = [pairs[0][0] for pairs in found]
    measures = []
    for count, words in wanted.items():
        plain = zip(seconds[0], seconds[count], strict=True)
        measure = {
            "words": count,
            "lines": len(sources),
            "all_present": sum(map(holds, texts[count], words)),
            "all_present_plainly": sum(map(holds, texts[0], words)),
            "bleu": sacrebleu.BLEU().corpus_score(texts[count], [references]).score,
            "seconds": statistics.median(seconds[count]),
            "speed": statistics.median(x / y for x, y in plain),
        }
        measures.append(measure)
        rounds.show(measure, arguments)
    rounds.publish(MODULE, measures, [as_table(measures)], arguments)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    rounds.add_translator_options(parser)
    parser.add_argument("--count", type=rounds.count, default=1000, help="first lines")
    parser.add_argument("--width", type=rounds.count, default=5)
    words = "numbers of words a line, each measured by itself"
    parser.add_argument(
        "--words", type=rounds.count, nargs="+", default=[1, 2, 4], help=words
    )
    rounds.add_options(parser)
    return parser.parse_args()


def drawn(references, count):
    """Draws `count` words of more than 3 letters from each line, or all it has."""
    rng = np.random.default_rng(0)
    found = [sorted(set(re.findall(r"\w{4,}", line))) for line in references]
    return [
        rng.choice(words, min(count, len(words)), replace=False).tolist()
        for words in found
    ]


def holds(text, words):
    """Returns whether a text has all of some words, as whole words."""
    return all(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) for word in words)


def as_table(measures):
    header = "words a line", "lines with all", "without constraints", "BLEU", "speed"
    rows = [
        (
            m["words"] or "none",
            f"{m['all_present']:,} of {m['lines']:,}" if m["words"] else "",
            f"{m['all_present_plainly']:,}" if m["words"] else "",
            f"{m['bleu']:.2f}",
            f"{m['speed']:.2f}",
        )
        for m in measures
    ]
    return rounds.table(header, rows)


if __name__ == "__main__":
    main()
