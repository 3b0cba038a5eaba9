"""The effects: rows of a table in the store's own file, so that effect, position and fence are one transaction.

The table has no key that would refuse anything: an effect that happens twice is there twice. Nothing heavy is imported here, for
a reader that was killed should be there again soon.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

_WAIT_S = 30.0
_CREATE = (
    "CREATE TABLE effects (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL,"
    " at_offset INTEGER NOT NULL, content INTEGER NOT NULL, pid INTEGER NOT NULL)"
)
_INSERT = "INSERT INTO effects (topic, partition, at_offset, content, pid) VALUES (?, ?, ?, ?, ?)"
_ALL = "SELECT topic, partition, at_offset, content FROM effects ORDER BY number"
_FURTHEST = "SELECT topic, partition, max(at_offset) FROM effects GROUP BY topic, partition"
_HAS_POSITIONS = "SELECT count(*) FROM sqlite_master WHERE name = 'onceflow_positions'"
_OWNED = "SELECT count(*) FROM onceflow_positions WHERE owner LIKE ? AND topic NOT LIKE '%:%'"


def create(file: Path) -> None:
    """The table, before any reader begins."""
    with _opened(file) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(_CREATE)


def insert(connection: sqlite3.Connection, place: tuple[str, int, int], content: int, pid: int) -> None:
    """One effect: of the record at this topic, partition and offset, with this content; ``pid`` is whoever handled it."""
    connection.execute(_INSERT, (*place, content, pid))


def effects_in(file: Path) -> list[tuple[str, int, int, int]]:
    """All of them: topic, partition, offset and content, in the order in which they were written."""
    with _opened(file) as connection:
        return list(connection.execute(_ALL))


def furthest(file: Path) -> dict[tuple[str, int], int]:
    """Of each partition the highest offset that has an effect."""
    with _opened(file) as connection:
        return {(topic, partition): offset for topic, partition, offset in connection.execute(_FURTHEST)}


def owned_by(file: Path, pid: int) -> int:
    """How many partitions the store has for the process: the one that took each of them last. 0 where there is no store."""
    with _opened(file) as connection:
        if not connection.execute(_HAS_POSITIONS).fetchone()[0]:
            return 0
        count: int = connection.execute(_OWNED, (f"%-{pid}",)).fetchone()[0]
        return count


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=_WAIT_S)) as connection:
        yield connection
