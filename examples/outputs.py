"""Shared by the examples that train: an output folder is new, or the same command's."""

import json
import sys

from keras_seqattn.files import replacing


def claim(folder, run, written, read=json.loads):
    """Makes a run's folder, with `run.json`; exits if it holds what another run wrote.

    While there is no more than `run.json`, a command with other options may take the
    folder. Files that no command writes, such as a log, may be there before.

    Args:
        folder: Path of the folder.
        run: Dict that identifies the run, and that JSON can hold.
        written: Names of what the command writes into the folder, or deletes there.
        read: Function from the text of a `run.json` to what is compared.
    """
    if folder.is_file():
        refuse(folder, "which is a file")
    folder.mkdir(parents=True, exist_ok=True)
    path, text = folder / "run.json", json.dumps(run, indent=2)
    begun = [name for name in written if (folder / name).exists()]
    if begun and not path.exists():
        refuse(folder, f"which holds {begun[0]} but no {path.name}")
    if begun and read(path.read_text()) != read(text):
        refuse(folder, f"of another run: see {path}")
    with replacing(path) as unfinished:
        unfinished.write_text(text)


def refuse(folder, found):
    """Exits, since the folder is not this command's."""
    sys.exit(
        "`--output` must be a new folder, or that of the same command. "
        f"Received: --output={folder}, {found}."
    )
