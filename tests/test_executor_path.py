"""The executor path: what happens to a write when its Python workers die or run again, and to what a task finds wrong."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from onceflow import KafkaSink
from onceflow.broker import EmbeddedBroker
from onceflow.errors import InputError
from onceflow.transaction import executor_path, writing
from onceflow.transaction.messages import Counts
from onceflow.transaction.streaming_query import refusing_stage_retries
from onceflow.verify.engines import refusing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory, Workbench

RECORDS = [(f"k{number % 37}", f"{number}".ljust(500)) for number in range(20_000)]


def dying_writer(marker: Path) -> type:
    """A writer task that kills its own Python worker after it has sent its first chunks, the first time it runs."""

    class DyingWrite(executor_path._Write):  # local, so that it is pickled by value
        def _write(self, batches: Iterable[pa.RecordBatch]) -> Counts:
            return executor_path._Write._write(self, kill_after_first(batches))

    def kill_after_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return DyingWrite


def test_a_worker_killed_in_the_write_fails_the_attempt_and_nothing_else(
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    broker: EmbeddedBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = topic(4), topic(4)
    fill(source, RECORDS)
    marker = tmp_path / "killed"
    monkeypatch.setattr(executor_path, "_Write", dying_writer(marker))
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers, driver_bytes=0)
    with caplog.at_level(logging.WARNING, "onceflow"):
        run_query(source, sink, tmp_path / "checkpoint")
    sink.close()
    assert marker.exists(), "no worker was killed"
    assert "attempt 1 failed" in caplog.text
    assert len(read(target, committed=False)) > len(RECORDS), "the killed worker had written records"
    assert Counter(((m.key() or b"").decode(), (m.value() or b"").decode()) for m in read(target)) == Counter(RECORDS)


def test_an_attempt_that_fails_when_all_is_written_is_aborted_and_written_again(
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    broker: EmbeddedBroker,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = topic(4), topic(4)
    fill(source, RECORDS)
    monkeypatch.setattr(refusing, "request_refused", lambda batch: 2)
    executors = refusing.RefusingExecutors(lambda step, batch: None, executor_path.write_on_executors)
    monkeypatch.setattr(writing, "write_on_executors", executors.write)
    servers = broker.bootstrap_servers
    sink = KafkaSink(target, name=target, bootstrap_servers=servers, driver_bytes=0, on_step=executors)
    with caplog.at_level(logging.WARNING, "onceflow"):
        run_query(source, sink, tmp_path / "checkpoint")
    sink.close()
    assert "attempt 1 failed: this attempt was to be aborted" in caplog.text
    assert "attempt 2 failed" not in caplog.text
    times = Counter(((m.key() or b"").decode(), (m.value() or b"").decode()) for m in read(target, committed=False))
    assert times == {record: 2 * count for record, count in Counter(RECORDS).items()}
    assert Counter(((m.key() or b"").decode(), (m.value() or b"").decode()) for m in read(target)) == Counter(RECORDS)


def test_chunks_are_written_in_order_whatever_order_the_shuffle_gives(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that come from several machines come in any order; here from one, and backwards."""

    class BackwardsEncode(executor_path._Encode):  # local, so that it is pickled by value
        def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            chunks = list(executor_path._Encode.__call__(self, batches))
            assert len(chunks) > 1
            yield from reversed(chunks)

    monkeypatch.setattr(executor_path, "_Encode", BackwardsEncode)
    source, target = bench.topic(1), bench.topic(1)
    bench.fill(source, RECORDS)
    bench.run(source, target, {"driver_bytes": 0})
    assert [m.value() for m in bench.read(target)] == [value.encode() for _, value in RECORDS]


def test_bad_input_found_by_a_task_arrives_as_the_error_that_it_is(
    topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source, target = topic(2), topic(2)
    fill(source, RECORDS[:100])
    caught: list[Exception] = []
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers, driver_bytes=0)

    def write(frame: DataFrame, batch_id: int) -> None:
        try:
            sink(frame.selectExpr("key", "value", "9 as partition"), batch_id)
        except Exception as error:
            caught.append(error)
            raise

    with pytest.raises(Exception, match="FOREACH_BATCH"):
        run_query(source, write, tmp_path)
    sink.close()
    assert isinstance(caught[0], InputError)
    assert "column partition holds 9" in str(caught[0])
    assert read(target, committed=False) == []
    good = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers, driver_bytes=0)
    run_query(source, good, tmp_path)
    good.close()
    assert len(read(target)) == 100


def test_a_task_that_failed_once_is_seen_before_the_commit(spark: SparkSession, tmp_path: Path) -> None:
    """Spark hides a retried task from whoever asked for the result; the status store does not."""
    marker = tmp_path / "failed"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    frame = spark.range(10, numPartitions=1).mapInArrow(fail_once, "id long")
    with pytest.raises(Exception, match=r"(?i)python worker|connection reset|crashed"), refusing_stage_retries(frame):
        frame.collect()
    with refusing_stage_retries(frame):
        assert len(frame.collect()) == 10


RETRIES = """
import pathlib, sys
from onceflow.session import spark_session
from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.streaming_query import refusing_stage_retries

spark = spark_session(master="local[2,3]")
here = pathlib.Path.cwd()

def failing_once(name):
    def run(batches):
        marker = here / name
        if not marker.exists():
            marker.touch()
            raise RuntimeError("once")
        yield from batches
    return run

def outcome(frame):
    try:
        with refusing_stage_retries(frame):
            return len(frame.collect())
    except AttemptFailed as error:
        return "refused" if "which writes, again" in str(error) else str(error)

numbers = spark.range(10, numPartitions=1)
print("encode", outcome(numbers.mapInArrow(failing_once("encode"), "id long").repartition(2)))
print("write", outcome(numbers.repartition(1).mapInArrow(failing_once("write"), "id long")))
spark.stop()
"""


@pytest.mark.slow
def test_only_a_task_that_writes_must_not_run_again(tmp_path: Path) -> None:
    """Tasks are tried several times here, as on a cluster and unlike in the session of the other tests."""
    told = subprocess.run(
        [sys.executable, "-c", RETRIES], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    assert told.stdout.splitlines() == ["encode 10", "write refused"], told.stderr
    assert (tmp_path / "encode").exists()
