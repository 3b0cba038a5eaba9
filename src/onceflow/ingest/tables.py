"""SQL tables as a source: the rows behind the largest value of a rising column that was read.

A position in a table is safe only if no row can appear behind it later::

    PostgreSQL: A inserts and draws number 10, B inserts, draws 11 and commits; we read up to 11; A commits: row 10 is skipped
    see postgresql.py: before anything up to 11 is read, every transaction that was writing to the table then must have ended

    SQLite: the row with the largest number is deleted, the next insert gets its number again, behind the position
    only AUTOINCREMENT columns, which never give a number twice; SQLite's writers come one after the other

    two rows have the same value, and a page ends between them
    the column must be unique, or a unique tiebreak column is part of the position

    a row is changed and gets a new time of change while a page is read
    it leaves the pages behind, and is read with its new value: its event then tells both changes

    the machine of the database loses power, and with it commits that were visible but not yet on disk; their numbers come again
    a page counts only when all that it shows is on disk

    the value is NULL
    such a row would never be read, and two of one time with no tiebreak would be one event: refused. It is looked for at the
    beginning of each look, and once more in each page: a row may come, or be allowed, while the page is waited for

    the table was emptied and its numbers begin anew, or it is another table of that name
    the sequence is behind the position or was restarted, or the table's own identity is another one: refused

    the same while we follow it: dropped and made anew, swapped by a rename, TRUNCATE ... RESTART IDENTITY; a moment later its
    numbers have passed the position, and nothing could be seen any more
    each page and each look that finds nothing is compared, from the database's same state as the rows or from a later one

    we see that the numbers began anew, and refuse; we are started again, and by then they have passed the position
    what was seen is committed with the position, before it is refused; by a start too, which fences whoever runs for that, and
    remembers what it saw before

    a row has a number that its sequence has not given yet: the position would go there, and what is given next is behind it
    refused before the writers are waited for (``postgresql.py``)

    a row has a value that none is larger than: infinity, not a number; in SQLite a text among numbers
    the position would go there, and everything that comes later is behind it: refused, while there is such a row

    the next run names another rising column: its values mean nothing to the position
    the position tells which columns it is made of: refused

    the next run names another table: all of it would come into the topic of the first one
    the positions tell which tables the name has read: refused

    the table is another one, and then the first one again (a database and its copy), each read from its beginning
    under the name that its events had the first time readers would take new rows for those; so the name of the events grows by
    a ``+`` each time, whatever the table is

    it is a view: no index says that its values are unique, and a change below it moves a row into it, behind the position
    refused, whoever vouches for what
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from onceflow.errors import ConfigurationError, InputError, OnceflowError, SourceChanged, SourceUnfinished
from onceflow.ingest.event_rows import event_rows
from onceflow.ingest.events import RowsToCome
from onceflow.ingest.horizon import Horizon
from onceflow.ingest.later_version import check_known
from onceflow.ingest.numbers import Numbers, another_series, fallen_behind, series_of
from onceflow.ingest.source import SourceBatch
from onceflow.ingest.table_uri import in_fragment
from onceflow.ingest.terms import Terms
from onceflow.sqlite import FORMS, file_of

PAGE_ROWS = 10_000
PAGE_CHARACTERS = 16 << 20
FIRST_PAGE_ROWS = 100
"""A page is held in memory whole, and how wide its rows are tells the page before it."""
COUNTED_ROWS = 10_000
"""As many as a page may have are counted, for the display; of more it is told how many there are about."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """``trust_order``: the user knows that no row appears behind a larger value, where the database cannot tell.

    ``tiebreak``: a unique column; then values of ``rising`` may be equal. The user vouches for two things: a value that is drawn
    ``delay_s`` after another one became visible is larger, and less than ``delay_s`` passes from drawing a value to the beginning
    of the transaction that writes it (PostgreSQL, which tells the open ones) or to the end of that transaction (SQLite, which
    tells nothing of a transaction before it writes).

    ``accept_new``: a table that is not the one of the position is read from its beginning. ``accept_same``: the user knows that
    it is the same one, with the same rows under the same numbers, in another place: restored, copied, upgraded.
    """

    table: str
    rising: str
    key: str | None = None
    trust_order: bool = False
    accept_new: bool = False
    tiebreak: str | None = None
    delay_s: float = 5.0
    accept_same: bool = False

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that a position is made of."""
        return (self.rising,) if self.tiebreak is None else (self.rising, self.tiebreak)

    @property
    def named_columns(self) -> dict[str, str]:
        """The columns that must exist, by the option that names each."""
        named = {"--rising": self.rising, "--tiebreak": self.tiebreak, "--key": self.key}
        return {option: name for option, name in named.items() if name is not None}


