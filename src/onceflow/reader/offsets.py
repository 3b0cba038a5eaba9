"""The group's offsets in Kafka: for lag tools, as a witness of the store, and to remember where there is nothing to handle.

What it survives::

    an asynchronous commit is refused (the group is just being rebalanced), and no new event comes
    what was refused is told again; otherwise the lag would stay for ever

    a process dies after the store's commit and before Kafka's; the next one finds nothing new
    a lane begins with what Kafka was told, so the difference is told

    the last record of a transaction is handled: the position is the offset of the transaction's own end. Retention deletes all
    the reader had read to the partition's end and said so in the offset's metadata: from that position up to there is nothing.
    So nothing was lost, if the topic now begins no later; without that witness it could as well have lost events

    the same, and then somebody resets the group's offsets, or the store is restored
    the note is for one position alone: where Kafka's offset is not the store's position it says nothing

    a group with ``start="latest"`` has noted where it begins, and dies before it handles anything; the next one's store knows
    nothing of that partition
    that offset says that it is a beginning (``beginnings.py``): it is no witness of a store that has lost something
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from onceflow.errors import BrokerUnreachable
from onceflow.reader.lane import Lane

log = logging.getLogger("onceflow.reader")
Place = tuple[str, int]
KAFKA_TIMEOUT_S = 60.0
# confluent-kafka may give more bytes than the metadata has; so the note has an end of its own.
_NOTE = re.compile(r"empty-until:(\d+);", re.ASCII)
_BEGINNING = "begins-here;"


class Committed(NamedTuple):
    """A group's offset of one partition; from it to ``empty_until`` there is nothing to handle.

    ``is_beginning``: the group begins there, and has handled nothing before it.
    """

    offset: int
    empty_until: int
    is_beginning: bool = False


def tell_kafka(consumer: Consumer, lanes: Sequence[Lane], *, wait: bool) -> bool:
    """Commits the lanes' positions to the group; whether that is known to have worked. Nothing depends on it."""
    news = [lane for lane in lanes if lane.has_news()]
    if not news:
        return True
    offsets = [_offset_of(lane) for lane in news]
    try:
        if wait:
            refused = [each for each in consumer.commit(offsets=offsets, asynchronous=False) or () if each.error]
        else:
            refused = []
            consumer.commit(offsets=offsets, asynchronous=True)
    except KafkaException as error:
        log.info("offsets not committed to the group, the store has them: %s", error.args[0].str())
        return False
    for each in refused:
        log.info("%s-%d: offset not committed: %s", each.topic, each.partition, each.error)
    for lane in news:
        lane.sent_position, lane.sent_until = lane.position, lane.empty_until
    return not refused


def committed_offsets(consumer: Consumer, places: Sequence[Place]) -> Mapping[Place, Committed]:
    """What the group committed, where it committed anything. Raises BrokerUnreachable."""
    if not places:
        return {}
    try:
        found = consumer.committed([TopicPartition(*place) for place in places], timeout=KAFKA_TIMEOUT_S)
    except KafkaException as error:
        raise BrokerUnreachable(f"the group's offsets cannot be read: {error.args[0].str()}") from error
    for each in found:
        if each.error is not None:
            raise BrokerUnreachable(
                f"{each.topic}-{each.partition}: the group's offset cannot be read: {each.error.str()}"
            )
    return {(each.topic, each.partition): _committed(each) for each in found if each.offset >= 0}


def note_beginnings(consumer: Consumer, beginnings: Mapping[Place, int]) -> None:
    """Commits where the group begins, its own partitions or not. Raises BrokerUnreachable where that is not known to have worked.

    Kafka asks whether the committing member belongs to the group, not whether it owns the partitions.
    """
    offsets = [TopicPartition(*place, offset, metadata=_BEGINNING) for place, offset in beginnings.items()]
    try:
        refused = [each.error for each in consumer.commit(offsets=offsets, asynchronous=False) or () if each.error]
    except KafkaException as error:
        refused = [error.args[0]]
    if refused:
        raise BrokerUnreachable(f"where the group begins was not noted: {refused[0].str()}")


def beginning(consumer: Consumer, place: Place) -> int:
    """The first offset that the topic still has. Raises BrokerUnreachable."""
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(*place), timeout=KAFKA_TIMEOUT_S)
    except KafkaException as error:
        raise BrokerUnreachable(f"{place[0]}-{place[1]}: {error.args[0].str()}") from error
    return int(low)


def _offset_of(lane: Lane) -> TopicPartition:
    position = lane.position or 0
    until = lane.empty_until
    note = f"empty-until:{until};" if until is not None and until > position else ""
    return TopicPartition(lane.ownership.topic, lane.ownership.partition, position, metadata=note)


def _committed(found: TopicPartition) -> Committed:
    metadata = _metadata(found)
    note = _NOTE.match(metadata)
    empty_until = max(int(note[1]), found.offset) if note else found.offset
    return Committed(found.offset, empty_until, metadata.startswith(_BEGINNING))


def _metadata(found: TopicPartition) -> str:
    """Another client's may be no text: it is decoded here, where it is asked for."""
    try:
        return found.metadata or ""
    except UnicodeDecodeError:
        return ""
