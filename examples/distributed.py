"""Trains a translator on several devices, in one process or in many.

It trains the recipe `smoke` (or `--preset default`) on the built-in corpus `phrases`,
English to German. Process 0 writes all files, into `runs/distributed` or `--output`.

    python examples/distributed.py --processes 2      # all of them on this machine
    python examples/distributed.py --model-devices 2  # weights split over two devices

The second command needs two devices. Without a GPU, set the environment variable
`XLA_FLAGS=--xla_force_host_platform_device_count=2`.

On several machines, each runs the same command with its own number. The coordinator is
the address of process 0:

    python examples/distributed.py --processes 2 --process 0 --coordinator 10.0.0.1:1234
    python examples/distributed.py --processes 2 --process 1 --coordinator 10.0.0.1:1234

If one process dies, all end. The same command resumes from the last save, also with a
different number of processes, and the loss curve stays the same as with one process.
The processes trust each other: keep the port in a private network. It needs
`pip install ".[jax,text,score,corpora]"`.
"""

import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

os.environ["KERAS_BACKEND"] = "jax"

from options import count, installed, seed

with installed(__doc__, "babel", "sacrebleu", "sentencepiece"):
    import jax
    import keras
    from jax.experimental import multihost_utils
    from outputs import alone, claim

    import keras_seqattn as ks

# A process without a heartbeat for SILENCE seconds counts as dead. At the end, the
# others wait for it for PATIENCE seconds.
SILENCE, PATIENCE = 20, 30
# What a run writes beside `run.json`.
WRITTEN = ("backup", "history.csv", "curve.csv", "translator.keras")


def main():
    args = arguments()
    if args.process in (None, 0):
        claim_output(args)
    if args.processes > 1 and args.process is None:
        sys.exit(launch(args.processes))
    if args.processes > 1:
        jax.distributed.initialize(
            args.coordinator,
            args.processes,
            args.process,
            heartbeat_timeout_seconds=SILENCE,
            shutdown_timeout_seconds=PATIENCE,
        )
    keras.utils.set_random_seed(args.seed)  # The same weights in all processes.
    train(args)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--processes", type=count, default=1, help="in all; default: 1")
    add("--process", type=int, help="number of this one, from 0; default: start all")
    add("--coordinator", help="address and port of the first process, HOST:PORT")
    add("--model-devices", type=int, default=1, help="that share one model's weights")
    add("--preset", choices=("smoke", "default"), default="smoke")
    add("--pairs", type=count, help="number of pairs to train on; default: all")
    add("--epochs", type=count, help="default: the preset's")
    every = "batches from save to save; default: 50"
    add("--every", type=count, default=50, help=every)
    rows = "rows of a batch are a multiple of it, best that of the devices; default: 4"
    add("--rows-multiple", type=count, default=4, help=rows)
    add("--seed", type=seed, default=0)
    folder = pathlib.Path("runs", "distributed")
    output = "folder of process 0; default: runs/distributed"
    add("--output", type=pathlib.Path, default=folder, help=output)
    args = parser.parse_args()
    if (args.process is None) != (args.coordinator is None):
        parser.error("`process` and `coordinator` must come together.")
    if args.process is not None and not 0 <= args.process < args.processes:
        parser.error(f"`process` must be from 0 to {args.processes - 1}.")
    return args


def claim_output(args):
    """Claims the output folder for this run; exits if it is another run's."""
    names = ("preset", "pairs", "rows_multiple", "seed")
    run = {name: getattr(args, name) for name in names}
    claim(args.output, run, WRITTEN)


