"""Shared by the examples: what is not installed, options that are numbers, printing."""

import argparse
import contextlib
import re
import sys


@contextlib.contextmanager
def installed(doc):
    """Ends the program if an import fails or, as it takes seconds, is interrupted.

    `doc` holds the command that installs all.
    The package is imported before Keras, since it says what to do without a backend.
    """
    try:
        import keras_seqattn  # noqa: F401

        yield
    except ModuleNotFoundError as error:
        command = re.search(r"`(pip install .*?)`", doc)[1]
        sys.exit(f"{error}. Run this in a clone of the repository: {command}")
    except KeyboardInterrupt:
        sys.exit("\nStopped.")


def print_all_scripts():
    """Lets `print` write "?" for a letter that the output's encoding does not have."""
    if hasattr(sys.stdout, "reconfigure"):  # not in a notebook
        sys.stdout.reconfigure(errors="replace")


def count(text):
    """Reads a positive integer."""
    return _positive(int, text, "a positive integer")


def amount(text):
    """Reads a positive number."""
    return _positive(float, text, "a positive number")


def _positive(kind, text, wanted):
    try:
        number = kind(text)
    except ValueError:
        number = 0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be {wanted}. Received: {text}")
    return number
