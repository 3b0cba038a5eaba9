"""SQL tables as a source: the rows behind the largest value of a rising, unique column that was read.

A position in a table is safe only if no row can appear behind it later::

    PostgreSQL: A inserts and draws number 10, B inserts, draws 11 and commits; we read up to 11; A commits: row 10 is skipped
    see postgresql.py: before anything up to 11 is read, every transaction that was writing to the table then must have ended

    SQLite: the row with the largest number is deleted, the next insert gets its number again, behind the position
    only AUTOINCREMENT columns, which never give a number twice; SQLite's writers come one after the other

    two rows have the same value, and a page ends between them
    the column must be unique

    the value is NULL
    such a row would never be read: refused

    the table was emptied and its numbers begin anew, or it is another table of that name
    the sequence is behind the position, or the table's own identity is another one: refused
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import InputError, SourceChanged, SourceUnfinished
from onceflow.ingest.event_rows import event_rows
from onceflow.ingest.source import SourceBatch

PAGE_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class TableOptions:
    """``trust_order``: the user knows that no row appears behind a larger value, where the database cannot tell."""

    table: str
    rising: str
    key: str | None = None
    trust_order: bool = False
    accept_new: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in rising order: each one's value (as text for the id), key and JSON; ``last`` is where the next page begins."""

    ids: list[str]
    keys: list[str | None] | None
    values: list[str]
    last: Any


@dataclass(frozen=True, slots=True)
class TablePosition:
    """``value``: the largest that was read. ``source`` names the table in its events, ``identity`` tells it from others."""

    source: str
    identity: str
    value: Any

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))


class Database(Protocol):
    """One table of a database."""

    uri: str
    identity: str

    def has_nulls(self) -> bool:
        """Whether a row has no value in the rising column."""

    def last_drawn(self) -> int | None:
        """The last number that the column's sequence gave; None if nobody can tell."""

    def horizon(self) -> Any:
        """A value up to which no row is missing or will appear later; None if there is none yet."""

    def page(self, after: Any, horizon: Any, limit: int) -> Page:
        """The next rows in order, after a value (None: from the beginning) and up to the horizon."""

    def writers(self) -> str:
        """Who keeps the horizon back, for people; empty if nobody does."""

    def close(self) -> None:
        """Closes the connection."""


def connect(url: str, options: TableOptions) -> Database:
    """The table behind ``postgresql://…`` or ``sqlite:///path``. Raises ConfigurationError with every mistake."""
    if url.startswith("sqlite:///"):
        from onceflow.ingest.sqlite import SqliteTable

        return SqliteTable(url.removeprefix("sqlite://"), options)
    from onceflow.ingest.postgresql import PostgresqlTable

    return PostgresqlTable(url, options)


class TableSource:
    """See ``Source``. The event id is the value of the rising column."""

    def __init__(self, database: Database, options: TableOptions) -> None:
        self._database = database
        self._options = options
        self._key = f"table:{options.table}"
        self._position = TablePosition(f"{database.uri}#{database.identity}", database.identity, None)

    def restore(self, positions: Mapping[str, str]) -> None:
        if self._key not in positions:
            return
        committed = TablePosition(**json.loads(positions[self._key]))
        reason = self._mismatch(committed)
        if not reason:
            self._position = committed
        elif not self._options.accept_new:
            raise SourceChanged(
                f"table {self._options.table}: {reason}; rows up to {committed.value!r} are committed",
                action="connect to the table that was read before, or read this one from its beginning with --changed new",
                table=self._options.table,
            )
        elif committed.identity == self._database.identity:
            self._position = TablePosition(f"{committed.source}+", committed.identity, None)

    def _mismatch(self, committed: TablePosition) -> str:
        if committed.identity != self._database.identity:
            return f"it is not the table that was read before ({self._database.identity}, not {committed.identity})"
        drawn = self._database.last_drawn()
        if drawn is not None and int(committed.value) > drawn:
            return f"its numbers began anew, the last one is {drawn}"
        return ""

    def size_bytes(self) -> int | None:
        return None

    def batches(self) -> Iterator[SourceBatch]:
        if self._database.has_nulls():
            raise InputError(
                f"column {self._options.rising} of {self._options.table} holds NULL: such rows have no place in the order",
                action="give them a value, and declare the column NOT NULL",
            )
        horizon = self._database.horizon()
        while horizon is not None:
            page = self._database.page(self._position.value, horizon, PAGE_ROWS)
            if not page.ids:
                return
            self._position = TablePosition(self._position.source, self._position.identity, page.last)
            yield SourceBatch(self._rows(page), {self._key: self._position.text()})

    def _rows(self, page: Page) -> pa.RecordBatch:
        ids, values = pa.array(page.ids, pa.string()), pa.array(page.values, pa.string())
        keys = None if page.keys is None else pa.array(page.keys, pa.string())
        rising = bool(pc.all(pc.ascii_is_decimal(ids)).as_py())
        return event_rows(values, keys, self._position.source, ids, rising=rising)

    def check_end(self) -> None:
        writers = self._database.writers()
        if writers:
            raise SourceUnfinished(
                f"table {self._options.table}: {writers} may still add rows behind the newest ones, which were left",
                action="run again when these transactions have ended",
            )

    def close(self) -> None:
        self._database.close()
