"""A write of which Spark ran a stage or a task again is refused: real jobs, and what Spark's status store has of them.

They judge the mutants of ``refusing_stage_retries`` (``verify/simulator/mutation``), and so are quick.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceflow.transaction import streaming_query
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.streaming_query import refusing_stage_retries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATIENCE_S = 60.0
AGAIN = r"Spark ran stage \d+, which writes, again"
UNKNOWN = "Spark's status store knows the job that writes no longer"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_query, "_STATUS_PATIENCE_S", 20.0)


@pytest.fixture(autouse=True)
def untagged(spark: SparkSession) -> Iterator[None]:
    """What a block should have taken away is not the next test's."""
    yield
    spark.sparkContext.clearJobTags()


def counted(frame: DataFrame) -> int:
    with refusing_stage_retries(frame):
        return len(frame.collect())


def jobs(spark: SparkSession) -> Any:
    return spark.sparkContext._jsc.sc().statusTracker()


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_ran_once_passes(partitions: int, spark: SparkSession) -> None:
    assert counted(spark.range(10, numPartitions=partitions)) == 10
    assert counted(spark.range(10, numPartitions=2).repartition(partitions)) == 10


def test_a_job_without_tasks_passes(spark: SparkSession) -> None:
    with refusing_stage_retries(spark.range(1)):
        spark.sparkContext._jsc.emptyRDD().count()


def test_the_stage_that_writes_must_not_run_again(spark: SparkSession) -> None:
    """As where a machine is lost, and with it what it has shuffled: Spark makes that again, and then runs the stage again."""
    before = shuffled(spark)
    frame = spark.range(10).repartition(2)
    rows = frame._jdf.javaRDD()
    assert rows.count() == 10
    for file in shuffled(spark) - before:
        file.unlink()
    with pytest.raises(AttemptFailed, match=AGAIN), refusing_stage_retries(frame):
        assert rows.count() == 10
    with refusing_stage_retries(frame):
        assert rows.count() == 10, "the control: it is there"


def shuffled(spark: SparkSession) -> set[Path]:
    """The files of what was shuffled."""
    jvm: Any = spark._jvm
    directories = jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager().localDirs()
    return {file for each in directories for file in Path(each.getPath()).glob("*/shuffle_*")}


def test_the_stages_before_it_may(spark: SparkSession, tmp_path: Path) -> None:
    """One with a barrier is run again as a whole where a task of it fails."""
    marker = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not marker.exists():
            marker.touch()
            raise RuntimeError("once")
        yield from batches

    assert counted(spark.range(10, numPartitions=1).mapInArrow(fail_once, "id long", barrier=True).repartition(2)) == 10
    assert marker.exists()


def test_a_task_that_writes_must_not_fail_either(spark: SparkSession) -> None:
    """Whatever became of it in the end: here nobody asks."""
    frame = spark.range(1).selectExpr("1 / id")
    with pytest.raises(AttemptFailed, match=AGAIN), refusing_stage_retries(frame), contextlib.suppress(Exception):
        frame.collect()


def test_what_failed_before_and_beside_it_is_not_its_own(spark: SparkSession) -> None:
    failing = spark.range(1).selectExpr("1 / id")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"), refusing_stage_retries(failing):
        failing.collect()
    with contextlib.suppress(Exception):
        failing.collect()
    assert list(spark.sparkContext.getJobTags()) == []
    assert counted(spark.range(10)) == 10
    assert list(spark.sparkContext.getJobTags()) == []


def test_a_job_that_the_store_does_not_know_is_refused(spark: SparkSession) -> None:
    """Also behind one that it does know, of another block."""
    assert counted(spark.range(10)) == 10
    with pytest.raises(AttemptFailed, match=UNKNOWN), refusing_stage_retries(spark.range(1)):
        pass


def drop(spark: SparkSession, what: str, key: Any) -> None:
    """As Spark does with the oldest where there are too many."""
    store = spark.sparkContext._jsc.sc().statusStore().store()
    store.delete(spark._jvm.java.lang.Class.forName(f"org.apache.spark.status.{what}"), key)  # type: ignore[union-attr]


def test_a_stage_that_the_store_has_dropped_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = streaming_query._await_status

    def then_drop(context: Any, tag: str) -> None:
        wait(context, tag)
        (job,) = jobs(spark).getJobIdsForTag(tag.removesuffix("-end"))
        (stage,) = jobs(spark).getJobInfo(job).get().stageIds()
        gateway: Any = context._gateway
        key = gateway.new_array(gateway.jvm.int, 2)
        key[0], key[1] = stage, 0
        drop(spark, "StageDataWrapper", key)

    monkeypatch.setattr(streaming_query, "_await_status", then_drop)
    with pytest.raises(AttemptFailed, match=UNKNOWN):
        counted(spark.range(10, numPartitions=1))