@dataclass(frozen=True, slots=True)
class Page:
    """Rows in rising order: each one's id, key and JSON; ``last`` is the value (with a tiebreak: both) of the last one.

    ``numbers``: as of the state in which the rows were read, or of a later one; None if nobody can tell.
    ``is_counted``: the order is that of whole numbers, and not of texts of digits, where "10" stands before "9".
    """

    ids: list[str]
    keys: list[str | None] | None
    values: list[str]
    last: Any
    numbers: Numbers | None
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class TablePosition:
    """``value``: that of the last row read. ``source`` names the table in its events, ``identity`` tells it from others.

    ``order`` names the columns that ``value`` is made of. ``series``: see ``Numbers``; empty if it is not known.
    ``refused``: why nothing may go on from here, which may not be visible any more.
    """

    source: str
    identity: str
    value: Any
    order: tuple[str, ...]
    series: tuple[str, ...] = ()
    refused: str = ""

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> TablePosition:
        """From JSON. Raises ConfigurationError for what a later version wrote."""
        fields = json.loads(text)
        check_known(cls, fields, fields["source"])
        return cls(**{**fields, "order": tuple(fields["order"]), "series": tuple(fields.get("series", ()))})


def view_mistake(table: str) -> str:
    """Why a view cannot be read."""
    return (
        f"{table} is a view, and nothing keeps its rows in an order: no index says that the values of a column are unique, and a "
        "change in a table below it may put a row behind the ones that were read; name that table, or one that a trigger fills"
    )


class Database(Protocol):
    """One table of a database. ``name`` is the same however the user spells it; ``identity`` stays when it is renamed.

    Whatever reads it raises SourceChanged where another table has its name by now, and a page InputError (``holds_null``) where a
    row has no value in a column of the order.
    """

    name: str
    uri: str
    identity: str

    def has_nulls(self) -> bool:
        """Whether a row has no value in a column of the order."""

    def numbers(self) -> Numbers | None:
        """Where the column's sequence stands; None if nobody can tell."""

    @property
    def horizon(self) -> Horizon:
        """Up to where no row is missing or will appear later."""

    def page(self, after: Any, horizon: Any, limit: int) -> Page:
        """The next rows in order, after a position's value (None: from the beginning) and up to the horizon; on disk for sure."""

    def rows_beyond(self, after: Any) -> RowsToCome | None:
        """How many rows there are behind a position's value: cheap, so an estimate if they are many; None if nothing tells."""

    def close(self) -> None:
        """Closes the connection."""


def connect(url: str, options: TableOptions) -> Database:
    """The table behind ``postgresql://…`` or ``sqlite:///path``. Raises ConfigurationError with every mistake."""
    if url.startswith("sqlite:"):
        from onceflow.ingest.sqlite import SqliteTable

        return SqliteTable(_sqlite_file(url), options)
    from onceflow.ingest.postgresql import PostgresqlTable

    return PostgresqlTable(url, options)


def _sqlite_file(url: str) -> str:
    if not (path := file_of(url)):
        raise ConfigurationError.of("the arguments", [f"--from {url} names no file: write {FORMS}"])
    return path


