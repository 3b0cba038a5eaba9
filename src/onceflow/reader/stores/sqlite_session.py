"""One SQLite connection: the layout of the tables, and transactions that only the store can end.

What the guard survives::

    a handler calls ``tx.commit()`` (or executescript, which commits first) in the middle of its effects, and fails after it
    ids and position are committed, the second half of the effects is not: events are lost

so an authorizer refuses BEGIN, COMMIT and ROLLBACK while a handler runs. SQLite asks it when a statement is prepared, and
Python keeps prepared statements by their text; the store's own have texts of their own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onceflow.errors import CommitUnknown, StoreMismatch, StoreUnavailable
from onceflow.reader.stores.tables import LAYOUT_VERSION, TABLES, layout_mismatch

_OLDEST_VERSION = (3, 38)  # the first with the operator ->>
_BEGIN = "BEGIN IMMEDIATE -- onceflow"
_COMMIT = "COMMIT -- onceflow"
_ROLLBACK = "ROLLBACK -- onceflow"

_LAYOUT = (
    "CREATE TABLE onceflow_layout (version INTEGER NOT NULL)",
    "CREATE TABLE onceflow_positions (consumer_group TEXT, topic TEXT, partition INTEGER, epoch INTEGER NOT NULL,"
    " next_offset INTEGER, owner TEXT NOT NULL, PRIMARY KEY (consumer_group, topic, partition)) WITHOUT ROWID",
    "CREATE TABLE onceflow_sequences (consumer_group TEXT, topic TEXT, partition INTEGER, source TEXT,"
    " sequence INTEGER NOT NULL, PRIMARY KEY (consumer_group, topic, partition, source)) WITHOUT ROWID",
    "CREATE TABLE onceflow_ids (consumer_group TEXT, source TEXT, id TEXT, handled_at REAL NOT NULL,"
    " PRIMARY KEY (consumer_group, source, id)) WITHOUT ROWID",
    "CREATE INDEX onceflow_ids_by_age ON onceflow_ids (consumer_group, handled_at)",
    "CREATE TABLE onceflow_claims (consumer_group TEXT, source TEXT, id TEXT, topic TEXT NOT NULL,"
    " partition INTEGER NOT NULL, at_offset INTEGER NOT NULL, sequence INTEGER, lease_until REAL,"
    " PRIMARY KEY (consumer_group, source, id)) WITHOUT ROWID",
    "CREATE INDEX onceflow_claims_by_offset ON onceflow_claims (consumer_group, topic, partition, at_offset)",
)


class Session:
    """A connection with the store's tables in it. Raises StoreUnavailable, or StoreMismatch for another layout."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_VERSION:
            raise StoreMismatch(
                f"Python's SQLite {sqlite3.sqlite_version} is too old",
                action="use a Python with SQLite 3.38 or later, or another store",
            )
        self._path = path
        self._guarded = False
        try:
            self.connection = sqlite3.connect(
                path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self, *, guarded: bool = False) -> Iterator[None]:
        """Commits at the end, rolls back after an exception. ``guarded``: others write through the connection as well."""
        self.execute(_BEGIN)
        self._guarded = guarded
        try:
            yield
        except BaseException:
            self._guarded = False
            self._roll_back()
            raise
        self._guarded = False
        self._commit()

    def _commit(self) -> None:
        try:
            self.connection.execute(_COMMIT)
        except sqlite3.Error as error:
            if self.connection.in_transaction:
                self._roll_back()
                raise self._unavailable(error) from error
            raise CommitUnknown(f"{self._path}: SQLite failed while it committed: {error}") from error

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.connection.execute(_ROLLBACK)

    def _prepare(self) -> None:
        try:
            mode = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            self.connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.DatabaseError as error:
            raise self._unavailable(error) from error
        if mode != "wal":
            raise StoreMismatch(
                f"{self._path} cannot use write-ahead logging (its journal mode is {mode})",
                action="keep the file on a local file system",
            )
        self.connection.set_authorizer(self._authorize)
        with self.transaction():
            self._check_layout()

    def _check_layout(self) -> None:
        rows = self.connection.execute("SELECT name FROM sqlite_master").fetchall()
        present = {name for (name,) in rows}.intersection(TABLES)
        if not present:
            for statement in _LAYOUT:
                self.connection.execute(statement)
            self.connection.execute("INSERT INTO onceflow_layout VALUES (?)", (LAYOUT_VERSION,))
        elif present != set(TABLES):
            raise layout_mismatch(str(self._path), None)
        else:
            (version,) = self.connection.execute("SELECT version FROM onceflow_layout").fetchone()
            if version != LAYOUT_VERSION:
                raise layout_mismatch(str(self._path), version)

    def execute(self, statement: str) -> None:
        """One statement of the store's own."""
        with self.translated():
            self.connection.execute(statement)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raises StoreUnavailable for what SQLite says of the store's own statements."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def _authorize(self, action: int, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if self._guarded and action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK

    def _unavailable(self, error: sqlite3.Error) -> StoreUnavailable:
        return StoreUnavailable(
            f"SQLite store {self._path}: {error}",
            action="check the path and its file system; 'locked' means that another process is inside a unit, perhaps stopped",
        )
