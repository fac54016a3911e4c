"""Memory that a process frees, and keeps or gives back."""

import os
import platform
import subprocess
import sys

import pytest

KEPT = """
import resource, sys
import numpy as np
from keras_seqattn.training import keep_freed_memory

if sys.argv[1] == "keep":
    assert keep_freed_memory()

def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

before = megabytes()
np.ones(2**25)  # 256 MB, freed at once
print(megabytes() - before)
"""


def megabytes_kept(how):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_")
    }
    answer = subprocess.run(
        [sys.executable, "-c", KEPT, how],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return float(answer.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_kept_where_it_is_asked_for():
    assert megabytes_kept("leave") < 50
    assert megabytes_kept("keep") > 200
