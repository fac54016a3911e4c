"""Trains on two devices, interrupted and resumed or not; prints the weights.

    python -m tests.training.replicas FOLDER

A process of its own: devices are counted when a backend starts.
"""

import json
import pathlib
import sys

from tests.text.replicas import make_two_devices, two_devices

make_two_devices()

from tests.training.test_resume import Interrupt, batches, fit, state  # noqa: E402


def train(folder):
    """Returns all that is trained: of a whole run, and of one that was interrupted."""

    def run(name, **options):
        # More than devices read ahead when `fit` looks at a batch, which is no pass.
        return fit(folder / name, every=2, data=batches(times=6), **options)

    with two_devices():
        whole, _ = run("whole")
        try:
            run("cut", interrupt=Interrupt(1, 3))
        except KeyboardInterrupt:
            pass
        model, history = run("cut")
    assert history.epoch == [0, 1, 2]
    return [[value.tolist() for value in state(x)] for x in (whole, model)]


if __name__ == "__main__":
    print(json.dumps(train(pathlib.Path(sys.argv[1]))))
