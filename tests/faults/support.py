"""What the fault tests share: a cluster with a reader that judges, and light drivers in processes of their own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import create_topic
from tests.faults.light import RECORDS_PER_BATCH, Job
from tests.forkserver import Ended, ForkServer
from tests.log_ends import left_unstable
from tests.new_topics import create

from onceflow.broker import EmbeddedBroker
from onceflow.kafka_python import ApiVersionsRequest
from onceflow.verify.cluster import KafkaCluster

TIMEOUT_S = 60.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.05
UNVERIFIED = {"transaction.partition.verification.enable": "false"}  # of a broker: no leader asks the coordinator
PUNCTUAL = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
"""Of a broker: it aborts a transaction soon after its timeout, and not up to 10 s later."""
PARTITIONS = 3

API_VERSIONS = ApiVersionsRequest(client_software_name="tests", client_software_version="1", max_version=4)

T = TypeVar("T")
Row = tuple[int, str | None, str | None]  # partition, key, value


def eventually(look: Callable[[], T], is_so: Callable[[T], bool], what: str, timeout_s: float = TIMEOUT_S) -> T:
    """What ``look`` gives, once it ``is_so``. Later it looks less often: looking takes processor time from what is awaited."""
    deadline, pause_s = time.monotonic() + timeout_s, SHORTEST_PAUSE_S
    while not is_so(found := look()):
        assert time.monotonic() < deadline, f"{what}: still {found!r}"
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, LONGEST_PAUSE_S)
    return found


def delete_topic(broker: EmbeddedBroker, topic: str) -> None:
    """Until the broker has heard of it, too: the controller answers a moment earlier, and a client would find it there still."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(2 * TIMEOUT_S)
    eventually(lambda: set(admin.list_topics(timeout=TIMEOUT_S).topics), lambda known: topic not in known, topic)


def make_anew(broker: EmbeddedBroker, topic: str, partitions: int) -> None:
    """Deletes a topic, and makes another one of its name when the broker has forgotten the first and writes to it no more."""
    delete_topic(broker, topic)
    create_topic(broker, topic, partitions)


class Cluster:
    """One broker, topics with names of their own, and one reader of committed records.

    Drivers go through the wires, if there are any; who judges does not, or a fault that cuts connections cuts its own: librdkafka
    passes that on to whoever has just asked.
    """

    _numbers = itertools.count()

    def __init__(self, broker: EmbeddedBroker | KafkaCluster) -> None:
        self.broker = cast(EmbeddedBroker, broker)  # tests of a whole cluster ask it nothing that a single broker lacks
        self.servers = broker.bootstrap_servers
        past_wires = broker.direct_servers if isinstance(broker, KafkaCluster) else self.servers
        self.admin = AdminClient({"bootstrap.servers": past_wires, "log_level": 0})
        self._reader = Consumer(
            {
                "bootstrap.servers": past_wires,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
                "fetch.error.backoff.ms": 10,
                "topic.metadata.refresh.fast.interval.ms": 20,
                "log_level": 0,
            }
        )

    def close(self) -> None:
        self._reader.close()

    def unique(self, what: str) -> str:
        return f"{what}-{next(self._numbers)}"

    def make_topic(self, partitions: int = PARTITIONS, **config: str) -> str:
        name = self.unique("faults")
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, partitions, config=settings)  # as many replicas as a cluster of its size has
        create(self.admin, new, TIMEOUT_S)
        self.partitions(name)  # the controller made it, and tells the broker now
        return name

    def partitions(self, topic: str) -> list[int]:
        def look() -> list[int]:
            return sorted(self.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)

        return eventually(look, bool, f"the partitions of {topic}")

    def stable_end(self, topic: str) -> None:
        """Waits until the last stable offsets have come to where the partitions end now: nothing of that is left hanging."""
        left = left_unstable(self.admin, topic, self.partitions(topic), TIMEOUT_S)
        assert not left, f"last stable offsets and ends of {topic}: still {left}"

    def read(self, topic: str) -> list[Row]:
        """All committed records, in order within each partition."""
        return [(m.partition(), _text(m.key()), _text(m.value())) for m in self.messages(topic)]

    def messages(self, *topics: str) -> list[Any]:
        for topic in topics:
            self.stable_end(topic)
            # A reader that does not know the leader yet asks for it, and looks again half a second later.
            self._reader.list_topics(topic, timeout=TIMEOUT_S)
        waiting = {(topic, number) for topic in topics for number in self.partitions(topic)}
        self._reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in waiting])
        found = []
        deadline = time.monotonic() + TIMEOUT_S
        while waiting:
            assert time.monotonic() < deadline, f"no end of {waiting}"
            message = self._reader.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.name() == "_PARTITION_EOF":
                waiting.discard((str(message.topic()), message.partition()))
        self._reader.unassign()
        return found

    def check_all_exactly(self, topics: list[str], expected: list[tuple[str, str]]) -> None:
        """As ``check_exactly``, for many topics of one partition that all hold the same."""
        by_topic: dict[str, list[tuple[str | None, str | None]]] = {topic: [] for topic in topics}
        for message in self.messages(*topics):
            by_topic[message.topic()].append((_text(message.key()), _text(message.value())))
        wrong = {topic: rows for topic, rows in by_topic.items() if rows != expected}
        assert not wrong

    def check_exactly(self, topic: str, expected: Iterable[tuple[str, str]]) -> None:
        """Each (key, value) once; the values of a key in their order, in one partition."""
        rows = self.read(topic)
        assert sorted(_pairs(rows)) == sorted(expected), "missing or repeated"
        wanted: dict[str, list[str]] = {}
        for key, value in expected:
            wanted.setdefault(key, []).append(value)
        for key, values in wanted.items():
            of_key = [(partition, found) for partition, k, found in rows if k == key]
            assert [found for _, found in of_key] == values, f"the order of {key}"
            assert len({partition for partition, _ in of_key}) == 1, f"{key} is in several partitions"


def _pairs(rows: Iterable[Row]) -> list[tuple[str, str]]:
    return [(key or "", value or "") for _, key, value in rows]


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data


class LightDrivers(ForkServer):
    """The fork server of ``light.py``."""

    def __init__(self, directory: Path) -> None:
        super().__init__("tests.faults.light", directory)

    def job(self, cluster: Cluster, topic: str, **options: Any) -> Job:
        name = cluster.unique("light")
        return Job(cluster.servers, name, topic, str(self._directory / name), **options)


def expected_records(batches: int) -> list[tuple[str, str]]:
    from tests.faults.light import records_of

    return [record for batch in range(batches) for record in records_of(batch)]


__all__ = [
    "PARTITIONS",
    "RECORDS_PER_BATCH",
    "TIMEOUT_S",
    "Cluster",
    "Ended",
    "Job",
    "LightDrivers",
    "eventually",
    "expected_records",
]
