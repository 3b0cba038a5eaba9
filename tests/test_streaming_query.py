"""Pins what ``streaming_query`` takes from inside Spark; goes red when another Spark version moves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from onceflow.broker import EmbeddedBroker
from onceflow.errors import UnsafeSession
from onceflow.transaction import streaming_query
from onceflow.transaction.progress import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Fill, RunQuery, TopicFactory


def observe(what: Callable[[DataFrame, int], Any], seen: list[Any]) -> Callable[[DataFrame, int], None]:
    """A foreachBatch function that notes ``what`` of each batch, and runs the batch."""

    def write(frame: DataFrame, batch_id: int) -> None:
        seen.append(what(frame, batch_id))
        frame.write.format("noop").mode("overwrite").save()

    return write


def test_a_micro_batch_knows_its_query_and_its_offsets(
    topic: TopicFactory, fill: Fill, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source = topic(1)
    fill(source, [("k", str(number)) for number in range(10)])
    seen: list[streaming_query.MicroBatch] = []
    query = run_query(source, observe(streaming_query.micro_batch, seen), tmp_path, maxOffsetsPerTrigger=6)
    first, second = seen
    assert {first.batch.query_id, second.batch.query_id} == {str(query.id)}
    assert [(m.batch.id, m.start, m.end) for m in seen] == [
        (0, [None], [{source: {"0": 6}}]),
        (1, [{source: {"0": 6}}], [{source: {"0": 10}}]),
    ]
    assert second.batch.start == first.batch.end == digest_of(json.loads(f'[{{"{source}": {{"0": 6}}}}]'))
    assert [m.source_rows() for m in seen] == [6, 4]
    assert second.kafka_end() == {(source, 0): 10}


def test_a_replayed_batch_has_the_same_digest(
    topic: TopicFactory, fill: Fill, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source = topic(2)
    fill(source, [(str(number), "x") for number in range(10)])
    seen: list[streaming_query.MicroBatch] = []
    write = observe(streaming_query.micro_batch, seen)
    run_query(source, write, tmp_path)
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink()
    fill(source, [("later", "y")])
    run_query(source, write, tmp_path)
    assert [m.batch.id for m in seen] == [0, 0, 1]
    assert seen[0].batch == seen[1].batch
    assert seen[2].batch.start == seen[1].batch.end


def test_initial_offsets_source_options_and_state_are_found(
    topic: TopicFactory, fill: Fill, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source = topic(1)
    fill(source, [("k", str(number)) for number in range(10)])
    seen: list[tuple[Any, ...]] = []

    def what(frame: DataFrame, batch_id: int) -> tuple[Any, ...]:
        options = streaming_query.source_options(frame)
        return streaming_query.initial_offsets(frame), options, streaming_query.is_stateful(frame)

    run_query(source, observe(what, seen), tmp_path / "a", startingOffsets=json.dumps({source: {"0": 4}}))
    run_query(
        source,
        observe(what, seen),
        tmp_path / "b",
        transform=lambda lines: lines.groupBy("key").count(),
        mode="update",
    )
    (initial, options, stateful), (_, _, with_state) = seen
    assert initial == {(source, 0): 4}
    assert [o["kafka.isolation.level"] for o in options] == ["read_committed"]
    assert (stateful, with_state) == (False, True)


def with_the_time(lines: DataFrame) -> DataFrame:
    """Of which nothing is kept."""
    return lines.selectExpr("key", "unix_micros(current_timestamp()) AS count")


def with_state_of_its_own(lines: DataFrame) -> DataFrame:
    """A function that keeps state is given the time, whatever it does with it."""

    def note(key: tuple[Any, ...], frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
        state.update((1,))
        yield next(frames).assign(total=1)[["total"]]

    grouped = lines.groupBy("key")
    return grouped.applyInPandasWithState(note, "total long", "total long", "update", GroupStateTimeout.NoTimeout)


@pytest.mark.parametrize(
    ("transform", "tells"),
    [
        (lambda lines: lines.groupBy("key").count(), False),
        (lambda lines: lines.groupBy(functions.window("timestamp", "1 second")).count(), False),
        (lambda lines: lines.select("key", functions.current_timestamp()), False),
        (lambda lines: lines.groupBy("key").count().select("key", functions.current_timestamp()), False),
        (lambda lines: lines.groupBy("key").count().unionByName(with_the_time(lines)), False),
        (lambda lines: lines.groupBy(functions.current_timestamp()).count(), True),
        (lambda lines: lines.groupBy(functions.expr("date_add(current_date(), length(key))")).count(), True),
        (lambda lines: lines.where("timestamp < current_timestamp()").groupBy("key").count(), True),
        (with_state_of_its_own, True),
    ],
    ids=[
        "by key",
        "by its own time",
        "no state",
        "above",
        "beside",
        "by the present",
        "by the date",
        "filtered",
        "a function",
    ],
)
def test_state_that_may_depend_on_the_time_of_a_batch_is_found(
    transform: Callable[[DataFrame], DataFrame],
    topic: TopicFactory,
    fill: Fill,
    run_query: RunQuery,
    tmp_path: Path,
    *,
    tells: bool,
) -> None:
    source = topic(1)
    fill(source, [("k", "1")])
    seen: list[bool] = []
    what = observe(lambda frame, _: streaming_query.state_tells_time(frame), seen)
    run_query(source, what, tmp_path, transform=transform, mode="update")
    assert seen == [tells]


@pytest.mark.parametrize(
    ("transform", "mode", "stateful"),
    [
        (lambda lines: lines.groupBy("key").count(), "update", True),
        (lambda lines: lines.dropDuplicates(["key"]).unionByName(lines), "append", True),
        (lambda lines: lines.limit(3), "append", True),
        (lambda lines: lines.repartition(2, "key"), "append", False),
    ],
    ids=["aggregation", "a branch", "limit", "a shuffle"],
)
def test_state_is_found_whatever_becomes_of_the_plan_and_its_text(
    transform: Callable[[DataFrame], DataFrame],
    mode: str,
    spark: SparkSession,
    topic: TopicFactory,
    fill: Fill,
    run_query: RunQuery,
    tmp_path: Path,
    *,
    stateful: bool,
) -> None:
    """Adaptive execution hides a plan's nodes in one of its own, but of a stateful plan; the text is cut off."""
    source = topic(1)
    fill(source, [("k", "1")])
    settings = {
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.adaptive.streaming.stateless.enabled": "true",
        "spark.sql.maxPlanStringLength": "8",
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    seen: list[tuple[bool, bool]] = []

    def what(frame: DataFrame, batch_id: int) -> tuple[bool, bool]:
        root = streaming_query._execution(frame).lastExecution().executedPlan().getClass().getSimpleName()
        return streaming_query.is_stateful(frame), root == "AdaptiveSparkPlanExec"

    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        run_query(source, observe(what, seen), tmp_path, transform=transform, mode=mode)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert seen[0] == (stateful, not stateful)


def test_only_what_streams_from_kafka_is_a_kafka_source(
    spark: SparkSession, topic: TopicFactory, fill: Fill, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """A table that is joined, read from Kafka or with Kafka in a column's name, has no options of a stream to be asked for."""
    source, table = topic(1), topic(1)
    fill(source, [("k", "1")])
    fill(table, [("k", "2")])
    static = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    lookup = static.option("subscribe", table).load().selectExpr("key", "value as looked_up")
    spark.createDataFrame([("k", 1)], "name string, KafkaOffset int").write.parquet(str(tmp_path / "columns"))
    files = spark.read.parquet(str(tmp_path / "columns")).selectExpr("cast(name as binary) as key", "KafkaOffset")
    rows = spark.createDataFrame([(b"k", 1)], "key binary, KafkaTime int")
    seen: list[list[dict[str, str]]] = []
    run_query(
        source,
        observe(lambda frame, _: streaming_query.source_options(frame), seen),
        tmp_path / "checkpoint",
        transform=lambda lines: lines.join(lookup, "key").join(files, "key").join(rows, "key"),
    )
    [[options]] = seen
    assert options["subscribe"] == source


def test_kafkas_old_source_is_refused(
    spark: SparkSession, topic: TopicFactory, fill: Fill, run_query: RunQuery, tmp_path: Path
) -> None:
    """What it reads cannot be asked of it, aborted records maybe."""
    source = topic(1)
    fill(source, [("k", "1")])
    disabled = "spark.sql.streaming.disabledV2MicroBatchReaders"
    spark.conf.set(disabled, "org.apache.spark.sql.kafka010.KafkaSourceProvider")
    try:
        with pytest.raises(Exception, match=rf"UNSAFE_SESSION.*(?s:.)*take kafka out of {disabled}"):
            run_query(source, observe(lambda frame, _: streaming_query.source_options(frame), []), tmp_path)
    finally:
        spark.conf.unset(disabled)


def test_outside_of_a_streaming_query_it_says_so(spark: SparkSession) -> None:
    with pytest.raises(UnsafeSession, match="not a micro-batch"):
        streaming_query.micro_batch(spark.range(1), 0)


def test_arrow_batches_come_in_task_order_and_raise_what_the_job_raised(spark: SparkSession) -> None:
    frame = spark.range(0, 50_000, numPartitions=5)
    batches = list(streaming_query.arrow_batches(frame, ["id"]))
    assert [task for task, _ in batches] == sorted(task for task, _ in batches)
    assert pa.Table.from_batches([batch for _, batch in batches])["id"].to_pylist() == list(range(50_000))
    failing = frame.selectExpr("1 / (id - 40000) as id")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        list(streaming_query.arrow_batches(failing, ["id"]))


def test_arrow_batches_wait_for_a_first_task_that_is_the_last_to_end(spark: SparkSession) -> None:
    rows = "explode(sequence(1, if(id = 0, 2000000, 1)))"
    frame = spark.range(0, 5, numPartitions=5).selectExpr("id", f"{rows} as row")
    tasks = [task for task, _ in streaming_query.arrow_batches(frame, ["id"])]
    assert tasks == sorted(tasks)
    assert set(tasks) == set(range(5))


@pytest.mark.parametrize("arrival", [[0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 2, 0], [0, 0, 2, 1, 1], [2, 0, 1], [3, 1]])
def test_tasks_are_put_in_order_whatever_order_they_arrive_in(arrival: list[int]) -> None:
    """Empty tasks (3, 1: neither 0 nor 2 has rows) hold nothing up for good."""
    batches = [(task, pa.RecordBatch.from_pydict({"n": [number]})) for number, task in enumerate(arrival)]
    order = [task for task, _ in streaming_query._in_task_order(iter(batches))]
    assert order == sorted(arrival)
