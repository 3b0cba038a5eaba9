"""KafkaSink on a real broker and real Spark: what it takes, where records go, and that each is there once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.functions import array, col, expr, lit, struct, when

from onceflow import KafkaSink
from onceflow.broker import EmbeddedBroker, run_java_tool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory

RECORDS = [(f"k{number % 37}", f"value {number} äß") for number in range(2000)]
ON_DRIVER, ON_EXECUTORS = 1 << 40, 0


def written(read: Reader, topic: str, on: EmbeddedBroker) -> Counter[tuple[str | None, str | None]]:
    """How often each (key, value) is there, after checking the order per key."""
    messages = read(topic, on=on)
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
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    tmp_path: Path,
) -> None:
    broker: EmbeddedBroker = request.getfixturevalue("broker" if version == 2 else "broker_v1")
    source, target = topic(4, on=broker), topic(32, on=broker)
    fill(source, RECORDS, on=broker)
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers, driver_bytes=driver_bytes)
    query = run_query(source, sink, tmp_path, on=broker, maxOffsetsPerTrigger=700)
    sink.close()
    assert len(query.recentProgress) >= 3
    assert written(read, target, broker) == Counter(RECORDS)


@pytest.mark.parametrize("driver_bytes", [ON_DRIVER, ON_EXECUTORS], ids=["driver", "executors"])
def test_one_transaction_over_several_topics_with_headers_tombstones_and_times(
    driver_bytes: int,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    broker: EmbeddedBroker,
    tmp_path: Path,
) -> None:
    source, one, other = topic(2), topic(3), topic(1)
    fill(source, [(str(number), f"value {number}") for number in range(100)])

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

    sink = KafkaSink(name=one, bootstrap_servers=broker.bootstrap_servers, driver_bytes=driver_bytes)
    run_query(source, sink, tmp_path, transform=shaped)
    sink.close()
    evens, odds = read(one), read(other)
    assert sorted(int(m.key() or b"") for m in evens) == list(range(0, 100, 2))
    assert {m.partition() for m in evens} == {2}
    assert all(m.headers() == [("h", m.key())] for m in evens + odds)
    assert {m.timestamp()[1] for m in evens + odds} == {1700000000123}
    assert sorted(int(m.key() or b"") for m in odds) == list(range(1, 100, 2))
    assert all(m.value() is None for m in odds)


def test_a_batch_without_records_is_committed_too(
    topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source, target = topic(2), topic(2)
    fill(source, RECORDS[:50])
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers)
    run_query(source, sink, tmp_path, transform=lambda lines: lines.where("false").select("key", "value"))
    assert sink.last is not None
    assert (sink.last.batch_id, sink.last.written, sink.last.records) == (0, True, 0)
    fill(source, RECORDS[50:60])
    run_query(source, sink, tmp_path)
    sink.close()
    assert written(read, target, broker) == Counter(RECORDS[50:60])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_java_and_by_librdkafka(
    codec: str,
    topic: TopicFactory,
    fill: Fill,
    read: Reader,
    run_query: RunQuery,
    broker: EmbeddedBroker,
    tmp_path: Path,
) -> None:
    source, target = topic(1), topic(2)
    fill(source, RECORDS)
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers, compression=codec)
    run_query(source, sink, tmp_path)
    sink.close()
    assert written(read, target, broker) == Counter(RECORDS)
    printed = _java_console_consumer(broker, target, len(RECORDS))
    assert Counter(printed) == Counter(f"{key}\t{value}" for key, value in RECORDS)


def _java_console_consumer(broker: EmbeddedBroker, topic: str, count: int) -> list[str]:
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--from-beginning"]
    arguments += ["--max-messages", str(count), "--timeout-ms", "30000", "--formatter-property", "print.key=true"]
    arguments += ["--command-property", "isolation.level=read_committed"]
    done = run_java_tool("org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
    return [line for line in done.stdout.splitlines() if "\t" in line]


def test_keys_go_where_the_java_producer_puts_them(
    topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    source, target, by_java = topic(1), topic(7), topic(7)
    records = [(f"key-{number}-{'x' * (number % 9)}", f"value {number}") for number in range(200)]
    fill(source, records)
    sink = KafkaSink(target, name=target, bootstrap_servers=broker.bootstrap_servers)
    run_query(source, sink, tmp_path)
    sink.close()
    _java_console_producer(broker, by_java, records)
    ours = {m.key(): m.partition() for m in read(target)}
    theirs = {m.key(): m.partition() for m in read(by_java)}
    assert ours == theirs
    assert len(set(ours.values())) == 7


def _java_console_producer(broker: EmbeddedBroker, topic: str, records: list[tuple[str, str]]) -> None:
    lines = "".join(f"{key}\t{value}\n" for key, value in records)
    arguments = ["--bootstrap-server", broker.bootstrap_servers, "--topic", topic]
    arguments += ["--reader-property", "parse.key=true", "--reader-property", "key.separator=\t"]
    run_java_tool("org.apache.kafka.tools.ConsoleProducer", arguments, stdin=lines)
