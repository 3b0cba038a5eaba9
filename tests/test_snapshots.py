"""Snapshots of state: without any the state's history becomes too long for Spark, and how a pipeline gets out of that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 600
BATCHES = 1000  # the names of some 860 changelogs have 65,535 bytes
LIFE = """
import sys, time
from onceflow.session import spark_session
checkpoint, batches, *given = sys.argv[1:]
spark = spark_session(config={"spark.sql.shuffle.partitions": 1, **dict(each.split("=") for each in given)})
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).option("numPartitions", 1).load()
counts = rows.selectExpr("value % 10 AS k").groupBy("k").count().writeStream.outputMode("update").format("noop")
query, done = counts.option("checkpointLocation", checkpoint).start(), 0
while query.isActive and done < int(batches):
    time.sleep(0.05)
    done = query.lastProgress.batchId + 1 if query.lastProgress else 0
query.stop()
if query.exception():
    sys.exit(str(query.exception().getCause() or query.exception()))
"""
STATE = "spark.sql.streaming.stateStore"
NO_SNAPSHOT = f"{STATE}.maintenanceInterval=3600s"  # as drivers that are killed within a minute, one after the other
NO_CHANGELOG = f"{STATE}.rocksdb.changelogCheckpointing.enabled=false"


def life(checkpoint: Path, batches: int, *settings: str) -> str:
    """Runs a stateful query until it has done so many batches of all; what it failed of."""
    command = [sys.executable, "-c", LIFE, str(checkpoint), str(batches), *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return done.stderr if done.returncode else ""


@pytest.mark.long
def test_state_without_snapshots_comes_to_an_end_and_a_batch_with_a_snapshot_leads_out_of_it(tmp_path: Path) -> None:
    """The control, and the way out that docs/errors.md names. With the session's own setting all batches are done."""
    assert "too long" in life(tmp_path / "lost", BATCHES, NO_SNAPSHOT)
    assert "too long" in life(tmp_path / "lost", BATCHES, NO_SNAPSHOT)
    assert not life(tmp_path / "lost", 900, NO_CHANGELOG)
    assert not life(tmp_path / "lost", BATCHES)
    assert not life(tmp_path / "kept", BATCHES)
