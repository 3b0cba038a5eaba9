"""A table of a PostgreSQL database, with a horizon that no open transaction can undercut.

Numbers are drawn in the order in which rows are inserted, but become visible in the order of the commits. So, as CREATE INDEX
CONCURRENTLY does, we wait for the writers (``horizon.py``). Who that is::

    identity and serial columns: the transactions that hold a writer's lock on the table, or on its sequence
    a row up to M that is still invisible drew its number before M was drawn: within an INSERT, which locks the table before it
    draws, or by nextval() before that, which locks the sequence until its transaction ends. So it is noted when M is visible.

    with a tiebreak (a time of change): every open transaction of the database
    ``now()`` is the time when the transaction began, and it may write to the table hours later.

A number that was given by hand breaks that, if the sequence passes it while its rows are waited for::

    the sequence stands at 50, and rows 100 to 200 are loaded (COPY): M is 200, and an open writer is waited for
    A draws 51, and is not among those that were noted; setval(200) ends the load; the writer ends, and all up to 200 is read
    by then the sequence is at 200, as if it had given these numbers; A commits: row 51 is behind the position
    so all numbers up to M must be given before the writers are noted: the sequence is looked at between the two

This holds for numbers that are drawn in the transaction of the INSERT (sequence cache 1). Columns of another kind are refused
unless the user vouches for their order. Of a single row nothing tells that its number was drawn in an earlier transaction, or
was given by hand though the sequence had passed it.

A table is known by its oid, and a query goes by its name. While we follow it another table may get that name::

    orders is dropped and made anew, or renamed while orders_new becomes orders (the swap of an online change of the schema)
    its rows are read from the old position on, and the writers that are waited for are those of the old table
    what the name stands for is asked behind each query that reads it, in its transaction: the table that it has read is locked
    until then, so that its name is still its own

    TRUNCATE ... RESTART IDENTITY, and more rows than before are loaded: the last number has passed the position
    a sequence that is restarted gets another file, so the file's number tells its runs apart; it is asked after each page.
    Not in the page's transaction: it would wait for ALTER SEQUENCE with a lock on the table, for which that one may wait

    the same before the first row is read: there is no position whose series could tell
    the first page is compared with the series of M: rows up to M are not those whose writers were waited for

    ALTER SEQUENCE ... CACHE 20: from then on each session draws ahead; the unique index is dropped; a table inherits from it
    the order of the numbers, the index and the children are checked as often

    ALTER COLUMN updated_at DROP NOT NULL: rows without a value are read by no page
    which columns may be NULL is asked with each look

Unique is what an index says by its own collation::

    the column's collation takes a for A (a nondeterministic one), the index's does not: a page that ends at a goes on behind A
    an index counts if its collation is the column's, or the column takes different texts for different

A policy (row level security) is a view, and what it hides may be shown later, behind the position::

    published rows alone are visible to our role, and read; then row 3 is published
    a query that a policy would change is refused (``row_security``), unless the user vouches for the order

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
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from onceflow.errors import ConfigurationError, InputError, SourceChanged, SourceUnavailable
from onceflow.ingest import tables
from onceflow.ingest.events import RowsToCome
from onceflow.ingest.horizon import Horizon, Writer
from onceflow.ingest.numbers import Numbers, another_series, series_of
from onceflow.ingest.table_uri import in_path
from onceflow.ingest.tables import Page, TableOptions, event_id, holds_null, no_larger, view_mistake
from onceflow.postgresql import CONNECTION
from onceflow.postgresql_name import Name

_DEFAULTS = {**CONNECTION, "application_name": "onceflow ingest"}
_COLUMN = """
SELECT a.attname, a.attnum, t.typcategory IN ('D', 'N', 'T'),
  a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_NULLABLE = """
SELECT attname FROM pg_attribute WHERE attrelid = %s AND attname = ANY(%s) AND NOT attnotnull AND NOT attisdropped
"""
_UNIQUE = """
SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts = 1 AND a.attnum = %s
AND (c.oid IS NULL OR c.collisdeterministic OR i.indcollation[0] = a.attcollation)
"""
# The sequence that an identity column has, or that a serial column has and draws its default from; then its id, its form and its
# run: see ``numbers.py``. Form and run are columns, of one snapshot: a function (pg_relation_filenode) would see the run that
# came while the last number was waited for, and ALTER SEQUENCE ... MAXVALUE would look like a restart.
_SEQUENCE = """
SELECT n.nspname, c.relname, has_sequence_privilege(c.oid, 'SELECT'),
  CASE WHEN has_sequence_privilege(c.oid, 'SELECT') THEN pg_sequence_last_value(c.oid::regclass) END,
  c.oid::text,
  concat_ws(' ', s.seqtypid, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle, c.relpersistence),
  c.relfilenode::text
FROM pg_depend d JOIN pg_class c ON c.oid = d.objid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_sequence s ON s.seqrelid = c.oid JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s AND a.attname = %s
AND s.seqcache = 1 AND s.seqincrement > 0 AND NOT s.seqcycle
AND (d.deptype = 'i' OR d.deptype = 'a' AND EXISTS (
  SELECT 1 FROM pg_attrdef f JOIN pg_depend u ON u.classid = 'pg_attrdef'::regclass AND u.objid = f.oid
  WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum AND u.refclassid = 'pg_class'::regclass AND u.refobjid = c.oid))
LIMIT 1
"""
_WRITERS = """
SELECT DISTINCT virtualtransaction, pid FROM pg_locks
WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND relation IN (SELECT %(table)s UNION SELECT relid FROM pg_partition_tree(%(table)s) UNION SELECT %(sequence)s::oid)
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
_ALL_ROWS = "SELECT set_config('row_security', 'off', true)"
_SYNCHRONOUS = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
_CHILDREN = "SELECT 1 FROM pg_inherits JOIN pg_class c ON c.oid = inhparent WHERE inhparent = %s AND c.relkind = 'r'"
_CHEAP = 10_000.0
"""In the planner's unit, the cost of a page that is read from the disk; it is a fraction of a second."""
_NOTHING_LARGER = ("infinity", "Infinity", "NaN")
_SHAPE = f"SELECT EXISTS ({_CHILDREN}), EXISTS ({_UNIQUE})"
_REFUSED = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)


