"""Which partitions this reader owns, and where it begins in each.

A partition is owned twice: in Kafka's group, which hands it out, and in the store, where ``take`` raises its epoch. The first
says who should read it; the second is what makes a late owner harmless. It begins at the store's position. Kafka's committed
offset is for lag tools, and a witness: where it is ahead of the store, the store has lost something.

What this survives::

    the group's offsets are rewound to the beginning
    the reader begins at the store's position: nothing is handled again

    the database is lost, or restored from a backup of yesterday; Kafka's offsets are of today
    StoreLost, before one event is handled; the user says which of the two is right

    a Redis without an append-only file dies, with it the effects that were in the transactions of its units
    the same, though it said that it is not durable: booked as handled, those events would be lost in silence. Only a store that
    has no effects in it is rebuilt without a word

    A takes partition 0 at position 10 and is stopped; B takes it, handles offsets 10 to 19, and Kafka hears of 20; A wakes
    Kafka's offset is read before the store's position: read after it, 20 would look like a store that lost ten events

    that, and the user says "accept"; nothing comes for longer than Kafka keeps offsets, and the reader is started again
    where the group goes on is booked as any beginning is (beginnings.py): without it the store would know of nothing but what it
    knew before, and the old events be handled, once more or for the first time

    A rebuilds partition 0 for so long that the group puts it out, and B takes it
    A is refused by the store, and by Kafka, which it asks with a commit of the old offset: it goes back, and joins again. Had
    somebody late taken it, A would still be a member, and take the partition again; what is booked by then stays so

    A takes partition 0 late (it was stopped inside this callback), after B took it
    B is refused by the store, finds that it is still a member of the group, and takes it back (loop.py); A is no member

    a partition of which the group knows nothing, neither in the store nor in Kafka
    it begins where the topic does, or with ``start="latest"`` where the group began (beginnings.py)

    the same, because the group rested for too long, or was reset, and its store is lost
    what can be told of it is told (nothing_known.py)

    a partition goes while it is paused, and comes back
    librdkafka keeps it paused, for ever: so whatever is assigned is resumed

    the store is lost after the first effect of a partition, and before Kafka has heard of a position behind it
    Kafka was told before that effect that there will be some (witness.py): StoreLost

    the event at the position is gone from the topic
    EventsGone, unless it is known that there was none (offsets.py): then it goes on where the topic begins

    the topic is another one, made anew under the same name
    EventsGone (same_topics.py)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from onceflow.errors import StoreFenced, StoreLost
from onceflow.reader.beginnings import Beginnings, book
from onceflow.reader.lane import Lane
from onceflow.reader.membership import PutOut
from onceflow.reader.nothing_known import NothingKnown
from onceflow.reader.offsets import (
    Committed,
    Place,
    beginning,
    committed_offsets,
    is_refused_for_now,
    note_again,
    tell_kafka,
)
from onceflow.reader.patience import Stopped, patiently
from onceflow.reader.same_topics import SameTopics
from onceflow.reader.settings import LostStore, ReaderSettings, Start
from onceflow.reader.steps import OnStep, Step
from onceflow.reader.stores.interface import Ownership, Store
from onceflow.stop_flag import StopFlag

log = logging.getLogger("onceflow.reader")
LAST_WORD_S = 5.0
_REBALANCE_POLL_S = 0.1


class Rebuild(Protocol):
    """Books the events of a partition in a range of offsets as handled, without handling them."""

    def __call__(self, ownership: Ownership, first: int | None, end: int) -> None: ...


class Assignment:
    """The lanes, one for each partition that is owned; its methods are the consumer's rebalance callbacks."""

    def __init__(
        self,
        settings: ReaderSettings,
        store: Store,
        owner: str,
        rebuild: Rebuild,
        stop: StopFlag,
        on_step: OnStep,
        settle: Callable[[Lane], None],
    ) -> None:
        self.lanes: dict[Place, Lane] = {}
        self._settings = settings
        self._store = store
        self._owner = owner
        self._rebuild = rebuild
        self.topics = SameTopics(settings, store, owner, stop)
        self._beginnings = Beginnings(settings, store, owner)
        self._nothing_known = NothingKnown(settings, store)
        self._stop = stop
        self._on_step = on_step
        self._settle = settle
        self._is_ended = False
        self._is_told = False

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """New partitions: takes them in the store and begins where it says. Raises Stopped if it is to end meanwhile."""
        if self._is_ended:
            raise Stopped
        self.topics.check(each.topic for each in partitions)
        places = [(each.topic, each.partition) for each in partitions]
        committed = patiently(lambda: self._committed(consumer, places), self._settings, self._stop)
        try:
            starts = self._begin(consumer, places, committed)
        except PutOut as error:
            self._take_in_vain(consumer, places, error)
            return
        consumer.incremental_assign(starts)
        consumer.resume(starts)

    def _begin(
        self, consumer: Consumer, places: Sequence[Place], committed: Mapping[Place, Committed]
    ) -> list[TopicPartition]:
        """Makes a lane of each; where to read from. Raises PutOut.

        Only rebuilding takes so long that another reader may have fenced this one: a later owner, or one that was late.
        """
        while True:
            try:
                return self._begin_once(consumer, places, committed)
            except StoreFenced as error:
                log.warning("%s", error.message)
                patiently(lambda: note_again(consumer, committed), self._settings, self._stop)

    def _begin_once(
        self, consumer: Consumer, places: Sequence[Place], committed: Mapping[Place, Committed]
    ) -> list[TopicPartition]:
        owned = patiently(lambda: self.take(places), self._settings, self._stop)
        self._on_step(Step.TAKEN)
        self._nothing_known.look(consumer, owned, committed)
        committed = {**self._noted(consumer, owned, committed), **committed}
        starts = []
        for taken in owned:
            place = taken.topic, taken.partition
            told = committed.get(place)
            ownership = self._begun(taken, told)
            position = ownership.next_offset
            lane = self.lanes[place] = Lane(ownership, position, self.topics.known(taken.topic))
            start = _start(ownership, told)
            lane.is_witnessed = told is not None and told.is_witness
            if told is not None:
                lane.sent_position, lane.sent_until = told.offset, told.empty_until
                lane.begins_at = told.offset if told.is_beginning else None
                lane.handles_from = told.offset if told.handles else None
                start = self._behind_nothing(consumer, lane, start, told)
            starts.append(TopicPartition(*place, start))
            where = "the beginning" if start == OFFSET_BEGINNING else start
            log.info("%s: begins at %s, epoch %d", lane.name, where, ownership.epoch)
        return starts

    def _committed(self, consumer: Consumer, places: Sequence[Place]) -> Mapping[Place, Committed]:
        """The group's offsets, without those of a topic that was deleted since."""
        told = committed_offsets(consumer, places)
        return {place: each for place, each in told.items() if self._is_of(place[0], each)}

    def _is_of(self, topic: str, told: Committed) -> bool:
        known = self.topics.known(topic)
        return told.topic_id is None or known is None or told.topic_id == known

    def _take_in_vain(self, consumer: Consumer, places: Iterable[Place], error: PutOut) -> None:
        """They go back as soon as the callback has returned. librdkafka wants to be told where it begins until then: nowhere."""
        log.warning("put out of the group while it took its partitions, and joins again: %s", error)
        for place in places:
            self.lanes.pop(place, None)
        partitions = [TopicPartition(*place, OFFSET_BEGINNING) for place in places]
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)

    def _noted(
        self, consumer: Consumer, owned: list[Ownership], committed: Mapping[Place, Committed]
    ) -> Mapping[Place, Committed]:
        """Where the group begins in partitions of which nothing is known. Without it they begin where the topic does.

        Read after the store's positions: what is no beginning is of an owner that came since, who has fenced this reader.
        """
        if self._settings.start is Start.EARLIEST:
            return {}
        told = patiently(lambda: self._beginnings.noted(consumer, owned, committed), self._settings, self._stop)
        return {place: each for place, each in told.items() if each.is_beginning}

    def _begun(self, ownership: Ownership, told: Committed | None) -> Ownership:
        """As it is when the store knows where the group begins, or goes on after a loss. Raises StoreFenced."""
        known = ownership.next_offset
        if told is not None and told.is_witness and (known is None or known < told.offset):
            return self._after_loss(ownership, told)
        if told is not None and told.is_beginning and known is None:
            return patiently(lambda: self._beginnings.book(ownership, told.offset), self._settings, self._stop)
        return ownership

    def _behind_nothing(self, consumer: Consumer, lane: Lane, start: int, told: Committed) -> int:
        """Where to read from: at the position, or where the topic begins if it is known that there was nothing in between."""
        if told.offset != lane.position or told.empty_until == told.offset:
            return start
        lane.read_until = told.empty_until
        place = lane.ownership.topic, lane.ownership.partition
        first = patiently(lambda: beginning(consumer, place), self._settings, self._stop)
        return first if start < first <= told.empty_until else start

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions that go to another reader; what waits in their lanes is that one's."""
        going = [lane for each in partitions if (lane := self.lanes.get((each.topic, each.partition))) is not None]
        if not self._is_ended:
            self._give_back(going)
        if not self._is_told:
            tell_kafka(consumer, going, wait=True)
        self._going(partitions)
        log.info("revoked: %s", _names(partitions))

    def end(self) -> None:
        """To be called before the last positions are told, and the consumer is closed.

        The callbacks touch the store no more then: it may be closed (closing.py), and they come on another thread.
        """
        self._is_ended = True
        if self.lanes:
            self._give_back(list(self.lanes.values()))

    def tell_last(self, consumer: Consumer) -> None:
        """Tells Kafka the last positions of what is still this member's, whatever becomes of its group meanwhile.

        It waits for answers, so it belongs on a thread that somebody stops waiting for (closing.py). Behind it nothing is told
        any more: librdkafka lets no question through while it closes, and would wait for the answer until the end of that time.
        """
        deadline = time.monotonic() + LAST_WORD_S
        try:
            while (left_s := deadline - time.monotonic()) > 0 and is_refused_for_now(
                consumer, list(self.lanes.values()), left_s
            ):
                with suppress(Stopped):  # of an assignment that comes with the end
                    consumer.poll(_REBALANCE_POLL_S)
        finally:
            self._is_told = True

    def _give_back(self, going: Iterable[Lane]) -> None:
        self._on_step(Step.REVOKED)
        for lane in going:
            self._settle(lane)
            if lane.unanswered:
                lane.sent_position = None

    def lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Partitions that have gone already."""
        for lane in self._going(partitions):
            if not self._is_ended:
                self._settle(lane)  # nobody may have taken it yet
        log.warning("lost to other readers, after a pause too long for the group: %s", _names(partitions))

    def _going(self, partitions: Iterable[TopicPartition]) -> list[Lane]:
        lanes = [self.lanes.pop((each.topic, each.partition), None) for each in partitions]
        return [lane for lane in lanes if lane is not None]

    def take(self, places: Iterable[Place]) -> list[Ownership]:
        """Takes partitions in the store, which fences whoever owned them."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(places):
            by_topic.setdefault(topic, []).append(partition)
        return [each for topic, numbers in by_topic.items() for each in self._store.take(topic, numbers, self._owner)]

    def _after_loss(self, ownership: Ownership, told: Committed) -> Ownership:
        """As it is when the store knows where to go on. Raises StoreFenced."""
        able = self._store.capabilities
        choice = self._settings.lost_store if able.durable or able.transactional else LostStore.REBUILD
        if choice is LostStore.REFUSE:
            raise _store_lost(ownership, told)
        if choice is LostStore.REPLAY:
            return ownership
        if choice is LostStore.REBUILD:
            self._rebuild(ownership, ownership.next_offset, told.offset)
        lease_s = self._settings.lease_s
        return patiently(lambda: book(self._store, ownership, told.offset, lease_s), self._settings, self._stop)


def _start(ownership: Ownership, told: Committed | None) -> int:
    """Where to begin to read."""
    if ownership.next_offset is not None:
        return ownership.next_offset
    if told is not None and told.is_beginning:  # fenced, so it could not be booked
        return told.offset
    return OFFSET_BEGINNING


def _store_lost(ownership: Ownership, told: Committed) -> StoreLost:
    known = "nothing" if ownership.next_offset is None else f"the events before offset {ownership.next_offset}"
    handled = "handles events from" if told.handles else "handled the events before"
    return StoreLost(
        f"{ownership.topic}-{ownership.partition}: the group {handled} offset {told.offset}{' on' * told.handles}, "
        f"the store knows of {known}",
        action="restore the store; or lost_store='rebuild' (read the ids again, handle nothing), 'accept' (go on at Kafka's "
        "offset without them) or 'replay' (handle again from where the store is: its effects were lost with it)",
        topic=ownership.topic,
        partition=ownership.partition,
        committed=told.offset,
        position=ownership.next_offset,
    )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in partitions) or "none"
