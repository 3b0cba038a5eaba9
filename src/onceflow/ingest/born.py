"""When a file was made. Python does not tell it on Linux, so statx(2) is asked."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_AT_FDCWD, _STATX_BTIME = -100, 0x800
_SIZE, _MASK, _BTIME = 256, struct.Struct("=I"), struct.Struct("=80xqI")

_statx = getattr(ctypes.CDLL(None), "statx", None)


def born_ns(path: Path) -> int:
    """Nanoseconds since 1970; 0 where nobody knows: another system, or a file system that does not keep it."""
    answer = ctypes.create_string_buffer(_SIZE)
    if _statx is None or _statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, answer):
        return 0
    if not _MASK.unpack_from(answer)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = _BTIME.unpack_from(answer)
    return int(seconds * 1_000_000_000 + nanoseconds)
