"""Snapshots of state: without any the state's history becomes too long for Spark, and how a pipeline gets out of that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.verify.oracle.runs import Run

from onceflow.session import DEFAULTS, NO_CHANGELOGS
from onceflow.verify.oracle.__main__ import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.conftest import TopicFactory

    from onceflow.broker import EmbeddedBroker

TIMEOUT_S = 1200
BATCHES = 1000  # the names of some 860 changelogs have 65,535 bytes
COUNTS = """
import sys, time
from onceflow.session import spark_session
checkpoint, batches, *given = sys.argv[1:]
spark = spark_session(config={"spark.sql.shuffle.partitions": 1, **dict(each.split("=") for each in given)})
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).option("numPartitions", 1).load()
counts = rows.selectExpr("value % 10 AS k").groupBy("k").count().writeStream.outputMode("update").format("noop")
"""
LIFE = f"""{COUNTS}
query, done = counts.option("checkpointLocation", checkpoint).start(), 0
while query.isActive and done < int(batches):
    time.sleep(0.05)
    done = query.lastProgress.batchId + 1 if query.lastProgress else 0
query.stop()
if query.exception():
    sys.exit(str(query.exception().getCause() or query.exception()))
"""
ONE_BY_ONE = f"""{COUNTS}
for _ in range(int(batches)):
    query = counts.trigger(once=True).option("checkpointLocation", checkpoint).start()
    try:
        query.awaitTermination()
    except Exception:
        sys.exit(str(query.exception().getCause() or query.exception()))
"""
"""Each batch is a query of its own, as in a replay; and as if each were a run that is started by a timetable."""
STATE = "spark.sql.streaming.stateStore"
NAME_BYTES = 16  # a UUID, however well it is packed
# Nor when the next query begins, which looks after those that have ended.
NO_OTHER = f"{STATE}.minDeltasForSnapshot=1000000"
NO_SNAPSHOT = f"{STATE}.maintenanceInterval=3600s"  # as drivers that are killed within a minute, one after the other
NO_CHANGELOG = f"{STATE}.rocksdb.changelogCheckpointing.enabled=false"


def life(checkpoint: Path, batches: int, *settings: str, script: str = LIFE) -> str:
    """Runs a stateful query until it has done so many batches of all; what it failed of."""
    command = [sys.executable, "-c", script, str(checkpoint), str(batches), *settings]
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


@pytest.mark.long
def test_queries_of_one_batch_each_name_all_before_them_in_changelogs_and_go_on_without(tmp_path: Path) -> None:
    """The control shows that the names grow, batch by batch; the end that they come to is that of the test above.

    To come to it with queries of one batch each takes half an hour and more, for each of them reads all changelogs.
    """
    assert not life(tmp_path / "changelogs", 60, NO_SNAPSHOT, NO_OTHER, script=ONE_BY_ONE)
    sizes = changelogs(tmp_path / "changelogs")
    assert sizes[60] - sizes[30] > 30 * NAME_BYTES
    assert not life(tmp_path / "snapshots", BATCHES, *(f"{n}={v}" for n, v in NO_CHANGELOGS.items()), script=ONE_BY_ONE)
    assert changelogs(tmp_path / "snapshots") == {}


def changelogs(checkpoint: Path) -> dict[int, int]:
    """The size of each changelog of the first partition, by its version."""
    files = (checkpoint / "state" / "0" / "0").glob("*.changelog")
    return {int(file.name.partition("_")[0]): file.stat().st_size for file in files}


TOTALS = """
[[source]]
name = "payments"
topics = ["{payments}"]
schema = "account STRING, amount BIGINT"

[[transform]]
name = "totals"
sql = "SELECT account, sum(amount) AS amount FROM payments GROUP BY account"

[[sink]]
from = "totals"
topic = "{totals}"
key = "account"
value = "to_json(struct(account, amount))"

[output]
mode = "update"
"""


def test_runs_that_end_by_themselves_leave_no_changelogs_whose_names_would_grow(
    spark: SparkSession, broker: EmbeddedBroker, topic: TopicFactory, tmp_path: Path
) -> None:
    """``available_now``, as started by a timetable: with changelogs the 864th run would be the last one."""
    payments, totals = topic(2), topic(2)
    run = Run(broker, tmp_path, f"whole-{totals}", TOTALS.format(payments=payments, totals=totals), (totals,))
    for _ in range(3):
        run.batch(60)
    states = run.checkpoint / "state" / "0" / "0"
    assert changelogs(run.checkpoint) == {}
    assert sorted(int(state.name.partition("_")[0]) for state in states.glob("*.zip")) == [1, 2, 3]
    assert {name: spark.conf.get(name) for name in NO_CHANGELOGS} == {name: DEFAULTS[name] for name in NO_CHANGELOGS}
    judged = run.judged()
    assert judged.violations == {}
    assert judged.reasons == ()


def test_a_replay_of_batches_one_by_one_leaves_none_either(tmp_path: Path) -> None:
    """As the process that replays sets its session."""
    given = dict.fromkeys(NO_CHANGELOGS, "true")
    assert NO_CHANGELOGS.items() <= settings(given, tmp_path).items()
