"""A table of a SQLite file. Its writers come one after the other, so no commit undercuts a number that is visible.

What keeps the rows apart is an index, which may see values otherwise than the column does::

    unique is the index on (lower(tenant), code), not the column code: of rows with equal codes a page would leave some out
    an index counts if the column is all that it is made of, and no expression

    the column is NOCASE and its unique index BINARY: a and A are two rows, and a page that ends at a goes on behind A
    rows are compared and ordered as the unique index does

The file keeps no number of a table that another one of its name would not have. So::

    the table is dropped, made anew and filled while we follow it: its numbers begin anew
    the last number is read in the same read transaction as the page, so that none fits a state that the other does not show

    the tiebreak is a column without a type, and has both 1 and '1': two rows, whose events would have one id
    refused; a column with a type makes one of them

    it is made anew with another key, or without its unique index
    the schema's version tells that something was changed: all checks of the start are made again
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from onceflow.errors import ConfigurationError, InputError, SourceUnavailable
from onceflow.ingest import tables
from onceflow.ingest.events import RowsToCome
from onceflow.ingest.horizon import Horizon
from onceflow.ingest.json_rows import json_text
from onceflow.ingest.numbers import Numbers
from onceflow.ingest.table_uri import in_path
from onceflow.ingest.tables import Page, TableOptions, event_id, holds_null, no_larger, view_mistake
from onceflow.sqlite import TEXT, is_in_place, is_utf8, place_of, shown, sync
from onceflow.sqlite_types import is_strict, keeps_numbers_and_texts_apart

_BUSY_S = 30.0
_SMALLEST_ROW_BYTES = 4
_NO_SQL = re.compile(r"""--[^\n]*|/\*.*?(\*/|$)|'[^']*'|"[^"]*"|`[^`]*`|\[[^]]*\]""", re.DOTALL)
"""Comments, texts and quoted names in a statement that SQLite has kept; a doubled quote ends one and begins the next."""


