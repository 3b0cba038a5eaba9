"""The daemon that Python workers are forked from: ours, with its imports, and Spark's own where they have started a thread."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from onceflow.session import _python_workers, session_config
from onceflow.transaction import worker_daemon

SETTING = "spark.python.daemon.module"
PATIENCE_S = 60.0


def test_workers_come_from_our_daemon_with_their_imports(spark: SparkSession) -> None:
    def seen(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import __main__

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"daemon": [str(__main__.__spec__)], "frozen": [gc.get_freeze_count()]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(seen, "daemon string, frozen long").collect()
    assert worker_daemon.__name__ in row.daemon
    assert row.frozen > 10_000, "the objects of the imports are not collected again and again"


def test_a_python_of_ones_own_may_lack_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert SETTING not in session_config(), "who builds the session says which Python its workers are"
    assert _python_workers("local[2]", {})[SETTING] == worker_daemon.__name__
    assert not _python_workers("local[2]", {"spark.pyspark.python": "/elsewhere/python3"})
    assert not _python_workers("spark://somewhere:7077", {})
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python3")
    assert not _python_workers("local[2]", {})


def test_each_worker_draws_random_numbers_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """numpy's seed is drawn when it is imported, which the daemon does before it forks them."""

    def drawn(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import numpy as np

        for _ in batches:
            number = float(np.random.random())
            (tmp_path / str(os.getpid())).touch()
            deadline = time.monotonic() + PATIENCE_S
            while len(list(tmp_path.iterdir())) < 2:  # until another worker has begun as well
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()], "number": [number]})

    rows = spark.range(2, numPartitions=2).mapInArrow(drawn, "pid long, number double").collect()
    assert len({row.pid for row in rows}) == 2
    assert len({row.number for row in rows}) == 2


A_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


@pytest.mark.parametrize(("starting", "serves"), [("", worker_daemon.__name__), (A_THREAD, "pyspark.daemon")])
def test_a_process_with_threads_forks_nothing(tmp_path: Path, starting: str, serves: str) -> None:
    """Python imports ``sitecustomize`` when it starts."""
    (tmp_path / "sitecustomize.py").write_text(starting)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", worker_daemon.__name__, "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        try:
            assert len(daemon.stdout.read(4)) == 4, "the port on which it listens, once it does"
            assert f" {serves} " in Path(f"/proc/{daemon.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        finally:
            daemon.stdin.close()  # the daemon ends then
            daemon.wait(60)
