"""Files of a rotation that no look has found: begun and renamed away while nobody looked.

::

    app.log is read, and the ingest ends
    app.log is renamed to app.log.1 and a new app.log begins; a day later they are app.log.2 and app.log.1, and a third one begins
    the ingest starts with the pattern app.log: it knows app.log.2 by its inode, and app.log is new
    app.log.1 was never found, and no pattern finds it: to go on would pass over its rows in silence

It is known by the name that the file which was read has got: numbered or dated likewise, and last written after it. Older
ones were there before that file began, and are not meant. Numbers that are the log's own, as in worker-1.log, stay as they are:
worker-2.log.1 is another log's.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from onceflow.ingest.watched import File


def passed_over(was: Path, now: Path, files: Collection[File]) -> Iterator[Path]:
    """Files beside ``now`` that the rotation of ``was`` to ``now`` tells of; none of ``files``, which are found."""
    if not now.name.startswith(was.name.partition(".")[0]):
        return  # a name of its own, not one of a rotation
    own = _in_common(was.name, now.name)
    likewise = re.compile(re.escape(own) + re.sub(r"\d+", r"\\d+", re.escape(now.name.removeprefix(own))))
    since_ns = now.stat().st_mtime_ns
    for entry in os.scandir(now.parent):
        if likewise.fullmatch(entry.name) and _is_meant(entry, files, since_ns):
            yield Path(entry.path)


def _is_meant(entry: os.DirEntry[str], files: Collection[File], since_ns: int) -> bool:
    with suppress(FileNotFoundError):  # deleted since the directory was read
        status = entry.stat()  # of what a link leads to: that may be a file which is found
        is_found = (status.st_dev, status.st_ino) in files
        return stat.S_ISREG(status.st_mode) and not is_found and status.st_size > 0 and status.st_mtime_ns >= since_ns
    return False


def _in_common(was: str, now: str) -> str:
    """What both names begin with; no part of a number: app.log.1 and app.log.12 have ``app.log.`` in common."""
    common = os.path.commonprefix([was, now])  # noqa: RUF071  of names, not of paths
    is_cut = any(name[len(common) : len(common) + 1].isdigit() for name in (was, now))
    return common.rstrip("0123456789") if is_cut else common
