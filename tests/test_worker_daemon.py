"""The daemon that Python workers are forked from: ours, with its imports, and Spark's own where they have started a thread."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from onceflow.session import session_config
from onceflow.transaction import worker_daemon

SETTING = "spark.python.daemon.module"


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
    assert session_config()[SETTING] == worker_daemon.__name__
    assert SETTING not in session_config(config={"spark.pyspark.python": "/elsewhere/python3"})
    assert SETTING not in session_config("spark://somewhere:7077")
    assert session_config(config={SETTING: "my.daemon"})[SETTING] == "my.daemon"
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python3")
    assert SETTING not in session_config()


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
