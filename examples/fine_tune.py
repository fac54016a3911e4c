"""Fine-tunes a trained model in Hugging Face's format on your own lines.

    python examples/fine_tune.py FOLDER --train train.tsv --val val.tsv
    python examples/fine_tune.py FOLDER --train train.tsv --val val.tsv --lora 16

FOLDER holds a Marian (opus-mt), M2M-100, NLLB, mBART-50, T5 or mT5 model, with
`model.safetensors`. A TSV file has a source, a tab and its translation in each line;
.gz is read too. Of more columns, choose two by `--columns`. NLLB needs
`--source eng_Latn --target deu_Latn`, M2M-100 `en` and `de`, mBART-50 `en_XX` and
`de_DE`, a Marian model of several target languages `--target deu`. For T5,
`--target "translate English to German: "` is put before each line.
docs/how_to/fine_tune.md says how to download a model.

`--train "<de>=de.tsv" "<fr>=fr.tsv"`, and the same for `--val`, make one multilingual
model: the tag and a space are put before each source line in training. Put them also
before the lines that you translate later.

It scores the validation lines before and after, and writes `translator.keras`, which
`Translator.load` and `examples/translate_file.py` read. You can stop or kill it at any
time: the same command resumes after the last finished epoch. It needs
`pip install ".[tensorflow,text,score]"`.
"""

import argparse
import hashlib
import json
import math
import pathlib
import sys

from options import amount, count, installed, seed

with installed(__doc__):
    import corpora
    import keras
    import sacrebleu
    from outputs import alone, claim

    import keras_seqattn as ks
    from keras_seqattn.files import replacing

BUCKETS = (16, 32, 64, 128, 256)
# What a run writes beside `run.json`.
WRITTEN = ("backup", "before.json", "history.csv", "translator.keras", "scores.json")


def main():
    args = arguments()
    keras.utils.set_random_seed(args.seed)
    claim_output(args)
    saved = args.output / "translator.keras"
    validation = read(args, args.val)
    if not saved.exists():
        translator = load(args)
        with alone():
            fit(args, translator, validation)
        translator.save(saved)
    scores = {
        "before": json.loads((args.output / "before.json").read_text()),
        "after": score(ks.Translator.load(saved), validation),
    }
    (args.output / "scores.json").write_text(json.dumps(scores, indent=2))
    print(
        f"{json.dumps(scores, indent=2)}\nIn {args.output}: {saved.name}, scores.json"
    )


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=pathlib.Path, help="config.json, safetensors and tokenizer")
    files = {"nargs": "+", "required": True, "metavar": "[TAG=]FILE"}
    add("--train", help="TSV file, or several with a tag each", **files)
    add("--val", help="the same, scored before and after", **files)
    corpora.add_columns(parser)
    add("--source", help="the source's language, as the model calls it")
    add("--target", help="the target's; T5: text before each line")
    add("--lora", type=count, metavar="RANK", help="train LoRA alone; default: all")
    add("--learning-rate", type=amount, help="default: 5e-5, with --lora 5e-4")
    add("--epochs", type=count, default=3, help="default: 3")
    positions = "most positions of a batch; default: 4096"
    add("--batch-tokens", type=count, default=4096, help=positions)
    repeats = "above 1 repeats smaller files; default: 1"
    add("--temperature", type=float, default=1.0, help=repeats)
    add("--seed", type=seed, default=0)
    add("--output", type=pathlib.Path, help="default: a folder of its own in runs/")
    args = parser.parse_args()
    for split in ("train", "val"):
        try:
            setattr(args, split, files_of(getattr(args, split)))
        except ValueError as error:
            parser.error(f"`{split}` must be {error}")
    if args.train.keys() != args.val.keys():
        tags = f"{[*args.val]}, where --train has {[*args.train]}"
        parser.error(f"`val` must have the tags of --train. Received: {tags}")
    if args.learning_rate is None:
        args.learning_rate = 5e-5 if args.lora is None else 5e-4
    args.output = args.output or pathlib.Path("runs", f"{args.folder.name}-fine-tuned")
    return args


