"""A real executor process killed in the middle of the write: the attempt is aborted, the batch is written again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from onceflow.broker import EmbeddedBroker

if TYPE_CHECKING:
    from tests.conftest import Fill, Reader, TopicFactory

RECORDS = [(f"k{number % 37}", f"{number}".ljust(500)) for number in range(20_000)]
TIMEOUT_S = 1100


@pytest.mark.long  # its twins: a worker killed in the write (tests/test_executor_path.py), kill-executor on a Spark cluster
@pytest.mark.faults
def test_an_executor_killed_in_the_write_fails_the_attempt_and_nothing_else(
    topic: TopicFactory, fill: Fill, read: Reader, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source, target = topic(4), topic(4)
    fill(source, RECORDS)
    marker = tmp_path / "killed"
    program = Path(__file__).with_name("two_executors.py")
    arguments = [broker.bootstrap_servers, source, target, str(marker), str(tmp_path / "checkpoint")]
    environment = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent), "PYSPARK_PYTHON": sys.executable}
    run = subprocess.run(
        [sys.executable, str(program), *arguments],
        env={**environment, "SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert marker.exists(), "no executor was killed"
    assert "attempt 1 failed" in run.stderr
    assert len(read(target, committed=False)) > len(RECORDS), "the killed executor had written records"
    assert Counter(((m.key() or b"").decode(), (m.value() or b"").decode()) for m in read(target)) == Counter(RECORDS)
