"""Files of a rotation that no look has found: begun and renamed away while nobody looked.

::

    app.log is read, and the ingest ends
    app.log is renamed to app.log.1 and a new app.log begins; a day later they are app.log.2 and app.log.1, and a third one begins
    the ingest starts with the pattern app.log: it knows app.log.2 by its inode, and app.log is new
    app.log.1 was never found, and no pattern finds it: to go on would pass over its rows in silence

It is known by the name that the file which was read has got: numbered or dated likewise, and begun after it (last written after
it, where births are unknown). Older ones were there before that file began, and are not meant. Numbers that are the log's own, as
in worker-1.log, stay as they are: worker-2.log.1 is another log's.

::

    app.log.1 was read, and nothing was written for a day; then more than one rotation comes while the ingest is away
    it is gone, and another file has its place, which no pattern finds: likewise

    app.log was read, and more rotations than are kept come while the ingest is away: it is deleted
    nobody knows of those that are numbered or dated like it and were begun after it. They are named as well, also where the new
    app.log is refused by its name already: whoever says ``new`` would pass over them
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from onceflow.ingest.born import born_ns
from onceflow.ingest.file_position import FilePosition, log_name, status_of
from onceflow.ingest.watched import File

_BEFORE_SUFFIX = re.compile(r"(\.\d+|[.-]\d{4}-?\d{2}-?\d{2}[\d-]*)(?=\.[^.]+$)")


def passed_over(was: Path, now: Path, files: Collection[File]) -> Iterator[Path]:
    """Files beside ``now`` that the rotation of ``was`` to ``now`` tells of; none of ``files``, which are found."""
    if not now.name.startswith(was.name.partition(".")[0]):
        return  # a name of its own, not one of a rotation
    own = _in_common(was.name, now.name)
    likewise = re.compile(re.escape(own) + re.sub(r"\d+", r"\\d+", re.escape(now.name.removeprefix(own))))
    born, written = born_ns(now), now.stat().st_mtime_ns
    for entry in os.scandir(now.parent):
        if likewise.fullmatch(entry.name) and holds_rows(beside := Path(entry.path), files):
            with suppress(FileNotFoundError):  # deleted since the directory was read
                since = born_ns(beside)
                if since > born if since and born else entry.stat().st_mtime_ns >= written:
                    yield beside


def in_its_place(gone: FilePosition, files: Collection[File]) -> Iterator[Path]:
    """What stands where a rotation had put a file that was read, and is none of ``files``."""
    if holds_rows(Path(gone.path), files) and gone.was_rotated():
        yield Path(gone.path)


def begun_after(known: Iterable[FilePosition], at_home: Collection[str], files: Collection[File]) -> Iterator[Path]:
    """What is numbered or dated like the youngest of ``known`` and was begun after it; where that is ``at_home`` (sources), under
    the name of the log, there is nothing after it.
    """
    youngest: dict[Path, FilePosition] = {}
    for position in known:
        if position.born_ns > (before.born_ns if (before := youngest.get(position.found_as)) else 0):
            youngest[position.found_as] = position
    away = {path: position for path, position in youngest.items() if position.source not in at_home}
    for directory in sorted({path.parent for path in away}):
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(directory):
                beside = Path(entry.path)
                before = next((away[log] for log in _logs_of(beside) if log in away), None)
                if before is not None and born_ns(beside) > before.born_ns and holds_rows(beside, files):
                    yield beside


def _logs_of(path: Path) -> Iterator[Path]:
    """Of which logs it may be a rotated one. Before a suffix a mere number behind a hyphen may be a log's own: worker-2.log."""
    yield path.with_name(log_name(path))
    if found := _BEFORE_SUFFIX.search(path.name):
        yield path.with_name(path.name[: found.start()] + path.name[found.end() :])


def holds_rows(path: Path, files: Collection[File]) -> bool:
    """Of what a link leads to: that may be a file which is found."""
    status = status_of(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return False
    return (status.st_dev, status.st_ino) not in files and status.st_size > 0


def _in_common(was: str, now: str) -> str:
    """What both names begin with; no part of a number: app.log.1 and app.log.12 have ``app.log.`` in common."""
    common = os.path.commonprefix([was, now])  # noqa: RUF071  of names, not of paths
    is_cut = any(name[len(common) : len(common) + 1].isdigit() for name in (was, now))
    return common.rstrip("0123456789") if is_cut else common
