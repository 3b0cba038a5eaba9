"""KAFKA-20734: a transaction is decided while one of its partitions has no leader, and its marker never comes there.

::

    producer      writes a record to the partition, and is told that it is there
    leader        dies, and no other replica may take its place
    coordinator   is told to commit, answers that it will, and takes a partition without a leader for one that was deleted:
                  its marker is skipped, and the transaction is complete
    leader        is back, and in its log the transaction is open
    producer      writes the next record, and aborts: that marker ends both

A committed record is lost so; where the first transaction is aborted and the second one committed, an aborted one is seen.
Kafka 4.3.0 to 4.4.0 do this, where the metadata cache was written anew in Java; 4.2 keeps the marker until there is a leader
again. Replicas help as long as one in sync is alive: it comes to this where a whole cluster was down, and its brokers are back
one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.faults.newer import NEWER
from tests.faults.support import TIMEOUT_S, Cluster, eventually
from tests.faults.test_hanging_transaction import told_of
from tests.faults.test_known_bugs import transactional
from tests.new_topics import create

from onceflow.broker.installation import LOCKED, Installation
from onceflow.kafka.client import KAFKA_4_3, KafkaClient
from onceflow.verify.cluster import KafkaCluster

pytestmark = pytest.mark.faults

FIRST, SECOND = "first", "second"


class Bench:
    """Three brokers, and a producer whose transactions write to a partition that one of them has alone."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.kafka = kafka
        self.cluster = Cluster(kafka)

    def seen(self, *, first_commits: bool) -> list[str]:
        """What is committed in the end: the leader is away when the first transaction ends, the second one ends otherwise."""
        topic = self.cluster.unique("alone")
        producer = transactional(self.cluster, topic, "none")
        leader = self.kafka.others(self.kafka.transaction_coordinator(topic))[0]
        create(self.cluster.admin, NewTopic(topic, 1, replica_assignment=[[leader.id]]), TIMEOUT_S)
        self.cluster.partitions(topic)
        write(producer, topic, FIRST)
        leader.kill()
        eventually(lambda: self._leader_of(topic), lambda found: found == -1, f"the leader of {topic}")
        end(producer, commits=first_commits)
        leader.start()
        self.kafka.wait_until_healthy()
        write(producer, topic, SECOND)
        end(producer, commits=not first_commits)
        return [value or "" for _, _, value in self.cluster.read(topic)]

    def _leader_of(self, topic: str) -> int:
        return self.cluster.admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions[0].leader


def write(producer: Producer, topic: str, value: str) -> None:
    """Begins a transaction with this record, which is in the log then."""
    producer.begin_transaction()
    producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def end(producer: Producer, *, commits: bool) -> None:
    if commits:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


@contextmanager
def bench_of(directory: Path, version: int, installation: Installation) -> Iterator[Bench]:
    with KafkaCluster(directory, brokers=3, transaction_version=version, installation=installation) as kafka:
        bench = Bench(kafka)
        with closing(bench.cluster):
            yield bench


@pytest.mark.parametrize("version", [1, 2])
def test_a_transaction_that_is_decided_while_a_partition_has_no_leader_is_so_there_too(
    tmp_path: Path, version: int
) -> None:
    with bench_of(tmp_path, version, LOCKED) as bench:
        assert bench.seen(first_commits=True) == [FIRST]
        assert bench.seen(first_commits=False) == [SECOND]


def test_a_pipeline_says_at_its_start_that_brokers_are_newer(
    v2: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert told_of(v2, tmp_path) == []
    with KafkaClient({"bootstrap_servers": [v2.servers]}) as client:
        assert 0 < client.newest_metadata_version() < KAFKA_4_3
    monkeypatch.setattr(KafkaClient, "newest_metadata_version", lambda self: KAFKA_4_3)
    (note,) = told_of(v2, tmp_path)
    assert "KAFKA-20734" in note


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2])
def test_control_newer_brokers_lose_what_was_committed_and_show_what_was_aborted(tmp_path: Path, version: int) -> None:
    """Where this fails, that release has it mended: embed it, and say so in ``pipeline/preflight.py``."""
    with bench_of(tmp_path, version, NEWER) as bench:
        (note,) = told_of(bench.cluster, tmp_path)
        assert "KAFKA-20734" in note
        assert bench.seen(first_commits=True) == []
        assert bench.seen(first_commits=False) == [FIRST, SECOND]
