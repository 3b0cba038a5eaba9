"""CloudEvents on Kafka (specification 1.0, Kafka protocol binding, binary mode): what identifies an event travels in headers.

``source`` and ``id`` together name one event: a repetition of it carries the same two, another event never does. They come from
the caller or from the position in the source, never from chance, or a repetition after a crash would be a new event.
``sequence`` (the CloudEvents extension of that name) is there where the ids of a source are rising numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SPECVERSION = "1.0"
ID_HEADER = "ce_id"
SOURCE_HEADER = "ce_source"
TYPE_HEADER = "ce_type"
SPECVERSION_HEADER = "ce_specversion"
SEQUENCE_HEADER = "ce_sequence"


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
    """What the headers of a record name, or None if it carries no id. A sequence that is no number counts as none."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    found = {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in pairs}
    event_id = found.get(ID_HEADER)
    if event_id is None:
        return None
    sequence = found.get(SEQUENCE_HEADER) or ""
    return EventIdentity(
        source=found.get(SOURCE_HEADER) or "",
        id=event_id,
        type=found.get(TYPE_HEADER) or "",
        sequence=int(sequence) if sequence.isascii() and sequence.isdigit() else None,
    )