class TableSource:
    """See ``Source``. The event id is the value of the rising column, with a tiebreak both: ``value/tiebreak``."""

    def __init__(self, database: Database, options: TableOptions) -> None:
        self._database = database
        self._options = options
        self._page_rows = FIRST_PAGE_ROWS
        self._seen_behind = ("", "")  # a committed position that the numbers were found behind, and what is said of it
        self._begin_anew()

    def _begin_anew(self) -> None:
        """As where no position is known."""
        self._told = ""
        self._key = f"table:{self._database.name}"
        source = f"{self._database.uri}#{in_fragment(self._database.identity)}"
        self._position = TablePosition(source, self._database.identity, None, self._options.order)

    @property
    def terms(self) -> Terms:
        return {"source": "table", "key": self._options.key}

    def restore(self, positions: Mapping[str, str]) -> None:
        self._begin_anew()
        found = {key: TablePosition.of(text) for key, text in positions.items() if key.startswith("table:")}
        renamed = [key for key, position in found.items() if position.identity == self._database.identity]
        self._key = renamed[0] if renamed else self._key
        if self._key in found:
            self._restore(found[self._key])
        elif found and not self._options.accept_new:
            raise SourceChanged(
                f"table {self._options.table} was never read under this name, but "
                + ", ".join(
                    f"{key.removeprefix('table:')} up to {position.value!r}" for key, position in found.items()
                ),
                action="name the table that was read before, or give this one a name of its own; --changed new reads it from its "
                "beginning, into the same topic",
                table=self._options.table,
            )

    def _restore(self, committed: TablePosition) -> None:
        self._told = committed.text()
        reason = self._mismatch(committed)
        if not reason:
            self._position = committed
        elif self._options.accept_same and self._may_be_same(committed):
            # In its events it keeps the name that it had: readers know them by it.
            self._position = replace(committed, identity=self._database.identity, series=(), refused="")
        elif behind := self._begins_anew(committed):
            self._position = replace(committed, refused=behind)
        elif not self._options.accept_new:
            raise source_changed(self._options.table, reason, committed.value)
        else:
            self._position = replace(self._position, source=f"{self._position.source}+{_pluses(committed.source)}")

    def _mismatch(self, committed: TablePosition) -> str:
        if committed.identity != self._database.identity:
            return f"it is not the table that was read before ({self._database.identity}, not {committed.identity})"
        if committed.order != self._options.order:
            return f"it was read in the order of {', '.join(committed.order)}, not of {', '.join(self._options.order)}"
        reason = committed.refused or self._behind(committed)
        return reason or another_series(committed.series, self._database.numbers())

    def _behind(self, committed: TablePosition) -> str:
        """What a look has seen of it before, or sees now: a start looks, waits for its turn, and looks again."""
        text, seen = self._seen_behind
        if text == committed.text():
            return seen
        numbers = self._database.numbers()
        behind = fallen_behind(committed.value, numbers)
        if behind and not another_series(committed.series, numbers):  # that is told at each start as well
            self._seen_behind = committed.text(), behind
        return behind

    def _begins_anew(self, committed: TablePosition) -> str:
        """Why a start that sees it is to note it, and to refuse then: a moment later nothing may tell any more, but a series."""
        is_it = (committed.identity, committed.order) == (self._database.identity, self._options.order)
        if self._options.accept_new or self._options.accept_same or committed.refused or not is_it:
            return ""
        text, seen = self._seen_behind
        return seen if text == committed.text() else ""

    def _may_be_same(self, committed: TablePosition) -> bool:
        return committed.order == self._options.order and not fallen_behind(committed.value, self._database.numbers())

    def size_bytes(self) -> int | None:
        return None

    def rows_to_come(self) -> RowsToCome | None:
        """What is wrong with the table is told by the look, which knows more of it."""
        with suppress(OnceflowError):
            return self._database.rows_beyond(self._position.value)
        return None

    def batches(self) -> Iterator[SourceBatch]:
        """A look that finds the numbers behind the position commits that; the next one refuses, and so does every start."""
        if self._is_refused():
            yield from self._told_once()
            return
        self._check_nulls()
        yield from self._seen(self._database.numbers())
        if self._is_refused():
            return
        horizon = self._database.horizon.reached()
        while horizon is not None:
            page = self._database.page(self._position.value, horizon, min(self._page_rows, PAGE_ROWS))
            yield from self._seen(page.numbers)
            if self._is_refused() or not page.ids:
                return
            self._page_rows = _rows_that_fit(page)
            self._position = replace(self._position, value=page.last, series=series_of(page.numbers))
            yield SourceBatch(self._rows(page), self._positions())

    def _seen(self, numbers: Numbers | None) -> Iterator[SourceBatch]:
        """Tells what is new of the position, without rows; one that has no value yet goes with its first row.

        Another series is told at each start as well, so it needs no note.
        """
        if self._position.value is None:
            return
        if reason := another_series(self._position.series, numbers):
            raise source_changed(self._options.table, reason, self._position.value)
        refused = fallen_behind(self._position.value, numbers)
        self._position = replace(self._position, series=series_of(numbers), refused=refused)
        if self._position.text() != self._told:
            yield SourceBatch(None, self._positions())

    def _told_once(self) -> Iterator[SourceBatch]:
        """What a start has found; then it is refused."""
        if self._position.text() == self._told:
            self._check_not_refused()
        yield SourceBatch(None, self._positions())

    def _positions(self) -> dict[str, str]:
        self._told = self._position.text()
        return {self._key: self._told}

    def _is_refused(self) -> bool:
        return bool(self._position.refused)

    def _check_not_refused(self) -> None:
        if self._is_refused():
            raise source_changed(self._options.table, self._position.refused, self._position.value)

    def _check_nulls(self) -> None:
        if self._database.has_nulls():
            raise holds_null(self._options)

    def _rows(self, page: Page) -> pa.RecordBatch:
        ids, values = pa.array(page.ids, pa.string()), pa.array(page.values, pa.string())
        keys = None if page.keys is None else pa.array(page.keys, pa.string())
        rising = page.is_counted and bool(pc.all(pc.ascii_is_decimal(ids)).as_py())
        return event_rows(values, keys, self._position.source, ids, rising=rising)

    def check_end(self) -> None:
        self._check_not_refused()
        writers = self._database.horizon.kept_back_by()
        if writers:
            raise SourceUnfinished(
                f"table {self._options.table}: {writers} may still add rows behind the newest ones, which were left",
                action="run again when these transactions have ended",
            )

    def stop(self) -> None:
        """The time after which nothing is missing need not pass any more."""
        self._database.horizon.stop()

    def close(self) -> None:
        self._database.close()


