"""What the parts that share a SQLite file with other programs do alike."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from urllib.parse import unquote_to_bytes

TEXT = partial(str, encoding="utf-8", errors="surrogateescape")
"""For ``Connection.text_factory``. SQLite keeps any bytes as text; read strictly, a row that holds them could never be named."""


FORMS = "sqlite:///relative.db or sqlite:////absolute.db (a ? in it as %3F, a # as %23)"


def file_of(url: str, *, options: bool = False) -> str:
    """The path in ``sqlite:///relative.db`` or ``sqlite:////absolute.db`` (SQLAlchemy's rule); empty if it names none.

    What is left out would make it another file's: a ``#`` or a ``?`` and what follows, a host, or a slash too few; so it is not
    taken apart by ``urlsplit``, which drops tabs and line ends. Names are bytes, and need not be UTF-8.
    ``options``: it may have a ``?``, and the caller looks at what follows.
    """
    scheme, _, rest = url.partition(":")
    if not (scheme and rest.startswith("///")) or "#" in rest or ("?" in rest and not options):
        return ""
    path, _, _ = rest.removeprefix("///").partition("?")
    return os.fsdecode(unquote_to_bytes(path))


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
    database = database.resolve()  # SQLite keeps its logs beside what a link leads to
    _sync_log(database, "wal")
    os.fsync(_descriptor(database))
    _sync_log(database, "journal")  # emptied, or what it holds would be rolled back after a crash
    _sync_closing(database.parent)


def _sync_log(database: Path, name: str) -> None:
    with suppress(FileNotFoundError):
        _sync_closing(Path(f"{database}-{name}"))  # SQLite puts no lock on it


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


def is_utf8(text: str) -> bool:
    """Whether text that was read by ``TEXT`` is text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(text: str) -> str:
    """For people: bytes that are no UTF-8 by their numbers."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def place_of(database: Path) -> tuple[int, int]:
    """Which file is there now (device, inode). Raises FileNotFoundError."""
    return _place(database.stat())


def is_in_place(database: Path, place: tuple[int, int]) -> bool:
    """Whether the file that was there is still there.

    One that another was moved upon stays open, has no name any more, and gets no new rows: it would be looked into for ever.
    """
    with suppress(FileNotFoundError):
        return place_of(database) == place
    return False
