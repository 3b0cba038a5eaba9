"""Reads the ids of handled events again from their topic, into a store that does not know them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from onceflow.errors import RequestFailed
from onceflow.reader.event import entry_of, position_source
from onceflow.reader.settings import ReaderSettings
from onceflow.reader.stores.interface import EventKey, Ownership

log = logging.getLogger("onceflow.reader")
_librdkafka = logging.getLogger("onceflow.kafka.librdkafka")
_WAIT_S = 0.2

Book = Callable[[Ownership, Sequence[EventKey]], None]


class Rebuilder:
    """Books what is in the topic as handled. Events that the topic no longer has are not known afterwards, and it says so."""

    def __init__(self, settings: ReaderSettings, book: Book) -> None:
        self._settings = settings
        self._book = book

    def __call__(self, ownership: Ownership, first: int | None, end: int) -> None:
        """From ``first`` (None: the beginning) to before ``end``, which the group has committed."""
        consumer = Consumer(self._settings.base_options(), logger=_librdkafka)
        try:
            place = TopicPartition(ownership.topic, ownership.partition, OFFSET_BEGINNING if first is None else first)
            consumer.assign([place])
            count = self._read(consumer, place, ownership, end)
        finally:
            consumer.close()
        name = f"{ownership.topic}-{ownership.partition}"
        log.warning("%s: %d ids read again from the topic, up to offset %d", name, count, end)

    def _read(self, consumer: Consumer, place: TopicPartition, ownership: Ownership, end: int) -> int:
        """The last offsets may be transaction markers, which only the consumer's position tells."""
        source = position_source(ownership.topic, ownership.partition)
        count = 0
        while consumer.position([place])[0].offset < end:
            messages = consumer.consume(self._settings.batch_size, _WAIT_S)
            for message in messages:
                error = message.error()
                if error is not None and not error.retriable():
                    raise RequestFailed(f"{source}: {error.str()}")
            good = (message for message in messages if message.error() is None and self._settings.reads(message))
            entries = [entry for entry in (entry_of(message, source) for message in good) if entry.offset < end]
            if entries:
                self._book(ownership, entries)
            count += len(entries)
        return count
