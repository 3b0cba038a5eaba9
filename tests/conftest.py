"""What tests share: a real broker of each transaction version and a Spark session, started when first asked for."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from hypothesis import HealthCheck, settings

from onceflow.broker import EmbeddedBroker
from onceflow.broker.java_tool import FAST_START

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from onceflow import KafkaSink

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what the tests share

from tests.log_ends import last_stable_offsets, left_unstable, log_ends
from tests.new_topics import create

pytest_plugins = ("tests.parallel", "tests.told_at_once", "tests.in_turn")

# How long an example takes says something of the machine alone.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Spark's driver as the brokers, in commands that tests run too: lives are short, and of its usual compilers' and collector's work
# a third of the processor time is spared.
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(FAST_START))

HEAP_MB = 256
_ADMIN_TIMEOUT_S = 30
_QUERY_TIMEOUT_S = 600
_STABLE_S = 60.0
_LOOK_S = 0.5


class TopicFactory(Protocol):
    """Makes a topic and gives its name, which no other topic of this run has."""

    def __call__(
        self, partitions: int = 1, *, config: Mapping[str, str] | None = None, on: EmbeddedBroker | None = None
    ) -> str: ...


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with transaction version 2, for all tests that do not stop or kill it."""
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), heap_mb=HEAP_MB) as running:
        yield running


@pytest.fixture(scope="session")
def broker_v1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with transaction version 1, for all tests that do not stop or kill it."""
    directory = tmp_path_factory.mktemp("broker-v1")
    with EmbeddedBroker(directory, transaction_version=1, heap_mb=HEAP_MB) as running:
        yield running


@pytest.fixture(scope="session")
def topic(request: pytest.FixtureRequest) -> TopicFactory:
    """Makes topics, on ``broker`` where no other is named."""
    numbers = itertools.count()

    def make(partitions: int = 1, *, config: Mapping[str, str] | None = None, on: EmbeddedBroker | None = None) -> str:
        name = f"topic-{next(numbers)}"
        create_topic(on or request.getfixturevalue("broker"), name, partitions, config)
        return name

    return make


def create_topic(
    broker: EmbeddedBroker, name: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Make a topic and wait until the broker leads it: it tells of one before it takes records for it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic(name, partitions, replication_factor=1, config=dict(config or {}))
    create(admin, new, _ADMIN_TIMEOUT_S)
    deadline = time.monotonic() + _ADMIN_TIMEOUT_S
    while (
        name not in admin.list_topics(timeout=_ADMIN_TIMEOUT_S).topics
    ):  # the controller made it, and tells the broker now
        assert time.monotonic() < deadline, f"the broker has not heard of topic {name}"
        time.sleep(0.05)
    log_ends(admin, name, range(partitions))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session."""
    from onceflow.session import spark_session

    session = spark_session("onceflow-tests")
    yield session
    session.stop()


class Reader(Protocol):
    """Reads all committed records of a topic, partition by partition."""

    def __call__(self, topic: str, *, on: EmbeddedBroker | None = None, committed: bool = True) -> list[Message]: ...


@pytest.fixture(scope="session")
def read(request: pytest.FixtureRequest) -> Reader:
    """Reads a topic from its beginning to its last stable offset; fails when a transaction is left open there."""

    def all_of(topic: str, *, on: EmbeddedBroker | None = None, committed: bool = True) -> list[Message]:
        return read_topic(on or request.getfixturevalue("broker"), topic, committed=committed)

    return all_of


def read_topic(broker: EmbeddedBroker, topic: str, *, committed: bool = True) -> list[Message]:
    """Every record of a topic as librdkafka sees it; ``committed`` hides aborted ones."""
    # Not by the reader's watermarks: those of a read_committed one are the last stable offsets.
    return _read_to(log_ends, broker, topic, committed=committed)


def read_what_is_stable(broker: EmbeddedBroker, topic: str) -> list[Message]:
    """What a reader of committed records gets now, and waits for no transaction that is open."""
    return _read_to(last_stable_offsets, broker, topic, committed=True)


def _read_to(
    ends_of: Callable[[AdminClient, str, Iterable[int]], dict[int, int]],
    broker: EmbeddedBroker,
    topic: str,
    *,
    committed: bool,
) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "tests",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=_ADMIN_TIMEOUT_S).topics[topic].partitions
        ends = ends_of(AdminClient({"bootstrap.servers": broker.bootstrap_servers}), topic, partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in ends])
        return list(_until_end(consumer, topic, ends))
    finally:
        consumer.close()


