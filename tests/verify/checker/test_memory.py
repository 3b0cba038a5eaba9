from __future__ import annotations

import platform
import subprocess
import sys

import pytest

HELD = """
import sys
import numpy as np
import psutil
from onceflow.verify.checker.memory import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
array = np.ones(1 << 25)
del array
print(psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="no other C library can be told")
def test_what_was_freed_is_kept_for_the_next_array() -> None:
    assert held("keep") - held("give back") > 200 << 20


def held(how: str) -> int:
    """How many bytes a process holds that had an array of 256 MB."""
    done = subprocess.run([sys.executable, "-c", HELD, how], check=True, capture_output=True, timeout=120)
    return int(done.stdout)
