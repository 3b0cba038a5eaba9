"""An engine in two processes, as Spark's drivers are: ``python two_processes.py SCRIPT PLAN``. The script is the engine.

The first, as Python does, has the orders; the second, which works, is called ``java``, hears the orders from the first, and ends
when that is gone. When the second ends by itself, the first says so, and ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from onceflow.verify.engines.lines import Message, Told


def main() -> int:
    java = Path.cwd() / "java"
    java.symlink_to(sys.executable)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [str(java), *sys.argv[1:]]
    jvm = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    assert jvm.stdin is not None
    threading.Thread(target=pass_on, args=(jvm.stdin,), daemon=True).start()
    code = jvm.wait()
    if code < 0:
        message = Message(Told.FAILED, code="QUERY_FAILED", error="the JVM has died")
        os.write(1, f"{message.as_line()}\n".encode())
    return abs(code)


def pass_on(orders: IO[bytes]) -> None:
    with os.fdopen(os.dup(0), "rb") as lines, orders:
        for line in lines:
            orders.write(line)
            orders.flush()


if __name__ == "__main__":
    sys.exit(main())
