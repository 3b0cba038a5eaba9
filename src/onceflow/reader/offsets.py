"""The group's offsets in Kafka: for lag tools, as a witness of the store, and to remember where there is nothing to handle.

What it survives::

    an asynchronous commit is refused (the group is just being rebalanced), and no new event comes
    what was refused is told again; otherwise the lag would stay for ever

    the same, and the reader ends, or the partition is revoked, before the refusal has come back
    what is not answered yet does not count as told there: it is told once more, and waited for

    the broker freezes; the reader, which has handled an event since it last told Kafka, is asked to end
    it waits only for so long for the answer to its last commit, and for librdkafka's close (closing.py). While it goes on it does
    not wait for the answer to a commit where it gets none to a question (``_commit_now``)

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

    the same, and it had read to the partition's end, where there was nothing for it to handle
    the note says both, as long as the position is where the group began

    a group dies after its first effect, and before Kafka has heard of a position behind it; its store is lost
    the offset says that the group handles events from there on (``witness.py``): a store that knows nothing was lost

    the topic is deleted and made anew while it is read; Kafka drops the group's offsets, and the reader commits once more
    the note says of which topic the offset is: of another one it is no witness (same_topics.py). A store that forgets with its
    process would book as many of the new topic's events as handled
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceflow.errors import BrokerUnreachable, NotAuthorized
from onceflow.kafka.rights import is_denied
from onceflow.reader.lane import Lane
from onceflow.reader.membership import PutOut, is_put_out

log = logging.getLogger("onceflow.reader")
Place = tuple[str, int]
KAFKA_TIMEOUT_S = 60.0
ANSWER_S = 10.0
_PASSING = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""Either the next generation has this member, or a poll says that its partitions are gone."""
# confluent-kafka may give more bytes than the metadata has; so the note has an end of its own, and one, whatever it says.
_BEGINS, _HANDLES = "begins-here", "handles-from-here"
_NOTE = re.compile(rf"(?:topic:([\w-]{{8}}))?,?({_BEGINS}|{_HANDLES})?,?(?:empty-until:(\d+))?;", re.ASCII)


class Committed(NamedTuple):
    """A group's offset of one partition; from it to ``empty_until`` there is nothing to handle.

    ``is_beginning``: the group begins there, and has handled nothing. ``handles``: it handles events from there on, and may have
    handled some. ``topic_id``: of which topic, where it says so.
    """

    offset: int
    empty_until: int
    is_beginning: bool = False
    topic_id: str | None = None
    handles: bool = False

    @property
    def is_witness(self) -> bool:
        """Whether a store that knows nothing of the partition, or less, was lost. A plain 0 may be one that it was reset to."""
        return self.handles or (self.offset > 0 and not self.is_beginning)

    @property
    def tells_nothing(self) -> bool:
        """An offset of 0 that is none of the reader's own, which name their topic: somebody has reset the group to it."""
        return not self.is_witness and not self.is_beginning and self.topic_id is None

    @property
    def note(self) -> str:
        """As Kafka has it."""
        word = _HANDLES if self.handles else _BEGINS if self.is_beginning else None
        empty_until = self.empty_until if self.empty_until > self.offset else None
        return _note(word, empty_until=empty_until, topic_id=self.topic_id)


def tell_kafka(consumer: Consumer, lanes: Sequence[Lane], *, wait: bool) -> bool:
    """Commits the lanes' positions to the group; whether that is known to have worked. Nothing depends on it."""
    return not _refusals(consumer, lanes, wait=wait, answer_s=ANSWER_S)


def is_refused_for_now(consumer: Consumer, lanes: Sequence[Lane], answer_s: float) -> bool:
    """The same, waited for; whether Kafka has refused them for a reason that passes while the consumer is polled."""
    return any(each.code() in _PASSING for each in _refusals(consumer, lanes, wait=True, answer_s=answer_s))


