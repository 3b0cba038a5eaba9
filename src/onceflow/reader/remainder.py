"""Whether anything is left to handle when this member of the group has been at the ends of its own partitions: it is to end when
all is handled.

It neither ends at once, for that would be too early, nor waits for a partition that may never come.

What it survives::

    A owns both partitions and B joins; A gives one up, and B has none until then
    B stays as long as there is something to handle, and gets it. Had B ended, A could have ended too as soon as its own was
    done, and nobody would have handled the rest

    A was killed, and B starts before A's session ends: A's partitions are still A's
    B stays, and takes them over when the group has noticed

    B has handled what is in its own partitions, and A, which owned the others, was killed
    the same: success would tell of a topic that is half handled

    events keep coming, so that B's own partitions are never all at their end again while it stays
    what there was when it first looked is handled; what came since holds nobody up

    more members than partitions: nobody gives B anything
    it ends when the others have handled what there was when it first looked; what they get later holds nobody up

    B is not a member yet, and so has no partition either; its store is a lost one, and all is handled
    the description of the group tells when B is one: whoever owns partitions then has looked at the store

    the last offsets of a partition are ends of transactions, or aborted: the group's offset never gets there
    what lies in between is read: is there an event?

    that is read from a new leader, which does not know yet how far the others have got (KIP-207): it ends earlier there
    the rest is waited for: there may be an event

    B has read its own partitions to the end, which such a leader tells
    where they end is asked once more, of a leader that is sure: what lies in between is handled before it ends

    the reader is asked to end while that is read, and the brokers do not answer
    it ends, and does not wait for them: whoever sent SIGTERM would have killed it by then

    the group is new and begins at the end (``start="latest"``), and an owner has not noted yet where that is
    it will be behind what there is now; once the group has offsets in a topic, a partition without one begins at its beginning
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import closing

from confluent_kafka import Consumer, Message, TopicPartition

from onceflow.errors import BrokerUnreachable, OnceflowError
from onceflow.kafka.admin import ClusterAdmin
from onceflow.kafka.opened import opened
from onceflow.reader import trouble
from onceflow.reader.beginnings import begun, end_of
from onceflow.reader.event import event_of, position_source
from onceflow.reader.membership import Membership
from onceflow.reader.offsets import KAFKA_TIMEOUT_S, Committed, Place, beginning, committed_offsets
from onceflow.reader.patience import Stopped
from onceflow.reader.settings import ReaderSettings, Start
from onceflow.stop_flag import StopFlag

log = logging.getLogger("onceflow.reader")
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")
LOOK_EVERY_S = 1.0
_WAIT_S = 0.2


class Remainder:
    """What was there at the first look, and has not been handled yet, by whomever. Its methods raise Stopped after ``stop``."""

    def __init__(self, settings: ReaderSettings, membership: Membership, stop: StopFlag) -> None:
        self._settings = settings
        self._membership = membership
        self._stop = stop
        self._look_at = time.monotonic() + LOOK_EVERY_S  # most members have got their partitions by then
        self._places: list[Place] = []
        self._ends: dict[Place, int] | None = None
        self._has_failed = False
        self._last: dict[Place, int] = {}  # the group's offset at the last look
        self._unhandled: dict[Place, int] = {}  # an event that was found there

    def is_handled(self, consumer: Consumer, own: Mapping[Place, int]) -> bool:
        """Looks at once for a member that owned partitions, then once a second; False meanwhile, and while Kafka does not answer.

        ``own``: where it has been at the end of a partition, with all before that handled. Not all that it has by now: the first
        look may fail, and a rebalance give it others meanwhile.
        """
        is_first = self._ends is None and not self._has_failed
        if time.monotonic() < self._look_at and not (own and is_first):
            return False
        try:
            return (bool(own) or self._membership.has_none(consumer.memberid())) and self._look(consumer, own)
        except OnceflowError as error:
            if not error.retriable:
                raise
            log.warning("%s", error.message)
            self._has_failed = True
            return False
        finally:
            self._look_at = time.monotonic() + LOOK_EVERY_S

    def _look(self, consumer: Consumer, own: Mapping[Place, int]) -> bool:
        if self._ends is None:
            ends = self._all_ends()
            self._ends = _beyond(ends, own)
            self._places = list(ends)  # its own too: they tell whether the group has begun in a topic
            if self._ends:
                whose = (
                    f"{len(self._ends)} partition(s) belong to others, or go on"
                    if own
                    else "no partition for this member"
                )
                log.info("%s; it ends when all there is now is handled", whose)
        else:
            self._ends = _beyond(self._ends, own)  # it has read on
        if not self._ends:
            return True
        told = committed_offsets(consumer, self._places)
        for place, end in list(self._ends.items()):
            begins_at_end = self._settings.start is Start.LATEST and place[0] not in begun(told)
            if not begins_at_end and not self._is_done(place, told.get(place), end):
                return False
            del self._ends[place]
        return True

    def _all_ends(self) -> dict[Place, int]:
        admin = ClusterAdmin(self._settings.cluster, patience_s=self._settings.answer_s)
        known = admin.partitions()
        return admin.end_offsets((topic, number) for topic in self._settings.topics for number in known.get(topic, ()))

    def _is_done(self, place: Place, told: Committed | None, end: int) -> bool:
        """Whether there is no event between what the group has handled and the end; as long as its offset moves, there is."""
        if told is not None and told.empty_until >= end:
            return True
        offset = -1 if told is None else told.offset
        moves = self._last.get(place) != offset
        self._last[place] = offset
        if moves or offset <= self._unhandled.get(place, -2):
            return False
        found = self._first_event(place, told, end)
        if found is not None:
            self._unhandled[place] = found
        return found is None

    def _first_event(self, place: Place, told: Committed | None, end: int) -> int | None:
        """The offset of the first event before the end that the group has not handled."""
        options = {**self._settings.base_options(), "enable.partition.eof": True}
        with closing(opened(lambda: Consumer(options, logger=_librdkafka), "the reader's Kafka settings")) as consumer:
            first = beginning(consumer, place)
            consumer.assign([TopicPartition(*place, first if told is None else max(first, told.empty_until))])
            try:
                for message in _read(consumer, place, end, self._stop):
                    offset = message.offset() or 0
                    if offset >= end:
                        return None
                    if self._settings.reads(event_of(message, position_source(*place))):
                        return offset
            except _EarlyEnd as early:
                self._check_end(place, early.log_end)
        return None

    def _check_end(self, place: Place, log_end: int) -> None:
        """Raises BrokerUnreachable unless the leader is sure that the partition ends there: what came behind is lost then."""
        found = end_of(self._settings, place)
        if found > log_end:
            raise BrokerUnreachable(
                f"{place[0]}-{place[1]}: its leader had it end at offset {log_end}, and it ends at {found}"
            )


def _beyond(ends: Mapping[Place, int], own: Mapping[Place, int]) -> dict[Place, int]:
    """The ends that lie behind those at which this member has been."""
    return {place: end for place, end in ends.items() if own.get(place, -1) < end}


class _EarlyEnd(Exception):
    """The leader has the partition end before where it ended already."""

    def __init__(self, log_end: int) -> None:
        super().__init__(log_end)
        self.log_end = log_end


def _read(consumer: Consumer, place: Place, end: int, stop: StopFlag) -> Iterator[Message]:
    """The records of the partition that is assigned, up to ``end`` or behind. Raises _EarlyEnd, Stopped, BrokerUnreachable."""
    deadline = time.monotonic() + KAFKA_TIMEOUT_S
    while time.monotonic() < deadline:
        if stop.is_set():
            raise Stopped
        message = consumer.poll(_WAIT_S)
        if message is None:
            continue
        error = message.error()
        if error is not None and trouble.is_end(error):
            log_end = message.offset() or 0
            if log_end < end:
                raise _EarlyEnd(log_end)
            return
        if error is not None:
            trouble.check(error, f"{place[0]}-{place[1]}", at=message.offset())
            continue
        yield message
    raise BrokerUnreachable(f"{place[0]}-{place[1]}: not read in {KAFKA_TIMEOUT_S:g} s")
