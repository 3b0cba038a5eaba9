"""Files of a rotation that no look has found: begun and renamed away while nobody looked.

::

    app.log is read, and the ingest ends
    app.log is renamed to app.log.1 and a new app.log begins; a day later they are app.log.2 and app.log.1, and a third one begins
    the ingest starts with the pattern app.log: it knows app.log.2 by its inode, and app.log is new
    app.log.1 was never found, and no pattern finds it: to go on would pass over its rows in silence

It is known by the name that the file which was read has got: numbered or dated likewise, and last written after it. Older
ones were there before that file began, and are not meant.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path


def passed_over(was: Path, now: Path, inodes: Collection[int]) -> Iterator[Path]:
    """Files beside ``now`` that the rotation of ``was`` to ``now`` tells of; none of ``inodes``, which are found."""
    if not now.name.startswith(was.name.partition(".")[0]):
        return  # a name of its own, not one of a rotation
    numbered = re.compile(re.sub(r"\d+", r"\\d+", re.escape(now.name)))
    since_ns = now.stat().st_mtime_ns
    for entry in os.scandir(now.parent):
        if numbered.fullmatch(entry.name) and entry.inode() not in inodes and entry.is_file():
            status = entry.stat()
            if status.st_size and status.st_mtime_ns >= since_ns:
                yield Path(entry.path)
