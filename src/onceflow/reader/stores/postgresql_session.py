"""One PostgreSQL connection: the layout of the tables, and transactions that commit as a whole or say that they did not.

What the end of a transaction survives::

    a handler catches an SQL error and goes on: the server has failed the transaction, and would answer COMMIT with ROLLBACK
    a handler executes "COMMIT": what follows is outside of the transaction
    the state of the connection is looked at before the commit, and anything but "in a transaction" is an error

    a handler executes "COMMIT", and then fails; or "COMMIT" and "BEGIN"
    ids and position are committed, with half of its effects. Taken for a failure of the event, it would come again as a duplicate
    and count as handled without a word: StoreError, which says so

    a handler leaves a block of psycopg's open (``tx.transaction()``), which then refuses to end those around it
    the connection would stay in that transaction, and each later unit be a savepoint in it, committed by nobody: it is closed

    the reader gives the event loop of a handler up (on_loop.py), rolls back, and the handler takes one step more
    the connection would commit each statement by itself, an effect without its id: it is closed before the rollback, which is
    the server's then

    a deferred constraint is violated, and only the commit finds it
    that is a failure of the events in the unit (CommitRefused), and no unknown: the server has said no

What a pooler that gives each transaction another session (pgbouncer's transaction mode) does to a statement that was prepared::

    it was prepared in one session and is executed in another: that does not know it, or knows another client's of the same name
    the first is an error of a handler that has made no mistake; the second executes something else

so nothing is prepared on the server, neither the store's statements nor those of handlers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.transaction import OutOfOrderTransactionNesting

from onceflow.errors import CommitUnknown, ConfigurationError, ReaderError, StoreError, StoreUnavailable
from onceflow.postgresql import CONNECTION
from onceflow.reader.stores.blame import causes, own_refused
from onceflow.reader.stores.interface import CommitRefused
from onceflow.reader.stores.tables import LAYOUT_VERSION, TABLES, layout_mismatch

# Deadlocks and the like; no connection (said by a pooler, of another server); no disk, memory or session left; ended by an
# operator; the system's own errors; damaged data. Not 08P01, which the server says of parameters that do not fit their statement
# (a pooler closes the connection behind it), nor 58P01 and the like, of a file that a statement names.
_NO_CONNECTION = ("08000", "08001", "08003", "08004", "08006")
_TROUBLE = ("40", *_NO_CONNECTION, "53100", "53200", "53300", "57P", "58000", "58030", "XX001", "XX002")
# Another server or session than the one that was meant: one that only reads (after a failover), one that does not know a
# statement that was prepared, or knows another one by that name.
_ELSEWHERE = ("25006", "26000", "42P05")
_OF_LOCKS = "lock.c"  # says 53200 too: of a transaction that takes more locks than the server has, and would each time
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
        held = "another reader is inside its unit with the same partition or event, and is slow or stopped"
        action = held if isinstance(error, psycopg.errors.LockNotAvailable) else "check the server"
        raise StoreUnavailable(f"PostgreSQL store: {error}", action=f"{action}; the events come again") from error


@contextmanager
def translated() -> Iterator[None]:
    """For statements of the store's own. What may not pass is StoreError: a trigger of the user's, a name beyond all limits."""
    try:
        with available():
            yield
    except psycopg.Error as error:
        raise own_refused(error) from error


def _may_pass(error: psycopg.Error) -> bool:
    state = error.sqlstate or ""
    return state in _ELSEWHERE or (isinstance(error, psycopg.OperationalError) and not state.startswith(_LIMIT))


def lock_timeout(seconds: float) -> str:
    """As PostgreSQL's setting: 0 would be no bound."""
    return f"{max(1, round(seconds * 1000))}ms"


