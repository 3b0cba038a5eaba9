"""Which node leads a partition or coordinates a name, and how to make another one do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceflow.kafka import codes
from onceflow.kafka.client import GROUP, TRANSACTION, Again, KafkaClient
from onceflow.kafka_python import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    FindCoordinatorRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
)

GROUPS_TOPIC, TRANSACTIONS_TOPIC = "__consumer_offsets", "__transaction_state"
COORDINATED_IN = {GROUP: GROUPS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}

_PREFERRED = 0
_ELECTION_NOT_NEEDED = 84
_NOT_YET = codes.RETRIABLE | {80, 83}  # PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class Replicas:
    """What the metadata say of one partition; ``leader`` is -1 while there is none."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as one node sees it."""

    nodes: frozenset[int]
    partitions: dict[tuple[str, int], Replicas]


def view(client: KafkaClient, node_id: int | None = None, topics: list[str] | None = None) -> View:
    """Asks a node (None: any) once for the metadata of some topics (None: all). Raises Again."""
    named = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    request = MetadataRequest(topics=named, allow_auto_topic_creation=False, max_version=9, min_version=9)
    answer = client.ask(node_id, request)
    partitions = {
        (topic.name, each.partition_index): Replicas(
            each.leader_id, tuple(each.replica_nodes), tuple(sorted(each.isr_nodes))
        )
        for topic in answer.topics
        for each in topic.partitions
    }
    return View(frozenset(each.node_id for each in answer.brokers), partitions)


def replicas_of(client: KafkaClient, topic: str, partition: int) -> Replicas:
    """Asks until the partition is known and has a leader."""

    def once() -> Replicas:
        found = view(client, topics=[topic]).partitions.get((topic, partition))
        if found is None or found.leader < 0:
            raise Again(f"{topic}-{partition} has no leader: {found}")
        return found

    found: Replicas = client.repeat(once, f"the leader of {topic}-{partition}")
    return found


def coordinator_of(client: KafkaClient, kind: int, key: str) -> int:
    """The node that coordinates a group (``GROUP``) or a transactional id (``TRANSACTION``), asked for anew."""
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key], min_version=4, max_version=4)

    def once() -> int:
        found = client.ask(None, request).coordinators[0]
        client.check(found.error_code, f"the coordinator of {key!r}")
        return int(found.node_id)

    node: int = client.repeat(once, f"the coordinator of {key!r}")
    return node


def partition_of(client: KafkaClient, kind: int, key: str) -> int:
    """The partition of the internal topic whose leader coordinates ``key``: Java's hash of it, modulo the count."""
    topic = COORDINATED_IN[kind]
    return partition_among(client.topics([topic])[topic].partition_count, key)


def partition_among(count: int, key: str) -> int:
    """The same, where it is known how many partitions the internal topic has."""
    number = java_hash(key)
    return (0 if number == -(2**31) else abs(number)) % count


def java_hash(text: str) -> int:
    """``String.hashCode()``: over UTF-16 units, 32 bits, signed."""
    data = text.encode("utf-16-be")
    number = 0
    for high, low in zip(data[::2], data[1::2], strict=True):
        number = (31 * number + (high << 8) + low) & 0xFFFFFFFF
    return number - 2**32 if number >= 2**31 else number


def move(client: KafkaClient, topic: str, partition: int, to: int) -> None:
    """Makes node ``to`` the leader: first of the replicas, then elected. As many replicas as before."""
    before = replicas_of(client, topic, partition)
    rest = [node for node in before.replicas if node != to]
    wanted = [to, *rest][: len(before.replicas)]
    client.repeat(lambda: _reassign(client, topic, partition, wanted), f"the replicas of {topic}-{partition}")
    client.repeat(lambda: _arrived(client, topic, partition, wanted), f"the move of {topic}-{partition}")
    client.repeat(lambda: _elect(client, topic, partition), f"the election for {topic}-{partition}")
    client.repeat(lambda: _led_by(client, topic, partition, to), f"the new leader of {topic}-{partition}")


def _reassign(client: KafkaClient, topic: str, partition: int, replicas: list[int]) -> None:
    kind = AlterPartitionReassignmentsRequest.ReassignableTopic
    part = kind.ReassignablePartition(partition_index=partition, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(topics=[kind(name=topic, partitions=[part])], timeout_ms=10_000)
    answer = client.ask(None, request)
    client.check(answer.error_code, "AlterPartitionReassignments")
    client.check(answer.responses[0].partitions[0].error_code, f"the replicas of {topic}-{partition}")


def _arrived(client: KafkaClient, topic: str, partition: int, wanted: list[int]) -> None:
    found = replicas_of(client, topic, partition)
    if list(found.replicas) != wanted or wanted[0] not in found.in_sync:
        raise Again(f"{topic}-{partition} is {found}, and shall be on {wanted}")


def _elect(client: KafkaClient, topic: str, partition: int) -> None:
    part = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[partition])
    answer = client.ask(None, ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=[part], timeout_ms=10_000))
    results: list[Any] = [each for entry in answer.replica_election_results for each in entry.partition_result]
    for code in (answer.error_code, *(each.error_code for each in results)):
        if code in _NOT_YET:
            raise Again(codes.name_of(code))
        if code != _ELECTION_NOT_NEEDED:
            client.check(code, f"the election for {topic}-{partition}")


def _led_by(client: KafkaClient, topic: str, partition: int, node: int) -> None:
    found = replicas_of(client, topic, partition)
    if found.leader != node:
        raise Again(f"{topic}-{partition} is led by {found.leader}")


def reassignments(client: KafkaClient) -> list[str]:
    """The partitions that are being moved, asked once. Raises Again."""
    answer = client.ask(None, ListPartitionReassignmentsRequest(topics=None))
    client.check(answer.error_code, "ListPartitionReassignments")
    return [f"{topic.name}-{part.partition_index}" for topic in answer.topics for part in topic.partitions]
