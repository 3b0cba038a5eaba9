"""What Spark purges of its logs while a run lasts: copied before, put back for the replay, which needs every batch.

Spark keeps the newest ``spark.sql.streaming.minBatchesToRetain`` batches, and lists all that are kept at each start. A run that
told it to keep everything recovered the slower the older it was: no user's pipeline does that. So Spark purges as it does for a
user, and what it is going to purge is copied a few times a second::

    checkpoint/offsets   …  57 58 … 157       56 is purged when batch 157 has ended
    copies/QUERY/offsets 0 1 … 56 57 … 157    before: seen a hundred batches ago, and again when it was changed
    the run is over      0 to 56 are put back; an entry that a fault took was one of the newest, and stays away
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onceflow.pipeline.local_checkpoint import numbers
from onceflow.verify.oracle.offsets import query_of, resumed_from

RETAINED_BATCHES = 100
"""Spark's default. At the few batches a second of a run there is half a minute to copy an entry in."""

_LOGS = ("offsets", "commits")
_SURELY_PURGED = RETAINED_BATCHES // 2  # so many behind the newest: faults take what is newer, the purge what is older
_ENTRY_BYTES = 1 << 24

_Seen = tuple[int, int, int]  # inode, time of the change, size


class PurgedEntries:
    """Copies of both logs of the checkpoint that stands at ``checkpoint``, into ``copies``, one directory for each query."""

    def __init__(self, checkpoint: Path, copies: Path) -> None:
        self._checkpoint = checkpoint
        self._copies = copies
        self._seen: dict[tuple[str, str, str], _Seen] = {}

    def look(self) -> None:
        """Copies each entry that is new, or was changed since. What is not there, or goes meanwhile, is no error."""
        try:
            with _opened(self._checkpoint) as checkpoint:
                query = query_of(_read(checkpoint, "metadata"))
                for log in _LOGS:
                    self._look_at(checkpoint, query, log)
        except (FileNotFoundError, ValueError):
            # Before the first start, or a file that is just being written; the oracle tells of one that stays so.
            return

    def _look_at(self, checkpoint: int, query: str, log: str) -> None:
        with _opened(log, checkpoint) as directory:
            for name in filter(str.isdecimal, os.listdir(directory)):  # noqa: PTH208  no path leads to it
                try:
                    self._copy(directory, query, log, name)
                except FileNotFoundError:
                    continue  # purged, or lost by a fault

    def _copy(self, directory: int, query: str, log: str, name: str) -> None:
        found = os.stat(name, dir_fd=directory)
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if self._seen.get((query, log, name)) == seen:
            return
        target = self._copies / query / log / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_read(directory, name))
        self._seen[query, log, name] = seen


def put_back(checkpoint: Path, copies: Path) -> None:
    """Completes the logs of a run that is over: of the checkpoint, and of those that were set aside before it."""
    for each in (*resumed_from(checkpoint), checkpoint):
        try:
            query = query_of((each / "metadata").read_bytes())
        except (FileNotFoundError, ValueError):
            continue  # what cannot be read of it is told by who reads it
        for log in _LOGS:
            _put_back(each / log, copies / query / log)


def _put_back(log: Path, copies: Path) -> None:
    there = numbers(log)
    newest = max(there, default=0)
    for number in numbers(copies):
        if number not in there and number < newest - _SURELY_PURGED:
            shutil.copyfile(copies / str(number), log / str(number))


@contextmanager
def _opened(directory: Path | str, within: int | None = None) -> Iterator[int]:
    """A directory that stays the same one whatever becomes of its name: a resume sets a checkpoint aside, and begins another."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(directory: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(descriptor, _ENTRY_BYTES)
    finally:
        os.close(descriptor)