class SqliteTable:
    """See ``Database``. Opens the file for reading only."""

    def __init__(self, path: str, options: TableOptions) -> None:
        self._path = Path(path).absolute()
        self._options = options
        with self._told():
            self._place = place_of(self._path)
            # Autocommit: no read transaction that is longer than a page keeps the writers' log from being emptied.
            uri = f"{self._path.as_uri()}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
            self._connection.text_factory = TEXT
        try:
            self._describe()
        except BaseException:
            self.close()
            raise
        # The device is not part of it: a restarted machine may number its devices in another order.
        self.identity = f"{self._place[1]:x}-{self.name}"
        self.uri = f"sqlite://{self._path.as_uri().removeprefix('file://')}/{in_path(self.name)}"
        delay_s = options.delay_s if options.tiebreak else 0.0
        self.horizon = Horizon(self._largest, delay_s=delay_s)

    def _ask(self, query: str, *values: Any) -> list[Any]:
        with self._told():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise SourceUnavailable(
                f"there is no file {self._path}",
                action="check the path: sqlite:///shop.db is in the current directory, sqlite:////var/lib/shop.db is absolute",
            ) from error
        except (sqlite3.Error, OSError) as error:
            if self._is_no_database(error):
                raise ConfigurationError(
                    f"{self._path} is not a SQLite database: {error}",
                    action="name one with --from (sqlite:///relative.db, sqlite:////absolute.db), decrypted if it is encrypted; "
                    "CSV, JSON Lines and Parquet are read with --file",
                ) from error
            raise SourceUnavailable(f"{self._path}: {error}", action="check the path and the message") from error

    def _is_no_database(self, error: Exception) -> bool:
        """No later start will find one there. Of a directory SQLite says no more than that it cannot be read."""
        is_file_of_others = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB
        return is_file_of_others or os.path.isdir(self._path)  # noqa: PTH112  raises nothing, as where it may not be looked at

    # ---------------------------------------------------------------------------------------------------------- checks

    def _describe(self) -> None:
        """Names are compared as SQLite does, without regard to case. The version is read first: what changes later is seen."""
        self._schema = self._schema_version()
        query = "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"
        found = self._ask(query, self._options.table)
        if not found:
            raise ConfigurationError.of(self._where, [f"there is no table {self._options.table}"])
        [(self.name, kind, created)] = found
        if kind == "view":
            raise ConfigurationError.of(self._where, [view_mistake(self.name)])
        # With generated columns, which table_info leaves out; not those that a virtual table hides from ``*``.
        types = dict(self._ask("SELECT name, type FROM pragma_table_xinfo(?) WHERE hidden <> 1", self.name))
        columns = list(types)
        self._keeps_kinds = self._keeps_numbers_and_texts_apart(types)
        self._collations = {name: self._collation(name) for name in self._options.order}
        self._is_autoincrement = self._whole_key() == self._options.rising and bool(
            re.search(r"\bAUTOINCREMENT\b", _NO_SQL.sub(" ", created), re.IGNORECASE)
        )
        mistakes = self._name_mistakes(columns) or self._order_mistakes()
        if mistakes:
            raise ConfigurationError.of(self._where, mistakes)

    def _keeps_numbers_and_texts_apart(self, types: Mapping[str, str]) -> bool:
        """Of the tiebreak; a column that is missing is a mistake, told below."""
        with self._told():
            strict = is_strict(self._connection, self.name)
        return keeps_numbers_and_texts_apart(types.get(self._options.tiebreak or "", ""), is_strict=strict)

    def _name_mistakes(self, columns: Sequence[str]) -> list[str]:
        return [
            f"{option}: {self.name} has no column {name}; it has {', '.join(columns)}"
            for option, name in self._options.named_columns.items()
            if name not in columns
        ]

    @property
    def _where(self) -> str:
        return f"the arguments for {self._path}"

    def _order_mistakes(self) -> list[str]:
        options = self._options
        if options.tiebreak is not None:
            unique = self._collations[options.tiebreak] is not None
            return [] if unique else [f"--tiebreak: {options.tiebreak} has no unique index of its own"]
        if self._is_autoincrement or (options.trust_order and self._collations[options.rising] is not None):
            return []
        return [
            f"--rising: {options.rising} is not INTEGER PRIMARY KEY AUTOINCREMENT, so a number may be given twice; "
            "for a unique column whose values surely only rise add --trust-order, for one that is not unique --tiebreak"
        ]

    def _whole_key(self) -> str | None:
        keys = self._ask("SELECT name FROM pragma_table_info(?) WHERE pk", self.name)
        return keys[0][0] if len(keys) == 1 else None

    def _collation(self, column: str) -> str | None:
        """How the unique index that is made of the column alone compares its values; None if there is none.

        In it an expression has no name. A key without an index is the number of the row itself.
        """
        query = (
            "SELECT (SELECT CASE WHEN count(*) = 1 AND max(name) = ? THEN max(coll) END FROM pragma_index_xinfo(i.name) "
            'WHERE key), origin FROM pragma_index_list(?) AS i WHERE i."unique" AND NOT i.partial ORDER BY seq'
        )
        found = self._ask(query, column, self.name)
        if self._whole_key() == column and all(origin != "pk" for _, origin in found):
            return "BINARY"
        return next((collation for collation, _ in found if collation is not None), None)

    def has_nulls(self) -> bool:
        missing = " OR ".join(f"{self._column(name)} IS NULL" for name in self._options.order)
        return bool(self._ask(f"SELECT 1 FROM {_quoted(self.name)} WHERE {missing} LIMIT 1"))  # noqa: S608

    def numbers(self) -> Numbers | None:
        if self._schema != self._schema_version():
            self._describe()
        if not self._is_autoincrement or self._options.tiebreak:
            return None
        # The next number is behind both, so a row that was given a larger one, or a sequence that was forgotten, does no harm.
        found = self._ask(
            "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?), 0), "  # noqa: S608
            f"coalesce((SELECT max({self._column(self._options.rising)}) FROM {_quoted(self.name)}), 0))",
            self.name,
        )
        return Numbers(int(found[0][0]))

    def _schema_version(self) -> int:
        """Another one after every change of a table or an index of the file, and after VACUUM."""
        return int(self._ask("PRAGMA schema_version")[0][0])

    # ------------------------------------------------------------------------------------------------------------ rows

    def _largest(self) -> Any:
        self._check_in_place()
        rising, table = self._ordered(self._options.rising), _quoted(self.name)
        # Two queries in one: an index answers each at once, and not both together.
        query = f"SELECT (SELECT min({rising}) FROM {table}), (SELECT max({rising}) FROM {table})"  # noqa: S608
        [(smallest, found)] = self._ask(query)
        if isinstance(found, str) and not is_utf8(found):
            raise self._garbled([self._options.rising], f"{self._options.rising} {shown(found)}")
        if found == math.inf:
            raise no_larger(self.name, self._options.rising, found)
        self._check_kinds([smallest, found])
        return found

    def _check_kinds(self, values: Sequence[Any]) -> None:
        """``values``: of the rising column, those of a position too, in their order."""
        if text := _text_among_numbers(values):
            raise no_larger(self.name, self._options.rising, f"{text}, a text where others have numbers")

    def _check_ids(self, values: Sequence[Any]) -> None:
        """``values``: of the tiebreak. Numbers of a time stand before texts, so a page's last one tells for the next page."""
        if text := _text_among_numbers(values):
            raise InputError(
                f"table {self.name}: a row has {self._options.tiebreak} {text}, a text where others have numbers: two rows could "
                "have one event id",
                action="give all rows the one or the other; nothing of its page was written",
            )

    def _check_in_place(self) -> None:
        with self._told():
            in_place = is_in_place(self._path, self._place)
        if not in_place:
            raise SourceUnavailable(
                f"{self._path} was replaced or removed while it was read",
                action="start again, which looks at what is there now",
            )

    def _garbled(self, columns: Sequence[str], where: str) -> InputError:
        return InputError(
            f"{self._path}: the row of {self.name} with {where} holds text that is no UTF-8, in {', '.join(columns)}",
            action="correct it, or make it bytes (cast(... as blob)), which come as base64; nothing of its page was written",
        )

    def _column(self, name: str) -> str:
        """With its table: a quoted name that no column has any more would be taken for a text."""
        return f"{_quoted(self.name)}.{_quoted(name)}"

    def _ordered(self, name: str) -> str:
        """A column of the order, compared as its unique index compares it."""
        collation = self._collations[name]
        return self._column(name) + (f" COLLATE {_quoted(collation)}" if collation else "")

    def rows_beyond(self, after: Any) -> RowsToCome | None:
        """No writer waits for it for longer than for a page: the rows that are counted are as many at most."""
        condition, begin = self._beyond(after)
        few = f"SELECT 1 FROM {_quoted(self.name)} WHERE {condition} LIMIT ?"  # noqa: S608
        [(count,)] = self._ask(f"SELECT count(*) FROM ({few})", *begin, tables.COUNTED_ROWS + 1)  # noqa: S608
        return RowsToCome(count) if count <= tables.COUNTED_ROWS else self._numbers_beyond(after)

    def _numbers_beyond(self, after: Any) -> RowsToCome | None:
        """How many whole numbers there are for the rows, each of which has one of its own; some may have no row any more.

        Nothing where the file is too small for as many rows: those numbers are times, or drawn by chance.
        """
        if after is not None and self._options.tiebreak:
            return None  # the tiebreak of a row tells nothing of its time
        unique, table = self._ordered(self._options.order[-1]), _quoted(self.name)
        query = f"SELECT (SELECT min({unique}) FROM {table}), (SELECT max({unique}) FROM {table})"  # noqa: S608
        [(smallest, largest)] = self._ask(query)
        before = smallest - 1 if after is None and isinstance(smallest, int) else after
        if isinstance(before, int) and isinstance(largest, int) and largest - before <= self._most_rows():
            return RowsToCome(largest - before, is_estimate=True)
        return None

    def _most_rows(self) -> int:
        """That a file of this size can hold."""
        [(size_bytes,)] = self._ask("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
        return int(size_bytes) // _SMALLEST_ROW_BYTES

    def _beyond(self, after: Any) -> tuple[str, list[Any]]:
        """A condition, and its values."""
        names = ", ".join(map(self._ordered, self._options.order))
        begin = [] if after is None else after if self._options.tiebreak else [after]
        return (f"({names}) > ({', '.join('?' * len(begin))})", begin) if begin else ("1", [])

    def page(self, after: Any, horizon: Any, limit: int) -> Page:
        names = [self._ordered(name) for name in self._options.order]
        beyond, begin = self._beyond(after)
        query = (
            f"SELECT * FROM {_quoted(self.name)} WHERE {names[0]} <= ? AND {beyond} "  # noqa: S608
            f"ORDER BY {', '.join(names)} LIMIT ?"
        )
        with self._one_state():
            with closing(self._connection.execute(query, [horizon, *begin, limit])) as cursor:
                # A column may have been added since the last page, or be gone.
                columns = [column[0] for column in cursor.description]
                rows = _that_fit(cursor)
            numbers = self.numbers()
        if mistakes := self._name_mistakes(columns):
            raise ConfigurationError.of(self._where, mistakes)
        if rows:
            with self._told():
                sync(self._path)
        self._check_kinds([*begin[:1], *(row[columns.index(self._options.rising)] for row in rows)])
        if self._options.tiebreak is not None and self._keeps_kinds:
            self._check_ids([*begin[1:], *(row[columns.index(self._options.tiebreak)] for row in rows)])
        return self._page(columns, rows, numbers)

    @contextmanager
    def _one_state(self) -> Iterator[None]:
        """One read transaction: several statements about the same state of the file."""
        with self._told():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.rollback()

    def _page(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], numbers: Numbers | None) -> Page:
        places = [columns.index(name) for name in self._options.order]
        values = [[row[place] for place in places] for row in rows]
        if any(part is None for value in values for part in value):
            raise holds_null(self._options)
        if any(isinstance(part, bytes) for value in values for part in value):
            raise InputError(
                f"column {' or '.join(self._options.order)} holds bytes; a position must be a number or text"
            )
        key = self._options.key
        keys = None if key is None else [_text(row[columns.index(key)]) for row in rows]
        texts = [json_text(dict(zip(columns, row, strict=True))) for row in rows]
        self._check_text(columns, rows, texts)
        last = None if not values else values[-1] if self._options.tiebreak else values[-1][0]
        ids = [event_id(*map(str, value)) for value in values]
        is_counted = all(isinstance(value[-1], int) and len(value) == 1 for value in values)
        return Page(ids, keys, texts, last, numbers, is_counted)

    def _check_text(self, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], texts: Sequence[str]) -> None:
        for row, text in zip(rows, texts, strict=True):
            if not is_utf8(text):
                named = dict(zip(columns, row, strict=True))
                broken = [name for name, value in named.items() if isinstance(value, str) and not is_utf8(value)]
                raise self._garbled(broken, ", ".join(f"{name} {_shown(named[name])}" for name in self._options.order))

    def close(self) -> None:
        self._connection.close()


def _that_fit(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """How many a page may have is known from the page before it, whose rows may have been narrower by far."""
    rows, characters = [], 0
    for row in found:
        rows.append(row)
        characters += sum(len(value) for value in row if isinstance(value, str | bytes))
        if characters >= tables.PAGE_CHARACTERS:
            break
    return rows


def _text_among_numbers(values: Sequence[Any]) -> str:
    """The first one as it is shown; empty if all are of one kind."""
    texts = [value for value in values if isinstance(value, str)]
    return repr(texts[0]) if texts and any(isinstance(value, int | float) for value in values) else ""


def _shown(value: Any) -> str:
    return shown(value) if isinstance(value, str) else str(value)


def _quoted(name: str) -> str:
    """An identifier; SQLite binds values only."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value).strip('"')
