"""Trains on two devices, interrupted and resumed or not; prints the weights.

    python -m tests.training.replicas FOLDER

A process of its own: devices are counted when a backend starts.
"""

import json
import pathlib
import sys

from tests.text.replicas import make_two_devices, two_devices

make_two_devices()

from tests.training.test_resume import Interrupt, fit, state  # noqa: E402


def train(folder):
    """Returns all that is trained: of a whole run, and of one that was interrupted."""
    with two_devices():
        whole, _ = fit(folder / "whole", every=2)
        try:
            fit(folder / "cut", every=2, interrupt=Interrupt(1, 3))
        except KeyboardInterrupt:
            pass
        model, history = fit(folder / "cut", every=2)
    assert history.epoch == [0, 1, 2]
    return [[value.tolist() for value in state(x)] for x in (whole, model)]


if __name__ == "__main__":
    print(json.dumps(train(pathlib.Path(sys.argv[1]))))
