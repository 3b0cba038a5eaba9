"""Writes a history down while it happens, one operation after the other as they complete."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from onceflow.verify.history.rows import columns_of
from onceflow.verify.history.schema import SCHEMA, VERSION, VERSION_KEY
from onceflow.verify.history.validation import validate

Row = dict[str, Any]
Value = int | str


def send(key: str, value: Value, offset: int | None = None) -> Row:
    """A record written to ``key``; the offset as acknowledged, where it is known."""
    return {"kind": "send", "key": key, "value": value, "offset": offset}


def poll(key: str, offset: int, value: Value, group: str | None = None) -> Row:
    """A record read."""
    return {"kind": "poll", "key": key, "offset": offset, "value": value, "group": group}


def window(key: str, offset: int, until: int) -> Row:
    """The operation's polls asked for all of ``key`` from ``offset`` up to, and without, ``until``."""
    return {"kind": "window", "key": key, "offset": offset, "until": until}


def assign(key: str, offset: int | None = None) -> Row:
    """From here on the process reads ``key`` from ``offset`` (None: from wherever)."""
    return {"kind": "assign", "key": key, "offset": offset}


def subscribe() -> Row:
    """From here on a consumer group decides what the process reads."""
    return {"kind": "subscribe"}


def crash() -> Row:
    """The process ended; what follows under its name begins anew."""
    return {"kind": "crash"}


def effect(target: str, value: Value) -> Row:
    """An effect outside of the log that was found applied."""
    return {"kind": "effect", "key": target, "value": value}


def log_end(key: str, offset: int) -> Row:
    """Where the log of ``key`` ends."""
    return {"kind": "log_end", "key": key, "offset": offset}


def stable_end(key: str, offset: int) -> Row:
    """The last stable offset of ``key``."""
    return {"kind": "stable_end", "key": key, "offset": offset}


def position(key: str, offset: int, group: str) -> Row:
    """The committed position of a group on ``key``."""
    return {"kind": "position", "key": key, "offset": offset, "group": group}


def gone(key: str, offset: int, until: int) -> Row:
    """The log may have dropped offsets from ``offset`` up to, and without, ``until``: retention or compaction."""
    return {"kind": "gone", "key": key, "offset": offset, "until": until}


class Recorder:
    """A history in the making."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._operations = 0

    def add(self, process: str, *rows: Row, status: str = "ok", txn: int | None = None) -> int:
        """Adds one operation and gives its number."""
        number = self._operations
        self._operations += 1
        common = {"op": number, "process": process, "status": status, "txn": txn}
        self._rows.extend({**common, **row} for row in rows)
        return number

    def table(self) -> pa.Table:
        """The history so far. Raises HistoryInvalid."""
        columns, unreadable = columns_of(self._rows, SCHEMA.names)
        table = pa.table(columns).replace_schema_metadata({VERSION_KEY: str(VERSION)})
        return validate(table, unreadable=unreadable)
