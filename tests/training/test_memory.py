"""Memory that a process frees, and keeps or gives back."""

import ctypes
import os
import platform
import subprocess
import sys

import pytest

from keras_seqattn import training

pytestmark = pytest.mark.backends("torch")

KEPT = """
import resource
import numpy as np
from keras_seqattn.training import keep_freed_memory

def megabytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

def megabytes_kept():
    before = megabytes()
    np.ones(2**25)  # 256 MB, freed at once
    return megabytes() - before

print(megabytes_kept())
assert keep_freed_memory()
print(megabytes_kept())
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_freed_memory_is_kept_where_it_is_asked_for():
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_")
    }
    answer = subprocess.run(
        [sys.executable, "-c", KEPT],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    before, after = map(float, answer.stdout.split())
    assert before < 50 and after > 200


def test_nothing_is_promised_without_mallopt(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert training.keep_freed_memory() is False
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert training.keep_freed_memory() is False
