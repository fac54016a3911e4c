"""Shared by the examples: options that are positive numbers."""

import argparse


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
