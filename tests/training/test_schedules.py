"""Schedules against their formulas, and inside an optimizer."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.training import InverseSquareRoot, Noam

STEPS = (0, 1, 3, 99, 100, 101, 400, 10**6)


def test_inverse_square_root_is_its_formula():
    schedule = InverseSquareRoot(peak=0.005, warmup_steps=100)
    for step in STEPS:
        rise, fall = step / 100, (100 / max(step, 1)) ** 0.5
        value = float(schedule(ops.convert_to_tensor(step, dtype="int32")))
        np.testing.assert_allclose(value, 0.005 * min(rise, fall), rtol=1e-6)


def test_noam_is_the_papers_formula_counted_from_one():
    schedule = Noam(model_dim=512, warmup_steps=100, scale=2.0)
    for step in STEPS:
        n = step + 1
        expected = 2.0 * 512**-0.5 * min(n**-0.5, n * 100**-1.5)
        value = float(schedule(ops.convert_to_tensor(step, dtype="int32")))
        np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("accumulated", [None, 2])
@pytest.mark.parametrize("schedule", [InverseSquareRoot(0.1, 3), Noam(8, 3, 0.5)])
def test_an_optimizer_follows_it_by_batches_and_saves_it(
    schedule, accumulated, tmp_path
):
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=accumulated)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    x, y = np.ones((1, 2), "float32"), np.ones((1, 1), "float32")
    for step in range(5):
        rate = float(model.optimizer.learning_rate)
        np.testing.assert_allclose(rate, float(schedule(step)), rtol=1e-6)
        model.train_on_batch(x, y)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        float(loaded.optimizer.learning_rate), float(schedule(5)), rtol=1e-6
    )


@pytest.mark.parametrize("schedule", [InverseSquareRoot(0.1, 3), Noam(8, 3, 0.5)])
def test_config_is_the_arguments(schedule):
    serialized = keras.saving.serialize_keras_object(schedule)
    assert serialized["registered_name"] == f"keras_seqattn>{type(schedule).__name__}"
    copy = keras.saving.deserialize_keras_object(serialized)
    assert type(copy) is type(schedule)
    assert copy.get_config() == schedule.get_config()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: InverseSquareRoot(0.0, 10),
            r"`peak` must be a number.*peak=0.0\.",
        ),
        (lambda: InverseSquareRoot("a", 10), r"Received: peak='a'\."),
        (lambda: InverseSquareRoot(0.1, 0), r"`warmup_steps` must.*warmup_steps=0\."),
        (lambda: InverseSquareRoot(0.1, 1.5), r"integer.*warmup_steps=1.5\."),
        (lambda: Noam(-1, 10), r"`model_dim` must be a positive integer.*=-1\."),
        (lambda: Noam(8, True), r"`warmup_steps` must.*warmup_steps=True\."),
        (lambda: Noam(8, 10, float("inf")), r"`scale` must.*scale=inf\."),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