def _refusals(consumer: Consumer, lanes: Sequence[Lane], *, wait: bool, answer_s: float) -> list[KafkaError]:
    news = [lane for lane in lanes if lane.has_news()]
    if not news:
        return []
    offsets = [_offset_of(lane) for lane in news]
    try:
        if wait:
            refused = _commit_now(consumer, offsets, answer_s)
        else:
            refused = []
            consumer.commit(offsets=offsets, asynchronous=True)
    except KafkaException as error:
        log.info("offsets not committed to the group, the store has them: %s", error.args[0].str())
        return [error.args[0]]
    for each in refused:
        log.info("%s-%d: offset not committed: %s", each.topic, each.partition, each.error)
    untold = {(each.topic, each.partition) for each in refused}
    for lane in news:
        if (lane.ownership.topic, lane.ownership.partition) not in untold:
            lane.sent_position, lane.sent_until = lane.position, lane.empty_until
            lane.unanswered += not wait
    return [each.error for each in refused if each.error]


def _commit_now(
    consumer: Consumer, offsets: Sequence[TopicPartition], answer_s: float | None = None
) -> list[TopicPartition]:
    """Commits, and waits for the answer: what was refused. Raises KafkaException.

    librdkafka waits for that answer for minutes, whoever wants to end meanwhile. For how long it waits for the answer to a
    question can be told, so the coordinator is asked first.
    """
    consumer.committed([TopicPartition(each.topic, each.partition) for each in offsets], timeout=answer_s or ANSWER_S)
    return [each for each in consumer.commit(offsets=list(offsets), asynchronous=False) or () if each.error]


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

    Kafka asks whether the committing member belongs to the group, not whether it owns the partitions. Raises PutOut.
    """
    _commit(consumer, [TopicPartition(*each, at, metadata=_note(_BEGINS)) for each, at in beginnings.items()])


def note_again(consumer: Consumer, committed: Mapping[Place, Committed]) -> None:
    """Commits what Kafka has already: that asks it whether the consumer is a member. Raises as ``note_beginnings``."""
    _commit(consumer, [TopicPartition(*place, each.offset, metadata=each.note) for place, each in committed.items()])


def note_handling(consumer: Consumer, lane: Lane) -> None:
    """Commits that the group handles events from the lane's position on. Raises as ``note_beginnings``."""
    lane.handles_from = lane.position
    _commit(consumer, [_offset_of(lane)])
    lane.sent_position, lane.sent_until = lane.position, lane.empty_until


def _commit(consumer: Consumer, offsets: list[TopicPartition]) -> None:
    try:
        refused = [each.error for each in _commit_now(consumer, offsets) if each.error]
    except KafkaException as error:
        refused = [error.args[0]]
    if any(map(is_put_out, refused)):
        raise PutOut(refused[0].str())
    if refused and is_denied(refused[0]):
        named = ", ".join(dict.fromkeys(each.topic for each in offsets))
        raise NotAuthorized(f"offsets of {named}: {refused[0].str()}", action=f"grant READ on the group and on {named}")
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
    note = _note(
        _HANDLES if position == lane.handles_from else _BEGINS if position == lane.begins_at else None,
        empty_until=until if until is not None and until > position else None,
        topic_id=lane.topic_id,
    )
    return TopicPartition(lane.ownership.topic, lane.ownership.partition, position, metadata=note)


def _note(word: str | None, *, empty_until: int | None = None, topic_id: str | None = None) -> str:
    parts = [
        *([] if topic_id is None else [f"topic:{topic_id}"]),
        *([] if word is None else [word]),
        *([] if empty_until is None else [f"empty-until:{empty_until}"]),
    ]
    return f"{','.join(parts)};" if parts else ""


def _committed(found: TopicPartition) -> Committed:
    topic_id, word, until = note.groups() if (note := _NOTE.match(_metadata(found))) else (None, None, None)
    return Committed(found.offset, max(int(until or 0), found.offset), word == _BEGINS, topic_id, word == _HANDLES)


def _metadata(found: TopicPartition) -> str:
    """Another client's may be no text: it is decoded here, where it is asked for."""
    try:
        return found.metadata or ""
    except UnicodeDecodeError:
        return ""