class DropsBetween:
    """The tracker; a job is dropped between the question which jobs there are and the question what became of it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def getJobIdsForTag(self, tag: str) -> list[int]:  # noqa: N802  Spark's name
        found = list(jobs(self._spark).getJobIdsForTag(tag))
        for job in found:
            drop(self._spark, "JobDataWrapper", job)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(jobs(self._spark), name)


def test_a_job_that_is_dropped_while_it_is_looked_at_is_refused(spark: SparkSession) -> None:
    tag = f"dropped-{uuid.uuid4().hex}"
    with streaming_query._tagged(spark.sparkContext, tag):
        spark.range(10).collect()
    streaming_query._await_status(spark.sparkContext, f"{tag}-end")
    with pytest.raises(AttemptFailed, match=UNKNOWN):
        streaming_query._last_stage_run_again(DropsBetween(spark), tag)


def test_each_look_waits_for_a_job_of_its_own(spark: SparkSession) -> None:
    """Or the second would take the last job of the first for its own, and not wait."""
    before = set(end_tags(spark))
    for _ in range(2):
        counted(spark.range(1))
    found = [tag for tag in end_tags(spark) if tag not in before]
    assert len(set(found)) == 2


def end_tags(spark: SparkSession) -> list[str]:
    """Of the jobs that were waited for: those without tasks."""
    known = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    every = [known.apply(index) for index in range(known.size())]
    return [str(job.jobTags().mkString(",")) for job in every if job.numTasks() == 0]


def test_a_job_is_over_when_it_runs_no_more(spark: SparkSession, tmp_path: Path) -> None:
    marker, tag = tmp_path / "may end", f"runs-{uuid.uuid4().hex}"

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while not marker.exists():
            threading.Event().wait(0.01)
        yield from batches

    def run() -> None:
        with streaming_query._tagged(spark.sparkContext, tag):
            spark.range(1, numPartitions=1).mapInArrow(wait, "id long").collect()

    job = threading.Thread(target=run)
    job.start()
    try:
        number = first_of(spark, tag)
        assert not streaming_query._is_over(jobs(spark), number)
    finally:
        marker.touch()
        job.join()
    streaming_query._await_status(spark.sparkContext, f"{tag}-end")
    assert streaming_query._is_over(jobs(spark), number) is True
    assert not streaming_query._is_over(jobs(spark), 10**6), "nobody knows that one"


def first_of(spark: SparkSession, tag: str) -> int:
    looks = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if found := list(jobs(spark).getJobIdsForTag(tag)):
            return int(found[0])
        looks.wait(0.02)
    raise AssertionError("the job does not begin")


class Clock:
    """Goes on while one sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeps += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(streaming_query, "time", found)
    monkeypatch.setattr(streaming_query, "_STATUS_PATIENCE_S", 1.0)
    monkeypatch.setattr(streaming_query, "_LOOK_AGAIN_S", 0.25)
    return found


@pytest.mark.parametrize(("told_at", "sleeps"), [(1, 0), (4, 3), (99, 5)])
def test_the_store_is_waited_for_as_long_as_patience_lasts(
    told_at: int, sleeps: int, spark: SparkSession, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of all that happens, later; 99: too late."""
    asked: list[int] = []

    def is_over(_: Any, job: int) -> bool:
        asked.append(job)
        assert len(asked) < 50, "it asks for ever"
        return len(asked) >= told_at

    monkeypatch.setattr(streaming_query, "_is_over", is_over)
    monkeypatch.setattr(streaming_query, "_tagged", until_known(spark))
    tag = f"waits-{uuid.uuid4().hex}"
    if told_at < 50:
        streaming_query._await_status(spark.sparkContext, tag)
    else:
        with pytest.raises(AttemptFailed, match="has not told within 1 s what became of the job that writes"):
            streaming_query._await_status(spark.sparkContext, tag)
    assert clock.sleeps == sleeps


def until_known(spark: SparkSession) -> Any:
    """The tag, until the store knows of the job: this clock does not wait for that."""
    tagged = streaming_query._tagged

    @contextlib.contextmanager
    def then_wait(context: Any, tag: str) -> Iterator[None]:
        with tagged(context, tag):
            yield
        first_of(spark, tag)

    return then_wait
