"""An engine that works in its first process, as one whose driver writes: ``python beside_java.py SCRIPT PLAN``.

The second process is called ``java``, does nothing, and ends when the first one is gone.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

IDLE = "import sys; sys.stdin.read()"


def main() -> None:
    java = Path(tempfile.gettempdir()) / "java"  # a driver's own, also where several are started in one directory
    java.symlink_to(sys.executable)
    jvm = subprocess.Popen([str(java), "-c", IDLE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    sys.argv = sys.argv[1:]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        assert jvm.stdin is not None
        jvm.stdin.close()
        jvm.wait()


if __name__ == "__main__":
    main()
