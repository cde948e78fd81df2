"""What the C library does with the memory that a process frees."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # M_TRIM_THRESHOLD and M_MMAP_MAX of <malloc.h>
_MOST = 2**31 - 1  # of C's int


def keep_freed_memory() -> bool:
    """Have glibc keep what this process frees for its next allocations; whether it does.

    By default it returns freed tensors to the system, which clears each of their pages anew when
    they are allocated again: an update of training allocates the same tensors as the one before.
    It is for a process that does nothing else, and stays so until its end. With another C library,
    and where the environment has settings of glibc's own, nothing changes.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another C library, Windows
        return False
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, _MOST)])
