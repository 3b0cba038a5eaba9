"""The connection that handlers write through: inside of a unit's transaction, which only the store begins and ends.

What it survives::

    a handler calls ``tx.commit()`` (or executescript, which commits first) in the middle of its effects, and fails after it
    ids and position are committed, the second half of the effects is not: events are lost

so an authorizer refuses BEGIN, COMMIT and ROLLBACK while a handler runs. SQLite asks it when a statement is prepared, and
Python keeps prepared statements by their text; the store's own have texts of their own::

    a table of the user's says ON CONFLICT ROLLBACK (or a trigger RAISE(ROLLBACK)); the handler catches that error and goes on
    what it writes now would be committed statement by statement, without the ids, and be there again with each next try; so
    would what stands between a SAVEPOINT, which begins a transaction where there is none, and its RELEASE

    the same, with a statement that was prepared while the transaction was there, and that SQLite asks nobody about
    so the cursors look as well, each time. To prepare everything anew would make a handler's small statements five times slower

    the reader gives the event loop of a handler up (on_loop.py), rolls back, and the handler takes one step more
    it stays guarded: outside of a transaction it writes nothing

so outside of the transaction nothing is done but reading.

    a handler closes the connection; the store's next statement fails as a bare ProgrammingError, and ends the reader
    it is refused as well, and is that event's failure
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, Self

from onceflow.reader.stores.blame import causes

_WHY = (
    "not authorized: a handler must not begin or end a transaction (commit, rollback, executescript, with tx:); when it returns "
    "the store commits what it has written, together with the event's id and position"
)
_READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)


class GuardedConnection(sqlite3.Connection):
    """While ``is_guarded``, others than the store write through it."""

    is_guarded = False

    def guard(self) -> None:
        """From now on it looks at what is done while ``is_guarded``."""
        self.set_authorizer(self._authorize)

    def cursor(self, factory: Callable[..., sqlite3.Cursor] | None = None) -> Any:
        return super().cursor(factory or _Cursor)

    # Python's own go past ``cursor``.

    def execute(self, statement: str, parameters: Any = (), /) -> sqlite3.Cursor:
        found: sqlite3.Cursor = self.cursor().execute(statement, parameters)
        return found

    def executemany(self, statement: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        found: sqlite3.Cursor = self.cursor().executemany(statement, parameters)
        return found

    def close(self) -> None:
        """Raises DatabaseError for a handler."""
        if self.is_guarded:
            raise sqlite3.DatabaseError("not authorized: the connection is the store's; a handler must not close it")
        super().close()

    def check_inside(self) -> None:
        """Raises DatabaseError where a handler's statement would be a transaction of its own."""
        if self.is_guarded and not self.in_transaction:
            raise sqlite3.DatabaseError(
                "not authorized: SQLite has rolled the unit back (ON CONFLICT ROLLBACK, RAISE(ROLLBACK)), and what is done now "
                "would be committed without it"
            )

    def _authorize(self, action: int, *_: str | None) -> int:
        if not self.is_guarded:
            return sqlite3.SQLITE_OK
        is_refused = action == sqlite3.SQLITE_TRANSACTION or (not self.in_transaction and action not in _READING)
        return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK


def explain(error: BaseException) -> None:
    """Says why, where SQLite has told no more than that its authorizer refused it. Changes the text of the error."""
    for each in causes(error):
        if isinstance(each, sqlite3.DatabaseError) and getattr(each, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            each.args = (_WHY,)


class _Cursor(sqlite3.Cursor):
    connection: GuardedConnection

    def execute(self, statement: str, parameters: Any = (), /) -> Self:
        self.connection.check_inside()
        return super().execute(statement, parameters)

    def executemany(self, statement: str, parameters: Iterable[Any], /) -> Self:
        self.connection.check_inside()
        return super().executemany(statement, parameters)