class PostgresqlTable:
    """See ``Database``. Needs SELECT on the table and on its column's sequence, and psycopg."""

    def __init__(self, url: str, options: TableOptions) -> None:
        self._options = options
        self._series: tuple[str, ...] = ()  # of the numbers up to the horizon
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

    def _ask_table(self, query: sql.Composed, values: Any = ()) -> list[Any]:
        """A query of the table that writes values as text, or reads them from it. What it read is the table that we know."""
        with self._told(), self._connection.transaction():
            self._ask(sql.SQL(_AS_TEXT))
            if not self._options.trust_order:
                self._ask(sql.SQL(_ALL_ROWS))
            rows = self._ask(query, values)
            self._check_name()
            return rows

    def _check_name(self) -> None:
        [(oid,)] = self._ask(sql.SQL("SELECT to_regclass(%s)::oid"), [self._spelled])
        if oid is None:
            raise ConfigurationError.of("the arguments", [f"there is no table {self._spelled} any more"])
        if oid != self._oid:
            raise SourceChanged(
                f"table {self._spelled} is not the table that was read before ({oid}, not {self._oid})",
                action="name the table that was read before, if it is there under another name, or read the one that has its "
                "name now from its beginning with --changed new",
                table=self._options.table,
            )

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except _REFUSED as error:
            raise ConfigurationError.of("the arguments", [f"{self._options.table}: {error}".strip()]) from error
        except psycopg.errors.CharacterNotInRepertoire as error:  # a database with SQL_ASCII keeps any bytes as text
            raise InputError(
                f"table {self._options.table}: a row holds text that is no UTF-8: {error}",
                action="correct it in the database; nothing of its page was written",
            ) from error
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
        *_, self._is_number_or_time, is_integer = columns[self._options.rising]
        self._is_counted = bool(is_integer) and not self._options.tiebreak
        self._check_order(kind, {name: columns[name][0] for name in self._options.order})
        [(schema, name, database, system)] = self._ask(
            sql.SQL(
                "SELECT n.nspname, c.relname, d.oid, s.system_identifier FROM pg_class c JOIN pg_namespace n "
                "ON n.oid = c.relnamespace, pg_database d, pg_control_system() s "
                "WHERE c.oid = %s AND d.datname = current_database()"
            ),
            [self._oid],
        )
        self._table = Name(schema, name)
        self._spelled = sql.Identifier(schema, name).as_string()
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

    def _check_order(self, kind: str, numbers: dict[str, int]) -> None:
        """``kind``: of the relation; ``numbers``: those of the order's columns."""
        *_, (_, self._number) = numbers.items()
        mistakes = []
        if kind == "m" and not self._options.trust_order:
            mistakes.append(
                f"--from: {self._options.table} is a materialized view, and a refresh may put rows behind the ones that were "
                "read, however long ago they were written; read its table, or add --trust-order where a refresh surely adds rows "
                "with larger values only"
            )
        if not self._options.trust_order and self._ask(sql.SQL("SELECT pg_is_in_recovery()"))[0][0]:
            mistakes.append("--from is a standby, which does not know the open transactions of its primary")
        if (
            not self._options.trust_order
            and self._ask(sql.SQL("SELECT row_security_active(%s::oid)"), [self._oid])[0][0]
        ):
            mistakes.append(
                f"--from: row level security hides rows of {self._options.table} from its role, and may show them later, behind "
                "the ones that were read; give it a role with BYPASSRLS, or add --trust-order where that surely never happens"
            )
        mistakes += [*self._shape_mistakes(), *self._read_numbers()[1]]
        if mistakes:
            raise ConfigurationError.of("the arguments", mistakes)

    def _shape_mistakes(self) -> Iterator[str]:
        """What may come over a table while it is read as well."""
        [(has_children, is_unique)] = self._ask(sql.SQL(_SHAPE), [self._oid, self._oid, self._number])
        if has_children:
            yield f"{self._options.table} has child tables by inheritance, whose rows no index of its own covers"
        if not is_unique:
            option = "--tiebreak" if self._options.tiebreak else "--rising"
            hint = "" if self._options.tiebreak else "; a unique column as --tiebreak helps"
            yield (
                f"{option}: {self._options.order[-1]} has no unique index of its own: of rows with equal values some could be "
                f"skipped{hint}"
            )

    def _read_numbers(self) -> tuple[Numbers | None, list[str]]:
        """Where the sequence stands, and why its order cannot be relied on."""
        if self._options.trust_order or self._options.tiebreak:
            return None, []
        rising = self._options.rising
        found = self._ask(sql.SQL(_SEQUENCE), [self._oid, rising])
        if not found:
            mistake = (
                f"--rising: {rising} is no identity or serial column with a rising sequence of cache 1, so a row may appear "
                "behind larger values; where that surely never happens add --trust-order"
            )
            return None, [mistake]
        [(schema, name, is_allowed, drawn, *series)] = found
        if not is_allowed:
            where = sql.Identifier(schema, name).as_string()
            return None, [f"--from: its role may not look where the sequence stands: GRANT SELECT ON SEQUENCE {where}"]
        return Numbers(self._before_first(schema, name) if drawn is None else int(drawn), tuple(series)), []

    def _before_first(self, schema: str, name: str) -> int:
        """The number before the one that a sequence gives first; ``setval(…, …, false)`` makes it so at any time."""
        [(first, is_given)] = self._ask(sql.SQL("SELECT last_value, is_called FROM {}").format(Name(schema, name)))
        return int(first) - (not is_given)

    def has_nulls(self) -> bool:
        nullable = self._ask(sql.SQL(_NULLABLE), [self._oid, list(self._options.order)])
        found = [sql.SQL("{} IS NULL").format(Name(name)) for (name,) in nullable]
        query = "SELECT 1 FROM {table} WHERE {missing} LIMIT 1"
        return bool(found and self._ask(self._query(query, missing=sql.SQL(" OR ").join(found))))

    def numbers(self) -> Numbers | None:
        numbers, mistakes = self._read_numbers()
        mistakes = [*self._shape_mistakes(), *mistakes]
        if mistakes:
            self._check_name()
            raise ConfigurationError.of("the arguments", mistakes)
        return numbers

    # ------------------------------------------------------------------------------------------------------------ rows

    def _largest(self) -> Any:
        [(found,)] = self._ask_table(self._query("SELECT max({rising})::text FROM {table}"))
        if self._is_number_or_time and found in _NOTHING_LARGER:
            raise no_larger(self._options.table, self._options.rising, found)
        if found is not None:
            self._check_given(found)
        return found

    def _check_given(self, largest: Any) -> None:
        """That all numbers up to the largest one are given by now, so that whoever has one of them is open or was."""
        numbers = self.numbers()
        self._series = series_of(numbers)
        if numbers is not None and Decimal(largest) > numbers.drawn:
            raise InputError(
                f"table {self._options.table}: a row has {self._options.rising} {largest}, which its sequence has not given "
                f"yet (its last number is {numbers.drawn}): the numbers that it gives next would be behind that row",
                action="set the sequence behind the largest number, and let it alone give numbers; where rows surely come in "
                "their order all the same add --trust-order",
            )

    def _writers(self) -> set[Writer]:
        if self._options.tiebreak:
            return set(self._ask(sql.SQL(_OPEN)))
        if self._options.trust_order:
            return set()
        sequence = int(self._series[0]) if self._series else None
        return set(self._ask(sql.SQL(_WRITERS), {"table": self._oid, "sequence": sequence}))

    def rows_beyond(self, after: Any) -> RowsToCome | None:
        """By the planner's statistics, unless it takes so few rows, and so little work, that they may as well be counted."""
        order, begin = self._begin(after)
        query = self._query(
            "SELECT 1 FROM {table} t WHERE true{beyond} LIMIT %s", beyond=_beyond(order) if begin else sql.SQL("")
        )
        values = [*begin, tables.COUNTED_ROWS + 1]
        [([plan],)] = self._ask_table(sql.SQL("EXPLAIN (FORMAT JSON) {}").format(query), values)
        limited = plan["Plan"]
        [below] = limited.get("Plans") or [None]
        if below is None:  # another planner's node, which limits by itself (Citus): it tells of no more rows than those
            return None
        expected = int(below["Plan Rows"])
        if expected > tables.COUNTED_ROWS or limited["Total Cost"] > _CHEAP:
            return RowsToCome(expected, is_estimate=True)
        [(count,)] = self._ask_table(sql.SQL("SELECT count(*) FROM ({}) few").format(query), values)
        return RowsToCome(count) if count <= tables.COUNTED_ROWS else None  # the statistics are old, and tell nothing

    def _begin(self, after: Any) -> tuple[list[sql.Composed], list[Any]]:
        """The columns of the order, and the values of a position in them."""
        order = [sql.SQL("t.{}").format(Name(name)) for name in self._options.order]
        return order, [] if after is None else after if self._options.tiebreak else [after]

    def page(self, after: Any, horizon: Any, limit: int) -> Page:
        order, begin = self._begin(after)
        key = sql.SQL("t.{}::text").format(Name(self._options.key)) if self._options.key else sql.SQL("NULL")
        query = self._query(
            "SELECT {key}, row_to_json(t.*)::text, {texts} FROM (SELECT * FROM {table}) t "
            "WHERE t.{rising} <= %s{beyond} ORDER BY {order} LIMIT %s",
            key=key,
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(column) for column in order),
            beyond=_beyond(order) if begin else sql.SQL(""),
            order=sql.SQL(", ").join(order),
        )
        rows = self._ask_table(query, [horizon, *begin, limit])
        numbers = self.numbers()
        if after is None:
            self._check_series(numbers)
        if not rows:
            return Page([], None, [], None, numbers)
        if any(value is None for row in rows for value in row[2:]):
            raise holds_null(self._options)
        self._settle_on_disk()
        ids = [event_id(*row[2:]) for row in rows]
        last = list(rows[-1][2:]) if self._options.tiebreak else rows[-1][2]
        keys = [row[0] for row in rows] if self._options.key else None
        return Page(ids, keys, [row[1] for row in rows], last, numbers, self._is_counted)

    def _check_series(self, numbers: Numbers | None) -> None:
        """Of a first page; the position tells the series of those before the others."""
        if another_series(self._series, numbers):
            raise SourceUnavailable(
                f"the numbers of {self._options.table} began anew while its first rows were waited for",
                action="start again; nothing was written",
            )

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
