"""The store in a SQLite file, the embedded default: effects in the same file are in the same transaction.

A unit is one ``BEGIN IMMEDIATE`` transaction, so units of several processes on one machine run one after the other. A process
that is stopped inside a unit keeps the file's lock: the others raise StoreUnavailable until it goes on or is killed.

Durable means WAL with ``synchronous=FULL``: one fsync a unit. The tables begin with ``onceflow_``; yours may stand beside them.
Foreign keys are SQLite's setting of a connection, off unless it is asked for, and cannot be changed inside a unit.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from onceflow.errors import StoreError
from onceflow.reader.stores import rules
from onceflow.reader.stores.blame import nobody_else_writes
from onceflow.reader.stores.epochs import next_epoch
from onceflow.reader.stores.interface import Capabilities, EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.sqlite_guard import explain
from onceflow.reader.stores.sqlite_session import Session
from onceflow.reader.stores.tables import EventId, Position, event_id, storable

BUSY_TIMEOUT_S = 30.0


class SqliteStore:
    """Keeps one group in the SQLite file at ``path``.

    ``busy_timeout_s``: how long to wait for another process's unit. ``foreign_keys``: whether they are enforced.
    """

    capabilities = Capabilities(transactional=True, durable=True, shared=True)

    def __init__(self, path: str | Path, busy_timeout_s: float = BUSY_TIMEOUT_S, *, foreign_keys: bool = False) -> None:
        self._path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._foreign_keys = foreign_keys
        self._session: Session | None = None

    def open(self, group: str, retention: Retention) -> None:
        self.close()
        self._session = Session(self._path, self._busy_timeout_s, foreign_keys=self._foreign_keys)
        self._group = group
        self._retention = retention

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        with self._transaction() as tables:
            return [tables.take(topic, partition, owner) for partition in partitions]

    @contextmanager
    def unit(self) -> Iterator[SqliteUnit]:
        session = self._opened()
        with session.transaction(guarded=True):
            yield SqliteUnit(session, SqliteTables(session.connection, self._group))

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        with self._transaction() as tables:
            return rules.claim(tables, ownership, storable(keys), lease_s)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        with self._transaction() as tables:
            rules.confirm(tables, ownership, storable(keys))

    def forget_expired(self) -> int:
        with self._transaction() as tables:
            return tables.forget_expired(self._retention)

    @contextmanager
    def _transaction(self) -> Iterator[SqliteTables]:
        session = self._opened()
        with nobody_else_writes(), session.transaction(), session.own():
            yield SqliteTables(session.connection, self._group)

    def _opened(self) -> Session:
        if self._session is None:
            raise StoreError(f"the store {self._path} is not open", action="call open(group, retention) first")
        return self._session


class SqliteUnit:
    """One transaction. ``handle`` is its sqlite3 connection; it refuses to commit or to roll back."""

    def __init__(self, session: Session, tables: SqliteTables) -> None:
        self._session = session
        self._tables = tables

    @property
    def handle(self) -> sqlite3.Connection:
        return self._session.connection

    def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        with self._session.own():
            return rules.admit(self._tables, ownership, storable(keys))

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        session = self._session
        session.execute("SAVEPOINT onceflow_part")
        try:
            yield
            session.check_whole()
        except BaseException as error:
            session.check_blame(error)
            explain(error)
            if session.connection.in_transaction:  # else SQLite has rolled back the whole unit already
                session.execute("ROLLBACK TO onceflow_part")
                session.execute("RELEASE onceflow_part")
            raise
        session.execute("RELEASE onceflow_part")


class SqliteTables:
    """The tables inside one transaction. Sets of values go in as one JSON array, so each statement is one."""

    def __init__(self, connection: sqlite3.Connection, group: str) -> None:
        self._connection = connection
        self._group = group

    def take(self, topic: str, partition: int, owner: str) -> Ownership:
        """Raises the epoch; the claims of the one before are void."""
        before = self.position(topic, partition) or Position(0, None)
        epoch = next_epoch(before.epoch)
        place = (self._group, topic, partition)
        self._connection.execute(
            "INSERT INTO onceflow_positions (consumer_group, topic, partition, epoch, owner) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET epoch = excluded.epoch, owner = excluded.owner",
            (*place, epoch, owner),
        )
        self._connection.execute(
            "DELETE FROM onceflow_claims"
            " WHERE consumer_group = ? AND topic = ? AND partition = ? AND lease_until IS NOT NULL",
            place,
        )
        return Ownership(topic, partition, epoch, before.next_offset)

    def position(self, topic: str, partition: int) -> Position | None:
        row = self._connection.execute(
            "SELECT epoch, next_offset FROM onceflow_positions WHERE consumer_group = ? AND topic = ? AND partition = ?",
            (self._group, topic, partition),
        ).fetchone()
        return Position(*row) if row else None

    def move(self, ownership: Ownership, next_offset: int) -> None:
        self._connection.execute(
            "UPDATE onceflow_positions SET next_offset = ? WHERE consumer_group = ? AND topic = ? AND partition = ?",
            (next_offset, *self._place(ownership)),
        )

    def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
        rows = self._connection.execute(
            "SELECT source, sequence FROM json_each(?) AS given CROSS JOIN onceflow_sequences"
            " ON source = given.value AND consumer_group = ? AND topic = ? AND partition = ?",
            (json.dumps(list(sources)), *self._place(ownership)),
        )
        return dict(rows.fetchall())

    def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
        self._connection.executemany(
            "INSERT INTO onceflow_sequences (consumer_group, topic, partition, source, sequence) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET sequence = excluded.sequence",
            [(*self._place(ownership), *each) for each in sequences.items()],
        )

    def book(self, events: Collection[EventId]) -> set[EventId]:
        if not events:
            return set()
        rows = self._connection.execute(
            "INSERT INTO onceflow_ids (consumer_group, source, id, handled_at)"
            " SELECT ?, value ->> 0, value ->> 1, ? FROM json_each(?) WHERE true"
            " ON CONFLICT DO NOTHING RETURNING source, id",
            (self._group, time.time(), _json(events)),
        )
        return set(rows.fetchall())

    def known(self, events: Collection[EventId]) -> set[EventId]:
        rows = self._connection.execute(
            "SELECT source, stored.id FROM json_each(?) AS given CROSS JOIN onceflow_ids AS stored"
            " ON consumer_group = ? AND source = given.value ->> 0 AND stored.id = given.value ->> 1",
            (_json(events), self._group),
        )
        return set(rows.fetchall())

    def confirmed_early(self, events: Collection[EventId]) -> set[EventId]:
        if not events or not self._has_claims():
            return set()
        rows = self._connection.execute(
            "SELECT source, stored.id FROM json_each(?) AS given CROSS JOIN onceflow_claims AS stored"
            " ON consumer_group = ? AND source = given.value ->> 0 AND stored.id = given.value ->> 1 AND lease_until IS NULL",
            (_json(events), self._group),
        )
        return set(rows.fetchall())

    def _has_claims(self) -> bool:
        """The inbox has none, but where the group claimed before."""
        found = self._connection.execute(
            "SELECT EXISTS (SELECT 1 FROM onceflow_claims WHERE consumer_group = ?)", (self._group,)
        )
        return bool(found.fetchone()[0])

    def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
        now = time.time()
        rows = self._connection.execute(
            _INSERT_CLAIMS + _WHERE_FREE + " RETURNING source, id",
            (*self._place(ownership), now + lease_s, _json_keys(keys.values()), now),
        )
        return keys.keys() - set(rows.fetchall())

    def lowest_open(self, ownership: Ownership) -> int | None:
        row = self._connection.execute(
            "SELECT min(at_offset) FROM onceflow_claims"
            " WHERE consumer_group = ? AND topic = ? AND partition = ? AND lease_until IS NOT NULL",
            self._place(ownership),
        ).fetchone()
        return row[0] if row else None

    def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        self._connection.execute(_INSERT_CLAIMS, (*self._place(ownership), None, _json_keys(keys)))

    def early_below(self, ownership: Ownership, offset: int) -> list[EventKey]:
        rows = self._connection.execute(
            "SELECT at_offset, source, id, sequence FROM onceflow_claims"
            " WHERE consumer_group = ? AND topic = ? AND partition = ? AND lease_until IS NULL AND at_offset < ?",
            (*self._place(ownership), offset),
        )
        return [EventKey(*row) for row in rows]

    def drop_claims(self, ownership: Ownership, events: Collection[EventId]) -> None:
        self._connection.executemany(
            "DELETE FROM onceflow_claims"
            " WHERE consumer_group = ? AND topic = ? AND partition = ? AND source = ? AND id = ?",
            [(*self._place(ownership), *event) for event in events],
        )

    def forget_expired(self, retention: Retention) -> int:
        """Deletes ids that were handled before both bounds."""
        if retention.seconds is None and retention.count is None:
            return 0
        bounds = [] if retention.seconds is None else [time.time() - retention.seconds]
        if retention.count is not None:
            bounds.append(self._handled_at_of(retention.count))
        return self._connection.execute(
            "DELETE FROM onceflow_ids WHERE consumer_group = ? AND handled_at < ?", (self._group, min(bounds))
        ).rowcount

    def _handled_at_of(self, count: int) -> float:
        """When the oldest of the newest ``count`` ids was handled; ids of the same moment stay together."""
        if count == 0:
            return float("inf")
        row = self._connection.execute(
            "SELECT handled_at FROM onceflow_ids WHERE consumer_group = ? ORDER BY handled_at DESC LIMIT 1 OFFSET ?",
            (self._group, count - 1),
        ).fetchone()
        return float(row[0]) if row else float("-inf")

    def _place(self, ownership: Ownership) -> tuple[str, str, int]:
        return (self._group, ownership.topic, ownership.partition)


_INSERT_CLAIMS = (
    "INSERT INTO onceflow_claims (consumer_group, topic, partition, lease_until, at_offset, source, id, sequence)"
    " SELECT ?, ?, ?, ?, value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?) WHERE true"
    " ON CONFLICT DO UPDATE SET topic = excluded.topic, partition = excluded.partition, at_offset = excluded.at_offset,"
    " sequence = excluded.sequence, lease_until = excluded.lease_until"
)
_WHERE_FREE = (
    " WHERE lease_until <= ? OR (lease_until IS NOT NULL"
    " AND (topic, partition, at_offset) = (excluded.topic, excluded.partition, excluded.at_offset))"
)


def _json(events: Collection[EventId]) -> str:
    return json.dumps(sorted(events))  # sorted: neighbours in the index are written together


def _json_keys(keys: Iterable[EventKey]) -> str:
    return json.dumps([(key.offset, *event_id(key), key.sequence) for key in keys])
