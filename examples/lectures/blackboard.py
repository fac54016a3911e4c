"""Shared by all lectures: the folder for the pictures, and how results are shown."""

import argparse
import pathlib

import keras
import numpy as np
from matplotlib.figure import Figure


def arguments(description, **integers):
    """Reads the command line; `integers` are the defaults of further options."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, folder = parser.add_argument, pathlib.Path("runs", "lectures")
    pictures = "folder for the pictures; default: runs/lectures"
    add("--output", type=pathlib.Path, default=folder, help=pictures)
    for name, default in integers.items():
        help_text = f"number of {name}; default: {default}"
        add(f"--{name}", type=int, default=default, help=help_text)
    args = parser.parse_args()
    for name in integers:
        if getattr(args, name) < 0:
            value = getattr(args, name)
            parser.error(f"`{name}` must be at least 0. Received: {value}")
    args.output.mkdir(parents=True, exist_ok=True)
    return args


def array(tensor):
    return np.asarray(keras.ops.convert_to_numpy(tensor))


def show(label, *tensors):
    """Prints a line: a label, then all numbers of some tensors."""
    numbers = np.concatenate([array(tensor).ravel() for tensor in tensors])
    print(f"  {label}: " + "  ".join(f"{number:.8g}" for number in numbers))


def difference(left, right):
    """Returns the largest difference of two tensors."""
    return np.abs(array(left) - array(right)).max()


def panels(count, width=3.6, height=3.2):
    """Returns a figure, and its panels in a row."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def save(figure, path):
    figure.savefig(path, dpi=150)
    print(f"Picture: {path}")
