"""What the parts that share a SQLite file with other programs do alike."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

# A descriptor of each database that was synced, for the life of the process; (device, inode) cannot be given anew meanwhile.
_held: dict[tuple[int, int], int] = {}
_lock = Lock()


def sync(database: Path) -> None:
    """Puts on disk what other programs committed with ``synchronous = off``.

    The log first: what has left it since is in the file by then. The database's descriptor is never closed, as closing any
    descriptor of a file gives up every POSIX lock of the process on it (fcntl(2); "How To Corrupt An SQLite Database File",
    2.2)::

        a relay reads with a connection of its own, syncs the file and closes it: its SHARED lock is gone
        a service closes its connection, gets the exclusive lock, as if it were the last one, and removes the log
        the relay goes on with a log that has no name: it never sees a new row, and what it commits is lost
    """
    with suppress(FileNotFoundError):
        _sync_closing(Path(f"{database}-wal"))  # SQLite puts no lock on it
    os.fsync(_descriptor(database))
    _sync_closing(database.parent)


def _sync_closing(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _descriptor(database: Path) -> int:
    with _lock:
        held = _held.get(_place(database.stat()))
        if held is not None:
            return held
        file = os.open(database, os.O_RDONLY)
        return _held.setdefault(_place(os.fstat(file)), file)


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