def files_of(given):
    """Returns a dict from tags to files; without tags, one file under None.

    Raises a `ValueError` of what the option must be, to follow its name.
    """
    found = {}
    for text in given:
        tag, equals, name = text.rpartition("=")
        if not equals or pathlib.Path(text).is_file():  # A name may hold "=".
            tag, name = None, text
        path = pathlib.Path(name)
        if not path.is_file() or tag == "":
            raise ValueError(f"a file. Received: {text}")
        if tag in found or (None in {tag, *found} and len(given) > 1):
            raise ValueError(f"one file, or TAG=FILE of several. Received: {given}")
        found[tag] = path
    return found


def claim_output(args):
    """Claims the output folder for this run; exits if it is another run's."""
    run = {name: value for name, value in vars(args).items() if name != "output"}
    run["header"] = args.header or None  # as in runs of before there was the option
    run["folder"] = str(args.folder.resolve())
    for split in ("train", "val"):
        run[split] = [
            [tag, hashlib.sha256(path.read_bytes()).hexdigest()]
            for tag, path in getattr(args, split).items()
        ]
    claim(args.output, run, WRITTEN)


def load(args):
    try:
        return ks.convert.translator_from_huggingface(
            args.folder, args.source, args.target
        )
    except ValueError as error:
        sys.exit(str(error))


def read(args, files):
    """Reads the files: two lists of lines, or two dicts of them by tag."""
    options = {"columns": args.columns, "header": args.header, "skip_empty": True}
    try:
        pairs = {tag: ks.text.read_tsv(path, **options) for tag, path in files.items()}
    except ValueError as error:
        sys.exit(f"{error}{corpora.advice(error, args.columns)}")
    for tag, path in files.items():
        print(f"{path}: {pairs[tag].report}")
    if None in pairs:
        return pairs[None]
    return tuple({tag: pair[side] for tag, pair in pairs.items()} for side in (0, 1))


def fit(args, translator, validation):
    """Scores the given model, then trains it, from the backup if there is one."""
    model = translator.model
    if args.lora is not None:
        ks.training.enable_lora(model, rank=args.lora)
    trained = sum(math.prod(weight.shape) for weight in model.trainable_variables)
    print(f"{trained:,} of {model.count_params():,} weights are trained.")
    limit = model.max_length or BUCKETS[-1]
    options = {
        "source_tokenizer": translator.source_tokenizer,
        "target_tokenizer": translator.target_tokenizer,
        "batch_tokens": args.batch_tokens,
        "bucket_lengths": [n for n in BUCKETS if n <= limit] or [limit],
        "seed": args.seed,
    }
    train = read(args, args.train)
    if None in args.train:
        corpora.warn_of_shared("val", set(zip(*train, strict=True)), validation)
    try:
        training = ks.text.translation_batches(
            *train, temperature=args.temperature, **options
        )
        validating = ks.text.translation_batches(*validation, shuffle=False, **options)
    except ValueError as error:  # a wrong option, or lines that are all too long
        sys.exit(str(error))
    model.compile(
        ks.training.Adam(args.learning_rate),
        ks.training.MaskedCrossentropy(label_smoothing=0.1, pad_id=model.pad_id),
        metrics=[ks.training.Perplexity(pad_id=model.pad_id)],
    )
    before = args.output / "before.json"
    if not before.exists():  # A resumed run was scored before.
        # New LoRA factors add exactly zero: these are the given model's scores.
        scores = score(translator, validation)
        with replacing(before) as unfinished:
            unfinished.write_text(json.dumps(scores))
    model.fit(
        training,
        validation_data=validating,
        epochs=args.epochs,
        shuffle=False,  # The batches come shuffled.
        callbacks=[
            ks.training.TerminateOnDivergence(raise_error=True),
            keras.callbacks.CSVLogger(args.output / "history.csv", append=True),
            ks.training.Resume(args.output / "backup", training),
        ],
    )


def score(translator, pairs):
    """Returns a dict from each corpus's tag to BLEU and chrF of its translations."""
    sources, references = pairs
    if not isinstance(sources, dict):
        sources, references = {"": sources}, {"": references}
    scores = {}
    for tag, lines in sources.items():
        translations = translator([f"{tag} {line}" if tag else line for line in lines])
        found = (
            sacrebleu.corpus_bleu(translations, [references[tag]]),
            sacrebleu.corpus_chrf(translations, [references[tag]]),
        )
        bleu, chrf = (round(each.score, 2) for each in found)
        scores[tag or "all"] = {"bleu": bleu, "chrf": chrf}
    return scores


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command goes on after the last finished epoch.")
