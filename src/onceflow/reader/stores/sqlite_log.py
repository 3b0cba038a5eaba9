"""Whether a SQLite file and its write-ahead log belong together: an older copy put into the file leaves the newer log beside it.

What it survives::

    the readers are killed, or their machine; somebody copies yesterday's backup over the file (``cp``) and forgets its ``-wal``
    SQLite reads what the log has from there and the rest from the backup: the position is today's, most effects of today are
    gone, and nothing says so until a page is read that is in neither

    the same under a running reader
    its connection goes on with the log

    a machine loses power while a large commit is written: its end is on disk, a page in its midst is not
    SQLite goes on before that commit, over its first pages and under the same salts; behind these is what is left of it, with the
    right salts and wrong checksums. So checksums count, up to where SQLite stops as well; they are looked at where pages seem to
    be missing, as each page costs a tenth of a millisecond

The log holds what was written since all of it was last copied into the file, so a file that grows has each page in one of the
two; of an older copy the pages are missing by which the file has grown until then. What had not grown cannot be told.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

# Magic, version, page size, number, two salts, two checksums (sqlite.org/fileformat2.html, 4.1).
_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")  # page, pages of the database behind a commit, two salts, two checksums
_MAGIC = (0x377F0682, 0x377F0683)
_HEADER_SUMMED = 24  # bytes of the header that its checksums are of
_SUMMED = 8  # bytes of a frame's head that its checksums are of, before its page
_LOCKED_BYTE = 0x40000000  # its page is never written

_Logged = tuple[int, set[int], int]
"""The page size, the pages in the log, and how many the database has behind its last commit; zeros for no log."""


def has_missing_pages(database: Path) -> bool:
    """Whether a page is neither in the file nor in the log."""
    database = database.resolve()  # SQLite keeps the log beside what a link leads to
    with suppress(FileNotFoundError):
        return _misses_pages(database, _written) and _misses_pages(database, _valid)
    return False


def _misses_pages(database: Path, look: Callable[[BinaryIO], _Logged]) -> bool:
    """The log is read first: whatever leaves it is in the file by then."""
    with Path(f"{database}-wal").open("rb") as log:
        page_size, pages, count = look(log)
    size = database.stat().st_size
    if not page_size or not size:  # beside an empty file SQLite removes the log
        return False
    behind = set(range(size // page_size + 1, count + 1)) - pages
    return bool(behind - {_LOCKED_BYTE // page_size + 1})


def _written(log: BinaryIO) -> _Logged:
    """By the salts alone: that is quick, and may find more than SQLite does."""
    header = log.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return 0, set(), 0
    magic, _, page_size, _, *salts, _, _ = _HEADER.unpack(header)
    if magic not in _MAGIC or not page_size:
        return 0, set(), 0
    pages: set[int] = set()
    count = 0
    while len(frame := log.read(_FRAME.size)) == _FRAME.size:
        page, behind_commit, *of_frame, _, _ = _FRAME.unpack(frame)
        if of_frame != salts:  # what was there before the log began anew
            break
        pages.add(page)
        count = behind_commit or count
        log.seek(page_size, 1)
    return page_size, pages, count


def _valid(log: BinaryIO) -> _Logged:
    """What SQLite finds when it recovers: all up to the last commit before the first checksum that is wrong."""
    header = log.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return 0, set(), 0
    magic, _, page_size, _, *salts, first, second = _HEADER.unpack(header)
    order = ">" if magic & 1 else "<"
    sums = _added(order, header[:_HEADER_SUMMED], (0, 0))
    if magic not in _MAGIC or sums != (first, second):
        return 0, set(), 0
    pages: set[int] = set()
    uncommitted: set[int] = set()
    count = 0
    while len(frame := log.read(_FRAME.size)) == _FRAME.size and len(content := log.read(page_size)) == page_size:
        page, behind_commit, *of_frame, first, second = _FRAME.unpack(frame)
        sums = _added(order, frame[:_SUMMED] + content, sums)
        if of_frame != salts or sums != (first, second):
            break
        uncommitted.add(page)
        if behind_commit:
            pages |= uncommitted
            uncommitted = set()
            count = behind_commit
    return page_size, pages, count


def _added(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's running checksums, with words of the order that the log's maker had."""
    first, second = sums
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    for one, other in zip(words[::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
