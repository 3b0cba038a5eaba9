"""A record that a consumer gave as a row of ``tables.READ``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from confluent_kafka import Message

from onceflow.errors import VerificationError
from onceflow.events import ID_HEADER, SOURCE_HEADER
from onceflow.kafka.headers import UNREADABLE, HeadersUnreadable, raw_headers
from onceflow.verify.digest import Header, content_digest, key_digest

Row = tuple[Any, ...]


def row_of(message: Message, at_s: float, op: int) -> Row:
    """The row of one record (not of an error)."""
    try:
        key, headers = message.key(), cast("list[Header] | None", raw_headers(message))
    except UNREADABLE as error:
        topic, partition, offset = place_of(message)
        raise VerificationError(f"{topic}-{partition}: offset {offset}: {HeadersUnreadable()}") from error
    content = content_digest(key, message.value(), headers)
    return (at_s, op, *place_of(message), event_id(headers), key_digest(key), content)


def place_of(message: Message) -> tuple[str, int, int]:
    """Topic, partition and offset of what a consumer gave."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset


def event_id(headers: Iterable[Header] | None) -> str | None:
    """``<ce_source> <ce_id>``, None where there is no id. The last header of a name counts, as for onceflow's own readers."""
    found = dict(headers) if headers else {}
    name = found.get(ID_HEADER)
    return None if name is None else f"{_text(found.get(SOURCE_HEADER))} {_text(name)}"


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