def until_stable(broker: EmbeddedBroker, topic: str) -> None:
    """Waits for the markers of what was committed or aborted."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    left = left_unstable(
        admin, topic, admin.list_topics(topic, timeout=_ADMIN_TIMEOUT_S).topics[topic].partitions, _STABLE_S
    )
    assert not left, f"{topic} has last stable offsets before its ends: {left}: a transaction is open"


def _until_end(consumer: Consumer, topic: str, ends: Mapping[int, int]) -> Iterator[Message]:
    """Waits where the last stable offset is not yet the end: markers are written after a commit was answered."""
    rest = dict(ends)
    deadline = time.monotonic() + _STABLE_S
    while rest:
        message = consumer.poll(_LOOK_S)
        assert message is not None or time.monotonic() < deadline, (
            f"{topic} is not stable up to {rest}: a transaction is open"
        )
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message
        elif error.code() != KafkaError._PARTITION_EOF:
            raise AssertionError(str(error))
        elif (message.offset() or 0) >= rest.get(message.partition() or 0, 0):
            rest.pop(message.partition() or 0, None)


class Fill(Protocol):
    """Writes records to a topic, without a transaction."""

    def __call__(
        self, topic: str, records: Iterable[tuple[str | None, str | None]], *, on: EmbeddedBroker | None = None
    ) -> None: ...


@pytest.fixture(scope="session")
def fill(request: pytest.FixtureRequest) -> Fill:
    """Writes (key, value) pairs, and returns when all are acknowledged."""

    def write(
        topic: str, records: Iterable[tuple[str | None, str | None]], *, on: EmbeddedBroker | None = None
    ) -> None:
        broker = on or request.getfixturevalue("broker")
        in_order = {"max.in.flight.requests.per.connection": 1}
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5, **in_order})
        for key, value in records:
            producer.produce(topic, key=key, value=value)
        assert producer.flush(_ADMIN_TIMEOUT_S) == 0

    return write


Write = Callable[["DataFrame", int], None]


class RunQuery(Protocol):
    """Runs a streaming query over a topic until it has read all there is."""

    def __call__(
        self,
        source: str,
        write: Write,
        checkpoint: Path,
        *,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        on: EmbeddedBroker | None = None,
        mode: str = "append",
        timeout_s: int = _QUERY_TIMEOUT_S,
        **options: object,
    ) -> StreamingQuery: ...


@pytest.fixture(scope="session")
def run_query(request: pytest.FixtureRequest) -> RunQuery:
    """``readStream`` of a topic with safe options, ``foreachBatch``, available now. Raises what the query raised."""

    def run(
        source: str,
        write: Write,
        checkpoint: Path,
        *,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        on: EmbeddedBroker | None = None,
        mode: str = "append",
        timeout_s: int = _QUERY_TIMEOUT_S,
        **options: object,
    ) -> StreamingQuery:
        from onceflow.session import SOURCE_DEFAULTS

        spark: SparkSession = request.getfixturevalue("spark")
        broker = on or request.getfixturevalue("broker")
        given = {**SOURCE_DEFAULTS, "kafka.bootstrap.servers": broker.bootstrap_servers, "startingOffsets": "earliest"}
        reader = spark.readStream.format("kafka").options(**given).options(**{k: str(v) for k, v in options.items()})
        lines = reader.option("subscribe", source).load()
        frame = transform(lines) if transform else lines.select("key", "value")
        writer = frame.writeStream.foreachBatch(write).outputMode(mode).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            assert query.awaitTermination(timeout_s), "the query did not end"
        finally:
            query.stop()
        return query

    return run


@dataclass(frozen=True, slots=True)
class Workbench:
    """What most tests of a sink use together: topics to make, fill and read, and a query with one checkpoint."""

    broker: EmbeddedBroker
    topic: TopicFactory
    fill: Fill
    read: Reader
    run_query: RunQuery
    checkpoint: Path

    def run(self, source: str, target: str | None, sink: Mapping[str, Any] | None = None, **query: Any) -> Ran:
        """A query from ``source`` to ``target`` through a sink with these options, closed at the end."""
        from onceflow import KafkaSink

        broker = query.get("on") or self.broker
        options = {"name": target, "bootstrap_servers": broker.bootstrap_servers, **(sink or {})}
        used = KafkaSink(target, **options)
        try:
            return Ran(self.run_query(source, used, self.checkpoint, **query), used)
        finally:
            used.close()


class Ran(NamedTuple):
    """A query that has ended, and its sink."""

    query: StreamingQuery
    sink: KafkaSink


@pytest.fixture
def bench(
    broker: EmbeddedBroker, topic: TopicFactory, fill: Fill, read: Reader, run_query: RunQuery, tmp_path: Path
) -> Workbench:
    return Workbench(broker, topic, fill, read, run_query, tmp_path / "checkpoint")