def launch(count):
    """Runs all processes on this machine; returns 0, or why one of them ended."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    command = [sys.executable, *sys.argv, "--coordinator", address, "--process"]
    running = [subprocess.Popen([*command, str(i)]) for i in range(count)]
    try:
        while not any(process.poll() for process in running):
            if all(process.poll() == 0 for process in running):
                return 0
            time.sleep(0.1)
        number = next(i for i, process in enumerate(running) if process.poll())
        return f"Process {number} {how_it_ended(running[number])}: all of them end."
    finally:
        for process in running:
            process.kill()
            process.wait()


def how_it_ended(process):
    if process.returncode < 0:
        return f"was ended by {signal.Signals(-process.returncode).name}"
    return f"ended with an error, exit status {process.returncode}"


def set_distribution(model_devices):
    """Splits each batch over all devices of all processes, or over groups of them."""
    devices = keras.distribution.list_devices()
    if model_devices < 1 or len(devices) % model_devices:
        sys.exit(
            "`--model-devices` must be positive and divide the number of devices. "
            f"Received: --model-devices={model_devices}, with {len(devices)} devices."
        )
    # Not sharded by Keras: `ks.training.distribute` divides the batches.
    if model_devices == 1:
        distribution = keras.distribution.DataParallel(
            devices=devices, auto_shard_dataset=False
        )
    else:
        mesh = keras.distribution.DeviceMesh(
            (len(devices) // model_devices, model_devices), ("batch", "model"), devices
        )
        distribution = keras.distribution.ModelParallel(
            layout_map=ks.training.layout_map(mesh), auto_shard_dataset=False
        )
    keras.distribution.set_distribution(distribution)


def train(args):
    """Trains on all devices of all processes, and saves the translator."""
    set_distribution(args.model_devices)
    recipe = ks.recipes.RECIPES[args.preset]
    pairs = ks.text.load_parallel("phrases", "en", "de", split="train")
    sources, targets = (lines[: args.pairs] for lines in pairs)
    val_sources, val_targets = (
        lines[:100] for lines in ks.text.load_parallel("phrases", "en", "de", "val")
    )
    # The same lines give the same tokenizer in all processes.
    lines = [*sources, *targets]
    tokenizer = ks.text.SentencePieceTokenizer.train(
        lines, recipe.vocabulary_size, strict=False
    )
    sizes = {
        "batch_tokens": recipe.batch_tokens,
        "bucket_lengths": recipe.bucket_lengths[-1:],  # One program to compile.
        "rows_multiple": args.rows_multiple,
    }
    training = ks.text.translation_batches(
        sources, targets, tokenizer, seed=args.seed, **sizes
    )
    validation = ks.text.translation_batches(
        val_sources, val_targets, tokenizer, shuffle=False, **sizes
    )
    training, validation = map(ks.training.distribute, (training, validation))
    model = recipe.make_model(
        tokenizer.vocabulary_size, metrics=[BatchCrossentropy(name="crossentropy")]
    )
    first = jax.process_index() == 0
    args.output.mkdir(parents=True, exist_ok=True)
    curve = args.output / "curve.csv"
    # Keras cannot swap weights that are split over processes: then without averages.
    holds_all_weights = jax.local_device_count() % args.model_devices == 0
    averages = [keras.callbacks.SwapEMAWeights()] if holds_all_weights else []
    writers = [Curve(curve)] if first else []
    if first:
        history = args.output / "history.csv"
        writers.append(keras.callbacks.CSVLogger(history, append=True))
    callbacks = [
        *averages,
        ks.training.TranslationScore(val_sources, val_targets, tokenizer),
        *writers,
        ks.training.Resume(
            args.output / "backup", training, every=args.every, files=[curve]
        ),
    ]
    with alone():
        model.fit(
            training,
            validation_data=validation,
            epochs=args.epochs or recipe.epochs,
            shuffle=False,
            verbose=2 if first else 0,
            callbacks=callbacks,
        )
    save(args, recipe, model, tokenizer)


def save(args, recipe, model, tokenizer):
    """Gathers the weights from all processes; the first one saves the translator."""
    weights = multihost_utils.process_allgather(
        [weight.value for weight in model.weights], tiled=True
    )
    if jax.process_index() == 0:
        keras.distribution.set_distribution(None)
        model = recipe.make_model(tokenizer.vocabulary_size)
        model.set_weights(weights)
        ks.Translator(model, tokenizer).save(args.output / "translator.keras")
        print(f"In {args.output}: translator.keras, history.csv, curve.csv")


class BatchCrossentropy(ks.training.TokenCrossentropy):
    """The crossentropy of only the latest batch, over all devices."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Forgets the previous batches."""
        self.reset_state()
        super().update_state(y_true, y_pred, sample_weight)


class Curve(keras.callbacks.Callback):
    """Writes the crossentropy of each batch as a line of a file."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_begin(self, epoch, logs=None):
        """Remembers the epoch, which `on_train_batch_end` is not given."""
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        """Adds a line, and closes the file, so that a kill loses nothing."""
        if not logs:  # a batch that `Resume` skips
            return
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{self.epoch},{batch},{float(logs['crossentropy']):.9g}\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command goes on after the last save.")
