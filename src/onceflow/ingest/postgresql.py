"""A table of a PostgreSQL database, with a horizon that no open transaction can undercut.

Numbers are drawn in the order in which rows are inserted, but become visible in the order of the commits. So, as CREATE INDEX
CONCURRENTLY does, we wait for the writers::

    1. the largest visible number M is read
    2. the transactions that hold a writer's lock on the table now are noted
    3. once all of them have ended, every row up to M that will ever be there is visible

    why: a row up to M that is still invisible drew its number before M was drawn, within an INSERT, which locks the table
    before it draws. So its transaction was writing when M became visible, and is among those of step 2.

This holds for numbers drawn by the INSERT itself (identity and serial columns, sequence cache 1). It does not for numbers that
an application draws ahead, for caches, and for ``now()``, which is the time when the transaction began: such columns are refused
unless the user vouches for their order.
"""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from onceflow.errors import ConfigurationError, SourceUnavailable
from onceflow.ingest.tables import Page, TableOptions

_SETTLE_S = 10.0
_POLL_S = 0.02
_COLUMN = """
SELECT a.attname, a.attnum, a.attnotnull, pg_get_serial_sequence(a.attrelid::regclass::text, a.attname)
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
_Writer = tuple[str, int | None]


class PostgresqlTable:
    """See ``Database``. Needs SELECT on the table, and psycopg."""

    def __init__(self, url: str, options: TableOptions) -> None:
        self._options = options
        self._waiting: tuple[str, set[_Writer]] | None = None  # M, and the writers of step 2 that have not ended yet
        try:
            self._connection = psycopg.connect(url, autocommit=True, application_name="onceflow ingest")
        except psycopg.Error as error:
            raise SourceUnavailable(
                f"PostgreSQL cannot be reached: {error}", action="check --from and the server"
            ) from None
        try:
            self._describe()
        except BaseException:
            self.close()
            raise

    def _ask(self, query: sql.Composed | sql.SQL, values: Any = None) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except psycopg.OperationalError as error:
            raise SourceUnavailable(f"PostgreSQL does not answer: {error}", action="start again") from error

    def _describe(self) -> None:
        found = self._ask(sql.SQL("SELECT to_regclass(%s)::oid"), [self._options.table])
        self._oid = found[0][0]
        if self._oid is None:
            raise ConfigurationError.of("the arguments", [f"there is no table {self._options.table}"])
        columns = {row[0]: row[1:] for row in self._ask(sql.SQL(_COLUMN), [self._oid])}
        self._check_names(list(columns))
        number, self._not_null, self._sequence = columns[self._options.rising]
        self._check_order(number)
        [(schema, name, database, system)] = self._ask(
            sql.SQL(
                "SELECT n.nspname, c.relname, d.oid, s.system_identifier FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace, pg_database d, pg_control_system() s "
                "WHERE c.oid = %s AND d.datname = current_database()"
            ),
            [self._oid],
        )
        self._table = sql.Identifier(schema, name)
        info = self._connection.info
        host = quote(info.host, safe="")  # which may be the path of a socket
        self.uri = f"postgresql://{host}:{info.port}/{info.dbname}/{schema}.{name}"
        self.identity = f"{system}-{database}-{self._oid}"

    def _check_names(self, columns: list[str]) -> None:
        given = {"--rising": self._options.rising, "--key": self._options.key}
        mistakes = [
            f"{option}: {self._options.table} has no column {name}; it has {', '.join(columns)}"
            for option, name in given.items()
            if name is not None and name not in columns
        ]
        if mistakes:
            raise ConfigurationError.of("the arguments", mistakes)

    def _check_order(self, number: int) -> None:
        mistakes = []
        if not self._options.trust_order and self._ask(sql.SQL("SELECT pg_is_in_recovery()"))[0][0]:
            mistakes.append("--from is a standby, which does not know the open transactions of its primary")
        rising = f"--rising: {self._options.rising}"
        if not self._ask(sql.SQL(_UNIQUE), [self._oid, number]):
            mistakes.append(f"{rising} has no unique index of its own: of rows with equal values some could be skipped")
        if not self._options.trust_order and not self._draws_in_order():
            mistakes.append(
                f"{rising} is no identity or serial column with a rising sequence of cache 1, so a row may appear behind "
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
        if self._not_null:
            return False
        return bool(self._ask(self._query("SELECT 1 FROM {table} WHERE {rising} IS NULL LIMIT 1")))

    def last_drawn(self) -> int | None:
        if self._options.trust_order or not self._sequence:
            return None
        found = self._ask(sql.SQL("SELECT pg_sequence_last_value(%s::regclass)"), [self._sequence])[0][0]
        return 0 if found is None else int(found)

    def horizon(self) -> Any:
        """Waits some seconds for the writers; what they keep back then is tried again at the next look."""
        if self._waiting is None:
            found = self._ask(self._query("SELECT max({rising})::text FROM {table}"))[0][0]
            self._waiting = None if found is None else (found, set() if self._options.trust_order else self._writers())
        if self._waiting is None:
            return None
        deadline = time.monotonic() + _SETTLE_S
        largest, writers = self._waiting
        while writers := writers & self._writers():
            self._waiting = largest, writers
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        self._waiting = None
        return largest

    def _writers(self) -> set[_Writer]:
        return set(self._ask(sql.SQL(_WRITERS), {"table": self._oid}))

    def page(self, after: Any, horizon: Any, limit: int) -> Page:
        key = sql.SQL("t.{}::text").format(sql.Identifier(self._options.key)) if self._options.key else sql.SQL("NULL")
        beyond = sql.SQL("") if after is None else self._query(" AND t.{rising} > %(after)s")
        query = self._query(
            "SELECT t.{rising}::text, {key}, row_to_json(t)::text FROM (SELECT * FROM {table}) t "
            "WHERE t.{rising} <= %(horizon)s{beyond} ORDER BY t.{rising} LIMIT %(limit)s",
            key=key,
            beyond=beyond,
        )
        rows = self._ask(query, {"after": after, "horizon": horizon, "limit": limit})
        ids, keys, values = ([row[column] for row in rows] for column in range(3))
        return Page(ids, keys if self._options.key else None, values, ids[-1] if ids else None)

    def _query(self, text: Any, **parts: sql.Composable) -> sql.Composed:
        return sql.SQL(text).format(table=self._table, rising=sql.Identifier(self._options.rising), **parts)

    def writers(self) -> str:
        if self._waiting is None:
            return ""
        return "open transactions of the processes " + ", ".join(
            str(pid) for _, pid in sorted(self._waiting[1], key=str)
        )

    def close(self) -> None:
        self._connection.close()
