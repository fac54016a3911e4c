"""What the C library does with memory that a step has freed."""

import ctypes
import sys

# Of glibc's malloc.h: parameters of mallopt, and the most it takes.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_MOST, _PAD = 2**31 - 1, 64 * 2**20


def keep_freed_memory() -> bool:
    """Lets the process keep memory that it frees, for the next step to use.

    A training step on a CPU frees most of what it allocated. The C library gives large
    pieces back to the system at once, and the next step gets them back as new pages,
    each of which the system must clear at its first touch. Where that is slow, as in
    many virtual machines and containers, it can take half of a step's time. After this
    call the process keeps what it had at its largest; so call it in a program that
    trains, before it does, rather than in one that trains a little and lives long.
    `benchmarks.paths` measures it in its row "memory".

    Returns:
        Whether it holds: True on Linux with glibc, False elsewhere, where nothing was
        changed.

    Example:
        >>> keep_freed_memory() in (True, False)
        True

    Reference:
        The manual page mallopt(3).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, _PAD))
    return all([mallopt(parameter, value) == 1 for parameter, value in settings])
