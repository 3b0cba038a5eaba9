"""An outbox in PostgreSQL 13 or later, over psycopg 3.

*Why reading is a transaction that also writes*: a service that sets ``synchronous_commit = off`` has commits that others see
before they are on disk::

    a service commits an event asynchronously; the relay reads it and commits it in Kafka; the server's machine loses power
    the event is in Kafka, and what it tells of never happened in the database

The relay marks its own row when it has read, and waits for that commit to be on disk (and on the synchronous standby, where there
is one): the log is written in order, so every commit that it has read is there too.

*Why the type of payload is asked for in that transaction*: bytes go as they are, and all else as text::

    the relay has found jsonb; somebody alters the column to bytea; the relay reads its text: the value is hexadecimal digits
    in the transaction, the question takes a lock on the table that lets nobody alter it before the rows are read
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString

from onceflow.errors import ConfigurationError, OutboxMismatch, OutboxUnavailable
from onceflow.first_line import first_line_of
from onceflow.outbox.checks import check_aside, check_found, check_rows, moved_on, not_an_outbox
from onceflow.outbox.position import Sent
from onceflow.outbox.sql import CHANNEL, TableName
from onceflow.outbox.table import REQUIRED, Limits, OutboxRow, Place, load
from onceflow.outbox.waker import Waker
from onceflow.postgresql import CONNECTION

try:
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict

    from onceflow.postgresql_name import Name
except ImportError as missing:
    raise ConfigurationError(
        "PostgreSQL needs psycopg, which is not installed", action="pip install 'onceflow[postgresql]'"
    ) from missing

_DEFAULTS = {**CONNECTION, "application_name": "onceflow outbox"}
_UNREADABLE = (psycopg.DataError, UnicodeDecodeError)
_FETCH_ROWS = 200
_ROWS = (
    "select position, id::text, aggregatetype::text, aggregateid::text, type::text, {payload}, {inserted} from {outbox} "
    "order by position limit %s"
)
_MAY: dict[str, LiteralString] = {
    "DELETE": "select has_table_privilege(to_regclass(%(name)s), %(right)s)",
    "INSERT": "select has_any_column_privilege(to_regclass(%(name)s), %(right)s)",  # or on the columns alone
}
_INSERTED_AT_MS = "case when isfinite(inserted_at) then (extract(epoch from inserted_at) * 1000)::bigint end"


class PostgresqlOutbox:
    """``url`` as libpq takes it. See ``OutboxTable``."""

    def __init__(self, url: str, table: TableName) -> None:
        try:
            self._options = {**_DEFAULTS, **conninfo_to_dict(url), "client_encoding": "utf8"}
        except psycopg.ProgrammingError:
            raise ConfigurationError(
                "the address of the database is not understood", action="write postgresql://user@host:5432/database"
            ) from None
        self._name = table
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._heard = False
        self._inserted = sql.SQL("")

    @property
    def address(self) -> str:
        """Host and database only: libpq takes secrets in several options."""
        host, database = self._options.get("host", "localhost"), self._options.get("dbname", "")
        return f"postgresql://{host}/{database}, table {self._name}"

    def open(self) -> None:
        with self._told():
            # Nothing is kept in the session but LISTEN, so that a pooler between costs no more than latency.
            self._connection = psycopg.connect(**self._options, autocommit=True, prepare_threshold=None)
            self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self._connection.add_notify_handler(self._hear)
            found = self._found_columns()
            check_found(str(self._name), found, REQUIRED)
            self._check_trigger()
            self._check_right("DELETE", self._name)
            self._inserted = sql.SQL(_INSERTED_AT_MS if "inserted_at" in found else "null::bigint")
            self._connection.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # ----------------------------------------------------------------------------------------------------- the place

    def place(self) -> Place:
        with self._told():
            rows = self._run("select incarnation::text, name, instance, batch, events from {relay}")
        if len(rows) != 1:
            raise not_an_outbox(f"{self._name.relay} has {len(rows)} rows instead of one")
        return Place(*rows[0])

    def check_aside(self) -> None:
        with self._told():
            self._run("select 1 from {aside} limit 1")
            self._check_right("INSERT", self._name.aside)
            self._columns_aside()

    def _columns_aside(self) -> sql.Composed:
        """All columns of the outbox, which the table of refused rows must have as well."""
        found = self._found_columns()
        check_aside(self._name, found, self._takes_values(self._name.aside))
        return sql.SQL(", ").join(map(Name, found))

    def claim(self, name: str, instance: str, *, over: str | None) -> bool:
        with self._told():
            done = self._run(
                "update {relay} set name = %(name)s, instance = %(instance)s "
                "where (name is null or name = %(name)s) and instance is not distinct from %(over)s returning 1",
                name=name,
                instance=instance,
                over=over,
            )
        return bool(done)

    # ---------------------------------------------------------------------------------------------------------- rows

    def take(self, left: Place, limits: Limits) -> Sequence[OutboxRow]:
        with self._told(), self._all_rows():
            rows = self._rows(limits)
            if rows:
                self._mark(left)
        return rows

    @contextmanager
    def _all_rows(self) -> Iterator[None]:
        """A transaction in which a row-level security policy is an error: it would hide rows, or keep them from being deleted."""
        with self._open.transaction():
            self._run("select set_config('row_security', 'off', true)")
            yield

    def _mark(self, left: Place) -> None:
        """Writes, so that the commit puts everything that was read on disk; see above."""
        self._run(
            "select set_config('synchronous_commit', 'on', true) where current_setting('synchronous_commit') = 'off'"
        )
        marked = self._run(
            "update {relay} set sending = batch + 1 where incarnation = %(incarnation)s::uuid "
            "and instance is not distinct from %(instance)s and batch = %(batch)s returning 1",
            incarnation=left.incarnation,
            instance=left.instance,
            batch=left.batch,
        )
        if not marked:
            raise moved_on(self.address)

    def _rows(self, limits: Limits) -> list[OutboxRow]:
        """Over a cursor of the server, so that no more is fetched than a batch holds."""
        payload = sql.SQL("payload" if self._holds_bytes() else "payload::text")
        query = sql.SQL(_ROWS).format(payload=payload, inserted=self._inserted, outbox=_identifier(self._name))
        with self._server_cursor() as cursor:
            cursor.itersize = _FETCH_ROWS
            return load(cursor.execute(query, [limits.rows]), limits)

    @contextmanager
    def _server_cursor(self) -> Iterator[psycopg.ServerCursor[tuple[Any, ...]]]:
        """psycopg's own stays open where the connection breaks as it is closed, and warns of that whenever it is collected."""
        cursor = self._open.cursor(name="onceflow_outbox")
        try:
            yield cursor
        finally:
            try:
                cursor.close()
            except BaseException:
                psycopg.Cursor.close(cursor)  # the server has none any more
                raise

    def _holds_bytes(self) -> bool:
        """Whether payload is bytea, or a domain over it: the server describes a column by the base of its type."""
        query = sql.SQL("select payload from {} limit 0").format(_identifier(self._name))
        described = self._open.execute(query).description
        assert described is not None, "it is a select"
        return described[0].type_code == psycopg.adapters.types["bytea"].oid

    def forget(self, sent: Sent) -> None:
        with self._told(), self._all_rows():
            booked = self._run(
                "update {relay} set batch = %(batch)s, events = %(events)s "
                "where batch = %(batch)s - 1 and incarnation = %(incarnation)s::uuid returning 1",
                batch=sent.batch,
                events=sent.events,
                incarnation=sent.incarnation,
            )
            if not booked:
                raise moved_on(self.address)
            if sent.refused:
                self._set_aside(sent.refused)
            deleted = self._run(
                "delete from {outbox} where position = any(%(positions)s) returning position, id::text",
                positions=list(sent.positions()),
            )
            check_rows(self.address, sent, deleted)

    def _set_aside(self, positions: Sequence[int]) -> None:
        """Whole rows: the columns are looked up now, because a table may get new ones while the relay runs."""
        query = sql.SQL("insert into {aside} ({columns}) select {columns} from {outbox} where position = any(%s)")
        names = {"aside": _identifier(self._name.aside), "outbox": _identifier(self._name)}
        self._open.execute(query.format(**names, columns=self._columns_aside()), [list(positions)])

    # ---------------------------------------------------------------------------------------------------------- wait

    def wait(self, waker: Waker, timeout_s: float) -> None:
        """LISTEN is in force before the first ``take``, so what commits after a ``take`` is heard."""
        heard, self._heard = self._heard, False
        with self._told():
            protocol = self._open.pgconn
            protocol.consume_input()  # a notification may lie in a buffer, where no wait for the socket sees it
            if heard or protocol.notifies() is not None:
                return
            waker.wait(timeout_s, self._open.fileno())

    def _hear(self, _: psycopg.Notify) -> None:
        self._heard = True

    # ------------------------------------------------------------------------------------------------------- helpers

    @property
    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        assert self._connection is not None, "open it first"
        return self._connection

    def _run(self, query: LiteralString, **values: object) -> list[tuple[Any, ...]]:
        tables = {"outbox": self._name, "relay": self._name.relay, "aside": self._name.aside}
        names = {name: _identifier(table) for name, table in tables.items()}
        return self._open.execute(sql.SQL(query).format(**names), values).fetchall()

    def _found_columns(self) -> dict[str, str]:
        return dict(
            self._run(
                "select attname, format_type(atttypid, null) from pg_attribute "
                "where attrelid = to_regclass(%(name)s) and attnum > 0 and not attisdropped order by attnum",
                name=str(self._name),
            )
        )

    def _takes_values(self, table: TableName) -> dict[str, bool]:
        """Of each column whether a value can be put into it: not where it is generated, or ``generated always as identity``."""
        return dict(
            self._run(
                "select attname, attgenerated = '' and attidentity <> 'a' from pg_attribute "
                "where attrelid = to_regclass(%(name)s) and attnum > 0 and not attisdropped",
                name=str(table),
            )
        )

    def _check_trigger(self) -> None:
        """Without it positions would not be in the order of commits."""
        if not self._run(
            "select 1 from pg_trigger where tgrelid = to_regclass(%(name)s) and tgname = %(trigger)s and tgenabled in ('O', 'A')",
            name=str(self._name),
            trigger=f"{self._name.name}_number",
        ):
            raise not_an_outbox(f"the trigger {self._name.name}_number of {self._name} is missing or disabled")

    def _check_right(self, right: str, table: TableName) -> None:
        """What is needed behind Kafka's commit alone, and would be found lacking there."""
        may = self._run(_MAY[right], name=str(table), right=right)
        if may != [(True,)]:
            raise OutboxMismatch(f"{self.address}: the role lacks {right} on {table}", action=self._way_out)

    @property
    def _way_out(self) -> str:
        return (
            f"make the outbox with `onceflow outbox init postgresql`; the relay's role needs SELECT and DELETE on {self._name}, "
            f"SELECT and UPDATE on {self._name.relay}, with --refused dead-letter SELECT and INSERT on {self._name.aside}, "
            "and no row-level security (BYPASSRLS)"
        )

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of psycopg as ours. They name host, user and statement, never a password."""
        try:
            yield
        except psycopg.ProgrammingError as error:  # a missing right, table or column: asked again, it is the same
            raise OutboxMismatch(f"{self.address}: {first_line_of(error)}", action=self._way_out) from error
        except _UNREADABLE as error:
            raise OutboxMismatch(
                f"{self.address}: a row cannot be read: {first_line_of(error)}",
                action="correct the row that the message tells of",
            ) from error
        except psycopg.IntegrityError as error:
            raise OutboxMismatch(
                f"{self.address}: a constraint of the database's is in the way: {first_line_of(error)}",
                action="drop it from the relay's tables: a row that is set aside goes there as it stands",
            ) from error
        except psycopg.errors.ReadOnlySqlTransaction as error:  # a standby, which may be the primary in a moment
            raise OutboxUnavailable(
                f"{self.address}: {first_line_of(error)}",
                action="connect to the primary (target_session_attrs=read-write in the address); then start again",
            ) from error
        except psycopg.Error as error:
            raise OutboxUnavailable(
                f"{self.address}: {first_line_of(error)}",
                action="check address, credentials and server; then start again",
            ) from error


def _identifier(table: TableName) -> sql.Identifier:
    return sql.Identifier(*([table.schema] if table.schema else []), table.name)
