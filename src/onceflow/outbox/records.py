"""Rows of an outbox as Kafka records, as Debezium's EventRouter makes them by default, and with CloudEvents headers.

``ce_sequence`` is a count over all records of the relay, not the row's position: positions rise for each aggregate only, and a
reader that keeps one number for each partition would take an event of another aggregate that comes later for a repetition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa

from onceflow.errors import InputError
from onceflow.events import EventIdentity
from onceflow.kafka.names import is_topic
from onceflow.outbox.table import OutboxRow
from onceflow.sqlite import shown

PREFIX = "outbox.event."
ID_HEADER = "id"
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SHOWN = 10
_MOST_TOLD = 255
_NAMES = ("id", "aggregatetype", "aggregateid", "type")


Refused = Mapping[int, str]
"""Why rows cannot be sent, by their position."""


def topic_of(row: OutboxRow) -> str:
    """Where a row goes."""
    return PREFIX + row.aggregatetype


def unsendable(rows: Sequence[OutboxRow]) -> dict[int, str]:
    """Why rows cannot be made records at all, by their position."""
    found = ((row.position, _flaw(row)) for row in rows)
    return {position: flaw for position, flaw in found if flaw}


def _flaw(row: OutboxRow) -> str:
    return _unfit(row) or ("" if is_topic(topic_of(row)) else "its aggregatetype cannot be part of a topic's name")


def _unfit(row: OutboxRow) -> str:
    if row.flaws:
        return ", ".join(row.flaws)
    if row.inserted_at_ms is not None and row.inserted_at_ms < 0:
        return "its inserted_at is before 1970"
    return ""


def as_records(
    rows: Sequence[OutboxRow], source: str, sent_before: int, refused: Refused | None = None, letters: str = ""
) -> list[tuple[str, pa.RecordBatch]]:
    """(topic, record columns) for each topic, its rows in their order; of those refused a letter in the topic ``letters``.

    Raises InputError for names that no topic can have, and for rows that no record can be made of.
    """
    refused = refused or {}
    _check([row for row in rows if row.position not in refused])
    topics: dict[str, list[tuple[int, OutboxRow]]] = {}
    for sequence, row in enumerate(rows, sent_before):
        reason = refused.get(row.position)
        topic, sent = (topic_of(row), row) if reason is None else (letters, _letter(row, reason))
        topics.setdefault(topic, []).append((sequence, sent))
    return [(topic, _batch(numbered, source)) for topic, numbered in topics.items()]


def prepare() -> None:
    """pyarrow loads pandas for the first array that is made: seconds, in which a relay that says it sends would send nothing."""
    pa.array([], pa.string())


def _letter(row: OutboxRow, reason: str) -> OutboxRow:
    """What tells of a row that is refused: small, whatever stands in the row."""
    names = {name: None if name in row.nulls else _told(getattr(row, name)) for name in _NAMES}
    told = {**names, "position": row.position, "size_bytes": len(row.payload or b""), "reason": reason}
    # Without the row's time: that may be what is refused, and an old one would be deleted from the topic at once.
    payload = json.dumps(told, ensure_ascii=False).encode()
    event_type = names["type"] or ""
    return OutboxRow(row.position, _letter_id(row), row.aggregatetype, names["aggregateid"], event_type, payload, None)


def _letter_id(row: OutboxRow) -> str:
    """The event's own, unless that is none, or not told as it is: then readers would take several letters for one."""
    is_told = row.id and "id" not in row.nulls and _told(row.id) == row.id
    return row.id if is_told else f"position:{row.position}"


def _told(text: str) -> str:
    return shown(text)[:_MOST_TOLD]


def _batch(numbered: Sequence[tuple[int, OutboxRow]], source: str) -> pa.RecordBatch:
    rows = [row for _, row in numbered]
    columns = {
        "key": pa.array([row.aggregateid for row in rows], pa.string()),
        "value": pa.array([row.payload for row in rows], pa.binary()),
        "headers": pa.array([_headers(row, source, sequence) for sequence, row in numbered], _HEADERS),
        "timestamp": pa.array([row.inserted_at_ms for row in rows], pa.timestamp("ms")),
    }
    return pa.RecordBatch.from_pydict(columns)


def _headers(row: OutboxRow, source: str, sequence: int) -> list[dict[str, str | bytes]]:
    identity = EventIdentity(source, row.id, row.type, sequence)
    return [{"key": key, "value": value} for key, value in [(ID_HEADER, row.id.encode()), *identity.headers()]]


def _check(rows: Sequence[OutboxRow]) -> None:
    _check_fit([(row, flaw) for row in rows if (flaw := _unfit(row))])
    wrong = sorted({row.aggregatetype for row in rows if not is_topic(topic_of(row))})
    if wrong:
        shown = ", ".join(map(repr, wrong[:_SHOWN])) + (", ..." if len(wrong) > _SHOWN else "")
        raise InputError(
            f"the outbox holds rows whose aggregatetype cannot be part of a topic's name: {shown}",
            action="use letters, digits, '.', '_' and '-' in aggregatetype; correct these rows in the table, or delete them",
            aggregatetypes=tuple(wrong),
        )


def _check_fit(unfit: Sequence[tuple[OutboxRow, str]]) -> None:
    if unfit:
        lines = [f"\n  - position {row.position}, id {shown(row.id)}: {flaw}" for row, flaw in unfit[:_SHOWN]]
        more = f"\n  - and {len(unfit) - _SHOWN} more" if len(unfit) > _SHOWN else ""
        raise InputError(
            f"the outbox holds rows that no record can be made of:{''.join(lines)}{more}",
            action="correct these rows in the table; a payload that is meant to be bytes: update ... set payload = "
            "cast(payload as blob). Or start with --refused dead-letter, which sets such rows aside and goes on",
            positions=tuple(row.position for row, _ in unfit),
        )
