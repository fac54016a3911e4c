"""Tunes hyperparameters on several machines: one chief, any number of workers.

All run this same script, with KerasTuner's own three environment variables, on a folder
that all machines share. On one machine, the chief, which trains nothing:

    export KERASTUNER_ORACLE_IP=10.0.0.1 KERASTUNER_ORACLE_PORT=8000
    KERASTUNER_TUNER_ID=chief python examples/distributed_tuning.py /shared/study

and on each of the others, once for each of its devices:

    export KERASTUNER_ORACLE_IP=10.0.0.1 KERASTUNER_ORACLE_PORT=8000
    KERASTUNER_TUNER_ID=worker0 python examples/distributed_tuning.py /shared/study

Choose a different name for each worker; the chief's must contain "chief". If a worker
has no heartbeat for a minute, another takes over its trial from the last epoch. The
chief ends when the study does: it prints the table of trials, and draws `study.png` in
the folder. After any failure, the same commands resume the study. The chief's port is
open to whoever can reach it: keep it in a private network.

On one machine `tune_translation(..., workers=4)` does all this by itself. It needs
`pip install ".[tensorflow,text,score,corpora,plot,tuning]"`.
"""

import argparse
import os
import pathlib
import sys

from options import amount, count, installed

LATER = "babel", "keras_tuner", "matplotlib", "pandas", "sentencepiece"
with installed(__doc__, *LATER):
    import keras_seqattn as ks

VARIABLES = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=pathlib.Path, help="folder that all share")
    minutes = "of the whole study; default: 60"
    parser.add_argument("--minutes", type=amount, default=60.0, help=minutes)
    parser.add_argument("--max-trials", type=count, help="default: no limit")
    args = parser.parse_args()
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing:
        sys.exit(f"Set {', '.join(missing)} first: see --help.")

    # Every process makes the same call; the variables tell each one its role.
    study = ks.tuning.tune_translation(
        ks.text.load_parallel("phrases", "en", "de", split="train"),
        ks.text.load_parallel("phrases", "en", "de", split="val"),
        directory=args.study,
        max_seconds=60 * args.minutes,
        max_trials=args.max_trials,
        vocabulary_size=1000,
        batch_tokens=2048,
        bucket_lengths=(8, 12, 16, 32),
    )
    if "chief" in os.environ["KERASTUNER_TUNER_ID"]:
        print(study.table().to_string(index=False))
        study.plot(args.study / "study.png")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nStopped. The same command goes on after the last finished epoch.")
