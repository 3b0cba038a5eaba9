"""A SQLite file that was there, and is being replaced by ``rm`` and ``cp``.

What it survives::

    the file is removed, and its copy from a backup begins a minute later
    the relay says that it waits for the file, again and again, as for a server that is away

    half of the copy is there: a file of no bytes, or one that is damaged as far as SQLite can see
    as long as it changes it is being written; one that rests for half a minute is what it is, and refused

    somebody drops or renames the table of the relay, and services go on to write into the file
    it changes for ever, and is not being copied: after ten minutes it is refused as well
"""

from __future__ import annotations

import time
from pathlib import Path

from onceflow.errors import OutboxMismatch, OutboxUnavailable

_RESTS_S = 30.0
_WHOLE_S = 600.0


class Arriving:
    """What is seen of the file at ``path`` from one look to the next."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._seen_at = 0.0
        self._began_at = 0.0  # when there was a file for the first time

    def may_come(self) -> bool:
        """Whether there is no file, or it has changed not long ago, and has not been there for too long."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._seen = None
            return True
        now = time.monotonic()
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen is None:
            self._began_at = now
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at < _RESTS_S and now - self._began_at < _WHOLE_S

    def came(self) -> None:
        """It was opened; what comes after it is another one."""
        self._seen = None

    def awaited(self, error: OutboxMismatch) -> OutboxUnavailable:
        """What to tell while it is waited for."""
        return OutboxUnavailable(
            f"{error.message}; waiting for {self._path} to be complete",
            action="put the database back, or stop the relay",
        )
