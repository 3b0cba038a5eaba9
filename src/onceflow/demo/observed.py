"""What really came out: every record that a ``read_committed`` consumer gets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from onceflow.demo.topics import partitions_of
from onceflow.errors import DemoError

_READ_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Record:
    """One record as it lies in Kafka."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def read_committed(bootstrap_servers: str, topics: Sequence[str]) -> dict[str, list[Record]]:
    """All records of ``topics`` in the order of their partitions. Raises DemoError if the ends are not reached in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "onceflow-demo-proof",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        partitions = partitions_of(topics)
        consumer.assign([TopicPartition(each.topic, each.partition, OFFSET_BEGINNING) for each in partitions])
        return _read(consumer, topics, {(each.topic, each.partition) for each in partitions})
    finally:
        consumer.close()


def _read(consumer: Consumer, topics: Sequence[str], unread: set[tuple[str, int]]) -> dict[str, list[Record]]:
    records: dict[str, list[Record]] = {topic: [] for topic in topics}
    deadline = time.monotonic() + _READ_TIMEOUT_S
    while unread:
        if time.monotonic() > deadline:
            raise DemoError(f"a reader did not reach the ends of {', '.join(topics)} within {_READ_TIMEOUT_S} s")
        message = consumer.poll(1)
        if message is None:
            continue
        at = _position(message)
        if _is_end(message):
            unread.discard(at)
        else:
            records[at[0]].append(_record(message, *at))
    return records


def _position(message: Message) -> tuple[str, int]:
    topic, partition = message.topic(), message.partition()
    if topic is None or partition is None:
        raise DemoError(f"the reader got an error: {message.error()}")
    return topic, partition


def _is_end(message: Message) -> bool:
    error = message.error()
    if error is not None and error.name() != "_PARTITION_EOF":
        raise DemoError(f"the reader got an error: {error}")
    return error is not None


def _record(message: Message, topic: str, partition: int) -> Record:
    offset = message.offset()
    assert offset is not None
    return Record(topic, partition, offset, _bytes(message.key()), _bytes(message.value()))


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
