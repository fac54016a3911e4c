"""What every test stands on: quiet backends, fixed seeds, float32, no warnings."""

import os
import pathlib

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / ".pytest_cache" / "jax"

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Uncompiled, JAX compiles each operation for each shape: most of the tests' time. The
# processes of a run share what they compile, and later runs find it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error:::keras_seqattn")
    # Keras 3.15.1 reads a variable as NumPy in a way that NumPy 2 deprecates.
    config.addinivalue_line("filterwarnings", "ignore:__array__ implementation")


def pytest_runtest_setup(item):
    for marker in item.iter_markers("backends"):
        if keras.backend.backend() not in marker.args:
            pytest.skip(f"once, on {' and '.join(marker.args)}, is enough")


def pytest_report_header():
    return f"keras {keras.__version__} on {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def fixed_ground():
    """Starts every test from one seed and in float32, whatever ran before it."""
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
