"""Where a group with ``start="latest"`` begins, decided once for all partitions of a topic.

What it survives::

    a partition is added to the topic, and events are written to it before the reader finds it (up to five minutes)
    the group has offsets of other partitions of the topic, so this one is younger than the group: it begins at its beginning

    A and B are the first of a group; A gets partitions 0 and 1; B gets 2 and 3, and dies before it reads; A handles events for an
    hour, then C gets 2 and 3
    A has noted in Kafka where the group begins, in all partitions, before it read any. At the end C would lose the events of an
    hour; at the beginning it would handle all that was there before the group

    A and B find nothing noted, both note the ends that they see, and B's are later than where A begins; A dies, C comes
    each books its own beginnings in the store, under its epoch, before it reads, and the store goes before the note. Before it
    notes it looks once more. What remains is a moment: a partition that neither has booked yet begins at the later of two notes

    the topic is new, so the group begins at 0; nothing comes for longer than Kafka keeps offsets; events come, then C
    0 is booked as any other beginning: without it C would find nothing, and begin behind those events

    a partition is given out before the broker that is asked knows of it
    it is waited for: left out of the note it would look like one that was added later, and begin at its beginning

    A dies between the note and the store
    C begins where the note says. With the store first, what A has not booked would look like partitions that were added

    A finds nothing noted and is stopped; B and C come, note and handle; A wakes and notes
    Kafka refuses it, as A is no member any more; it looks again, and finds the offsets of B and C

    the group rests for longer than Kafka keeps offsets; a partition is added, and events are written to it; A gets those that the
    store knows, and B, which asks Kafka before A has told it anything, the new one alone
    the store has a mark that the group has begun in the topic, behind its note in Kafka, and B asks for it before it asks Kafka:
    the new partition begins at its beginning. Without it B would find nothing, and begin behind those events

    A dies after it began, and has handled nothing; events come; C begins where A began, and not at the new end
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from confluent_kafka import Consumer

from onceflow.errors import BrokerUnreachable, StoreFenced, TopicMissing
from onceflow.kafka.admin import ClusterAdmin
from onceflow.reader.event import position_source
from onceflow.reader.offsets import Committed, Place, committed_offsets, note_beginnings
from onceflow.reader.same_topics import NAME
from onceflow.reader.settings import ReaderSettings
from onceflow.reader.stores.interface import EventKey, Ownership, Store

log = logging.getLogger("onceflow.reader")
_HAS_BEGUN = 1  # a partition of ``same_topics.NAME``: that the group has begun is its position


class Beginnings:
    """Gives a new group its beginnings at the end of each partition, and keeps them."""

    def __init__(self, settings: ReaderSettings, store: Store, owner: str) -> None:
        self._settings = settings
        self._store = store
        self._owner = owner

    def noted(
        self, consumer: Consumer, owned: Sequence[Ownership], committed: Mapping[Place, Committed]
    ) -> Mapping[Place, Committed]:
        """What Kafka knows of the topics of partitions that neither the store nor ``committed`` knows.

        Where the group has not begun its beginnings are noted first. Raises KafkaError, StoreError; it can be repeated.
        """
        unknown = {each.topic for each in owned if each.next_offset is None and _place(each) not in committed}
        topics = unknown.difference(each.topic for each in owned if each.next_offset is not None)
        if not topics:
            return {}
        marked = {topic for topic in topics if self._mark(topic).next_offset is not None}
        admin = ClusterAdmin(self._settings.cluster, patience_s=self._settings.answer_s)
        places = sorted(partitions_of(admin, topics).union(_place(each) for each in owned if each.topic in topics))
        told = committed_offsets(consumer, places)
        ends = ends_of(admin, _not_in(marked | begun(told), places))
        if ends:
            told = committed_offsets(consumer, places)
            ends = {place: ends[place] for place in _not_in(marked | begun(told), places)}
        if ends:
            note_beginnings(consumer, ends)
            log.info("the group %s begins at the end: %s", self._settings.group, _text(ends))
        for topic in topics - marked:
            self._book_mark(topic)
        return {**told, **{place: Committed(end, end, is_beginning=True) for place, end in ends.items()}}

    def _mark(self, topic: str) -> Ownership:
        (mark,) = self._store.take(NAME.format(topic=topic), [_HAS_BEGUN], self._owner)
        return mark

    def _book_mark(self, topic: str) -> None:
        """Another member that looks for it takes it too."""
        while (mark := self._mark(topic)).next_offset is None:
            with suppress(StoreFenced):
                book(self._store, mark, 1, self._settings.lease_s)

    def book(self, ownership: Ownership, first: int) -> Ownership:
        """Makes the group's first offset the position in the store. Raises StoreError; it can be repeated.

        A reader that was fenced meanwhile books nothing, and is refused whatever it handles.
        """
        try:
            return book(self._store, ownership, first, self._settings.lease_s)
        except StoreFenced as error:
            log.warning("%s", error.message)
            return ownership


def book(store: Store, ownership: Ownership, first: int, lease_s: float) -> Ownership:
    """Makes ``first`` the partition's position in the store. Raises StoreError; it can be repeated."""
    last = first - 1  # of offset -1, no event's, where the group begins with the topic
    key = EventKey(last, position_source(ownership.topic, ownership.partition), str(last), last)
    store.claim(ownership, [key], lease_s)
    store.confirm(ownership, [key])
    return replace(ownership, next_offset=first)


def partitions_of(admin: ClusterAdmin, topics: Iterable[str]) -> set[Place]:
    """All that the topics have."""
    known = admin.partitions()
    return {(topic, number) for topic in topics for number in known.get(topic, ())}


def _not_in(topics: Container[str], places: Iterable[Place]) -> list[Place]:
    return [place for place in places if place[0] not in topics]


def ends_of(admin: ClusterAdmin, places: Iterable[Place]) -> dict[Place, int]:
    """Where the partitions end. Raises BrokerUnreachable also for one that a broker does not know yet: the group has it, so it
    is there.
    """
    try:
        return admin.end_offsets(places)
    except TopicMissing as error:
        raise BrokerUnreachable(error.message) from error


def end_of(settings: ReaderSettings, place: Place) -> int:
    """Where one partition ends, as ``ends_of``."""
    return ends_of(ClusterAdmin(settings.cluster, patience_s=settings.answer_s), [place])[place]


def begun(told: Iterable[Place]) -> set[str]:
    """The topics in which the group has an offset."""
    return {topic for topic, _ in told}


def _place(ownership: Ownership) -> Place:
    return ownership.topic, ownership.partition


def _text(ends: Mapping[Place, int]) -> str:
    return ", ".join(f"{topic}-{number} {end}" for (topic, number), end in sorted(ends.items()))
