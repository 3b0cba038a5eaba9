"""Files that a pattern has found and of which nothing is committed yet: found again under another name.

::

    app.log is there, still empty, and the ingest waits for rows
    within half a second they are written, app.log is renamed to app.log.1, and a new app.log begins
    the pattern app.log finds the new one alone, and no position tells of the other: its rows would be passed over in silence

Remembered as long as the process lives. What it had found and not committed when it was killed nobody knows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from onceflow.ingest.born import born_ns

_File = tuple[Path, int]
"""A directory and an inode: other file systems give the same numbers."""


@dataclass(slots=True)
class Watched:
    """The files, with the path and the time of birth that they were last found with."""

    _files: dict[_File, tuple[Path, int]] = field(default_factory=dict)

    def note(self, found: Iterable[tuple[int, Path]]) -> None:
        """These, by inode and path, are there now; others are given up."""
        self._files = {(path.parent, inode): (path, born_ns(path)) for inode, path in found}

    def renamed(self, found: Iterable[tuple[int, Path]]) -> Iterator[Path]:
        """Where those are now that are not among ``found``, in the directory in which they were."""
        missing = set(self._files).difference((path.parent, inode) for inode, path in found)
        for directory in sorted({parent for parent, _ in missing}):
            if directory.is_dir():
                for entry in os.scandir(directory):
                    if (directory, entry.inode()) in missing and self._is_it(entry):
                        yield Path(entry.path)

    def _is_it(self, entry: os.DirEntry[str]) -> bool:
        """An inode is given to another file once its own is deleted. So it is one that was made at the same time; where nobody
        knows that, one whose name begins likewise, as a rotation leaves it.
        """
        was, born = self._files[Path(entry.path).parent, entry.inode()]
        return born_ns(Path(entry.path)) == born if born else entry.name.startswith(was.name.partition(".")[0])
