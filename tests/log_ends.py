"""Where the logs of a topic end, and how far they are stable.

A commit or an abort is answered before its markers are there, so whoever reads up to the end may be too early::

    coordinator  has it in its own log, and answers
    reader       asks where it may read to: the transaction is still open there
    coordinator  has the markers written
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

_LEADER_MOVES = {
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # to a broker that has just heard of it
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
_TIMEOUT_S = 60
_LOOK_AGAIN_S = 0.02


def log_ends(admin: AdminClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    return _ends(admin, topic, partitions, IsolationLevel.READ_UNCOMMITTED)


def last_stable_offsets(admin: AdminClient, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    return _ends(admin, topic, partitions, IsolationLevel.READ_COMMITTED)


def left_unstable(
    admin: AdminClient, topic: str, partitions: Iterable[int], patience_s: float
) -> dict[int, tuple[int, int]]:
    """Waits until the topic is stable up to where its logs end now. What is not in time: last stable offset and end."""
    ends, deadline = log_ends(admin, topic, partitions), time.monotonic() + patience_s
    while True:
        stable = last_stable_offsets(admin, topic, ends)
        left = {number: (stable[number], end) for number, end in ends.items() if stable[number] < end}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_LOOK_AGAIN_S)


def _ends(admin: AdminClient, topic: str, partitions: Iterable[int], isolation: IsolationLevel) -> dict[int, int]:
    """A leader that has just moved may not know yet, and librdkafka does not ask again."""
    latest, deadline = OffsetSpec.latest(), time.monotonic() + _TIMEOUT_S  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, number): latest for number in partitions}
    while True:
        asked = admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT_S)
        try:
            return {at.partition: end.result(_TIMEOUT_S).offset for at, end in asked.items()}
        except KafkaException as error:
            if error.args[0].code() not in _LEADER_MOVES or time.monotonic() > deadline:
                raise
            admin.list_topics(topic, timeout=_TIMEOUT_S)  # librdkafka remembers for minutes what it was told too early
        time.sleep(_LOOK_AGAIN_S)
