"""An outbox in a SQLite file. One writer at a time, so the order of rowids is the order of commits.

*Why a number may be refused as an id*: a column of a table of the user's own may have no type::

    such a column holds the number 1 and the text '1' as two ids, and in Kafka both have the name 1
    a reader takes the second event for a repetition of the first, and never handles it
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from onceflow.errors import OutboxMismatch, OutboxUnavailable
from onceflow.outbox.arriving import Arriving
from onceflow.outbox.checks import (
    check_aside,
    check_found,
    check_rows,
    moved_on,
    not_an_outbox,
    quoted,
)
from onceflow.outbox.position import Sent
from onceflow.outbox.sql import TableName
from onceflow.outbox.table import REQUIRED, Limits, OutboxRow, Place, load
from onceflow.outbox.waker import Waker
from onceflow.sqlite import TEXT, is_in_place, place_of, sync
from onceflow.sqlite_types import is_strict, keeps_numbers_and_texts_apart

_BUSY_S = 30.0
_LOOK_S = 0.02
_INSERTED_AT_MS = "cast(round((julianday(inserted_at) - 2440587.5) * 86400000) as integer)"

_ROWS = (
    "select position, id, aggregatetype, aggregateid, type, payload, {inserted} from {outbox} order by position limit ?"
)


class SqliteOutbox:
    """``path`` of a file that exists. See ``OutboxTable``."""

    def __init__(self, path: Path, table: TableName) -> None:
        self._path = path
        self._name = table
        self._connection: sqlite3.Connection | None = None
        self._inserted = "null"
        self._keeps_any_id = False
        self._version = -1
        self._place = (-1, -1)
        self._was_open = False
        self._arriving = Arriving(path)

    @property
    def address(self) -> str:
        return f"{self._path}, table {self._name}"

    def open(self) -> None:
        """A file that was there before, and is gone or incomplete, is waited for: it is being replaced (``arriving.py``)."""
        try:
            self._open_file()
        except OutboxMismatch as error:
            if self._was_open and self._arriving.may_come():
                raise self._arriving.awaited(error) from error
            raise
        self._was_open = True
        self._arriving.came()

    def _open_file(self) -> None:
        try:
            self._place = place_of(self._path)
        except FileNotFoundError:
            raise OutboxMismatch(f"there is no file {self._path}", action="check the path") from None
        with self._told():
            self._connection = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            self._connection.text_factory = TEXT
            # A commit of ours is on disk, and with it every commit before it, whatever the services have set for theirs.
            self._connection.execute("pragma synchronous = full")
            found = self._found_columns(self._name)
        check_found(str(self._name), found, REQUIRED)
        self._inserted = _INSERTED_AT_MS if "inserted_at" in found else "null"
        with self._told():
            strict = is_strict(self._open, self._name.name)
        self._keeps_any_id = keeps_numbers_and_texts_apart(found["id"], is_strict=strict)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def place(self) -> Place:
        with self._told():
            rows = self._run("select incarnation, name, instance, batch, events from {relay}").fetchall()
        if len(rows) != 1:
            raise not_an_outbox(f"{self._name.relay} has {len(rows)} rows instead of one")
        return Place(*rows[0])

    def check_aside(self) -> None:
        with self._told():
            self._run("select 1 from {aside} limit 1")
            self._columns_aside()

    def _columns_aside(self) -> str:
        """All columns of the outbox, generated ones too, which the table of refused rows must have as well."""
        outbox = self._found_columns(self._name)
        aside = self._run("select name, hidden = 0 from pragma_table_xinfo(?)", self._name.aside.name).fetchall()
        check_aside(self._name, outbox, dict(aside))
        return ", ".join(map(quoted, outbox))

    def _found_columns(self, table: TableName) -> dict[str, str]:
        return dict(self._run("select name, type from pragma_table_xinfo(?) where hidden <> 1", table.name).fetchall())

    def claim(self, name: str, instance: str, *, over: str | None) -> bool:
        with self._writing():
            query = "update {relay} set name = ?1, instance = ?2 where (name is null or name = ?1) and instance is ?3"
            return self._run(query, name, instance, over).rowcount == 1

    def take(self, left: Place, limits: Limits) -> Sequence[OutboxRow]:
        with self._told():
            self._check_in_place()
            self._version = self._data_version()
            if self._run("select 1 from {outbox} limit 1").fetchone() is None:
                return ()
        with self._writing():
            rows = self._rows(limits)
            query = "update {relay} set sending = batch + 1 where incarnation = ? and instance is ? and batch = ?"
            if self._run(query, left.incarnation, left.instance, left.batch).rowcount != 1:
                raise moved_on(self.address)
        # Our commit synced the log alone; a checkpoint of a service without sync may have emptied it into the file before.
        with self._told():
            sync(self._path)
        return rows

    def _check_in_place(self) -> None:
        if not is_in_place(self._path, self._place):
            raise OutboxUnavailable(
                f"{self._path} is not the file any more that the relay has opened: it was replaced or removed",
                action="stop the relay before the file is replaced; it begins again with what is there now",
            )

    def _rows(self, limits: Limits) -> list[OutboxRow]:
        with closing(self._run(_ROWS, limits.rows)) as cursor:
            return load(self._named(cursor), limits)

    def _named(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Raises OutboxMismatch for an id that would be the name of another event as well."""
        for row in rows:
            position, event_id = row[:2]
            if self._keeps_any_id and isinstance(event_id, int | float):
                raise OutboxMismatch(
                    f"{self.address}, position {position}: its id is the number {event_id}, in a column that keeps numbers apart "
                    f"from texts; in Kafka the text {str(event_id)!r} would be the same id",
                    action="make the table anew with a column id of type text (or integer, if all ids are): it holds such an id "
                    "once; or insert ids as texts",
                )
            yield row

    def forget(self, sent: Sent) -> None:
        with self._writing():
            query = "update {relay} set batch = ?1, events = ?2 where batch = ?1 - 1 and incarnation = ?3"
            if self._run(query, sent.batch, sent.events, sent.incarnation).rowcount != 1:
                raise moved_on(self.address)
            if sent.refused:
                self._set_aside(sent.refused)
            deleted: list[tuple[int, object]] = []
            for first, last in sent.rows:
                deleted += self._run(
                    "delete from {outbox} where position between ? and ? returning position, id", first, last
                )
            check_rows(self.address, sent, deleted)

    def _set_aside(self, positions: Sequence[int]) -> None:
        """Whole rows: the columns are looked up now, because a table may get new ones while the relay runs."""
        columns = self._columns_aside()
        query = f"insert into {self._name.aside} ({columns}) select {columns} from {self._name} where position = ?"  # noqa: S608
        self._open.executemany(query, [(position,) for position in positions])

    def wait(self, waker: Waker, timeout_s: float) -> None:
        """``data_version`` changes when another connection commits; it is read from memory shared with the others."""
        deadline = time.monotonic() + timeout_s
        with self._told():
            while self._data_version() == self._version and not waker.woken and time.monotonic() < deadline:
                waker.wait(_LOOK_S)

    def _data_version(self) -> int:
        return int(self._run("pragma data_version").fetchone()[0])

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "open it first"
        return self._connection

    def _run(self, query: str, *values: object) -> sqlite3.Cursor:
        """Only names that ``TableName`` has checked are put into the text."""
        names = {"outbox": self._name, "relay": self._name.relay, "aside": self._name.aside}
        text = query.format(**names, inserted=self._inserted)
        return self._open.execute(text, values)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction that has the write lock from its beginning: one that asks for it later may be refused."""
        with self._told():
            self._open.execute("begin immediate")
            try:
                yield
                self._open.execute("commit")
            except BaseException:
                if self._open.in_transaction:  # some errors have rolled back already
                    self._open.execute("rollback")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                raise not_an_outbox(f"{self.address}: {error}") from error
            self._check_in_place()  # of a file that was replaced SQLite says that it is read-only, or cannot be read
            raise OutboxUnavailable(f"{self.address}: {error}", action="see the message; then start again") from error
        except OSError as error:  # removed just now, or its disk is gone
            raise OutboxUnavailable(f"{self._path}: {error}", action="see the message; then start again") from error
        except sqlite3.IntegrityError as error:
            raise OutboxMismatch(
                f"{self.address}: {error}",
                action="see the message: a trigger or a constraint refuses what the relay does",
            ) from error
        except sqlite3.DatabaseError as error:
            raise OutboxMismatch(f"{self.address}: {error}", action="name a SQLite database") from error
