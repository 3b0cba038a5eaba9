"""Rows of an outbox as Kafka records, as Debezium's EventRouter makes them by default, and with CloudEvents headers.

``ce_sequence`` is a count over all records of the relay, not the row's position: positions rise for each aggregate only, and a
reader that keeps one number for each partition would take an event of another aggregate that comes later for a repetition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from onceflow.errors import InputError
from onceflow.events import EventIdentity
from onceflow.outbox.table import OutboxRow

PREFIX = "outbox.event."
ID_HEADER = "id"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SHOWN = 10


def as_records(rows: Sequence[OutboxRow], source: str, sent_before: int) -> list[tuple[str, pa.RecordBatch]]:
    """(topic, record columns) for each topic, its rows in their order. Raises InputError for names that no topic can have."""
    _check([row.aggregatetype for row in rows])
    topics: dict[str, list[tuple[int, OutboxRow]]] = {}
    for sequence, row in enumerate(rows, sent_before):
        topics.setdefault(PREFIX + row.aggregatetype, []).append((sequence, row))
    return [(topic, _batch(numbered, source)) for topic, numbered in topics.items()]


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
    wrong = sorted({name for name in types if not _TOPIC.fullmatch(PREFIX + name)})
    if wrong:
        shown = ", ".join(map(repr, wrong[:_SHOWN])) + (", ..." if len(wrong) > _SHOWN else "")
        raise InputError(
            f"the outbox holds rows whose aggregatetype cannot be part of a topic's name: {shown}",
            action="use letters, digits, '.', '_' and '-' in aggregatetype; correct these rows in the table, or delete them",
            aggregatetypes=tuple(wrong),
        )
