"""Stateful queries: totals stay right when batches are replayed, skipped or tried again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onceflow import KafkaSink
from onceflow.broker import EmbeddedBroker
from onceflow.errors import UnsafeSession
from onceflow.transaction.failures import AttemptFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory

KEYS = 7


def totals(lines: DataFrame) -> DataFrame:
    """Running count per key."""
    counted = lines.groupBy("key").count()
    return counted.selectExpr("key", "cast(count as string) as value")


def last_totals(read: Reader, target: str) -> dict[str, int]:
    """The newest total per key; on the way to it no total may come twice or go back."""
    newest: dict[str, int] = {}
    for message in read(target):
        key, total = str((message.key() or b"").decode()), int(message.value() or b"")
        assert total > newest.get(key, 0), f"{key}: {total} after {newest.get(key)}"
        newest[key] = total
    return newest


def records(count: int) -> list[tuple[str, str]]:
    return [(f"k{number % KEYS}", "x") for number in range(count)]


def expected(count: int) -> dict[str, int]:
    return {f"k{key}": len(range(key, count, KEYS)) for key in range(KEYS)}


def delete_last_commit(checkpoint: Path) -> int:
    """As if the driver had died between our commit and Spark's commit log."""
    newest = max((int(file.name) for file in (checkpoint / "commits").iterdir() if file.name.isdigit()), default=-1)
    for name in (str(newest), f".{newest}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return newest


def test_a_replayed_batch_is_skipped_and_its_state_is_built_again(
    topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source, target = topic(2), topic(2)

    def run() -> KafkaSink:
        sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers)
        run_query(source, sink, tmp_path, transform=totals, mode="update", maxOffsetsPerTrigger=40)
        sink.close()
        return sink

    fill(source, records(100))
    run()
    assert last_totals(read, target) == expected(100)
    replayed = delete_last_commit(tmp_path)
    sink = run()
    assert sink.last is not None
    assert (sink.last.batch_id, sink.last.written) == (replayed, False)
    fill(source, [(f"k{number % KEYS}", "x") for number in range(100, 170)])
    run()
    assert last_totals(read, target) == expected(170)


@pytest.mark.parametrize("driver_bytes", [None, 0], ids=["driver", "executors"])
def test_an_attempt_that_failed_runs_again_on_the_same_state(
    driver_bytes: int | None,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = topic(2), topic(2)
    fill(source, records(100))
    from onceflow.transaction.writing import BatchWriter

    failed: list[int] = []
    write = BatchWriter.write

    def fail_once_per_batch(self: BatchWriter, *arguments: object) -> object:
        counts = write(self, *arguments)  # type: ignore[arg-type]
        if id(self) not in failed:
            failed.append(id(self))
            kept.append(self)
            raise AttemptFailed("told to")
        return counts

    kept: list[BatchWriter] = []  # so that no id comes twice
    monkeypatch.setattr(BatchWriter, "write", fail_once_per_batch)
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers, driver_bytes=driver_bytes)
    run_query(source, sink, tmp_path, transform=totals, mode="update", maxOffsetsPerTrigger=40)
    sink.close()
    assert len(failed) >= 3
    assert last_totals(read, target) == expected(100)
    assert len(read(target, committed=False)) > len(read(target)), "the failed attempts wrote records too"


def test_state_in_format_1_is_refused(
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    spark: SparkSession,
    broker: EmbeddedBroker,
    tmp_path: Path,
) -> None:
    source, target = topic(1), topic(1)
    fill(source, records(10))
    setting = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    refused = raised_by(run_query, source, target, broker, tmp_path, lambda: spark.conf.set(setting, "1"))
    spark.conf.set(setting, "2")
    assert isinstance(refused, UnsafeSession)
    assert setting in str(refused)
    assert read(target, committed=False) == []


def raised_by(
    run_query: RunQuery,
    source: str,
    target: str,
    broker: EmbeddedBroker,
    checkpoint: Path,
    prepare: Callable[[], object],
) -> Exception | None:
    """The error of the sink itself; Spark wraps it in text."""
    prepare()
    caught: list[Exception] = []
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers)

    def write(frame: DataFrame, batch_id: int) -> None:
        try:
            sink(frame, batch_id)
        except Exception as error:
            caught.append(error)
            raise

    with pytest.raises(Exception, match="FOREACH_BATCH"):
        run_query(source, write, checkpoint, transform=totals, mode="update")
    sink.close()
    return caught[0] if caught else None
