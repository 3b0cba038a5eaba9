"""CloudEvents on Kafka (specification 1.0, Kafka protocol binding, binary mode): what identifies an event travels in headers.

``source`` and ``id`` together name one event: a repetition of it carries the same two, another event never does. They come from
the caller or from the position in the source, never from chance, or a repetition after a crash would be a new event.
``sequence`` (the CloudEvents extension of that name) is there where the ids of a source are rising numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SPECVERSION = "1.0"
ID_HEADER = "ce_id"
SOURCE_HEADER = "ce_source"
TYPE_HEADER = "ce_type"
SPECVERSION_HEADER = "ce_specversion"
SEQUENCE_HEADER = "ce_sequence"
SEQUENCES_END = 1 << 63  # databases keep eight bytes
_NO_TEXT = "\uffff"
_LOOKS_LIKE_BYTES = re.compile(_NO_TEXT + "([0-9a-f]{2})+")
_MOST_DIGITS = 100  # with zeros in front; Python refuses to read thousands


@dataclass(frozen=True, slots=True)
class EventIdentity:
    """What names an event. ``sequence`` rises along each partition for its ``source``, or is None."""

    source: str
    id: str
    type: str = ""
    sequence: int | None = None

    def headers(self) -> list[tuple[str, bytes]]:
        """The Kafka headers that carry it."""
        given = {
            SPECVERSION_HEADER: SPECVERSION,
            ID_HEADER: self.id,
            SOURCE_HEADER: self.source,
            TYPE_HEADER: self.type,
            SEQUENCE_HEADER: "" if self.sequence is None else str(self.sequence),
        }
        return [(name, text.encode()) for name, text in given.items() if text]


def identity_of(
    headers: Iterable[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None,
) -> EventIdentity | None:
    """What the headers of a record name, or None if it carries no id or no source; an empty one counts as none.

    Ids count within their source (CloudEvents 1.0): without it, events of two producers would be one.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    found = {name: header_text(value) for name, value in pairs}
    event_id, source = found.get(ID_HEADER), found.get(SOURCE_HEADER)
    if not event_id or not source:
        return None
    return EventIdentity(
        source=source,
        id=event_id,
        type=found.get(TYPE_HEADER, ""),
        sequence=sequence_number(found.get(SEQUENCE_HEADER, "")),
    )


def header_text(value: bytes | str | None) -> str:
    """A header's value as text, no two values as the same: two ids would become one, and the second event a duplicate.

    UTF-8 is what it says. Other bytes are U+FFFF, which no text should have, and their hexadecimal digits; and so is a text, if
    ever there is one, that looks like this.
    """
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return _NO_TEXT + value.hex()
    else:
        text = value or ""
    if text.startswith(_NO_TEXT) and _LOOKS_LIKE_BYTES.fullmatch(text):
        return _NO_TEXT + text.encode().hex()
    return text


def sequence_number(text: str) -> int | None:
    """The number of a sequence; None for what is no whole number, or more than 63 bits."""
    if len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    number = int(text)
    return number if number < SEQUENCES_END else None
