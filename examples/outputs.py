"""Shared by the examples that train: an output folder is new, or the same command's."""

import contextlib
import json
import os
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
        read: Function from the text of a `run.json` to the dict that is compared.
    """
    make(folder)
    path, text = folder / "run.json", json.dumps(run, indent=2)
    # A study is the search of `tune.py`, which has no `run.json`.
    begun = [name for name in (*written, "study") if (folder / name).exists()]
    if begun and not path.exists():
        refuse(folder, f"which holds {begun[0]} but no {path.name}")
    if begun:
        old, new = read(path.read_text()), read(text)
        others = [name for name in old | new if old.get(name) != new.get(name)]
        if others:
            names = ", ".join(others[:3])
            found = f"of another run, with other {names}: see {path}"
            refuse(folder, f"{found}. Choose another folder, or delete it")
    with replacing(path) as unfinished:
        unfinished.write_text(text)


def make(folder):
    """Makes the folder; exits if it is none, or cannot be written to."""
    if folder.is_file():
        refuse(folder, "which is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        refuse(folder, f"which cannot be made: {error}")
    if not os.access(folder, os.W_OK):
        refuse(folder, "which cannot be written to")


def refuse(folder, found):
    """Exits, since the folder is not this command's."""
    sys.exit(
        "`--output` must be a new folder, or that of the same command. "
        f"Received: --output={folder}, {found}."
    )


@contextlib.contextmanager
def alone():
    """Exits if another process trains in the folder, or translates into it."""
    try:
        yield
    except ValueError as error:
        begins = ("`directory` must not be in use", "`path` must be unused by other")
        if not str(error).startswith(begins):
            raise
        sys.exit(f"{error} Wait until it has ended, or choose another --output.")
