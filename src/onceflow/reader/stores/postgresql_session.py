"""One PostgreSQL connection: the layout of the tables, and transactions that commit as a whole or say that they did not.

What the end of a transaction survives::

    a handler catches an SQL error and goes on: the server has failed the transaction, and would answer COMMIT with ROLLBACK
    a handler executes "COMMIT": what follows is outside of the transaction
    the state of the connection is looked at before the commit, and anything but "in a transaction" is an error

    a deferred constraint is violated, and only the commit finds it
    that is a failure of the events in the unit (CommitRefused), and no unknown: the server has said no
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from onceflow.errors import CommitUnknown, StoreError, StoreUnavailable
from onceflow.postgresql import CONNECTION
from onceflow.reader.stores.blame import causes, own_refused
from onceflow.reader.stores.interface import CommitRefused
from onceflow.reader.stores.tables import LAYOUT_VERSION, TABLES, layout_mismatch

_TROUBLE = ("40", "53100", "58030")  # deadlocks and the like, a full disk, an I/O error
_LIMIT = "54"  # too large for PostgreSQL, and so it will be: an index row, a number of columns

_LAYOUT = """
CREATE TABLE onceflow_layout (version integer NOT NULL);
CREATE TABLE onceflow_positions (consumer_group text COLLATE "C", topic text, partition integer, epoch bigint NOT NULL,
    next_offset bigint, owner text NOT NULL, PRIMARY KEY (consumer_group, topic, partition));
CREATE TABLE onceflow_sequences (consumer_group text COLLATE "C", topic text, partition integer, source text COLLATE "C",
    sequence bigint NOT NULL, PRIMARY KEY (consumer_group, topic, partition, source));
CREATE TABLE onceflow_ids (consumer_group text COLLATE "C", source text COLLATE "C", id text COLLATE "C",
    handled_at timestamptz NOT NULL, PRIMARY KEY (consumer_group, source, id));
CREATE INDEX onceflow_ids_by_age ON onceflow_ids USING brin (handled_at) WITH (pages_per_range = 16, autosummarize = on);
CREATE TABLE onceflow_claims (consumer_group text COLLATE "C", source text COLLATE "C", id text COLLATE "C", topic text NOT NULL,
    partition integer NOT NULL, at_offset bigint NOT NULL, sequence bigint, lease_until timestamptz,
    PRIMARY KEY (consumer_group, source, id));
CREATE INDEX onceflow_claims_by_offset ON onceflow_claims (topic, partition, consumer_group, at_offset);
"""


@contextmanager
def available() -> Iterator[None]:
    """Raises StoreUnavailable for what PostgreSQL says of itself: gone, shutting down, deadlock, a lock not got in time."""
    try:
        yield
    except psycopg.Error as error:
        if not _may_pass(error):
            raise
        raise StoreUnavailable(
            f"PostgreSQL store: {error}", action="check the server; the events come again"
        ) from error


@contextmanager
def translated() -> Iterator[None]:
    """For statements of the store's own. What may not pass is StoreError: a trigger of the user's, a name beyond all limits."""
    try:
        with available():
            yield
    except psycopg.Error as error:
        raise own_refused(error) from error


def _may_pass(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.OperationalError) and not (error.sqlstate or "").startswith(_LIMIT)


class Session:
    """Connects when it must, and again after a break."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None
        self._is_open = False

    def open(self) -> None:
        """Connects, and creates the tables or checks them."""
        self._is_open = True
        try:
            with self.transaction() as connection, translated():
                _check_layout(connection)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._is_open = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Commits at the end, rolls back after an exception."""
        connection = self._connected()
        transaction = connection.transaction()
        with available():
            transaction.__enter__()
        try:
            yield connection
            check_whole(connection)
        except BaseException as error:
            with suppress(psycopg.Error):
                transaction.__exit__(type(error), error, error.__traceback__)
            raise
        try:
            transaction.__exit__(None, None, None)
        except psycopg.Error as error:
            if connection.closed:
                raise CommitUnknown(f"PostgreSQL did not answer the commit: {error}") from error
            if not _may_pass(error):
                raise CommitRefused(f"PostgreSQL: {error}") from error
            with available():
                raise

    def _connected(self) -> psycopg.Connection[Any]:
        if not self._is_open:
            raise StoreError("the PostgreSQL store is not open", action="call open(group, retention) first")
        if self._connection is None or self._connection.closed:
            with available():
                self._connection = self._connect()
        return self._connection

    def _connect(self) -> psycopg.Connection[Any]:
        options = {**CONNECTION, **conninfo_to_dict(self._url)}
        connection = psycopg.connect(**options, autocommit=True)
        # The rules look at what others committed since the transaction began.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection


def check_whole(connection: psycopg.Connection[Any]) -> None:
    """Raises StoreError unless the connection is in a transaction that can be committed."""
    status = connection.info.transaction_status
    if status is TransactionStatus.UNKNOWN:
        raise StoreUnavailable("the connection to PostgreSQL broke inside the unit; nothing of it was committed")
    if status is TransactionStatus.INERROR:
        raise StoreError(
            "an SQL statement failed inside the unit, and nobody raised its error; nothing of the unit was committed",
            action="let SQL errors come out of the handler, or put the statement that may fail into tx.transaction()",
        )
    if status is not TransactionStatus.INTRANS:
        raise StoreError(
            "the transaction was ended inside the unit, so effects and ids are not in one transaction",
            action="do not commit or roll back in a handler",
        )


def check_blame(connection: psycopg.Connection[Any], error: BaseException) -> None:
    """Raises StoreUnavailable where the server broke in a handler, or gave way to another transaction: no event is guilty."""
    if connection.closed:
        raise StoreUnavailable(f"the connection to PostgreSQL broke in a handler: {error}") from error
    for each in causes(error):
        state = getattr(each, "sqlstate", None) or "" if isinstance(each, psycopg.Error) else ""
        if state.startswith(_TROUBLE):
            raise StoreUnavailable(f"PostgreSQL store: {each}", action="the events come again") from error


def _check_layout(connection: psycopg.Connection[Any]) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('onceflow_layout', 0))")
    rows = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename = ANY(%s)", (list(TABLES),)
    ).fetchall()
    present = {name for (name,) in rows}
    if not present:
        connection.execute(_LAYOUT)
        connection.execute("INSERT INTO onceflow_layout VALUES (%s)", (LAYOUT_VERSION,))
        return
    where = f"the PostgreSQL database {connection.info.dbname}"
    if present != set(TABLES):
        raise layout_mismatch(where, None)
    row = connection.execute("SELECT version FROM onceflow_layout").fetchone()
    if row is None or row[0] != LAYOUT_VERSION:
        raise layout_mismatch(where, row and row[0])
