"""Control of what the C library does with memory that a training step has freed."""

import ctypes
import sys

# From glibc's malloc.h: parameters of mallopt. Then the largest value that mallopt
# takes, and the number of extra bytes to request whenever the heap grows.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_MOST, _PAD = 2**31 - 1, 64 * 2**20


def keep_freed_memory() -> bool:
    """Lets the process keep memory that it frees, for the next step to use.

    A training step on a CPU frees most of what it allocated. The C library returns
    large pieces to the system at once, and the next step gets them back as new pages,
    each of which the system must clear at its first use. Where that is slow, as in many
    virtual machines and containers, it can take half of a step's time. After this call
    the process keeps as much memory as it ever used. So call it before training, in a
    program whose main work is training, not in one that trains briefly and runs on.
    `benchmarks.paths` measures the effect in its row "memory".

    Returns:
        Whether the setting was made: True on Linux with glibc; False elsewhere, where
        nothing was changed.

    Example:
        >>> keep_freed_memory() in (True, False)
        True

    Reference:
        The manual page mallopt(3).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # The C library is not glibc.
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _PAD))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])
