"""Shared by the examples: what is not installed, options that are numbers, printing."""

import argparse
import contextlib
import importlib
import os
import re
import sys


@contextlib.contextmanager
def installed(doc, *later):
    """Ends the program if an import fails or, as it takes seconds, is interrupted.

    The package is imported before Keras, since it says what to do without a backend.

    Args:
        doc: Text that holds the command that installs all.
        *later: Names of modules that the program imports later, perhaps after hours
            of work. They are imported now too, so that a missing one is told at once.
    """
    try:
        importlib.import_module("keras_seqattn")
        yield
        for name in later:
            importlib.import_module(name)
    except ModuleNotFoundError as error:
        command = re.search(r"`(pip install .*?)`", doc)[1]
        backend = os.environ.get("KERAS_BACKEND")
        if backend in ("jax", "torch"):
            command = command.replace("[tensorflow", f"[{backend}")
        sys.exit(f"{error}. Run this in a clone of the repository: {command}")
    except KeyboardInterrupt:
        sys.exit("\nStopped.")


def print_all_scripts():
    """Lets `print` write "?" for a letter that the output's encoding does not have."""
    if hasattr(sys.stdout, "reconfigure"):  # not in a notebook
        sys.stdout.reconfigure(errors="replace")


def count(text):
    """Reads a positive integer."""
    return _read(int, text, lambda number: number > 0, "a positive integer")


def seed(text):
    """Reads an integer from 0 to 2**31 - 1; a teacher adds its number to it."""
    wanted = f"an integer from 0 to {2**31 - 1}"
    return _read(int, text, lambda number: 0 <= number < 2**31, wanted)


def amount(text):
    """Reads a positive number."""
    return _read(float, text, lambda number: number > 0, "a positive number")


def _read(kind, text, fits, wanted):
    with contextlib.suppress(ValueError):
        if fits(number := kind(text)):
            return number
    raise argparse.ArgumentTypeError(f"must be {wanted}. Received: {text}")
