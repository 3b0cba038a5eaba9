"""Stateful queries: totals stay right when batches are replayed, skipped or tried again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

from onceflow.transaction.failures import AttemptFailed
from onceflow.transaction.writing import BatchWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Workbench

    from onceflow import KafkaSink

KEYS = 7


def totals(lines: DataFrame) -> DataFrame:
    """Running count per key."""
    counted = lines.groupBy("key").count()
    return counted.selectExpr("key", "cast(count as string) as value")


def last_totals(bench: Workbench, target: str) -> dict[str, int]:
    """The newest total per key; on the way to it no total may come twice or go back."""
    newest: dict[str, int] = {}
    for message in bench.read(target):
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


@pytest.fixture(params=["whole", "cut off"])
def plan_text(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """How Spark tells a plan. Where plans are large it advises to cut them off, and nothing is left that tells of state."""
    setting = "spark.sql.maxPlanStringLength"
    if request.param == "cut off":
        spark.conf.set(setting, "8")
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("plan_text")
def test_a_replayed_batch_is_skipped_and_its_state_is_built_again(bench: Workbench) -> None:
    source, target = bench.topic(2), bench.topic(2)

    def run() -> KafkaSink:
        return bench.run(source, target, transform=totals, mode="update", maxOffsetsPerTrigger=40).sink

    bench.fill(source, records(100))
    run()
    assert last_totals(bench, target) == expected(100)
    replayed = delete_last_commit(bench.checkpoint)
    sink = run()
    assert sink.last is not None
    assert (sink.last.batch_id, sink.last.written) == (replayed, False)
    bench.fill(source, [(f"k{number % KEYS}", "x") for number in range(100, 170)])
    run()
    assert last_totals(bench, target) == expected(170)


def lose_last_batch(checkpoint: Path) -> int:
    """As if the power had gone before Spark's newest files were safe, or they were not in a backup."""
    newest = delete_last_commit(checkpoint)
    for name in (str(newest), f".{newest}.crc"):
        (checkpoint / "offsets" / name).unlink()
    return newest


def by_time(lines: DataFrame) -> DataFrame:
    """How many records came at which time."""
    counted = lines.groupBy(functions.current_timestamp().cast("string").alias("key")).count()
    return counted.selectExpr("key", "cast(count as string) as value")


def test_a_batch_that_is_planned_again_at_another_time_is_no_longer_the_one_that_is_committed(bench: Workbench) -> None:
    """Its output is there under the first time; skipped, it would be in the state under the second one, and count twice."""
    source, target = bench.topic(2), bench.topic(2)

    def run(on_mismatch: str = "refuse") -> None:
        bench.run(source, target, {"on_mismatch": on_mismatch}, transform=by_time, mode="complete")

    def counted() -> int:
        newest = {message.key(): int(message.value() or b"") for message in bench.read(target)}
        return sum(newest.values())

    for count in (30, 10):
        bench.fill(source, records(count))
        run()
    delete_last_commit(bench.checkpoint)
    run()  # a plan that is kept keeps its time
    assert counted() == 40
    lost = lose_last_batch(bench.checkpoint)
    with pytest.raises(Exception, match=rf"PROGRESS_CONFLICT.*batch {lost}: it is committed already.*another time"):
        run()
    assert counted() == 40
    run("restart")  # the control: taken up all the same
    bench.fill(source, records(5))
    run()
    assert counted() == 40 + 10 + 5


def test_a_batch_that_is_planned_again_is_skipped_where_its_state_does_not_depend_on_the_time(bench: Workbench) -> None:
    source, target = bench.topic(2), bench.topic(2)

    def run() -> KafkaSink:
        return bench.run(source, target, transform=totals, mode="update").sink

    for part in (records(100)[:70], records(100)[70:]):
        bench.fill(source, part)
        run()
    lost = lose_last_batch(bench.checkpoint)
    sink = run()
    assert sink.last is not None
    assert (sink.last.batch_id, sink.last.written) == (lost, False)
    bench.fill(source, records(170)[100:])
    run()
    assert last_totals(bench, target) == expected(170)


@pytest.mark.parametrize("driver_bytes", [None, 0], ids=["driver", "executors"])
def test_an_attempt_that_failed_runs_again_on_the_same_state(
    driver_bytes: int | None, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, records(100))
    failed: list[BatchWriter] = []  # the writers themselves, and not their ids, which come again
    write = BatchWriter.write

    def fail_once_per_batch(self: BatchWriter, *arguments: object) -> object:
        counts = write(self, *arguments)  # type: ignore[arg-type]
        if self not in failed:
            failed.append(self)
            raise AttemptFailed("told to")
        return counts

    monkeypatch.setattr(BatchWriter, "write", fail_once_per_batch)
    bench.run(source, target, {"driver_bytes": driver_bytes}, transform=totals, mode="update", maxOffsetsPerTrigger=40)
    assert len(failed) >= 3
    assert last_totals(bench, target) == expected(100)
    written = len(bench.read(target, committed=False))
    assert written > len(bench.read(target)), "the failed attempts wrote records too"


@pytest.mark.usefixtures("plan_text")
def test_state_in_format_1_is_refused(bench: Workbench, spark: SparkSession) -> None:
    source, target = bench.topic(1), bench.topic(1)
    bench.fill(source, records(10))
    setting = "spark.sql.streaming.stateStore.checkpointFormatVersion"
    spark.conf.set(setting, "1")
    try:
        with pytest.raises(Exception, match=rf"(?s)UNSAFE_SESSION.*set {setting} to 2"):
            bench.run(source, target, transform=totals, mode="update")
    finally:
        spark.conf.set(setting, "2")
    assert bench.read(target, committed=False) == []
