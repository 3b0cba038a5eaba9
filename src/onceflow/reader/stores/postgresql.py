"""The store in PostgreSQL: effects in the same database are in the same transaction.

The fence is the row of the partition's position, locked ``FOR UPDATE`` from ``admit`` to the commit::

    A admits offsets 10 to 19 and is stopped inside its unit, with the row locked; its partition moves to B
    B's take waits ``takeover_s``, then ends A's session in the server: A's unit is rolled back, B reads position 10
    A wakes and commits: its connection is gone

    the source has sent an event to A's partition and to C's; A stands still inside its unit, with the id, and C admits it
    C waits for the id no longer than ``takeover_s``, and is told that the store does not answer: it goes on polling, so A's
    partition can move to it, and it can be ended. Without that bound it would wait for as long as A stands still

    A sends COMMIT and the connection breaks before the answer
    CommitUnknown: A takes its partitions again, and their positions tell
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from onceflow.errors import StoreUnavailable
from onceflow.reader.stores import rules
from onceflow.reader.stores.blame import nobody_else_writes
from onceflow.reader.stores.interface import Capabilities, EventKey, Ownership, Retention, Standing
from onceflow.reader.stores.postgresql_session import (
    Session,
    available,
    check_blame,
    check_failed_savepoint,
    check_whole,
    lock_timeout,
    translated,
)
from onceflow.reader.stores.tables import EventId, Position, event_id, storable

TAKEOVER_S = 5.0


class PostgresqlStore:
    """Keeps one group in the database at ``url``, in the first schema of its search path.

    ``takeover_s``: how long the store waits for another reader's unit. ``take`` ends that reader's session then, which needs the
    same role for all readers, or pg_signal_backend; the others raise StoreUnavailable. Raises ConfigurationError.
    """

    capabilities = Capabilities(transactional=True, durable=True, shared=True)

    def __init__(self, url: str, takeover_s: float = TAKEOVER_S) -> None:
        self._session = Session(url, takeover_s)
        self._takeover_s = takeover_s
        self._group = ""
        self._retention = Retention()

    def open(self, group: str, retention: Retention) -> None:
        self._session.open()
        self._group = group
        self._retention = retention

    def close(self) -> None:
        self._session.close()

    def take(self, topic: str, partitions: Sequence[int], owner: str) -> list[Ownership]:
        taken = {partition: self._take(topic, partition, owner) for partition in sorted(partitions)}
        return [taken[partition] for partition in partitions]

    @contextmanager
    def unit(self) -> Iterator[PostgresqlUnit]:
        with self._session.transaction() as connection:
            yield PostgresqlUnit(connection, PostgresqlTables(connection, self._group, self._takeover_s))

    def claim(self, ownership: Ownership, keys: Sequence[EventKey], lease_s: float) -> list[Standing]:
        with self._tables() as tables:
            return rules.claim(tables, ownership, storable(keys), lease_s)

    def confirm(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        with self._tables() as tables:
            rules.confirm(tables, ownership, storable(keys))

    def forget_expired(self) -> int:
        with self._tables() as tables:
            return tables.forget_expired(self._retention)

    @contextmanager
    def _tables(self) -> Iterator[PostgresqlTables]:
        with nobody_else_writes(), self._session.transaction() as connection, translated():
            yield PostgresqlTables(connection, self._group, self._takeover_s)

    def _take(self, topic: str, partition: int, owner: str) -> Ownership:
        try:
            return self._raise_epoch(topic, partition, owner)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
        with self._tables() as tables:
            tables.end_holder(topic, partition)
        return self._raise_epoch(topic, partition, owner)

    def _raise_epoch(self, topic: str, partition: int, owner: str) -> Ownership:
        with self._tables() as tables:
            return tables.take(topic, partition, owner)


class PostgresqlUnit:
    """One transaction. ``handle`` is its psycopg connection; do not commit or roll back through it."""

    def __init__(self, connection: psycopg.Connection[Any], tables: PostgresqlTables) -> None:
        self._connection = connection
        self._tables = tables

    @property
    def handle(self) -> psycopg.Connection[Any]:
        return self._connection

    def admit(self, ownership: Ownership, keys: Sequence[EventKey]) -> list[Standing]:
        with translated():
            standings = rules.admit(self._tables, ownership, storable(keys))
            self._tables.wait_as_before()
            return standings

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        try:
            with self._connection.transaction():
                yield
                check_whole(self._connection)
                with available():
                    self._connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what would be refused at the commit
        except Exception as error:
            check_failed_savepoint(self._connection, error)
            check_blame(self._connection, error)
            raise


class PostgresqlTables:
    """The tables inside one transaction. Sets of values go in as arrays, so each statement is one.

    From ``take`` or ``position`` on, which the rules ask for first, a statement waits ``patience_s`` for a lock, and no longer.
    """

    def __init__(self, connection: psycopg.Connection[Any], group: str, patience_s: float) -> None:
        self._connection = connection
        self._group = group
        self._lock_timeout = lock_timeout(patience_s)
        self._lock_timeout_before = ""

    def take(self, topic: str, partition: int, owner: str) -> Ownership:
        """Raises the epoch; the claims of the one before are void."""
        place = (self._group, topic, partition)
        self._wait(self._lock_timeout)
        epoch, next_offset = self._execute(_TAKE, (*place, owner))[0]
        self._execute(
            "DELETE FROM onceflow_claims"
            " WHERE consumer_group = %s AND topic = %s AND partition = %s AND lease_until IS NOT NULL",
            place,
        )
        return Ownership(topic, partition, epoch, next_offset)

    def end_holder(self, topic: str, partition: int) -> None:
        """Ends the session whose transaction has the partition's row locked, and waits until it is gone."""
        self._execute(_END_HOLDER, (self._group, topic, partition))

    def position(self, topic: str, partition: int) -> Position | None:
        rows = self._execute(_POSITION, (self._lock_timeout, self._group, topic, partition))
        if not rows:
            return None
        epoch, next_offset, self._lock_timeout_before = rows[0]
        return Position(epoch, next_offset)

    def wait_as_before(self) -> None:
        """What a handler executes waits for a lock as its session says."""
        self._wait(self._lock_timeout_before)

    def _wait(self, lock_timeout: str) -> None:
        self._execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))

    def move(self, ownership: Ownership, next_offset: int) -> None:
        self._execute(
            "UPDATE onceflow_positions SET next_offset = %s WHERE consumer_group = %s AND topic = %s AND partition = %s",
            (next_offset, *self._place(ownership)),
        )

    def sequences(self, ownership: Ownership, sources: Collection[str]) -> dict[str, int]:
        rows = self._execute(
            "SELECT source, sequence FROM onceflow_sequences"
            " WHERE consumer_group = %s AND topic = %s AND partition = %s AND source = ANY(%s)",
            (*self._place(ownership), list(sources)),
        )
        return dict(rows)

    def raise_sequences(self, ownership: Ownership, sequences: Mapping[str, int]) -> None:
        self._execute(
            "INSERT INTO onceflow_sequences (consumer_group, topic, partition, source, sequence)"
            " SELECT %s, %s, %s, given.* FROM unnest(%s::text[], %s::bigint[]) AS given"
            " ON CONFLICT (consumer_group, topic, partition, source) DO UPDATE SET sequence = excluded.sequence",
            (*self._place(ownership), list(sequences), list(sequences.values())),
        )

    def book(self, events: Collection[EventId]) -> set[EventId]:
        if not events:
            return set()
        rows = self._execute(
            "INSERT INTO onceflow_ids (consumer_group, source, id, handled_at)"
            " SELECT %s, given.*, clock_timestamp() FROM unnest(%s::text[], %s::text[]) AS given"
            " ON CONFLICT DO NOTHING RETURNING source, id",
            (self._group, *_columns(events)),
        )
        return set(rows)

    def known(self, events: Collection[EventId]) -> set[EventId]:
        return set(self._execute(_KNOWN, (*_columns(events), self._group)))

    def confirmed_early(self, events: Collection[EventId]) -> set[EventId]:
        if not events or not self._has_claims():
            return set()
        return set(self._execute(_CONFIRMED_EARLY, (*_columns(events), self._group)))

    def _has_claims(self) -> bool:
        """The inbox has none, but where the group claimed before."""
        found = self._execute("SELECT EXISTS (SELECT FROM onceflow_claims WHERE consumer_group = %s)", (self._group,))
        return bool(found[0][0])

    def put_claims(self, ownership: Ownership, keys: Mapping[EventId, EventKey], lease_s: float) -> set[EventId]:
        if not keys:
            return set()
        parameters = (*self._place(ownership), lease_s, *_key_columns(keys.values()))
        return keys.keys() - set(self._execute(_INSERT_CLAIMS + _WHERE_FREE + " RETURNING source, id", parameters))

    def lowest_open(self, ownership: Ownership) -> int | None:
        rows = self._execute(
            "SELECT min(at_offset) FROM onceflow_claims"
            " WHERE consumer_group = %s AND topic = %s AND partition = %s AND lease_until IS NOT NULL",
            self._place(ownership),
        )
        return rows[0][0] if rows else None

    def confirm_early(self, ownership: Ownership, keys: Sequence[EventKey]) -> None:
        self._execute(_INSERT_CLAIMS, (*self._place(ownership), None, *_key_columns(keys)))

    def early_below(self, ownership: Ownership, offset: int) -> list[EventKey]:
        rows = self._execute(
            "SELECT at_offset, source, id, sequence FROM onceflow_claims"
            " WHERE consumer_group = %s AND topic = %s AND partition = %s AND lease_until IS NULL AND at_offset < %s",
            (*self._place(ownership), offset),
        )
        return [EventKey(*row) for row in rows]

    def drop_claims(self, ownership: Ownership, events: Collection[EventId]) -> None:
        self._execute(_DROP_CLAIMS, (*_columns(events), *self._place(ownership)))

    def forget_expired(self, retention: Retention) -> int:
        """Deletes ids that were handled before both bounds."""
        if retention.seconds is None and retention.count is None:
            return 0
        bounds = {"group": self._group, "seconds": retention.seconds, "count": retention.count}
        return self._cursor().execute(_FORGET, bounds).rowcount

    def _execute(self, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        cursor = self._cursor().execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def _cursor(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """Rows are tuples, and parameters psycopg's own, whatever factories a handler has left on the connection."""
        return psycopg.Cursor(self._connection, row_factory=tuple_row)

    def _place(self, ownership: Ownership) -> tuple[str, str, int]:
        return (self._group, ownership.topic, ownership.partition)


_TAKE = """
INSERT INTO onceflow_positions AS held (consumer_group, topic, partition, owner, epoch)
VALUES (%s, %s, %s, %s, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ON CONFLICT (consumer_group, topic, partition)
DO UPDATE SET epoch = greatest(held.epoch + 1, excluded.epoch), owner = excluded.owner
RETURNING epoch, next_offset
"""

# The setting is made before the row is locked, and costs no statement of its own.
_POSITION = """
WITH waiting AS MATERIALIZED (SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', %s, true))
SELECT epoch, next_offset, before FROM waiting, onceflow_positions AS held
WHERE consumer_group = %s AND topic = %s AND partition = %s FOR UPDATE OF held
"""

# A locked row names its locker's transaction in xmax, and every running transaction holds the lock of its own number.
_END_HOLDER = """
SELECT pg_terminate_backend(pid, 10000) FROM onceflow_positions AS held
JOIN pg_locks ON locktype = 'transactionid' AND granted AND transactionid = held.xmax
WHERE consumer_group = %s AND topic = %s AND partition = %s AND pid <> pg_backend_pid()
"""

# LATERAL with LIMIT makes it one look into the primary key per event, also where the planner takes the table for empty; for the
# same reason no other index begins with the group.
_KNOWN = """
SELECT source, id FROM unnest(%s::text[], %s::text[]) AS given (source, id) CROSS JOIN LATERAL (
    SELECT FROM onceflow_ids AS stored
    WHERE consumer_group = %s AND stored.source = given.source AND stored.id = given.id LIMIT 1)
"""

_CONFIRMED_EARLY = """
SELECT source, id FROM unnest(%s::text[], %s::text[]) AS given (source, id) CROSS JOIN LATERAL (
    SELECT FROM onceflow_claims AS stored
    WHERE consumer_group = %s AND stored.source = given.source AND stored.id = given.id AND lease_until IS NULL LIMIT 1)
"""

_DROP_CLAIMS = """
DELETE FROM onceflow_claims WHERE ctid = ANY(ARRAY(
    SELECT held.row FROM unnest(%s::text[], %s::text[]) AS given (source, id) CROSS JOIN LATERAL (
        SELECT ctid AS row, topic, partition FROM onceflow_claims AS stored
        WHERE consumer_group = %s AND stored.source = given.source AND stored.id = given.id LIMIT 1) AS held
    WHERE topic = %s AND partition = %s))
"""

_INSERT_CLAIMS = """
INSERT INTO onceflow_claims AS held (consumer_group, topic, partition, lease_until, at_offset, source, id, sequence)
SELECT %s, %s, %s, clock_timestamp() + make_interval(secs => %s), given.*
FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[]) AS given
ON CONFLICT (consumer_group, source, id) DO UPDATE SET topic = excluded.topic, partition = excluded.partition,
at_offset = excluded.at_offset, sequence = excluded.sequence, lease_until = excluded.lease_until
"""

_WHERE_FREE = """
WHERE held.lease_until <= clock_timestamp() OR (held.lease_until IS NOT NULL
AND (held.topic, held.partition, held.at_offset) = (excluded.topic, excluded.partition, excluded.at_offset))
"""

# Ids of the same moment stay together: more than the number may be kept, never fewer.
_FORGET = """
DELETE FROM onceflow_ids WHERE consumer_group = %(group)s
AND (%(seconds)s::float8 IS NULL OR handled_at < clock_timestamp() - make_interval(secs => %(seconds)s::float8))
AND (%(count)s::bigint IS NULL OR %(count)s = 0 OR handled_at < (
    SELECT handled_at FROM onceflow_ids WHERE consumer_group = %(group)s
    ORDER BY handled_at DESC LIMIT 1 OFFSET greatest(%(count)s::bigint - 1, 0)))
"""


def _columns(events: Collection[EventId]) -> tuple[list[str], list[str]]:
    """As two arrays, sorted: two readers that book the same ids then wait for each other in one order, without deadlock."""
    ordered = sorted(events)
    return [source for source, _ in ordered], [event for _, event in ordered]


def _key_columns(keys: Iterable[EventKey]) -> tuple[list[int], list[str], list[str], list[int | None]]:
    ordered = sorted(keys, key=event_id)
    return (
        [key.offset for key in ordered],
        [key.source for key in ordered],
        [key.id for key in ordered],
        [key.sequence for key in ordered],
    )
