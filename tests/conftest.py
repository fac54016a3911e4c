"""What every test stands on: quiet backends, fixed seeds, float32, no warnings."""

import contextlib
import gc
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import shutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / ".pytest_cache" / "jax"
BACKENDS = {"tensorflow", "jax", "torch"}

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A run has a process for each core: threads of one only wait for those of the other.
for threads in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(threads, "1")
# Uncompiled, JAX compiles each operation for each shape: most of the tests' time. The
# processes of a run share what they compile, and later runs find it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Without its fusion emitters XLA compiles small programs sooner: the tests take 0.7
# times as long. Later releases refuse the flag.
with contextlib.suppress(importlib.metadata.PackageNotFoundError):
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

# Tracing makes objects by the million, and hardly any garbage: look for it less often.
gc.set_threshold(10_000, 20, 50)

# Keras takes seconds to import, and the process that hands out tests needs none of it:
# hence the imports of it inside the functions below.
import numpy as np  # noqa: E402
import pytest  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error:::keras_seqattn")
    # Keras 3.15.1 reads a variable as NumPy in a way that NumPy 2 deprecates.
    config.addinivalue_line("filterwarnings", "ignore:__array__ implementation")


def pytest_pycollect_makemodule(module_path, parent):
    """Leaves out a file that is for other backends, without importing it.

    Some take seconds to import. One skip stands for all tests of the file, unless a
    test is asked for by its name.
    """
    import keras

    text = module_path.read_text()
    marks = re.findall(r"mark\.backends\((.*?)\)", text)
    first = re.search(r"^pytestmark = \[?\s*pytest\.mark\.backends\(", text, re.M)
    if not first or len(marks) != 1:  # a test's own would go before the file's
        return None
    names = re.findall(r'"(.*?)"', marks[0])
    by_name = any("::" in argument for argument in parent.config.args)
    if keras.backend.backend() in names or by_name:
        return None
    file = OtherBackends.from_parent(parent, path=module_path)
    file.add_marker(pytest.mark.backends(*names))
    return file


class OtherBackends(pytest.File):
    """A file whose tests are for other backends."""

    def collect(self):
        yield OneSkip.from_parent(self, name="all")


class OneSkip(pytest.Item):
    """Stands for all tests of a file, and is skipped, or left out, by their mark."""

    def runtest(self):
        raise AssertionError("`pytest_runtest_setup` has not skipped this.")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    import keras

    for item in items:
        for marker in item.iter_markers():
            if marker.name in ("backends", "slow_on"):
                if marker.kwargs or not set(marker.args) <= BACKENDS:
                    raise pytest.UsageError(
                        f"{item.nodeid}: `{marker.name}` must name backends of "
                        f"{sorted(BACKENDS)}. Received: {marker}."
                    )
            if marker.name == "slow_on" and keras.backend.backend() in marker.args:
                item.add_marker("slow")


def pytest_collection_finish():
    """What is imported stays: no search for garbage goes through it again.

    Keras searches for it at each weight that `quantize` replaces.
    """
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item):
    import keras

    marker = item.get_closest_marker("backends")  # A test's own goes before its file's.
    if marker and keras.backend.backend() not in marker.args:
        pytest.skip(f"once, on {' and '.join(marker.args)}, is enough")


def pytest_report_header():
    backend = os.environ.get("KERAS_BACKEND", "its default backend")
    return f"keras {importlib.metadata.version('keras')} on {backend}"


@pytest.fixture(autouse=True)
def fixed_ground():
    """Starts every test from one seed and in float32, whatever ran before it."""
    import keras

    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(0)
    yield
    keras.config.set_dtype_policy("float32")
    keras.config.set_floatx("float32")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def load_example():
    """Returns a function that loads `examples/NAME.py` as a module, anew each time."""
    import keras

    def load(name):
        path = ROOT / "examples" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(path.parent)  # as `python examples/NAME.py` has it
            # A script may choose a backend, which later tests must not inherit.
            patch.setenv("KERAS_BACKEND", keras.backend.backend())
            spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A browser without a window, one for all tests of a process."""
    webdriver = pytest.importorskip("selenium.webdriver")
    chromium, driver = map(shutil.which, ("chromium", "chromedriver"))
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    quiet = ("background-networking", "component-update", "sync", "quic", "gpu")
    for argument in (
        *("--headless", "--no-sandbox", "--no-first-run", "--window-size=1100,900"),
        *(f"--disable-{part}" for part in quiet),
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    with webdriver.Chrome(options=options, service=service) as chrome:
        yield chrome
