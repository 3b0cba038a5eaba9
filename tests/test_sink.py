"""KafkaSink on a real broker and real Spark: what it takes, where records go, and that each is there once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import array, col, expr, lit, struct, when

from onceflow.broker import EmbeddedBroker, run_java_tool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.conftest import Workbench

RECORDS = [(f"k{number % 37}", f"value {number} äß") for number in range(2000)]
ON_DRIVER, ON_EXECUTORS = 1 << 40, 0


def written(bench: Workbench, topic: str, on: EmbeddedBroker | None = None) -> Counter[tuple[str | None, str | None]]:
    """How often each (key, value) is there, after checking the order per key."""
    messages = bench.read(topic, on=on)
    pairs = [(_text(m.key()), _text(m.value())) for m in messages]
    for key in {key for key, _ in pairs}:
        numbers = [int(str(value).split()[1]) for k, value in pairs if k == key]
        assert numbers == sorted(numbers), f"order of key {key}"
    return Counter(pairs)


def _text(data: object) -> str | None:
    return data.decode() if isinstance(data, bytes) else None


@pytest.mark.parametrize("driver_bytes", [ON_DRIVER, ON_EXECUTORS], ids=["driver", "executors"])
@pytest.mark.parametrize("version", [1, 2])
def test_every_record_is_there_once_and_in_order(
    version: int,
    driver_bytes: int,
    request: pytest.FixtureRequest,
    bench: Workbench,
) -> None:
    broker: EmbeddedBroker = request.getfixturevalue("broker" if version == 2 else "broker_v1")
    source, target = bench.topic(4, on=broker), bench.topic(32, on=broker)
    bench.fill(source, RECORDS, on=broker)
    # More tasks than source partitions: a key's records come from several tasks.
    options = {"maxOffsetsPerTrigger": 700, "minPartitions": 12}
    ran = bench.run(source, target, {"driver_bytes": driver_bytes}, on=broker, **options)
    assert len(ran.query.recentProgress) >= 3
    assert written(bench, target, broker) == Counter(RECORDS)


@pytest.mark.parametrize("driver_bytes", [ON_DRIVER, ON_EXECUTORS], ids=["driver", "executors"])
def test_one_transaction_over_several_topics_with_headers_tombstones_and_times(
    driver_bytes: int,
    bench: Workbench,
) -> None:
    source, one, other = bench.topic(2), bench.topic(3), bench.topic(1)
    bench.fill(source, [(str(number), f"value {number}") for number in range(100)])

    def shaped(lines: DataFrame) -> DataFrame:
        even = expr("cast(cast(key as string) as int) % 2 = 0")
        return lines.select(
            when(even, lit(one)).otherwise(lit(other)).alias("topic"),
            "key",
            when(even, col("value")).alias("value"),
            when(even, lit(2)).cast("int").alias("partition"),
            array(struct(lit("h").alias("key"), col("key").alias("value"))).alias("headers"),
            expr("timestamp_millis(1700000000123)").alias("timestamp"),
        )

    bench.run(source, None, {"name": one, "driver_bytes": driver_bytes}, transform=shaped)
    evens, odds = bench.read(one), bench.read(other)
    assert sorted(int(m.key() or b"") for m in evens) == list(range(0, 100, 2))
    assert {m.partition() for m in evens} == {2}
    assert all(m.headers() == [("h", m.key())] for m in evens + odds)
    assert {m.timestamp()[1] for m in evens + odds} == {1700000000123}
    assert sorted(int(m.key() or b"") for m in odds) == list(range(1, 100, 2))
    assert all(m.value() is None for m in odds)


@pytest.mark.parametrize("driver_bytes", [ON_DRIVER, ON_EXECUTORS], ids=["driver", "executors"])
def test_columns_in_another_case_and_a_time_of_the_sessions_zone(
    driver_bytes: int, bench: Workbench, spark: SparkSession
) -> None:
    """A Key was no key, and a time without a zone one of UTC. Midsummer in Berlin: 12:00 is 10:00 UTC."""
    source, target = bench.topic(1), bench.topic(3)
    bench.fill(source, [(str(number), f"value {number}") for number in range(20)])

    def shaped(lines: DataFrame) -> DataFrame:
        time = "timestamp_ntz'2024-06-01 12:00:00' AS Timestamp"
        return lines.selectExpr("key AS Key", "value AS VALUE", "2 AS Partition", time)

    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        bench.run(source, target, {"driver_bytes": driver_bytes}, transform=shaped)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    messages = bench.read(target)
    assert [m.key() for m in messages] == [str(number).encode() for number in range(20)]
    assert {(m.partition(), m.timestamp()[1]) for m in messages} == {(2, 1_717_236_000_000)}


def test_a_batch_without_records_is_committed_too(
    bench: Workbench,
) -> None:
    source, target = bench.topic(2), bench.topic(2)
    bench.fill(source, RECORDS[:50])
    sink = bench.run(source, target, transform=lambda lines: lines.where("false").select("key", "value")).sink
    assert sink.last is not None
    assert (sink.last.batch_id, sink.last.written, sink.last.records) == (0, True, 0)
    bench.fill(source, RECORDS[50:60])
    bench.run(source, target)
    assert written(bench, target) == Counter(RECORDS[50:60])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_java_and_by_librdkafka(
    codec: str,
    bench: Workbench,
) -> None:
    source, target = bench.topic(1), bench.topic(2)
    bench.fill(source, RECORDS)
    bench.run(source, target, {"compression": codec})
    assert written(bench, target) == Counter(RECORDS)
    printed = _java_console_consumer(bench.broker, target, len(RECORDS))
    assert Counter(printed) == Counter(f"{key}\t{value}" for key, value in RECORDS)


def _java_console_consumer(broker: EmbeddedBroker, topic: str, count: int) -> list[str]:
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"]
    arguments += ["--max-messages", str(count), "--timeout-ms", "30000", "--formatter-property", "print.key=true"]
    arguments += ["--command-property", "isolation.level=read_committed"]
    done = run_java_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
    return [line for line in done.stdout.splitlines() if "\t" in line]


def test_keys_go_where_the_java_producer_puts_them(
    bench: Workbench,
) -> None:
    source, target, by_java = bench.topic(1), bench.topic(7), bench.topic(7)
    records = [(f"key-{number}-{'x' * (number % 9)}", f"value {number}") for number in range(200)]
    bench.fill(source, records)
    bench.run(source, target)
    _java_console_producer(bench.broker, by_java, records)
    ours = {m.key(): m.partition() for m in bench.read(target)}
    theirs = {m.key(): m.partition() for m in bench.read(by_java)}
    assert ours == theirs
    assert len(set(ours.values())) == 7


def _java_console_producer(broker: EmbeddedBroker, topic: str, records: list[tuple[str, str]]) -> None:
    lines = "".join(f"{key}\t{value}\n" for key, value in records)
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic]
    arguments += ["--reader-property", "parse.key=true", "--reader-property", "key.separator=\t"]
    run_java_tool("org.apache.kafka.tools.ConsoleProducer", arguments, stdin=lines)
