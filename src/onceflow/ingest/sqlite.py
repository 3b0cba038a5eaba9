"""A table of a SQLite file."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

from onceflow.errors import ConfigurationError, InputError, SourceUnavailable
from onceflow.ingest.json_rows import json_text
from onceflow.ingest.tables import Page, TableOptions

_BUSY_S = 30.0


class SqliteTable:
    """See ``Database``. Opens the file for reading only."""

    def __init__(self, path: str, options: TableOptions) -> None:
        self._path = Path(path).absolute()
        self._options = options
        try:
            # Autocommit: a page is one statement, and no read transaction keeps the writers' log from being emptied.
            uri = f"{self._path.as_uri()}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
            self._columns = [row[1] for row in self._ask("SELECT * FROM pragma_table_info(?)", options.table)]
        except sqlite3.Error as error:
            raise SourceUnavailable(f"{self._path} cannot be opened: {error}", action="check the path") from None
        self._check()
        status = self._path.stat()
        self.uri = f"sqlite://{self._path.as_uri().removeprefix('file://')}/{options.table}"
        self.identity = f"{status.st_dev:x}-{status.st_ino:x}"

    def _ask(self, query: str, *values: Any) -> list[Any]:
        return self._connection.execute(query, values).fetchall()

    def _check(self) -> None:
        options = self._options
        mistakes = [f"there is no table {options.table}"] if not self._columns else []
        for option, name in (("--rising", options.rising), ("--key", options.key)):
            if self._columns and name is not None and name not in self._columns:
                mistakes.append(f"{option}: {options.table} has no column {name}; it has {', '.join(self._columns)}")
        if not mistakes and not self._is_autoincrement() and not (options.trust_order and self._is_unique()):
            mistakes.append(
                f"--rising: {options.rising} is not INTEGER PRIMARY KEY AUTOINCREMENT, so a number may be given twice; "
                "for a unique column whose values surely only rise add --trust-order"
            )
        if mistakes:
            self.close()
            raise ConfigurationError.of(f"the arguments for {self._path}", mistakes)

    def _is_autoincrement(self) -> bool:
        [(created,)] = self._ask("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", self._options.table)
        keys = self._ask("SELECT name FROM pragma_table_info(?) WHERE pk", self._options.table)
        return keys == [(self._options.rising,)] and bool(re.search(r"\bAUTOINCREMENT\b", created, re.IGNORECASE))

    def _is_unique(self) -> bool:
        query = (
            'SELECT 1 FROM pragma_index_list(?) AS i WHERE i."unique" AND NOT i.partial AND '
            "(SELECT group_concat(name, char(0)) FROM pragma_index_info(i.name)) = ?"
        )
        whole_key = self._ask("SELECT name FROM pragma_table_info(?) WHERE pk", self._options.table)
        return whole_key == [(self._options.rising,)] or bool(
            self._ask(query, self._options.table, self._options.rising)
        )

    def has_nulls(self) -> bool:
        return bool(self._ask(f"SELECT 1 FROM {self._table} WHERE {self._rising} IS NULL LIMIT 1"))  # noqa: S608

    def last_drawn(self) -> int | None:
        if not self._is_autoincrement():
            return None
        found = self._ask("SELECT seq FROM sqlite_sequence WHERE name = ?", self._options.table)
        return int(found[0][0]) if found else 0

    def horizon(self) -> Any:
        return self._ask(f"SELECT max({self._rising}) FROM {self._table}")[0][0]  # noqa: S608

    def page(self, after: Any, horizon: Any, limit: int) -> Page:
        where = f"{self._rising} <= ?" + ("" if after is None else f" AND {self._rising} > ?")
        query = f"SELECT * FROM {self._table} WHERE {where} ORDER BY {self._rising} LIMIT ?"  # noqa: S608
        rows = self._ask(query, horizon, *([] if after is None else [after]), limit)
        rising = [row[self._columns.index(self._options.rising)] for row in rows]
        if any(isinstance(value, bytes) for value in rising):
            raise InputError(f"column {self._options.rising} holds bytes; a position must be a number or text")
        keys = (
            None if self._options.key is None else [_text(row[self._columns.index(self._options.key)]) for row in rows]
        )
        values = [json_text(dict(zip(self._columns, row, strict=True))) for row in rows]
        return Page([str(value) for value in rising], keys, values, rising[-1] if rising else None)

    @property
    def _table(self) -> str:
        return _quoted(self._options.table)

    @property
    def _rising(self) -> str:
        return _quoted(self._options.rising)

    def writers(self) -> str:
        return ""

    def close(self) -> None:
        self._connection.close()


def _quoted(name: str) -> str:
    """An identifier; SQLite binds values only."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json_text(value).strip('"')
