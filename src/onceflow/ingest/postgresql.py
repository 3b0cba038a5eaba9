"""A table of a PostgreSQL database, with a horizon that no open transaction can undercut.

Numbers are drawn in the order in which rows are inserted, but become visible in the order of the commits. So, as CREATE INDEX
CONCURRENTLY does, we wait for the writers (``horizon.py``). Who that is::

    identity and serial columns: the transactions that hold a writer's lock on the table
    a row up to M that is still invisible drew its number before M was drawn, within an INSERT, which locks the table before it
    draws. So its transaction was writing when M became visible, and is noted.

    with a tiebreak (a time of change): every open transaction of the database
    ``now()`` is the time when the transaction began, and it may write to the table hours later.

This holds for numbers drawn by the INSERT itself (sequence cache 1). It does not for numbers that an application draws ahead or
gives by hand, and for caches: such columns are refused unless the user vouches for their order.

Positions and ids are text, and how PostgreSQL writes text is a setting of the session::

    extra_float_digits = 0: 1700000000.0000012 is written 1700000000
    rows between the two are skipped, or read again, and many get one id
    timezone, datestyle, intervalstyle, bytea_output: the same row gets another id, or its value is read as another one

    a role, a database or a pooler has defaults of its own; a pooler gives each transaction another session of the server
    what is written or read as text is so in a transaction that says first how (``_AS_TEXT``)

A name in SQL is a column's before it is a table's::

    the table has a column ``t``, and a query calls the table so: ``row_to_json(t)`` is the JSON of that one value
    a row is ``t.*`` and its column ``t."name"``, in which ``t`` can be nothing but the table
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from onceflow.errors import ConfigurationError, SourceUnavailable
from onceflow.ingest.horizon import Horizon, Writer
from onceflow.ingest.table_uri import in_path
from onceflow.ingest.tables import Page, TableOptions, event_id, view_mistake
from onceflow.postgresql import CONNECTION
from onceflow.postgresql_name import Name

_DEFAULTS = {**CONNECTION, "application_name": "onceflow ingest"}
_COLUMN = """
SELECT a.attname, a.attnum, a.attnotnull, pg_get_serial_sequence(a.attrelid::regclass::text, a.attname),
  a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_UNIQUE = """
SELECT 1 FROM pg_index WHERE indrelid = %s AND indisunique AND indisvalid AND indpred IS NULL AND indnkeyatts = 1
AND indkey[0] = %s
"""
_WRITERS = """
SELECT DISTINCT virtualtransaction, pid FROM pg_locks
WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND relation IN (SELECT %(table)s UNION SELECT relid FROM pg_partition_tree(%(table)s))
AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
_OPEN = """
SELECT virtualtransaction, pid FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'virtualxid' AND mode = 'ExclusiveLock' AND granted
AND datname = current_database() AND usesysid IS NOT NULL AND pid <> pg_backend_pid()
UNION ALL SELECT 'prepared transaction ' || gid, NULL FROM pg_prepared_xacts WHERE database = current_database()
"""
# Not lc_monetary: it says how many digits of a money value are behind the point, so another one means another value.
_AS_TEXT = """
SELECT set_config('extra_float_digits', '3', true), set_config('datestyle', 'ISO', true), set_config('timezone', 'UTC', true),
set_config('intervalstyle', 'postgres', true), set_config('bytea_output', 'hex', true)
"""
_SYNCHRONOUS = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
_CHILDREN = "SELECT 1 FROM pg_inherits JOIN pg_class c ON c.oid = inhparent WHERE inhparent = %s AND c.relkind = 'r'"
_REFUSED = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)


class PostgresqlTable:
    """See ``Database``. Needs SELECT on the table, and psycopg."""

    def __init__(self, url: str, options: TableOptions) -> None:
        self._options = options
        try:
            connection = {**_DEFAULTS, **conninfo_to_dict(url), "client_encoding": "utf8"}
            # Nothing is kept in the session, which a pooler may change.
            self._connection = psycopg.connect(**connection, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise SourceUnavailable(
                f"PostgreSQL cannot be reached: {error}", action="check --from and the server"
            ) from None
        try:
            self._describe()
        except BaseException:
            self.close()
            raise
        delay_s = options.delay_s if options.tiebreak else 0.0
        self.horizon = Horizon(self._largest, self._writers, delay_s=delay_s)

    def _ask(self, query: sql.Composed | sql.SQL, values: Any = ()) -> list[Any]:
        """Always with parameters, if only none: so ``Name`` is right in every query."""
        with self._told():
            return self._connection.execute(query, values).fetchall()

    def _ask_text(self, query: sql.Composed, values: Any = ()) -> list[Any]:
        """A query that writes values as text, or reads them from it."""
        with self._told(), self._connection.transaction():
            self._ask(sql.SQL(_AS_TEXT))
            return self._ask(query, values)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except _REFUSED as error:
            raise ConfigurationError.of("the arguments", [f"{self._options.table}: {error}".strip()]) from error
        except psycopg.Error as error:
            raise SourceUnavailable(f"PostgreSQL: {error}", action="see the message; then start again") from error

    # ---------------------------------------------------------------------------------------------------------- checks

    def _describe(self) -> None:
        found = self._ask(
            sql.SQL("SELECT oid, relkind FROM pg_class WHERE oid = to_regclass(%s)"), [self._options.table]
        )
        if not found:
            raise ConfigurationError.of("the arguments", [f"there is no table {self._options.table}"])
        self._oid, kind = found[0]
        if kind == "v":
            raise ConfigurationError.of("the arguments", [view_mistake(self._options.table)])
        columns = {row[0]: row[1:] for row in self._ask(sql.SQL(_COLUMN), [self._oid])}
        self._check_names(list(columns))
        _, _, self._sequence, is_integer = columns[self._options.rising]
        self._is_counted = bool(is_integer) and not self._options.tiebreak
        self._check_order({name: columns[name][0] for name in self._options.order})
        self._nullable = [name for name in self._options.order if not columns[name][1]]
        [(schema, name, database, system)] = self._ask(
            sql.SQL(
                "SELECT n.nspname, c.relname, d.oid, s.system_identifier FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace, pg_database d, pg_control_system() s "
                "WHERE c.oid = %s AND d.datname = current_database()"
            ),
            [self._oid],
        )
        self._table = Name(schema, name)
        self.name = f"{schema}.{name}"
        info = self._connection.info
        host = quote(info.host, safe="")  # which may be the path of a socket
        self.uri = f"postgresql://{host}:{info.port}/{in_path(info.dbname)}/{in_path(self.name)}"
        self.identity = f"{system}-{database}-{self._oid}"

    def _check_names(self, columns: list[str]) -> None:
        mistakes = [
            f"{option}: {self._options.table} has no column {name}; it has {', '.join(columns)}"
            for option, name in self._options.named_columns.items()
            if name not in columns
        ]
        if mistakes:
            raise ConfigurationError.of("the arguments", mistakes)

    def _check_order(self, numbers: dict[str, int]) -> None:
        """``numbers``: those of the order's columns."""
        *_, (last, number) = numbers.items()
        option = "--tiebreak" if self._options.tiebreak else "--rising"
        mistakes = []
        if not self._options.trust_order and self._ask(sql.SQL("SELECT pg_is_in_recovery()"))[0][0]:
            mistakes.append("--from is a standby, which does not know the open transactions of its primary")
        if self._ask(sql.SQL(_CHILDREN), [self._oid]):
            mistakes.append(
                f"{self._options.table} has child tables by inheritance, whose rows no index of its own covers"
            )
        if not self._ask(sql.SQL(_UNIQUE), [self._oid, number]):
            hint = "" if self._options.tiebreak else "; a unique column as --tiebreak helps"
            mistakes.append(
                f"{option}: {last} has no unique index of its own: of rows with equal values some could be skipped{hint}"
            )
        if not (self._options.trust_order or self._options.tiebreak or self._draws_in_order()):
            mistakes.append(
                f"{option}: {last} is no identity or serial column with a rising sequence of cache 1, so a row may appear behind "
                "larger values; where that surely never happens add --trust-order"
            )
        if mistakes:
            raise ConfigurationError.of("the arguments", mistakes)

    def _draws_in_order(self) -> bool:
        query = (
            "SELECT seqcache = 1 AND seqincrement > 0 AND NOT seqcycle FROM pg_sequence WHERE seqrelid = %s::regclass"
        )
        return bool(self._sequence and self._ask(sql.SQL(query), [self._sequence])[0][0])

    def has_nulls(self) -> bool:
        found = [sql.SQL("{} IS NULL").format(Name(name)) for name in self._nullable]
        query = "SELECT 1 FROM {table} WHERE {missing} LIMIT 1"
        return bool(found and self._ask(self._query(query, missing=sql.SQL(" OR ").join(found))))

    def last_drawn(self) -> int | None:
        if self._options.trust_order or self._options.tiebreak or not self._sequence:
            return None
        found = self._ask(sql.SQL("SELECT pg_sequence_last_value(%s::regclass)"), [self._sequence])[0][0]
        return 0 if found is None else int(found)

    # ------------------------------------------------------------------------------------------------------------ rows

    def _largest(self) -> Any:
        return self._ask_text(self._query("SELECT max({rising})::text FROM {table}"))[0][0]

    def _writers(self) -> set[Writer]:
        if self._options.tiebreak:
            return set(self._ask(sql.SQL(_OPEN)))
        if self._options.trust_order:
            return set()
        return set(self._ask(sql.SQL(_WRITERS), {"table": self._oid}))

    def page(self, after: Any, horizon: Any, limit: int) -> Page:
        order = [sql.SQL("t.{}").format(Name(name)) for name in self._options.order]
        begin = [] if after is None else after if self._options.tiebreak else [after]
        key = sql.SQL("t.{}::text").format(Name(self._options.key)) if self._options.key else sql.SQL("NULL")
        query = self._query(
            "SELECT {key}, row_to_json(t.*)::text, {texts} FROM (SELECT * FROM {table}) t "
            "WHERE t.{rising} <= %s{beyond} ORDER BY {order} LIMIT %s",
            key=key,
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(column) for column in order),
            beyond=_beyond(order) if begin else sql.SQL(""),
            order=sql.SQL(", ").join(order),
        )
        rows = self._ask_text(query, [horizon, *begin, limit])
        if not rows:
            return Page([], None, [], None)
        self._settle_on_disk()
        ids = [event_id(*row[2:]) for row in rows]
        last = list(rows[-1][2:]) if self._options.tiebreak else rows[-1][2]
        keys = [row[0] for row in rows] if self._options.key else None
        return Page(ids, keys, [row[1] for row in rows], last, is_counted=self._is_counted)

    def _settle_on_disk(self) -> None:
        """A commit of ours that is on disk (and on the synchronous standby): so is every one before it, asynchronous ones too.

        A standby shows only what is on its primary's disk.
        """
        with self._told(), self._connection.transaction():
            self._ask(sql.SQL(_SYNCHRONOUS))
            self._ask(sql.SQL("SELECT pg_logical_emit_message(true, 'onceflow', '') WHERE NOT pg_is_in_recovery()"))

    def _query(self, text: Any, **parts: sql.Composable) -> sql.Composed:
        return sql.SQL(text).format(table=self._table, rising=Name(self._options.rising), **parts)

    def close(self) -> None:
        self._connection.close()


def _beyond(order: list[sql.Composed]) -> sql.Composed:
    columns, values = sql.SQL(", ").join(order), sql.SQL(", ").join([sql.Placeholder()] * len(order))
    return sql.SQL(" AND ({}) > ({})").format(columns, values)
