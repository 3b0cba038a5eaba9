"""Spark's daemon of Python workers, which imports what our tasks need once, before it forks them.

``spark.python.daemon.module`` names it. Spark's own imports nothing: each worker does, after it is forked, and 1.5 to 2.5 s of a
batch are gone. A worker without work is ended after a minute, so that a standby, whatever it has rehearsed, begins with new ones.
What is imported here is also left out of the garbage collection that a worker does behind each task: 40 to 60 ms, of 100.

Spark does it late for two reasons. A process that has threads must not fork, for its child has their locks and not them: where
an import has started one, Spark's own daemon takes over (Arrow's jemalloc has one, and handlers of its own for forks), and where
threads cannot be seen it does at once. And numpy has drawn its seed by then::

    daemon    imports pandas, and with it numpy.random
    worker 1  is forked; a user's function asks np.random.rand() for a sample, or an id
    worker 2  is forked; and gets the same numbers

So each worker seeds it anew. Python's own ``random`` does that by itself.

Runs on the executors, started by Spark: ``python -m onceflow.transaction.worker_daemon pyspark.worker``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import NoReturn

# pandas: pyarrow loads it for the first array that is made.
_IMPORTED = ("pandas", "pyspark.worker", "onceflow.transaction.executor_path")
_FORKED_WELL = "jemalloc_bg_thd"
_THREADS = Path("/proc/self/task")


def main() -> None:
    """Serves until Spark ends it."""
    if not _THREADS.is_dir():  # no Linux
        _hand_over()
    with contextlib.redirect_stdout(sys.stderr):  # Spark takes what comes first on the standard output for the port
        for name in _IMPORTED:
            importlib.import_module(name)
    if _other_threads():
        _hand_over()
    import numpy as np

    os.register_at_fork(after_in_child=np.random.seed)
    gc.freeze()
    from pyspark.daemon import manager

    manager()


def _hand_over() -> NoReturn:
    """To Spark's own daemon, in this process, with this very Python."""
    os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])  # noqa: S606


def _other_threads() -> list[str]:
    """The names of those that a fork would break, as Linux has them."""
    names = [(each / "comm").read_text().strip() for each in _THREADS.iterdir()]
    names.remove(Path("/proc/self/comm").read_text().strip())
    return [name for name in names if name != _FORKED_WELL]


if __name__ == "__main__":
    main()
