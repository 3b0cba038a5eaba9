"""What ``kill-spark-master`` breaks: a cluster whose master does not write down whom it knows, as Spark's own default is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from tests.faults.support import eventually
from tests.verify.cluster.lives_once import LivesOnce

from onceflow.verify.cluster import SparkCluster, processes, spark
from onceflow.verify.faults.spark import KillSparkMaster
from onceflow.verify.running.encounters import NOTHING, UnderWay

pytestmark = pytest.mark.faults

PATIENCE_S = 600.0
JOBS_BESIDE = 10
JOBS = """
import json, sys
from onceflow import spark_session
session = spark_session("jobs", master=sys.argv[1], config=json.loads(sys.argv[2]))
while True:
    print(session.range(2).count(), flush=True)
"""


class Jobs(LivesOnce):
    """A driver that runs one small job after the other on a cluster. To faults it is one that commits batches."""

    under_way: UnderWay = NOTHING

    def __init__(self, cluster: SparkCluster) -> None:
        self._cluster = cluster
        self.commits = 0  # jobs that have ended
        self.process = subprocess.Popen(
            [sys.executable, "-c", JOBS, cluster.master_url, json.dumps(dict(cluster.settings))],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._counting = threading.Thread(target=self._count)
        self._counting.start()

    def _count(self) -> None:
        assert self.process.stdout is not None
        for _ in self.process.stdout:
            self.commits += 1

    @property
    def executors(self) -> list[int]:
        return self._cluster.executors(self.process.pid)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def await_batches(self, count: int, patience_s: float) -> bool:
        wanted = self.commits + count
        eventually(lambda: self.commits, wanted.__le__, "jobs that end", max(patience_s, PATIENCE_S))
        return True

    def end(self) -> None:
        """Kills it; its JVM notices, tidies up and ends by itself, and with it the last one that could write here."""
        self.process.kill()
        self._counting.join(PATIENCE_S)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with self.process:
            pass


@contextmanager
def at_work(cluster: SparkCluster) -> Iterator[Jobs]:
    driver = Jobs(cluster)
    try:
        driver.await_batches(1, PATIENCE_S)
        yield driver
    finally:
        driver.end()


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkCluster]:
    """Its master tells each next one nothing."""
    monkeypatch.setattr(spark, "_remembering", lambda directory: [])
    with SparkCluster(tmp_path, workers=1) as cluster:
        yield cluster


@pytest.mark.long
def test_control_a_driver_of_which_the_next_master_knows_nothing_stands_still(forgetful: SparkCluster) -> None:
    """It runs and waits, without an executor and without an error; who comes later gets executors at once."""
    with at_work(forgetful) as driver:
        told: list[str] = []
        executors = eventually(lambda: driver.executors, bool, "an executor", PATIENCE_S)
        world: Any = SimpleNamespace(spark=forgetful, driver=driver, note=told.append, missed=told.append)
        KillSparkMaster().inject(world, Random(1))
        assert told[-1].endswith("committed without a master")
        eventually(lambda: any(map(processes.is_there, executors)), lambda left: not left, "they are ended", PATIENCE_S)
        with at_work(forgetful) as later:
            eventually(lambda: later.executors, bool, "an executor of its own", PATIENCE_S)
            before = driver.commits  # what it had ended it has told by now
            later.await_batches(JOBS_BESIDE, PATIENCE_S)
            assert driver.commits == before
        assert not driver.executors
        assert driver.is_running
