"""Tests of what all models share: `models/stacks.py`."""

import keras
import numpy as np
import pytest

from keras_seqattn import models, training


class Counted(models.EncoderModel):
    """A model that counts how often its training step is traced."""

    traced = 0

    def train_step(self, *args, **kwargs):
        self.traced += 1
        return super().train_step(*args, **kwargs)


@pytest.mark.backends("tensorflow")
def test_a_step_is_traced_once():
    """Twice, where the optimizer makes its variables while it is traced."""
    model = Counted(11, model_dim=8, num_heads=2, num_layers=1, intermediate_dim=8)
    model.compile(keras.optimizers.Adam(), training.MaskedCrossentropy())
    token_ids = np.ones((4, 3), "int32")
    model.fit(token_ids, token_ids, batch_size=2, epochs=2, verbose=0)
    assert model.traced == 1
    assert int(model.optimizer.iterations) == 4
