"""One SQLite connection: the layout of the tables, and transactions that only the store can end (sqlite_guard.py).

What a handler may do with the connection survives::

    a handler sets ``tx.row_factory = sqlite3.Row`` (or ``text_factory``), and the connection keeps it
    the store would compare rows with tuples, find no id new, and book every event as handled that no handler has seen

so the store's own statements have factories of their own.

What readers that start together do to a new file survives::

    each reads the file and then wants to write into it, to make it one with write-ahead logging; one of them may
    SQLite tells the others "locked" at once, without its busy timeout: it cannot know that waiting would not be a deadlock

so that statement is repeated until the timeout is over.

And what only the commit finds::

    a deferred foreign key is violated; COMMIT says no, and the transaction stays open
    it is rolled back, and the events of the unit have failed (CommitRefused): repeating it as a trouble of the store's would
    never end

And a file that goes away while it is in use::

    somebody deletes the file, or moves a backup upon it; the connection goes on with the file that has no name any more
    every unit is committed into that, Kafka is told so, and effects and positions are gone when the reader ends

so each transaction looks whether the file is still the one that was opened: at its beginning, before anything is handled or
claimed in it, and before its commit (StoreLost). The open connection keeps the inode, so no other file can get its number.

And an older copy that is put *into* the file::

    by SQLite (``.restore``): the position goes back, under an epoch that may be the reader's own (rules.py)
    by ``cp``, beside a log that is newer: where the file has become shorter, and at each start, it is looked whether the two
    belong together (sqlite_log.py)
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from onceflow.errors import CommitUnknown, ReaderError, StoreError, StoreLost, StoreMismatch, StoreUnavailable
from onceflow.reader.stores.blame import causes, own_refused
from onceflow.reader.stores.interface import CommitRefused
from onceflow.reader.stores.sqlite_guard import GuardedConnection
from onceflow.reader.stores.sqlite_log import has_missing_pages
from onceflow.reader.stores.tables import LAYOUT_VERSION, TABLES, layout_mismatch
from onceflow.sqlite import is_in_place, place_of

_OLDEST_VERSION = (3, 38)  # the first with the operator ->>
_BEGIN = "BEGIN IMMEDIATE -- onceflow"
_COMMIT = "COMMIT -- onceflow"
_ROLLBACK = "ROLLBACK -- onceflow"
_LOCKED_PAUSE_S = 0.01
_TROUBLE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT)

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

    def __init__(self, path: Path, busy_timeout_s: float, *, foreign_keys: bool) -> None:
        if sqlite3.sqlite_version_info < _OLDEST_VERSION:
            raise StoreMismatch(
                f"Python's SQLite {sqlite3.sqlite_version} is too old",
                action="use a Python with SQLite 3.38 or later, or another store",
            )
        self._path = path
        self._file = path.absolute()  # as SQLite does: a process may change its directory later
        self._busy_timeout_s = busy_timeout_s
        self._size = 0
        _check_place(path)
        self._check_log()
        try:
            self.connection: GuardedConnection = sqlite3.connect(
                path,
                timeout=busy_timeout_s,
                isolation_level="IMMEDIATE",
                check_same_thread=False,
                factory=GuardedConnection,
            )
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        try:
            with self._looking_at_the_file():
                self._place = place_of(self._file)
            self._prepare(foreign_keys)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """It stays guarded until then: a handler that was given up may still go on, in another thread."""
        sqlite3.Connection.close(self.connection)

    @contextmanager
    def transaction(self, *, guarded: bool = False) -> Iterator[None]:
        """Commits at the end, rolls back after an exception. ``guarded``: others write through the connection as well."""
        self.execute(_BEGIN)
        try:
            self._check_in_place()
            self.connection.is_guarded = guarded
            yield
            self.check_whole()
            self._check_in_place()
        except BaseException as error:
            self.connection.is_guarded = False
            self._roll_back()
            self.connection.is_guarded = guarded and isinstance(error, ReaderError)  # the handler may still have it
            raise
        self.connection.is_guarded = False
        self._commit()

    def check_whole(self) -> None:
        """Raises StoreError if the transaction is not there any more."""
        if not self.connection.in_transaction:
            raise StoreError(
                f"{self._path}: SQLite rolled the unit back inside a handler, and nobody raised its error; nothing was committed",
                action="let SQL errors come out of the handler (ON CONFLICT ROLLBACK and RAISE(ROLLBACK) end the whole unit)",
            )

    def _check_in_place(self) -> None:
        """Raises StoreLost if the file is gone, or another one stands in its place: what is committed would be lost."""
        with self._looking_at_the_file():
            in_place = is_in_place(self._file, self._place)
            size = self._file.stat().st_size if in_place else 0
        if not in_place:
            raise StoreLost(
                f"{self._path} is not the file any more that the reader has opened: it was replaced or removed",
                action="end the readers before a file is replaced; restore it, or start again and say how to go on (lost_store)",
            )
        if size < self._size:  # a VACUUM does that too
            self._check_log()
        self._size = size or self._size  # empty it is for a moment, while something is copied into it

    def _check_log(self) -> None:
        """Raises StoreLost if the file is an older one than its log."""
        with self._looking_at_the_file():
            is_older = has_missing_pages(self._file)
        if is_older:
            raise StoreLost(
                f"{self._path} and {self._path.name}-wal do not belong together: pages are in neither, so an older copy was "
                "put into the file",
                action=f"end the readers, put the copy there again, and remove {self._path.name}-wal and -shm before the next "
                "start: that says what the store has lost, and how to go on (lost_store)",
            )

    @contextmanager
    def _looking_at_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"SQLite store {self._path}: {error}", action="check the path and its file system"
            ) from error

    def _commit(self) -> None:
        try:
            self.connection.execute(_COMMIT)
        except sqlite3.Error as error:
            if not self.connection.in_transaction:
                raise CommitUnknown(f"{self._path}: SQLite failed while it committed: {error}") from error
            self._roll_back()
            if isinstance(error, sqlite3.IntegrityError):
                raise CommitRefused(f"{self._path}: {error}") from error
            raise self._unavailable(error) from error

    def _roll_back(self) -> None:
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.connection.execute(_ROLLBACK)

    def _prepare(self, foreign_keys: bool) -> None:
        try:
            mode = self._write_ahead_logging()
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute(f"PRAGMA foreign_keys = {foreign_keys:d}")
        except sqlite3.DatabaseError as error:
            raise self._unavailable(error) from error
        if mode != "wal":
            raise StoreMismatch(
                f"{self._path} cannot use write-ahead logging (its journal mode is {mode})",
                action="keep the file on a local file system",
            )
        self.connection.guard()
        # Looked at without the write lock, which another reader may hold for as long as its handler works.
        with self.own():
            is_there = self._has_layout()
        if not is_there:
            with self.transaction(), self.own():
                self._make_layout()

    def _write_ahead_logging(self) -> str:
        """Returns the journal mode that the file has afterwards."""
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                mode: str = self.connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(_LOCKED_PAUSE_S)
            else:
                return mode

    def _make_layout(self) -> None:
        if self._has_layout():  # another process made it between the look and the lock
            return
        for statement in _LAYOUT:
            self.connection.execute(statement)
        self.connection.execute("INSERT INTO onceflow_layout VALUES (?)", (LAYOUT_VERSION,))

    def _has_layout(self) -> bool:
        """Whether the tables are there; they are made in one transaction, so all of them or none. Raises StoreMismatch."""
        rows = self.connection.execute("SELECT name FROM sqlite_master").fetchall()
        present = {name for (name,) in rows}.intersection(TABLES)
        if not present:
            return False
        if present != set(TABLES):
            raise layout_mismatch(str(self._path), None)
        (version,) = self.connection.execute("SELECT version FROM onceflow_layout").fetchone()
        if version != LAYOUT_VERSION:
            raise layout_mismatch(str(self._path), version)
        return True

    def execute(self, statement: str) -> None:
        """One statement of the store's own."""
        with self.own():
            self.connection.execute(statement)

    @contextmanager
    def own(self) -> Iterator[None]:
        """For the store's own statements: rows are tuples of text, and what SQLite says of them is StoreUnavailable.

        What a trigger of the user's on its tables refuses does not pass by waiting: StoreError.
        """
        connection = self.connection
        theirs = connection.row_factory, connection.text_factory
        connection.row_factory, connection.text_factory = None, str
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise own_refused(error) from error
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        finally:
            connection.row_factory, connection.text_factory = theirs

    def check_blame(self, error: BaseException) -> None:
        """Raises StoreUnavailable where SQLite itself broke in a handler: no event is guilty of that.

        A full disk may end the whole transaction or a single statement; and the handler may have made another error of it.
        """
        for each in causes(error):
            if isinstance(each, sqlite3.Error) and _primary_code(each) in _TROUBLE:
                raise self._unavailable(each) from error

    def _unavailable(self, error: sqlite3.Error) -> StoreError:
        if _primary_code(error) == sqlite3.SQLITE_NOTADB:  # waiting does not make it one
            return StoreMismatch(
                f"{self._path} is no SQLite database: {error}",
                action="name the store's file, or one that does not exist yet",
            )
        return StoreUnavailable(
            f"SQLite store {self._path}: {error}",
            action="check the path and its file system; 'locked' means that another process is inside a unit, perhaps stopped",
        )


def _check_place(path: Path) -> None:
    """Raises StoreMismatch where no file can be: SQLite says no more than that it cannot open it, which might pass."""
    if not path.parent.is_dir():
        raise StoreMismatch(f"there is no directory {path.parent} for the store {path.name}", action="create it")
    if path.is_dir():
        raise StoreMismatch(f"{path} is a directory", action="name a file, the store's or one that does not exist yet")


def _primary_code(error: sqlite3.Error) -> int:
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF  # above it stands which kind of it