def _pluses(source: str) -> str:
    """Those at its end: how often tables under this name were begun anew."""
    return source[len(source.rstrip("+")) :]


def _rows_that_fit(page: Page) -> int:
    """How many rows as wide as these a page may have."""
    characters = max(1, sum(map(len, page.values)))
    return max(1, min(PAGE_ROWS, PAGE_CHARACTERS * len(page.values) // characters))


def source_changed(table: str, reason: str, value: Any) -> SourceChanged:
    """The error for a table that is not what the position ``value`` is of."""
    return SourceChanged(
        f"table {table}: {reason}; rows up to {value!r} are committed",
        action="connect to the table that was read before, in the order in which it was read; if it is the same one, restored, "
        "copied or upgraded with all its rows, say --changed same once; or read it from its beginning with --changed new",
        table=table,
    )


def holds_null(options: TableOptions) -> InputError:
    """The error for rows without a value in a column of the order."""
    return InputError(
        f"column {' or '.join(options.order)} of {options.table} holds NULL: such rows have no place in the order",
        action="give them a value, and declare the column NOT NULL",
    )


def no_larger(table: str, column: str, value: Any) -> InputError:
    """The error for a value of the rising column behind which nothing can come."""
    return InputError(
        f"table {table}: a row has {column} {value}, and nothing is larger: the rows that come later would be behind it",
        action="give that row another value; nothing is read of the table meanwhile",
    )


def event_id(*values: str) -> str:
    """The id of a row from the values of its order: a number as it is, several values so that no two rows share one."""
    first, *rest = values
    return "/".join([quote(first, safe=" :+-.,"), *rest]) if rest else first
