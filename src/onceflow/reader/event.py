"""One event as the handler sees it. Nothing is decoded before it is asked for, except what identifies the event."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from confluent_kafka import Message

from onceflow.events import (
    ID_HEADER,
    SEQUENCE_HEADER,
    SOURCE_HEADER,
    EventIdentity,
    header_text,
    identity_of,
    sequence_number,
)
from onceflow.kafka.headers import UNREADABLE, HeadersUnreadable, raw_headers
from onceflow.reader.stores.interface import EventKey

LETTER_PREFIX = "onceflow_"
"""What the headers begin with that a dead letter has beside its event's own."""
LETTER_TIMESTAMP = LETTER_PREFIX + "timestamp"
"""The header of a dead letter that has its event's time: the record's own is that of its writing."""
LETTER_OFFSET = LETTER_PREFIX + "offset"
_MILLISECONDS = re.compile(rb"-?[0-9]{1,15}")
Headers = list[tuple[str, bytes | None]]
_new = tuple.__new__  # a named tuple's own constructor takes twice the time


class Event:
    """A committed record of a topic. ``key`` and ``value`` are bytes, or None.

    ``identity`` is what its headers name, or None if they carry no id or no source; then its position
    identifies it. ``entry`` is what the deduplication store keeps of it.
    """

    __slots__ = ("_message", "entry", "offset")

    def __init__(self, message: Message, entry: EventKey) -> None:
        self._message = message
        self.entry = entry
        self.offset = entry.offset

    @property
    def topic(self) -> str:
        return self._message.topic() or ""

    @property
    def partition(self) -> int:
        return self._message.partition() or 0

    @property
    def key(self) -> bytes | None:
        return _as_bytes(self._message.key())

    @property
    def value(self) -> bytes | None:
        return _as_bytes(self._message.value())

    @property
    def headers(self) -> Headers:
        return headers_of(self._message)

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970, as the record carries them; of a dead letter those of its event."""
        headers = dict(self.headers)
        of_event = _MILLISECONDS.fullmatch(headers.get(LETTER_TIMESTAMP) or b"")
        return int(of_event[0]) if of_event and LETTER_OFFSET in headers else self._message.timestamp()[1]

    @property
    def identity(self) -> EventIdentity | None:
        return identity_of(self.headers)

    @property
    def idempotency_key(self) -> str:
        """The same text for the same event, however often it comes: for effects outside the store.

        Source and id, each percent-encoded, so that no two events share one. It does not name the group: put something of
        your own in front where several services pass it on to the same receiver.
        """
        return f"{quote(self.entry.source, safe='')}/{quote(self.entry.id, safe='')}"

    def __repr__(self) -> str:
        return f"Event({self.topic}-{self.partition}@{self.offset}, {self.entry.source} {self.entry.id})"


class UnreadableEvent(Event):
    """One whose headers cannot be read (``HeadersUnreadable``), so that nobody knows its id: no handler gets it."""

    __slots__ = ()

    def __init__(self, message: Message, place: str) -> None:
        super().__init__(message, entry_at(message.offset() or 0, place))

    @property
    def headers(self) -> Headers:
        return []


def headers_of(message: Message) -> Headers:
    """The headers of a record; librdkafka gives their values as bytes. Raises HeadersUnreadable."""
    try:
        found: Any = raw_headers(message) or ()
    except UNREADABLE as error:
        raise HeadersUnreadable from error
    return [(name, _as_bytes(value)) for name, value in found]


def position_source(topic: str, partition: int) -> str:
    """The source of events that carry no id of their own: the partition itself."""
    return f"kafka:{topic}-{partition}"


def event_of(message: Message, place: str) -> Event:
    """The event of a record: its CloudEvents headers identify it, or its position in ``place`` (a ``position_source``).

    Runs once for every event and so reads only the three headers that it needs, and decodes an id of ASCII, which no
    ``header_text`` would change, by itself; ``identity_of`` would name the same.
    """
    try:
        headers: Any = raw_headers(message)
    except UNREADABLE:
        return UnreadableEvent(message, place)
    offset = message.offset() or 0
    event_id = source = sequence = None
    for name, value in headers or ():
        if name == ID_HEADER:
            event_id = value
        elif name == SOURCE_HEADER:
            source = value
        elif name == SEQUENCE_HEADER:
            sequence = value
    if not event_id or not source:  # an id alone names nothing: ids count within their source
        return Event(message, entry_at(offset, place))
    number = sequence_number(header_text(sequence)) if sequence else None
    plain = isinstance(event_id, bytes) and event_id.isascii()
    text = event_id.decode() if plain else header_text(event_id)
    return Event(message, _new(EventKey, (offset, _source_text(source), text, number)))


def entry_at(offset: int, place: str) -> EventKey:
    """What a position identifies. The offset rises along the partition: one number is enough to know them all."""
    return EventKey(offset, place, str(offset), offset)


@lru_cache(maxsize=256)
def _source_text(source: bytes | str) -> str:
    """One text for all events of a source: less to keep, and less to compare."""
    return header_text(source)


def _as_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
