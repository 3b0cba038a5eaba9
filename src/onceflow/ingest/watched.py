"""Files that were found and of which nothing is committed yet: found again under another name in their directory.

::

    app.log is there, still empty, and the ingest waits for rows
    within half a second they are written, app.log is renamed to app.log.1, and a new app.log begins
    the pattern app.log finds the new one alone, and no position tells of the other: its rows would be passed over in silence

    a rotation happens while the names are read: app.log is the new one by the time when its birth is asked for
    so the birth counts if the name leads to the file that was found before and after it was asked for

    app.log is a link to today.log, which is empty; it is written, and app.log is pointed at tomorrow.log
    so where the file lies is remembered, not the name by which it was found

    app.log.1 is found in the directory and is app.log.2 when it is looked at
    so a file that is missing is remembered for some looks more

Remembered as long as the process lives. What it had found and not committed when it was killed nobody knows.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from onceflow.ingest.born import born_ns
from onceflow.ingest.file_position import goes_on

_MISSING_LOOKS = 20

File = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class _Remembered:
    """Where a file was last, links followed; when it was made (0: nobody knows), and for how many looks it is missing."""

    path: Path
    born_ns: int
    missing: int = 0

    def may_be(self, path: Path, file: File) -> bool:
        """An inode is given to another file once its own is deleted. So it is one that was made at the same time; where nobody
        knows that, one whose name goes on from the last one, as a rotation leaves it.
        """
        if self.born_ns:
            return _born_ns(path, file) == self.born_ns
        return goes_on(self.path.name, path)


@dataclass(slots=True)
class Watched:
    """The files by device and inode."""

    _files: dict[File, _Remembered] = field(default_factory=dict)

    def note(self, found: Mapping[File, Path], there: Collection[File]) -> None:
        """``found`` are to be remembered; of those before, what is not ``there`` at all is, for some looks more."""
        missing = {
            file: replace(was, missing=was.missing + 1)
            for file, was in self._files.items()
            if file not in there and was.missing < _MISSING_LOOKS
        }
        self._files = missing | {
            file: _Remembered(path.resolve(), self._birth(path, file)) for file, path in found.items()
        }

    def _birth(self, path: Path, file: File) -> int:
        was = self._files.get(file)
        return _born_ns(path, file) or (was.born_ns if was else 0)

    def renamed(self, found: Collection[File]) -> Iterator[tuple[Path, Path]]:
        """Where those were and are now that are not among ``found``, in the directory in which they were."""
        missing = {file: was for file, was in self._files.items() if file not in found}
        inodes = {inode for _, inode in missing}
        for directory in sorted({was.path.parent for was in missing.values()}):
            with suppress(FileNotFoundError, NotADirectoryError):
                for entry in os.scandir(directory):
                    if entry.inode() in inodes and (was := _which(missing, Path(entry.path))) is not None:
                        yield was.path, Path(entry.path)


def _which(missing: Mapping[File, _Remembered], path: Path) -> _Remembered | None:
    file = _regular_file(path)
    was = missing.get(file)
    return was if was is not None and was.may_be(path, file) else None


def _regular_file(path: Path) -> File:
    """What the name leads to; nothing that is no file, such as a FIFO that has got the inode, nor what was renamed just now."""
    with suppress(OSError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return status.st_dev, status.st_ino
    return 0, 0


def _born_ns(path: Path, file: File) -> int:
    """When the file was made; 0 where nobody knows, or another one has the name by now."""
    if _regular_file(path) != file:
        return 0
    born = born_ns(path)
    return born if _regular_file(path) == file else 0
