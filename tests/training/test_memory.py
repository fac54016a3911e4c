"""Memory that a process frees and takes again."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from keras_seqattn.training import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(2):
    np.ones(2**22)  # 32 MB, that is 8,192 pages
before = faults()
for _ in range(4):
    np.ones(2**23)
    np.ones(2**22)
print(kept, faults() - before)
"""


def run(how):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_")
    }
    answer = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    kept, faults = answer.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_not_given_back():
    """Of 98,304 pages that are touched, those of the first large array are new."""
    kept, faults = run("keep")
    assert kept == "True"
    assert faults < 20_000
    # Where the system hands out huge pages, neither has many faults.
    assert faults <= run("leave")[1]
