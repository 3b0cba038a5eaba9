"""Reads the ids of handled events again from their topic, into a store that does not know them.

What it survives::

    a reader with its store in memory is given its partitions; the brokers go away before they have said where the topic begins
    it asks again, as long as its patience lasts: what is raised inside of a rebalance callback ends the reader

    they go away while it reads
    librdkafka asks them until they are back, and the ids go on where they stopped; or the reader is to end

    the partition has a new leader, which does not know yet how far the others have got (its high watermark is an older one,
    KIP-207): it says that the partition ends before what the group has handled
    the rest is waited for: without its ids an event that comes again would be handled again
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from confluent_kafka import Consumer, Message, TopicPartition

from onceflow.errors import EventsGone, KafkaError
from onceflow.reader import trouble
from onceflow.reader.beginnings import end_of
from onceflow.reader.event import event_of, position_source
from onceflow.reader.offsets import beginning
from onceflow.reader.patience import Stopped, patiently
from onceflow.reader.settings import ReaderSettings
from onceflow.reader.stores.interface import EventKey, Ownership
from onceflow.stop_flag import StopFlag

log = logging.getLogger("onceflow.reader")
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")
_WAIT_S = 0.2

Book = Callable[[Ownership, Sequence[EventKey]], None]


class Rebuilder:
    """Books what is in the topic as handled. Events that the topic no longer has are not known afterwards, and it says so."""

    def __init__(self, settings: ReaderSettings, book: Book, stop: StopFlag) -> None:
        self._settings = settings
        self._book = book
        self._stop = stop

    def __call__(self, ownership: Ownership, first: int | None, end: int) -> None:
        """From ``first`` (None: the beginning) to before ``end``, which the group has committed.

        Raises Stopped; what is booked by then stays so, and the next start goes on behind it. Raises EventsGone where what can
        be read ends before ``end`` for longer than the patience.
        """
        consumer = Consumer({**self._settings.base_options(), "enable.partition.eof": True}, logger=_librdkafka)
        try:
            place = TopicPartition(ownership.topic, ownership.partition)
            place.offset = max(first or 0, self._beginning(consumer, ownership))
            consumer.assign([place])
            count = self._read(consumer, place, ownership, end)
        finally:
            consumer.close()
        name = f"{ownership.topic}-{ownership.partition}"
        log.warning(
            "%s: %d ids read again from the topic, up to offset %d; what was handled behind it, and not told to Kafka yet, "
            "is handled again, and effects outside of the store repeat",
            name,
            count,
            end,
        )

    def _beginning(self, consumer: Consumer, ownership: Ownership) -> int:
        place = ownership.topic, ownership.partition
        return patiently(lambda: beginning(consumer, place), self._settings, self._stop)

    def _read(self, consumer: Consumer, place: TopicPartition, ownership: Ownership, end: int) -> int:
        """The last offsets may be transaction markers, which only the consumer's position tells.

        That stays unset where nothing else is left (retention, markers alone): then the partition's end is what comes.
        """
        where = f"{ownership.topic}-{ownership.partition}"
        source = position_source(ownership.topic, ownership.partition)
        count, ask_at = 0, time.monotonic() + self._settings.patience_s
        while consumer.position([place])[0].offset < end:
            if self._stop.is_set():
                raise Stopped
            messages = consumer.consume(self._settings.batch_size, _WAIT_S)
            log_end = _end_among(messages, where)
            events = (event_of(message, source) for message in messages if message.error() is None)
            entries = [event.entry for event in events if event.offset < end and self._settings.reads(event)]
            if entries:
                # The store may be away for a moment; what is booked already is booked again without a trace.
                patiently(partial(self._book, ownership, entries), self._settings, self._stop)
            count += len(entries)
            if log_end >= end:
                break
            if log_end >= 0:
                log.warning(
                    "%s: its leader has it end at %d, and it is handled up to %d; it waits", where, log_end, end
                )
            if any(message.error() is None for message in messages):
                ask_at = time.monotonic() + self._settings.patience_s
            elif time.monotonic() >= ask_at:
                self._check_end(ownership, end)
                ask_at = time.monotonic() + self._settings.patience_s
        return count

    def _check_end(self, ownership: Ownership, end: int) -> None:
        """Raises EventsGone where the leader is sure that what may be read ends before ``end``."""
        try:
            found = end_of(self._settings, (ownership.topic, ownership.partition))
        except KafkaError as error:
            if not error.retriable:
                raise
            log.warning("%s", error.message)
            return
        if found < end:
            raise _cut_off(f"{ownership.topic}-{ownership.partition}", found, end)


def _end_among(messages: Sequence[Message], where: str) -> int:
    """Where the partition ends, -1 if they do not tell. Raises what does not pass by itself."""
    problems = [(error, message.offset()) for message in messages if (error := message.error()) is not None]
    for error, at in problems:
        if not trouble.is_end(error):
            trouble.check(error, where, at=at)
    return max((at or 0 for error, at in problems if trouble.is_end(error)), default=-1)


def _cut_off(where: str, found: int, end: int) -> EventsGone:
    return EventsGone(
        f"{where} can be read up to offset {found}, and the group has handled the events before offset {end}",
        action="a transaction is open there (wait for its end, or abort it with kafka-transactions.sh), or the rest was lost "
        "with its leader, or somebody has set the group's offset too high: then set it with kafka-consumer-groups "
        f"--reset-offsets --to-offset {found}",
    )
