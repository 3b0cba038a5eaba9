"""Memory that is used again: what the checker computes with are columns of a history, each some hundred megabytes long."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
_NEVER = -1


def keep_freed_memory() -> None:
    """Has this process keep what it frees, where its C library can be told (glibc): for a process that does nothing else.

    Otherwise each large array is given back to the system when it is done with, and the next one comes from there page by page,
    each made empty first: of 10 million operations a third of the processor time, and on a busy machine half of the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