def _check_url(url: str) -> None:
    """It shows nothing of the URL: any part of it may be a password that is not written as one."""
    try:
        conninfo_to_dict(url)
    except psycopg.Error:
        mistake = (
            "PostgreSQL's client cannot read it: it has a parameter that is none of libpq's, or a user or password that is not "
            "percent-encoded"
        )
        raise ConfigurationError.of("the store's URL", [mistake]) from None


class Session:
    """Connects when it must, and again after a break."""

    def __init__(self, url: str, patience_s: float) -> None:
        """``patience_s``: for another reader that is about to make the tables. Raises ConfigurationError."""
        _check_url(url)
        self._url = url
        self._patience_s = patience_s
        self._connection: psycopg.Connection[Any] | None = None
        self._is_open = False

    def open(self) -> None:
        """Connects, and creates the tables or checks them."""
        self._is_open = True
        try:
            with self.transaction() as connection, translated():
                _check_layout(connection, self._patience_s)
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
            try:
                check_failed_unit(connection, error)
            finally:
                if isinstance(error, ReaderError):  # the handler may still have the connection
                    connection.close()
                with suppress(psycopg.Error):
                    transaction.__exit__(type(error), error, error.__traceback__)
                _close_unless_clean(connection, error)
            raise
        try:
            transaction.__exit__(None, None, None)
        except psycopg.Error as error:
            if connection.closed:
                raise CommitUnknown(f"PostgreSQL did not answer the commit: {error}") from error
            _close_unless_clean(connection, error)
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
        connection = psycopg.connect(**options, autocommit=True, prepare_threshold=None)
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
        raise _ended_inside()


def check_failed_unit(connection: psycopg.Connection[Any], error: BaseException) -> None:
    """Raises StoreError where a unit fails that is in no transaction any more: what it has done by then may be committed."""
    _check_not_ended(connection, error, TransactionStatus.IDLE)


def check_failed_savepoint(connection: psycopg.Connection[Any], error: BaseException) -> None:
    """The same, once psycopg has rolled back to a savepoint: where that was not there any more, it has failed the transaction."""
    _check_not_ended(connection, error, TransactionStatus.IDLE, TransactionStatus.INERROR)


def _check_not_ended(connection: psycopg.Connection[Any], error: BaseException, *ended: TransactionStatus) -> None:
    is_told = isinstance(error, StoreError | OutOfOrderTransactionNesting)  # the second one has rolled nothing back
    if not is_told and connection.info.transaction_status in ended:
        raise _ended_inside() from error


def _ended_inside() -> StoreError:
    return StoreError(
        "the transaction was ended inside the unit, so effects and ids are not in one transaction",
        action="do not commit or roll back in a handler. Behind a COMMIT its events count as handled: look which of their "
        "effects are there",
    )


def _close_unless_clean(connection: psycopg.Connection[Any], error: BaseException) -> None:
    """The next unit must be a transaction of its own, in a session that can do what it asks."""
    is_elsewhere = any(_state(each) in _ELSEWHERE for each in causes(error))
    if is_elsewhere or connection.info.transaction_status is not TransactionStatus.IDLE:
        connection.close()


def _state(error: BaseException) -> str:
    return (error.sqlstate or "") if isinstance(error, psycopg.Error) else ""


def _took_too_many_locks(error: BaseException) -> bool:
    return _state(error) == "53200" and isinstance(error, psycopg.Error) and error.diag.source_file == _OF_LOCKS


def check_blame(connection: psycopg.Connection[Any], error: BaseException) -> None:
    """Raises StoreUnavailable where the server broke in a handler, or gave way to another transaction: no event is guilty."""
    if connection.closed:
        raise StoreUnavailable(f"the connection to PostgreSQL broke in a handler: {error}") from error
    for each in causes(error):
        if _state(each).startswith(_TROUBLE + _ELSEWHERE) and not _took_too_many_locks(each):
            raise StoreUnavailable(f"PostgreSQL store: {each}", action="the events come again") from error


def _check_layout(connection: psycopg.Connection[Any], patience_s: float) -> None:
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (lock_timeout(patience_s),))
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
