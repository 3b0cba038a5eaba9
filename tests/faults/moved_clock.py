"""Wall clocks of other processes, brokers' and JVMs', that a test moves while they run: a small library is preloaded into them.

It is compiled when it is first asked for, and needs Linux and a C compiler; without, the tests that use it are skipped.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

COMPILER = shutil.which("cc")
NEEDS_A_COMPILER = pytest.mark.skipif(
    COMPILER is None or sys.platform != "linux",
    reason="another process's clock is moved on Linux, and by a library made with cc",
)
HOUR_S, DAY_S = 3600, 86_400

_SOURCE = Path(__file__).with_suffix(".c")
_SECONDS = struct.Struct("=q")


class MovedClock:
    """The clock of all processes that begin with its ``environment``: the machine's, and as many seconds as it was moved."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / "moved-s"
        self._file.write_bytes(_SECONDS.pack(0))
        with self._file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), _SECONDS.size)
        self._library = _compiled(directory / "moved_clock.so")

    @property
    def environment(self) -> Mapping[str, str]:
        return {"LD_PRELOAD": str(self._library), "MOVED_CLOCK": str(self._file)}

    def move(self, seconds: int) -> None:
        """To so many seconds before or behind the machine's, at once, and for as long as nobody moves it again."""
        _SECONDS.pack_into(self._page, 0, seconds)

    def close(self) -> None:
        self._page.close()


def _compiled(library: Path) -> Path:
    command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library
