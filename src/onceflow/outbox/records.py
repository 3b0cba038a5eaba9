"""Rows of an outbox as Kafka records, as Debezium's EventRouter makes them by default, and with CloudEvents headers.

``ce_sequence`` is a count over all records of the relay, not the row's position: positions rise for each aggregate only, and a
reader that keeps one number for each partition would take an event of another aggregate that comes later for a repetition.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from onceflow.errors import InputError
from onceflow.events import EventIdentity
from onceflow.kafka.names import is_topic
from onceflow.outbox.table import OutboxRow

PREFIX = "outbox.event."
ID_HEADER = "id"
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SHOWN = 10
_TOLD = 255


Refused = Mapping[int, str]
"""Why rows cannot be sent, by their position."""


def topic_of(row: OutboxRow) -> str:
    """Where a row goes."""
    return PREFIX + row.aggregatetype


def without_topic(rows: Sequence[OutboxRow]) -> dict[int, str]:
    """The rows whose aggregatetype cannot be part of a topic's name."""
    reason = "its aggregatetype cannot be part of a topic's name"
    return {row.position: reason for row in rows if not is_topic(topic_of(row))}


def as_records(
    rows: Sequence[OutboxRow], source: str, sent_before: int, refused: Refused | None = None, letters: str = ""
) -> list[tuple[str, pa.RecordBatch]]:
    """(topic, record columns) for each topic, its rows in their order; of those refused a letter in the topic ``letters``.

    Raises InputError for names that no topic can have.
    """
    refused = refused or {}
    _check([row.aggregatetype for row in rows if row.position not in refused])
    topics: dict[str, list[tuple[int, OutboxRow]]] = {}
    for sequence, row in enumerate(rows, sent_before):
        reason = refused.get(row.position)
        topic, sent = (topic_of(row), row) if reason is None else (letters, _letter(row, reason))
        topics.setdefault(topic, []).append((sequence, sent))
    return [(topic, _batch(numbered, source)) for topic, numbered in topics.items()]


def _letter(row: OutboxRow, reason: str) -> OutboxRow:
    """What tells of a row that is refused: small, whatever stands in the row."""
    told = {
        "id": row.id[:_TOLD],
        "aggregatetype": row.aggregatetype[:_TOLD],
        "aggregateid": row.aggregateid[:_TOLD],
        "type": row.type[:_TOLD],
        "position": row.position,
        "size_bytes": len(row.payload or b""),
        "reason": reason,
    }
    payload = json.dumps(told, ensure_ascii=False).encode()
    return replace(row, id=row.id[:_TOLD], aggregateid=row.aggregateid[:_TOLD], type=row.type[:_TOLD], payload=payload)


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


def _check(types: Sequence[str]) -> None:
    wrong = sorted({name for name in types if not is_topic(PREFIX + name)})
    if wrong:
        shown = ", ".join(map(repr, wrong[:_SHOWN])) + (", ..." if len(wrong) > _SHOWN else "")
        raise InputError(
            f"the outbox holds rows whose aggregatetype cannot be part of a topic's name: {shown}",
            action="use letters, digits, '.', '_' and '-' in aggregatetype; correct these rows in the table, or delete them",
            aggregatetypes=tuple(wrong),
        )
