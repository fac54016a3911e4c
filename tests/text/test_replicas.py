"""Batches of `rows_multiple` train replicas as they train one device."""

import json
import subprocess
import sys

import numpy as np
import pytest


@pytest.mark.slow
@pytest.mark.backends("tensorflow", "jax")
@pytest.mark.parametrize(
    ("rows_multiple", "optimizer"),
    [("2", "sgd"), ("1", "sgd"), ("2", "adam"), ("2", "clipped"), ("2", "muon")],
)
def test_two_replicas_train_as_one_device(rows_multiple, optimizer):
    """Also where they do not divide the rows of a batch."""
    command = [sys.executable, "-m", "tests.text.replicas", rows_multiple, optimizer]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (losses, weights), *shared = json.loads(done.stdout.splitlines()[-1])
    assert losses.keys() == {
        *("loss", "token_crossentropy", "val_loss", "val_token_crossentropy")
    }
    for shared_losses, shared_weights in shared:
        assert shared_losses == pytest.approx(losses, rel=1e-5)
        for value, other in zip(weights, shared_weights, strict=True):
            # A step of 0.01 makes noise of a gradient that is none, as of keys' biases.
            atol = 1e-5 if optimizer == "sgd" else 2e-4
            np.testing.assert_allclose(other, value, rtol=1e-4, atol=atol)
