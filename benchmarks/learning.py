"""How soon does a model trained on Multi30k en-de reach a given BLEU?

The systems are those of `benchmarks.multi30k`: one model, one tokenizer and one Adam,
with our layers, loss and batches or with those of the keras.io guide. The clock runs
while `fit` does. After each epoch it stops, and the model translates all of `val`
greedily: ours by `Translator`, KerasHub's by its own sampler and caches. The score is
sacreBLEU's BLEU. The systems train one after the other, each with the whole machine.

    python -m benchmarks.learning --data-dir DIRECTORY
    python -m benchmarks.learning --data-dir DIRECTORY --until 20 --minutes 10
"""

import numpy as np

from benchmarks import multi30k, pictures, rounds
from benchmarks.shapes import END_ID

MODULE = "benchmarks.learning"
SYSTEMS = ("ours", "kerashub-fixed")
COLOURS = {"ours": "#2563eb", "kerashub-fixed": "#d97706"}
BATCH_SIZE = 64


def main():
    arguments = parse()
    if arguments.worker:
        work(arguments.system, arguments.data_dir)
        return
    measures = [row for system in arguments.systems for row in learn(system, arguments)]
    rounds.publish(MODULE, measures, [report(measures, arguments.until)], arguments)
    if arguments.picture:
        draw(measures, arguments.until).savefig(arguments.picture, dpi=150)


def parse():
    parser = rounds.make_parser(MODULE, __doc__)
    add = parser.add_argument
    add("--data-dir", help="folder with Multi30k's files; else downloaded")
    add("--until", type=float, default=25.0, help="BLEU at which training ends")
    add("--minutes", type=float, default=30.0, help="of training at most, each")
    add("--picture", type=rounds.new_file, help="file for the curves of BLEU, as PNG")
    rounds.add_output_options(parser)
    rounds.add_worker_options(parser, SYSTEMS)
    return parser.parse_args()


def learn(system, arguments):
    """Trains one system until it is good enough; prints, returns a dict per epoch."""
    options = ["--data-dir", arguments.data_dir] if arguments.data_dir else []
    workers = rounds.start(MODULE, [system], options)
    measures = []
    for worker in workers.values():
        seconds, bleu = worker.ready["first_steps_s"], 0.0
        while bleu < arguments.until and seconds < 60 * arguments.minutes:
            answer = worker.measure(1)
            seconds, bleu = seconds + answer["epoch_s"], answer["bleu"]
            measures.append(
                dict(system=system, epoch=len(measures) + 1, seconds=seconds, **answer)
            )
            rounds.note(f"{system}: BLEU {bleu:.1f} after {seconds / 60:.1f} min")
            rounds.show(measures[-1], arguments)
        worker.close()
    return measures


def report(measures, until):
    """Formats the table of the systems, and how much longer the slower one takes."""
    last = {row["system"]: row for row in measures}
    rows = [
        [system, row["epoch"], f"{row['seconds'] / 60:.1f}", f"{row['bleu']:.1f}"]
        for system, row in last.items()
    ]
    table = rounds.table(["Multi30k en-de", "epochs", "minutes", "val BLEU"], rows)
    if any(system not in last or last[system]["bleu"] < until for system in SYSTEMS):
        return table
    ours, theirs = (last[system]["seconds"] for system in SYSTEMS)
    times = f"{theirs / ours:.2f} times as long as ours"
    return f"{table}\n\nTo a BLEU of {until:g}, {SYSTEMS[1]} takes {times}."


def draw(measures, until):
    """Draws BLEU over the minutes of training, a line for each system."""
    figure, panel = pictures.begin()
    for system, own in rounds.grouped(measures).items():
        points = [(m["seconds"] / 60, m["bleu"]) for m in own]
        panel.plot(
            *zip((0.0, 0.0), *points, strict=True),
            marker="o",
            markersize=3,
            color=COLOURS[system],
            label=system,
        )
    panel.axhline(until, color="#94a3b8", linestyle="--", linewidth=1)
    panel.set_xlabel("minutes of training, compilation included")
    panel.set_ylabel("BLEU of val")
    panel.legend(frameon=False)
    return figure


def work(system, data_dir):
    """Trains one system in this process, an epoch for each line of stdin."""
    import sacrebleu

    from benchmarks import peers
    from keras_seqattn.text import load_parallel

    run = multi30k.prepare(system, data_dir)
    sources, references = load_parallel(
        "multi30k", "en", "de", split="val", data_dir=data_dir
    )
    translate = TRANSLATORS[system](run)

    def answer(_):
        seconds, loss = peers.timed_fit(run.model, run.data)
        bleu = sacrebleu.corpus_bleu(translate(sources), [references])
        return dict(epoch_s=seconds, loss=loss, bleu=bleu.score)

    rounds.serve(dict(first_steps_s=run.first_steps_s), answer)


def ours(run):
    """Returns a function that translates lines by the model as it is at the time."""
    from keras_seqattn import Translator

    return Translator(run.model, run.tokenizer)


def keras_hub(run):
    """Returns the same for KerasHub's layers, with their caches and greedy sampler."""
    import tensorflow as tf

    from benchmarks.decoding_peers import KerasHubTranslation
    from keras_seqattn.decoding.hypotheses import SpecialTokens, hypotheses
    from keras_seqattn.scheduling.static import fill_batch, in_batches

    cached = KerasHubTranslation(run.shape)
    generate = tf.function(lambda ids: cached.generate(ids, 1, (END_ID,)))

    def translate(lines):
        cached.take_weights(run.model)
        source_ids = multi30k.packed(run.tokenizer, tf.constant(lines)).numpy()
        batches = [
            fill_batch(x, BATCH_SIZE) for x in in_batches(source_ids, BATCH_SIZE)
        ]
        found = [generate(tf.constant(batch)).numpy()[:, None, 1:] for batch in batches]
        found = np.concatenate(found)[: len(lines)]
        found = hypotheses(found, np.zeros(found.shape[:2]), SpecialTokens())
        return run.tokenizer.detokenize([found.sequence(i) for i in range(len(lines))])

    return translate


TRANSLATORS = {"ours": ours, "kerashub-fixed": keras_hub}


if __name__ == "__main__":
    main()
