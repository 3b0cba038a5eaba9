"""What cannot be written is named, nothing of it becomes visible or stays open, and once it is mended nothing is lost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.functions import expr
from tests.faults.support import Cluster, LightDrivers, expected_records

from onceflow import KafkaSink
from onceflow.broker import EmbeddedBroker
from onceflow.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.conftest import Fill, Reader, RunQuery, TopicFactory

pytestmark = pytest.mark.faults

RECORDS = [(f"k{number % 5}", str(number)) for number in range(60)]
ON_DRIVER, ON_EXECUTORS = 1 << 40, 0


class Bench:
    """A source of RECORDS, a target and one checkpoint; ``fails`` and then ``works`` are the story of every test here."""

    def __init__(
        self, topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker, at: Path
    ) -> None:
        self.broker, self.checkpoint = broker, at
        self.source, self.target = topic(2), topic(2, config={"max.message.bytes": "20000"})
        self._read, self._run_query = read, run_query
        fill(self.source, RECORDS)

    def run(self, transform: Callable[[DataFrame], DataFrame] | None, sink: dict[str, Any], **options: Any) -> None:
        settings: dict[str, Any] = {"topic": self.target, "name": self.target, "patience_s": 20.0, **sink}
        settings.setdefault("bootstrap_servers", self.broker.bootstrap_servers)
        target = KafkaSink(**settings)
        try:
            self._run_query(self.source, target, self.checkpoint, transform=transform, **options)
        finally:
            target.close()

    def fails(self, text: str, transform: Callable[[DataFrame], DataFrame] | None = None, /, **sink: Any) -> None:
        with pytest.raises(Exception, match=f"(?s){text}"):
            self.run(transform, sink)
        assert self.written() == Counter()

    def works(self, transform: Callable[[DataFrame], DataFrame] | None = None, /, **sink: Any) -> None:
        self.run(transform, sink)
        assert self.written() == Counter(RECORDS)

    def written(self) -> Counter[tuple[str, str]]:
        """Also fails when a transaction is still open on the target."""
        return Counter((_text(m.key()), _text(m.value())) for m in self._read(self.target))


def _text(data: str | bytes | None) -> str:
    return data.decode() if isinstance(data, bytes) else str(data)


@pytest.fixture
def bench(
    topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, broker: EmbeddedBroker, tmp_path: Path
) -> Bench:
    return Bench(topic, fill, read, run_query, broker, tmp_path / "checkpoint")


def test_a_missing_topic(bench: Bench) -> None:
    bench.fails(r"TOPIC_MISSING.*topic no-such-topic does not exist.*create it", topic="no-such-topic")
    bench.works()


@pytest.mark.parametrize("driver_bytes", [ON_DRIVER, ON_EXECUTORS], ids=["driver", "executors"])
def test_a_missing_topic_named_by_a_row(bench: Bench, driver_bytes: int) -> None:
    def astray(lines: DataFrame) -> DataFrame:
        where = expr(f"case when value = '37' then 'no-such-topic' else '{bench.target}' end")
        return lines.select("key", "value", where.alias("topic"))

    bench.fails(r"TOPIC_MISSING.*no-such-topic", astray, topic=None, driver_bytes=driver_bytes)
    bench.works(driver_bytes=driver_bytes)


def test_columns_missing_and_mistyped_all_at_once(bench: Bench) -> None:
    def shapeless(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("value as text", "1 as key", "'x' as partition", "map('a', 'b') as headers")

    bench.fails(
        "value is missing; topic is missing, and the sink has no fixed topic; key is int, it must be string or binary; "
        "partition is string, it must be int; headers is map<string,string>",
        shapeless,
        topic=None,
    )
    bench.works()


@pytest.mark.parametrize("driver_bytes", [ON_DRIVER, ON_EXECUTORS], ids=["driver", "executors"])
def test_a_record_larger_than_the_topic_accepts_is_named_by_its_source(bench: Bench, driver_bytes: int) -> None:
    def swollen(lines: DataFrame) -> DataFrame:
        value = "case when value = '37' then repeat(uuid(), 1000) else cast(value as string) end as value"
        return lines.selectExpr("key", value, "topic as _topic", "partition as _partition", "offset as _offset")

    bench.fails(
        rf"RECORD_TOO_LARGE.*a record of [0-9,]+ bytes for {bench.target}-\d is larger than the topic accepts "
        rf"\(max.message.bytes = 20,000\), from source {bench.source}-\d at offset \d+",
        swollen,
        driver_bytes=driver_bytes,
        compression="none",
    )
    bench.works(driver_bytes=driver_bytes)


def test_a_partition_that_the_topic_does_not_have(bench: Bench) -> None:
    bench.fails(r"INPUT.*partition", lambda lines: lines.selectExpr("key", "value", "7 as partition"))
    bench.works()


def test_a_transaction_timeout_above_the_brokers(bench: Bench) -> None:
    bench.fails(r"CONFIGURATION.*is above the broker's transaction.max.timeout.ms", transaction_timeout_ms=10**9)
    bench.works()


def test_a_broker_that_does_not_answer(v2: Cluster, light: LightDrivers) -> None:
    """In a process of its own: kafka-python leaves sockets that never connected to the garbage collector, which warns."""
    job = light.job(v2, v2.make_topic())
    ended = light.run(replace(job, bootstrap_servers="127.0.0.1:9", patience_s=1.0))
    assert ended.error == "BROKER_UNREACHABLE", ended
    assert "127.0.0.1:9" in ended.text
    assert "check bootstrap_servers" in ended.text
    assert light.run(job).error == ""
    v2.check_exactly(job.topic, expected_records(2))


def test_a_query_of_the_users_that_fails(bench: Bench) -> None:
    bench.fails(
        "no good", lambda lines: lines.selectExpr("key", "if(value = '37', raise_error('no good'), value) as value")
    )
    bench.works()


def test_a_source_that_reads_uncommitted_records(bench: Bench) -> None:
    with pytest.raises(Exception, match=r"UNSAFE_SESSION.*set its option kafka.isolation.level to read_committed"):
        bench.run(None, {}, **{"kafka.isolation.level": "read_uncommitted"})
    assert bench.written() == Counter()
    bench.works()


def test_a_source_that_passes_over_what_is_gone(bench: Bench) -> None:
    with pytest.raises(Exception, match=r"UNSAFE_SESSION.*leave its option failOnDataLoss at true"):
        bench.run(None, {}, failOnDataLoss="false")
    assert bench.written() == Counter()
    bench.works()


@pytest.mark.parametrize(("name", "other"), [("ingest-day", "ingest 'day'"), ("outbox-shop", "outbox 'shop'")])
def test_a_sink_does_not_take_the_id_of_an_ingest_or_a_relay(name: str, other: str) -> None:
    with pytest.raises(ConfigurationError, match=f"its transactional id is that of the {other}"):
        KafkaSink("t", name=name, bootstrap_servers="localhost:1")


def test_mistakes_in_the_sinks_own_options_all_at_once() -> None:
    with pytest.raises(
        Exception,
        match=r"(?s)name = 'a b'.*guarantee = 'twice'.*compression = 'zip'.*max_attempts = 0.*patience_s = nan",
    ):
        KafkaSink(
            "t",
            name="a b",
            bootstrap_servers="localhost:9092",
            guarantee="twice",
            compression="zip",
            max_attempts=0,
            patience_s=math.nan,
        )


@pytest.mark.parametrize("patience_s", [0.0, -1.0, math.inf, math.nan])
def test_a_patience_that_never_begins_or_never_ends_is_a_mistake(patience_s: float) -> None:
    with pytest.raises(ConfigurationError, match=r"patience_s = .*: a number of seconds above 0"):
        KafkaSink("t", name="a", bootstrap_servers="localhost:9092", patience_s=patience_s)
